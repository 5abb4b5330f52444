//! The client behind the gateway, as upstream servers may ask it: forms, sampling, roots.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;

use crate::tools::json::RawJson;

/// Requests that a server may send, with the capability that a client must have declared for them.
pub const ASKABLE: [(&str, &str); 3] =
    [("elicitation/create", "elicitation"), ("sampling/createMessage", "sampling"), ("roots/list", "roots")];

/// A client that can be asked.
pub trait ClientSide: Send + Sync {
    /// Its declared capabilities that concern servers, as the members of one JSON object.
    fn capabilities(&self) -> RawJson;

    /// Whether it declared a capability.
    fn has(&self, capability: &str) -> bool;

    /// Passes a server's request on. The wait has an end; dropping the future withdraws the request.
    fn ask<'a>(&'a self, method: &'a str, params: &'a RawJson) -> BoxFuture<'a, Result<RawJson, RawJson>>;
}

/// The client of this process, once it has said who it is.
#[derive(Default)]
pub struct ClientSlot(Mutex<Option<Arc<dyn ClientSide>>>);

impl ClientSlot {
    /// Sets the client.
    pub fn set(&self, client: Arc<dyn ClientSide>) {
        *self.0.lock().expect("no code panics while it holds the client") = Some(client);
    }

    /// The client, if there is one.
    pub fn get(&self) -> Option<Arc<dyn ClientSide>> {
        self.0.lock().expect("no code panics while it holds the client").clone()
    }
}
