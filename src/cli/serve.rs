//! `toolcrib serve`: one client on standard input and output.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;

use crate::gateway::Gateway;
use crate::server::front::Front;
use crate::server::pipes;

/// Serves until the client leaves or a signal comes; no child is left afterwards.
///
/// # Errors
/// None at present: whatever goes wrong with one client is that client's business.
pub async fn run(gateway: Arc<Gateway>) -> Result<ExitCode> {
    if std::io::stdin().is_terminal() {
        eprintln!(
            "toolcrib waits for an MCP client on standard input. Clients start it themselves:\n  \
             {{\"mcpServers\": {{\"toolcrib\": {{\"command\": \"toolcrib\", \"args\": [\"serve\"]}}}}}}\n\
             To look around yourself: toolcrib demo, toolcrib list, toolcrib --help. Ctrl-C ends this."
        );
    }
    let (input, output) = pipes::standard();
    let how = Front::serve(Arc::clone(&gateway), input, output).await;
    gateway.stop(how).await;
    Ok(ExitCode::SUCCESS)
}
