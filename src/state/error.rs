//! How an operation on the state store can fail.

use super::tickets::TicketStatus;

/// What the caller can show to whoever asked.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum StateError {
    /// No such ticket; it may have been deleted after seven days.
    #[error("there is no ticket `{id}`{}", waiting(.pending))]
    UnknownTicket {
        /// What was asked for.
        id: String,
        /// Ids that wait for an answer, the most similar first.
        pending: Vec<String>,
    },
    /// Somebody was faster, or it is the second try.
    #[error("ticket `{id}` was answered already: it is {status}")]
    AlreadyAnswered {
        /// The ticket.
        id: String,
        /// What became of it.
        status: TicketStatus,
    },
    /// Nobody answered in time.
    #[error("ticket `{id}` has expired; when the call is sent again, it gets a new ticket")]
    ExpiredTicket {
        /// The ticket.
        id: String,
    },
    /// The store itself.
    #[error("the state store failed: {0}")]
    Store(#[from] rusqlite::Error),
}

fn waiting(pending: &[String]) -> String {
    if pending.is_empty() {
        return "; none is pending".to_owned();
    }
    format!("; pending: {}", pending.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", "))
}
