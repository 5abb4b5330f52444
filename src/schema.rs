//! Schemas of tools: which of them every client can bear, and how to make the others so.

pub mod inspect;
mod keywords;
pub mod renames;
pub mod repair;
