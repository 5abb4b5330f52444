//! The catalog: registered tools of all sources, their names, their health.

pub mod health;
pub mod names;
pub mod registry;
pub mod sanitize;
pub mod snapshot;
