//! `call_tools`: several calls as one, in groups that run together, one group after another.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, Weak};

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use serde_json::json;

use super::calls::{Arrival, Consent, Executor, Outcome, Ready};
use super::trace::{Group, Trace};
use crate::catalog::registry::RegisteredTool;
use crate::tools::concurrency::{ConcurrencyClaim, Scope, partition_parallel_groups};
use crate::tools::error::ToolError;
use crate::tools::json::{ObjectWriter, RawJson, RawObject, array};
use crate::tools::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, Turn,
};

/// Most calls of one batch.
const MOST_CALLS: usize = 100;

/// Its name on the wire.
const NAME: &str = "call_tools";

struct Batch(Weak<Executor>);

/// The tool over a connection.
pub fn tool(executor: &Weak<Executor>) -> Arc<RegisteredTool> {
    let definition = ToolDefinition::new(
        NAME,
        "Calls several tools at once. Calls that get in each other's way run one after another in the given order, \
         the others together; the answers come in the given order. With `plan` nothing runs: the answer tells the \
         groups and who waits for whom.",
        RawJson::from_value(&json!({
            "type": "object",
            "properties": {
                "calls": {
                    "type": "array", "minItems": 1, "maxItems": MOST_CALLS,
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": { "type": "string", "minLength": 1, "description": "The tool's name." },
                            "arguments": { "type": "object", "description": "Its arguments." }
                        },
                        "required": ["name"],
                        "additionalProperties": false
                    }
                },
                "plan": { "type": "boolean", "description": "Only tell what would run when." }
            },
            "required": ["calls"],
            "additionalProperties": false,
        })),
        Source::Builtin,
        ToolMetadata::default(),
    );
    Arc::new(RegisteredTool::new(
        definition.with_title("Call several tools"),
        Arc::new(Batch(executor.clone())),
    ))
}

impl ToolHandler for Batch {
    fn call<'a>(&'a self, input: Input, turn: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let Some(executor) = self.0.upgrade() else {
                return Err(ToolError::Cancelled { tool: NAME.to_owned() });
            };
            let calls = calls(&input.raw);
            let names: Vec<String> = calls.iter().map(|(name, _)| name.clone()).collect();
            let members = gather(&executor, calls).await;
            let output = match input.value["plan"] == true {
                true => plan(&names, &members),
                false => answers(&names, run(&executor, members, turn).await),
            };
            Ok(ToolResult::Completed(output))
        })
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
type Member = Result<Ready, ToolError>;

/// Judges all calls before the first one runs.
async fn gather(executor: &Executor, calls: Vec<(String, RawJson)>) -> Vec<Member> {
    let mut members = Vec::with_capacity(calls.len());
    for (name, arguments) in calls {
        let member = match executor.arrive(&name, arguments) {
            Arrival::Ready(ready) if &*ready.prepared.tool().definition().name == NAME => {
                Err(ToolError::Validation {
                    tool: NAME.to_owned(),
                    path: format!("/calls/{}/name", members.len()),
                    message: "a batch cannot hold a batch: give its calls themselves".to_owned(),
                    schema: None,
                })
            }
            Arrival::Ready(ready) => Ok(*ready),
            Arrival::Early(early) => executor.settle(early).await,
            Arrival::Failed(error) => Err(error),
        };
        members.push(member.map(|mut ready| {
            // Each group joins the order when it is its turn.
            Executor::step_back(&mut ready);
            ready
        }));
    }
    members
}

/// What a member claims; the gateway's own tools and calls that never run are in nobody's way but everything's.
fn claim_of(member: &Member) -> ConcurrencyClaim {
    match member {
        Ok(ready) if !ready.prepared.is_meta() => ready.prepared.claim(),
        Ok(_) | Err(_) => ConcurrencyClaim::shared_in(Scope::nodes(["\0nothing"])),
    }
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
}

async fn run(executor: &Executor, members: Vec<Member>, turn: &Turn) -> Vec<Outcome> {
    let claims: Vec<ConcurrencyClaim> = members.iter().map(claim_of).collect();
    let together = Together::default();
    let mut members = members.into_iter();
    let mut outcomes = Vec::with_capacity(claims.len());
    for (index, range) in partition_parallel_groups(&claims).into_iter().enumerate() {
        let group = Group { index, size: range.len() };
        let seat = Seat { group, together: &together };
        let mut judged: Vec<Member> = members.by_ref().take(range.len()).collect();
        // People are asked in the order of the calls, before any call of the group runs.
        for member in &mut judged {
            let Ok(ready) = &*member else { continue };
            let tool = &ready.prepared.tool().definition().name;
            if let Err(error) = together.ask(tool, executor.confirm(ready, turn)).await {
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
    let run = executor.run_ready(ready, turn, Consent::Given, Some(seat));
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
    let claims: Vec<ConcurrencyClaim> = members.iter().map(claim_of).collect();
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
