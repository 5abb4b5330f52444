//! Asks a person about a call, and remembers the answers that hold for the rest of a connection.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::tools::approval::{ApprovalRequest, ApprovalResponse, Fingerprint, NoAnswer};
use crate::tools::error::{Denial, ToolError};
use crate::tools::scoped::prepare::{Confirmation, Prepared};
use crate::tools::service::Turn;

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

    /// Asks what a rule, the tier or a hint wants to be asked.
    ///
    /// # Errors
    /// Every answer but yes.
    pub async fn confirm(
        &self,
        prepared: &Prepared,
        confirmation: &Confirmation,
        turn: &Turn,
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
        self.ask(&request, prepared, turn).await
    }

    /// Asks this question.
    ///
    /// # Errors
    /// Every answer but yes.
    pub async fn ask(
        &self,
        request: &ApprovalRequest,
        prepared: &Prepared,
        turn: &Turn,
    ) -> Result<(), ToolError> {
        let tool = || prepared.tool().definition().name.to_string();
        let denied = |denial| Err(ToolError::PermissionDenied { tool: tool(), denial });
        match self.recall(&request.fingerprint) {
            Some(Remembered::Denied) => return denied(Denial::UserDenied),
            Some(Remembered::Approved) if request.may_be_remembered => return Ok(()),
            Some(Remembered::Approved) | None => {}
        }
        match turn.approvals.request(request).await {
            Ok(ApprovalResponse::ApproveOnce) => Ok(()),
            Ok(ApprovalResponse::ApproveSession | ApprovalResponse::ApproveAlways) => {
                if request.may_be_remembered {
                    self.remember(request.fingerprint.clone(), Remembered::Approved);
                }
                Ok(())
            }
            Ok(ApprovalResponse::Deny) => {
                self.remember(request.fingerprint.clone(), Remembered::Denied);
                denied(Denial::UserDenied)
            }
            Ok(ApprovalResponse::Defer) => Err(ToolError::ApprovalDeferred {
                tool: tool(),
                ticket: request.id.clone(),
                how: "the user put the question off".to_owned(),
            }),
            Err(NoAnswer::Expired(waited)) => Err(ToolError::ApprovalExpired { tool: tool(), waited }),
            Err(NoAnswer::Unavailable) => denied(Denial::ApprovalUnavailable),
            Err(NoAnswer::Ticket { id, how }) => {
                Err(ToolError::ApprovalDeferred { tool: tool(), ticket: id, how })
            }
        }
    }
}
