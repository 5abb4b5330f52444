//! `ScopedToolService`: the tool service of one connection.

use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::Value;

use super::prepare::{Prepared, prepare};
use super::view::{MetaTools, Settings, View};
use crate::catalog::snapshot::Catalog;
use crate::tools::error::ToolError;
use crate::tools::json::{RawJson, RawObject};
use crate::tools::service::{ToolDefinition, ToolOutput, ToolService, Turn};

/// One connection's tools. Cheap to share; every question is answered from one immutable [`View`].
pub struct ScopedToolService {
    catalog: Arc<Catalog>,
    meta: MetaTools,
    runner: Arc<dyn Runner>,
    state: Mutex<State>,
}

/// Brings a call from its name to its result. What waits, for people, for other calls, for the tool, is its business.
pub trait Runner: Send + Sync + 'static {
    /// Judges and runs one call.
    fn run<'a>(
        &'a self,
        name: &'a str,
        arguments: &'a Value,
        turn: &'a Turn,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>>;
}

struct State {
    settings: Arc<Settings>,
    promoted: Arc<[Arc<str>]>,
    view: Option<Arc<View>>,
}

impl ScopedToolService {
    /// A scope over a catalog. `parts` makes the gateway's own tools and what runs calls, which look back at the scope.
    pub fn new(
        catalog: Arc<Catalog>,
        settings: Arc<Settings>,
        parts: impl FnOnce(&Weak<ScopedToolService>) -> (MetaTools, Arc<dyn Runner>),
    ) -> Arc<ScopedToolService> {
        Arc::new_cyclic(|scope| {
            let (meta, runner) = parts(scope);
            let state = Mutex::new(State { settings, promoted: Arc::from([]), view: None });
            ScopedToolService { catalog, meta, runner, state }
        })
    }

    /// What is visible now; the same pointer while nothing changed.
    pub fn view(&self) -> Arc<View> {
        let snapshot = self.catalog.snapshot();
        let mut state = self.lock();
        if let Some(view) = &state.view
            && view.snapshot.version == snapshot.version
        {
            return Arc::clone(view);
        }
        let view = View::new(snapshot, Arc::clone(&state.settings), Arc::clone(&state.promoted), &self.meta);
        let view = Arc::new(view);
        state.view = Some(Arc::clone(&view));
        view
    }

    /// Puts other settings in force, from the next request on.
    pub fn apply(&self, settings: Arc<Settings>) {
        let mut state = self.lock();
        state.settings = settings;
        state.view = None;
    }

    /// Adds tools to the end of the list for the rest of the connection; known ones keep their place.
    pub fn promote(&self, names: &[Arc<str>]) {
        let mut state = self.lock();
        let mut promoted = state.promoted.to_vec();
        promoted.extend(names.iter().filter(|name| !state.promoted.contains(name)).cloned());
        if promoted.len() > state.promoted.len() {
            state.promoted = promoted.into();
            state.view = None;
        }
    }

    /// Judges a call without waiting for anything.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn prepare(&self, name: &str, arguments: RawJson) -> Result<Prepared, ToolError> {
        prepare(&self.view(), name, arguments)
    }

    /// Looks at what a tool gave; one that breaks the promise of its output schema is listed without it from now on.
    pub fn note_output(&self, prepared: &Prepared, output: &ToolOutput) {
        if !keeps_output_promise(prepared, output) && prepared.tool().withdraw_output_promise() {
            self.catalog.touch();
        }
    }

    /// The text of the `tools` array.
    pub fn wire(&self) -> Bytes {
        self.view().wire().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds a scope's state")
    }
}

/// Whether a result keeps what the tool's output schema promises; errors promise nothing.
fn keeps_output_promise(prepared: &Prepared, output: &ToolOutput) -> bool {
    let tool = prepared.tool();
    let ToolOutput::Result(raw) = output else { return true };
    if tool.definition().output_schema.is_none() || tool.output_promise_withdrawn() || output.is_error() {
        return true;
    }
    let Ok(object) = RawObject::parse(raw.as_bytes()) else { return true };
    let structured = object.get("structuredContent").map(|raw| serde_json::from_str::<Value>(raw.get()));
    match structured {
        None => tool.keeps_output_promise(None),
        Some(Ok(value)) => tool.keeps_output_promise(Some(&value)),
        // Nested too deeply to be judged: nobody else will judge it either.
        Some(Err(_)) => true,
    }
}

impl ToolService for ScopedToolService {
    fn execute<'a>(&'a self, name: &'a str, input: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move { self.runner.run(name, &input, &Turn::detached()).await })
    }

    fn list(&self) -> BoxFuture<'_, Vec<ToolDefinition>> {
        Box::pin(async { self.view().listed().to_vec() })
    }

    fn dispatchable_list(&self) -> BoxFuture<'_, Vec<ToolDefinition>> {
        Box::pin(async {
            let view = self.view();
            let mut tools = view.listed().to_vec();
            let hidden = view
                .dispatchable()
                .filter(|(i, _)| view.place(*i).visibility == super::view::Visibility::Deferred);
            tools.extend(hidden.map(|(_, tool)| tool.definition().clone()));
            tools
        })
    }

    fn describe<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<ToolDefinition>> {
        Box::pin(async move {
            let view = self.view();
            if let Some(meta) = view.meta(name) {
                return Some(meta.definition().clone());
            }
            view.present(view.snapshot.position(name)?)
        })
    }

    fn metadata_schema(&self) -> Arc<[ToolDefinition]> {
        Arc::clone(self.view().listed())
    }
}
