//! One upstream server as the rest of the program sees it: its state, and a handler for each of its tools.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use super::client::ClientSlot;
use super::link::{Era, Link, Lost, Reply};
use crate::tools::error::{Executed, ToolError};
use crate::tools::json::{ObjectWriter, RawJson, RawObject, write_string};
use crate::tools::service::{Input, ToolHandler, ToolOutput, ToolResult, Turn};

/// How a server is started and what is taken from it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spec {
    /// Its name in the configuration.
    pub name: String,
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables added to the base environment.
    pub env: Vec<(String, String)>,
    /// Where it runs.
    pub cwd: Option<PathBuf>,
    /// What it is good for, in the operator's words.
    pub about: String,
    /// How long it may take to answer `initialize` and its first list.
    pub startup_timeout: Duration,
    /// How long a call may take.
    pub tool_timeout: Duration,
    /// Whether its annotations may loosen.
    pub trust_hints: bool,
    /// It shares nothing with other servers.
    pub isolated: bool,
    /// `Some(true)`: its tools wait behind `tool_search`.
    pub defer: Option<bool>,
    /// Grants that each of its tools needs.
    pub permissions: Vec<String>,
    /// The only tools taken from it.
    pub enabled_tools: Option<Vec<String>>,
    /// Tools not taken from it.
    pub disabled_tools: Vec<String>,
    /// All configured servers: names are made so that they are unambiguous among these.
    pub all_servers: Arc<[String]>,
}

impl Spec {
    /// Whether a tool of this name, in the server's own spelling, is taken.
    pub fn takes(&self, tool: &str) -> bool {
        self.enabled_tools.as_ref().is_none_or(|names| names.iter().any(|name| name == tool))
            && !self.disabled_tools.iter().any(|name| name == tool)
    }
}

/// Where a server stands.
#[derive(Clone)]
pub enum Status {
    /// On its way up, for the first time or after an end; calls wait for it.
    Starting,
    /// Its tools can be called.
    Ready(Arc<Link>),
    /// It failed and will be tried again; calls fail at once.
    Down(String),
    /// It will not be tried again.
    Failed(String),
}

/// One upstream server.
pub struct Upstream {
    /// How it is configured.
    pub spec: Spec,
    /// Values that must not appear in logs, the longest first.
    pub secrets: Arc<[String]>,
    /// Whom its questions go to.
    pub client: Arc<ClientSlot>,
    status: watch::Sender<Status>,
    /// True once its tools are known or its first start has failed.
    settled: watch::Sender<bool>,
    /// How many of its questions wait for the client and whoever sits there.
    questions: watch::Sender<usize>,
    report: Mutex<Report>,
}

/// What `doctor` tells about a server.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// From the start of the process to the first list of tools.
    pub ready_after: Option<Duration>,
    /// What was repaired, hidden or dropped.
    pub complaints: Vec<String>,
}

impl Upstream {
    /// A server that has not been started.
    pub fn new(spec: Spec, secrets: Arc<[String]>, client: Arc<ClientSlot>) -> Arc<Upstream> {
        Arc::new(Upstream {
            spec,
            secrets,
            client,
            status: watch::Sender::new(Status::Starting),
            settled: watch::Sender::new(false),
            questions: watch::Sender::new(0),
            report: Mutex::default(),
        })
    }

    /// Sets where it stands.
    pub fn set_status(&self, status: Status) {
        self.status.send_replace(status);
    }

    /// Where it stands.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// What is known for `doctor`.
    pub fn report(&self) -> Report {
        self.report.lock().expect("no code panics while it holds the report").clone()
    }

    /// Notes something for `doctor`.
    pub fn note(&self, edit: impl FnOnce(&mut Report)) {
        edit(&mut self.report.lock().expect("no code panics while it holds the report"));
    }

    /// Notes that its tools are known, or that its first start has failed.
    pub fn settle(&self) {
        self.settled.send_replace(true);
    }

    /// Waits until this very process has heard from it: it is ready, or its start has failed.
    pub async fn until_answered(&self) {
        let mut status = self.status.subscribe();
        let _ = status.wait_for(|status| !matches!(status, Status::Starting)).await;
    }

    /// Whether its tools are known or its first start has failed.
    pub fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }

    /// Waits until [`Upstream::is_settled`].
    pub async fn until_settled(&self) {
        // The sender lives as long as this value: the wait cannot fail.
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    /// Counts a question as open until what this returns is dropped: no call of the server is on the clock meanwhile.
    pub fn open_question(self: &Arc<Upstream>) -> OpenQuestion {
        self.questions.send_modify(|open| *open += 1);
        OpenQuestion(Arc::clone(self))
    }

    /// The live connection; waits while the server is on its way up.
    async fn link(&self) -> Result<Arc<Link>, String> {
        if let Status::Ready(link) = &*self.status.borrow() {
            return Ok(Arc::clone(link));
        }
        let mut status = self.status.subscribe();
        let decided = status.wait_for(|status| !matches!(status, Status::Starting)).await;
        match decided.as_deref() {
            Ok(Status::Ready(link)) => Ok(Arc::clone(link)),
            Ok(Status::Down(why) | Status::Failed(why)) => Err(why.clone()),
            Ok(Status::Starting) | Err(_) => Err("the gateway is shutting down".to_owned()),
        }
    }

    /// The text without configured secrets.
    pub fn masked(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in self.secrets.iter() {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "•••");
            }
        }
        text
    }
}

/// A question that a server has put to the client.
pub struct OpenQuestion(Arc<Upstream>);

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        self.0.questions.send_modify(|open| *open -= 1);
    }
}

/// Runs one tool of an upstream.
pub struct UpstreamTool {
    server: Arc<Upstream>,
    /// `"name":"…"` in the server's own spelling, ready to be sent.
    name_member: Vec<u8>,
    wire_name: Arc<str>,
}

impl UpstreamTool {
    /// The tool that the server calls `original`.
    pub fn new(server: Arc<Upstream>, original: Arc<str>) -> UpstreamTool {
        let mut name_member = br#""name":"#.to_vec();
        write_string(&mut name_member, &original);
        UpstreamTool { server, name_member, wire_name: original }
    }

    fn lost(&self, cause: String, executed: Executed) -> ToolError {
        let cause = format!("server `{}`: {cause}", self.server.spec.name);
        ToolError::Transport { tool: self.wire_name.to_string(), cause, executed }
    }
}

impl ToolHandler for UpstreamTool {
    fn call<'a>(&'a self, input: Input, turn: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let link = self.server.link().await.map_err(|why| self.lost(why, Executed::No))?;
            let mut members = Vec::with_capacity(self.name_member.len() + input.raw.len() + 16);
            members.extend_from_slice(&self.name_member);
            members.extend_from_slice(br#","arguments":"#);
            members.extend_from_slice(input.raw.as_bytes());
            let meta = turn.meta.as_ref().map(passed_on).unwrap_or_default();
            match link.request("tools/call", &members, &meta, turn.progress.clone()).await {
                Ok(Reply::Result(raw)) => match result(raw, link.era()) {
                    Ok(raw) => Ok(ToolResult::Completed(ToolOutput::Result(raw))),
                    Err(cause) => {
                        let cause = format!("server `{}` {cause}", self.server.spec.name);
                        Ok(ToolResult::ToolError(cause))
                    }
                },
                Ok(Reply::Error(raw)) => Ok(ToolResult::Completed(ToolOutput::RpcError(raw))),
                Ok(Reply::Broken(why)) => {
                    let cause = format!("server `{}` answered, but {why}", self.server.spec.name);
                    Ok(ToolResult::ToolError(cause))
                }
                Err(Lost(why)) => Err(self.lost(why, Executed::Maybe)),
            }
        })
    }

    fn locate(&self, path: &str) -> Option<PathBuf> {
        self.server.spec.cwd.as_ref().map(|folder| folder.join(path))
    }

    fn default_limit(&self) -> Duration {
        self.server.spec.tool_timeout
    }

    fn starting(&self) -> Option<BoxFuture<'static, ()>> {
        if !matches!(&*self.server.status.borrow(), Status::Starting) {
            return None;
        }
        let server = Arc::clone(&self.server);
        Some(Box::pin(async move { server.until_answered().await }))
    }

    fn open_questions(&self) -> Option<watch::Receiver<usize>> {
        Some(self.server.questions.subscribe())
    }

    fn unhealthy(&self) -> Option<String> {
        match &*self.server.status.borrow() {
            Status::Starting | Status::Ready(_) => None,
            Status::Down(why) | Status::Failed(why) => {
                Some(format!("server `{}`: {why}", self.server.spec.name))
            }
        }
    }
}

/// Members of a call's `_meta` that concern the upstream: not the protocol's own, not the host's bookkeeping.
fn passed_on(meta: &RawJson) -> Vec<u8> {
    let object = RawObject::parse(meta.as_bytes()).unwrap_or_default();
    let mut members = Vec::new();
    for (key, value) in &object.members {
        let is_private = matches!(key.as_ref(), "progressToken" | "callId" | "threadId")
            || ["io.modelcontextprotocol/", "claudecode/", "x-codex-"].iter().any(|p| key.starts_with(p));
        if is_private {
            continue;
        }
        if !members.is_empty() {
            members.push(b',');
        }
        write_string(&mut members, key);
        members.push(b':');
        members.extend_from_slice(value.get().as_bytes());
    }
    members
}

/// A result that clients accept: an object with a list of content, without the era's own marks.
/// What is already one, which is nearly every result, is recognized by its first bytes and not looked into.
fn result(raw: RawJson, era: Era) -> Result<RawJson, &'static str> {
    if era == Era::Session && raw.as_bytes().starts_with(br#"{"content":["#) {
        return Ok(raw);
    }
    let Ok(object) = RawObject::parse(raw.as_bytes()) else {
        return Err("answered with something that is no result object");
    };
    let kind = object.text("resultType");
    if kind.as_deref().is_some_and(|kind| kind != "complete") {
        return Err("asks for input in the middle of the call, which is not passed on to the client");
    }
    let content = object.get("content");
    if content.is_some_and(|content| content.get().starts_with('[')) && kind.is_none() {
        return Ok(raw);
    }
    let mut out = ObjectWriter::with_capacity(raw.len() + 16);
    match content {
        None => drop(out.raw("content", b"[]")),
        Some(content) if content.get() == "null" => drop(out.raw("content", b"[]")),
        Some(content) if content.get().starts_with('[') => drop(out.raw("content", content.get().as_bytes())),
        Some(_) => return Err("answered with content that is no list"),
    }
    for (key, value) in &object.members {
        if !matches!(key.as_ref(), "content" | "resultType") {
            out.raw(key, value.get().as_bytes());
        }
    }
    Ok(out.json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_completed_and_otherwise_untouched() {
        let check = |text: &str, era, expected: Result<&str, &str>| {
            let got = result(RawJson::parse(text.to_owned()).unwrap(), era);
            assert_eq!(got.as_ref().map(RawJson::as_str).map_err(|e| &e[..15]), expected, "{text}");
        };
        let session = Era::Session;
        let plain = r#"{"content":[],"x":1.0}"#;
        check(plain, session, Ok(plain));
        let late = r#"{"structuredContent":{"b":1,"a":12345678901234567890123},"content":[]}"#;
        check(late, session, Ok(late));
        check("{}", session, Ok(r#"{"content":[]}"#));
        check(r#"{"structuredContent":{}}"#, session, Ok(r#"{"content":[],"structuredContent":{}}"#));
        check(
            r#"{"resultType":"complete","content":[],"_meta":{}}"#,
            Era::Modern,
            Ok(r#"{"content":[],"_meta":{}}"#),
        );
        check(r#"{"resultType":"input_required"}"#, Era::Modern, Err("asks for input "));
        check(r#"{"content":"x"}"#, session, Err("answered with c"));
        check("[]", session, Err("answered with s"));
    }

    #[test]
    fn private_metadata_is_not_passed_on() {
        let meta = RawJson::parse(
            r#"{"progressToken":1,"traceparent":"t","claudecode/toolUseId":"x","x-codex-turn":1,"a/b":{"z":1,"y":2},"io.modelcontextprotocol/clientInfo":{}}"#,
        );
        assert_eq!(
            String::from_utf8(passed_on(&meta.unwrap())).unwrap(),
            r#""traceparent":"t","a/b":{"z":1,"y":2}"#
        );
    }

    #[test]
    fn only_the_wanted_tools_are_taken() {
        let spec = Spec {
            enabled_tools: Some(vec!["a".into(), "b".into()]),
            disabled_tools: vec!["b".into()],
            ..Spec::default()
        };
        assert!(spec.takes("a") && !spec.takes("b") && !spec.takes("c"));
    }
}
