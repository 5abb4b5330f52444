//! `toolcrib serve`: one client on standard input and output.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::gateway::Gateway;
use crate::server::front::Front;
use crate::server::pipes;

/// Serves until the client leaves or a signal comes; no child is left afterwards.
///
/// # Errors
/// A panic of the connection itself; whatever else goes wrong is the client's business.
pub async fn run(gateway: Arc<Gateway>) -> Result<ExitCode> {
    if std::io::stdin().is_terminal() {
        eprintln!(
            "toolcrib waits for an MCP client on standard input. Clients start it themselves:\n  \
             {{\"mcpServers\": {{\"toolcrib\": {{\"command\": \"toolcrib\", \"args\": [\"serve\"]}}}}}}\n\
             To look around yourself: toolcrib demo, toolcrib list, toolcrib --help. Ctrl-C ends this."
        );
    }
    let (input, output) = pipes::standard();
    // A task of its own: waking the future that the runtime itself blocks on costs a system call each time.
    let how = tokio::spawn(Front::serve(Arc::clone(&gateway), input, output)).await;
    let how = how.context("the connection ended by a panic")?;
    gateway.stop(how).await;
    Ok(ExitCode::SUCCESS)
}
