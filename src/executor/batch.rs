//! `call_tools`: several calls as one, in groups that run together, one group after another.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use serde_json::json;

use super::calls::{Arrival, Consent, Executor, Outcome, Ready};
use super::trace::{Group, Trace};
use crate::catalog::registry::RegisteredTool;
use crate::tools::concurrency::{ConcurrencyClaim, Scope, partition_parallel_groups};
use crate::tools::error::ToolError;
use crate::tools::json::{ObjectWriter, RawJson, RawObject, array};
use crate::tools::scoped::prepare::Prepared;
use crate::tools::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, Turn,
};

/// Most calls of one batch.
const MOST_CALLS: usize = 100;

/// Its name on the wire.
const NAME: &str = "call_tools";

/// A batch takes its place in the order when it arrives, so the executor takes it apart before any handler is called.
struct TakenApart;

/// Its entry in the list.
pub fn tool() -> Arc<RegisteredTool> {
    let definition = ToolDefinition::new(
        NAME,
        "Calls several tools at once; those that touch the same thing run in the given order, the others together. \
         Answers come in the given order.",
        RawJson::from_value(&json!({
            "type": "object",
            "properties": {
                "calls": {
                    "type": "array", "minItems": 1, "maxItems": MOST_CALLS,
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": { "type": "string", "minLength": 1 },
                            "arguments": { "type": "object" }
                        },
                        "required": ["name"],
                        "additionalProperties": false
                    }
                },
                "plan": { "type": "boolean", "description": "Runs nothing and tells what would run when." }
            },
            "required": ["calls"],
            "additionalProperties": false,
        })),
        Source::Builtin,
        ToolMetadata::default(),
    );
    Arc::new(RegisteredTool::new(definition, Arc::new(TakenApart)))
}

impl ToolHandler for TakenApart {
    fn call<'a>(&'a self, _: Input, _: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        let cause = "a batch is not run as a single tool".to_owned();
        Box::pin(std::future::ready(Ok(ToolResult::ToolError(cause))))
    }
}

/// A batch that has arrived: its calls are judged, and the first group has its place in the order.
pub(super) struct Batch {
    names: Vec<String>,
    calls: Vec<Arrival>,
    is_plan: bool,
}

/// Whether a judged call is a batch.
pub(super) fn is_batch(prepared: &Prepared) -> bool {
    prepared.is_meta() && &*prepared.tool().definition().name == NAME
}

impl Batch {
    /// Judges the calls. Where nobody has to be asked and no server is waited for, the first group stands in the order
    /// from now on; every other group joins it when it is its turn.
    pub(super) fn arrive(executor: &Executor, input: &Input) -> Batch {
        let is_plan = input.value["plan"] == true;
        let (names, arguments): (Vec<String>, Vec<RawJson>) = calls(&input.raw).into_iter().unzip();
        let mut calls: Vec<Arrival> = Vec::with_capacity(names.len());
        for (name, arguments) in names.iter().zip(arguments) {
            calls.push(match executor.arrive(name, arguments) {
                Arrival::Ready(ready) if is_batch(&ready.prepared) => {
                    Arrival::Failed(ToolError::Validation {
                        tool: NAME.to_owned(),
                        path: format!("/calls/{}/name", calls.len()),
                        message: "a batch cannot hold a batch: give its calls themselves".to_owned(),
                        schema: None,
                    })
                }
                arrival => arrival,
            });
        }
        let waits = calls.iter().any(|call| matches!(call, Arrival::Early(_)));
        let claims: Vec<ConcurrencyClaim> = calls.iter().map(claim_of).collect();
        let first = partition_parallel_groups(&claims).first().map_or(0, |group| group.end);
        let asks = calls[..first]
            .iter()
            .any(|call| matches!(call, Arrival::Ready(ready) if ready.prepared.confirmation().is_some()));
        let holding = if waits || asks || is_plan { 0 } else { first };
        for call in &mut calls[holding..] {
            if let Arrival::Ready(ready) = call {
                ready.step_back();
            }
        }
        Batch { names, calls, is_plan }
    }

    /// Runs the calls, or tells the plan.
    pub(super) async fn run(self, executor: &Executor, turn: &Turn) -> ToolOutput {
        let mut members: Vec<Member> = Vec::with_capacity(self.calls.len());
        for call in self.calls {
            members.push(match call {
                Arrival::Ready(ready) => Ok(ready),
                Arrival::Failed(error) => Err(error),
                Arrival::Early(early) => executor.settle(early).await.map(|mut ready| {
                    ready.step_back();
                    Box::new(ready)
                }),
            });
        }
        match self.is_plan {
            true => plan(&self.names, &members),
            false => answers(&self.names, run(executor, members, turn).await),
        }
    }
}

/// The calls as they were written: what is passed on is never reformatted. The schema has judged them already.
fn calls(raw: &RawJson) -> Vec<(String, RawJson)> {
    let object = RawObject::parse(raw.as_bytes()).unwrap_or_default();
    let list: Vec<&serde_json::value::RawValue> =
        object.get("calls").and_then(|calls| serde_json::from_str(calls.get()).ok()).unwrap_or_default();
    let call = |call: &serde_json::value::RawValue| {
        let call = RawObject::parse(call.get().as_bytes()).unwrap_or_default();
        let arguments = match call.get("arguments") {
            Some(arguments) => RawJson::trusted(arguments.get().to_owned()),
            None => RawJson::EMPTY_OBJECT,
        };
        (call.text("name").unwrap_or_default(), arguments)
    };
    list.into_iter().map(call).collect()
}

/// A judged call of a batch, or why it is none.
type Member = Result<Box<Ready>, ToolError>;

/// What a call claims; the gateway's own tools and calls that never run are in nobody's way but everything's.
fn claim_of(call: &Arrival) -> ConcurrencyClaim {
    match call {
        Arrival::Ready(ready) if !ready.prepared.is_meta() => ready.prepared.claim(),
        Arrival::Ready(_) | Arrival::Failed(_) | Arrival::Early(_) => {
            ConcurrencyClaim::shared_in(Scope::nodes(["\0nothing"]))
        }
    }
}

fn claims_of(members: &[Member]) -> Vec<ConcurrencyClaim> {
    let claim = |member: &Member| match member {
        Ok(ready) if !ready.prepared.is_meta() => ready.prepared.claim(),
        Ok(_) | Err(_) => ConcurrencyClaim::shared_in(Scope::nodes(["\0nothing"])),
    };
    members.iter().map(claim).collect()
}

/// What the calls of one batch have in common while they run.
#[derive(Default)]
pub(super) struct Together {
    /// The first call that was put off: it stops those that have not started.
    stopped_by: Mutex<Option<String>>,
    /// One question at a time, so that a person who puts one off is not asked the others.
    questions: tokio::sync::Mutex<()>,
}

impl Together {
    fn stop(&self, error: &ToolError) {
        if let ToolError::ApprovalDeferred { tool, .. } = error {
            let mut by = self.stopped_by.lock().expect("no code panics while it holds the name");
            by.get_or_insert_with(|| tool.clone());
        }
    }

    /// Ends a call that was not started before the batch was stopped.
    fn check(&self, tool: &str) -> Result<(), ToolError> {
        let by = self.stopped_by.lock().expect("no code panics while it holds the name").clone();
        match by {
            Some(stopped_by) => Err(ToolError::NotExecuted { tool: tool.to_owned(), stopped_by }),
            None => Ok(()),
        }
    }

    /// Puts a question of one of the calls to a person, unless the batch was stopped before its turn came.
    pub(super) async fn ask(
        &self,
        tool: &str,
        question: impl Future<Output = Result<(), ToolError>>,
    ) -> Result<(), ToolError> {
        let _turn = self.questions.lock().await;
        self.check(tool)?;
        question.await.inspect_err(|error| self.stop(error))
    }
}

/// Where a call sits in a batch.
#[derive(Clone, Copy)]
pub(super) struct Seat<'a> {
    pub group: Group,
    pub together: &'a Together,
    /// How many calls the whole batch has.
    pub calls: usize,
}

/// Results of a batch have this many budgets in all; with more calls than that, each gets its share.
const BUDGETS: usize = 4;

/// The least that a call of a batch may show of its result, so that its head, its tail and the way to the rest fit.
const LEAST_CHARS: usize = 400;

impl Seat<'_> {
    /// What of a budget for one result is a call's here.
    pub(super) fn share(&self, max_chars: usize) -> usize {
        let share = max_chars.saturating_mul(BUDGETS) / self.calls.max(1);
        share.max(LEAST_CHARS).min(max_chars)
    }
}

async fn run(executor: &Executor, members: Vec<Member>, turn: &Turn) -> Vec<Outcome> {
    let claims = claims_of(&members);
    let together = Together::default();
    let mut members = members.into_iter();
    let mut outcomes = Vec::with_capacity(claims.len());
    for (index, range) in partition_parallel_groups(&claims).into_iter().enumerate() {
        let group = Group { index, size: range.len() };
        let seat = Seat { group, together: &together, calls: claims.len() };
        let mut judged: Vec<Member> = members.by_ref().take(range.len()).collect();
        // People are asked in the order of the calls, before any call of the group runs.
        for member in &mut judged {
            let Ok(ready) = &*member else { continue };
            let prepared = &ready.prepared;
            let tool = &prepared.tool().definition().name;
            if let Err(error) = together.ask(tool, executor.confirm(prepared, turn)).await {
                *member = Err(error);
            }
        }
        let runs = judged.into_iter().map(|member| run_member(executor, member, turn, seat));
        outcomes.extend(join_all(runs).await);
    }
    outcomes
}

async fn run_member(executor: &Executor, member: Member, turn: &Turn, seat: Seat<'_>) -> Outcome {
    let ready = match member {
        Ok(ready) => ready,
        Err(error) => return error.into(),
    };
    let tool = ready.prepared.tool().definition().name.to_string();
    if let Err(error) = seat.together.check(&tool) {
        return error.into();
    }
    let run = executor.run_ready(*ready, turn, Consent::Given, Some(seat));
    match AssertUnwindSafe(run).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(_) => {
            tracing::error!(%tool, "a panic while the tool ran");
            let cause = "an internal error".to_owned();
            let trace = Trace { group: Some(seat.group), ..Trace::default() };
            Outcome { result: Err(ToolError::Execution { tool, cause }), trace: Some(trace) }
        }
    }
}

/// One result for all: for each call a line with what became of it, then its own content; and the same as structure.
fn answers(names: &[String], outcomes: Vec<Outcome>) -> ToolOutput {
    let mut content: Vec<RawJson> = Vec::new();
    let mut results: Vec<RawJson> = Vec::new();
    let mut any_succeeded = false;
    for (i, (name, outcome)) in names.iter().zip(outcomes).enumerate() {
        let mut told = ObjectWriter::default();
        told.string("name", name);
        let (status, rest) = match &outcome.result {
            Ok(output @ ToolOutput::Result(raw)) => {
                let status = if output.is_error() { "failed" } else { "ok" };
                any_succeeded |= status == "ok";
                told.string("status", status).raw("result", raw.as_bytes());
                (status.to_owned(), blocks(raw))
            }
            Ok(ToolOutput::RpcError(raw)) => {
                told.string("status", "failed").raw("error", raw.as_bytes());
                (format!("failed: {}", raw.as_str()), Vec::new())
            }
            Err(error) => {
                told.string("status", error.kind()).value("error", &error.facts());
                (format!("{}: {error}", error.kind()), Vec::new())
            }
        };
        if let Some(trace) = &outcome.trace {
            told.raw("run", trace.json().as_bytes());
        }
        content.push(text_block(&format!("[{}] {name}: {status}", i + 1)));
        content.extend(rest);
        results.push(told.json());
    }
    let mut structure = ObjectWriter::default();
    structure.raw("results", &array(results.iter()));
    let mut result = ObjectWriter::default();
    result.raw("content", &array(content.iter())).raw("structuredContent", &structure.finish());
    if !any_succeeded {
        result.raw("isError", b"true");
    }
    ToolOutput::Result(result.json())
}

fn blocks(result: &RawJson) -> Vec<RawJson> {
    let object = RawObject::parse(result.as_bytes()).unwrap_or_default();
    let blocks: Vec<&serde_json::value::RawValue> = object
        .get("content")
        .and_then(|content| serde_json::from_str(content.get()).ok())
        .unwrap_or_default();
    blocks.into_iter().map(|block| RawJson::trusted(block.get().to_owned())).collect()
}

fn text_block(text: &str) -> RawJson {
    let mut block = ObjectWriter::with_capacity(text.len() + 32);
    block.string("type", "text").string("text", text);
    block.json()
}

/// What would run when. Numbers of calls count from 1, as in the answers of a run.
fn plan(names: &[String], members: &[Member]) -> ToolOutput {
    let claims = claims_of(members);
    let groups = partition_parallel_groups(&claims);
    let group_of = |i: usize| groups.iter().position(|group| group.contains(&i)).unwrap_or_default();
    let mut text = String::from("Nothing was run. Groups, one after another:");
    for group in &groups {
        let calls: Vec<String> = group.clone().map(|i| format!("[{}] {}", i + 1, names[i])).collect();
        text.push_str(&format!("\n- {}", calls.join(" together with ")));
    }
    let calls = members.iter().enumerate().map(|(i, member)| {
        let group = group_of(i);
        let waits_for: Vec<usize> = (0..groups[group].start)
            .filter(|&j| claims[j].conflicts_with(&claims[i]))
            .map(|j| j + 1)
            .collect();
        let mut call = json!({ "call": i + 1, "name": names[i], "group": group });
        match member {
            Ok(ready) if ready.prepared.is_meta() => {}
            Ok(ready) => {
                call["claim"] = json!(claims[i].to_string());
                call["waits_for"] = json!(waits_for);
                if let Some(confirmation) = ready.prepared.confirmation() {
                    call["asks"] = json!(confirmation.reason);
                }
                text.push_str(&format!("\n[{}] {}: {}", i + 1, names[i], claims[i]));
                if !waits_for.is_empty() {
                    text.push_str(&format!(", after {waits_for:?}"));
                }
            }
            Err(error) => {
                call["error"] = error.facts();
                text.push_str(&format!("\n[{}] {}: would not run: {error}", i + 1, names[i]));
            }
        }
        call
    });
    let calls: Vec<serde_json::Value> = calls.collect();
    let groups: Vec<Vec<usize>> = groups.iter().map(|group| group.clone().map(|i| i + 1).collect()).collect();
    ToolOutput::structured(&text, &json!({ "plan": true, "groups": groups, "calls": calls }))
}
