//! `tool_search`: finds tools that are not shown in full, returns their schemas, and promotes them into the list.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::bm25::{Document, Index};
use super::error::ToolError;
use super::json::{ObjectWriter, RawJson};
use super::scoped::service::ScopedToolService;
use super::scoped::view::{Settings, View};
use super::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, Turn,
};
use crate::catalog::names::fold;
use crate::catalog::registry::RegisteredTool;

/// Hits of one search when the caller sets no number.
const DEFAULT_LIMIT: usize = 5;
/// Most hits of one search.
const MOST_HITS: usize = 20;
/// Bytes of a reply, text and structure together: one client cuts a result's JSON at 8,000 characters.
const REPLY_BYTES: usize = 6_000;

/// Its name on the wire.
pub const NAME: &str = "tool_search";

struct Search {
    scope: Weak<ScopedToolService>,
    index: Mutex<Option<Arc<SearchIndex>>>,
}

/// The corpus of one view: everything callable that was not shown in full from the start.
struct SearchIndex {
    version: u64,
    settings: Weak<Settings>,
    positions: Vec<usize>,
    bm25: Index,
    /// Folded wire names and folded names in the source's own spelling.
    exact: HashMap<String, Vec<usize>>,
}

impl SearchIndex {
    fn build(view: &View) -> SearchIndex {
        let mut positions = Vec::new();
        let mut exact: HashMap<String, Vec<usize>> = HashMap::new();
        let parameters: Vec<Vec<String>> =
            view.searchable().map(|(_, tool)| parameter_names(&tool.definition().input_schema)).collect();
        let mut documents = Vec::new();
        for (position, tool) in view.searchable() {
            let definition = tool.definition();
            let doc = positions.len();
            positions.push(position);
            let (name, own) = (fold(&definition.name), fold(&definition.original));
            if own != name {
                exact.entry(own).or_default().push(doc);
            }
            exact.entry(name).or_default().insert(0, doc);
            documents.push(Document {
                name: &definition.name,
                title: definition.title.as_deref().unwrap_or_default(),
                description: &definition.description,
                parameter_names: parameters[doc].iter().map(String::as_str).collect(),
            });
        }
        let bm25 = Index::build(documents.into_iter());
        SearchIndex {
            version: view.snapshot.version,
            settings: Arc::downgrade(&view.settings),
            positions,
            bm25,
            exact,
        }
    }

    /// Positions in the snapshot, best first; an exact name always leads.
    fn search(&self, query: &str, limit: usize) -> Vec<usize> {
        let mut docs: Vec<usize> = Vec::new();
        let folded = fold(query);
        let folded_path = fold(&query.replace("__", "_"));
        for name in [&folded, &folded_path] {
            for &doc in self.exact.get(name).into_iter().flatten() {
                if !docs.contains(&doc) {
                    docs.push(doc);
                }
            }
        }
        for hit in self.bm25.search(query, limit + docs.len()) {
            if !docs.contains(&hit.doc) {
                docs.push(hit.doc);
            }
        }
        docs.truncate(limit);
        docs.into_iter().map(|doc| self.positions[doc]).collect()
    }
}

fn parameter_names(schema: &RawJson) -> Vec<String> {
    use super::json::RawObject;
    let Ok(schema) = RawObject::parse(schema.as_bytes()) else { return Vec::new() };
    let Some(properties) = schema.get("properties") else { return Vec::new() };
    let properties = RawObject::parse(properties.get().as_bytes()).unwrap_or_default();
    properties.members.iter().map(|(key, _)| key.to_string()).collect()
}

/// The tool over a scope.
pub fn tool(scope: &Weak<ScopedToolService>) -> Arc<RegisteredTool> {
    let definition = ToolDefinition::new(
        "tool_search",
        "Most tools here are not in your list: search before you say that something cannot be done. \
         One capability at a time in a few words, with the product's name when there is one \
         (\"github create issue\", \"read pdf\"), or an exact tool name. What is found comes with full parameters and is \
         callable at once.",
        RawJson::from_value(&json!({
            "type": "object",
            "properties": {
                "query": { "type": "string", "description": "A few words for one capability, or a tool's name." },
                "queries": {
                    "type": "array", "items": { "type": "string" }, "maxItems": 5,
                    "description": "Several needs, each a query."
                },
                "limit": {
                    "type": "integer", "minimum": 1, "maximum": MOST_HITS,
                    "description": "Hits of each query; 5 if absent."
                }
            },
            "additionalProperties": false,
        })),
        Source::Builtin,
        ToolMetadata::looks_only(),
    );
    let search = Search { scope: scope.clone(), index: Mutex::new(None) };
    Arc::new(RegisteredTool::new(definition, Arc::new(search)))
}

/// `call_tool`: its name and arguments are unwrapped before any check, so this handler is never reached.
pub fn call_tool() -> Arc<RegisteredTool> {
    struct Unwrapped;
    impl ToolHandler for Unwrapped {
        fn call<'a>(&'a self, _: Input, _: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
            let cause = "`call_tool` cannot call itself".to_owned();
            Box::pin(std::future::ready(Ok(ToolResult::ToolError(cause))))
        }
    }
    let definition = ToolDefinition::new(
        "call_tool",
        "Calls a tool that `tool_search` found and that is not among your own tools.",
        RawJson::from_value(&json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "minLength": 1, "description": "As tool_search gave it." },
                "arguments": { "type": ["object", "null"], "description": "They must fit its parameters." }
            },
            "required": ["name"],
            "additionalProperties": false,
        })),
        Source::Builtin,
        ToolMetadata::default(),
    );
    Arc::new(RegisteredTool::new(definition, Arc::new(Unwrapped)))
}

impl Search {
    fn index(&self, view: &View) -> Arc<SearchIndex> {
        let mut cached = self.index.lock().expect("no code panics while it holds the index");
        match &*cached {
            Some(index)
                if index.version == view.snapshot.version
                    && std::ptr::eq(index.settings.as_ptr(), Arc::as_ptr(&view.settings)) =>
            {
                Arc::clone(index)
            }
            _ => {
                let index = Arc::new(SearchIndex::build(view));
                *cached = Some(Arc::clone(&index));
                index
            }
        }
    }
}

impl ToolHandler for Search {
    fn call<'a>(&'a self, input: Input, turn: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let Some(scope) = self.scope.upgrade() else {
                return Err(ToolError::Cancelled { tool: "tool_search".to_owned() });
            };
            let queries = queries(&input.value);
            if queries.is_empty() {
                return Err(ToolError::Validation {
                    tool: "tool_search".to_owned(),
                    path: "/query".to_owned(),
                    message: "say in a few words what the tool should do".to_owned(),
                    schema: None,
                });
            }
            let limit = input.value["limit"].as_u64().map_or(DEFAULT_LIMIT, |n| n as usize);
            let limit = limit.clamp(1, MOST_HITS);
            let view = scope.view();
            let index = self.index(&view);
            let mut positions: Vec<usize> = Vec::new();
            for query in &queries {
                for position in index.search(query, limit) {
                    if !positions.contains(&position) {
                        positions.push(position);
                    }
                }
            }
            let (output, shown) = reply(&view, &positions, &queries);
            if turn.promotes {
                let names = shown.iter().map(|&i| Arc::clone(&view.snapshot.tools()[i].definition().name));
                scope.promote(&names.collect::<Vec<_>>());
            }
            Ok(ToolResult::Completed(output))
        })
    }
}

fn queries(input: &Value) -> Vec<String> {
    let several = input["queries"].as_array().map(Vec::as_slice).unwrap_or_default();
    let all = std::iter::once(&input["query"]).chain(several).filter_map(Value::as_str);
    all.map(|query| query.trim().to_owned()).filter(|query| !query.is_empty()).collect()
}

/// The reply and the positions of the hits that fit into it: whole hits are dropped, schemas never cut.
fn reply(view: &View, positions: &[usize], queries: &[String]) -> (ToolOutput, Vec<usize>) {
    let mut hits: Vec<Vec<u8>> = Vec::new();
    let mut bytes = 0;
    for &position in positions {
        let definition = view.snapshot.tools()[position].definition();
        let mut hit = ObjectWriter::with_capacity(definition.input_schema.len() + 256);
        hit.string("name", &definition.name);
        hit.string("description", &definition.description);
        hit.raw("parameters", definition.input_schema.as_bytes());
        let hit = hit.finish();
        // Once as text and once as structure; escaping makes the text a little longer.
        if !hits.is_empty() && bytes + 2 * hit.len() + hit.len() / 8 > REPLY_BYTES - 700 {
            break;
        }
        bytes += 2 * hit.len() + hit.len() / 8;
        hits.push(hit);
    }
    let how = match hits.is_empty() {
        true => format!(
            "Nothing matches {}. Try other words, one capability at a time.",
            queries.iter().map(|q| format!("`{q}`")).collect::<Vec<_>>().join(", ")
        ),
        false => "Call a tool by its name if it is among your tools, else call_tool {\"name\": NAME, \"arguments\": {…}}."
            .to_owned(),
    };
    let mut facts = ObjectWriter::with_capacity(bytes / 2 + 400);
    facts.value("found", &hits.len());
    facts.string("how_to_call", &how);
    facts.raw("hits", &[b"[".as_slice(), &hits.join(&b","[..]), b"]"].concat());
    if hits.len() < positions.len() {
        facts.value("more_hits_left_out", &(positions.len() - hits.len()));
    }
    let withheld = view.withheld_counts();
    if !withheld.is_empty() {
        let sorted: std::collections::BTreeMap<_, _> = withheld.into_iter().collect();
        facts.value("tools_not_searched", &sorted);
    }
    let facts = facts.finish();
    let text = String::from_utf8_lossy(&facts);
    let mut result = ObjectWriter::with_capacity(facts.len() * 2 + 128);
    result.value("content", &json!([{ "type": "text", "text": text }]));
    result.raw("structuredContent", &facts);
    (ToolOutput::Result(result.json()), positions[..hits.len()].to_vec())
}
