//! Everything between a judged call and its handler that waits: for now, for people.

pub mod approvals;
