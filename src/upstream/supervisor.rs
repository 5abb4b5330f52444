//! Keeps one upstream server running: starts it, speaks the handshake, lists its tools, and starts it again.

use std::collections::{HashSet, VecDeque};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{ChildStderr, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::ASKABLE;
use super::link::{Era, Event, Link, Reply};
use super::publisher::Publisher;
use super::server::{Status, Upstream};
use crate::lines::{Line, LineReader, Outbox};
use crate::process::{GroupedChild, base_environment, spawn_grouped};
use crate::tools::json::{RawJson, RawObject};
use crate::tools::service::Source;

/// Longest line taken from an upstream: a catalogue of a hundred thousand tools, or a large file as base64.
const LINE_CAP: usize = 256 << 20;
/// How long the tools of a server that ended stay listed, so that the list does not flicker.
const GRACE: Duration = Duration::from_secs(5);
/// First pause after a failed start.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause between two starts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A server that ran this long has proven itself: its pauses start from the beginning.
const PROVEN: Duration = Duration::from_secs(30);
/// How long what stands in the pipe of an ended process is read on, while a grandchild holds the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(150);
/// How long changes of the list are gathered before it is read again.
const SETTLE: Duration = Duration::from_millis(50);
/// Pages of one list; a server that has more is looping.
const MOST_PAGES: usize = 1_000;
/// Tools of one server.
const MOST_TOOLS: usize = 200_000;
/// How long a server may take to leave after the end of its input.
const LEAVE: Duration = Duration::from_secs(1);
/// How long it may then take after a termination signal.
const LEAVE_AFTER_SIGNAL: Duration = Duration::from_millis(500);
/// Lines of stderr kept for a message about a server that failed.
const KEPT_STDERR_LINES: usize = 8;

/// Tells a gateway that is an upstream of another one how deep it stands.
pub const DEPTH_VARIABLE: &str = "TOOLCRIB_DEPTH";

/// How the gateway wants its servers to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shutdown {
    /// Not at all.
    No,
    /// As soon as none of its calls is open.
    WhenIdle,
    /// By the end of their input, then by signals.
    Gently,
    /// By a signal at once: whoever ends us will not wait.
    Now,
}

/// How one run of a server ended.
enum End {
    /// We wanted it to.
    Wanted,
    /// It failed; trying again may help.
    Failed(String),
    /// It failed in a way that trying again does not help.
    Hopeless(String),
}

/// Runs a server until it is told to stop. Never ends otherwise, unless starting it is hopeless.
pub async fn supervise(
    upstream: Arc<Upstream>,
    publisher: Publisher,
    mut shutdown: watch::Receiver<Shutdown>,
) {
    let source = Source::Mcp(upstream.spec.name.clone());
    let mut failures: u32 = 0;
    let mut last_ready: Option<Instant> = None;
    loop {
        upstream.set_status(Status::Starting);
        let started = Instant::now();
        let mut session = Session { upstream: &upstream, publisher: &publisher, was_ready: false };
        let end = session.run(&mut shutdown).await;
        let was_ready = session.was_ready;
        let why = match end {
            End::Wanted => return,
            End::Hopeless(why) => {
                let why = upstream.masked(&why);
                tracing::error!(server = %upstream.spec.name, "{why}");
                upstream.set_status(Status::Failed(why.clone()));
                publisher.catalog.report_health(&source, Some(why));
                upstream.settle();
                return;
            }
            End::Failed(why) => upstream.masked(&why),
        };
        upstream.settle();
        if was_ready && started.elapsed() >= PROVEN {
            failures = 0;
        }
        failures += 1;
        tracing::warn!(server = %upstream.spec.name, failures, "{why}");
        // One end after a good run is tried again at once: calls wait for the new process instead of failing.
        let pause = match failures {
            1 if was_ready => Duration::ZERO,
            n => (FIRST_PAUSE * 2_u32.pow((n - 1).min(10))).min(LONGEST_PAUSE),
        };
        if was_ready {
            last_ready = Some(Instant::now());
        }
        if pause == Duration::ZERO {
            continue;
        }
        upstream.set_status(Status::Down(why.clone()));
        let again = Instant::now() + pause;
        // What was never up has nothing to flicker.
        let leaves = last_ready.map_or_else(Instant::now, |ready| ready + GRACE);
        tokio::select! {
            () = sleep_until(leaves.min(again)) => {}
            () = asked_to_stop(&mut shutdown) => return,
        }
        if leaves <= again {
            publisher.catalog.report_health(&source, Some(why));
            tokio::select! {
                () = sleep_until(again) => {}
                () = asked_to_stop(&mut shutdown) => return,
            }
        }
    }
}

async fn asked_to_stop(shutdown: &mut watch::Receiver<Shutdown>) {
    // A sender that is gone means that the gateway is gone.
    let _ = shutdown.wait_for(|wanted| *wanted >= Shutdown::Gently).await;
}

/// The gateway is about to end and this server has nothing left to do for it.
async fn idle_at_the_end(link: &Link, mut shutdown: watch::Receiver<Shutdown>) {
    let _ = shutdown.wait_for(|wanted| *wanted == Shutdown::WhenIdle).await;
    link.idle().await;
}

struct Session<'a> {
    upstream: &'a Arc<Upstream>,
    publisher: &'a Publisher,
    was_ready: bool,
}

impl Session<'_> {
    /// One process from its start to its end. Nothing of it is left when this returns.
    async fn run(&mut self, shutdown: &mut watch::Receiver<Shutdown>) -> End {
        let mut child = match start(self.upstream) {
            Ok(child) => child,
            Err(error) => {
                let why = format!("cannot start `{}`: {error}", self.upstream.spec.command);
                return match error.kind() {
                    std::io::ErrorKind::NotFound
                    | std::io::ErrorKind::NotADirectory
                    | std::io::ErrorKind::PermissionDenied => End::Hopeless(why),
                    _ => End::Failed(why),
                };
            }
        };
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.take_stdin(), child.take_stdout(), child.take_stderr())
        else {
            return End::Failed("its pipes could not be opened".to_owned());
        };
        let outbox = Outbox::default();
        let link = Arc::new(Link::new(self.upstream.spec.name.as_str().into(), outbox.clone()));
        let last_words = LastWords::default();
        let (events, inbox) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = outbox.drive(stdin).await;
        });
        tasks.spawn(drain_stderr(Arc::clone(self.upstream), stderr, last_words.clone()));
        let (read_all, mut at_end) = watch::channel(false);
        let reader_link = Arc::clone(&link);
        tasks.spawn(async move {
            read(&reader_link, stdout, &events).await;
            read_all.send_replace(true);
        });

        let mut stop = shutdown.clone();
        let end = tokio::select! {
            end = self.speak(&link, inbox) => end,
            _ = child.exited() => {
                // A reply and an exit in one breath: the pipe is read to its end first.
                let _ = timeout(LAST_WORDS, at_end.wait_for(|done| *done)).await;
                End::Failed("its process ended".to_owned())
            }
            () = async { let _ = at_end.clone().wait_for(|done| *done).await; } => {
                let _ = timeout(LAST_WORDS, child.exited()).await;
                End::Failed("it closed its output".to_owned())
            }
            () = asked_to_stop(&mut stop) => End::Wanted,
            () = idle_at_the_end(&link, shutdown.clone()) => End::Wanted,
        };
        let reason = match &end {
            End::Wanted => "the gateway is shutting down".to_owned(),
            End::Failed(why) | End::Hopeless(why) => format!("{why}{}", last_words.tail()),
        };
        link.end(&reason);
        if matches!(end, End::Wanted) {
            leave(&mut child, shutdown).await;
        } else {
            child.kill_group();
            let _ = timeout(LEAVE, child.wait()).await;
        }
        match end {
            End::Wanted => End::Wanted,
            // Once more, because the last words often arrive with the exit.
            End::Failed(why) => End::Failed(format!("{why}{}", last_words.tail())),
            End::Hopeless(why) => End::Hopeless(why),
        }
    }

    /// Handshake, first list, then every change of the list.
    async fn speak(&mut self, link: &Arc<Link>, mut inbox: mpsc::Receiver<Event>) -> End {
        let limit = self.upstream.spec.startup_timeout;
        let started = Instant::now();
        let deadline = started + limit;
        let too_slow = || End::Failed(format!("it did not start within {:.1} s", limit.as_secs_f64()));
        match tokio::time::timeout_at(deadline, handshake(link, self.upstream)).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return End::Failed(why),
            Err(_) => return too_slow(),
        }
        match tokio::time::timeout_at(deadline, list(link)).await {
            Ok(Ok(tools)) => self.publisher.publish(self.upstream, tools),
            Ok(Err(why)) => return End::Failed(why),
            Err(_) => return too_slow(),
        }
        self.upstream.note(|report| report.ready_after = Some(started.elapsed()));
        self.was_ready = true;
        self.upstream.set_status(Status::Ready(Arc::clone(link)));
        self.publisher.catalog.report_health(&Source::Mcp(self.upstream.spec.name.clone()), None);
        self.upstream.settle();
        // Questions run beside the rest; they end with the connection.
        let mut questions = JoinSet::new();
        loop {
            let mut event = match inbox.recv().await {
                Some(event) => event,
                // The reader ended; whoever watches it decides what that means.
                None => std::future::pending().await,
            };
            let mut tools_changed = false;
            loop {
                match event {
                    Event::ToolsChanged if !tools_changed => {
                        tools_changed = true;
                        sleep(SETTLE).await;
                    }
                    Event::ToolsChanged => {}
                    Event::Asked { id, method, params } => {
                        self.pass_on(link, &mut questions, id, method, params)
                    }
                }
                event = match inbox.try_recv() {
                    Ok(next) => next,
                    Err(_) => break,
                };
            }
            if !tools_changed {
                continue;
            }
            match timeout(limit, list(link)).await {
                Ok(Ok(tools)) => self.publisher.publish(self.upstream, tools),
                Ok(Err(why)) => {
                    tracing::warn!(server = %self.upstream.spec.name, %why, "its list could not be read again");
                }
                Err(_) => {
                    tracing::warn!(server = %self.upstream.spec.name, "its list could not be read again in time")
                }
            }
        }
    }

    /// Passes a question on to the client, if it can be asked such a thing.
    fn pass_on(
        &self,
        link: &Arc<Link>,
        questions: &mut JoinSet<()>,
        id: RawJson,
        method: String,
        params: RawJson,
    ) {
        let capability =
            ASKABLE.iter().find(|(askable, _)| *askable == method).map(|(_, capability)| *capability);
        let client = self.upstream.client.get();
        match client.filter(|client| capability.is_some_and(|capability| client.has(capability))) {
            None => link.refuse(&id),
            Some(client) => {
                let link = Arc::clone(link);
                let open = self.upstream.open_question();
                questions.spawn(async move {
                    let _open = open;
                    match client.ask(&method, &params).await {
                        Ok(answer) => link.respond(&id, Ok(&answer)),
                        Err(error) => link.respond(&id, Err(&error)),
                    }
                });
            }
        }
    }
}

fn start(upstream: &Upstream) -> std::io::Result<GroupedChild> {
    let spec = &upstream.spec;
    let mut command = Command::new(&spec.command);
    command.args(&spec.args).env_clear().envs(base_environment()).envs(spec.env.iter().cloned());
    let depth = std::env::var(DEPTH_VARIABLE).ok().and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    command.env(DEPTH_VARIABLE, depth.saturating_add(1).to_string());
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn_grouped(command)
}

/// Params of `initialize` with what the client behind us can do.
fn hello(upstream: &Upstream) -> String {
    let capabilities = upstream.client.get().map_or(RawJson::EMPTY_OBJECT, |client| client.capabilities());
    format!(
        r#""protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{{"name":"toolcrib","version":"{}"}}"#,
        capabilities.as_str(),
        env!("CARGO_PKG_VERSION")
    )
}

/// `initialize`; a server that refuses it is asked in the manner of the self-contained era.
async fn handshake(link: &Link, upstream: &Upstream) -> Result<(), String> {
    let refusal = match link.request("initialize", hello(upstream).as_bytes(), b"", None).await {
        Ok(Reply::Result(_)) => {
            link.notify("notifications/initialized", b"{}");
            return Ok(());
        }
        Ok(Reply::Error(error)) => message(&error),
        Ok(Reply::Broken(why)) => why,
        Err(lost) => return Err(lost.0),
    };
    link.set_era(Era::Modern);
    match link.request("server/discover", b"", b"", None).await {
        Ok(Reply::Result(_)) => {
            listen(link);
            Ok(())
        }
        Ok(Reply::Error(_) | Reply::Broken(_)) => Err(format!("it refused `initialize`: {refusal}")),
        Err(lost) => Err(lost.0),
    }
}

/// Subscribes to changes of the tools. The request stays open for as long as the connection lives.
fn listen(link: &Link) {
    link.open("subscriptions/listen", br#""notifications":{"toolsListChanged":true}"#);
}

fn message(error: &RawJson) -> String {
    let object = RawObject::parse(error.as_bytes()).unwrap_or_default();
    object.text("message").unwrap_or_else(|| "no reason given".to_owned())
}

/// All pages of the tool list, each tool as its own text.
async fn list(link: &Link) -> Result<Vec<RawJson>, String> {
    let mut tools: Vec<RawJson> = Vec::new();
    let mut cursors = HashSet::new();
    let mut params = String::new();
    for _ in 0..MOST_PAGES {
        let page = match link.request("tools/list", params.as_bytes(), b"", None).await {
            Ok(Reply::Result(page)) => page,
            // A server that has only resources or prompts says so in this way.
            Ok(Reply::Error(error)) if error.as_str().contains("-32601") => return Ok(tools),
            Ok(Reply::Error(error)) => return Err(format!("it refused `tools/list`: {}", message(&error))),
            Ok(Reply::Broken(why)) => return Err(format!("`tools/list`: {why}")),
            Err(lost) => return Err(lost.0),
        };
        let object =
            RawObject::parse(page.as_bytes()).map_err(|_| "its tool list is no object".to_owned())?;
        let listed = object.get("tools").ok_or_else(|| "its tool list has no `tools`".to_owned())?;
        let raw: Vec<&serde_json::value::RawValue> =
            serde_json::from_str(listed.get()).map_err(|_| "its `tools` are no list".to_owned())?;
        tools.extend(raw.into_iter().map(|tool| RawJson::slice(page.bytes(), tool)));
        let Some(cursor) = object.text("nextCursor") else { return Ok(tools) };
        if !cursors.insert(cursor.clone()) || tools.len() > MOST_TOOLS {
            tracing::warn!("a tool list goes in circles: what was read so far is taken");
            return Ok(tools);
        }
        params = format!(r#""cursor":{}"#, serde_json::Value::from(cursor));
    }
    Ok(tools)
}

/// Feeds the connection until the upstream's output ends.
async fn read(link: &Link, stdout: ChildStdout, events: &mpsc::Sender<Event>) {
    let mut lines = LineReader::new(stdout, LINE_CAP);
    while let Ok(Some(line)) = lines.next().await {
        let event = match line {
            Line::Text(text) => link.take_line(text),
            Line::TooLong(prefix) => {
                link.take_oversized(&prefix, LINE_CAP);
                None
            }
        };
        let refused = event.and_then(|event| events.try_send(event).err());
        // Nobody can take the question: the server must not wait for ever. News of tools is in a full inbox already.
        if let Some(mpsc::error::TrySendError::Full(Event::Asked { id, .. })) = refused {
            link.refuse(&id);
        }
    }
}

/// The last lines that a server wrote to stderr.
#[derive(Clone, Default)]
struct LastWords(Arc<Mutex<VecDeque<String>>>);

impl LastWords {
    fn add(&self, line: &str) {
        let mut lines = self.0.lock().expect("no code panics while it holds the last lines");
        if lines.len() == KEPT_STDERR_LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(300).collect());
    }

    fn tail(&self) -> String {
        let lines = self.0.lock().expect("no code panics while it holds the last lines");
        match lines.is_empty() {
            true => String::new(),
            false => format!("; it last wrote: {}", lines.iter().cloned().collect::<Vec<_>>().join(" | ")),
        }
    }
}

/// Reads stderr for ever, so that the server never blocks on it, and passes it to the log without secrets.
async fn drain_stderr(upstream: Arc<Upstream>, stderr: ChildStderr, last_words: LastWords) {
    const LONGEST: u64 = 16 << 10;
    let mut input = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut input).take(LONGEST).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = upstream.masked(String::from_utf8_lossy(&line).trim_end());
                if !text.is_empty() {
                    last_words.add(&text);
                    tracing::info!(server = %upstream.spec.name, "stderr: {text}");
                }
            }
        }
    }
}

/// Lets a server go: end of input, then a signal, then force. The input was closed with the connection.
async fn leave(child: &mut GroupedChild, shutdown: &mut watch::Receiver<Shutdown>) {
    let hurry = async {
        let _ = shutdown.wait_for(|wanted| *wanted == Shutdown::Now).await;
    };
    let left = tokio::select! {
        left = timeout(LEAVE, child.exited()) => left.is_ok(),
        () = hurry => false,
    };
    if !left {
        child.terminate();
        let _ = timeout(LEAVE_AFTER_SIGNAL, child.exited()).await;
    }
    child.kill_group();
    let _ = timeout(LEAVE_AFTER_SIGNAL, child.wait()).await;
}
