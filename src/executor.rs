//! Everything between a judged call and its answer: people, its turn among other calls, its run, its result.

pub mod approvals;
pub mod attempt;
pub mod batch;
pub mod calls;
pub mod confirm;
pub mod schedule;
pub mod trace;
