//! Upstream MCP servers: their wire, their processes, their tools.

pub mod cache;
pub mod client;
pub mod link;
pub mod owners;
pub mod publisher;
pub mod server;
pub mod supervisor;
pub mod tools;
pub mod wire;
