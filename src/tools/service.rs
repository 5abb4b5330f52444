//! What a tool is, and the interface through which everything above lists, describes and executes tools.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use super::approval::{ApprovalHandler, ApprovalRequest};
use super::claim_rule::ClaimRule;
use super::error::ToolError;
use super::json::{ObjectWriter, RawJson, RawObject};

/// Where a tool comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind", content = "name")]
pub enum Source {
    /// Part of this program.
    Builtin,
    /// `[commands.NAME]` of the configuration.
    Command,
    /// A tool of one upstream MCP server.
    Mcp(String),
    /// A tool brought by a plugin.
    Plugin(String),
    /// A folder with a `SKILL.md`.
    Skill,
    /// Another agent's process.
    Agent,
}

impl Source {
    /// The word for the kind of source; it is the suffix of a name that lost a conflict.
    pub fn kind(&self) -> &'static str {
        match self {
            Source::Builtin => "builtin",
            Source::Command => "command",
            Source::Mcp(_) => "mcp",
            Source::Plugin(_) => "plugin",
            Source::Skill => "skill",
            Source::Agent => "agent",
        }
    }

    /// The name before the `/` in policy patterns: the server's or plugin's own, else the kind.
    pub fn label(&self) -> &str {
        match self {
            Source::Mcp(name) | Source::Plugin(name) => name,
            Source::Builtin | Source::Command | Source::Skill | Source::Agent => self.kind(),
        }
    }

    /// Who keeps a name that two sources want: the smaller rank.
    pub fn rank(&self) -> u8 {
        match self {
            Source::Builtin => 0,
            Source::Command => 1,
            Source::Mcp(_) => 2,
            Source::Plugin(_) => 3,
            Source::Skill => 4,
            Source::Agent => 5,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// What is declared about a tool beside its schema. Everything absent means the cautious choice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolMetadata {
    /// Declared, and trusted, to change nothing.
    pub read_only: bool,
    /// Declared to destroy something: always asks.
    pub destructive: bool,
    /// Declared to be repeatable without further effect.
    pub idempotent: bool,
    /// Always asks, whatever the tier.
    pub confirm: bool,
    /// `Some(true)`: may run beside anything that is not exclusive.
    pub parallel_safe: Option<bool>,
    /// What a call touches, as far as the source itself says it.
    #[serde(skip)]
    pub claim: Option<ClaimRule>,
    /// The source shares nothing with others: its calls only have to keep out of each other's way.
    pub isolated: bool,
    /// Grants that a caller must hold, in order of declaration.
    pub permissions: Vec<String>,
    /// The tool's own time limit in milliseconds.
    pub timeout_ms: Option<u64>,
    /// `Some(true)`: kept out of the list until it is searched for. `Some(false)`: a general wish to defer does not
    /// mean it.
    pub defer: Option<bool>,
    /// Why the exposed form cannot be listed, if it cannot; the tool is then reached by `call_tool` or by name.
    pub unlistable: Option<String>,
}

impl ToolMetadata {
    /// Of a tool that only looks at what the gateway itself knows.
    pub fn looks_only() -> ToolMetadata {
        ToolMetadata {
            read_only: true,
            idempotent: true,
            parallel_safe: Some(true),
            ..ToolMetadata::default()
        }
    }
}

/// A tool as the catalog holds it. Its name is its identity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// The wire name.
    pub name: Arc<str>,
    /// The name in the source's own spelling.
    pub original: Arc<str>,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<Arc<str>>,
    /// What the model reads; never empty once it is in the catalog.
    pub description: Arc<str>,
    /// The schema that judges arguments, exactly as its author wrote it.
    pub input_schema: RawJson,
    /// The schema of structured results, if one is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<RawJson>,
    /// Where it comes from.
    pub source: Source,
    /// Hints and requirements.
    #[serde(default)]
    pub metadata: ToolMetadata,
    /// The object shown in `tools/list` while the tool is shown in full.
    pub wire: RawJson,
}

impl ToolDefinition {
    /// A definition whose wire form is made from its own fields.
    pub fn new(
        name: &str,
        description: &str,
        input_schema: RawJson,
        source: Source,
        metadata: ToolMetadata,
    ) -> ToolDefinition {
        let mut definition = ToolDefinition {
            name: name.into(),
            original: name.into(),
            title: None,
            description: description.into(),
            input_schema,
            output_schema: None,
            source,
            metadata,
            wire: RawJson::EMPTY_OBJECT,
        };
        definition.wire = definition.plain_wire();
        definition
    }

    /// Adds a name for people.
    pub fn with_title(mut self, title: &str) -> ToolDefinition {
        self.title = Some(title.into());
        self.wire = self.plain_wire();
        self
    }

    fn plain_wire(&self) -> RawJson {
        let mut wire = ObjectWriter::with_capacity(self.input_schema.len() + self.description.len() + 160);
        wire.string("name", &self.name);
        if let Some(title) = &self.title {
            wire.string("title", title);
        }
        wire.string("description", &self.description);
        wire.raw("inputSchema", self.input_schema.as_bytes());
        // Only what the protocol would not assume by itself: the list is paid for with every request.
        let hints = &self.metadata;
        let mut annotations = ObjectWriter::default();
        match hints.read_only {
            true => drop(annotations.raw("readOnlyHint", b"true")),
            false if hints.destructive || hints.confirm => {}
            false => drop(annotations.raw("destructiveHint", b"false")),
        }
        if hints.idempotent && !hints.read_only {
            annotations.raw("idempotentHint", b"true");
        }
        wire.raw("annotations", &annotations.finish());
        wire.json()
    }

    /// The same tool under another wire name; the rest of what clients see stays as it was.
    pub fn renamed(&self, name: &str) -> ToolDefinition {
        let mut renamed = self.clone();
        renamed.name = name.into();
        if let Ok(object) = RawObject::parse(self.wire.as_bytes()) {
            let mut wire = ObjectWriter::with_capacity(self.wire.len() + 32);
            for (key, value) in &object.members {
                match key.as_ref() {
                    "name" => wire.string("name", name),
                    key => wire.raw(key, value.get().as_bytes()),
                };
            }
            renamed.wire = wire.json();
        }
        renamed
    }
}

/// Arguments of one call: the text that is passed on, and the tree that is judged.
#[derive(Debug, Clone)]
pub struct Input {
    /// Exactly what the client sent.
    pub raw: RawJson,
    /// The same, decoded.
    pub value: Arc<Value>,
}

impl Input {
    /// Decodes arguments.
    ///
    /// # Errors
    /// Text that is nested too deeply to be judged.
    pub fn new(raw: RawJson) -> Result<Input, serde_json::Error> {
        let value = Arc::new(raw.to_value()?);
        Ok(Input { raw, value })
    }
}

impl From<Value> for Input {
    fn from(value: Value) -> Input {
        Input { raw: RawJson::from_value(&value), value: Arc::new(value) }
    }
}

/// What came back from a tool.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolOutput {
    /// A `tools/call` result object.
    Result(RawJson),
    /// A JSON-RPC error object that an upstream answered with; it reaches the client as it is.
    RpcError(RawJson),
}

impl ToolOutput {
    /// A result of one text block.
    pub fn text(text: &str) -> ToolOutput {
        ToolOutput::Result(RawJson::from_value(&serde_json::json!({
            "content": [{ "type": "text", "text": text }],
        })))
    }

    /// A result whose text and structure carry the same facts.
    pub fn structured(text: &str, structure: &Value) -> ToolOutput {
        ToolOutput::Result(RawJson::from_value(&serde_json::json!({
            "content": [{ "type": "text", "text": text }],
            "structuredContent": structure,
        })))
    }

    /// The text blocks joined by line breaks; for people and tests, not for the wire.
    pub fn plain_text(&self) -> String {
        let ToolOutput::Result(raw) = self else { return String::new() };
        let value = raw.to_value().unwrap_or_default();
        let blocks = value["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Whether the tool itself reported a failure.
    pub fn is_error(&self) -> bool {
        match self {
            ToolOutput::RpcError(_) => true,
            ToolOutput::Result(raw) => RawObject::parse(raw.as_bytes())
                .is_ok_and(|object| object.get("isError").is_some_and(|flag| flag.get() == "true")),
        }
    }
}

/// What a handler answers.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolResult {
    /// The tool ran.
    Completed(ToolOutput),
    /// The tool failed, with a message for the model.
    ToolError(String),
    /// Nothing has happened yet; a person is asked first.
    NeedsApproval(ApprovalRequest),
}

impl ToolResult {
    /// `Ok` is a completed call, `Err` the tool's own failure.
    pub fn from_result(result: Result<String, String>) -> ToolResult {
        match result {
            Ok(text) => ToolResult::Completed(ToolOutput::text(&text)),
            Err(message) => ToolResult::ToolError(message),
        }
    }
}

/// Who called, when, and how to reach the caller while the call runs.
#[derive(Clone)]
pub struct Turn {
    /// One per connection.
    pub session_id: Arc<str>,
    /// The request's id as JSON text, if the call came over the wire.
    pub request_id: Option<RawJson>,
    /// `name/version` of the client, as it calls itself.
    pub client: Arc<str>,
    /// The protocol revision of this very request.
    pub protocol_version: Arc<str>,
    /// Position in order of arrival on the wire.
    pub arrival: u64,
    /// `_meta` of the request, for those who pass it on.
    pub meta: Option<RawJson>,
    /// Where progress goes, if the client asked for it.
    pub progress: Option<Arc<dyn ProgressSink>>,
    /// Whether tools that a search found may join this client's list.
    pub promotes: bool,
    /// A person, or an exact rule, has said yes to this very call.
    pub is_approved: bool,
    /// Who asks a person.
    pub approvals: Arc<dyn ApprovalHandler>,
}

impl Turn {
    /// A call that came from no client: nobody to ask, nobody to tell.
    pub fn detached() -> Turn {
        Turn {
            session_id: "local".into(),
            request_id: None,
            client: "local".into(),
            protocol_version: "local".into(),
            arrival: 0,
            meta: None,
            progress: None,
            promotes: true,
            is_approved: false,
            approvals: Arc::new(super::approval::Nobody),
        }
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("session_id", &self.session_id)
            .field("request_id", &self.request_id)
            .field("arrival", &self.arrival)
            .finish_non_exhaustive()
    }
}

/// Receives progress of one running call.
pub trait ProgressSink: Send + Sync {
    /// Passes on the params of an upstream's `notifications/progress`; the token in them is the upstream's.
    fn forward(&self, params: &RawObject<'_>);
}

/// Runs a tool. Everything else about it is data in its [`ToolDefinition`].
pub trait ToolHandler: Send + Sync + 'static {
    /// Runs once. Dropping the future cancels the work.
    fn call<'a>(&'a self, input: Input, turn: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>>;

    /// Where a path among the arguments leads before any link; `None`: from where the gateway runs.
    fn locate(&self, path: &str) -> Option<PathBuf> {
        let _ = path;
        None
    }

    /// Ends once the tool's source is up, or has failed to come up; `None` if it is not on its way up.
    fn starting(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// How many questions of the tool's source to people are open: while there are any, no clock runs.
    fn open_questions(&self) -> Option<watch::Receiver<usize>> {
        None
    }

    /// The source's time limit, where neither the operator nor the tool sets one.
    fn default_limit(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Why the tool cannot run at the moment, if that is known without asking anybody.
    fn unhealthy(&self) -> Option<String> {
        None
    }
}

/// What consumers of tools see; the gateway's implementation is `ScopedToolService`.
pub trait ToolService: Send + Sync + 'static {
    /// Runs a tool by name, with every check on the way.
    fn execute<'a>(&'a self, name: &'a str, input: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>>;
    /// The tools that a model sees, in the order in which it sees them.
    fn list(&self) -> BoxFuture<'_, Vec<ToolDefinition>>;
    /// [`ToolService::list`] and the deferred tools that could run; names are repaired over these.
    fn dispatchable_list(&self) -> BoxFuture<'_, Vec<ToolDefinition>>;
    /// One tool, if it may be seen at all.
    fn describe<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<ToolDefinition>>;
    /// The cached array behind [`ToolService::list`]; the same pointer while nothing changed.
    fn metadata_schema(&self) -> Arc<[ToolDefinition]>;
}

/// A handler that takes the text of its arguments.
pub struct TextHandler<F>(pub F);

impl<F> ToolHandler for TextHandler<F>
where
    F: Fn(&str) -> ToolResult + Send + Sync + 'static,
{
    fn call<'a>(&'a self, input: Input, _: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move { Ok((self.0)(input.raw.as_str())) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn s25_a_definition_survives_serde_and_missing_metadata_is_cautious() {
        let definition = ToolDefinition::new(
            "x",
            "does x",
            RawJson::from_value(&json!({"type": "object"})),
            Source::Mcp("s".into()),
            ToolMetadata { permissions: vec!["p".into()], ..ToolMetadata::default() },
        );
        let text = serde_json::to_string(&definition).unwrap();
        assert_eq!(serde_json::from_str::<ToolDefinition>(&text).unwrap(), definition);
        let mut bare = serde_json::to_value(&definition).unwrap();
        bare.as_object_mut().unwrap().remove("metadata");
        let bare: ToolDefinition = serde_json::from_value(bare).unwrap();
        assert_eq!(bare.metadata, ToolMetadata::default());
        assert!(!bare.metadata.read_only && bare.metadata.parallel_safe.is_none());
    }

    #[test]
    fn t18_from_result_maps_both_ways() {
        assert_eq!(ToolResult::from_result(Ok("o".into())), ToolResult::Completed(ToolOutput::text("o")));
        assert_eq!(ToolResult::from_result(Err("e".into())), ToolResult::ToolError("e".into()));
    }

    #[test]
    fn s4_services_are_send_sync_static() {
        fn check<T: ToolService + ?Sized>() {
            fn needs<T: Send + Sync + 'static + ?Sized>() {}
            needs::<T>();
        }
        check::<dyn ToolService>();
    }

    #[test]
    fn renaming_changes_the_name_and_nothing_else() {
        let mut definition =
            ToolDefinition::new("a", "d", RawJson::EMPTY_OBJECT, Source::Builtin, ToolMetadata::default());
        definition.wire = RawJson::trusted(&br#"{"x":1.0,"name":"a","vendor":{"b":1,"a":2}}"#[..]);
        let renamed = definition.renamed("b");
        assert_eq!(renamed.wire.as_str(), r#"{"x":1.0,"name":"b","vendor":{"b":1,"a":2}}"#);
    }
}
