//! The way of a call through the executor in process: scripted tools and people, paused time, no wire.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join, join_all, join3};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use toolcrib::catalog::registry::RegisteredTool;
use toolcrib::catalog::snapshot::Catalog;
use toolcrib::executor::calls::{Arrival, DEFAULT_PARALLEL_LIMIT, Executor, Outcome, Shared};
use toolcrib::executor::schedule::{DEFAULT_PARALLEL_CALLS, Schedule};
use toolcrib::tools::approval::{ApprovalHandler, ApprovalRequest, ApprovalResponse, Fingerprint, NoAnswer};
use toolcrib::tools::claim_rule::{Access, ClaimRule, Footprint, Reference};
use toolcrib::tools::error::{Denial, Executed, ToolError};
use toolcrib::tools::hook::{After, Before, Hook, HookCall};
use toolcrib::tools::json::RawJson;
use toolcrib::tools::results::Budget;
use toolcrib::tools::scoped::paths::Workspace;
use toolcrib::tools::scoped::policy::Pattern;
use toolcrib::tools::scoped::service::ScopedToolService;
use toolcrib::tools::scoped::view::Settings;
use toolcrib::tools::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, Turn,
};
use toolcrib::upstream::owners::Owners;

use crate::laws::Random;
use crate::layers::code;
use crate::tidy::sources;

type Answer = Result<ToolResult, ToolError>;

/// What happened, each line with the milliseconds since the beginning.
#[derive(Clone)]
struct Diary {
    since: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Diary {
    fn new() -> Diary {
        Diary { since: Instant::now(), lines: Arc::default() }
    }

    fn note(&self, what: &str) {
        let line = format!("{} {what}", self.since.elapsed().as_millis());
        self.lines.lock().expect("no panic holds it").push(line);
    }

    #[track_caller]
    fn assert(&self, expected: &[&str]) {
        assert_eq!(*self.lines.lock().expect("no panic holds it"), expected);
    }
}

/// A handler that does what the test says.
struct Scripted<F>(F);

impl<F, W> ToolHandler for Scripted<F>
where
    F: Fn(Value, Turn) -> W + Send + Sync + 'static,
    W: Future<Output = Answer> + Send + 'static,
{
    fn call<'a>(&'a self, input: Input, turn: &'a Turn) -> BoxFuture<'a, Answer> {
        Box::pin((self.0)(Value::clone(&input.value), turn.clone()))
    }
}

fn tool(name: &str, metadata: ToolMetadata, handler: impl ToolHandler) -> Arc<RegisteredTool> {
    let text = json!({ "type": "string" });
    let schema = json!({
        "type": "object",
        "properties": { "say": text, "node": text, "path": text, "ms": { "type": "integer" } },
    });
    let schema = RawJson::from_value(&schema);
    let definition = ToolDefinition::new(name, "Does as it is told.", schema, Source::Command, metadata);
    Arc::new(RegisteredTool::new(definition, Arc::new(handler)))
}

/// A tool that changes the node or the path it is given, or else everything.
fn changes() -> ToolMetadata {
    ToolMetadata {
        claim: Some(footprint(Access::Exclusive, ClaimRule::Exclusive)),
        ..ToolMetadata::default()
    }
}

fn footprint(access: Access, otherwise: ClaimRule) -> ClaimRule {
    ClaimRule::Footprint(Footprint {
        access,
        paths: vec![Reference::named("path")],
        nodes: vec![Reference::named("node")],
        sessions: Vec::new(),
        otherwise: Box::new(otherwise),
    })
}

/// A tool that works for `ms` and notes when it begins and ends; it answers with what it is to `say`.
fn worker(diary: &Diary, name: &str, metadata: ToolMetadata) -> Arc<RegisteredTool> {
    let diary = diary.clone();
    tool(name, metadata, Scripted(move |input, _| work(diary.clone(), input)))
}

async fn work(diary: Diary, input: Value) -> Answer {
    let say = input["say"].as_str().unwrap_or("?").to_owned();
    diary.note(&format!("+{say}"));
    sleep(Duration::from_millis(input["ms"].as_u64().unwrap_or(0))).await;
    diary.note(&format!("-{say}"));
    Ok(ToolResult::from_result(Ok(say)))
}

/// A tool that asks for a person's yes when it has run for `ms`, and works when it has it.
fn asker(diary: &Diary, name: &'static str) -> Arc<RegisteredTool> {
    let diary = diary.clone();
    let script = move |input: Value, turn: Turn| {
        let diary = diary.clone();
        async move {
            if turn.is_approved {
                return work(diary, input).await;
            }
            sleep(Duration::from_millis(input["ms"].as_u64().unwrap_or(0))).await;
            let definition = ToolDefinition::new(
                name,
                "",
                RawJson::EMPTY_OBJECT,
                Source::Command,
                ToolMetadata::default(),
            );
            let fingerprint = Fingerprint::of(&definition, &input);
            let request = ApprovalRequest::new(name, "it is unsure", &input.to_string(), true, fingerprint);
            Ok(ToolResult::NeedsApproval(request))
        }
    };
    tool(name, changes(), Scripted(script))
}

/// A tool that answers with these, one after another.
fn answers(diary: &Diary, metadata: ToolMetadata, answers: Vec<Answer>) -> Arc<RegisteredTool> {
    let (diary, answers) = (diary.clone(), Mutex::new(VecDeque::from(answers)));
    let script = move |_, _| {
        diary.note("try");
        let answer = answers.lock().expect("no panic holds it").pop_front();
        async move { answer.expect("it is not called that often") }
    };
    tool("flaky", metadata, Scripted(script))
}

/// Answers questions in turn, each after a while; when no answers are left, nobody is there.
struct Person {
    diary: Diary,
    thinks: Duration,
    answers: Mutex<VecDeque<ApprovalResponse>>,
}

impl ApprovalHandler for Person {
    fn request<'a>(
        &'a self,
        request: &'a ApprovalRequest,
    ) -> BoxFuture<'a, Result<ApprovalResponse, NoAnswer>> {
        Box::pin(async move {
            self.diary.note(&format!("? {}", request.tool_name));
            let answer = self.answers.lock().expect("no panic holds it").pop_front();
            sleep(self.thinks).await;
            answer.ok_or(NoAnswer::Unavailable)
        })
    }
}

/// What a connection is made of.
struct Setup {
    tools: Vec<Arc<RegisteredTool>>,
    settings: Settings,
    hooks: Vec<Arc<dyn Hook>>,
    parallel_limit: Duration,
    answers: Vec<ApprovalResponse>,
    thinks: Duration,
}

impl Setup {
    fn of(tools: &[&Arc<RegisteredTool>]) -> Setup {
        Setup {
            tools: tools.iter().map(|tool| Arc::clone(tool)).collect(),
            settings: Settings { offers_batch: true, ..Settings::default() },
            hooks: Vec::new(),
            parallel_limit: DEFAULT_PARALLEL_LIMIT,
            answers: Vec::new(),
            thinks: Duration::ZERO,
        }
    }

    fn connect(self, diary: &Diary) -> Connection {
        let catalog = Arc::new(Catalog::default());
        catalog.publish(Source::Command, self.tools.into());
        let schedule = Schedule::new(DEFAULT_PARALLEL_CALLS);
        let shared = Shared {
            schedule: Arc::clone(&schedule),
            hooks: self.hooks,
            parallel_limit: self.parallel_limit,
            owners: Owners::new(Vec::new()),
        };
        let budget = Budget { max_chars: usize::MAX, keep_bytes: 0 };
        let (scope, executor) = Executor::connect(catalog, Arc::new(self.settings), Arc::new(shared), budget);
        let answers = Mutex::new(self.answers.into());
        let person = Arc::new(Person { diary: diary.clone(), thinks: self.thinks, answers });
        Connection { _scope: scope, executor, schedule, turn: Turn { approvals: person, ..Turn::detached() } }
    }
}

struct Connection {
    /// What the executor looks back at.
    _scope: Arc<ScopedToolService>,
    executor: Arc<Executor>,
    schedule: Arc<Schedule>,
    turn: Turn,
}

impl Connection {
    fn arrive(&self, name: &str, arguments: &Value) -> Arrival {
        self.executor.arrive(name, RawJson::from_value(arguments))
    }

    async fn call(&self, name: &str, arguments: Value) -> Outcome {
        self.executor.finish(self.arrive(name, &arguments), &self.turn).await
    }

    /// A call that comes later.
    async fn call_at(&self, ms: u64, name: &str, arguments: Value) -> Outcome {
        sleep(Duration::from_millis(ms)).await;
        self.call(name, arguments).await
    }

    /// All arrive in this order, and go on in the opposite one: tasks keep no order.
    async fn pipelined(&self, calls: &[(&str, Value)]) -> Vec<Outcome> {
        let arrivals: Vec<Arrival> =
            calls.iter().map(|(name, arguments)| self.arrive(name, arguments)).collect();
        let ways = arrivals.into_iter().rev().map(|arrival| self.executor.finish(arrival, &self.turn));
        let mut outcomes = join_all(ways).await;
        outcomes.reverse();
        outcomes
    }

    /// One batch, and what became of each call: its status, or what it said.
    async fn batch(&self, calls: &[(&str, Value)]) -> Vec<String> {
        let results = self.results(calls).await;
        assert_eq!(results.len(), calls.len(), "{results:?}");
        let short = |((name, _), result): (&(&str, Value), Value)| {
            assert_eq!(result["name"], *name);
            match result["result"]["content"][0]["text"].as_str() {
                Some(said) => said.to_owned(),
                None => result["status"].as_str().unwrap_or_default().to_owned(),
            }
        };
        calls.iter().zip(results).map(short).collect()
    }

    async fn results(&self, calls: &[(&str, Value)]) -> Vec<Value> {
        let calls: Vec<Value> =
            calls.iter().map(|(name, arguments)| json!({ "name": name, "arguments": arguments })).collect();
        let outcome = self.call("call_tools", json!({ "calls": calls })).await;
        let ToolOutput::Result(raw) = outcome.result.expect("a batch has a result") else {
            panic!("no error of the protocol")
        };
        let result = raw.to_value().expect("it is JSON");
        result["structuredContent"]["results"].as_array().expect("a list").clone()
    }
}

fn said(outcome: &Outcome) -> String {
    match &outcome.result {
        Ok(output) => output.plain_text(),
        Err(error) => error.kind().to_owned(),
    }
}

fn attempts(outcome: &Outcome) -> u32 {
    outcome.trace.as_ref().expect("a call of a tool has one").attempts
}

/// Says the same about every call of one tool, and keeps what it was shown.
struct Gatekeeper {
    tool: &'static str,
    before: Before,
    after: After,
    saw: Mutex<Vec<String>>,
}

impl Gatekeeper {
    fn before(tool: &'static str, before: Before) -> Arc<Gatekeeper> {
        Arc::new(Gatekeeper { tool, before, after: After::Keep, saw: Mutex::default() })
    }

    fn after(tool: &'static str, after: After) -> Arc<Gatekeeper> {
        Arc::new(Gatekeeper { tool, before: Before::Allow, after, saw: Mutex::default() })
    }

    fn saw(&self, what: &str) {
        self.saw.lock().expect("no panic holds it").push(what.to_owned());
    }

    #[track_caller]
    fn assert_saw(&self, expected: &[&str]) {
        assert_eq!(*self.saw.lock().expect("no panic holds it"), expected);
    }
}

impl Hook for Gatekeeper {
    fn name(&self) -> &str {
        "gatekeeper"
    }

    fn concerns(&self, tool: &ToolDefinition) -> bool {
        *tool.name == *self.tool
    }

    fn before<'a>(&'a self, call: HookCall<'a>) -> BoxFuture<'a, Before> {
        self.saw(call.input.raw.as_str());
        Box::pin(std::future::ready(self.before.clone()))
    }

    fn after<'a>(&'a self, _: HookCall<'a>, output: &'a ToolOutput) -> BoxFuture<'a, After> {
        self.saw(&output.plain_text());
        Box::pin(std::future::ready(self.after.clone()))
    }
}

fn rewrite(arguments: &Value) -> Before {
    Before::Rewrite(RawJson::from_value(arguments))
}

#[tokio::test(start_paused = true)]
async fn s63_a_hook_may_deny_or_block_a_call_before_it_runs() {
    let reason = || "not on a Sunday".to_owned();
    let by_hook = Denial::Hook { hook: "gatekeeper".to_owned(), reason: reason() };
    let rows = [
        (
            Before::Deny { reason: reason() },
            ToolError::PermissionDenied { tool: "guarded".to_owned(), denial: by_hook },
        ),
        (
            Before::Block { reason: reason() },
            ToolError::Execution { tool: "guarded".to_owned(), cause: reason() },
        ),
    ];
    for (before, expected) in rows {
        let diary = Diary::new();
        let [guarded, free] = ["guarded", "free"].map(|name| worker(&diary, name, changes()));
        let first = Gatekeeper::before("guarded", before);
        let second = Gatekeeper::before("guarded", Before::Allow);
        let setup = Setup { hooks: vec![first, second.clone()], ..Setup::of(&[&guarded, &free]) };
        let connection = setup.connect(&diary);
        let outcome = connection.call("guarded", json!({ "say": "guarded" })).await;
        assert_eq!(outcome.result, Err(expected));
        assert_eq!(attempts(&outcome), 0);
        second.assert_saw(&[]);
        assert!(connection.schedule.is_idle());
        assert_eq!(said(&connection.call("free", json!({ "say": "free" })).await), "free");
        diary.assert(&["0 +free", "0 -free"]);
    }
}

#[tokio::test(start_paused = true)]
async fn s63_what_a_hook_rewrites_is_judged_again_and_then_run() {
    let diary = Diary::new();
    let guarded = worker(&diary, "guarded", changes());
    let first = Gatekeeper::before("guarded", rewrite(&json!({ "say": "new" })));
    let second = Gatekeeper::before("guarded", Before::Allow);
    let setup = Setup { hooks: vec![first.clone(), second.clone()], ..Setup::of(&[&guarded]) };
    let connection = setup.connect(&diary);
    assert_eq!(said(&connection.call("guarded", json!({ "say": "old" })).await), "new");
    first.assert_saw(&[r#"{"say":"old"}"#, "new"]);
    second.assert_saw(&[r#"{"say":"new"}"#, "new"]);
    diary.assert(&["0 +new", "0 -new"]);

    let diary = Diary::new();
    let guarded = worker(&diary, "guarded", changes());
    let hook = Gatekeeper::before("guarded", rewrite(&json!({ "ms": "soon" })));
    let connection = Setup { hooks: vec![hook], ..Setup::of(&[&guarded]) }.connect(&diary);
    let outcome = connection.call("guarded", json!({ "say": "old" })).await;
    assert_eq!(outcome.result.expect_err("it does not fit").kind(), "validation");
    diary.assert(&[]);
    assert!(connection.schedule.is_idle());
}

#[tokio::test(start_paused = true)]
async fn s63_a_rewritten_call_waits_for_what_it_touches_now_and_for_nothing_else() {
    let diary = Diary::new();
    let [guarded, free] = ["guarded", "free"].map(|name| worker(&diary, name, changes()));
    let hook = Gatekeeper::before("guarded", rewrite(&json!({ "say": "new", "node": "b" })));
    let connection = Setup { hooks: vec![hook], ..Setup::of(&[&guarded, &free]) }.connect(&diary);
    let calls = [
        ("free", json!({ "say": "b", "node": "b", "ms": 500 })),
        ("guarded", json!({ "say": "old", "node": "a" })),
        ("free", json!({ "say": "a", "node": "a", "ms": 100 })),
    ];
    let outcomes = connection.pipelined(&calls).await;
    assert_eq!(outcomes[1].trace.as_ref().map(|trace| trace.claim.as_str()), Some("exclusive nodes b"));
    assert_eq!(outcomes[1].trace.as_ref().map(|trace| trace.waited.as_millis()), Some(500));
    diary.assert(&["0 +b", "0 +a", "100 -a", "500 -b", "500 +new", "500 -new"]);
}

#[tokio::test(start_paused = true)]
async fn s63_s62_a_rewritten_call_that_must_be_confirmed_is_in_nobodys_way_meanwhile() {
    let diary = Diary::new();
    let danger = worker(&diary, "danger", ToolMetadata { confirm: true, ..changes() });
    let free = worker(&diary, "free", changes());
    let hook = Gatekeeper::before("danger", rewrite(&json!({ "say": "new", "node": "a" })));
    let setup = Setup {
        hooks: vec![hook],
        answers: vec![ApprovalResponse::ApproveOnce; 2],
        thinks: Duration::from_secs(1),
        ..Setup::of(&[&danger, &free])
    };
    let connection = setup.connect(&diary);
    let (outcome, other) = join(
        connection.call("danger", json!({ "say": "old", "node": "a" })),
        connection.call_at(1200, "free", json!({ "say": "free", "node": "a", "ms": 300 })),
    )
    .await;
    assert_eq!((said(&outcome), said(&other)), ("new".to_owned(), "free".to_owned()));
    diary.assert(&["0 ? danger", "1000 ? danger", "1200 +free", "1500 -free", "2000 +new", "2000 -new"]);

    let diary = Diary::new();
    let danger = worker(&diary, "danger", ToolMetadata { confirm: true, ..changes() });
    let hook = Gatekeeper::before("danger", rewrite(&json!({ "say": "new" })));
    let answers = vec![ApprovalResponse::ApproveOnce, ApprovalResponse::Deny];
    let connection = Setup { hooks: vec![hook], answers, ..Setup::of(&[&danger]) }.connect(&diary);
    assert_eq!(said(&connection.call("danger", json!({ "say": "old" })).await), "permission_denied");
    diary.assert(&["0 ? danger", "0 ? danger"]);
    assert!(connection.schedule.is_idle());
}

#[tokio::test(start_paused = true)]
async fn s63_a_hook_may_replace_or_withhold_what_came_back() {
    let rows = [
        (After::Replace(ToolOutput::text("hidden")), "hidden", "hidden"),
        (After::Block { reason: "it names a person".to_owned() }, "execution", ""),
    ];
    for (after, expected, second_saw) in rows {
        let diary = Diary::new();
        let guarded = worker(&diary, "guarded", changes());
        let second = Gatekeeper::after("guarded", After::Keep);
        let hooks: Vec<Arc<dyn Hook>> = vec![Gatekeeper::after("guarded", after), second.clone()];
        let connection = Setup { hooks, ..Setup::of(&[&guarded]) }.connect(&diary);
        let outcome = connection.call("guarded", json!({ "say": "x" })).await;
        assert_eq!(said(&outcome), expected);
        let saw = [r#"{"say":"x"}"#, second_saw];
        second.assert_saw(if second_saw.is_empty() { &saw[..1] } else { &saw });
        diary.assert(&["0 +x", "0 -x"]);
        assert!(connection.schedule.is_idle());
    }
}

#[tokio::test(start_paused = true)]
async fn s64_a_call_is_tried_once_more_only_where_that_can_do_no_harm() {
    let lost = || -> Answer {
        Err(ToolError::Transport { tool: String::new(), cause: "gone".into(), executed: Executed::Maybe })
    };
    let broken = || -> Answer { Err(ToolError::Execution { tool: String::new(), cause: "boom".into() }) };
    let fine = || -> Answer { Ok(ToolResult::from_result(Ok("fine".to_owned()))) };
    let idempotent = ToolMetadata { idempotent: true, ..ToolMetadata::default() };
    let reads = ToolMetadata { read_only: true, ..ToolMetadata::default() };
    let none = ToolMetadata::default();
    let rows = [
        (&idempotent, vec![lost(), fine()], "fine", 2),
        (&reads, vec![lost(), fine()], "fine", 2),
        (&idempotent, vec![lost(), lost()], "transport", 2),
        (&idempotent, vec![lost(), broken()], "execution", 2),
        (&none, vec![lost()], "transport", 1),
        (&idempotent, vec![broken()], "execution", 1),
        (&idempotent, vec![Ok(ToolResult::from_result(Err("no".to_owned())))], "execution", 1),
        (&idempotent, vec![fine()], "fine", 1),
    ];
    for (metadata, script, expected, expected_attempts) in rows {
        let diary = Diary::new();
        let flaky = answers(&diary, metadata.clone(), script);
        let connection = Setup::of(&[&flaky]).connect(&diary);
        let outcome = connection.call("flaky", json!({})).await;
        assert_eq!((said(&outcome).as_str(), attempts(&outcome)), (expected, expected_attempts));
        diary.assert(if expected_attempts == 2 { &["0 try", "100 try"] } else { &["0 try"] });
    }
}

/// The second try has what is left of the first one's time.
#[tokio::test(start_paused = true)]
async fn s64_s70_both_tries_share_one_clock() {
    let diary = Diary::new();
    let script = {
        let diary = diary.clone();
        move |_, _| {
            let diary = diary.clone();
            async move {
                diary.note("try");
                sleep(Duration::from_millis(150)).await;
                let cause = "gone".to_owned();
                Err(ToolError::Transport { tool: String::new(), cause, executed: Executed::Maybe })
            }
        }
    };
    let metadata = ToolMetadata { idempotent: true, timeout_ms: Some(300), ..ToolMetadata::default() };
    let connection = Setup::of(&[&tool("slow", metadata, Scripted(script))]).connect(&diary);
    let outcome = connection.call("slow", json!({})).await;
    assert_eq!((said(&outcome).as_str(), attempts(&outcome)), ("timeout", 2));
    diary.assert(&["0 try", "250 try"]);
    assert_eq!(diary.since.elapsed().as_millis(), 300);
}

#[tokio::test(start_paused = true)]
async fn s62_the_time_of_a_person_counts_against_nothing_and_keeps_nobody_waiting() {
    let diary = Diary::new();
    let limited = ToolMetadata { confirm: true, timeout_ms: Some(1000), ..changes() };
    let danger = worker(&diary, "danger", limited);
    let free = worker(&diary, "free", changes());
    let setup = Setup {
        answers: vec![ApprovalResponse::ApproveOnce],
        thinks: Duration::from_secs(3),
        ..Setup::of(&[&danger, &free])
    };
    let connection = setup.connect(&diary);
    let outcomes = connection
        .pipelined(&[
            ("free", json!({ "say": "unrelated", "node": "b", "ms": 300 })),
            ("free", json!({ "say": "conflicting", "node": "a", "ms": 200 })),
            ("danger", json!({ "say": "danger", "node": "a", "ms": 500 })),
        ])
        .await;
    assert_eq!(outcomes.iter().map(said).collect::<Vec<_>>(), ["unrelated", "conflicting", "danger"]);
    let trace = outcomes[2].trace.clone().expect("it ran");
    assert_eq!((trace.waited.as_millis(), trace.ran.as_millis()), (0, 500));
    diary.assert(&[
        "0 ? danger",
        "0 +conflicting",
        "0 +unrelated",
        "200 -conflicting",
        "300 -unrelated",
        "3000 +danger",
        "3500 -danger",
    ]);
}

#[tokio::test(start_paused = true)]
async fn s62_t31_t34_a_tool_that_asks_gives_its_place_back_until_it_is_answered() {
    let diary = Diary::new();
    let (asks, free) = (asker(&diary, "asks"), worker(&diary, "free", changes()));
    let setup = Setup {
        answers: vec![ApprovalResponse::ApproveOnce],
        thinks: Duration::from_secs(3),
        ..Setup::of(&[&asks, &free])
    };
    let connection = setup.connect(&diary);
    let outcomes = connection
        .pipelined(&[
            ("asks", json!({ "say": "asks", "node": "a", "ms": 100 })),
            ("free", json!({ "say": "conflicting", "node": "a", "ms": 200 })),
            ("free", json!({ "say": "long", "node": "a", "ms": 4000 })),
        ])
        .await;
    assert_eq!(outcomes.iter().map(said).collect::<Vec<_>>(), ["asks", "conflicting", "long"]);
    let trace = outcomes[0].trace.clone().expect("it ran");
    assert_eq!(
        (trace.waited.as_millis(), trace.ran.as_millis(), trace.attempts),
        (1200, 200, 2),
        "it waited for the long one, and for no person"
    );
    diary.assert(&[
        "100 ? asks",
        "100 +conflicting",
        "300 -conflicting",
        "300 +long",
        "4300 -long",
        "4300 +asks",
        "4400 -asks",
    ]);
}

#[tokio::test(start_paused = true)]
async fn s70_an_overrun_ends_the_call_and_tells_how_long_it_took() {
    let diary = Diary::new();
    let [slow, free] = ["slow", "free"].map(|name| worker(&diary, name, changes()));
    let limits = vec![
        (Pattern::parse("*").expect("a pattern"), Duration::from_secs(9)),
        (Pattern::parse("slow").expect("a pattern"), Duration::from_millis(300)),
    ];
    let settings = Settings { limits, ..Settings::default() };
    let connection = Setup { settings, ..Setup::of(&[&slow, &free]) }.connect(&diary);
    let outcomes = connection
        .pipelined(&[
            ("slow", json!({ "say": "slow", "ms": 60_000 })),
            ("free", json!({ "say": "free", "ms": 5000 })),
        ])
        .await;
    let elapsed = Duration::from_millis(300);
    let timeout = ToolError::Timeout { tool: "slow".to_owned(), elapsed, executed: Executed::Maybe };
    assert_eq!(outcomes[0].result, Err(timeout));
    assert_eq!(said(&outcomes[1]), "free");
    diary.assert(&["0 +slow", "300 +free", "5300 -free"]);
}

#[tokio::test(start_paused = true)]
async fn s44_s56_t26_calls_start_in_the_order_of_their_arrival() {
    let diary = Diary::new();
    let work = worker(&diary, "work", changes());
    let connection = Setup::of(&[&work]).connect(&diary);
    connection
        .pipelined(&[
            ("work", json!({ "say": "a", "node": "a", "ms": 100 })),
            ("work", json!({ "say": "b", "node": "b", "ms": 200 })),
            ("work", json!({ "say": "all", "ms": 300 })),
            ("work", json!({ "say": "a2", "node": "a", "ms": 50 })),
            ("work", json!({ "say": "a3", "node": "a", "ms": 50 })),
        ])
        .await;
    diary.assert(&[
        "0 +b", "0 +a", "100 -a", "200 -b", "200 +all", "500 -all", "500 +a2", "550 -a2", "550 +a3",
        "600 -a3",
    ]);
    assert!(connection.schedule.is_idle());
}

#[tokio::test(start_paused = true)]
async fn s61_a_call_that_is_dropped_lets_those_behind_it_go() {
    let diary = Diary::new();
    let work = worker(&diary, "work", changes());
    let connection = Setup::of(&[&work]).connect(&diary);
    let mut calls: Vec<Arrival> =
        ["1", "2", "3"].map(|say| connection.arrive("work", &json!({ "say": say, "ms": 1000 }))).into();
    let third = connection.executor.finish(calls.remove(2), &connection.turn);
    // The second never goes on; the first is given up while it runs.
    drop(calls.remove(1));
    let first = connection.executor.finish(calls.remove(0), &connection.turn);
    let first = tokio::time::timeout(Duration::from_millis(400), first);
    let (first, third) = join(first, third).await;
    assert!(first.is_err());
    assert_eq!(said(&third), "3");
    diary.assert(&["0 +1", "400 +3", "1400 -3"]);
    assert!(connection.schedule.is_idle());
}

#[tokio::test(start_paused = true)]
async fn t28_a_call_that_panics_gives_its_place_back() {
    let diary = Diary::new();
    let work = worker(&diary, "work", changes());
    let boom = tool("boom", changes(), Scripted(|_, _| async { panic!("boom") }));
    let connection = Setup::of(&[&work, &boom]).connect(&diary);
    let boom = connection.arrive("boom", &json!({}));
    let next = connection.arrive("work", &json!({ "say": "next" }));
    let boom = AssertUnwindSafe(connection.executor.finish(boom, &connection.turn)).catch_unwind();
    let (boom, next) = join(boom, connection.executor.finish(next, &connection.turn)).await;
    assert!(boom.is_err());
    assert_eq!(said(&next), "next");
    assert!(connection.schedule.is_idle());
}

/// A workspace in which `link` points to `one`, and a tool that makes it point to `two`.
#[cfg(unix)]
fn linked(diary: &Diary) -> (tempfile::TempDir, Connection) {
    use std::fs;
    use std::os::unix::fs::symlink;
    let world = tempfile::TempDir::new().expect("a folder");
    let top = world.path().canonicalize().expect("it is there");
    for folder in ["one", "two"] {
        fs::create_dir(top.join(folder)).expect("it can be made");
    }
    symlink("one", top.join("link")).expect("it can be made");
    let (swaps, notes) = (top.clone(), diary.clone());
    let swap = tool(
        "swap",
        changes(),
        Scripted(move |_, _| {
            let (top, diary) = (swaps.clone(), notes.clone());
            async move {
                diary.note("+swap");
                sleep(Duration::from_millis(100)).await;
                fs::remove_file(top.join("link")).expect("it is there");
                symlink("two", top.join("link")).expect("it can be made");
                diary.note("-swap");
                Ok(ToolResult::from_result(Ok(String::new())))
            }
        }),
    );
    let work = worker(diary, "work", changes());
    let settings = Settings { workspace: Workspace::new(top, None), ..Settings::default() };
    let connection = Setup { settings, ..Setup::of(&[&swap, &work]) }.connect(diary);
    (world, connection)
}

#[cfg(unix)]
#[tokio::test(start_paused = true)]
async fn s45_a_call_that_waited_claims_what_its_path_names_now() {
    let diary = Diary::new();
    let (_world, connection) = linked(&diary);
    connection
        .pipelined(&[
            ("swap", json!({})),
            ("work", json!({ "say": "link", "path": "link/x", "ms": 50 })),
            ("work", json!({ "say": "two", "path": "two/x", "ms": 50 })),
            ("work", json!({ "say": "one", "path": "one/x", "ms": 20 })),
        ])
        .await;
    // To the end of the line, behind the one that came later and touches the same.
    diary.assert(&[
        "0 +swap",
        "100 -swap",
        "100 +two",
        "100 +one",
        "120 -one",
        "150 -two",
        "150 +link",
        "200 -link",
    ]);
}

/// Also one whose turn came before it was looked at, as happens to the last of many that arrive at once.
#[cfg(unix)]
#[tokio::test(start_paused = true)]
async fn s45_a_claim_from_before_an_exclusive_call_is_taken_anew_although_nobody_waited() {
    let diary = Diary::new();
    let (_world, connection) = linked(&diary);
    let swap = connection.arrive("swap", &json!({}));
    let link = connection.arrive("work", &json!({ "say": "link", "path": "link/x", "ms": 50 }));
    let two = connection.arrive("work", &json!({ "say": "two", "path": "two/x", "ms": 50 }));
    let finish = |arrival| connection.executor.finish(arrival, &connection.turn);
    finish(swap).await;
    join(finish(link), finish(two)).await;
    diary.assert(&["0 +swap", "100 -swap", "100 +two", "150 -two", "150 +link", "200 -link"]);
}

fn named(say: &str, node: &str, ms: u64) -> Value {
    json!({ "say": say, "node": node, "ms": ms })
}

#[tokio::test(start_paused = true)]
async fn t25_every_call_of_a_batch_has_one_result_in_its_place() {
    let diary = Diary::new();
    let work = worker(&diary, "work", changes());
    let reads = ToolMetadata { claim: Some(footprint(Access::Shared, ClaimRule::Shared)), ..changes() };
    let look = worker(&diary, "look", reads);
    // Not `panic!`, which would write a trace for each.
    let boom = |_, _| async { std::panic::resume_unwind(Box::new("boom")) };
    let boom = tool("boom", changes(), Scripted(boom));
    let fails = |_, _| async { Ok(ToolResult::from_result(Err("no".to_owned()))) };
    let fails = tool("fails", changes(), Scripted(fails));
    let limited = ToolMetadata { timeout_ms: Some(70), ..changes() };
    let hangs = worker(&diary, "hangs", limited);
    let danger = worker(&diary, "danger", ToolMetadata { confirm: true, ..changes() });
    let connection = Setup::of(&[&work, &look, &boom, &fails, &hangs, &danger]).connect(&diary);
    let seed = 25;
    for number in 0..300 {
        let mut random = Random::of(seed, number);
        let mut calls = Vec::new();
        let mut expected = Vec::new();
        for i in 0..1 + random.below(12) {
            let say = format!("{number}/{i}");
            let mut arguments = json!({ "say": say, "ms": 10 * random.below(9) });
            match random.below(4) {
                0 => {}
                1 => arguments["path"] = json!(random.pick(&["/a", "/a/b", "/c"])),
                _ => arguments["node"] = json!(random.pick(&["a", "b", "c"])),
            }
            let (name, status) = match random.below(12) {
                0 => ("boom", "execution"),
                1 => ("fails", "execution"),
                2 => ("danger", "permission_denied"),
                3 => ("nope", "not_found"),
                4 => ("call_tools", "validation"),
                5 => {
                    arguments["ms"] = json!("soon");
                    ("work", "validation")
                }
                6 => {
                    arguments["ms"] = json!(1000);
                    ("hangs", "timeout")
                }
                7 | 8 => ("look", say.as_str()),
                _ => ("work", say.as_str()),
            };
            expected.push(status.to_owned());
            calls.push((name, arguments));
        }
        assert_eq!(connection.batch(&calls).await, expected, "case {number}: {calls:?}");
        assert!(connection.schedule.is_idle(), "case {number}: {calls:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn t24_t25_s56_groups_run_one_after_another_and_members_together() {
    let diary = Diary::new();
    let work = worker(&diary, "work", changes());
    let connection = Setup::of(&[&work]).connect(&diary);
    let calls = [
        ("work", named("a", "a", 100)),
        ("work", named("b", "b", 200)),
        ("work", json!({ "say": "all", "ms": 10 })),
        ("work", named("c", "c", 30)),
        ("work", named("a2", "a", 20)),
    ];
    let results = connection.results(&calls).await;
    let groups: Vec<String> = results.iter().map(|result| result["run"]["group"].to_string()).collect();
    let group = |index: usize, size: usize| format!(r#"{{"index":{index},"size":{size}}}"#);
    assert_eq!(groups, [group(0, 2), group(0, 2), group(1, 1), group(2, 2), group(2, 2)]);
    diary.assert(&[
        "0 +a", "0 +b", "100 -a", "200 -b", "200 +all", "210 -all", "210 +c", "210 +a2", "230 -a2", "240 -c",
    ]);
}

#[tokio::test(start_paused = true)]
async fn t28_a_member_that_panics_fails_alone() {
    let diary = Diary::new();
    let work = worker(&diary, "work", changes());
    let boom = tool("boom", changes(), Scripted(|_, _| async { panic!("boom") }));
    let connection = Setup::of(&[&work, &boom]).connect(&diary);
    let calls = [
        ("work", named("a", "a", 100)),
        ("boom", named("", "b", 0)),
        ("work", named("c", "c", 100)),
        ("work", named("b", "b", 0)),
    ];
    let results = connection.results(&calls).await;
    let status: Vec<&str> = results.iter().filter_map(|result| result["status"].as_str()).collect();
    assert_eq!(status, ["ok", "execution", "ok", "ok"]);
    // What the program said when it broke is for the log.
    assert_eq!(results[1]["error"]["cause"], "an internal error");
    diary.assert(&["0 +a", "0 +c", "100 -a", "100 -c", "100 +b", "100 -b"]);
    assert!(connection.schedule.is_idle());
}

#[tokio::test(start_paused = true)]
async fn t29_members_of_a_group_have_thirty_seconds_unless_the_operator_says_more() {
    assert_eq!(DEFAULT_PARALLEL_LIMIT, Duration::from_millis(30_000));
    let diary = Diary::new();
    let [plain, set] = ["plain", "set"].map(|name| worker(&diary, name, changes()));
    let limits = vec![(Pattern::parse("set").expect("a pattern"), Duration::from_millis(700))];
    let settings = || Settings { offers_batch: true, limits: limits.clone(), ..Settings::default() };
    let parallel_limit = Duration::from_millis(400);
    let setup = Setup { settings: settings(), parallel_limit, ..Setup::of(&[&plain, &set]) };
    let connection = setup.connect(&diary);
    let begin = Instant::now();
    let two = [("plain", named("hangs", "a", 90_000)), ("plain", named("b", "b", 100))];
    assert_eq!(connection.batch(&two).await, ["timeout", "b"]);
    assert_eq!(begin.elapsed().as_millis(), 400);

    let begin = Instant::now();
    let two = [("set", named("hangs", "a", 90_000)), ("plain", named("hangs", "b", 90_000))];
    let results = connection.results(&two).await;
    let elapsed: Vec<&Value> = results.iter().map(|result| &result["error"]["elapsed_ms"]).collect();
    assert_eq!(elapsed, [700, 400]);
    assert_eq!(begin.elapsed().as_millis(), 700);

    let alone = [("plain", named("a", "a", 1000)), ("plain", named("a2", "a", 1000))];
    assert_eq!(connection.batch(&alone).await, ["a", "a2"]);
    assert_eq!(said(&connection.call("plain", named("x", "a", 1000)).await), "x");

    // By default the thirty seconds are what ends it, and a call alone has its source's sixty.
    let connection = Setup::of(&[&plain]).connect(&diary);
    let two = [("plain", named("late", "a", 30_001)), ("plain", named("b", "b", 29_999))];
    assert_eq!(connection.batch(&two).await, ["timeout", "b"]);
    assert_eq!(connection.batch(&two[..1]).await, ["late"]);
}

#[tokio::test(start_paused = true)]
async fn t27_a_question_that_is_put_off_before_its_group_stops_the_batch() {
    let diary = Diary::new();
    let danger = worker(&diary, "danger", ToolMetadata { confirm: true, ..changes() });
    let count = worker(&diary, "count", changes());
    let answers = vec![ApprovalResponse::Defer, ApprovalResponse::ApproveOnce];
    let connection = Setup { answers, ..Setup::of(&[&danger, &count]) }.connect(&diary);
    let calls = [
        ("count", named("before", "a", 10)),
        ("count", named("first", "a", 0)),
        ("danger", named("danger", "b", 0)),
        ("danger", named("not asked", "c", 0)),
        ("count", json!({ "say": "last" })),
    ];
    let results = connection.results(&calls).await;
    let status: Vec<&str> = results.iter().filter_map(|result| result["status"].as_str()).collect();
    let put_off = "not_executed";
    assert_eq!(status, ["ok", put_off, "approval_deferred", put_off, put_off]);
    assert!(
        results.iter().all(|result| result["status"] != put_off || result["error"]["stopped_by"] == "danger")
    );
    assert_eq!(said(&connection.call("count", named("later", "a", 0)).await), "later");
    diary.assert(&["0 +before", "10 -before", "10 ? danger", "10 +later", "10 -later"]);
}

#[tokio::test(start_paused = true)]
async fn t33_a_question_that_is_put_off_leaves_results_and_starts_nothing_new() {
    let diary = Diary::new();
    let (asks, work) = (asker(&diary, "asks"), worker(&diary, "work", changes()));
    let setup = Setup {
        answers: vec![ApprovalResponse::Defer, ApprovalResponse::ApproveOnce],
        thinks: Duration::from_millis(100),
        ..Setup::of(&[&asks, &work])
    };
    let connection = setup.connect(&diary);
    let calls = [
        ("work", named("quick", "a", 10)),
        ("work", named("slow", "b", 500)),
        ("asks", named("asks", "c", 50)),
        ("asks", named("not asked", "d", 60)),
        ("work", named("next group", "a", 0)),
    ];
    let results = connection.results(&calls).await;
    let status: Vec<&str> = results.iter().filter_map(|result| result["status"].as_str()).collect();
    assert_eq!(status, ["ok", "ok", "approval_deferred", "not_executed", "not_executed"]);
    assert_eq!([&results[3], &results[4]].map(|result| &result["error"]["stopped_by"]), ["asks", "asks"]);
    diary.assert(&["0 +quick", "0 +slow", "10 -quick", "50 ? asks", "500 -slow"]);
    assert!(connection.schedule.is_idle());
}

/// Whoever asks because a hook rewrote the call is one of the batch as well.
#[tokio::test(start_paused = true)]
async fn t33_s63_a_rewritten_call_that_is_put_off_stops_the_batch() {
    let diary = Diary::new();
    let danger = worker(&diary, "danger", ToolMetadata { confirm: true, ..changes() });
    let work = worker(&diary, "work", changes());
    let hook = Gatekeeper::before("danger", rewrite(&named("new", "a", 0)));
    let answers = vec![ApprovalResponse::ApproveOnce, ApprovalResponse::Defer];
    let connection = Setup { hooks: vec![hook], answers, ..Setup::of(&[&danger, &work]) }.connect(&diary);
    let calls = [("danger", named("old", "a", 0)), ("work", named("next group", "a", 0))];
    assert_eq!(connection.batch(&calls).await, ["approval_deferred", "not_executed"]);
    diary.assert(&["0 ? danger", "0 ? danger"]);
}

#[tokio::test(start_paused = true)]
async fn t32_a_question_that_is_denied_fails_one_call() {
    let diary = Diary::new();
    let danger = worker(&diary, "danger", ToolMetadata { confirm: true, ..changes() });
    let work = worker(&diary, "work", changes());
    let answers = vec![ApprovalResponse::Deny, ApprovalResponse::ApproveOnce];
    let connection = Setup { answers, ..Setup::of(&[&danger, &work]) }.connect(&diary);
    let calls = [
        ("danger", named("no", "a", 0)),
        ("danger", named("yes", "b", 0)),
        ("work", named("work", "c", 0)),
        ("work", named("next group", "a", 0)),
    ];
    assert_eq!(connection.batch(&calls).await, ["permission_denied", "yes", "work", "next group"]);
}

/// Places are taken group by group: whoever waits for a person in a batch is in nobody's way.
#[tokio::test(start_paused = true)]
async fn s62_a_batch_that_waits_for_a_person_holds_nothing() {
    let diary = Diary::new();
    let danger = worker(&diary, "danger", ToolMetadata { confirm: true, ..changes() });
    let work = worker(&diary, "work", changes());
    let setup = Setup {
        answers: vec![ApprovalResponse::ApproveOnce],
        thinks: Duration::from_secs(1),
        ..Setup::of(&[&danger, &work])
    };
    let connection = setup.connect(&diary);
    let calls = [("work", named("member", "a", 50)), ("danger", named("danger", "b", 50))];
    let (batch, _, _) = join3(
        connection.batch(&calls),
        connection.call_at(100, "work", named("a", "a", 100)),
        connection.call_at(200, "work", json!({ "say": "all", "ms": 100 })),
    )
    .await;
    assert_eq!(batch, ["member", "danger"]);
    diary.assert(&[
        "0 ? danger",
        "100 +a",
        "200 -a",
        "200 +all",
        "300 -all",
        "1000 +member",
        "1000 +danger",
        "1050 -member",
        "1050 -danger",
    ]);
}

#[tokio::test(start_paused = true)]
async fn t24_a_plan_runs_nothing_and_asks_nobody() {
    let diary = Diary::new();
    let danger = worker(&diary, "danger", ToolMetadata { confirm: true, ..changes() });
    let work = worker(&diary, "work", changes());
    let hook = Gatekeeper::before("work", Before::Deny { reason: "no".to_owned() });
    let setup = Setup {
        hooks: vec![hook.clone()],
        answers: vec![ApprovalResponse::ApproveOnce],
        ..Setup::of(&[&danger, &work])
    };
    let connection = setup.connect(&diary);
    let call = |name: &str, arguments: Value| json!({ "name": name, "arguments": arguments });
    let calls = [
        call("work", named("a", "a", 10)),
        call("danger", named("b", "b", 10)),
        call("work", named("a2", "a", 10)),
        call("nope", json!({})),
    ];
    let outcome = connection.call("call_tools", json!({ "calls": calls, "plan": true })).await;
    let Ok(ToolOutput::Result(raw)) = outcome.result else { panic!("a plan is a result") };
    let plan = raw.to_value().expect("it is JSON")["structuredContent"].clone();
    assert_eq!(plan["groups"], json!([[1, 2], [3, 4]]));
    let told = |i: usize, key: &str| plan["calls"][i][key].clone();
    assert_eq!((told(0, "claim"), told(0, "waits_for")), (json!("exclusive nodes a"), json!([])));
    assert_eq!(told(1, "asks"), "the tool declares that it always asks");
    assert_eq!(told(2, "waits_for"), json!([1]));
    assert_eq!(told(3, "error")["kind"], "not_found");
    diary.assert(&[]);
    hook.assert_saw(&[]);
    assert!(connection.schedule.is_idle());
}

/// Logs, and what people have said, are the business of whoever runs calls, not of the words and rules about tools.
#[test]
fn t20_only_the_executor_uses_services() {
    let words = ["tracing", "SessionMemory", ".approvals"];
    let named = |path: &str| {
        let text = code(path);
        words.into_iter().filter(|word| text.contains(word)).collect::<Vec<_>>()
    };
    let mut by_executor = Vec::new();
    for path in sources() {
        if path.starts_with("src/tools") {
            assert_eq!(named(&path), [""; 0], "{path}");
        } else if path.starts_with("src/executor") {
            by_executor.extend(named(&path));
        }
    }
    assert!(words.iter().all(|word| by_executor.contains(word)), "{by_executor:?}");
}
