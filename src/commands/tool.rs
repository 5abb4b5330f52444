//! Command tools as catalog entries.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::{CommandConfig, CommandFailure, input_schema, run_command};
use crate::catalog::names::legal;
use crate::catalog::registry::RegisteredTool;
use crate::tools::error::{Executed, ToolError};
use crate::tools::json::RawJson;
use crate::tools::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, Turn,
};

/// The executor's clock ends a run; this one only keeps a forgotten child from living for ever.
const BACKSTOP: Duration = Duration::from_secs(24 * 3600);

struct CommandTool {
    name: String,
    config: CommandConfig,
}

/// The tool of one `[commands.NAME]`.
pub fn tool(name: &str, config: &CommandConfig) -> RegisteredTool {
    let description =
        config.description.clone().unwrap_or_else(|| format!("Runs `{}`.", config.run.join(" ")));
    let metadata = ToolMetadata {
        read_only: config.read_only,
        idempotent: config.read_only,
        confirm: config.confirm,
        parallel_safe: config.parallel_safe,
        claim: config.claim.clone(),
        permissions: config.permissions.clone(),
        timeout_ms: config.timeout_ms,
        ..ToolMetadata::default()
    };
    let schema = RawJson::from_value(&input_schema(config));
    let mut definition =
        ToolDefinition::new(&legal(name).name, &description, schema, Source::Command, metadata);
    definition.original = name.into();
    let handler = CommandTool { name: definition.name.to_string(), config: config.clone() };
    RegisteredTool::new(definition, Arc::new(handler))
}

impl ToolHandler for CommandTool {
    fn call<'a>(&'a self, input: Input, _: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            match run_command(&self.config, &input.value, BACKSTOP).await {
                Ok(output) => {
                    let result = ToolOutput::structured(&output.text(), &output.structured());
                    Ok(ToolResult::Completed(result))
                }
                Err(CommandFailure::Timeout { elapsed, .. }) => {
                    Err(ToolError::Timeout { tool: self.name.clone(), elapsed, executed: Executed::Maybe })
                }
                Err(failure) => Ok(ToolResult::ToolError(failure.to_string())),
            }
        })
    }

    fn locate(&self, path: &str) -> Option<PathBuf> {
        self.config.cwd.as_ref().map(|folder| Path::new(folder).join(path))
    }
}
