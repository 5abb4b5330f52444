//! The way of one call: its place in the order, a person's yes, its turn, hooks, the handler, hooks, its result.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use super::attempt::attempt;
use super::batch::{self, Batch, Seat};
use super::confirm::SessionMemory;
use super::schedule::{Place, Schedule};
use super::trace::Trace;
use crate::catalog::snapshot::Catalog;
use crate::tools::concurrency::{ConcurrencyClaim, Scope};
use crate::tools::error::{Denial, Executed, ToolError};
use crate::tools::hook::{After, Before, Hook, HookCall};
use crate::tools::json::RawJson;
use crate::tools::results::{Budget, ResultStore};
use crate::tools::scoped::prepare::Prepared;
use crate::tools::scoped::service::{Runner, ScopedToolService};
use crate::tools::scoped::view::{MetaTools, Settings};
use crate::tools::service::{ToolOutput, ToolResult, Turn};
use crate::tools::{read_result, schema_lookup, tool_search};
use crate::upstream::owners::Owners;

/// The longest a call may take beside others of its group, where the operator says nothing.
pub const DEFAULT_PARALLEL_LIMIT: Duration = Duration::from_millis(30_000);

/// What all connections of a gateway have in common.
pub struct Shared {
    /// The order of all calls.
    pub schedule: Arc<Schedule>,
    /// Asked about each call, in this order.
    pub hooks: Vec<Arc<dyn Hook>>,
    /// The longest a call may take beside others of its group.
    pub parallel_limit: Duration,
    /// Whose tools are not there yet, or no more.
    pub owners: Owners,
}

/// Runs the calls of one connection.
pub struct Executor {
    shared: Arc<Shared>,
    scope: Weak<ScopedToolService>,
    memory: SessionMemory,
    results: Arc<ResultStore>,
}

/// What became of a call.
pub struct Outcome {
    /// Its result, or why there is none.
    pub result: Result<ToolOutput, ToolError>,
    /// What happened on the way; nothing for the gateway's own tools, which touch nothing.
    pub trace: Option<Trace>,
}

impl From<ToolError> for Outcome {
    fn from(error: ToolError) -> Outcome {
        Outcome { result: Err(error), trace: None }
    }
}

/// A call that has arrived and been judged, with its place in the order if it needs nobody's yes.
pub enum Arrival {
    /// It may go on.
    Ready(Box<Ready>),
    /// Its tool may come with a server that is on its way up. The place keeps such calls in their order.
    Early(Early),
    /// It ends here.
    Failed(ToolError),
}

/// A judged call.
pub struct Ready {
    pub(super) prepared: Prepared,
    place: Option<Held>,
    /// The calls, if it is a batch.
    batch: Option<Batch>,
}

impl Ready {
    /// Gives up the place that was taken on arrival: calls of a batch take theirs group by group.
    pub(super) fn step_back(&mut self) {
        self.place = None;
    }
}

/// A call for a tool that nobody knows yet, so that nobody knows what it touches. It holds up only the calls of the same
/// server behind it, and joins the order once the tool is known.
pub struct Early {
    name: String,
    arguments: RawJson,
    place: Place,
}

/// A place in the order, and since when.
struct Held {
    place: Place,
    claim: ConcurrencyClaim,
    since: Instant,
}

/// Whether a person's yes is still missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consent {
    /// Where one has to be asked, one will be.
    Open,
    /// It was given.
    Given,
}

impl Executor {
    /// A new connection: its scope, and what runs its calls.
    pub fn connect(
        catalog: Arc<Catalog>,
        settings: Arc<Settings>,
        shared: Arc<Shared>,
        budget: Budget,
    ) -> (Arc<ScopedToolService>, Arc<Executor>) {
        let results = Arc::new(ResultStore::new(budget));
        let mut executor = None;
        let scope = ScopedToolService::new(catalog, settings, |scope| {
            let made = Arc::new(Executor {
                shared,
                scope: Weak::clone(scope),
                memory: SessionMemory::default(),
                results: Arc::clone(&results),
            });
            executor = Some(Arc::clone(&made));
            let meta = MetaTools {
                search: tool_search::tool(scope),
                schema: schema_lookup::tool(scope),
                call: tool_search::call_tool(),
                batch: batch::tool(),
                read: read_result::tool(results),
            };
            (meta, made as Arc<dyn Runner>)
        });
        (scope, executor.expect("it was made with the scope"))
    }

    /// Judges a call and, if nobody has to be asked, gives it its place in the order. Waits for nothing: what calls
    /// this in the order of the wire keeps that order.
    pub fn arrive(&self, name: &str, arguments: RawJson) -> Arrival {
        match self.prepare(name, arguments.clone()) {
            Ok(prepared) => Arrival::Ready(Box::new(self.take_place(prepared))),
            Err(ToolError::NotFound { .. }) if let Some(server) = self.shared.owners.on_its_way(name) => {
                let claim = ConcurrencyClaim::Exclusive(Scope::nodes([format!("\0start of {server}")]));
                let place = self.shared.schedule.join_aside(&claim);
                Arrival::Early(Early { name: name.to_owned(), arguments, place })
            }
            Err(error) => Arrival::Failed(self.with_owner(name, error)),
        }
    }

    /// Brings a call to its end.
    pub async fn finish(&self, arrival: Arrival, turn: &Turn) -> Outcome {
        let ready = match arrival {
            Arrival::Ready(ready) => ready,
            Arrival::Failed(error) => return error.into(),
            Arrival::Early(early) => match self.settle(early).await {
                Ok(ready) => Box::new(ready),
                Err(error) => return error.into(),
            },
        };
        self.run_ready(*ready, turn, Consent::Open, None).await
    }

    /// Waits for the server of a tool, and gives the call its place before the next one that waited for it.
    pub(super) async fn settle(&self, early: Early) -> Result<Ready, ToolError> {
        let Early { name, arguments, place } = early;
        place.begin().await;
        self.shared.owners.until_settled(&name).await;
        let prepared = self.prepare(&name, arguments).map_err(|error| self.with_owner(&name, error))?;
        let ready = self.take_place(prepared);
        drop(place);
        Ok(ready)
    }

    fn prepare(&self, name: &str, arguments: RawJson) -> Result<Prepared, ToolError> {
        let prepared = self.scope()?.prepare(name, arguments);
        if let Err(ToolError::PermissionDenied { tool, denial: Denial::Policy(rule) }) = &prepared {
            tracing::info!(%tool, %rule, "refused by policy");
        }
        prepared
    }

    /// The server it would belong to is down: that is what the model has to know.
    fn with_owner(&self, name: &str, error: ToolError) -> ToolError {
        let ToolError::NotFound { tool, suggestions } = error else { return error };
        let policy = self.scope().ok().map(|scope| scope.view());
        let cause = policy.and_then(|view| self.shared.owners.failed(name, &view.settings.policy));
        match cause {
            Some(cause) => ToolError::Transport { tool, cause, executed: Executed::No },
            None => ToolError::NotFound { tool, suggestions },
        }
    }

    fn scope(&self) -> Result<Arc<ScopedToolService>, ToolError> {
        self.scope.upgrade().ok_or_else(|| ToolError::Cancelled { tool: String::new() })
    }

    fn take_place(&self, prepared: Prepared) -> Ready {
        let needs_place = !prepared.is_meta() && prepared.confirmation().is_none();
        let place = needs_place.then(|| self.hold(&prepared));
        let batch = batch::is_batch(&prepared).then(|| Batch::arrive(self, prepared.input()));
        Ready { prepared, place, batch }
    }

    fn hold(&self, prepared: &Prepared) -> Held {
        let claim = prepared.claim();
        Held { place: self.shared.schedule.join(&claim), claim, since: Instant::now() }
    }

    /// Asks the questions of a call of a batch ahead of its group.
    pub(super) async fn confirm(&self, prepared: &Prepared, turn: &Turn) -> Result<(), ToolError> {
        match prepared.confirmation() {
            Some(confirmation) => self.memory.confirm(prepared, confirmation, turn).await,
            None => Ok(()),
        }
    }

    pub(super) async fn run_ready(
        &self,
        ready: Ready,
        turn: &Turn,
        consent: Consent,
        seat: Option<Seat<'_>>,
    ) -> Outcome {
        let Ready { prepared, place, batch } = ready;
        if let Some(batch) = batch {
            return Outcome { result: Ok(Box::pin(batch.run(self, turn)).await), trace: None };
        }
        if prepared.is_meta() {
            let result = match attempt(&prepared, turn, None).await.answer {
                Ok(ToolResult::Completed(output)) => Ok(output),
                Ok(ToolResult::ToolError(cause)) => Err(execution(&prepared, cause)),
                Ok(ToolResult::NeedsApproval(_)) => {
                    Err(execution(&prepared, "the gateway's own tools ask for nothing".to_owned()))
                }
                Err(error) => Err(error),
            };
            return Outcome { result, trace: None };
        }
        let trace = Trace { group: seat.map(|seat| seat.group), ..Trace::default() };
        let mut run = Run { executor: self, turn, seat, trace };
        let result = run.through(prepared, place, consent).await;
        Outcome { result, trace: Some(run.trace) }
    }
}

fn name(prepared: &Prepared) -> String {
    prepared.tool().definition().name.to_string()
}

fn execution(prepared: &Prepared, cause: String) -> ToolError {
    ToolError::Execution { tool: name(prepared), cause }
}

/// One call on its way.
struct Run<'a> {
    executor: &'a Executor,
    turn: &'a Turn,
    seat: Option<Seat<'a>>,
    trace: Trace,
}

impl Run<'_> {
    async fn through(
        &mut self,
        prepared: Prepared,
        place: Option<Held>,
        consent: Consent,
    ) -> Result<ToolOutput, ToolError> {
        if let (Some(confirmation), Consent::Open) = (prepared.confirmation(), consent) {
            self.executor.memory.confirm(&prepared, confirmation, self.turn).await?;
        }
        let place = place.unwrap_or_else(|| self.executor.hold(&prepared));
        let place = self.until_turn(place, &prepared).await;
        let (prepared, place) = self.before_hooks(prepared, place).await?;
        let said_yes = prepared.confirmation().is_some() || prepared.is_exactly_allowed();
        let (output, place) = self.handler(&prepared, place, said_yes).await?;
        let output = self.after_hooks(&prepared, output).await?;
        drop(place);
        let scope = self.executor.scope()?;
        scope.note_output(&prepared, &output);
        let results = &self.executor.results;
        let max_chars = match self.seat {
            Some(seat) => seat.share(results.max_chars()),
            None => results.max_chars(),
        };
        let output =
            results.fit_within(max_chars, output, |value| prepared.tool().keeps_output_promise(Some(value)));
        // A schema that the shortened structure breaks must not be shown any longer.
        scope.note_output(&prepared, &output);
        Ok(output)
    }

    /// Waits until nothing that came before is in the way. What a path names may have changed meanwhile: then the
    /// call goes to the end of the line with what it touches now.
    async fn until_turn(&mut self, mut held: Held, prepared: &Prepared) -> Held {
        loop {
            let has_waited = held.place.begin().await;
            self.trace.waited += held.since.elapsed();
            if !has_waited {
                break;
            }
            let now = prepared.claim();
            if now == held.claim {
                break;
            }
            drop(held);
            held = self.executor.hold(prepared);
        }
        self.trace.claim = held.claim.to_string();
        held
    }

    /// Hooks may refuse the call or change its arguments, which are then judged like any others.
    async fn before_hooks(
        &mut self,
        mut prepared: Prepared,
        mut held: Held,
    ) -> Result<(Prepared, Held), ToolError> {
        for hook in &self.executor.shared.hooks {
            let definition = prepared.tool().definition();
            if !hook.concerns(definition) {
                continue;
            }
            let call = HookCall { tool: definition, input: prepared.input(), turn: self.turn };
            match hook.before(call).await {
                Before::Allow => {}
                Before::Deny { reason } => {
                    return Err(ToolError::PermissionDenied {
                        tool: name(&prepared),
                        denial: Denial::Hook { hook: hook.name().to_owned(), reason },
                    });
                }
                Before::Block { reason } => return Err(execution(&prepared, reason)),
                Before::Rewrite(arguments) => {
                    let changed = self.executor.prepare(&definition.name.clone(), arguments)?;
                    if let Some(confirmation) = changed.confirmation() {
                        // Whoever waits for a person is in nobody's way.
                        drop(held);
                        let question = self.executor.memory.confirm(&changed, confirmation, self.turn);
                        self.ask(&changed, question).await?;
                        held = self.until_turn(self.executor.hold(&changed), &changed).await;
                    } else if changed.claim() != held.claim {
                        drop(held);
                        held = self.until_turn(self.executor.hold(&changed), &changed).await;
                    }
                    prepared = changed;
                }
            }
        }
        Ok((prepared, held))
    }

    /// The handler, and once more with a person's yes if it asks for one.
    async fn handler(
        &mut self,
        prepared: &Prepared,
        held: Held,
        said_yes: bool,
    ) -> Result<(ToolOutput, Held), ToolError> {
        let approved = || Turn { is_approved: true, ..self.turn.clone() };
        let first = if said_yes { Some(approved()) } else { None };
        let answer = self.attempt(prepared, first.as_ref().unwrap_or(self.turn)).await?;
        let request = match answer {
            ToolResult::Completed(output) => return Ok((output, held)),
            ToolResult::ToolError(cause) => return Err(execution(prepared, cause)),
            ToolResult::NeedsApproval(request) => request.by(&self.turn.client),
        };
        drop(held);
        let question = self.executor.memory.ask(&request, prepared, self.turn);
        self.ask(prepared, question).await?;
        let held = self.until_turn(self.executor.hold(prepared), prepared).await;
        let turn = approved();
        match self.attempt(prepared, &turn).await? {
            ToolResult::Completed(output) => Ok((output, held)),
            ToolResult::ToolError(cause) => Err(execution(prepared, cause)),
            ToolResult::NeedsApproval(_) => {
                Err(execution(prepared, "the tool asked again for what was just approved".to_owned()))
            }
        }
    }

    /// Puts a question to a person; in a batch one after another, and none once one was put off.
    async fn ask(
        &self,
        prepared: &Prepared,
        question: impl Future<Output = Result<(), ToolError>>,
    ) -> Result<(), ToolError> {
        match self.seat {
            Some(seat) => seat.together.ask(&prepared.tool().definition().name, question).await,
            None => question.await,
        }
    }

    async fn attempt(&mut self, prepared: &Prepared, turn: &Turn) -> Result<ToolResult, ToolError> {
        let has_siblings = self.seat.is_some_and(|seat| seat.group.size > 1);
        let limit = match has_siblings && !prepared.has_operators_limit() {
            true => prepared.limit().min(self.executor.shared.parallel_limit),
            false => prepared.limit(),
        };
        let ran = attempt(prepared, turn, Some(limit)).await;
        self.trace.ran += ran.elapsed;
        self.trace.attempts += ran.attempts;
        ran.answer
    }

    async fn after_hooks(
        &self,
        prepared: &Prepared,
        mut output: ToolOutput,
    ) -> Result<ToolOutput, ToolError> {
        for hook in &self.executor.shared.hooks {
            let definition = prepared.tool().definition();
            if !hook.concerns(definition) {
                continue;
            }
            let call = HookCall { tool: definition, input: prepared.input(), turn: self.turn };
            match hook.after(call, &output).await {
                After::Keep => {}
                After::Replace(other) => output = other,
                After::Block { reason } => return Err(execution(prepared, reason)),
            }
        }
        Ok(output)
    }
}

impl Runner for Executor {
    fn run<'a>(
        &'a self,
        name: &'a str,
        arguments: &'a Value,
        turn: &'a Turn,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        let arrival = self.arrive(name, RawJson::from_value(arguments));
        Box::pin(async move { self.finish(arrival, turn).await.result })
    }
}
