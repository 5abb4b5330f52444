//! The binary from outside, the library through its public face, and the tree itself.

mod approvals;
mod calls;
mod catalog;
mod errors;
mod layers;
mod product;
mod registry;
mod scope;
mod sdk;
mod service;
mod support;
mod tidy;
mod types;
