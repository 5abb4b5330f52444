//! The tool service in process: scripted tools, one scope, no wire.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use toolcrib::catalog::health::HealthProbe;
use toolcrib::catalog::registry::{Grants, RegisteredTool};
use toolcrib::catalog::snapshot::Catalog;
use toolcrib::executor::calls::{DEFAULT_PARALLEL_LIMIT, Executor, Shared};
use toolcrib::executor::schedule::{DEFAULT_PARALLEL_CALLS, Schedule};
use toolcrib::gateway::Gateway;
use toolcrib::tools::error::ToolError;
use toolcrib::tools::json::RawJson;
use toolcrib::tools::results::Budget;
use toolcrib::tools::scoped::disclosure::{Disclosure, ModeConfig};
use toolcrib::tools::scoped::policy::{Action, Pattern, Policy, patterns};
use toolcrib::tools::scoped::rewriters::{DefinitionRewriter, ProgressiveDisclosureRewriter};
use toolcrib::tools::scoped::service::ScopedToolService;
use toolcrib::tools::scoped::view::Settings;
use toolcrib::tools::service::{
    Source, TextHandler, ToolDefinition, ToolMetadata, ToolOutput, ToolResult, ToolService,
};
use toolcrib::upstream::owners::Owners;

/// A tool that gives its arguments back and counts its runs.
pub struct Echo {
    pub tool: Arc<RegisteredTool>,
    runs: Arc<AtomicUsize>,
}

impl Echo {
    pub fn new(name: &str, source: Source, metadata: ToolMetadata) -> Echo {
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&runs);
        let handler = TextHandler(move |text: &str| {
            counter.fetch_add(1, Ordering::SeqCst);
            ToolResult::from_result(Ok(text.to_owned()))
        });
        let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
        let description = format!("Echoes for {name}.");
        let definition =
            ToolDefinition::new(name, &description, RawJson::from_value(&schema), source, metadata);
        Echo { tool: Arc::new(RegisteredTool::new(definition, Arc::new(handler))), runs }
    }

    pub fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// A server's tools in the order of their names.
pub fn upstream() -> Source {
    Source::Mcp("up".to_owned())
}

/// A scope over tools, with the gateway's own meta tools.
pub fn scope(tools: &[&Echo], settings: Settings) -> (Arc<Catalog>, Arc<ScopedToolService>) {
    let catalog = Arc::new(Catalog::default());
    for source in [Source::Builtin, Source::Command, upstream()] {
        let own = tools.iter().filter(|echo| echo.tool.definition().source == source);
        catalog.publish(source.clone(), own.map(|echo| Arc::clone(&echo.tool)).collect());
    }
    let (scope, _) = connect(&catalog, settings);
    (catalog, scope)
}

/// A connection to a catalog, without servers, hooks or limits that a test would meet.
pub fn connect(catalog: &Arc<Catalog>, settings: Settings) -> (Arc<ScopedToolService>, Arc<Executor>) {
    let shared = Shared {
        schedule: Schedule::new(DEFAULT_PARALLEL_CALLS),
        hooks: Vec::new(),
        parallel_limit: DEFAULT_PARALLEL_LIMIT,
        owners: Owners::new(Vec::new()),
    };
    let budget = Budget { max_chars: usize::MAX, keep_bytes: 0 };
    Executor::connect(Arc::clone(catalog), Arc::new(settings), Arc::new(shared), budget)
}

/// Deny rules, and an allowlist where there is one.
pub fn policy(allow: Option<&[&str]>, denied: &[&str]) -> Policy {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    Policy {
        allow: allow.map(|names| patterns(&owned(names)).expect("good patterns")),
        rules: denied
            .iter()
            .map(|text| (Pattern::parse(text).expect("a good pattern"), Action::Deny))
            .collect(),
        ..Policy::default()
    }
}

fn disclosure(core: &[&str], defer_mcp: bool) -> Disclosure {
    let core: Vec<String> = core.iter().map(|name| (*name).to_owned()).collect();
    Disclosure::new(Some(&core), 0, defer_mcp, &ModeConfig::default()).expect("good patterns")
}

fn names(tools: &[ToolDefinition]) -> Vec<&str> {
    tools.iter().map(|tool| &*tool.name).collect()
}

/// One tool and nothing behind it: what code above needs is the interface alone.
struct Stub;

impl Stub {
    fn definition() -> ToolDefinition {
        ToolDefinition::new(
            "one",
            "The only one.",
            RawJson::EMPTY_OBJECT,
            Source::Builtin,
            ToolMetadata::default(),
        )
    }
}

impl ToolService for Stub {
    fn execute<'a>(&'a self, name: &'a str, input: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            match name {
                "one" => Ok(ToolOutput::text(&input.to_string())),
                other => Err(ToolError::NotFound { tool: other.to_owned(), suggestions: Vec::new() }),
            }
        })
    }

    fn list(&self) -> BoxFuture<'_, Vec<ToolDefinition>> {
        Box::pin(async { vec![Stub::definition()] })
    }

    fn dispatchable_list(&self) -> BoxFuture<'_, Vec<ToolDefinition>> {
        self.list()
    }

    fn describe<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<ToolDefinition>> {
        Box::pin(async move { (name == "one").then(Stub::definition) })
    }

    fn metadata_schema(&self) -> Arc<[ToolDefinition]> {
        Arc::from([Stub::definition()])
    }
}

/// A consumer that knows nothing but the interface.
async fn consume(service: &dyn ToolService) -> (Vec<String>, String, &'static str) {
    let list = service.list().await;
    let said = service.execute("one", json!({ "n": 1 })).await.expect("it runs").plain_text();
    let unknown = service.execute("two", json!({})).await.expect_err("there is no other");
    assert_eq!(list, service.metadata_schema().to_vec());
    assert_eq!(service.describe("one").await.map(|tool| tool.name), Some("one".into()));
    assert!(service.describe("two").await.is_none());
    (names(&list).into_iter().map(str::to_owned).collect(), said, unknown.kind())
}

#[tokio::test]
async fn s1_consumers_need_the_interface_only() {
    let one = Echo::new("one", Source::Builtin, ToolMetadata::default());
    let (_, scope) = scope(&[&one], Settings::default());
    let expected = (vec!["one".to_owned()], r#"{"n":1}"#.to_owned(), "not_found");
    assert_eq!(consume(&Stub).await, expected);
    assert_eq!(consume(&*scope).await, expected);
    // Generic consumers and shared ones, as the front end is.
    async fn generic<S: ToolService>(service: Arc<S>) -> (Vec<String>, String, &'static str) {
        consume(&*service).await
    }
    assert_eq!(generic(Arc::new(Stub)).await, expected);
    assert_eq!(generic(scope).await, expected);
}

#[tokio::test]
async fn s5_execution_yields_output_or_an_error() {
    let one = Echo::new("one", Source::Builtin, ToolMetadata::default());
    let (_, scope) = scope(&[&one], Settings::default());
    let output = scope.execute("one", json!({ "n": 12 })).await.expect("it runs");
    assert_eq!((output.plain_text().as_str(), output.is_error()), (r#"{"n":12}"#, false));
    let error = scope.execute("unknown", json!({})).await.expect_err("there is none");
    assert_eq!(error, ToolError::NotFound { tool: "unknown".to_owned(), suggestions: Vec::new() });
    let error = scope.execute("one", json!({ "n": "x" })).await.expect_err("it does not fit");
    assert_eq!((error.kind(), one.runs()), ("validation", 1));
}

#[tokio::test]
async fn s7_what_can_be_dispatched_is_the_list_and_what_is_deferred() {
    let shown = Echo::new("a_shown", Source::Builtin, ToolMetadata::default());
    let deferred = Echo::new("up_d", upstream(), ToolMetadata::default());
    let denied = Echo::new("up_x", upstream(), ToolMetadata::default());
    let settings = Settings {
        policy: policy(None, &["up_x"]),
        disclosure: disclosure(&[], true),
        ..Settings::default()
    };
    let (_, scope) = scope(&[&shown, &deferred, &denied], settings);
    let list = scope.list().await;
    assert_eq!(names(&list), ["a_shown", "call_tool", "call_tools", "tool_search"]);
    let all = scope.dispatchable_list().await;
    assert_eq!(names(&all), ["a_shown", "call_tool", "call_tools", "tool_search", "up_d"]);
    assert_eq!(scope.execute("UP.d", json!({})).await.expect("it is meant").plain_text(), "{}");
    assert_eq!((deferred.runs(), denied.runs()), (1, 0));
}

#[tokio::test]
async fn s8_describe_gives_one_definition_or_nothing() {
    let tools =
        ["known", "denied", "outside"].map(|name| Echo::new(name, Source::Builtin, ToolMetadata::default()));
    let deferred = Echo::new("up_d", upstream(), ToolMetadata::default());
    let settings = Settings {
        policy: policy(Some(&["known", "denied", "up_d"]), &["denied"]),
        disclosure: disclosure(&[], true),
        ..Settings::default()
    };
    let (_, scope) = scope(&[&tools[0], &tools[1], &tools[2], &deferred], settings);
    for (name, expected) in [
        ("known", true),
        ("up_d", true),
        ("tool_search", true),
        ("denied", false),
        ("outside", false),
        ("no", false),
    ] {
        let described = scope.describe(name).await;
        assert_eq!(described.as_ref().map(|tool| &*tool.name), expected.then_some(name));
    }
    let described = scope.describe("known").await.expect("it is known");
    assert_eq!(described, *tools[0].tool.definition());
}

#[tokio::test]
async fn s9_the_array_is_rebuilt_only_when_something_changed() {
    let own = Echo::new("own", Source::Builtin, ToolMetadata::default());
    let deferred = Echo::new("up_d", upstream(), ToolMetadata::default());
    let settings = Settings { disclosure: disclosure(&[], true), ..Settings::default() };
    let (catalog, scope) = scope(&[&own, &deferred], settings);
    let first = scope.metadata_schema();
    scope.execute("own", json!({})).await.expect("it runs");
    assert!(Arc::ptr_eq(&first, &scope.metadata_schema()), "rebuilt without a reason");
    scope.execute("tool_search", json!({ "query": "up_d" })).await.expect("it finds");
    let promoted = scope.metadata_schema();
    assert_eq!(names(&promoted), ["call_tool", "call_tools", "own", "tool_search", "up_d"]);
    scope.execute("tool_search", json!({ "query": "up_d" })).await.expect("it finds");
    assert!(Arc::ptr_eq(&promoted, &scope.metadata_schema()), "a second promotion changes nothing");
    catalog.report_health(&upstream(), Some("gone".to_owned()));
    let without = scope.metadata_schema();
    assert!(!names(&without).contains(&"up_d"), "{:?}", names(&without));
    catalog.report_health(&upstream(), None);
    assert_eq!(scope.metadata_schema(), promoted);
    assert_eq!(&*first, &*scope_without_promotion(&own, &deferred).metadata_schema());
}

fn scope_without_promotion(own: &Echo, deferred: &Echo) -> Arc<ScopedToolService> {
    let settings = Settings { disclosure: disclosure(&[], true), ..Settings::default() };
    scope(&[own, deferred], settings).1
}

/// Health as a probe says it, not only as a source reports it.
#[tokio::test]
async fn s3_s14_a_failing_probe_takes_the_tools_of_its_source_away() {
    struct Down;
    impl HealthProbe for Down {
        fn check(&self) -> BoxFuture<'_, Result<(), String>> {
            Box::pin(async { Err("down for a while".to_owned()) })
        }
    }
    let up = Echo::new("up_a", upstream(), ToolMetadata::default());
    let own = Echo::new("own", Source::Builtin, ToolMetadata::default());
    let (catalog, scope) = scope(&[&up, &own], Settings::default());
    assert_eq!(names(&scope.list().await), ["own", "up_a"], "no probe counts as healthy");
    catalog.health().register(upstream(), Arc::new(Down));
    assert_eq!(catalog.health().check(&upstream()).await, Err("down for a while".to_owned()));
    catalog.touch();
    assert_eq!(catalog.snapshot().unhealthy(&upstream()), Some("down for a while"));
    assert_eq!(names(&scope.list().await), ["own"]);
}

/// Says in the description that it was there, and with which names it was asked.
struct Mark(Mutex<Vec<String>>);

impl DefinitionRewriter for Mark {
    fn rewrite(&self, mut tool: ToolDefinition) -> ToolDefinition {
        self.0.lock().expect("no panic holds it").push(tool.name.to_string());
        let description = format!("{} Marked.", tool.description);
        let mut wire = tool.wire.to_value().expect("it is JSON");
        wire["description"] = json!(description);
        tool.wire = RawJson::from_value(&wire);
        tool.description = description.into();
        tool
    }
}

#[tokio::test]
async fn s21_rewriters_are_seen_everywhere_and_never_by_the_handler() {
    let one = Echo::new("one", Source::Builtin, ToolMetadata::default());
    let mark = Arc::new(Mark(Mutex::default()));
    let settings = Settings { rewriters: vec![mark.clone()], ..Settings::default() };
    let (_, scope) = scope(&[&one], settings);
    let marked = "Echoes for one. Marked.";
    assert_eq!(&*scope.list().await[0].description, marked);
    assert_eq!(&*scope.describe("one").await.expect("it is there").description, marked);
    assert_eq!(&*scope.metadata_schema()[0].description, marked);
    let wire: Value = serde_json::from_slice(&scope.wire()).expect("it is JSON");
    assert_eq!(wire[0]["description"], marked);
    assert_eq!(scope.execute("one", json!({})).await.expect("it runs").plain_text(), "{}");
    assert_eq!(&*one.tool.definition().description, "Echoes for one.");
}

#[test]
fn s26_the_collapsed_form_depends_on_the_definition_alone() {
    let one = Echo::new("one", Source::Builtin, ToolMetadata::default());
    let two = Echo::new("one", Source::Builtin, ToolMetadata::default());
    let collapse = |echo: &Echo| ProgressiveDisclosureRewriter.rewrite(echo.tool.definition().clone());
    let first = collapse(&one);
    for _ in 0..20 {
        assert_eq!(collapse(&two), first);
    }
    assert_eq!(first.name, one.tool.definition().name);
}

#[tokio::test]
async fn a24_what_requires_nothing_runs_and_policy_may_still_stop_it() {
    let free = Echo::new("free", Source::Builtin, ToolMetadata::default());
    for grants in [Grants::default(), Grants::new(["x"])] {
        let (_, scope) = scope(&[&free], Settings { grants, ..Settings::default() });
        scope.execute("free", json!({})).await.expect("it runs");
    }
    let (_, scope) = scope(&[&free], Settings { policy: policy(None, &["free"]), ..Settings::default() });
    let error = scope.execute("free", json!({})).await.expect_err("it is denied");
    assert_eq!((error.kind(), free.runs()), ("permission_denied", 2));
}

#[test]
fn s4_every_implementor_can_be_shared_between_threads_for_ever() {
    fn shared<T: ToolService + Send + Sync + 'static>() {}
    shared::<ScopedToolService>();
    shared::<Stub>();
    fn sent<T: Send + Sync + 'static>() {}
    sent::<Gateway>();
    sent::<Arc<dyn ToolService>>();
}

/// One call of several, judged without running anything; the rows that speak of `validate_tool_calls`.
fn judged(scope: &ScopedToolService, calls: &[(&str, Value)]) -> Vec<Result<String, (String, &'static str)>> {
    let judge = |(name, arguments): &(&str, Value)| {
        let prepared = scope.prepare(name, RawJson::from_value(arguments));
        prepared
            .map(|prepared| prepared.tool().definition().name.to_string())
            .map_err(|error| (error.to_string(), error.kind()))
    };
    calls.iter().map(judge).collect()
}

#[test]
fn t21_a_call_is_judged_against_the_tools_that_are_available() {
    let [known, denied, outside, guarded] = ["known", "denied", "outside", "guarded"].map(|name| {
        let permissions = if name == "guarded" { vec!["p".to_owned()] } else { Vec::new() };
        Echo::new(name, Source::Builtin, ToolMetadata { permissions, ..ToolMetadata::default() })
    });
    let settings = Settings {
        policy: policy(Some(&["known", "denied", "guarded"]), &["denied"]),
        ..Settings::default()
    };
    let (_, scope) = scope(&[&known, &denied, &outside, &guarded], settings);
    let rows = [
        ("known", Ok("known")),
        ("unknown", Err("not_found")),
        ("outside", Err("not_found")),
        ("denied", Err("permission_denied")),
        ("guarded", Err("permission_denied")),
    ];
    for (name, expected) in rows {
        match judged(&scope, &[(name, json!({}))]).remove(0) {
            Ok(tool) => assert_eq!(Ok(tool.as_str()), expected),
            Err((message, kind)) => {
                assert_eq!(Err(kind), expected, "{name}");
                assert!(message.contains(&format!("`{name}`")), "{message}");
            }
        }
    }
    assert_eq!(known.runs() + denied.runs() + outside.runs() + guarded.runs(), 0, "judging runs nothing");
}

#[test]
fn t22_each_call_has_one_verdict_in_its_place() {
    let one = Echo::new("one", Source::Builtin, ToolMetadata::default());
    let (_, scope) = scope(&[&one], Settings::default());
    let calls = [
        ("one", json!({})),
        ("two", json!({})),
        ("one", json!({ "n": "x" })),
        ("one", json!({ "n": 1 })),
        ("", json!({})),
    ];
    let verdicts = judged(&scope, &calls);
    let words: Vec<&str> =
        verdicts.iter().map(|verdict| verdict.as_ref().map_or_else(|(_, kind)| *kind, |_| "ok")).collect();
    assert_eq!(words, ["ok", "not_found", "validation", "ok", "not_found"]);
    assert!(judged(&scope, &[]).is_empty());
}

#[test]
fn t23_a_call_is_resolved_to_the_registered_definition_also_after_repair() {
    let one = Echo::new("read_file", Source::Builtin, ToolMetadata::default());
    let (_, scope) = scope(&[&one], Settings::default());
    for spelling in ["read_file", "Read_File", "read.file", "read-file"] {
        let prepared = scope.prepare(spelling, RawJson::EMPTY_OBJECT).expect("it is meant");
        assert!(Arc::ptr_eq(prepared.tool(), &one.tool), "{spelling}");
    }
}
