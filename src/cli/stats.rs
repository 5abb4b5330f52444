//! `stats`: what the tool list costs a client, against all tools shown in full.
#![expect(clippy::print_stdout, reason = "this command prints for people; no client is on stdout here")]

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use serde_json::json;

use super::inspect::{ready, table};
use crate::gateway::Gateway;
use crate::tools::scoped::disclosure::BYTES_PER_TOKEN;
use crate::upstream::supervisor::Shutdown;

/// Prints bytes and estimated tokens of the plain list and of the one that is shown.
///
/// # Errors
/// None at present.
pub async fn run(gateway: Arc<Gateway>, as_json: bool) -> Result<ExitCode> {
    let scope = ready(&gateway).await;
    let view = scope.view();
    // Of the gateway's own tools, those that would be in a plain list as well.
    let is_plain = |name: &str| name == "read_result" || (name == "call_tools" && view.settings.offers_batch);
    let own = view.listed().iter().filter(|tool| view.meta(&tool.name).is_some() && is_plain(&tool.name));
    let tools = view.dispatchable().map(|(_, tool)| tool.definition());
    let plain: Vec<usize> = tools.chain(own).map(|tool| tool.wire.len()).collect();
    let tokens = |bytes: usize| bytes / BYTES_PER_TOKEN;
    // The array's brackets and a comma behind each tool but the last.
    let plain_bytes = plain.iter().sum::<usize>() + plain.len().saturating_sub(1) + 2;
    let (shown, shown_bytes) = (view.listed().len(), view.wire().len());
    let saved = (plain_bytes as f64 - shown_bytes as f64) * 100.0 / plain_bytes as f64;
    if as_json {
        let facts = json!({
            "plain": { "tools": plain.len(), "bytes": plain_bytes, "tokens": tokens(plain_bytes) },
            "shown": { "tools": shown, "bytes": shown_bytes, "tokens": tokens(shown_bytes) },
            "saved_percent": (saved * 10.0).round() / 10.0,
        });
        println!("{facts:#}");
    } else {
        let mut table = table(&["LIST", "TOOLS", "BYTES", "TOKENS (ESTIMATED)"]);
        let row = |name: &str, tools: usize, bytes: usize| {
            [name.to_owned(), tools.to_string(), bytes.to_string(), tokens(bytes).to_string()]
        };
        table.add_row(row("all tools in full", plain.len(), plain_bytes));
        table.add_row(row("what a client sees", shown, shown_bytes));
        println!("{table}\n{saved:.1} % fewer");
    }
    gateway.stop(Shutdown::Gently).await;
    Ok(ExitCode::SUCCESS)
}
