//! The log: stderr or a file, never stdout, and never waiting for whoever reads it.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::Path;

use anyhow::{Context, Result};
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;

/// Lines that wait for a slow reader of stderr; beyond them the newest are dropped.
const WAITING_LINES: usize = 4096;

/// Starts logging. Keep the guard: it writes the last lines when it is dropped.
///
/// # Errors
/// A log file that cannot be opened.
pub fn start(file: Option<&Path>, is_server: bool) -> Result<WorkerGuard> {
    let builder = tracing_appender::non_blocking::NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_LINES);
    let (writer, guard) = match file {
        Some(path) => {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            builder.finish(
                opened.with_context(|| format!("the log file `{}` cannot be opened", path.display()))?,
            )
        }
        None => builder.finish(std::io::stderr()),
    };
    // Hosts show a server's stderr as errors: by default only what a person has to know goes there.
    let default = if is_server { "warn,rmcp=off" } else { "error,rmcp=off" };
    let filter = std::env::var("TOOLCRIB_LOG").ok().and_then(|text| {
        // The SDK logs whole messages: it stays silent unless it is named.
        let text = if text.contains("rmcp") { text } else { format!("{text},rmcp=off") };
        EnvFilter::try_new(text).ok()
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|| EnvFilter::new(default)))
        .with_writer(writer)
        .with_target(false)
        .with_ansi(file.is_none() && std::io::stderr().is_terminal())
        .init();
    Ok(guard)
}
