//! `toolcrib demo`: starts the real server as a client does and speaks MCP to it with the official SDK.
#![expect(clippy::print_stdout, reason = "this command prints for people; no client is on stdout here")]

use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::async_rw::AsyncRwTransport;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::process::spawn_grouped;

/// The tour's configuration. The upstream server is this same program with other tools.
const CONFIGURATION: &str = r#"
[builtins]
roots = ["."]

[policy.rules]
"delete_everything" = "deny"

[commands.greet]
run = ["PROGRAM", "--version"]
description = "Says who is there."
read_only = true

[commands.delete_everything]
run = ["PROGRAM", "--version"]
description = "Would delete everything."

[mcp_servers.workshop]
command = "PROGRAM"
args = ["serve", "--config", "workshop.toml", "--state", ":memory:"]
"#;

const WORKSHOP: &str = r#"
[builtins]
enabled = []

[commands.measure]
run = ["PROGRAM", "--version"]
description = "A tool of another MCP server behind the gateway."
read_only = true
"#;

/// Shows list, call, refused call and error.
///
/// # Errors
/// A server that does not start or does not behave as shown.
pub async fn run() -> Result<ExitCode> {
    let folder = tempfile::tempdir().context("a folder for the tour cannot be made")?;
    let program = std::env::current_exe().context("this program cannot be found")?;
    let escaped = program.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
    for (name, text) in [("tools.toml", CONFIGURATION), ("workshop.toml", WORKSHOP)] {
        std::fs::write(folder.path().join(name), text.replace("PROGRAM", &escaped))
            .context("the tour's files cannot be written")?;
    }
    std::fs::write(folder.path().join("hello.txt"), "Hello from a file.\nIts second line.\n")
        .context("the tour's files cannot be written")?;

    println!(
        "toolcrib: one MCP server in front of every tool. This starts the real server as a client would.\n"
    );
    let mut command = Command::new(&program);
    command.args(["serve", "--config", "tools.toml", "--state", ":memory:"]).current_dir(folder.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = spawn_grouped(command).context("the server cannot be started")?;
    let (Some(stdin), Some(stdout)) = (child.take_stdin(), child.take_stdout()) else {
        bail!("the server's pipes cannot be opened");
    };
    let client = ().serve(AsyncRwTransport::new_client(stdout, stdin)).await.context("the handshake failed")?;

    println!(
        "1. What the client is shown (built-ins, two commands of tools.toml, a server called `workshop`):"
    );
    let tools = client.list_all_tools().await.context("the list failed")?;
    for tool in &tools {
        let text = tool.description.as_deref().unwrap_or_default();
        let line: String = text.lines().next().unwrap_or_default().chars().take(70).collect();
        println!("   {:<18} {line}", tool.name);
    }
    if tools.iter().any(|tool| tool.name == "delete_everything") {
        bail!("a denied tool is in the list");
    }
    println!("   (`delete_everything` is in tools.toml too, but a rule denies it: nobody sees it.)\n");

    let steps: [(&str, &'static str, Value); 5] = [
        ("2. A call of a built-in:", "file_read", json!({ "path": "hello.txt" })),
        ("3. A call of another server's tool, under one roof:", "workshop_measure", json!({})),
        ("4. A denied tool, called by name all the same:", "delete_everything", json!({})),
        ("5. Arguments that do not fit, answered before anything runs:", "file_read", json!({ "path": 7 })),
        (
            "6. A path that leads out of the allowed folder:",
            "file_read",
            json!({ "path": "../../etc/passwd" }),
        ),
    ];
    for (title, tool, arguments) in steps {
        println!("{title}\n   -> {tool} {arguments}");
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let mut params = CallToolRequestParams::new(tool);
        params.arguments = Some(arguments);
        let result = client.call_tool(params).await.context("a call was not answered")?;
        let result = serde_json::to_value(&result)?;
        let text = result["content"][0]["text"].as_str().unwrap_or("(no text)");
        println!("   <- {}", text.trim_end().replace('\n', "\n      "));
        if let Some(error) = result["_meta"].get("toolcrib/error") {
            println!(
                "      kind: {}, retryable: {}, executed: {}",
                error["kind"], error["retryable"], error["executed"]
            );
        }
        println!();
    }
    client.cancel().await.context("the server did not close")?;
    let exit = child.wait().await.context("the server's end was not seen")?;
    println!("The client closed its end; the server and what it started are gone ({exit}).");
    println!(
        "Put it into your client: {}",
        json!({
            "mcpServers": { "toolcrib": { "command": "toolcrib", "args": ["serve"] } }
        })
    );
    Ok(ExitCode::SUCCESS)
}
