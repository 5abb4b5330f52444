//! `list`, `describe` and `call`: the tools as one client would see and call them.
#![expect(clippy::print_stdout, reason = "these commands print for people; no client is on stdout here")]

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use comfy_table::{ContentArrangement, Table, presets};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::tools::approval::{ApprovalHandler, ApprovalRequest, ApprovalResponse, NoAnswer};
use crate::tools::json::RawJson;
use crate::tools::results::Budget;
use crate::tools::scoped::service::ScopedToolService;
use crate::tools::scoped::view::Visibility;
use crate::tools::service::{ToolDefinition, ToolOutput, ToolService, Turn};
use crate::upstream::server::Status;
use crate::upstream::supervisor::Shutdown;

/// Starts everything and waits until every server has answered or failed.
pub async fn ready(gateway: &Arc<Gateway>) -> Arc<ScopedToolService> {
    gateway.start();
    gateway.until_answered().await;
    for upstream in gateway.upstreams() {
        if let Status::Failed(why) | Status::Down(why) = upstream.status() {
            eprintln!("server `{}`: {why}", upstream.spec.name);
        }
    }
    gateway.scope()
}

/// Prints the tools that a client sees, or all that it can call.
///
/// # Errors
/// None at present.
pub async fn list(gateway: Arc<Gateway>, all: bool, as_json: bool) -> Result<ExitCode> {
    let scope = ready(&gateway).await;
    let tools = if all { scope.dispatchable_list().await } else { scope.list().await };
    if as_json {
        let wires: Vec<&str> = tools.iter().map(|tool| tool.wire.as_str()).collect();
        println!("[{}]", wires.join(",\n "));
    } else {
        let mut table = table(&["TOOL", "SOURCE", "HINTS", "DESCRIPTION"]);
        for tool in &tools {
            table.add_row([&*tool.name, tool.source.label(), &hints(tool), &first_line(&tool.description)]);
        }
        println!("{table}");
        let hidden = scope.dispatchable_list().await.len() - scope.list().await.len();
        if !all && hidden > 0 {
            println!("{hidden} more wait behind tool_search: list --all");
        }
    }
    gateway.stop(Shutdown::Gently).await;
    Ok(ExitCode::SUCCESS)
}

/// A borderless table with bold-free headings, as wide as the terminal.
pub fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(headings);
    table
}

fn hints(tool: &ToolDefinition) -> String {
    let hints = &tool.metadata;
    let words = [
        (hints.read_only, "reads"),
        (hints.destructive, "destroys"),
        (hints.confirm, "asks"),
        (!hints.permissions.is_empty(), "needs grants"),
    ];
    words.iter().filter(|(holds, _)| *holds).map(|(_, word)| *word).collect::<Vec<_>>().join(", ")
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(100) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// Prints one tool.
///
/// # Errors
/// None at present; an unknown tool is exit code 1.
pub async fn describe(gateway: Arc<Gateway>, tool: &str, as_json: bool) -> Result<ExitCode> {
    let scope = ready(&gateway).await;
    let view = scope.view();
    let position = view.snapshot.position(tool).or_else(|| view.snapshot.position_of_variant(tool));
    let found = position.filter(|&i| {
        view.place(i).visibility != Visibility::Withheld(crate::tools::scoped::view::Reason::NotAllowlisted)
    });
    let code = match found {
        None => {
            let error = scope.prepare(tool, RawJson::EMPTY_OBJECT).err();
            let why = error.map_or_else(|| format!("there is no tool `{tool}`"), |error| error.to_string());
            eprintln!("toolcrib: {why}");
            ExitCode::from(super::FAILED)
        }
        Some(position) => {
            let definition = view.snapshot.tools()[position].definition();
            let place = view.place(position);
            if as_json {
                let mut facts = serde_json::to_value(definition)?;
                facts["visibility"] = json!(place.visibility.to_string());
                facts["judgement"] = json!(place.judgement.to_string());
                println!("{facts:#}");
            } else {
                println!("{}  ({} / {})", definition.name, definition.source, definition.original);
                println!("shown: {}   policy: {}", place.visibility, place.judgement);
                let hints = hints(definition);
                if !hints.is_empty() {
                    println!("hints: {hints}");
                }
                println!("\n{}\n", definition.description);
                let schema = definition.input_schema.to_value().unwrap_or(Value::Null);
                println!("parameters: {schema:#}");
            }
            ExitCode::SUCCESS
        }
    };
    gateway.stop(Shutdown::Gently).await;
    Ok(code)
}

/// Calls one tool and prints its result.
///
/// # Errors
/// Arguments that are no JSON object.
pub async fn call(gateway: Arc<Gateway>, tool: &str, arguments: &str, as_json: bool) -> Result<ExitCode> {
    let arguments = match arguments {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("the arguments cannot be read")?;
            text
        }
        text => text.to_owned(),
    };
    let arguments = RawJson::parse(arguments).context("the arguments are no valid JSON")?;
    anyhow::ensure!(
        arguments.is_object(),
        "the arguments must be a JSON object, such as '{{\"path\": \"x\"}}'"
    );
    ready(&gateway).await;
    let mut turn = Turn::detached();
    turn.approvals = match std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
        true => Arc::new(Terminal),
        false => gateway.approvals_without_client(),
    };
    // Nobody could read on in a result that was cut: this connection ends with it.
    let (_scope, executor) = gateway.connect_with(Budget { max_chars: usize::MAX, keep_bytes: 0 });
    let outcome = executor.finish(executor.arrive(tool, arguments), &turn).await;
    let code = match outcome.result {
        Ok(output) => print_output(&output, as_json),
        Err(error) => {
            match as_json {
                true => println!("{:#}", json!({ "error": error.facts() })),
                false => eprintln!("toolcrib: {error}"),
            }
            ExitCode::from(super::FAILED)
        }
    };
    gateway.stop(Shutdown::Gently).await;
    Ok(code)
}

fn print_output(output: &ToolOutput, as_json: bool) -> ExitCode {
    match output {
        ToolOutput::Result(raw) if as_json => println!("{}", raw.as_str()),
        ToolOutput::RpcError(raw) if as_json => println!("{{\"error\":{}}}", raw.as_str()),
        ToolOutput::RpcError(raw) => eprintln!("toolcrib: the server refused the call: {}", raw.as_str()),
        ToolOutput::Result(raw) => {
            let value = raw.to_value().unwrap_or_default();
            for block in value["content"].as_array().into_iter().flatten() {
                match block["text"].as_str() {
                    Some(text) => println!("{text}"),
                    None => println!("[{} block]", block["type"].as_str().unwrap_or("unknown")),
                }
            }
        }
    }
    if output.is_error() { ExitCode::from(super::FAILED) } else { ExitCode::SUCCESS }
}

/// Asks whoever sits at the terminal.
struct Terminal;

impl ApprovalHandler for Terminal {
    fn request<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> BoxFuture<'a, Result<ApprovalResponse, NoAnswer>> {
        Box::pin(async move {
            eprint!("{}\n{}\nRun it? [y/N] ", request.command, request.reason);
            let _ = std::io::stderr().flush();
            let read = tokio::task::spawn_blocking(|| {
                let mut line = String::new();
                std::io::stdin().read_line(&mut line).map(|_| line)
            });
            match read.await {
                Ok(Ok(line)) if matches!(line.trim(), "y" | "Y" | "yes") => Ok(ApprovalResponse::ApproveOnce),
                _ => Ok(ApprovalResponse::Deny),
            }
        })
    }
}
