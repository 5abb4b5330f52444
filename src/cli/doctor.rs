//! `toolcrib doctor`: starts every server and says what is wrong and what to do.
#![expect(clippy::print_stdout, reason = "this command prints for people; no client is on stdout here")]

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use serde_json::json;

use super::inspect::table;
use crate::config::Loaded;
use crate::gateway::Gateway;
use crate::tools::service::Source;
use crate::upstream::server::Status;
use crate::upstream::supervisor::Shutdown;

/// Starts everything and reports on it; exit code 1 if a server failed.
///
/// # Errors
/// None at present.
pub async fn run(gateway: Arc<Gateway>, loaded: &Loaded, as_json: bool) -> Result<ExitCode> {
    gateway.start();
    gateway.until_answered().await;
    let snapshot = gateway.catalog().snapshot();
    let mut rows = Vec::new();
    let mut complaints = Vec::new();
    for upstream in gateway.upstreams() {
        let name = &upstream.spec.name;
        let tools = snapshot.by_source(&Source::Mcp(name.clone())).count();
        let report = upstream.report();
        let (state, why) = match upstream.status() {
            Status::Ready(_) => ("ready", None),
            Status::Starting => ("starting", None),
            Status::Down(why) | Status::Failed(why) => ("failed", Some(why)),
        };
        complaints.extend(report.complaints.iter().map(|text| format!("{name}: {text}")));
        rows.push((name.clone(), state, report.ready_after, tools, why));
    }
    let failed = rows.iter().filter(|(_, state, ..)| *state == "failed").count();
    if as_json {
        let servers: Vec<_> = rows
            .iter()
            .map(|(name, state, ready_after, tools, why)| {
                json!({
                    "server": name, "state": state, "tools": tools, "problem": why,
                    "ready_ms": ready_after.map(|time| time.as_millis() as u64),
                })
            })
            .collect();
        let own = [Source::Builtin, Source::Command, Source::Skill]
            .map(|source| (source.kind(), snapshot.by_source(&source).count()));
        println!(
            "{:#}",
            json!({
                "configuration": loaded.sources, "warnings": loaded.warnings, "servers": servers,
                "own_tools": own.into_iter().collect::<std::collections::BTreeMap<_, _>>(), "complaints": complaints,
            })
        );
    } else {
        match loaded.sources.as_slice() {
            [] => println!("configuration: none, the defaults hold"),
            files => files.iter().for_each(|file| println!("configuration: {}", file.display())),
        }
        for warning in &loaded.warnings {
            println!("warning: {warning}");
        }
        for source in [Source::Builtin, Source::Command, Source::Skill] {
            println!("{} tools: {}", source.kind(), snapshot.by_source(&source).count());
        }
        if !rows.is_empty() {
            let mut table = table(&["SERVER", "STATE", "READY AFTER", "TOOLS", "PROBLEM"]);
            for (name, state, ready_after, tools, why) in &rows {
                let after = ready_after.map(|time| format!("{} ms", time.as_millis())).unwrap_or_default();
                table.add_row([name, *state, &after, &tools.to_string(), &why.clone().unwrap_or_default()]);
            }
            println!("\n{table}");
        }
        for complaint in &complaints {
            println!("note: {complaint}");
        }
        for (name, _, _, _, why) in rows.iter().filter(|row| row.1 == "failed") {
            println!("\n{name}: {}", advice(why.as_deref().unwrap_or_default()));
        }
    }
    gateway.stop(Shutdown::Gently).await;
    Ok(if failed > 0 { ExitCode::from(super::FAILED) } else { ExitCode::SUCCESS })
}

/// What a person can do about a server that failed.
fn advice(why: &str) -> &'static str {
    let has = |part: &str| why.contains(part);
    if has("there is no program") {
        "install the program or write its full path in `command`; clients often start us with a short PATH"
    } else if has("working directory") {
        "correct `cwd`"
    } else if has("did not start within") {
        "the first start of npx or uvx servers downloads them: run the command once by hand, or raise `startup_timeout_sec`"
    } else if has("refused") {
        "the program runs but does not speak MCP as expected: check its arguments"
    } else if has("not supported by this version") || has("${") {
        "correct the entry in tools.toml"
    } else {
        "run the command by hand in a terminal and look at what it prints"
    }
}
