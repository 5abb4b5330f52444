//! Questions of upstream servers on their way to this client: forms, sampling, roots.

use std::sync::Weak;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::json;

use super::front::Front;
use crate::tools::json::{ObjectWriter, RawJson};
use crate::upstream::client::ClientSide;

/// Longest wait for the client's answer to a server's question; people may have to think.
const QUESTION_LIMIT: Duration = Duration::from_secs(600);

/// The way of a server's question to this client.
pub struct Relay(Weak<Front>);

impl Relay {
    /// The way to the client of `front`.
    pub fn new(front: Weak<Front>) -> Relay {
        Relay(front)
    }
}

impl ClientSide for Relay {
    fn capabilities(&self) -> RawJson {
        let mut all = ObjectWriter::default();
        if let Some(front) = self.0.upgrade() {
            for (capability, declared) in front.askable() {
                all.raw(capability, declared.as_bytes());
            }
        }
        all.json()
    }

    fn has(&self, capability: &str) -> bool {
        self.0.upgrade().is_some_and(|front| front.askable().iter().any(|(name, _)| *name == capability))
    }

    fn ask<'a>(&'a self, method: &'a str, params: &'a RawJson) -> BoxFuture<'a, Result<RawJson, RawJson>> {
        Box::pin(async move {
            let failed =
                |message: &str| Err(RawJson::from_value(&json!({ "code": -32603, "message": message })));
            let Some(front) = self.0.upgrade() else { return failed("the client is gone") };
            match front.ask(method, params, QUESTION_LIMIT).await {
                Some(answer) => answer,
                None => failed("the client did not answer"),
            }
        })
    }
}
