//! `toolcrib approvals`: the questions that wait for a person.
#![expect(clippy::print_stdout, reason = "this command prints for people; no client is on stdout here")]

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde_json::json;

use super::inspect::table;
use crate::state::State;
use crate::state::tickets::TicketStatus;

/// What to do with tickets.
#[derive(Subcommand)]
pub enum Action {
    /// Shows the questions that wait.
    List {
        /// Also answered and expired ones.
        #[arg(long)]
        all: bool,
    },
    /// Allows one call, once: the agent sends it again.
    Allow {
        /// The ticket, as the agent was told it.
        ticket: String,
    },
    /// Refuses it.
    Deny {
        /// The ticket, as the agent was told it.
        ticket: String,
    },
}

/// Lists or answers tickets.
///
/// # Errors
/// An unknown, answered or expired ticket.
pub fn run(state: &State, action: Option<&Action>, as_json: bool) -> Result<ExitCode> {
    match action {
        None => list(state, false, as_json),
        Some(Action::List { all }) => list(state, *all, as_json),
        Some(Action::Allow { ticket }) => {
            let ticket = state.answer(ticket, true)?;
            println!("allowed once: {}; the agent can send the call again", ticket.tool);
        }
        Some(Action::Deny { ticket }) => {
            let ticket = state.answer(ticket, false)?;
            println!("denied: {}", ticket.tool);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(state: &State, all: bool, as_json: bool) {
    let tickets = state.tickets(all);
    if as_json {
        let rows: Vec<_> = tickets
            .iter()
            .map(|t| {
                json!({
                    "ticket": t.id, "tool": t.tool, "command": t.command, "reason": t.reason,
                    "status": t.status.to_string(), "created_ms": t.created_ms,
                })
            })
            .collect();
        println!("{:#}", json!(rows));
        return;
    }
    if tickets.is_empty() {
        println!("nothing waits for you");
        return;
    }
    let mut table = table(&["TICKET", "STATUS", "TOOL", "CALL", "WHY"]);
    for ticket in &tickets {
        let status = ticket.status.to_string();
        table.add_row([&ticket.id, &status, &ticket.tool, &ticket.command, &ticket.reason]);
    }
    println!("{table}");
    if tickets.iter().any(|ticket| ticket.status == TicketStatus::Pending) {
        println!("allow one with: toolcrib approvals allow TICKET");
    }
}
