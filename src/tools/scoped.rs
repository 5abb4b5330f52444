//! One connection's view of the catalog: policy, grants, disclosure, and the way of a call through them.

pub mod claims;
pub mod disclosure;
pub mod paths;
pub mod policy;
pub mod prepare;
pub mod rewriters;
pub mod service;
pub mod view;
