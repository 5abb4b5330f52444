//! Turns the tools that a server lists into catalog entries, one at a time, so that an odd one costs only itself.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::server::{Spec, Upstream, UpstreamTool};
use crate::catalog::names::{fold, upstream_names};
use crate::catalog::registry::RegisteredTool;
use crate::catalog::sanitize::{clean, clean_value, is_clean_raw};
use crate::schema::inspect::{is_safe, output_is_exposable};
use crate::schema::renames::KeyRenames;
use crate::schema::repair::repair;
use crate::tools::json::{ObjectWriter, RawJson, RawObject, write_string};
use crate::tools::service::{Source, ToolDefinition, ToolMetadata};

/// What a list gave, and what was wrong with it.
#[derive(Default)]
pub struct Translated {
    /// Ready for the catalog.
    pub tools: Vec<Arc<RegisteredTool>>,
    /// One sentence for each tool that was repaired, hidden or dropped.
    pub complaints: Vec<String>,
}

/// Translates raw tool objects. Names depend on the configuration and this very list alone.
pub fn translate(upstream: &Arc<Upstream>, raw_tools: &[RawJson]) -> Translated {
    let spec = &upstream.spec;
    let mut complaints = Vec::new();
    let mut seen = HashSet::new();
    let mut declares = false;
    let mut kept: Vec<(String, &RawJson, RawObject<'_>)> = Vec::with_capacity(raw_tools.len());
    for raw in raw_tools {
        let object = RawObject::parse(raw.as_bytes()).unwrap_or_default();
        let name = object.text("name");
        declares |= declares_behaviour(&object);
        match name {
            None => complaints.push("a tool without a name was dropped".to_owned()),
            Some(name) if name.trim().is_empty() => {
                complaints.push("a tool with an empty name was dropped".to_owned());
            }
            Some(name) if !seen.insert(name.clone()) => {
                complaints.push(format!("tool `{name}` is listed twice: the first one is kept"));
            }
            Some(name) if !spec.takes(&name) => {}
            Some(name) => kept.push((name, raw, object)),
        }
    }
    let servers: Vec<&str> = spec.all_servers.iter().map(String::as_str).collect();
    let originals: Vec<&str> = kept.iter().map(|(name, ..)| name.as_str()).collect();
    let names = upstream_names(&spec.name, &servers, &originals);
    // All wire forms share one buffer: ten thousand tools are one allocation, and what was read can be let go.
    let mut buffer = Vec::with_capacity(raw_tools.iter().map(RawJson::len).sum::<usize>() + kept.len() * 24);
    let mut drafts: Vec<Draft> = kept
        .iter()
        .zip(&names)
        .map(|((original, raw, object), name)| {
            draft(spec, original, name, raw, object, &mut buffer, &mut complaints)
        })
        .collect();
    // A server that says of none of its tools what it does is older than such hints. Its calls ran side by side
    // before there was a gateway, and still do; but never beside one that is known to change something.
    if !declares && spec.trust_hints && !spec.isolated {
        drafts.iter_mut().for_each(|draft| draft.metadata.parallel_safe = Some(true));
    }
    let buffer = Bytes::from(buffer);
    let tools = drafts.into_iter().map(|draft| Arc::new(draft.finish(upstream, &buffer))).collect();
    Translated { tools, complaints }
}

/// A tool whose wire form stands in the shared buffer.
struct Draft {
    name: Arc<str>,
    original: Arc<str>,
    title: Option<Arc<str>>,
    description: Arc<str>,
    wire: Range<usize>,
    /// Where the schemas stand in the shared buffer.
    input_schema: Option<Range<usize>>,
    output_schema: Option<Range<usize>>,
    /// The judging schema, if it is not the one that stands in the wire form.
    own_schema: Option<RawJson>,
    metadata: ToolMetadata,
    renames: KeyRenames,
}

impl Draft {
    fn finish(self, upstream: &Arc<Upstream>, buffer: &Bytes) -> RegisteredTool {
        let wire = RawJson::trusted(buffer.slice(self.wire));
        let part = |range: Option<Range<usize>>| range.map(|range| RawJson::trusted(buffer.slice(range)));
        let input_schema =
            self.own_schema.or_else(|| part(self.input_schema)).unwrap_or(RawJson::EMPTY_OBJECT);
        let definition = ToolDefinition {
            name: self.name,
            title: self.title,
            description: self.description,
            input_schema,
            output_schema: part(self.output_schema),
            source: Source::Mcp(upstream.spec.name.clone()),
            metadata: self.metadata,
            original: Arc::clone(&self.original),
            wire: wire.clone(),
        };
        let handler = UpstreamTool::new(Arc::clone(upstream), self.original);
        let tool = RegisteredTool::new(definition, Arc::new(handler));
        if self.renames.is_empty() { tool } else { tool.with_renames(self.renames) }
    }
}

fn draft(
    spec: &Spec,
    original: &str,
    name: &str,
    raw: &RawJson,
    as_listed: &RawObject<'_>,
    buffer: &mut Vec<u8>,
    complaints: &mut Vec<String>,
) -> Draft {
    // Keys of a schema are the repair's to rename, so it sees them before anything is cleaned.
    let as_sent = as_listed.get("inputSchema").map(|raw| raw.get());
    let mut schema = exposed_schema(original, as_sent, complaints);
    let mut raw = Cow::Borrowed(raw);
    if !is_clean_raw(raw.as_str())
        && let Ok(mut value) = raw.to_value()
        && clean_value(&mut value)
    {
        complaints.push(format!("tool `{original}`: invisible or control characters were removed"));
        raw = Cow::Owned(RawJson::from_value(&value));
    }
    let cleaned = match &raw {
        Cow::Borrowed(_) => None,
        Cow::Owned(raw) => Some(RawObject::parse(raw.as_bytes()).unwrap_or_default()),
    };
    let object = cleaned.as_ref().unwrap_or(as_listed);
    let annotations = object.get("annotations").and_then(|a| RawObject::parse(a.get().as_bytes()).ok());
    let mut metadata = hints(spec, annotations.as_ref());
    let title = object.text("title").filter(|title| !title.trim().is_empty());
    metadata.unlistable = schema.unlistable.take();
    if metadata.unlistable.is_none() && object.get("inputSchema").is_none() {
        complaints.push(format!("tool `{original}` has no input schema: any arguments are passed on"));
    }
    let described = object.text("description").filter(|text| !text.trim().is_empty());
    let mut description = described.clone().unwrap_or_else(|| {
        let label = title.as_deref().unwrap_or(original);
        clean(&format!("{label} (tool of {}, without a description)", spec.name)).into_owned()
    });
    if let Some(sentence) = &schema.sentence {
        description = format!("{}\n{sentence}", description.trim_end());
    }
    let is_renamed_oddly = {
        let plain =
            name.strip_prefix(spec.name.as_str()).and_then(|rest| rest.strip_prefix('_')) == Some(original);
        !plain && {
            let folded = fold(name);
            folded != fold(original) && folded != fold(&format!("{}_{original}", spec.name))
        }
    };
    let start = buffer.len();
    buffer.push(b'{');
    let mut member = |key: &str, value: &[u8]| {
        if buffer.len() > start + 1 {
            buffer.push(b',');
        }
        write_string(buffer, key);
        buffer.push(b':');
        let from = buffer.len();
        buffer.extend_from_slice(value);
        from..buffer.len()
    };
    let (mut input_schema, mut output_schema) = (None, None);
    let mut written = HashSet::new();
    for (key, value) in &object.members {
        // A repeated key counts as its last value, and is written once.
        if object.members.iter().filter(|(other, _)| other == key).count() > 1
            && !written.insert(key.as_ref())
        {
            continue;
        }
        let value = object.get(key).unwrap_or(value).get();
        match key.as_ref() {
            "name" => drop(member("name", quoted(name).as_bytes())),
            "description" => {
                let same = schema.sentence.is_none() && described.is_some();
                match same {
                    true => member("description", value.as_bytes()),
                    false => member("description", quoted(&description).as_bytes()),
                };
            }
            "title" if value == "null" => {}
            "inputSchema" => {
                let shown = schema.text.as_deref().unwrap_or(value);
                input_schema = Some(member("inputSchema", shown.as_bytes()));
            }
            "outputSchema" if !output_is_exposable(value) => {
                if value != "null" {
                    complaints.push(format!(
                        "tool `{original}`: its output schema is not shown, because clients would refuse it"
                    ));
                }
            }
            "_meta" if is_renamed_oddly => {}
            "outputSchema" => output_schema = Some(member("outputSchema", value.as_bytes())),
            key => drop(member(key, value.as_bytes())),
        }
    }
    if object.get("description").is_none() {
        member("description", quoted(&description).as_bytes());
    }
    if object.get("inputSchema").is_none() {
        let shown = schema.text.as_deref().unwrap_or(r#"{"type":"object"}"#);
        input_schema = Some(member("inputSchema", shown.as_bytes()));
    }
    let mut title = title;
    if is_renamed_oddly {
        let readable = clean(original).into_owned();
        if title.is_none() {
            member("title", quoted(&readable).as_bytes());
            title = Some(readable.clone());
        }
        let mut meta = ObjectWriter::default();
        if let Some(old) = object.get("_meta").and_then(|old| RawObject::parse(old.get().as_bytes()).ok()) {
            for (key, value) in old.members.iter().filter(|(key, _)| key != "toolcrib/original") {
                meta.raw(key, value.get().as_bytes());
            }
        }
        meta.string("toolcrib/original", &readable);
        member("_meta", &meta.finish());
    }
    buffer.push(b'}');
    let own_schema = (schema.text.is_some() || matches!(raw, Cow::Owned(_))).then(|| {
        let own = as_sent.filter(|own| *own != "null").unwrap_or("{}");
        RawJson::trusted(own.to_owned())
    });
    Draft {
        name: name.into(),
        original: original.into(),
        title: title.map(Into::into),
        description: description.into(),
        wire: start..buffer.len(),
        input_schema,
        output_schema,
        own_schema,
        metadata,
        renames: schema.renames,
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// What of an input schema is shown.
#[derive(Default)]
struct Exposed {
    /// Another text than the server's own; `None` if that one is safe as it is.
    text: Option<String>,
    sentence: Option<String>,
    renames: KeyRenames,
    unlistable: Option<String>,
}

fn exposed_schema(tool: &str, raw: Option<&str>, complaints: &mut Vec<String>) -> Exposed {
    let raw = raw.unwrap_or("null");
    if is_safe(raw) {
        return Exposed::default();
    }
    let value: Value = match serde_json::from_str(raw) {
        Ok(value) => value,
        Err(error) => {
            complaints
                .push(format!("tool `{tool}`: its schema cannot be read ({error}); it is not in the list"));
            return hidden(format!("its schema cannot be read: {error}"));
        }
    };
    match repair(&value) {
        Ok(repaired) => {
            if raw != "null" {
                complaints.push(format!("tool `{tool}`: its schema was repaired for strict clients"));
            }
            let mut shown = repaired.schema;
            clean_value(&mut shown);
            Exposed {
                text: Some(shown.to_string()),
                sentence: repaired.sentence,
                renames: repaired.renames,
                unlistable: None,
            }
        }
        Err(reason) => {
            complaints.push(format!("tool `{tool}` is not in the list: {reason}"));
            hidden(reason.to_string())
        }
    }
}

fn hidden(reason: String) -> Exposed {
    Exposed {
        text: Some(r#"{"type":"object","additionalProperties":true}"#.to_owned()),
        unlistable: Some(reason),
        ..Exposed::default()
    }
}

/// Whether a tool says anything about what it does.
fn declares_behaviour(tool: &RawObject<'_>) -> bool {
    let Some(annotations) = tool.get("annotations").and_then(|a| RawObject::parse(a.get().as_bytes()).ok())
    else {
        return false;
    };
    ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]
        .iter()
        .any(|hint| annotations.get(hint).is_some_and(|value| matches!(value.get(), "true" | "false")))
}

/// Annotations may always tighten; they loosen only where the operator trusts them.
fn hints(spec: &Spec, annotations: Option<&RawObject<'_>>) -> ToolMetadata {
    let says = |hint: &str| annotations.and_then(|a| a.get(hint)).is_some_and(|value| value.get() == "true");
    let destructive = says("destructiveHint");
    ToolMetadata {
        read_only: spec.trust_hints && says("readOnlyHint") && !destructive,
        destructive,
        idempotent: spec.trust_hints && says("idempotentHint"),
        isolated: spec.isolated,
        permissions: spec.permissions.clone(),
        defer: spec.defer,
        ..ToolMetadata::default()
    }
}
