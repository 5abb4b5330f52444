//! Thousands of pipelined calls, some cancelled, too slow or panicking: one answer each, and nothing is left.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, join};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::{sleep, timeout};
use toolcrib::catalog::registry::RegisteredTool;
use toolcrib::config::Loaded;
use toolcrib::gateway::Gateway;
use toolcrib::server::front::Front;
use toolcrib::state::LazyState;
use toolcrib::tools::claim_rule::{Access, ClaimRule, Footprint, Reference};
use toolcrib::tools::error::ToolError;
use toolcrib::tools::json::RawJson;
use toolcrib::tools::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, Turn,
};

use crate::concurrency::{CLAIMS, Dice, LONG, any_call, assert_no_conflict, cancel, conflict, spans, steps};
use crate::support::{BARE, DEADLINE, G, M, VERSION, err_kind, facts, is_alive, until};

/// What the handlers see while they run.
#[derive(Default)]
struct Watch {
    running: Mutex<BTreeMap<u64, (&'static str, Value)>>,
    /// Everything that began, in that order.
    begun: Mutex<Vec<(u64, &'static str, Value)>>,
    wrong: Mutex<Vec<String>>,
}

impl Watch {
    /// Notes a call that begins; the guard notes its end, however it ends.
    fn begin(&self, tool: &'static str, arguments: &Value, arrival: u64) -> Running<'_> {
        let mut running = self.running.lock().expect("no panic holds it");
        for (other, (other_tool, others)) in &*running {
            if conflict((tool, arguments), (other_tool, others)) {
                let pair = format!("{tool} {arguments} ({arrival}) beside {other_tool} {others} ({other})");
                self.wrong.lock().expect("no panic holds it").push(pair);
            }
        }
        if running.len() >= 16 {
            self.wrong.lock().expect("no panic holds it").push(format!("{} at once", running.len() + 1));
        }
        running.insert(arrival, (tool, arguments.clone()));
        self.begun.lock().expect("no panic holds it").push((arrival, tool, arguments.clone()));
        Running { watch: self, arrival }
    }

    fn is_running(&self, arrival: u64) -> bool {
        self.running.lock().expect("no panic holds it").contains_key(&arrival)
    }

    fn live(&self) -> usize {
        self.running.lock().expect("no panic holds it").len()
    }
}

struct Running<'a> {
    watch: &'a Watch,
    arrival: u64,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.watch.running.lock().expect("no panic holds it").remove(&self.arrival);
    }
}

/// Does what its argument `do` says.
struct Act {
    name: &'static str,
    watch: Arc<Watch>,
}

impl ToolHandler for Act {
    fn call<'a>(&'a self, input: Input, turn: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let _running = self.watch.begin(self.name, &input.value, turn.arrival);
            match input.value["do"].as_str() {
                Some("nap") => sleep(Duration::from_millis(2)).await,
                Some("hang") => std::future::pending().await,
                Some("panic") => panic!("as it was told, at {}", file!()),
                _ => {}
            }
            Ok(ToolResult::Completed(ToolOutput::text("done")))
        })
    }
}

/// A gateway with tools of every kind of claim; `slow` has 20 ms.
fn gateway(watch: &Arc<Watch>) -> Arc<Gateway> {
    let mut loaded = Loaded::default();
    loaded.config.builtins.enabled = Some(Vec::new());
    loaded.config.tools.limits.insert("slow".to_owned(), 20);
    let state = Arc::new(LazyState::at(Some(":memory:".into())));
    let gateway = Gateway::new(&loaded, state).expect("the defaults are usable");
    let footprint = Footprint {
        access: Access::Exclusive,
        paths: vec![Reference::named("path"), Reference::named("dest")],
        nodes: vec![Reference::named("node")],
        sessions: vec![Reference::named("session")],
        otherwise: Box::new(ClaimRule::Exclusive),
    };
    let touches = ToolMetadata { claim: Some(ClaimRule::Footprint(footprint)), ..ToolMetadata::default() };
    let tools = [
        ("reads", ToolMetadata { read_only: true, ..ToolMetadata::default() }),
        ("touches", touches.clone()),
        ("slow", touches),
        ("alone", ToolMetadata::default()),
    ];
    let tools = tools.map(|(name, metadata)| {
        let definition = ToolDefinition::new(name, "Acts.", RawJson::EMPTY_OBJECT, Source::Command, metadata);
        Arc::new(RegisteredTool::new(definition, Arc::new(Act { name, watch: Arc::clone(watch) })))
    });
    gateway.catalog().publish(Source::Command, Arc::from(tools));
    gateway
}

/// How a call is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Panics,
    TooSlow,
    /// Cancelled some lines later, whatever has become of it by then.
    Cancelled,
    /// Cancelled once it runs; it would run for ever.
    CancelledRunning,
}

struct Call {
    tool: &'static str,
    arguments: Value,
    fate: Fate,
}

/// As many calls of each fate, in any order.
fn calls(dice: &mut Dice, fates: &[(Fate, usize)]) -> Vec<Call> {
    let mut fates: Vec<Fate> =
        fates.iter().flat_map(|(fate, count)| std::iter::repeat_n(*fate, *count)).collect();
    (1..fates.len()).for_each(|i| fates.swap(i, dice.below(i + 1)));
    let call = |(n, fate): (usize, Fate)| {
        let (like, mut arguments) = any_call(dice, &n.to_string(), 1);
        let tool = match (fate, like) {
            (Fate::TooSlow, _) => "slow",
            (_, "m_ro") => "reads",
            (_, "m_plain") => "alone",
            _ => "touches",
        };
        if fate == Fate::TooSlow {
            arguments = json!({ "node": dice.of(&["n1", "n2", "n3", "n4"]) });
        }
        let what = match fate {
            Fate::Panics => "panic",
            Fate::TooSlow | Fate::CancelledRunning => "hang",
            Fate::Cancelled => dice.of(&["hang", "nap", "return"]),
            Fate::Done if dice.below(8) == 0 => "nap",
            Fate::Done => "return",
        };
        arguments["do"] = json!(what);
        Call { tool, arguments, fate }
    };
    fates.into_iter().enumerate().map(call).collect()
}

/// The replies in order of their arrival.
#[derive(Default)]
struct Replies(Mutex<Vec<Value>>);

impl Replies {
    fn count(&self) -> usize {
        self.0.lock().expect("no panic holds it").len()
    }

    fn has(&self, id: &Value) -> bool {
        self.0.lock().expect("no panic holds it").iter().rev().any(|reply| reply["id"] == *id)
    }
}

async fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"));
}

fn request(id: &Value, method: &str, params: &Value) -> String {
    format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
}

fn call_line(id: usize, call: &Call) -> String {
    request(&json!(id), "tools/call", &json!({ "name": call.tool, "arguments": call.arguments }))
}

/// A cancellation, and a ping behind it: once that is answered, the cancellation was processed.
fn cancel_lines(id: usize) -> String {
    let params = json!({ "requestId": id });
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
    format!("{cancelled}\n{}", request(&json!(format!("after {id}")), "ping", &json!({})))
}

#[tokio::test]
async fn c9_t28_five_thousand_calls_are_answered_once_and_leave_nothing_behind() {
    let mut dice = Dice::new();
    let calls = calls(
        &mut dice,
        &[
            (Fate::Done, 4730),
            (Fate::Panics, 20),
            (Fate::TooSlow, 50),
            (Fate::Cancelled, 150),
            (Fate::CancelledRunning, 50),
        ],
    );
    let watch = Arc::new(Watch::default());
    let gateway = gateway(&watch);
    let replies = Replies::default();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (input, output) = tokio::io::split(theirs);
    let (answers, questions) = tokio::io::split(ours);
    let is_cancelled = |call: &Call| matches!(call.fate, Fate::Cancelled | Fate::CancelledRunning);
    let expected = calls.iter().filter(|call| !is_cancelled(call)).count();
    let write = async {
        let mut questions = questions;
        let info = json!({ "name": "it", "version": "1" });
        let hello = json!({ "protocolVersion": VERSION, "capabilities": {}, "clientInfo": info });
        let mut lines = request(&json!("hello"), "initialize", &hello);
        let mut due: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (id, call) in calls.iter().enumerate() {
            lines.push_str(&call_line(id, call));
            if call.fate == Fate::Cancelled {
                due.insert((id + dice.below(60), id));
            }
            while let Some((at, victim)) = due.first().copied().filter(|(at, _)| *at <= id) {
                due.remove(&(at, victim));
                lines.push_str(&cancel_lines(victim));
            }
            // Packets of many sizes.
            if dice.below(9) == 0 {
                questions.write_all(std::mem::take(&mut lines).as_bytes()).await.expect("it reads");
            }
        }
        due.iter().for_each(|(_, victim)| lines.push_str(&cancel_lines(*victim)));
        questions.write_all(lines.as_bytes()).await.expect("it reads");
        for (id, _) in calls.iter().enumerate().filter(|(_, call)| call.fate == Fate::CancelledRunning) {
            // A call's number in order of arrival is its id.
            wait_until("the call runs", || watch.is_running(id as u64)).await;
            questions.write_all(cancel_lines(id).as_bytes()).await.expect("it reads");
        }
        // Once a ping is answered, what was written before it has arrived, and every answer before it too.
        for ping in ["arrived", "answered"] {
            let line = request(&json!(ping), "ping", &json!({}));
            questions.write_all(line.as_bytes()).await.expect("it reads");
            wait_until(ping, || replies.has(&json!(ping))).await;
            wait_until("every call is over", || gateway.shared().schedule.load() == (0, 0)).await;
        }
        assert_eq!(watch.live(), 0, "a handler is still there");
        // Cancelled ids are free again.
        let again = Call { tool: "reads", arguments: json!({ "do": "return" }), fate: Fate::Done };
        let known = replies.count();
        let mut lines = String::new();
        for (id, _) in calls.iter().enumerate().filter(|(_, call)| is_cancelled(call)) {
            lines.push_str(&call_line(id, &again));
        }
        questions.write_all(lines.as_bytes()).await.expect("it reads");
        wait_until("the ids were used again", || replies.count() == known + 200).await;
        questions.write_all(request(&json!("end"), "ping", &json!({})).as_bytes()).await.expect("it reads");
        wait_until("the end", || replies.has(&json!("end"))).await;
        questions.shutdown().await.expect("it is open");
        // Both halves have to be gone before the connection ends.
        (known, questions)
    };
    let read = async {
        let mut answers = BufReader::new(answers).lines();
        while let Some(line) = answers.next_line().await.expect("it is text") {
            let message: Value = serde_json::from_str(&line).expect("it is JSON");
            if message.get("id").is_some() {
                let is_last = message["id"] == "end";
                replies.0.lock().expect("no panic holds it").push(message);
                if is_last {
                    break;
                }
            }
        }
    };
    let serve = Front::serve(Arc::clone(&gateway), Box::new(input), Box::new(output));
    let client = async {
        let ((known, _), ()) = join(write, read).await;
        known
    };
    let (how, known) = timeout(DEADLINE * 2, join(serve, client)).await.expect("no hang");
    gateway.stop(how).await;
    assert_eq!((gateway.shared().schedule.load(), watch.live()), ((0, 0), 0));
    assert_eq!(*watch.wrong.lock().expect("no panic holds it"), [""; 0]);

    let replies = replies.0.into_inner().expect("no panic holds it");
    let mut first: HashMap<String, (usize, &Value)> = HashMap::new();
    for (at, reply) in replies[..known].iter().enumerate() {
        let was = first.insert(reply["id"].to_string(), (at, reply));
        assert!(was.is_none(), "answered twice: {reply}");
    }
    for (id, call) in calls.iter().enumerate() {
        let answer = first.get(&id.to_string());
        let kind = answer.map(|(_, reply)| err_kind(reply));
        let story = format!("{id} {:?} {} {}: {answer:?}", call.fate, call.tool, call.arguments);
        match call.fate {
            Fate::Done => assert_eq!(kind, Some(None), "{story}"),
            Fate::TooSlow => assert_eq!(kind, Some(Some("timeout")), "{story}"),
            Fate::Panics => {
                assert_eq!(kind, Some(Some("execution")), "{story}");
                assert!(!facts(answer.expect("it has one").1).to_string().contains("told"), "{story}");
            }
            Fate::CancelledRunning => assert_eq!(answer, None, "{story}"),
            Fate::Cancelled => {
                let processed = first[&json!(format!("after {id}")).to_string()].0;
                assert!(answer.is_none_or(|(at, _)| *at < processed), "answered after its cancel: {story}");
            }
        }
    }
    let again: BTreeSet<String> = replies[known..].iter().map(|reply| reply["id"].to_string()).collect();
    assert_eq!((again.len(), replies.len() - known), (201, 201), "an id was answered twice");

    // Calls that are in each other's way begin in order of arrival.
    let begun = watch.begun.lock().expect("no panic holds it");
    assert!(begun.len() >= expected && begun.len() <= 5000 + 200);
    for (at, (arrival, tool, arguments)) in begun.iter().enumerate() {
        for (earlier, other_tool, others) in &begun[at + 1..] {
            assert!(
                earlier > arrival || !conflict((tool, arguments), (other_tool, others)),
                "{tool} {arguments} ({arrival}) overtook {other_tool} {others} ({earlier})"
            );
        }
    }
}

/// The same from outside: real servers, real programs.
#[test]
fn c9_a_thousand_calls_of_a_real_session_are_answered_once_and_no_process_is_left() {
    let claims = "\"m_hang\" = { nodes = [\"tag\"] }\n";
    let config = format!("{BARE}[tools]\nlimits = {{ m_hang = 50 }}\n{CLAIMS}{claims}{M}{}", steps());
    let mut g = G::new(&config);
    g.list();
    let world = Rc::clone(&g.world);
    let mut dice = Dice::new();
    let mut sent: Vec<(Value, &str, Value, Fate)> = Vec::new();
    let mut due: BTreeSet<(usize, usize)> = BTreeSet::new();
    for n in 0..1000 {
        let tag = n.to_string();
        let (tool, mut arguments, mut fate) = match dice.below(40) {
            0 => ("m_hang", json!({ "tag": tag }), Fate::TooSlow),
            1 => ("bash", json!({ "tag": tag }), Fate::Done),
            2 => ("ro", json!({ "tag": tag }), Fate::Done),
            3 => ("write", json!({ "tag": tag, "path": dice.of(&["a/x", "b"]) }), Fate::Done),
            _ => {
                let (tool, arguments) = any_call(&mut dice, &tag, 5);
                (tool, arguments, Fate::Done)
            }
        };
        if fate == Fate::Done && dice.below(12) == 0 {
            fate = Fate::Cancelled;
            // Those that would not end have to be stopped.
            if dice.below(2) == 0 {
                let (key, long) = match tool {
                    "bash" | "ro" | "write" => ("pause", json!("100")),
                    _ => ("ms", json!(LONG)),
                };
                arguments[key] = long;
            }
            due.insert((n + dice.below(40), n));
        }
        let id = g.post_call(tool, arguments.clone());
        sent.push((id, tool, arguments, fate));
        while let Some((at, victim)) = due.first().copied().filter(|(at, _)| *at <= n || n == 999) {
            due.remove(&(at, victim));
            // Some of them are running by then.
            if dice.below(4) == 0 {
                g.request("ping", json!({}));
            }
            let id = sent[victim].0.clone();
            cancel(&mut g, &id);
            g.send(&json!({ "jsonrpc": "2.0", "id": format!("after {id}"), "method": "ping" }));
        }
    }
    for (id, tool, arguments, fate) in &sent {
        match fate {
            Fate::Cancelled => assert!(g.reply(&json!(format!("after {id}")))["result"].is_object()),
            fate => {
                let expected = if *fate == Fate::TooSlow { Some("timeout") } else { None };
                let reply = g.reply(id);
                assert_eq!(err_kind(&reply), expected, "{tool} {arguments}: {reply}");
            }
        }
    }
    // All places are free.
    g.done("m_plain", json!({ "tag": "last" }));
    g.request("ping", json!({}));
    let mut places: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, line) in g.transcript.iter().enumerate() {
        let message: Value = serde_json::from_str(line).expect("it is JSON");
        places.entry(message["id"].to_string()).or_default().push(at);
    }
    for (id, tool, arguments, fate) in &sent {
        let answers = places.get(&id.to_string()).map(Vec::as_slice).unwrap_or_default();
        match fate {
            Fate::Cancelled => {
                let processed = places[&json!(format!("after {id}")).to_string()][0];
                let is_right = answers.is_empty() || (answers.len() == 1 && answers[0] < processed);
                assert!(is_right, "{tool} {arguments}: {answers:?}, cancelled by {processed}");
            }
            _ => assert_eq!(answers.len(), 1, "{tool} {arguments}"),
        }
    }
    let calls: Vec<(&str, Value)> =
        sent.into_iter().map(|(_, tool, arguments, _)| (tool, arguments)).collect();
    assert_no_conflict(&spans(&world), &calls);
    g.close();
    assert!(g.exit().success());
    let log = world.log();
    let ended: BTreeSet<&str> =
        log.iter().filter(|e| e["event"] == "end").filter_map(|e| e["tag"].as_str()).collect();
    let programs = log.iter().filter(|e| e["event"] == "start" && e["tool"] == "step");
    let killed = programs.filter(|e| e["tag"].as_str().is_some_and(|tag| !ended.contains(tag)));
    let left: Vec<u64> = killed
        .chain(log.iter().filter(|e| e["event"] == "launch"))
        .filter_map(|e| e["pid"].as_u64())
        .collect();
    for pid in left {
        until("the process is gone", || !is_alive(pid));
    }
}
