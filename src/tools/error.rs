//! Every way a call can fail, with the facts a caller needs to retry, ask, or report.

use std::time::Duration;

use serde_json::{Value, json};

use super::json::RawJson;

/// Why a permission was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    /// A rule or the tier forbids it; the text names the rule, for the operator's log only.
    Policy(String),
    /// A hook of the operator said no.
    Hook {
        /// Its name.
        hook: String,
        /// What it gave as its reason.
        reason: String,
    },
    /// Grants that are not held, in the order in which the tool declares them.
    MissingPermissions(Vec<String>),
    /// A person said no.
    UserDenied,
    /// Nobody could be asked.
    ApprovalUnavailable,
}

impl Denial {
    /// The stable word for this reason on the wire.
    pub fn reason(&self) -> &'static str {
        match self {
            Denial::Policy(_) | Denial::Hook { .. } => "policy",
            Denial::MissingPermissions(_) => "missing_permissions",
            Denial::UserDenied => "user_denied",
            Denial::ApprovalUnavailable => "approval_unavailable",
        }
    }
}

/// Whether the tool may have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executed {
    /// It did not start.
    No,
    /// It ran.
    Yes,
    /// It was started and its end was not seen.
    Maybe,
}

/// A call that did not give a result. Wire kinds come from [`ToolError::kind`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the variants' fields are the facts named in their messages")]
pub enum ToolError {
    /// No such tool in this scope.
    #[error("there is no tool `{}`{}", named(.tool), did_you_mean(.suggestions))]
    NotFound { tool: String, suggestions: Vec<String> },
    /// The arguments do not fit the tool's schema; nothing was run.
    #[error("invalid arguments for `{tool}`{}: {message}", at(.path))]
    Validation { tool: String, path: String, message: String, schema: Option<RawJson> },
    /// Policy, grants or a person said no; nothing was run.
    #[error("{}", denied(.tool, .denial))]
    PermissionDenied { tool: String, denial: Denial },
    /// A person has to allow the call first, on another channel.
    #[error("`{tool}` waits for a person's approval (ticket {ticket}): {how}; then send the same call again")]
    ApprovalDeferred { tool: String, ticket: String, how: String },
    /// Nobody answered in time.
    #[error("nobody answered the approval for `{tool}` within {} ms; send the call again to ask again", .waited.as_millis())]
    ApprovalExpired { tool: String, waited: Duration },
    /// An earlier call of the same batch stopped this one.
    #[error("`{tool}` was not run because `{stopped_by}` stopped the batch")]
    NotExecuted { tool: String, stopped_by: String },
    /// The tool ran and failed.
    #[error("`{tool}` failed: {cause}")]
    Execution { tool: String, cause: String },
    /// The tool did not finish in time.
    #[error("`{tool}` did not finish within {} ms", .elapsed.as_millis())]
    Timeout { tool: String, elapsed: Duration, executed: Executed },
    /// The way to the tool broke.
    #[error("`{tool}` could not be reached: {cause}")]
    Transport { tool: String, cause: String, executed: Executed },
    /// A name that is already taken.
    #[error("{kind} `{name}` is registered already")]
    Duplicate { kind: &'static str, name: String },
    /// The caller gave up.
    #[error("the call of `{tool}` was cancelled")]
    Cancelled { tool: String },
}

/// Longest unknown name that is repeated to whoever sent it.
const NAME_LETTERS: usize = 128;

fn named(name: &str) -> String {
    match name.char_indices().nth(NAME_LETTERS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn did_you_mean(suggestions: &[String]) -> String {
    match suggestions {
        [] => String::new(),
        names => format!(
            "; did you mean {}?",
            names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(" or ")
        ),
    }
}

fn at(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" at `{path}`") }
}

fn denied(tool: &str, denial: &Denial) -> String {
    match denial {
        Denial::Policy(_) => format!("`{tool}` is not allowed by the policy of this gateway"),
        Denial::Hook { hook, reason } => {
            format!("`{tool}` is not allowed by the hook `{hook}` of this gateway: {reason}")
        }
        Denial::MissingPermissions(missing) => {
            format!("`{tool}` needs permissions that are not granted: {}", missing.join(", "))
        }
        Denial::UserDenied => {
            format!("the user said no to this call of `{tool}`; do not try it again unasked")
        }
        Denial::ApprovalUnavailable => format!(
            "`{tool}` needs a person's approval, and this client cannot ask one; the operator can allow it with a rule in tools.toml"
        ),
    }
}

impl ToolError {
    /// The stable word for this kind on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            ToolError::NotFound { .. } => "not_found",
            ToolError::Validation { .. } => "validation",
            ToolError::PermissionDenied { .. } => "permission_denied",
            ToolError::ApprovalDeferred { .. } => "approval_deferred",
            ToolError::ApprovalExpired { .. } => "approval_expired",
            ToolError::NotExecuted { .. } => "not_executed",
            ToolError::Execution { .. } => "execution",
            ToolError::Timeout { .. } => "timeout",
            ToolError::Transport { .. } => "transport",
            ToolError::Duplicate { .. } => "duplicate",
            ToolError::Cancelled { .. } => "cancelled",
        }
    }

    /// Whether the same call may be sent again as it is.
    pub fn is_retryable(&self) -> bool {
        match self {
            ToolError::ApprovalDeferred { .. }
            | ToolError::ApprovalExpired { .. }
            | ToolError::NotExecuted { .. }
            | ToolError::Timeout { .. }
            | ToolError::Transport { .. }
            | ToolError::Cancelled { .. } => true,
            ToolError::NotFound { .. }
            | ToolError::Validation { .. }
            | ToolError::PermissionDenied { .. }
            | ToolError::Execution { .. }
            | ToolError::Duplicate { .. } => false,
        }
    }

    /// Whether the tool may have changed something.
    pub fn executed(&self) -> Executed {
        match self {
            ToolError::Execution { .. } => Executed::Yes,
            ToolError::Timeout { executed, .. } | ToolError::Transport { executed, .. } => *executed,
            ToolError::Cancelled { .. } => Executed::Maybe,
            ToolError::NotFound { .. }
            | ToolError::Validation { .. }
            | ToolError::PermissionDenied { .. }
            | ToolError::ApprovalDeferred { .. }
            | ToolError::ApprovalExpired { .. }
            | ToolError::NotExecuted { .. }
            | ToolError::Duplicate { .. } => Executed::No,
        }
    }

    /// The name of the tool, or of whatever was a duplicate.
    pub fn tool(&self) -> &str {
        match self {
            ToolError::NotFound { tool, .. }
            | ToolError::Validation { tool, .. }
            | ToolError::PermissionDenied { tool, .. }
            | ToolError::ApprovalDeferred { tool, .. }
            | ToolError::ApprovalExpired { tool, .. }
            | ToolError::NotExecuted { tool, .. }
            | ToolError::Execution { tool, .. }
            | ToolError::Timeout { tool, .. }
            | ToolError::Transport { tool, .. }
            | ToolError::Cancelled { tool } => tool,
            ToolError::Duplicate { name, .. } => name,
        }
    }

    /// The same error under the name by which the caller knows the tool.
    pub fn about(mut self, wire_name: &str) -> ToolError {
        match &mut self {
            ToolError::NotFound { tool, .. }
            | ToolError::Validation { tool, .. }
            | ToolError::PermissionDenied { tool, .. }
            | ToolError::ApprovalDeferred { tool, .. }
            | ToolError::ApprovalExpired { tool, .. }
            | ToolError::NotExecuted { tool, .. }
            | ToolError::Execution { tool, .. }
            | ToolError::Timeout { tool, .. }
            | ToolError::Transport { tool, .. }
            | ToolError::Cancelled { tool } => wire_name.clone_into(tool),
            ToolError::Duplicate { .. } => {}
        }
        self
    }

    /// The object under `_meta["toolcrib/error"]`, or `data` of a JSON-RPC error.
    pub fn facts(&self) -> Value {
        let mut facts = json!({
            "kind": self.kind(),
            "tool": named(self.tool()),
            "message": self.to_string(),
            "retryable": self.is_retryable(),
            "executed": match self.executed() {
                Executed::No => json!(false),
                Executed::Yes => json!(true),
                Executed::Maybe => json!("maybe"),
            },
        });
        let extra = match self {
            ToolError::NotFound { suggestions, .. } => json!({ "suggestions": suggestions }),
            ToolError::Validation { path, message, schema, .. } => match schema {
                Some(schema) => json!({ "path": path, "expected": message, "schema": schema }),
                None => json!({ "path": path, "expected": message }),
            },
            ToolError::PermissionDenied { denial, .. } => match denial {
                Denial::MissingPermissions(missing) => {
                    json!({ "reason": denial.reason(), "missing_permissions": missing })
                }
                Denial::Policy(_)
                | Denial::Hook { .. }
                | Denial::UserDenied
                | Denial::ApprovalUnavailable => {
                    json!({ "reason": denial.reason() })
                }
            },
            ToolError::ApprovalDeferred { ticket, how, .. } => {
                json!({ "ticket": ticket, "approval_id": ticket, "how": how })
            }
            ToolError::ApprovalExpired { waited, .. } => json!({ "waited_ms": millis(*waited) }),
            ToolError::NotExecuted { stopped_by, .. } => json!({ "stopped_by": stopped_by }),
            ToolError::Execution { cause, .. } | ToolError::Transport { cause, .. } => {
                json!({ "cause": cause })
            }
            ToolError::Timeout { elapsed, .. } => json!({ "elapsed_ms": millis(*elapsed) }),
            ToolError::Duplicate { kind, name } => json!({ "of": kind, "name": name }),
            ToolError::Cancelled { .. } => json!({}),
        };
        if let (Value::Object(facts), Value::Object(extra)) = (&mut facts, extra) {
            facts.extend(extra);
        }
        facts
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<ToolError> {
        let tool = || "t".to_owned();
        vec![
            ToolError::NotFound { tool: tool(), suggestions: vec![] },
            ToolError::Validation { tool: tool(), path: "/a".into(), message: "m".into(), schema: None },
            ToolError::PermissionDenied { tool: tool(), denial: Denial::Policy("a rule".to_owned()) },
            ToolError::ApprovalDeferred { tool: tool(), ticket: "k".into(), how: "h".into() },
            ToolError::ApprovalExpired { tool: tool(), waited: Duration::from_millis(5) },
            ToolError::NotExecuted { tool: tool(), stopped_by: "s".into() },
            ToolError::Execution { tool: tool(), cause: "c".into() },
            ToolError::Timeout { tool: tool(), elapsed: Duration::from_millis(7), executed: Executed::Maybe },
            ToolError::Transport { tool: tool(), cause: "c".into(), executed: Executed::No },
            ToolError::Duplicate { kind: "Tool", name: tool() },
            ToolError::Cancelled { tool: tool() },
        ]
    }

    #[test]
    fn s74_kinds_are_stable_and_say_what_may_be_retried() {
        let rows: Vec<String> = one_of_each()
            .iter()
            .map(|e| {
                let f = e.facts();
                format!("{} retryable={} executed={}", e.kind(), f["retryable"], f["executed"])
            })
            .collect();
        assert_eq!(
            rows,
            [
                "not_found retryable=false executed=false",
                "validation retryable=false executed=false",
                "permission_denied retryable=false executed=false",
                "approval_deferred retryable=true executed=false",
                "approval_expired retryable=true executed=false",
                "not_executed retryable=true executed=false",
                "execution retryable=false executed=true",
                "timeout retryable=true executed=\"maybe\"",
                "transport retryable=true executed=false",
                "duplicate retryable=false executed=false",
                "cancelled retryable=true executed=\"maybe\"",
            ]
        );
    }

    #[test]
    fn a20_missing_permissions_are_listed_exactly_and_in_order() {
        let error = ToolError::PermissionDenied {
            tool: "t".into(),
            denial: Denial::MissingPermissions(vec!["b".into(), "a".into()]),
        };
        assert_eq!(error.facts()["missing_permissions"], json!(["b", "a"]));
        assert_eq!(error.facts()["reason"], "missing_permissions");
    }
}
