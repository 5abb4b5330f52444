//! One client's connection: reads lines, runs calls side by side, answers each request once, and ends in time.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::elicit::Elicitation;
use super::encode;
use super::lifecycle::{Inlet, open};
use super::pipes::{Input, Output};
use super::progress::{Progress, with_heartbeat};
use super::relay::Relay;
use super::request::{
    Incoming, Rejection, Sender, client_name, homeless, modern_sender, negotiated, oversized, sort,
};
use crate::config::tables::Promote;
use crate::executor::calls::{Arrival, Executor};
use crate::gateway::Gateway;
use crate::lines::{Line, LineReader, Outbox};
use crate::tools::approval::ApprovalHandler;
use crate::tools::error::ToolError;
use crate::tools::json::{ObjectWriter, RawJson, RawObject};
use crate::tools::scoped::service::ScopedToolService;
use crate::tools::scoped::view::View;
use crate::tools::service::{ProgressSink, Turn};
use crate::tools::tool_search;
use crate::upstream::client::ASKABLE;
use crate::upstream::supervisor::Shutdown;

/// Longest line taken from a client; beyond it the client gets an error, and the line is not kept.
pub const LINE_CAP: usize = 32 << 20;
/// Calls of one client that may be open at once. Beyond it they are refused, not queued: the reader never blocks.
const MOST_IN_FLIGHT: usize = 10_000;
/// How long calls that were accepted may still take once the client has closed its end; piped use depends on it.
const FAREWELL: Duration = Duration::from_millis(1500);
/// How long after the end of input calls may still begin at their servers.
const LAST_ORDERS: Duration = Duration::from_millis(50);
/// How long the last answers may take to leave, for a client that has stopped reading.
const FLUSH: Duration = Duration::from_millis(500);
/// How long the answer of a search is held for a client to list again, so that what was found is among its tools when
/// its model reads the answer. The slowest that does so takes a third of a second.
const RELIST_LIMIT: Duration = Duration::from_millis(500);
/// Changes of the catalog within this time are announced once.
const COALESCE: Duration = Duration::from_millis(40);

/// What is known about the client.
#[derive(Default)]
struct Client {
    /// The session's revision, once `initialize` was answered.
    session: Option<&'static str>,
    name: Option<Arc<str>>,
    /// What holds for it is in force.
    is_known: bool,
    can_elicit: bool,
    /// What it declared that servers may use, each as the client wrote it.
    askable: Vec<(&'static str, RawJson)>,
    has_listed: bool,
    /// Whether what a search finds joins its list.
    promote: Promote,
    /// It did not list again when it was told to, so it is not waited for any more.
    ignores_changes: bool,
}

/// What the client has sent so far, as far as someone waits for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sent {
    lists: u64,
    calls: u64,
}

/// One connection.
pub struct Front {
    gateway: Arc<Gateway>,
    scope: Arc<ScopedToolService>,
    executor: Arc<Executor>,
    approvals: Arc<dyn ApprovalHandler>,
    outbox: Outbox,
    lifecycle: Inlet,
    session_id: Arc<str>,
    client: Mutex<Client>,
    in_flight: Mutex<HashMap<RawKey, AbortHandle>>,
    questions: Mutex<HashMap<String, oneshot::Sender<Result<RawJson, RawJson>>>>,
    /// Open `subscriptions/listen` requests that want changes of the tools, by their id.
    listeners: Mutex<Vec<RawJson>>,
    announced: Mutex<Announced>,
    sent: watch::Sender<Sent>,
    silent: AtomicBool,
    next_question: AtomicU64,
    arrivals: AtomicU64,
}

/// The text of an id, as a key.
type RawKey = Box<[u8]>;

fn key(id: &RawJson) -> RawKey {
    id.as_bytes().into()
}

/// The last list that the client was given or told about.
#[derive(Default)]
struct Announced {
    /// The view that was looked at last, so that the same one is not looked at twice. A weak pointer and not an
    /// address: a new view may stand where an old one stood.
    view: Weak<View>,
    list: Option<u64>,
}

impl Front {
    /// Serves one client until its input ends or a signal comes. Returns how the gateway should end its servers.
    pub async fn serve(gateway: Arc<Gateway>, input: Input, output: Output) -> Shutdown {
        let outbox = Outbox::default();
        let (lifecycle, sdk) = open(outbox.clone(), gateway.instructions());
        let front = Arc::new_cyclic(|front: &Weak<Front>| {
            let elicitation =
                Elicitation::new(front.clone(), gateway.approval_limit(), gateway.approvals_without_client());
            let (scope, executor) = gateway.connect();
            Front {
                scope,
                executor,
                approvals: Arc::new(elicitation),
                gateway: Arc::clone(&gateway),
                outbox: outbox.clone(),
                lifecycle,
                session_id: format!("{:x}-{}", std::process::id(), gateway.next_session()).into(),
                client: Mutex::new(Client { promote: gateway.rules_for("").promote, ..Client::default() }),
                in_flight: Mutex::default(),
                questions: Mutex::default(),
                listeners: Mutex::default(),
                announced: Mutex::default(),
                sent: watch::Sender::default(),
                silent: AtomicBool::new(false),
                next_question: AtomicU64::new(1),
                arrivals: AtomicU64::new(0),
            }
        });
        let mut background = JoinSet::new();
        background.spawn(sdk);
        let mut writer = tokio::spawn(outbox.clone().drive(output));
        background.spawn(Arc::clone(&front).announce_changes());
        let mut calls = JoinSet::new();
        let mut lines = LineReader::new(input, LINE_CAP);
        let mut signals = std::pin::pin!(termination());
        let end = loop {
            tokio::select! {
                line = lines.next() => match line {
                    Ok(Some(mut line)) => {
                        // All that one read brought is handled before anything else runs, in order of arrival.
                        loop {
                            front.take(line, &mut calls);
                            match lines.buffered() {
                                Some(next) => line = next,
                                None => break,
                            }
                        }
                    }
                    Ok(None) | Err(_) => break Shutdown::Gently,
                },
                Some(_) = calls.join_next() => {}
                () = &mut signals => break Shutdown::Now,
                _ = &mut writer => {
                    tracing::info!("the client closed its end of the output");
                    break Shutdown::Gently;
                }
            }
        };
        front.part(end, calls).await;
        outbox.close();
        background.abort_all();
        if !writer.is_finished() && timeout(FLUSH, &mut writer).await.is_err() {
            writer.abort();
        }
        end
    }

    /// Lets accepted calls finish for a moment, then drops the rest, which cancels them at their upstreams.
    async fn part(&self, end: Shutdown, mut calls: JoinSet<()>) {
        self.questions.lock().expect("no code panics while it holds the questions").clear();
        for id in
            std::mem::take(&mut *self.listeners.lock().expect("no code panics while it holds the listeners"))
        {
            encode::result(&self.outbox, &id, &RawJson::EMPTY_OBJECT, true);
        }
        if end == Shutdown::Gently && !calls.is_empty() {
            let all = async { while calls.join_next().await.is_some() {} };
            let wind_down = async {
                // A server without an open call may still have one that waits for its turn.
                loop {
                    sleep(LAST_ORDERS).await;
                    let (_, waiting) = self.gateway.shared().schedule.load();
                    if waiting == 0 {
                        break;
                    }
                }
                self.gateway.wind_down();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                _ = timeout(FAREWELL, all) => {}
                () = wind_down => {}
            }
        }
        calls.shutdown().await;
    }

    fn take(self: &Arc<Self>, line: Line, calls: &mut JoinSet<()>) {
        let text = match line {
            Line::Text(text) => text,
            Line::TooLong(prefix) => return encode::rejection(&self.outbox, &oversized(&prefix, LINE_CAP)),
        };
        // A byte order mark has no meaning here, and some editors and shells put one before the first line.
        let text = match text.strip_prefix(b"\xef\xbb\xbf") {
            Some(rest) => text.slice_ref(rest),
            None => text,
        };
        match sort(&text) {
            Incoming::Nothing => {}
            Incoming::Rejected(rejection) => encode::rejection(&self.outbox, &rejection),
            Incoming::Notification { method, params } => {
                self.take_notification(&method, params.as_ref(), &text)
            }
            Incoming::Response { id, outcome } => self.take_response(&id, outcome),
            Incoming::Request { id, method, params } => {
                if let Err(rejection) = self.take_request(&id, &method, params, &text, calls) {
                    encode::rejection(&self.outbox, &rejection);
                }
            }
        }
    }

    fn take_request(
        self: &Arc<Self>,
        id: &RawJson,
        method: &str,
        params: Option<RawJson>,
        line: &Bytes,
        calls: &mut JoinSet<()>,
    ) -> Result<(), Rejection> {
        if self
            .in_flight
            .lock()
            .expect("no code panics while it holds the open calls")
            .contains_key(id.as_bytes())
        {
            return Err(Rejection::new(
                id.clone(),
                -32600,
                "invalid request: a request with this id is still open",
            ));
        }
        if matches!(method, "initialize" | "server/discover") {
            return self.hand_over(id, method, params.as_ref(), line);
        }
        let params = params.unwrap_or(RawJson::EMPTY_OBJECT);
        let object = RawObject::parse(params.as_bytes())
            .map_err(|error| Rejection::new(id.clone(), -32602, format!("invalid params: {error}")))?;
        let meta = object.get("_meta");
        let sender = match modern_sender(id, meta)? {
            Some(sender) => sender,
            None => match self.session_version() {
                Some(version) => Sender { version: version.to_owned(), is_modern: false, client: None },
                None if method == "ping" => Sender { version: String::new(), is_modern: false, client: None },
                None => return Err(homeless(id)),
            },
        };
        if let Some(client) = &sender.client {
            self.meet(client);
        }
        match method {
            "tools/call" => return self.start_call(id, &params, &object, sender, calls),
            "tools/list" => self.start_list(id, &object, sender.is_modern, calls)?,
            "ping" if !sender.is_modern => encode::result(&self.outbox, id, &RawJson::EMPTY_OBJECT, false),
            "subscriptions/listen" if sender.is_modern => self.listen(id, &object)?,
            _ => return Err(Rejection::new(id.clone(), -32601, format!("method not found: {method}"))),
        }
        Ok(())
    }

    /// `initialize` and `server/discover` are the SDK's; what it needs to know later, the front end notes here.
    fn hand_over(
        self: &Arc<Self>,
        id: &RawJson,
        method: &str,
        params: Option<&RawJson>,
        line: &Bytes,
    ) -> Result<(), Rejection> {
        let message = serde_json::from_slice(line.trim_ascii())
            .map_err(|error| Rejection::new(id.clone(), -32602, format!("invalid params: {error}")))?;
        if method == "initialize" {
            let params = params.ok_or_else(|| {
                Rejection::new(id.clone(), -32602, "invalid params: `initialize` needs params")
            })?;
            let object = RawObject::parse(params.as_bytes()).unwrap_or_default();
            let incomplete = |what: &str| {
                Rejection::new(id.clone(), -32602, format!("invalid params: `initialize` needs `{what}`"))
            };
            let wanted = object.text("protocolVersion").ok_or_else(|| incomplete("protocolVersion"))?;
            let info = object.get("clientInfo").ok_or_else(|| incomplete("clientInfo"))?;
            let capabilities = object.get("capabilities").ok_or_else(|| incomplete("capabilities"))?;
            let capabilities = RawObject::parse(capabilities.get().as_bytes()).unwrap_or_default();
            let mut client = self.client();
            client.session = Some(negotiated(Some(&wanted)));
            client.name = Some(client_name(info).into());
            client.can_elicit = declares_forms(capabilities.get("elicitation"));
            client.askable = ASKABLE
                .iter()
                .filter_map(|(_, capability)| {
                    let declared = capabilities.get(capability)?.get();
                    declared.starts_with('{').then(|| (*capability, RawJson::trusted(declared.to_owned())))
                })
                .collect();
            drop(client);
            self.meet(&client_name(info));
            self.gateway.introduce(Arc::new(Relay::new(Arc::downgrade(self))));
            self.gateway.start();
        }
        // The SDK's end is gone only when this connection ends.
        let _ = self.lifecycle.send(message);
        Ok(())
    }

    /// Puts in force what holds for a client that calls itself so, the first time it says its name.
    fn meet(&self, name_and_version: &str) {
        {
            let mut client = self.client();
            if std::mem::replace(&mut client.is_known, true) {
                return;
            }
        }
        let name = name_and_version.rsplit_once('/').map_or(name_and_version, |(name, _)| name);
        let rules = self.gateway.rules_for(name);
        self.client().promote = rules.promote;
        if let Some(settings) = rules.settings {
            self.scope.apply(settings);
        }
    }

    fn take_notification(self: &Arc<Self>, method: &str, params: Option<&RawJson>, line: &Bytes) {
        match method {
            "notifications/initialized" if self.session_version().is_some() => {
                if let Ok(message) = serde_json::from_slice(line.trim_ascii()) {
                    let _ = self.lifecycle.send(message);
                }
            }
            "notifications/roots/list_changed" => self.gateway.tell_servers(method),
            "notifications/cancelled" => {
                let object = params.and_then(|p| RawObject::parse(p.as_bytes()).ok()).unwrap_or_default();
                let Some(id) = object.get("requestId") else { return };
                let id = id.get().as_bytes();
                let call =
                    self.in_flight.lock().expect("no code panics while it holds the open calls").remove(id);
                match call {
                    // Dropping the call frees what it holds and tells its upstream.
                    Some(call) => call.abort(),
                    None => self
                        .listeners
                        .lock()
                        .expect("no code panics while it holds the listeners")
                        .retain(|open| open.as_bytes() != id),
                }
            }
            _ => {}
        }
    }

    fn take_response(&self, id: &RawJson, outcome: Result<RawJson, RawJson>) {
        let Ok(id) = serde_json::from_slice::<String>(id.as_bytes()) else { return };
        let question =
            self.questions.lock().expect("no code panics while it holds the questions").remove(&id);
        // An answer to a question that was withdrawn or has expired goes nowhere.
        if let Some(question) = question {
            let _ = question.send(outcome);
        }
    }

    fn start_list(
        self: &Arc<Self>,
        id: &RawJson,
        params: &RawObject<'_>,
        is_modern: bool,
        calls: &mut JoinSet<()>,
    ) -> Result<(), Rejection> {
        if params.get("cursor").is_some_and(|cursor| !matches!(cursor.get(), "null" | "\"\"")) {
            return Err(Rejection::new(id.clone(), -32602, "invalid params: unknown cursor"));
        }
        self.gateway.start();
        if self.gateway.is_list_ready() {
            self.answer_list(id, is_modern);
            return Ok(());
        }
        let (front, id) = (Arc::clone(self), id.clone());
        self.track(&id.clone(), calls, async move {
            front.gateway.until_list_ready().await;
            front.finish(&id, |front| front.answer_list(&id, is_modern));
        });
        Ok(())
    }

    fn answer_list(&self, id: &RawJson, is_modern: bool) {
        let view = self.scope.view();
        self.client().has_listed = true;
        self.sent.send_modify(|sent| sent.lists += 1);
        {
            let mut announced = self.announced.lock().expect("no code panics while it holds the last list");
            announced.view = Arc::downgrade(&view);
            announced.list = Some(digest(view.wire()));
        }
        encode::tools(&self.outbox, id, view.wire(), is_modern);
    }

    fn start_call(
        self: &Arc<Self>,
        id: &RawJson,
        params: &RawJson,
        object: &RawObject<'_>,
        sender: Sender,
        calls: &mut JoinSet<()>,
    ) -> Result<(), Rejection> {
        let invalid = |why: &str| Rejection::new(id.clone(), -32602, format!("invalid params: {why}"));
        let name = object.text("name").ok_or_else(|| invalid("`name` must be a string"))?;
        let arguments = match object.get("arguments") {
            None => RawJson::EMPTY_OBJECT,
            Some(raw) if raw.get() == "null" => RawJson::EMPTY_OBJECT,
            Some(raw) if raw.get().starts_with('{') => RawJson::slice(params.bytes(), raw),
            Some(_) => return Err(invalid("`arguments` must be an object")),
        };
        if self.in_flight.lock().expect("no code panics while it holds the open calls").len()
            >= MOST_IN_FLIGHT
        {
            return Err(Rejection::new(
                id.clone(),
                -32603,
                "too many calls are open: wait for some to finish",
            ));
        }
        self.gateway.start();
        let is_modern = sender.is_modern;
        let meta = object.get("_meta").map(|raw| RawJson::slice(params.bytes(), raw));
        let token = meta.as_ref().and_then(|meta| {
            let meta = RawObject::parse(meta.as_bytes()).ok()?;
            meta.get("progressToken").map(|token| token.get().to_owned())
        });
        let progress = token.map(|token| Arc::new(Progress::new(token, self.outbox.clone())));
        self.sent.send_modify(|sent| sent.calls += 1);
        let turn = self.turn(id, sender, meta, progress.clone());
        // Its place in the order is taken here, in the order of the wire: behind this line that order is lost.
        let arrival = std::panic::catch_unwind(AssertUnwindSafe(|| self.executor.arrive(&name, arguments)));
        let arrival = arrival.unwrap_or_else(|_| Arrival::Failed(internal_error(&name)));
        let (front, id) = (Arc::clone(self), id.clone());
        self.track(&id.clone(), calls, async move {
            let call = AssertUnwindSafe(front.executor.finish(arrival, &turn)).catch_unwind();
            let outcome = match with_heartbeat(call, progress.as_deref()).await {
                Ok(outcome) => outcome,
                Err(_) => internal_error(&name).into(),
            };
            if let Err(error) = &outcome.result {
                tracing::info!(kind = error.kind(), tool = error.tool(), "a call failed");
            }
            if name == tool_search::NAME && front.announce_if_changed() {
                front.until_listed_again().await;
            }
            front.finish(&id, |front| {
                // What the call changed in the list is told before its answer.
                front.announce_if_changed();
                encode::outcome(&front.outbox, &id, outcome, is_modern);
            });
        });
        Ok(())
    }

    fn turn(
        &self,
        id: &RawJson,
        sender: Sender,
        meta: Option<RawJson>,
        progress: Option<Arc<Progress>>,
    ) -> Turn {
        let client = match sender.client {
            Some(client) => client.into(),
            None => self.client().name.clone().unwrap_or_else(|| "?".into()),
        };
        let listens = !self.listeners.lock().expect("no code panics while it holds the listeners").is_empty();
        Turn {
            session_id: Arc::clone(&self.session_id),
            request_id: Some(id.clone()),
            client,
            promotes: Gateway::promotes(self.client().promote, sender.is_modern, listens),
            protocol_version: sender.version.into(),
            arrival: self.arrivals.fetch_add(1, Ordering::Relaxed),
            meta,
            is_approved: false,
            progress: progress.map(|progress| progress as Arc<dyn ProgressSink>),
            approvals: if sender.is_modern {
                self.gateway.approvals_without_client()
            } else {
                Arc::clone(&self.approvals)
            },
        }
    }

    /// Runs a request on its own, findable by its id until it is answered. There is one thread: the work begins
    /// after it can be found.
    fn track(&self, id: &RawJson, calls: &mut JoinSet<()>, work: impl Future<Output = ()> + Send + 'static) {
        let handle = calls.spawn(work);
        self.in_flight.lock().expect("no code panics while it holds the open calls").insert(key(id), handle);
    }

    /// Answers a request, unless it was cancelled while its answer was made.
    fn finish(&self, id: &RawJson, answer: impl FnOnce(&Front)) {
        let open = self
            .in_flight
            .lock()
            .expect("no code panics while it holds the open calls")
            .remove(id.as_bytes());
        if open.is_some() {
            answer(self);
        }
    }

    /// `subscriptions/listen`: acknowledged at once, open until it is cancelled or the connection ends.
    fn listen(&self, id: &RawJson, params: &RawObject<'_>) -> Result<(), Rejection> {
        let Some(wanted) =
            params.get("notifications").and_then(|raw| RawObject::parse(raw.get().as_bytes()).ok())
        else {
            return Err(Rejection::new(
                id.clone(),
                -32602,
                "invalid params: `notifications` must be an object",
            ));
        };
        let tools = wanted.get("toolsListChanged").is_some_and(|flag| flag.get() == "true");
        let accepted = if tools { json!({ "toolsListChanged": true }) } else { json!({}) };
        let mut params = ObjectWriter::default();
        params.raw("_meta", &subscription(id));
        params.value("notifications", &accepted);
        encode::notification(&self.outbox, "notifications/subscriptions/acknowledged", &params.finish());
        self.listeners.lock().expect("no code panics while it holds the listeners").push(id.clone());
        Ok(())
    }

    /// Watches the catalog and tells the client when what it sees has changed.
    async fn announce_changes(self: Arc<Self>) {
        let mut catalog = self.gateway.catalog().subscribe();
        while catalog.changed().await.is_ok() {
            sleep(COALESCE).await;
            catalog.mark_unchanged();
            self.announce_if_changed();
        }
    }

    /// Waits until the client has listed again, for a short while. One that sends its next call instead, or nothing, will
    /// not be waited for again.
    async fn until_listed_again(&self) {
        if self.client().ignores_changes {
            return;
        }
        let mut sent = self.sent.subscribe();
        let before = *sent.borrow_and_update();
        let moved_on = timeout(RELIST_LIMIT, sent.wait_for(|sent| *sent != before)).await;
        let has_listed = matches!(moved_on, Ok(Ok(sent)) if sent.lists > before.lists);
        self.client().ignores_changes = !has_listed;
    }

    /// Tells the client once about each list that differs from the last one it knows of. True if it was told.
    fn announce_if_changed(&self) -> bool {
        let (has_listed, is_session) = {
            let client = self.client();
            (client.has_listed, client.session.is_some())
        };
        if !has_listed {
            return false;
        }
        let view = self.scope.view();
        {
            let mut announced = self.announced.lock().expect("no code panics while it holds the last list");
            if std::ptr::eq(announced.view.as_ptr(), Arc::as_ptr(&view)) {
                return false;
            }
            announced.view = Arc::downgrade(&view);
            let list = Some(digest(view.wire()));
            if announced.list == list {
                return false;
            }
            announced.list = list;
        }
        let method = "notifications/tools/list_changed";
        if is_session {
            encode::notification(&self.outbox, method, b"{}");
        }
        let listeners = self.listeners.lock().expect("no code panics while it holds the listeners");
        for id in &*listeners {
            let mut params = ObjectWriter::default();
            params.raw("_meta", &subscription(id));
            encode::notification(&self.outbox, method, &params.finish());
        }
        is_session || !listeners.is_empty()
    }

    /// Asks the client something and waits for at most `limit`; `None` means silence.
    pub async fn ask(
        &self,
        method: &str,
        params: &RawJson,
        limit: Duration,
    ) -> Option<Result<RawJson, RawJson>> {
        let id = format!("toolcrib-{}", self.next_question.fetch_add(1, Ordering::Relaxed));
        let (sender, answer) = oneshot::channel();
        self.questions
            .lock()
            .expect("no code panics while it holds the questions")
            .insert(id.clone(), sender);
        encode::request(&self.outbox, &id, method, params);
        let mut question = OpenQuestion { front: self, id, is_open: true };
        let answer = timeout(limit, answer).await;
        question.is_open = !matches!(answer, Ok(Ok(_)));
        answer.ok()?.ok()
    }

    /// Whether a question can reach a person through the client.
    pub fn client_can_be_asked(&self) -> bool {
        self.client().can_elicit && !self.silent.load(Ordering::Relaxed)
    }

    /// Whether the session's revision knows several modes of elicitation.
    pub fn names_form_mode(&self) -> bool {
        self.client().session == Some("2025-11-25")
    }

    /// The client did not answer a question: the next one goes another way.
    pub fn client_stayed_silent(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    fn session_version(&self) -> Option<&'static str> {
        self.client().session
    }

    /// What the client declared that servers may use.
    pub fn askable(&self) -> Vec<(&'static str, RawJson)> {
        self.client().askable.clone()
    }

    fn client(&self) -> std::sync::MutexGuard<'_, Client> {
        self.client.lock().expect("no code panics while it holds the client's facts")
    }
}

/// What a panic is to the client: the failure of one call.
fn internal_error(tool: &str) -> ToolError {
    tracing::error!(%tool, "a panic while the tool ran");
    ToolError::Execution { tool: tool.to_owned(), cause: "an internal error".to_owned() }
}

/// Withdraws a question that nobody waits for any more.
struct OpenQuestion<'a> {
    front: &'a Front,
    id: String,
    is_open: bool,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        let mut questions = self.front.questions.lock().expect("no code panics while it holds the questions");
        questions.remove(&self.id);
        drop(questions);
        if self.is_open {
            let params = json!({ "requestId": self.id, "reason": "the question is no longer open" });
            encode::notification(
                &self.front.outbox,
                "notifications/cancelled",
                params.to_string().as_bytes(),
            );
        }
    }
}

/// A form can be shown: `elicitation` is declared, and not for other modes only.
fn declares_forms(elicitation: Option<&RawValue>) -> bool {
    let Some(elicitation) = elicitation.and_then(|raw| RawObject::parse(raw.get().as_bytes()).ok()) else {
        return false;
    };
    elicitation.members.is_empty() || elicitation.get("form").is_some()
}

fn subscription(id: &RawJson) -> Vec<u8> {
    let mut meta = ObjectWriter::default();
    meta.raw("io.modelcontextprotocol/subscriptionId", id.as_bytes());
    meta.finish()
}

fn digest(list: &Bytes) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(list);
    hasher.finish()
}

/// Waits for a signal that asks this process to end.
async fn termination() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let mut signals: Vec<_> = kinds.into_iter().filter_map(|kind| signal(kind).ok()).collect();
        let waits = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
        futures::future::select_all(waits).await;
    }
    #[cfg(not(unix))]
    {
        let _ = tokio::signal::ctrl_c().await;
    }
}
