//! The front end: the client's pipe, both protocol eras, and the way of each request.

pub mod elicit;
pub mod encode;
pub mod front;
pub mod lifecycle;
pub mod pipes;
pub mod progress;
pub mod relay;
pub mod request;
