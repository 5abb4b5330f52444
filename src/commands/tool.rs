//! Command tools as catalog entries.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::RwLock;

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

/// Lets commands that are declared safe beside others run together and every other one alone, in order of arrival.
pub type Gate = Arc<RwLock<()>>;

struct CommandTool {
    name: String,
    config: CommandConfig,
    gate: Gate,
}

/// The tool of one `[commands.NAME]`.
pub fn tool(name: &str, config: &CommandConfig, gate: &Gate) -> RegisteredTool {
    let description =
        config.description.clone().unwrap_or_else(|| format!("Runs `{}`.", config.run.join(" ")));
    let metadata = ToolMetadata {
        read_only: config.read_only,
        idempotent: config.read_only,
        confirm: config.confirm,
        parallel_safe: config.parallel_safe,
        permissions: config.permissions.clone(),
        timeout_ms: config.timeout_ms,
        ..ToolMetadata::default()
    };
    let schema = RawJson::from_value(&input_schema(config));
    let mut definition =
        ToolDefinition::new(&legal(name).name, &description, schema, Source::Command, metadata);
    definition.original = name.into();
    let handler =
        CommandTool { name: definition.name.to_string(), config: config.clone(), gate: Arc::clone(gate) };
    RegisteredTool::new(definition, Arc::new(handler))
}

impl ToolHandler for CommandTool {
    fn call<'a>(&'a self, input: Input, _: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let is_shared = self.config.parallel_safe.unwrap_or(self.config.read_only);
            let (_beside, _alone) = match is_shared {
                true => (Some(self.gate.read().await), None),
                false => (None, Some(self.gate.write().await)),
            };
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
}
