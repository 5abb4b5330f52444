//! Rewrites how a definition is presented; never its name, never from anything but name, core and options.

use crate::tools::json::{ObjectWriter, RawJson, RawObject};
use crate::tools::service::ToolDefinition;

/// Changes the presentation of one tool. The handler still resolves by the same name.
pub trait DefinitionRewriter: Send + Sync {
    /// The tool as it is shown. The name must stay.
    fn rewrite(&self, tool: ToolDefinition) -> ToolDefinition;
}

/// Collapses schemas of tools that are not core to an open object, with a hint to `get_tool_schema`.
#[derive(Debug, Clone, Copy)]
pub struct ProgressiveDisclosureRewriter;

const OPEN_OBJECT: &[u8] = br#"{"type":"object","additionalProperties":true}"#;

impl DefinitionRewriter for ProgressiveDisclosureRewriter {
    fn rewrite(&self, mut tool: ToolDefinition) -> ToolDefinition {
        let description = format!(
            "{} (Parameters are not shown: call get_tool_schema with tool_name \"{}\" first.)",
            tool.description.trim_end(),
            tool.name
        );
        let mut wire = ObjectWriter::with_capacity(description.len() + 256);
        let shown = RawObject::parse(tool.wire.as_bytes()).unwrap_or_default();
        for (key, value) in &shown.members {
            match key.as_ref() {
                "inputSchema" => wire.raw("inputSchema", OPEN_OBJECT),
                "description" => wire.string("description", &description),
                // A result schema without its parameters helps nobody and is the larger half.
                "outputSchema" => continue,
                key => wire.raw(key, value.get().as_bytes()),
            };
        }
        tool.wire = wire.json();
        tool.description = description.into();
        tool.input_schema = RawJson::trusted(OPEN_OBJECT);
        tool.output_schema = None;
        tool
    }
}

/// The tool without the promise about its structured results.
pub fn without_output_schema(tool: &ToolDefinition) -> ToolDefinition {
    let mut tool = tool.clone();
    tool.output_schema = None;
    tool.wire = edited(&tool.wire, |key| key != "outputSchema", &[]);
    tool
}

/// The tool marked so that a host with a deferral of its own does not hide it a second time.
pub fn always_loaded(tool: &ToolDefinition) -> ToolDefinition {
    let mut tool = tool.clone();
    let object = RawObject::parse(tool.wire.as_bytes()).unwrap_or_default();
    let mut meta = ObjectWriter::default();
    if let Some(old) = object.get("_meta").and_then(|raw| RawObject::parse(raw.get().as_bytes()).ok()) {
        for (key, value) in old.members.iter().filter(|(key, _)| key != "anthropic/alwaysLoad") {
            meta.raw(key, value.get().as_bytes());
        }
    }
    meta.raw("anthropic/alwaysLoad", b"true");
    tool.wire = edited(&tool.wire, |key| key != "_meta", &[("_meta", &meta.finish())]);
    tool
}

fn edited(wire: &RawJson, keep: impl Fn(&str) -> bool, add: &[(&str, &[u8])]) -> RawJson {
    let object = RawObject::parse(wire.as_bytes()).unwrap_or_default();
    let mut out = ObjectWriter::with_capacity(wire.len() + 64);
    for (key, value) in object.members.iter().filter(|(key, _)| keep(key)) {
        out.raw(key, value.get().as_bytes());
    }
    for (key, value) in add {
        out.raw(key, value);
    }
    out.json()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::service::{Source, ToolMetadata};
    use serde_json::{Value, json};

    fn tool() -> ToolDefinition {
        let schema = RawJson::from_value(&json!({"type": "object", "properties": {"a": {"type": "string"}}}));
        ToolDefinition::new(
            "m_plain",
            "Does things.",
            schema,
            Source::Mcp("m".into()),
            ToolMetadata::default(),
        )
    }

    #[test]
    fn collapse_keeps_name_and_annotations_and_depends_on_the_definition_only() {
        let once = ProgressiveDisclosureRewriter.rewrite(tool());
        assert_eq!(once, ProgressiveDisclosureRewriter.rewrite(tool()));
        let wire: Value = once.wire.to_value().unwrap();
        assert_eq!(wire["name"], "m_plain");
        assert_eq!(wire["inputSchema"], json!({"type": "object", "additionalProperties": true}));
        let text = wire["description"].as_str().unwrap();
        assert!(
            text.starts_with("Does things.") && text.contains("get_tool_schema") && text.contains("m_plain")
        );
        assert!(wire["annotations"].is_object());
    }

    #[test]
    fn marks_join_what_is_there() {
        let mut plain = tool();
        plain.wire = RawJson::parse(r#"{"name":"m_plain","_meta":{"x":1},"outputSchema":{}}"#).unwrap();
        assert_eq!(
            always_loaded(&plain).wire.as_str(),
            r#"{"name":"m_plain","outputSchema":{},"_meta":{"x":1,"anthropic/alwaysLoad":true}}"#
        );
        assert_eq!(without_output_schema(&plain).wire.as_str(), r#"{"name":"m_plain","_meta":{"x":1}}"#);
    }
}
