//! toolcrib: one MCP gateway over stdio in front of every tool an AI agent may use.

pub mod builtins;
pub mod catalog;
pub mod cli;
pub mod commands;
pub mod config;
pub mod executor;
pub mod gateway;
pub mod hooks;
pub mod lines;
pub mod process;
pub mod schema;
pub mod server;
pub mod skills;
pub mod state;
pub mod tools;
pub mod upstream;
