//! Tools: their words, their service, and the tools that find tools.

pub mod approval;
pub mod bm25;
pub mod claim_rule;
pub mod concurrency;
pub mod error;
pub mod hook;
pub mod json;
pub mod read_result;
pub mod results;
pub mod schema_lookup;
pub mod scoped;
pub mod service;
pub mod tool_search;
