//! Tickets: questions for people whose client cannot ask them, answered in any terminal.

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::state::LazyState;
use crate::state::tickets::{NewTicket, Redemption, TicketStatus};
use crate::tools::approval::{ApprovalHandler, ApprovalRequest, ApprovalResponse, NoAnswer};

/// Files each question as a ticket; the same call sent again redeems the answer, once.
pub struct TicketDesk {
    state: Arc<LazyState>,
}

impl TicketDesk {
    /// A desk over the state store that `toolcrib approvals` works on as well.
    pub fn new(state: Arc<LazyState>) -> TicketDesk {
        TicketDesk { state }
    }

    fn answer(&self, request: &ApprovalRequest) -> Result<ApprovalResponse, NoAnswer> {
        let waiting = |id: String| {
            let how = format!("a person allows it in a terminal with `toolcrib approvals allow {id}`");
            Err(NoAnswer::Ticket { id, how })
        };
        let state = self.state.get();
        // Without a file no other process sees a ticket, and nobody could ever answer it.
        if !state.is_shared() {
            return Err(NoAnswer::Unavailable);
        }
        match state.redeem(request.fingerprint.as_str()) {
            Redemption::Allowed => Ok(ApprovalResponse::ApproveOnce),
            Redemption::Denied => Ok(ApprovalResponse::Deny),
            Redemption::Pending(ticket) => waiting(ticket.id),
            Redemption::Nothing => {
                let filed = state.file_ticket(NewTicket {
                    fingerprint: request.fingerprint.as_str().to_owned(),
                    tool: request.tool_name.clone(),
                    reason: request.reason.clone(),
                    command: request.command.clone(),
                    client: request.client.to_string(),
                });
                match filed {
                    Ok(ticket) if ticket.status == TicketStatus::Denied => Ok(ApprovalResponse::Deny),
                    Ok(ticket) => waiting(ticket.id),
                    // A ticket that was not kept can never be answered.
                    Err(error) => {
                        tracing::warn!(%error, "a ticket could not be filed");
                        Err(NoAnswer::Unavailable)
                    }
                }
            }
        }
    }
}

impl ApprovalHandler for TicketDesk {
    fn request<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> BoxFuture<'a, Result<ApprovalResponse, NoAnswer>> {
        Box::pin(async move { self.answer(request) })
    }
}
