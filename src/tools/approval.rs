//! The question to a person, its five answers, and whoever can ask it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::service::ToolDefinition;

/// A question about one call, asked before anything has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// Unique in this process and unlikely to repeat elsewhere.
    pub id: String,
    /// Why a person has to look at it.
    pub reason: String,
    /// What would run, for a person's eyes: the tool and its arguments, shortened.
    pub command: String,
    /// The tool's wire name.
    pub tool_name: String,
    /// Whether an answer may hold for more than this one call.
    pub may_be_remembered: bool,
    /// What an answer is bound to.
    pub fingerprint: Fingerprint,
    /// Whose call it is, as the client calls itself.
    #[serde(default)]
    pub client: String,
}

/// What an approval is bound to: the tool, its definition, and the arguments.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// SHA-256 over the name, the input schema with the description, and the canonical arguments.
    pub fn of(tool: &ToolDefinition, arguments: &Value) -> Fingerprint {
        let mut hash = Sha256::new();
        for part in [tool.name.as_bytes(), tool.description.as_bytes(), tool.input_schema.as_bytes()] {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            hash.update(part);
        }
        hash.update(canonical(arguments).to_string());
        Fingerprint(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Keys sorted, nulls dropped from objects.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<(&String, &Value)> = members.iter().filter(|(_, v)| !v.is_null()).collect();
            sorted.sort_by_key(|(key, _)| key.as_str());
            Value::Object(sorted.into_iter().map(|(key, value)| (key.clone(), canonical(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        scalar => scalar.clone(),
    }
}

/// How many letters of the arguments a person is shown.
const COMMAND_LETTERS: usize = 600;

impl ApprovalRequest {
    /// A request with a fresh id.
    pub fn new(
        tool_name: &str,
        reason: &str,
        command: &str,
        may_be_remembered: bool,
        fingerprint: Fingerprint,
    ) -> ApprovalRequest {
        let mut shown: String = command.chars().take(COMMAND_LETTERS).collect();
        if shown.len() < command.len() {
            shown.push('…');
        }
        ApprovalRequest {
            id: fresh_id(),
            reason: reason.to_owned(),
            command: shown,
            tool_name: tool_name.to_owned(),
            may_be_remembered,
            fingerprint,
            client: String::new(),
        }
    }

    /// The same request with the name of the client.
    pub fn by(mut self, client: &str) -> ApprovalRequest {
        self.client = client.to_owned();
        self
    }
}

/// An id no other question of this process has; the start time keeps processes apart.
fn fresh_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    static START: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let start = START.get_or_init(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        (since.as_nanos() as u64) ^ (u64::from(std::process::id()) << 40)
    });
    format!("{:08x}-{:x}", (start ^ (start >> 32)) & 0xffff_ffff, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A person's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalResponse {
    /// This call, once.
    ApproveOnce,
    /// The same call for the rest of the connection.
    ApproveSession,
    /// The same call from now on.
    ApproveAlways,
    /// Not this call; asking again is pointless.
    Deny,
    /// Not now.
    Defer,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// Nobody answered in time.
    Expired(Duration),
    /// There is nobody to ask.
    Unavailable,
    /// The question was put down where a person will find it.
    Ticket {
        /// The ticket's id.
        id: String,
        /// How a person answers it.
        how: String,
    },
}

/// Asks a person. Each front end supplies its own.
pub trait ApprovalHandler: Send + Sync {
    /// Asks once; the wait has an end. Dropping the future withdraws the question.
    fn request<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> BoxFuture<'a, Result<ApprovalResponse, NoAnswer>>;
}

/// Asks nobody: every question fails closed.
#[derive(Debug, Clone, Copy)]
pub struct Nobody;

impl ApprovalHandler for Nobody {
    fn request<'a>(&'a self, _: &'a ApprovalRequest) -> BoxFuture<'a, Result<ApprovalResponse, NoAnswer>> {
        Box::pin(std::future::ready(Err(NoAnswer::Unavailable)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::json::RawJson;
    use crate::tools::service::{Source, ToolMetadata};
    use serde_json::json;

    fn tool(name: &str, description: &str) -> ToolDefinition {
        let schema = RawJson::EMPTY_OBJECT;
        ToolDefinition::new(name, description, schema, Source::Builtin, ToolMetadata::default())
    }

    fn request(command: &str) -> ApprovalRequest {
        ApprovalRequest::new("t", "r", command, true, Fingerprint::of(&tool("t", "d"), &json!({})))
    }

    #[test]
    fn a_fingerprint_ignores_key_order_and_nulls_and_nothing_else() {
        let base = Fingerprint::of(&tool("t", "d"), &json!({"a": 1, "b": {"c": [1, 2]}}));
        let of = |arguments| Fingerprint::of(&tool("t", "d"), &arguments);
        assert_eq!(of(json!({"b": {"c": [1, 2], "x": null}, "a": 1})), base);
        for other in [
            json!({"a": 2, "b": {"c": [1, 2]}}),
            json!({"a": 1, "b": {"c": [2, 1]}}),
            json!({"A": 1, "b": {"c": [1, 2]}}),
        ] {
            assert_ne!(of(other), base);
        }
        assert_ne!(Fingerprint::of(&tool("u", "d"), &json!({"a": 1, "b": {"c": [1, 2]}})), base);
        assert_ne!(Fingerprint::of(&tool("t", "e"), &json!({"a": 1, "b": {"c": [1, 2]}})), base);
    }

    #[test]
    fn t19_ten_thousand_ids_are_all_different() {
        let ids: std::collections::HashSet<String> = (0..10_000).map(|_| request("c").id).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| !id.is_empty()));
    }

    #[test]
    fn a_long_command_is_shortened_at_a_letter() {
        let request = request(&"汉".repeat(1000));
        assert_eq!(request.command.chars().count(), COMMAND_LETTERS + 1);
    }
}
