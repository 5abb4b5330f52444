//! The binary from outside, the library through its public face, and the tree itself.

mod approvals;
mod batches;
mod calls;
mod catalog;
mod concurrency;
mod errors;
mod executor;
mod laws;
mod layers;
mod product;
mod registry;
mod results;
mod scope;
mod sdk;
mod service;
mod stress;
mod support;
mod tidy;
mod types;
