//! Sorts what a client sends: is it a message, of which era, with which id, and what is wrong with it.

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::tools::json::{RawJson, RawObject};
use crate::upstream::wire::{Envelope, id_of_prefix, string};

/// The revisions with a session, oldest first.
pub const SESSION_VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The revision whose requests stand for themselves.
pub const MODERN_VERSION: &str = "2026-07-28";

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
const INFO_KEY: &str = "io.modelcontextprotocol/clientInfo";

/// One line, sorted.
#[derive(Debug)]
pub enum Incoming {
    /// Expects an answer.
    Request {
        /// The id as the client wrote it.
        id: RawJson,
        /// The method.
        method: String,
        /// An object, or nothing.
        params: Option<RawJson>,
    },
    /// Expects none.
    Notification {
        /// The method.
        method: String,
        /// An object, or nothing.
        params: Option<RawJson>,
    },
    /// Answers a request of ours.
    Response {
        /// The id of that request.
        id: RawJson,
        /// The result, or the error object.
        outcome: Result<RawJson, RawJson>,
    },
    /// Must be answered with an error.
    Rejected(Rejection),
    /// Means nothing and needs no answer.
    Nothing,
}

/// A JSON-RPC error about a message.
#[derive(Debug, PartialEq)]
pub struct Rejection {
    /// `null` where no id could be read.
    pub id: RawJson,
    /// The JSON-RPC code.
    pub code: i32,
    /// For the developer of the client.
    pub message: String,
    /// More facts, if there are any.
    pub data: Option<Box<Value>>,
}

impl Rejection {
    /// An error without further data.
    pub fn new(id: RawJson, code: i32, message: impl Into<String>) -> Rejection {
        Rejection { id, code, message: message.into(), data: None }
    }
}

/// The JSON `null`, for answers to what has no readable id.
pub fn null() -> RawJson {
    RawJson::trusted(&b"null"[..])
}

/// Sorts one line.
pub fn sort(line: &Bytes) -> Incoming {
    let text = line.trim_ascii();
    if text.is_empty() {
        return Incoming::Nothing;
    }
    let reject = |id: RawJson, code, message: &str| Incoming::Rejected(Rejection::new(id, code, message));
    let message: Envelope = match serde_json::from_slice(text) {
        Ok(message) => message,
        Err(error) => {
            let is_json =
                std::str::from_utf8(text).is_ok_and(|t| serde_json::from_str::<IgnoredAny>(t).is_ok());
            return match is_json {
                false => reject(null(), -32700, &format!("parse error: {error}")),
                true if text[0] == b'[' => {
                    reject(null(), -32600, "batches are not supported: send one message a line")
                }
                true => reject(readable_id(text), -32600, &format!("invalid request: {error}")),
            };
        }
    };
    let id = message.id.map(|raw| RawJson::slice(line, raw));
    let usable = id.clone().filter(is_string_or_integer);
    let speaks_two = message.jsonrpc.is_some_and(|version| version.get() == "\"2.0\"");
    let Some(method) = message.method else {
        return match (usable, message.result, message.error) {
            (Some(id), Some(result), None) => {
                Incoming::Response { id, outcome: Ok(RawJson::slice(line, result)) }
            }
            (Some(id), None, Some(error)) => {
                Incoming::Response { id, outcome: Err(RawJson::slice(line, error)) }
            }
            // Some clients report errors without an id: there is nobody to pass that on to.
            (None, _, Some(_)) => Incoming::Nothing,
            (usable, _, _) => {
                reject(usable.unwrap_or_else(null), -32600, "invalid request: no method, result or error")
            }
        };
    };
    let answerable = usable.clone().unwrap_or_else(null);
    let Some(method) = string(method) else {
        return reject(answerable, -32600, "invalid request: `method` must be a string");
    };
    if message.result.is_some() || message.error.is_some() {
        return reject(answerable, -32600, "invalid request: a message is a request or a response, not both");
    }
    if !speaks_two {
        return match id {
            // A notification cannot be answered, and a wrong one is not acted upon.
            None => Incoming::Nothing,
            Some(_) => reject(answerable, -32600, "invalid request: `jsonrpc` must be \"2.0\""),
        };
    }
    let method = method.into_owned();
    let params = message.params.filter(|raw| raw.get() != "null").map(|raw| RawJson::slice(line, raw));
    match (id, usable) {
        (None, _) => Incoming::Notification { method, params: params.filter(RawJson::is_object) },
        (Some(_), None) => reject(null(), -32600, "invalid request: `id` must be a string or an integer"),
        (Some(_), Some(id)) => match params {
            Some(params) if !params.is_object() => {
                reject(id, -32602, "invalid params: `params` must be an object")
            }
            params => Incoming::Request { id, method, params },
        },
    }
}

fn is_string_or_integer(id: &RawJson) -> bool {
    let text = id.as_bytes();
    text[0] == b'"'
        || (matches!(text[0], b'-' | b'0'..=b'9') && !text.iter().any(|b| matches!(b, b'.' | b'e' | b'E')))
}

/// The answer to a line that was too long to be kept.
pub fn oversized(prefix: &[u8], cap: usize) -> Rejection {
    Rejection::new(
        readable_id(prefix),
        -32600,
        format!("invalid request: the line is longer than {} MiB", cap >> 20),
    )
}

fn readable_id(text: &[u8]) -> RawJson {
    let id = id_of_prefix(text).and_then(|id| RawJson::parse(id.to_vec()).ok());
    id.unwrap_or_else(null)
}

/// What a request says about its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sender {
    /// The protocol revision of this very request.
    pub version: String,
    /// Whether it stands for itself.
    pub is_modern: bool,
    /// `name/version`, if it says so.
    pub client: Option<String>,
}

/// Reads the metadata that each request of the self-contained era carries. `None`: it carries none.
///
/// # Errors
/// A rejection for metadata that is incomplete or names an unknown revision.
pub fn modern_sender(id: &RawJson, meta: Option<&RawValue>) -> Result<Option<Sender>, Rejection> {
    let Some(meta) = meta.filter(|meta| meta.get().contains("io.modelcontextprotocol")) else {
        return Ok(None);
    };
    let Ok(meta) = RawObject::parse(meta.get().as_bytes()) else { return Ok(None) };
    if meta.get(VERSION_KEY).is_none() && meta.get(CAPABILITIES_KEY).is_none() {
        return Ok(None);
    }
    let missing =
        |key: &str| Rejection::new(id.clone(), -32602, format!("invalid params: `_meta` lacks `{key}`"));
    let version = meta.text(VERSION_KEY).ok_or_else(|| missing(VERSION_KEY))?;
    if version != MODERN_VERSION && !SESSION_VERSIONS.contains(&version.as_str()) {
        return Err(Rejection {
            id: id.clone(),
            code: -32022,
            message: format!("unsupported protocol version `{version}`"),
            data: Some(Box::new(json!({ "supported": supported_versions(), "requested": version }))),
        });
    }
    if !meta.get(CAPABILITIES_KEY).is_some_and(|raw| raw.get().starts_with('{')) {
        return Err(missing(CAPABILITIES_KEY));
    }
    let client = meta.get(INFO_KEY).map(client_name);
    Ok(Some(Sender { version, is_modern: true, client }))
}

/// The rejection of a request that belongs to no session and carries no metadata.
pub fn homeless(id: &RawJson) -> Rejection {
    Rejection::new(
        id.clone(),
        -32602,
        format!(
            "invalid params: send `initialize` first, or `_meta` with `{VERSION_KEY}` and `{CAPABILITIES_KEY}`"
        ),
    )
}

/// Every revision this server speaks, oldest first.
pub fn supported_versions() -> Vec<&'static str> {
    SESSION_VERSIONS.iter().copied().chain([MODERN_VERSION]).collect()
}

/// The revision of a session whose client asks for `wanted`.
pub fn negotiated(wanted: Option<&str>) -> &'static str {
    let known = SESSION_VERSIONS.iter().find(|version| Some(**version) == wanted);
    known.copied().unwrap_or(SESSION_VERSIONS[SESSION_VERSIONS.len() - 1])
}

/// `name/version` from a `clientInfo` object.
pub fn client_name(info: &RawValue) -> String {
    let info = RawObject::parse(info.get().as_bytes()).unwrap_or_default();
    let part = |key| info.text(key).unwrap_or_else(|| "?".to_owned());
    format!("{}/{}", part("name"), part("version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: &str) {
        let got = match sort(&Bytes::copy_from_slice(line.as_bytes())) {
            Incoming::Request { id, method, params } => {
                format!("request {id:?} {method} {}", params.map_or("-".into(), |p| p.as_str().to_owned()))
            }
            Incoming::Notification { method, .. } => format!("notification {method}"),
            Incoming::Response { id, outcome } => format!("response {id:?} {}", outcome.is_ok()),
            Incoming::Rejected(r) => format!("{} {:?}", r.code, r.id),
            Incoming::Nothing => "nothing".to_owned(),
        };
        assert_eq!(got, expected, "{line}");
    }

    #[test]
    fn lines_are_sorted() {
        check(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "request 1 ping -");
        check(r#"{"jsonrpc":"2.0","id":"a","method":"x","params":{"b":1}}"#, r#"request "a" x {"b":1}"#);
        check(
            r#"{"jsonrpc":"2.0","id":18446744073709551999,"method":"x"}"#,
            "request 18446744073709551999 x -",
        );
        check(r#"{"jsonrpc":"2.0","method":"n","params":[1]}"#, "notification n");
        check(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "response 1 true");
        check(r#"{"jsonrpc":"2.0","id":1,"error":{}}"#, "response 1 false");
        check(r#"{"jsonrpc":"2.0","error":{}}"#, "nothing");
        check("", "nothing");
        check("   ", "nothing");
        check("nonsense", "-32700 null");
        check(r#"{"jsonrpc":"2.0","id":1"#, "-32700 null");
        check("[]", "-32600 null");
        check(r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, "-32600 null");
        check("5", "-32600 null");
        check(r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, "-32600 null");
        check(r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, "-32600 null");
        check(r#"{"jsonrpc":"2.0","id":[1],"method":"x"}"#, "-32600 null");
        check(r#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#, "-32600 null");
        check(r#"{"jsonrpc":"2.0","id":true,"method":"x"}"#, "-32600 null");
        check(r#"{"id":4,"method":"x"}"#, "-32600 4");
        check(r#"{"jsonrpc":"1.0","id":4,"method":"x"}"#, "-32600 4");
        check(r#"{"jsonrpc":"2.0","id":4,"method":7}"#, "-32600 4");
        check(r#"{"jsonrpc":"2.0","id":4,"method":"x","result":{}}"#, "-32600 4");
        check(r#"{"jsonrpc":"2.0","id":4,"method":"x","params":[1]}"#, "-32602 4");
        check(r#"{"jsonrpc":"2.0","id":4,"method":"x","params":"s"}"#, "-32602 4");
        check(r#"{"jsonrpc":"2.0","id":4,"method":"x","params":null}"#, "request 4 x -");
        check(r#"{"jsonrpc":"2.0","id":4,"id":5,"method":"x"}"#, "-32600 4");
        check(r#"{"jsonrpc":"2.0","id":4}"#, "-32600 4");
    }

    #[test]
    fn metadata_of_the_self_contained_era_is_complete_or_refused() {
        let check = |meta: &str, expected: Result<Option<&str>, i32>| {
            let raw: &RawValue = serde_json::from_str(meta).unwrap();
            let got = modern_sender(&RawJson::parse("1").unwrap(), Some(raw));
            let got = got.map(|sender| sender.map(|s| s.version)).map_err(|r| r.code);
            assert_eq!(got, expected.map(|v| v.map(str::to_owned)), "{meta}");
        };
        let (version, capabilities) = (VERSION_KEY, CAPABILITIES_KEY);
        check("{}", Ok(None));
        check(r#"{"progressToken":1}"#, Ok(None));
        check(&format!(r#"{{"{version}":"2026-07-28","{capabilities}":{{}}}}"#), Ok(Some("2026-07-28")));
        check(&format!(r#"{{"{version}":"2026-07-28"}}"#), Err(-32602));
        check(&format!(r#"{{"{capabilities}":{{}}}}"#), Err(-32602));
        check(&format!(r#"{{"{version}":"2099-01-01","{capabilities}":{{}}}}"#), Err(-32022));
    }
}
