//! A synchronous MCP client over pipes: starts the real binary in a world of its own and ends what it started.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Longest wait for anything: far above what a loaded machine needs, so that only a hang reaches it.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two looks at something that cannot wake us.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The upstream `m`, as a table of `tools.toml`. Keys may be added directly behind it.
pub const M: &str = "[mcp_servers.m]\ncommand = \"python3\"\nargs = [\"@fixtures@/m_server.py\", \"--log\", \"@dir@/m.log\"]\n";

/// Nothing but what the rest of the file brings.
pub const BARE: &str = "[builtins]\nenabled = []\n";

/// The revision that `G` speaks.
pub const VERSION: &str = "2025-06-18";
pub const MODERN: &str = "2026-07-28";

/// The root of the tree.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Waits for something that cannot wake us.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        thread::sleep(LOOK_AGAIN);
    }
}

/// Whether a process is there and not only waiting to be reaped.
pub fn is_alive(pid: u64) -> bool {
    let told = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().expect("`ps` runs");
    let state = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

/// A folder with a configuration, a home and a state file that nobody else uses.
pub struct World {
    folder: TempDir,
}

impl World {
    /// Writes the configuration. `@dir@` and `@fixtures@` in it become the two folders. The first list waits for
    /// cold servers as long as a loaded machine needs, unless the configuration says something else.
    pub fn new(config: &str) -> Rc<World> {
        let folder = tempfile::tempdir().expect("a folder can be made");
        fs::create_dir(folder.path().join("home")).expect("a home can be made");
        let world = World { folder };
        const WAIT: &str = "first_list_wait_ms = 25000\n";
        let config = match config.contains("first_list_wait_ms") {
            true => config.to_owned(),
            false if config.contains("[tools]\n") => {
                config.replacen("[tools]\n", &format!("[tools]\n{WAIT}"), 1)
            }
            false => format!("{config}\n[tools]\n{WAIT}"),
        };
        world.write("tools.toml", &world.filled(&config));
        Rc::new(world)
    }

    fn filled(&self, text: &str) -> String {
        let fixtures = root().join("tests/fixtures");
        text.replace("@dir@", &self.folder.path().to_string_lossy())
            .replace("@fixtures@", &fixtures.to_string_lossy())
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file, and the folders above it.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("the path has a parent")).expect("folders can be made");
        fs::write(path, text).expect("a file can be written");
    }

    /// The binary with this world's configuration and state.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bare_command();
        command.arg("--config").arg(self.path("tools.toml")).arg("--state").arg(self.path("state.db"));
        command.args(args);
        command
    }

    /// The binary with this world's surroundings and nothing of ours.
    pub fn bare_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_toolcrib"));
        command.env_clear();
        for name in ["PATH", "LANG", "TMPDIR", "SYSTEMROOT", "PYENV_ROOT", "PYENV_VERSION"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        let home = self.path("home");
        command.env("HOME", &home).env("XDG_CONFIG_HOME", home.join("config"));
        command.env("XDG_STATE_HOME", home.join("state")).env("XDG_CACHE_HOME", home.join("cache"));
        command.current_dir(self.folder.path());
        command
    }

    /// Runs the binary to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::null());
        command.output().expect("the binary starts")
    }

    /// Starts a server and says nothing to it.
    pub fn start(self: &Rc<World>) -> G {
        self.start_as(self.command(&["serve"]))
    }

    /// Starts a server with a command line of the caller's.
    pub fn start_as(self: &Rc<World>, command: Command) -> G {
        G::spawn(Rc::clone(self), command)
    }

    /// A session of a client that cannot be asked anything.
    pub fn session(self: &Rc<World>) -> G {
        let mut g = self.start();
        g.initialize(VERSION, &json!({}));
        g
    }

    /// A session of a client that answers every elicitation in this way: an `accept` with this decision, or the
    /// bare action `decline` or `cancel`.
    pub fn asking(self: &Rc<World>, answer: &str) -> G {
        let mut g = self.start();
        g.answer = Some(answer.to_owned());
        g.initialize(VERSION, &json!({ "elicitation": {} }));
        g
    }

    /// A client whose requests stand for themselves.
    pub fn modern(self: &Rc<World>) -> G {
        let mut g = self.start();
        g.is_modern = true;
        g
    }

    /// What `m` has logged.
    pub fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("m.log")).unwrap_or_default();
        // The last line may still be on its way.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Events of one kind about one tool, in `m`'s own spelling.
    pub fn events(&self, event: &str, tool: &str) -> Vec<Value> {
        self.log().into_iter().filter(|e| e["event"] == event && e["tool"] == tool).collect()
    }

    /// How often `m` has run a tool.
    pub fn runs(&self, tool: &str) -> usize {
        self.events("run", tool).len()
    }

    /// The processes of `m` so far.
    pub fn pids(&self) -> Vec<u64> {
        self.log().iter().filter(|e| e["event"] == "launch").filter_map(|e| e["pid"].as_u64()).collect()
    }
}

/// One connection to one gateway process.
pub struct G {
    pub world: Rc<World>,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Arc<Mutex<String>>,
    answer: Option<String>,
    is_modern: bool,
    next_id: i64,
    /// Every line of stdout.
    pub transcript: Vec<String>,
    /// Questions that were put to this client.
    pub prompts: Vec<Value>,
    /// Notifications that arrived.
    pub notices: VecDeque<Value>,
    replies: Vec<Value>,
}

impl G {
    /// Binary with this configuration, `initialize`, `initialized`.
    pub fn new(config: &str) -> G {
        World::new(config).session()
    }

    /// The same with a client that can be asked; see [`World::asking`].
    pub fn asking(config: &str, answer: &str) -> G {
        World::new(config).asking(answer)
    }

    /// The same with a client whose requests stand for themselves.
    pub fn modern(config: &str) -> G {
        World::new(config).modern()
    }

    fn spawn(world: Rc<World>, mut command: Command) -> G {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        thread::spawn(move || {
            for line in stdout.split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        let stderr = Arc::new(Mutex::new(String::new()));
        let (heard, mut pipe) = (Arc::clone(&stderr), child.stderr.take().expect("stderr is a pipe"));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                heard.lock().expect("no panic holds it").push_str(&text);
            }
        });
        let stdin = child.stdin.take();
        G {
            world,
            child,
            stdin,
            lines,
            stderr,
            answer: None,
            is_modern: false,
            next_id: 1,
            transcript: Vec::new(),
            prompts: Vec::new(),
            notices: VecDeque::new(),
            replies: Vec::new(),
        }
    }

    /// The handshake; its result.
    pub fn initialize(&mut self, version: &str, capabilities: &Value) -> Value {
        let info = json!({ "name": "it", "version": "1" });
        let params = json!({ "protocolVersion": version, "capabilities": capabilities, "clientInfo": info });
        let reply = self.request("initialize", params);
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        reply["result"].clone()
    }

    /// The process id of the gateway.
    pub fn pid(&self) -> u64 {
        u64::from(self.child.id())
    }

    /// What was logged so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("no panic holds it").clone()
    }

    /// Writes one message.
    pub fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string());
    }

    /// Writes one line, whatever it is.
    pub fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("input is open");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).expect("the gateway reads");
    }

    /// Writes a request without waiting; its id.
    pub fn post(&mut self, method: &str, mut params: Value) -> Value {
        let id = json!(self.next_id);
        self.next_id += 1;
        if self.is_modern {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
            params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({ "name": "it", "version": "1" });
        }
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// Writes a call without waiting; its id.
    pub fn post_call(&mut self, tool: &str, arguments: Value) -> Value {
        self.post("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// Writes a request and waits for its whole reply.
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.post(method, params);
        self.reply(&id)
    }

    /// Waits for the whole reply to a request.
    pub fn reply(&mut self, id: &Value) -> Value {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(at) = self.replies.iter().position(|reply| reply["id"] == *id) {
                return self.replies.remove(at);
            }
            self.take_one(end, &format!("the reply to {id}"));
        }
    }

    /// Whether a reply to this id has arrived so far and was not fetched.
    pub fn has_reply(&self, id: &Value) -> bool {
        self.replies.iter().any(|reply| reply["id"] == *id)
    }

    /// Waits for the next notification of a method; earlier ones of others are dropped.
    pub fn notice(&mut self, method: &str) -> Value {
        let end = Instant::now() + DEADLINE;
        loop {
            while let Some(notice) = self.notices.pop_front() {
                if notice["method"] == method {
                    return notice;
                }
            }
            self.take_one(end, method);
        }
    }

    /// Waits for a question to this client that is not answered by itself.
    pub fn question(&mut self) -> Value {
        let end = Instant::now() + DEADLINE;
        let known = self.prompts.len();
        while self.prompts.len() == known {
            self.take_one(end, "a question");
        }
        self.prompts[known].clone()
    }

    fn take_one(&mut self, end: Instant, what: &str) {
        let line = match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{what} did not come within {DEADLINE:?}:\n{}", self.story())
            }
            Err(RecvTimeoutError::Disconnected) => panic!("{what} will never come:\n{}", self.story()),
        };
        self.transcript.push(line);
        let line = self.transcript.last().expect("a line was pushed");
        let message: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        match (message.get("method").is_some(), message.get("id").is_some()) {
            (true, true) => self.answer_question(message),
            (true, false) => self.notices.push_back(message),
            (false, _) => self.replies.push(message),
        }
    }

    fn answer_question(&mut self, question: Value) {
        let id = question["id"].clone();
        let result = match self.answer.as_deref() {
            // Whoever wants silence sends nothing.
            None | Some("nothing") => None,
            Some(action @ ("decline" | "cancel")) => Some(json!({ "action": action })),
            Some(decision) => Some(json!({ "action": "accept", "content": { "decision": decision } })),
        };
        self.prompts.push(question);
        if let Some(result) = result {
            self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
        }
    }

    fn story(&self) -> String {
        let lines: Vec<String> =
            self.transcript.iter().map(|line| line.chars().take(300).collect()).collect();
        format!("<- {}\nstderr: {}", lines.join("\n<- "), self.stderr())
    }

    /// The tools of `tools/list`.
    pub fn list(&mut self) -> Vec<Value> {
        let reply = self.request("tools/list", json!({}));
        let tools = reply["result"]["tools"].as_array();
        tools.unwrap_or_else(|| panic!("no list: {reply}")).clone()
    }

    /// Their names, in order, without `read_result`, which is in every list.
    pub fn names(&mut self) -> Vec<String> {
        self.list().iter().map(name_of).filter(|name| name != "read_result").collect()
    }

    /// The text of the array of `tools/list`, as it stands on the wire.
    pub fn list_text(&mut self) -> String {
        self.list();
        let line = self.transcript.last().expect("a list was read");
        let reply: Value = serde_json::from_str(line).expect("it was read before");
        // The id is the only part that differs from list to list.
        line.replacen(&format!("\"id\":{}", reply["id"]), "\"id\":0", 1)
    }

    /// One tool of the list.
    pub fn listed(&mut self, name: &str) -> Value {
        let tools = self.list();
        let found = tools.iter().find(|tool| tool["name"] == name).cloned();
        found.unwrap_or_else(|| {
            panic!("`{name}` is not in {:?}", tools.iter().map(name_of).collect::<Vec<_>>())
        })
    }

    /// Calls a tool; its whole reply.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.post_call(tool, arguments);
        self.reply(&id)
    }

    /// Calls a tool that has to succeed; its result.
    pub fn done(&mut self, tool: &str, arguments: Value) -> Value {
        let reply = self.call(tool, arguments);
        let result = &reply["result"];
        assert!(result.is_object() && result["isError"] != true, "`{tool}`: {reply}\n{}", self.stderr());
        result.clone()
    }

    /// Calls a tool that has to fail; the facts about the error.
    pub fn fails(&mut self, tool: &str, arguments: Value, kind: &str) -> Value {
        let reply = self.call(tool, arguments);
        assert_eq!(err_kind(&reply), Some(kind), "`{tool}`: {reply}\n{}", self.stderr());
        facts(&reply)
    }

    /// Closes the input. The process and what it says before it ends are awaited by [`G::exit`].
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for the end of the process.
    pub fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        until("the gateway ends", || {
            status = self.child.try_wait().expect("the child can be waited for");
            status.is_some()
        });
        while let Ok(line) = self.lines.recv_timeout(DEADLINE) {
            self.transcript.push(line);
        }
        status.expect("it was just seen")
    }
}

impl Drop for G {
    /// The end of input ends everything; whoever hangs is killed, and its children with it.
    fn drop(&mut self) {
        self.stdin = None;
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(LOOK_AGAIN);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to one process.
pub fn signal(pid: u64, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.expect("`kill` runs").success(), "the process {pid} is gone");
}

/// The name of a listed tool.
pub fn name_of(tool: &Value) -> String {
    tool["name"].as_str().expect("a tool has a name").to_owned()
}

/// The text of a result.
pub fn text(result: &Value) -> String {
    let blocks = result["content"].as_array().expect("a result has content");
    blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

/// A result without what the gateway adds to every one: how the call went.
pub fn untraced(mut result: Value) -> Value {
    if let Some(meta) = result["_meta"].as_object_mut() {
        assert!(meta.remove("toolcrib/run").is_some(), "a result without its trace: {meta:?}");
        if meta.is_empty() {
            result.as_object_mut().expect("it is an object").remove("_meta");
        }
    }
    result
}

/// The facts about an error, wherever its kind puts them.
pub fn facts(reply: &Value) -> Value {
    let in_result = &reply["result"]["_meta"]["toolcrib/error"];
    if in_result.is_object() { in_result.clone() } else { reply["error"]["data"].clone() }
}

/// The kind of one of our errors: a result with `isError`, or a JSON-RPC error.
pub fn err_kind(reply: &Value) -> Option<&str> {
    let result = &reply["result"];
    match &result["_meta"]["toolcrib/error"]["kind"] {
        Value::String(kind) if result["isError"] == true => Some(kind),
        _ => reply["error"]["data"]["kind"].as_str(),
    }
}

/// The tools that `m` itself lists, asked without a gateway.
pub fn tools_of_m() -> Vec<Value> {
    let mut m = Command::new("python3")
        .arg(root().join("tests/fixtures/m_server.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the fixture starts");
    let info = json!({ "name": "it", "version": "1" });
    let hello = json!({ "protocolVersion": VERSION, "capabilities": {}, "clientInfo": info });
    let mut stdin = m.stdin.take().expect("stdin is a pipe");
    for (id, method, params) in [(1, "initialize", hello), (2, "tools/list", json!({}))] {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        writeln!(stdin, "{message}").expect("the fixture reads");
    }
    drop(stdin);
    let said = m.wait_with_output().expect("the fixture ends");
    let replies = String::from_utf8_lossy(&said.stdout).into_owned();
    let list: Value = replies
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .find(|reply: &Value| reply["id"] == 2)
        .expect("the fixture lists its tools");
    list["result"]["tools"].as_array().expect("a list").clone()
}

/// A server that `fake_upstream.py` plays, with keys of its scenario as `KEY=JSON`.
pub fn fake(name: &str, settings: &[&str]) -> String {
    let mut args = vec!["'@fixtures@/fake_upstream.py'".to_owned(), format!("'--name', '{name}'")];
    args.extend(settings.iter().map(|setting| format!("'--set', '''{setting}'''")));
    format!("[mcp_servers.{name}]\ncommand = \"python3\"\nargs = [{}]\n", args.join(", "))
}
