//! Asks a person through the client: a form with one required choice and no accepting default.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::front::Front;
use crate::tools::approval::{ApprovalHandler, ApprovalRequest, ApprovalResponse, NoAnswer};
use crate::tools::json::RawJson;

/// Asks by `elicitation/create` where the client declared it, else by whatever comes next on the ladder.
pub struct Elicitation {
    front: Weak<Front>,
    limit: Duration,
    otherwise: Arc<dyn ApprovalHandler>,
}

impl Elicitation {
    /// Asks the client of `front`; `otherwise` is asked where that client cannot, or stayed silent before.
    pub fn new(front: Weak<Front>, limit: Duration, otherwise: Arc<dyn ApprovalHandler>) -> Elicitation {
        Elicitation { front, limit, otherwise }
    }
}

impl ApprovalHandler for Elicitation {
    fn request<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> BoxFuture<'a, Result<ApprovalResponse, NoAnswer>> {
        Box::pin(async move {
            let Some(front) = self.front.upgrade() else { return Err(NoAnswer::Unavailable) };
            if !front.client_can_be_asked() {
                return self.otherwise.request(request).await;
            }
            match front
                .ask(
                    "elicitation/create",
                    &RawJson::from_value(&form(request, front.names_form_mode())),
                    self.limit,
                )
                .await
            {
                Some(Ok(answer)) => Ok(read(&answer.to_value().unwrap_or_default(), request)),
                // The client said that it can ask and then could not: nobody has agreed to anything.
                Some(Err(error)) => {
                    tracing::warn!(error = error.as_str(), "the client refused to ask its user");
                    Err(NoAnswer::Unavailable)
                }
                None => {
                    front.client_stayed_silent();
                    Err(NoAnswer::Expired(self.limit))
                }
            }
        })
    }
}

/// The choices in order; the first one is the harmless one, because some forms preselect it.
fn choices(request: &ApprovalRequest) -> Vec<(&'static str, &'static str)> {
    let mut choices = vec![("deny", "Deny"), ("allow_once", "Allow this call once")];
    if request.may_be_remembered {
        choices.push(("allow_session", "Allow this very call until the connection ends"));
    }
    choices
}

fn form(request: &ApprovalRequest, names_mode: bool) -> Value {
    let choices = choices(request);
    let mut form = json!({
        "message": format!(
            "An agent wants to run `{}`.\n{}\nWhy you are asked: {}",
            request.tool_name, request.command, request.reason
        ),
        "requestedSchema": {
            "type": "object",
            "properties": {
                "decision": {
                    "type": "string",
                    "title": "Decision",
                    "description": "What to do with this call.",
                    "enum": choices.iter().map(|(value, _)| *value).collect::<Vec<_>>(),
                    "enumNames": choices.iter().map(|(_, label)| *label).collect::<Vec<_>>(),
                }
            },
            "required": ["decision"],
        },
    });
    if names_mode {
        form["mode"] = json!("form");
    }
    form
}

/// `accept` is not approval: only a value that was offered is.
fn read(answer: &Value, request: &ApprovalRequest) -> ApprovalResponse {
    match answer["action"].as_str() {
        Some("accept") => {
            let chosen = answer["content"]["decision"].as_str();
            let offered = choices(request).into_iter().any(|(value, _)| Some(value) == chosen);
            match chosen {
                Some("allow_once") if offered => ApprovalResponse::ApproveOnce,
                Some("allow_session") if offered => ApprovalResponse::ApproveSession,
                _ => ApprovalResponse::Deny,
            }
        }
        Some("cancel") => ApprovalResponse::Defer,
        _ => ApprovalResponse::Deny,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::approval::Fingerprint;
    use crate::tools::service::{Source, ToolDefinition, ToolMetadata};

    fn request(may_be_remembered: bool) -> ApprovalRequest {
        let tool =
            ToolDefinition::new("t", "d", RawJson::EMPTY_OBJECT, Source::Builtin, ToolMetadata::default());
        let fingerprint = Fingerprint::of(&tool, &json!({}));
        ApprovalRequest::new("t", "r", "t {}", may_be_remembered, fingerprint)
    }

    #[test]
    fn only_an_offered_value_is_an_approval() {
        use ApprovalResponse::{ApproveOnce, ApproveSession, Defer, Deny};
        let check = |answer: Value, expected| assert_eq!(read(&answer, &request(true)), expected, "{answer}");
        let accept = |content: Value| json!({"action": "accept", "content": content});
        check(accept(json!({"decision": "allow_once"})), ApproveOnce);
        check(accept(json!({"decision": "allow_session"})), ApproveSession);
        check(accept(json!({"decision": "deny"})), Deny);
        check(accept(json!({"decision": "yes please"})), Deny);
        check(accept(json!({"decision": true})), Deny);
        check(accept(json!({})), Deny);
        check(json!({"action": "accept"}), Deny);
        check(json!({"action": "decline"}), Deny);
        check(json!({"action": "cancel"}), Defer);
        check(json!({}), Deny);
        let floor = read(&accept(json!({"decision": "allow_session"})), &request(false));
        assert_eq!(floor, Deny, "what was not offered cannot be chosen");
    }

    #[test]
    fn t10_the_form_shows_tool_command_and_reason_and_preselects_nothing() {
        let form = form(&request(true), true);
        let message = form["message"].as_str().unwrap();
        assert!(message.contains("`t`") && message.contains("t {}") && message.contains('r'));
        let decision = &form["requestedSchema"]["properties"]["decision"];
        assert_eq!(decision["enum"], json!(["deny", "allow_once", "allow_session"]));
        assert!(decision.get("default").is_none());
        assert_eq!(form["requestedSchema"]["required"], json!(["decision"]));
    }
}
