//! The words that everything else is written in: definitions, results, and the registry that runs them.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use toolcrib::catalog::registry::{Grants, RegisteredTool, ToolRegistry};
use toolcrib::tools::approval::{ApprovalRequest, Fingerprint};
use toolcrib::tools::error::ToolError;
use toolcrib::tools::json::RawJson;
use toolcrib::tools::scoped::view::Settings;
use toolcrib::tools::service::{
    Input, Source, TextHandler, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult,
    ToolService, Turn,
};

use crate::service::{Echo, scope};
use crate::support::{BARE, G, M, text};

#[tokio::test]
async fn t1_shared_types_carry_a_list_of_calls_from_end_to_end() {
    let [one, two] = ["one", "two"].map(|name| Echo::new(name, Source::Builtin, ToolMetadata::default()));
    let (_, scope) = scope(&[&one, &two], Settings::default());
    let calls = [
        ("one", json!({ "n": 1 })),
        ("none", json!({})),
        ("two", json!({ "n": 2 })),
        ("one", json!({ "n": 3 })),
    ];
    let runs = calls.iter().map(|(name, input)| scope.execute(name, input.clone()));
    let outcomes = futures::future::join_all(runs).await;
    let words: Vec<String> = outcomes
        .iter()
        .map(|outcome| outcome.as_ref().map_or_else(|error| error.kind().to_owned(), ToolOutput::plain_text))
        .collect();
    assert_eq!(words, [r#"{"n":1}"#, "not_found", r#"{"n":2}"#, r#"{"n":3}"#]);
    assert_eq!((one.runs(), two.runs()), (2, 1));
}

#[test]
fn t7_t8_a_result_is_completed_or_a_failure_with_its_message() {
    let mut g = G::new(&format!(
        "{BARE}[commands.say]\nrun = [\"printf\", \"%s\", \"{{{{text}}}}\"]\nparams = {{ text = \"string\" }}\n\
         [commands.fail]\nrun = [\"sh\", \"-c\", \"echo out of paper >&2; exit 1\"]\n{M}"
    ));
    let said = g.done("say", json!({ "text": "a  b\nc $HOME" }));
    assert_eq!(text(&said), "a  b\nc $HOME");
    assert!(said.get("isError").is_none_or(|flag| flag == false));
    let failing = g.post_call("fail", json!({}));
    let boom = g.post_call("m_boom", json!({ "message": "the fuse was lit" }));
    let next = g.post_call("say", json!({ "text": "next" }));
    assert!(text(&g.reply(&failing)["result"]).contains("out of paper"));
    let boom = g.reply(&boom)["result"].clone();
    assert_eq!((text(&boom).as_str(), &boom["isError"]), ("the fuse was lit", &json!(true)));
    assert_eq!(text(&g.reply(&next)["result"]), "next", "the others go on");
}

#[tokio::test]
async fn t7_t8_results_of_handlers_become_output_and_execution_errors() {
    let tool = |name: &str, result: fn() -> ToolResult| {
        let definition =
            ToolDefinition::new(name, "d", RawJson::EMPTY_OBJECT, Source::Builtin, ToolMetadata::default());
        RegisteredTool::new(definition, Arc::new(TextHandler(move |_: &str| result())))
    };
    let mut registry = ToolRegistry::default();
    let completed = || ToolResult::from_result(Ok("done".to_owned()));
    let failed = || ToolResult::from_result(Err("out of paper".to_owned()));
    registry.register(tool("completed", completed)).unwrap();
    registry.register(tool("failed", failed)).unwrap();
    let (grants, turn) = (Grants::default(), Turn::detached());
    let run = |name: &'static str| registry.execute(name, json!({}), &grants, &turn);
    assert_eq!(run("completed").await.unwrap(), ToolResult::Completed(ToolOutput::text("done")));
    assert_eq!(run("failed").await.unwrap(), ToolResult::ToolError("out of paper".to_owned()));
}

/// A declared side effect that only a person may allow, counted.
struct Guarded(Echo);

impl ToolHandler for Guarded {
    fn call<'a>(&'a self, input: Input, _: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let definition = self.0.tool.definition();
            let fingerprint = Fingerprint::of(definition, &input.value);
            let request = ApprovalRequest::new("guarded", "it destroys", "guarded {}", true, fingerprint);
            Ok(ToolResult::NeedsApproval(request))
        })
    }
}

#[tokio::test]
async fn t9_a_tool_that_needs_approval_has_done_nothing_yet() {
    let guarded = Guarded(Echo::new("guarded", Source::Builtin, ToolMetadata::default()));
    let definition = guarded.0.tool.definition().clone();
    let mut registered = Echo::new("guarded", Source::Builtin, ToolMetadata::default());
    registered.tool = Arc::new(RegisteredTool::new(definition, Arc::new(guarded)));
    let (_, scope) = scope(&[&registered], Settings::default());
    let error = scope.execute("guarded", json!({})).await.expect_err("nobody can be asked");
    assert_eq!(error.kind(), "permission_denied");
    assert_eq!(error.facts()["reason"], "approval_unavailable");
    assert_eq!(registered.runs(), 0);
}

#[test]
fn t6_parallel_safety_is_a_field_of_the_definition() {
    let declared = |text: &str| {
        let config: toolcrib::commands::CommandConfig = toml::from_str(text).unwrap();
        toolcrib::commands::tool::tool("t", &config).definition().metadata.parallel_safe
    };
    assert_eq!(declared("run = ['true']\nparallel_safe = true"), Some(true));
    assert_eq!(declared("run = ['true']\nparallel_safe = false"), Some(false));
    assert_eq!(declared("run = ['true']"), None);
}

#[tokio::test]
async fn t39_a_registry_discovers_and_dispatches() {
    let mut registry = ToolRegistry::default();
    let entry = |name: &str, permissions: &[&str]| {
        let permissions = permissions.iter().map(|name| (*name).to_owned()).collect();
        let metadata = ToolMetadata { permissions, ..ToolMetadata::default() };
        let definition = ToolDefinition::new(name, "d", RawJson::EMPTY_OBJECT, Source::Builtin, metadata);
        let handler = TextHandler(|text: &str| ToolResult::from_result(Ok(text.to_owned())));
        RegisteredTool::new(definition, Arc::new(handler))
    };
    for (name, permissions) in [("z", &["p"][..]), ("a", &[]), ("m", &["q", "p"])] {
        registry.register(entry(name, permissions)).unwrap();
    }
    let names = |tools: &mut dyn Iterator<Item = &Arc<RegisteredTool>>| -> Vec<String> {
        tools.map(|tool| tool.definition().name.to_string()).collect()
    };
    assert!(registry.has("a") && !registry.has("b") && registry.get("b").is_none());
    assert_eq!(names(&mut registry.list().iter()), ["z", "a", "m"]);
    assert_eq!(names(&mut registry.list_by_permission("p")), ["z", "m"]);
    let turn = Turn::detached();
    let run = async |name: &str, grants: &[&str]| {
        let grants = Grants::new(grants.iter().copied());
        registry.execute(name, json!({ "k": 1 }), &grants, &turn).await.map_err(|error| error.kind())
    };
    let said = Ok(ToolResult::Completed(ToolOutput::text(r#"{"k":1}"#)));
    assert_eq!(run("a", &[]).await, said);
    assert_eq!(run("m", &["p", "q"]).await, said);
    assert_eq!(run("m", &["p"]).await, Err("permission_denied"));
    assert_eq!(run("b", &[]).await, Err("not_found"));
    assert_eq!(registry.register(entry("a", &[])).map_err(|error| error.kind()), Err("duplicate"));
}

/// Id, name and description are needed; title, permissions and schemas are not.
#[test]
fn a5_a_definition_needs_no_more_than_name_and_description() {
    let bare =
        ToolDefinition::new("t", "Does it.", RawJson::EMPTY_OBJECT, Source::Builtin, ToolMetadata::default());
    assert_eq!((bare.title.as_deref(), &bare.output_schema), (None, &None));
    assert!(bare.metadata.permissions.is_empty());
    let wire: Value = bare.wire.to_value().unwrap();
    assert_eq!((&wire["name"], &wire["description"]), (&json!("t"), &json!("Does it.")));
    assert!(wire.get("title").is_none());
    let titled = bare.with_title("Do it");
    assert_eq!(titled.wire.to_value().unwrap()["title"], "Do it");
}
