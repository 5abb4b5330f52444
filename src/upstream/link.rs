//! One live connection to an upstream: requests out, replies matched, cancellation and progress both ways.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::client::ASKABLE;
use super::wire::{Envelope, id_of_broken, own_id, string};
use crate::lines::Outbox;
use crate::tools::json::{RawJson, RawObject, write_string};
use crate::tools::service::ProgressSink;

/// What came back for a request.
#[derive(Debug)]
pub enum Reply {
    /// The `result` member.
    Result(RawJson),
    /// The `error` member.
    Error(RawJson),
    /// A line that names this request and is no valid JSON.
    Broken(String),
}

/// The connection ended before the reply came; the text says why.
#[derive(Debug)]
pub struct Lost(pub String);

/// Something an upstream said on its own.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Its tools changed.
    ToolsChanged,
    /// It asks the client something; the answer goes back under this id.
    Asked {
        /// The id of the server's request.
        id: RawJson,
        /// The method.
        method: String,
        /// The params, `{}` if there are none.
        params: RawJson,
    },
}

/// The two eras of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// `initialize`, then a session.
    Session,
    /// Every request carries its own metadata.
    Modern,
}

struct Pending {
    reply: oneshot::Sender<Reply>,
    progress: Option<Arc<dyn ProgressSink>>,
}

/// How often a connection that is to end is looked at while calls are still open; it is not on any call's way.
const IDLE_POLL: std::time::Duration = std::time::Duration::from_millis(10);

/// A connection. It is shared by all calls; the supervisor feeds it lines and closes it.
pub struct Link {
    server: Arc<str>,
    outbox: Outbox,
    next_id: AtomicU64,
    state: Mutex<State>,
}

struct State {
    era: Era,
    pending: HashMap<u64, Pending>,
    ended: Option<String>,
}

/// Metadata of every request to a modern upstream. No capability is declared: what an upstream asks for in
/// the middle of a call is not passed on.
const MODERN_META: &str = concat!(
    r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"toolcrib","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""},"io.modelcontextprotocol/clientCapabilities":{}"#
);

impl Link {
    /// A connection that writes into `outbox`.
    pub fn new(server: Arc<str>, outbox: Outbox) -> Link {
        let state = State { era: Era::Session, pending: HashMap::new(), ended: None };
        Link { server, outbox, next_id: AtomicU64::new(1), state: Mutex::new(state) }
    }

    /// Sets the era once it is known.
    pub fn set_era(&self, era: Era) {
        self.lock().era = era;
    }

    /// The era this connection speaks.
    pub fn era(&self) -> Era {
        self.lock().era
    }

    /// Sends a request and waits for its reply. `members` are the params' members as JSON text without `_meta`,
    /// `meta` those of `_meta`. Dropping the future cancels the request at the upstream.
    ///
    /// # Errors
    /// [`Lost`] when the connection ends first.
    pub async fn request(
        &self,
        method: &str,
        members: &[u8],
        meta: &[u8],
        progress: Option<Arc<dyn ProgressSink>>,
    ) -> Result<Reply, Lost> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let wants_progress = progress.is_some();
        let era = {
            let mut state = self.lock();
            if let Some(why) = &state.ended {
                return Err(Lost(why.clone()));
            }
            state.pending.insert(id, Pending { reply: sender, progress });
            state.era
        };
        self.outbox.write(|out| write_request(out, id, method, members, meta, era, wants_progress));
        let mut guard =
            Withdraw { link: self, id, armed: true, method_is_cancellable: method != "initialize" };
        let reply = receiver.await;
        guard.armed = false;
        reply
            .map_err(|_| Lost(self.lock().ended.clone().unwrap_or_else(|| "the connection ended".to_owned())))
    }

    /// Sends a request that stays open as long as the connection and whose end nobody waits for.
    pub fn open(&self, method: &str, members: &[u8]) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let era = self.era();
        self.outbox.write(|out| write_request(out, id, method, members, b"", era, false));
    }

    /// Sends a notification; `params` is a whole JSON object.
    pub fn notify(&self, method: &str, params: &[u8]) {
        self.outbox.write(|out| {
            out.extend_from_slice(br#"{"jsonrpc":"2.0","method":"#);
            write_string(out, method);
            out.extend_from_slice(br#","params":"#);
            out.extend_from_slice(params);
            out.push(b'}');
        });
    }

    /// Takes one line from the upstream. What is no message is skipped: servers print banners and logs there.
    pub fn take_line(&self, line: Bytes) -> Option<Event> {
        let text = line.trim_ascii();
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        if text.is_empty() {
            return None;
        }
        let Ok(message) = serde_json::from_slice::<Envelope>(text) else {
            return self.take_broken(&line, text);
        };
        match (message.method, message.id) {
            (Some(method), id) => self.take_method(&string(method)?, id, message.params),
            // A log object may have an id too; only what calls itself a message is taken for a reply without content.
            (None, Some(_))
                if message.result.is_none() && message.error.is_none() && message.jsonrpc.is_none() =>
            {
                tracing::debug!(server = %self.server, "skipped a line on stdout that is no message");
                None
            }
            (None, Some(id)) => {
                let reply = match (message.result, message.error) {
                    (Some(result), _) => Reply::Result(RawJson::slice(&line, result)),
                    (None, Some(error)) => Reply::Error(RawJson::slice(&line, error)),
                    (None, None) => Reply::Broken("a reply with neither result nor error".to_owned()),
                };
                self.answer(own_id(id)?, reply);
                None
            }
            (None, None) => {
                tracing::debug!(server = %self.server, "skipped a line on stdout that is no message");
                None
            }
        }
    }

    /// Invalid UTF-8 is repaired; anything else that names a waiting request ends that request.
    fn take_broken(&self, line: &Bytes, text: &[u8]) -> Option<Event> {
        if std::str::from_utf8(text).is_err() {
            let repaired = Bytes::from(String::from_utf8_lossy(text).into_owned());
            if serde_json::from_slice::<Envelope>(&repaired).is_ok() {
                tracing::warn!(server = %self.server, "repaired invalid UTF-8 in a message");
                return self.take_line(repaired);
            }
        }
        let raw = id_of_broken(text).and_then(|id| serde_json::from_slice::<&RawValue>(id).ok());
        match raw.and_then(own_id) {
            Some(id) => {
                tracing::warn!(server = %self.server, bytes = line.len(), "a reply is not valid JSON");
                self.answer(id, Reply::Broken("the reply is not valid JSON".to_owned()));
            }
            None => {
                let head = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
                tracing::debug!(server = %self.server, line = %head, "skipped a line on stdout that is no message");
            }
        }
        None
    }

    /// A reply that was too long to keep: its request ends with an error instead of waiting for ever.
    pub fn take_oversized(&self, prefix: &[u8], cap: usize) {
        let raw =
            super::wire::id_of_prefix(prefix).and_then(|id| serde_json::from_slice::<&RawValue>(id).ok());
        tracing::warn!(server = %self.server, cap, "a line is longer than the cap and was dropped");
        let reason = || Reply::Broken(format!("the reply is longer than {cap} bytes"));
        match raw.and_then(own_id) {
            Some(id) => self.answer(id, reason()),
            // Whoever it was meant for cannot be told: everyone who waits might wait for nothing.
            None => {
                let waiting: Vec<u64> = self.lock().pending.keys().copied().collect();
                for id in waiting {
                    self.answer(id, reason());
                }
            }
        }
    }

    fn answer(&self, id: u64, reply: Reply) {
        let pending = self.lock().pending.remove(&id);
        match pending {
            // A receiver that is gone was cancelled; its reply is late and goes nowhere.
            Some(pending) => drop(pending.reply.send(reply)),
            None => tracing::debug!(server = %self.server, id, "dropped a reply that nobody waits for"),
        }
    }

    fn take_method(&self, method: &str, id: Option<&RawValue>, params: Option<&RawValue>) -> Option<Event> {
        if let Some(id) = id {
            let id = RawJson::trusted(id.get().to_owned());
            if method == "ping" {
                self.respond(&id, Ok(&RawJson::EMPTY_OBJECT));
                return None;
            }
            if ASKABLE.iter().any(|(askable, _)| *askable == method) {
                let params =
                    params.map_or(RawJson::EMPTY_OBJECT, |raw| RawJson::trusted(raw.get().to_owned()));
                return Some(Event::Asked { id, method: method.to_owned(), params });
            }
            self.refuse(&id);
            return None;
        }
        match method {
            "notifications/tools/list_changed" => return Some(Event::ToolsChanged),
            "notifications/progress" => {
                let params = RawObject::parse(params?.get().as_bytes()).ok()?;
                let token = own_id(params.get("progressToken")?)?;
                let sink = self.lock().pending.get(&token).and_then(|pending| pending.progress.clone());
                if let Some(sink) = sink {
                    sink.forward(&params);
                }
            }
            "notifications/message" => {
                if let Some(params) = params {
                    tracing::debug!(server = %self.server, log = %params.get(), "upstream log");
                }
            }
            _ => tracing::debug!(server = %self.server, %method, "ignored a notification"),
        }
        None
    }

    /// Answers a request of the server.
    pub fn respond(&self, id: &RawJson, answer: Result<&RawJson, &RawJson>) {
        self.outbox.write(|out| {
            out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
            out.extend_from_slice(id.as_bytes());
            let (key, value) = match answer {
                Ok(result) => (br#","result":"#.as_slice(), result),
                Err(error) => (br#","error":"#.as_slice(), error),
            };
            out.extend_from_slice(key);
            out.extend_from_slice(value.as_bytes());
            out.push(b'}');
        });
    }

    /// Says that a request of the server is not supported.
    pub fn refuse(&self, id: &RawJson) {
        let error = br#"{"code":-32601,"message":"not supported by this client"}"#;
        self.respond(id, Err(&RawJson::trusted(&error[..])));
    }

    /// Ends the connection: every waiting request fails now.
    pub fn end(&self, why: &str) {
        let mut state = self.lock();
        state.ended.get_or_insert_with(|| why.to_owned());
        state.pending.clear();
        drop(state);
        self.outbox.close();
    }

    /// Waits until no request waits for its reply.
    pub async fn idle(&self) {
        while !self.lock().pending.is_empty() {
            tokio::time::sleep(IDLE_POLL).await;
        }
    }

    /// The first reason given for the end.
    pub fn ended(&self) -> Option<String> {
        self.lock().ended.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds a connection's state")
    }
}

fn write_request(
    out: &mut Vec<u8>,
    id: u64,
    method: &str,
    members: &[u8],
    meta: &[u8],
    era: Era,
    wants_progress: bool,
) {
    use std::io::Write as _;
    let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"#);
    out.extend_from_slice(members);
    let modern = era == Era::Modern && method != "initialize";
    if modern || wants_progress || !meta.is_empty() {
        if !members.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(br#""_meta":{"#);
        let mut parts = Vec::with_capacity(3);
        let token = format!(r#""progressToken":{id}"#);
        if wants_progress {
            parts.push(token.as_bytes());
        }
        if modern {
            parts.push(MODERN_META.as_bytes());
        }
        if !meta.is_empty() {
            parts.push(meta);
        }
        out.extend_from_slice(&parts.join(&b","[..]));
        out.push(b'}');
    }
    out.extend_from_slice(b"}}");
}

/// Tells the upstream when nobody waits for a reply any more.
struct Withdraw<'a> {
    link: &'a Link,
    id: u64,
    armed: bool,
    method_is_cancellable: bool,
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let waited = self.link.lock().pending.remove(&self.id).is_some();
        if waited && self.method_is_cancellable {
            let params = format!(r#"{{"requestId":{},"reason":"the caller gave up"}}"#, self.id);
            self.link.notify("notifications/cancelled", params.as_bytes());
        }
    }
}
