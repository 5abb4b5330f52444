//! Runs a prepared call: asks a person where one must be asked, then the handler, under its clock.

use std::collections::HashMap;
use std::sync::Mutex;

use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::prepare::{Confirmation, Prepared};
use crate::tools::approval::{ApprovalRequest, ApprovalResponse, Fingerprint, NoAnswer};
use crate::tools::error::{Denial, Executed, ToolError};
use crate::tools::json::RawObject;
use crate::tools::service::{ToolOutput, ToolResult, Turn};

/// Answers that hold for the rest of a connection.
#[derive(Debug, Default)]
pub struct SessionMemory {
    answers: Mutex<HashMap<Fingerprint, Remembered>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remembered {
    Approved,
    Denied,
}

impl SessionMemory {
    fn recall(&self, fingerprint: &Fingerprint) -> Option<Remembered> {
        self.answers.lock().expect("no code panics while it holds the answers").get(fingerprint).copied()
    }

    fn remember(&self, fingerprint: Fingerprint, answer: Remembered) {
        self.answers.lock().expect("no code panics while it holds the answers").insert(fingerprint, answer);
    }
}

/// Confirms and runs one call.
///
/// # Errors
/// Everything that can happen to a call that was well formed.
pub async fn run(prepared: &Prepared, turn: &Turn, memory: &SessionMemory) -> Result<ToolOutput, ToolError> {
    if let Some(confirmation) = prepared.confirmation() {
        confirm(prepared, confirmation, turn, memory).await?;
    }
    let approved = || Turn { is_approved: true, ..turn.clone() };
    let said_yes = (prepared.confirmation().is_some() || prepared.is_exactly_allowed()).then(approved);
    match attempt(prepared, said_yes.as_ref().unwrap_or(turn)).await? {
        ToolResult::Completed(output) => Ok(output),
        ToolResult::ToolError(cause) => Err(execution(prepared, cause)),
        ToolResult::NeedsApproval(request) => {
            let request = request.by(&turn.client);
            ask(&request, prepared, request.may_be_remembered, turn, memory).await?;
            match attempt(prepared, &approved()).await? {
                ToolResult::Completed(output) => Ok(output),
                ToolResult::ToolError(cause) => Err(execution(prepared, cause)),
                ToolResult::NeedsApproval(_) => {
                    let cause = "the tool asked again for what was just approved".to_owned();
                    Err(execution(prepared, cause))
                }
            }
        }
    }
}

fn name(prepared: &Prepared) -> String {
    prepared.tool().definition().name.to_string()
}

fn execution(prepared: &Prepared, cause: String) -> ToolError {
    ToolError::Execution { tool: name(prepared), cause }
}

/// One run of the handler. An overrun drops it, which ends a child and cancels an upstream.
async fn attempt(prepared: &Prepared, turn: &Turn) -> Result<ToolResult, ToolError> {
    let started = Instant::now();
    let handler = prepared.tool().execute(prepared.input().clone(), prepared.grants(), turn);
    match timeout(prepared.limit(), handler).await {
        Ok(result) => result.map_err(|error| error.about(&prepared.tool().definition().name)),
        Err(_) => Err(ToolError::Timeout {
            tool: name(prepared),
            elapsed: started.elapsed(),
            executed: Executed::Maybe,
        }),
    }
}

async fn confirm(
    prepared: &Prepared,
    confirmation: &Confirmation,
    turn: &Turn,
    memory: &SessionMemory,
) -> Result<(), ToolError> {
    let definition = prepared.tool().definition();
    let command = format!("{} {}", definition.name, prepared.input().raw.as_str());
    let fingerprint = Fingerprint::of(definition, &prepared.input().value);
    let request = ApprovalRequest::new(
        &definition.name,
        &confirmation.reason,
        &command,
        confirmation.may_be_remembered,
        fingerprint,
    )
    .by(&turn.client);
    ask(&request, prepared, confirmation.may_be_remembered, turn, memory).await
}

async fn ask(
    request: &ApprovalRequest,
    prepared: &Prepared,
    may_be_remembered: bool,
    turn: &Turn,
    memory: &SessionMemory,
) -> Result<(), ToolError> {
    let denied = |denial| Err(ToolError::PermissionDenied { tool: name(prepared), denial });
    match memory.recall(&request.fingerprint) {
        Some(Remembered::Denied) => return denied(Denial::UserDenied),
        Some(Remembered::Approved) if may_be_remembered => return Ok(()),
        Some(Remembered::Approved) | None => {}
    }
    match turn.approvals.request(request).await {
        Ok(ApprovalResponse::ApproveOnce) => Ok(()),
        Ok(ApprovalResponse::ApproveSession | ApprovalResponse::ApproveAlways) => {
            if may_be_remembered {
                memory.remember(request.fingerprint.clone(), Remembered::Approved);
            }
            Ok(())
        }
        Ok(ApprovalResponse::Deny) => {
            memory.remember(request.fingerprint.clone(), Remembered::Denied);
            denied(Denial::UserDenied)
        }
        Ok(ApprovalResponse::Defer) => Err(ToolError::ApprovalDeferred {
            tool: name(prepared),
            ticket: request.id.clone(),
            how: "the user put the question off".to_owned(),
        }),
        Err(NoAnswer::Expired(waited)) => Err(ToolError::ApprovalExpired { tool: name(prepared), waited }),
        Err(NoAnswer::Unavailable) => denied(Denial::ApprovalUnavailable),
        Err(NoAnswer::Ticket { id, how }) => {
            Err(ToolError::ApprovalDeferred { tool: name(prepared), ticket: id, how })
        }
    }
}

/// Whether a result keeps what the tool's output schema promises; errors promise nothing.
pub fn keeps_output_promise(prepared: &Prepared, output: &ToolOutput) -> bool {
    let tool = prepared.tool();
    let ToolOutput::Result(raw) = output else { return true };
    if tool.definition().output_schema.is_none() || tool.output_promise_withdrawn() || output.is_error() {
        return true;
    }
    let Ok(object) = RawObject::parse(raw.as_bytes()) else { return true };
    let structured = object.get("structuredContent").map(|raw| serde_json::from_str::<Value>(raw.get()));
    match structured {
        None => tool.keeps_output_promise(None),
        Some(Ok(value)) => tool.keeps_output_promise(Some(&value)),
        // Nested too deeply to be judged: nobody else will judge it either.
        Some(Err(_)) => true,
    }
}
