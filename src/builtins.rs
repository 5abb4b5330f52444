//! The tools that are part of this program: files below the configured folders, text search, and a shell.

pub mod atomic;
pub mod blocking;
pub mod definitions;
pub mod edit;
pub mod ops;
pub mod outcome;
pub mod read;
pub mod roots;
pub mod search;
pub mod shell;
pub mod write;

pub mod tools;
