//! Tools: their words, their service, and the tools that find tools.

pub mod approval;
pub mod bm25;
pub mod error;
pub mod json;
pub mod schema_lookup;
pub mod scoped;
pub mod service;
pub mod tool_search;
