//! Registers tools under unique names, finds them, and is the one place where a handler is called.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use jsonschema::Validator;
use serde_json::Value;
use tokio::sync::watch;

use crate::schema::renames::KeyRenames;
use crate::tools::error::{Denial, ToolError};
use crate::tools::service::{Input, ToolDefinition, ToolHandler, ToolResult, Turn};

/// The flat set of permission names a caller holds. Compared as strings, nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants(Vec<String>);

impl Grants {
    /// Exactly these names; duplicates do no harm.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Grants {
        Grants(names.into_iter().map(Into::into).collect())
    }

    /// What is required and not held, in the order in which it is required.
    pub fn missing(&self, required: &[String]) -> Vec<String> {
        required.iter().filter(|name| !self.0.contains(name)).cloned().collect()
    }
}

/// A tool with its handler and what is derived from its schemas.
pub struct RegisteredTool {
    definition: ToolDefinition,
    handler: Arc<dyn ToolHandler>,
    renames: Option<KeyRenames>,
    validator: OnceLock<Option<Validator>>,
    output_validator: OnceLock<Option<Validator>>,
    broke_output_promise: AtomicBool,
}

impl std::fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RegisteredTool").field(&self.definition.name).finish()
    }
}

impl RegisteredTool {
    /// Joins a definition and the handler that runs it.
    pub fn new(definition: ToolDefinition, handler: Arc<dyn ToolHandler>) -> RegisteredTool {
        RegisteredTool {
            definition,
            handler,
            renames: None,
            validator: OnceLock::new(),
            output_validator: OnceLock::new(),
            broke_output_promise: AtomicBool::new(false),
        }
    }

    /// A tool whose exposed schema has other property keys than its own.
    pub fn with_renames(mut self, renames: KeyRenames) -> RegisteredTool {
        self.renames = Some(renames);
        self
    }

    /// The same tool under another wire name.
    pub fn renamed(&self, name: &str) -> RegisteredTool {
        let mut renamed = RegisteredTool::new(self.definition.renamed(name), Arc::clone(&self.handler));
        renamed.renames.clone_from(&self.renames);
        renamed
    }

    /// The same tool with further required permissions, after its own.
    pub fn requiring(&self, added: &[String]) -> RegisteredTool {
        let mut definition = self.definition.clone();
        for permission in added {
            if !definition.metadata.permissions.contains(permission) {
                definition.metadata.permissions.push(permission.clone());
            }
        }
        let mut tool = RegisteredTool::new(definition, Arc::clone(&self.handler));
        tool.renames.clone_from(&self.renames);
        tool
    }

    /// What is known about the tool.
    pub fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    /// Where a path among the arguments leads before any link; `None`: from where the gateway runs.
    pub fn locate(&self, path: &str) -> Option<PathBuf> {
        self.handler.locate(path)
    }

    /// Ends once the tool's source is up, or has failed to come up; `None` if it is not on its way up.
    pub fn starting(&self) -> Option<BoxFuture<'static, ()>> {
        self.handler.starting()
    }

    /// How many questions of the tool's source to people are open, if it asks any.
    pub fn open_questions(&self) -> Option<watch::Receiver<usize>> {
        self.handler.open_questions()
    }

    /// Why the tool cannot run at the moment, if its source knows.
    pub fn unhealthy(&self) -> Option<String> {
        self.handler.unhealthy()
    }

    /// The time limit where the operator sets none: the tool's own, else its source's.
    pub fn default_limit(&self) -> Duration {
        match self.definition.metadata.timeout_ms {
            Some(limit) => Duration::from_millis(limit),
            None => self.handler.default_limit(),
        }
    }

    /// Brings arguments into the tool's own spelling of property keys.
    pub fn own_spelling(&self, input: Input) -> Input {
        match &self.renames {
            Some(renames) => Input::from(renames.restore(Value::clone(&input.value))),
            None => input,
        }
    }

    /// Judges arguments by the original schema. A schema that cannot be compiled judges nothing.
    ///
    /// # Errors
    /// [`ToolError::Validation`] with the first place that does not fit.
    pub fn validate(&self, input: &Value) -> Result<(), ToolError> {
        let invalid = |path: String, message: String| ToolError::Validation {
            tool: self.definition.name.to_string(),
            path,
            message,
            schema: None,
        };
        if !input.is_object() {
            return Err(invalid(String::new(), "the arguments must be an object".to_owned()));
        }
        let validator = self.validator.get_or_init(|| compile(&self.definition));
        match validator.as_ref().map(|v| v.validate(input)) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                Err(invalid(error.instance_path().to_string(), shortened(&error.to_string())))
            }
        }
    }

    /// Whether the arguments are judged at all; false for a schema no validator accepts.
    pub fn has_validator(&self) -> bool {
        self.validator.get_or_init(|| compile(&self.definition)).is_some()
    }

    /// Whether a structured result keeps what the tool's output schema promises.
    pub fn keeps_output_promise(&self, structured: Option<&Value>) -> bool {
        let Some(schema) = &self.definition.output_schema else { return true };
        let validator =
            self.output_validator.get_or_init(|| jsonschema::options().build(&schema.to_value().ok()?).ok());
        match (validator, structured) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(validator), Some(value)) => validator.is_valid(value),
        }
    }

    /// Remembers a broken promise; true the first time.
    pub fn withdraw_output_promise(&self) -> bool {
        !self.broke_output_promise.swap(true, Ordering::Relaxed)
    }

    /// Whether the output schema is no longer shown.
    pub fn output_promise_withdrawn(&self) -> bool {
        self.broke_output_promise.load(Ordering::Relaxed)
    }

    /// Runs the tool for a caller who holds `granted`: the only call of a handler in this program.
    ///
    /// # Errors
    /// [`ToolError::PermissionDenied`] before anything runs; otherwise what the handler answers.
    pub fn execute<'a>(
        &'a self,
        input: Input,
        granted: &Grants,
        turn: &'a Turn,
    ) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        let missing = granted.missing(&self.definition.metadata.permissions);
        if !missing.is_empty() {
            let tool = self.definition.name.to_string();
            let denial = Denial::MissingPermissions(missing);
            return Box::pin(std::future::ready(Err(ToolError::PermissionDenied { tool, denial })));
        }
        self.handler.call(input, turn)
    }
}

/// Longest message of a schema violation that a model is shown; a large argument is not echoed back whole.
const MESSAGE_LETTERS: usize = 400;

fn shortened(message: &str) -> String {
    match message.char_indices().nth(MESSAGE_LETTERS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

/// A `oneOf` at the root judges like `anyOf`: it is hidden from models, because clients refuse it there, and authors
/// write it where they mean "at least one". The upstream has the last word.
fn relaxed(mut schema: Value) -> Value {
    let Value::Object(root) = &mut schema else { return schema };
    if let Some(branches) = root.remove("oneOf") {
        let any = serde_json::json!({ "anyOf": branches });
        match root.get_mut("allOf") {
            Some(Value::Array(all)) => all.push(any),
            _ => drop(root.insert("allOf".to_owned(), Value::Array(vec![any]))),
        }
    }
    schema
}

fn compile(definition: &ToolDefinition) -> Option<Validator> {
    let schema = relaxed(definition.input_schema.to_value().ok()?);
    match jsonschema::options().build(&schema) {
        Ok(validator) => Some(validator),
        Err(error) => {
            let error = shortened(&error.to_string());
            tracing::warn!(tool = %definition.name, %error, "the input schema cannot be compiled: arguments pass unchecked");
            None
        }
    }
}

/// Tools by unique id, in order of registration.
#[derive(Debug, Default)]
pub struct ToolRegistry {
    tools: Vec<Arc<RegisteredTool>>,
    by_name: HashMap<Arc<str>, usize>,
}

impl ToolRegistry {
    /// Adds a tool.
    ///
    /// # Errors
    /// [`ToolError::Duplicate`] if the name is taken; the first tool stays.
    pub fn register(&mut self, tool: RegisteredTool) -> Result<(), ToolError> {
        let name = Arc::clone(&tool.definition.name);
        if self.by_name.contains_key(&name) {
            return Err(ToolError::Duplicate { kind: "Tool", name: name.to_string() });
        }
        self.by_name.insert(name, self.tools.len());
        self.tools.push(Arc::new(tool));
        Ok(())
    }

    /// Whether a tool of this name is registered. Never fails.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The tool of this name. Never fails.
    pub fn get(&self, name: &str) -> Option<&Arc<RegisteredTool>> {
        self.by_name.get(name).map(|&index| &self.tools[index])
    }

    /// Every tool, whatever it requires, in order of registration.
    pub fn list(&self) -> &[Arc<RegisteredTool>] {
        &self.tools
    }

    /// The tools that require this very permission.
    pub fn list_by_permission<'a>(
        &'a self,
        permission: &'a str,
    ) -> impl Iterator<Item = &'a Arc<RegisteredTool>> {
        self.tools.iter().filter(move |tool| requires(tool.definition(), permission))
    }

    /// Runs a tool for a caller who holds `granted`.
    ///
    /// # Errors
    /// [`ToolError::NotFound`], then [`ToolError::PermissionDenied`], then what the tool answers.
    pub async fn execute(
        &self,
        name: &str,
        input: Value,
        granted: &Grants,
        turn: &Turn,
    ) -> Result<ToolResult, ToolError> {
        let Some(tool) = self.get(name) else {
            return Err(ToolError::NotFound { tool: name.to_owned(), suggestions: Vec::new() });
        };
        tool.execute(Input::from(input), granted, turn).await
    }
}

/// Whether a tool requires this very permission.
pub fn requires(definition: &ToolDefinition, permission: &str) -> bool {
    definition.metadata.permissions.iter().any(|name| name == permission)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::tools::json::RawJson;
    use crate::tools::service::{Source, TextHandler, ToolMetadata, ToolOutput};
    use serde_json::json;

    fn tool(name: &str, permissions: &[&str]) -> (RegisteredTool, Arc<AtomicUsize>) {
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&runs);
        let metadata = ToolMetadata {
            permissions: permissions.iter().map(|p| (*p).to_owned()).collect(),
            ..ToolMetadata::default()
        };
        let schema = RawJson::from_value(&json!({"type": "object"}));
        let definition = ToolDefinition::new(name, "does it", schema, Source::Builtin, metadata);
        let handler = TextHandler(move |text: &str| {
            counter.fetch_add(1, Ordering::SeqCst);
            ToolResult::from_result(Ok(text.to_owned()))
        });
        (RegisteredTool::new(definition, Arc::new(handler)), runs)
    }

    fn registry() -> ToolRegistry {
        let mut registry = ToolRegistry::default();
        for (name, permissions) in [
            ("reader", &["fs:read"][..]),
            ("writer", &["fs:write"]),
            ("both", &["fs:read", "fs:write"]),
            ("free", &[]),
        ] {
            registry.register(tool(name, permissions).0).unwrap();
        }
        registry
    }

    fn names<'a>(tools: impl Iterator<Item = &'a Arc<RegisteredTool>>) -> Vec<String> {
        tools.map(|tool| tool.definition().name.to_string()).collect()
    }

    #[test]
    fn a10_a11_a12_a13_a18_registered_tools_are_found_in_order_and_unknown_ones_are_not_errors() {
        let registry = registry();
        assert!(registry.has("reader") && !registry.has("Reader") && !registry.has(""));
        assert!(registry.get("both").is_some() && registry.get("nope").is_none());
        assert_eq!(names(registry.list().iter()), ["reader", "writer", "both", "free"]);
        assert!(ToolRegistry::default().list().is_empty());
    }

    #[test]
    fn a2_a_tool_is_discovered_by_its_id() {
        assert_eq!(&*registry().get("writer").unwrap().definition().name, "writer");
    }

    #[test]
    fn a3_a14_permissions_are_found_as_exact_strings() {
        let registry = registry();
        let found = |p: &str| names(registry.list_by_permission(p));
        assert_eq!(found("fs:read"), ["reader", "both"]);
        assert_eq!(found("fs"), [""; 0]);
        assert_eq!(found("FS:READ"), [""; 0]);
        assert_eq!(found(""), [""; 0]);
    }

    #[test]
    fn a1_a16_s73_t2_a_second_registration_is_a_duplicate_and_the_first_stays() {
        let mut registry = registry();
        let first = Arc::as_ptr(registry.get("free").unwrap());
        let error = registry.register(tool("free", &["x"]).0).unwrap_err();
        assert_eq!(error, ToolError::Duplicate { kind: "Tool", name: "free".into() });
        assert_eq!(error.kind(), "duplicate");
        assert_eq!(Arc::as_ptr(registry.get("free").unwrap()), first);
        assert_eq!(registry.list().len(), 4);
    }

    #[tokio::test]
    async fn a15_execute_passes_the_input_and_returns_the_value() {
        let (tool, _) = tool("echo", &[]);
        let mut registry = ToolRegistry::default();
        registry.register(tool).unwrap();
        let result =
            registry.execute("echo", json!({"b": 1, "a": [2]}), &Grants::default(), &Turn::detached()).await;
        assert_eq!(result.unwrap(), ToolResult::Completed(ToolOutput::text(r#"{"b":1,"a":[2]}"#)));
    }

    #[tokio::test]
    async fn a17_not_found_wins_over_permissions() {
        let error = registry().execute("nope", json!({}), &Grants::default(), &Turn::detached()).await;
        assert_eq!(error.unwrap_err().kind(), "not_found");
    }

    #[tokio::test]
    async fn a19_a20_a21_a22_a23_a24_grants_are_flat_strings_and_gate_the_run() {
        type Row = (&'static [&'static str], &'static [&'static str], Option<&'static [&'static str]>);
        let rows: [Row; 8] = [
            (&["a", "b"], &["a"], Some(&["b"])),
            (&["a", "b"], &[], Some(&["a", "b"])),
            (&["b", "a"], &[], Some(&["b", "a"])),
            (&["a"], &["A"], Some(&["a"])),
            (&["a:x"], &["a:*"], Some(&["a:x"])),
            (&["a"], &["a", "a", "z"], None),
            (&[], &[], None),
            (&[], &["x"], None),
        ];
        for (declared, granted, missing) in rows {
            let (tool, runs) = tool("t", declared);
            let grants = Grants::new(granted.iter().copied());
            let turn = Turn::detached();
            let result = tool.execute(Input::from(json!({})), &grants, &turn).await;
            match missing {
                None => {
                    assert!(result.is_ok(), "{declared:?} with {granted:?}");
                    assert_eq!(runs.load(Ordering::SeqCst), 1);
                }
                Some(missing) => {
                    let expected =
                        Denial::MissingPermissions(missing.iter().map(|m| (*m).to_owned()).collect());
                    assert_eq!(
                        result.unwrap_err(),
                        ToolError::PermissionDenied { tool: "t".into(), denial: expected }
                    );
                    assert_eq!(runs.load(Ordering::SeqCst), 0, "the tool ran all the same");
                }
            }
        }
    }

    #[tokio::test]
    async fn t5_text_reaches_the_handler_only_if_it_is_json() {
        assert!(RawJson::parse("{broken").is_err());
        let (tool, runs) = tool("t", &[]);
        let input = Input::new(RawJson::parse(r#"{"n":12345678901234567890123}"#).unwrap()).unwrap();
        let turn = Turn::detached();
        let result = tool.execute(input, &Grants::default(), &turn).await.unwrap();
        assert_eq!(result, ToolResult::Completed(ToolOutput::text(r#"{"n":12345678901234567890123}"#)));
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_one_of_at_the_root_is_met_by_several_branches() {
        let schema = json!({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
        let schema = RawJson::from_value(&schema);
        let definition = ToolDefinition::new("t", "d", schema, Source::Builtin, ToolMetadata::default());
        let handler = TextHandler(|_: &str| ToolResult::from_result(Ok(String::new())));
        let tool = RegisteredTool::new(definition, Arc::new(handler));
        assert!(tool.validate(&json!({"a": 1, "b": 2})).is_ok());
        assert!(tool.validate(&json!({"b": 2})).is_ok());
        assert!(tool.validate(&json!({"c": 2})).is_err());
    }

    #[test]
    fn a7_a_schema_that_cannot_be_compiled_judges_nothing() {
        let schema = RawJson::from_value(
            &json!({"type": "object", "properties": {"a": {"$ref": "https://x.invalid/y"}}}),
        );
        let definition = ToolDefinition::new("t", "d", schema, Source::Builtin, ToolMetadata::default());
        let tool = RegisteredTool::new(
            definition,
            Arc::new(TextHandler(|_: &str| ToolResult::from_result(Ok(String::new())))),
        );
        assert!(!tool.has_validator());
        assert!(tool.validate(&json!({"a": 1})).is_ok());
        assert!(tool.validate(&json!([1])).is_err());
    }
}
