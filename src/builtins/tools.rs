//! Built-ins as catalog entries.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::BoxFuture;

use super::definitions::{BUILTIN_TOOL_DEFINITIONS, BuiltinDefinition, BuiltinEnv, BuiltinKind, run};
use super::outcome::BuiltinFailure;
use super::roots::Roots;
use crate::catalog::registry::RegisteredTool;
use crate::tools::approval::{ApprovalRequest, Fingerprint};
use crate::tools::error::{Executed, ToolError};
use crate::tools::json::RawJson;
use crate::tools::scoped::policy::patterns;
use crate::tools::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, Turn,
};

/// The executor's clock ends a run; this one only keeps forgotten work from going on for ever.
const BACKSTOP: Duration = Duration::from_secs(24 * 3600);

struct Builtin {
    kind: BuiltinKind,
    definition: ToolDefinition,
    env: BuiltinEnv,
}

/// The built-ins that the configuration leaves in and gives what they need.
///
/// # Errors
/// A malformed pattern in `[builtins] enabled`, or a working directory that cannot be found.
pub fn all(roots: &[String], enabled: Option<&[String]>) -> Result<Vec<RegisteredTool>> {
    let enabled = match enabled {
        Some(texts) => Some(patterns(texts).map_err(anyhow::Error::msg).context("in `[builtins] enabled`")?),
        None => None,
    };
    let base = std::env::current_dir().context("the current folder cannot be found")?;
    // Refusals name the roots: what lies below the working directory is named without where that is.
    let shown: Vec<PathBuf> = roots.iter().map(|root| below(Path::new(root), &base)).collect();
    let env = BuiltinEnv { roots: Roots::new(&shown, &base, std::env::home_dir()), ..BuiltinEnv::default() };
    let usable = BUILTIN_TOOL_DEFINITIONS
        .iter()
        .filter(|definition| !(definition.needs.contains(&"builtins.roots") && env.roots.is_empty()));
    let tools = usable.map(|definition| (definition.kind, entry(definition)));
    let wanted = tools.filter(|(_, definition)| {
        enabled.as_ref().is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(definition)))
    });
    let registered = wanted.map(|(kind, definition)| {
        let handler = Builtin { kind, definition: definition.clone(), env: env.clone() };
        RegisteredTool::new(definition, Arc::new(handler))
    });
    Ok(registered.collect())
}

fn below(root: &Path, base: &Path) -> PathBuf {
    match root.strip_prefix(base) {
        Ok(rest) if rest.as_os_str().is_empty() => PathBuf::from("."),
        Ok(rest) => rest.to_owned(),
        Err(_) => root.to_owned(),
    }
}

fn entry(builtin: &BuiltinDefinition) -> ToolDefinition {
    let metadata = ToolMetadata {
        read_only: builtin.read_only,
        destructive: builtin.destructive,
        idempotent: builtin.idempotent,
        confirm: builtin.confirm,
        claim: Some((builtin.claim)()),
        permissions: builtin.permission.map(str::to_owned).into_iter().collect(),
        ..ToolMetadata::default()
    };
    let schema = RawJson::from_value(&(builtin.schema)());
    ToolDefinition::new(builtin.name, builtin.description, schema, Source::Builtin, metadata)
        .with_title(builtin.title)
}

impl Builtin {
    /// Deleting asks like any destructive tool; the other operations of the same tool do not.
    fn question(&self, input: &Input, turn: &Turn) -> Option<ApprovalRequest> {
        let deletes = matches!(self.kind, BuiltinKind::FileOps) && input.value["operation"] == "delete";
        if !deletes || turn.is_approved {
            return None;
        }
        let command = format!("{} {}", self.definition.name, input.raw.as_str());
        let fingerprint = Fingerprint::of(&self.definition, &input.value);
        Some(ApprovalRequest::new(&self.definition.name, "it deletes files", &command, false, fingerprint))
    }
}

impl ToolHandler for Builtin {
    fn call<'a>(&'a self, input: Input, turn: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            if let Some(question) = self.question(&input, turn) {
                return Ok(ToolResult::NeedsApproval(question));
            }
            let tool = || self.definition.name.to_string();
            match run(self.kind, &self.env, serde_json::Value::clone(&input.value), BACKSTOP).await {
                Ok(output) => {
                    Ok(ToolResult::Completed(ToolOutput::structured(&output.text, &output.structured)))
                }
                Err(BuiltinFailure::Validation { path, message }) => {
                    Err(ToolError::Validation { tool: tool(), path, message, schema: None })
                }
                Err(BuiltinFailure::Execution { message }) => Ok(ToolResult::ToolError(message)),
                Err(BuiltinFailure::Timeout { message }) => {
                    tracing::debug!(tool = %self.definition.name, %message, "a built-in ran out of time");
                    Err(ToolError::Timeout { tool: tool(), elapsed: BACKSTOP, executed: Executed::Maybe })
                }
            }
        })
    }

    fn locate(&self, path: &str) -> Option<PathBuf> {
        Some(self.env.roots.absolute(Path::new(path)))
    }
}
