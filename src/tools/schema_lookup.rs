//! `get_tool_schema`: the full parameters of one tool, from the snapshot before anything was collapsed.

use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use serde_json::json;

use super::error::ToolError;
use super::json::RawJson;
use super::scoped::service::ScopedToolService;
use super::scoped::view::{View, Visibility};
use super::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, Turn,
};
use crate::catalog::names::suggestions;
use crate::catalog::registry::RegisteredTool;

struct Lookup(Weak<ScopedToolService>);

/// The tool over a scope.
pub fn tool(scope: &Weak<ScopedToolService>) -> Arc<RegisteredTool> {
    let definition = ToolDefinition::new(
        "get_tool_schema",
        "Returns the full parameters of a tool whose schema is not shown. Call it before such a tool.",
        RawJson::from_value(&json!({
            "type": "object",
            "properties": {
                "tool_name": { "type": "string", "minLength": 1, "description": "As it is listed." }
            },
            "required": ["tool_name"],
            "additionalProperties": false,
        })),
        Source::Builtin,
        ToolMetadata::looks_only(),
    );
    Arc::new(RegisteredTool::new(definition, Arc::new(Lookup(scope.clone()))))
}

impl ToolHandler for Lookup {
    fn call<'a>(&'a self, input: Input, _: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let Some(scope) = self.0.upgrade() else {
                return Err(ToolError::Cancelled { tool: "get_tool_schema".to_owned() });
            };
            let asked = input.value["tool_name"].as_str().unwrap_or_default().trim();
            Ok(ToolResult::Completed(answer(&scope.view(), asked)))
        })
    }
}

fn answer(view: &View, asked: &str) -> ToolOutput {
    if let Some(meta) = view.meta(asked) {
        return found(meta.definition());
    }
    let position = view.snapshot.position(asked).or_else(|| view.snapshot.position_of_variant(asked));
    match position.filter(|&i| !matches!(view.place(i).visibility, Visibility::Withheld(_))) {
        Some(position) => found(view.snapshot.tools()[position].definition()),
        None => {
            let names = view.dispatchable().map(|(_, tool)| &*tool.definition().name);
            let near = suggestions(asked, names);
            let facts = json!({ "found": false, "tool_name": asked, "suggestions": near });
            ToolOutput::structured(&facts.to_string(), &facts)
        }
    }
}

fn found(definition: &ToolDefinition) -> ToolOutput {
    let facts = json!({
        "found": true,
        "tool_name": definition.name,
        "description": definition.description,
        "parameters": definition.input_schema,
    });
    // Written by hand, because numbers of the schema must not pass through a value tree.
    let text = format!(
        r#"{{"found":true,"tool_name":{},"description":{},"parameters":{}}}"#,
        facts["tool_name"],
        facts["description"],
        definition.input_schema.as_str()
    );
    let mut result = super::json::ObjectWriter::with_capacity(text.len() * 2 + 64);
    result.value("content", &json!([{ "type": "text", "text": text }]));
    result.raw("structuredContent", text.as_bytes());
    ToolOutput::Result(result.json())
}
