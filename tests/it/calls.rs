//! Calls on the wire: whose they are, how they end early, and that each is answered once.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Barrier;
use toolcrib::catalog::registry::RegisteredTool;
use toolcrib::config::Loaded;
use toolcrib::gateway::Gateway;
use toolcrib::server::front::Front;
use toolcrib::state::LazyState;
use toolcrib::tools::error::ToolError;
use toolcrib::tools::json::RawJson;
use toolcrib::tools::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, ToolService, Turn,
};

use crate::support::{BARE, DEADLINE, G, M, MODERN, VERSION, World, text, until};

/// Tells whose call it is, once as many calls are running as the barrier waits for.
struct WhoAmI(Barrier);

impl ToolHandler for WhoAmI {
    fn call<'a>(&'a self, _: Input, turn: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            self.0.wait().await;
            let id: Value = turn.request_id.as_ref().and_then(|id| id.to_value().ok()).unwrap_or_default();
            let facts = json!({
                "session": &*turn.session_id, "id": id, "client": &*turn.client, "version": &*turn.protocol_version,
            });
            Ok(ToolResult::Completed(ToolOutput::structured("", &facts)))
        })
    }
}

/// Serves these lines in process, eight calls at once, and gives the replies by id.
async fn served(lines: Vec<String>, expected: usize) -> HashMap<String, Value> {
    let mut loaded = Loaded::default();
    loaded.config.builtins.enabled = Some(Vec::new());
    let state = Arc::new(LazyState::at(Some(":memory:".into())));
    let gateway = Gateway::new(&loaded, state).expect("the defaults are usable");
    // Shared by declaration, so that no claim keeps the eight apart.
    let metadata = ToolMetadata { read_only: true, parallel_safe: Some(true), ..ToolMetadata::default() };
    let definition =
        ToolDefinition::new("whoami", "Tells.", RawJson::EMPTY_OBJECT, Source::Command, metadata);
    let tool = RegisteredTool::new(definition, Arc::new(WhoAmI(Barrier::new(8))));
    gateway.catalog().publish(Source::Command, Arc::from([Arc::new(tool)]));
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (input, output) = tokio::io::split(theirs);
    let (answers, mut questions) = tokio::io::split(ours);
    let client = async move {
        for line in lines {
            questions.write_all(format!("{line}\n").as_bytes()).await.expect("it reads");
        }
        let mut replies = HashMap::new();
        let mut answers = BufReader::new(answers).lines();
        while replies.len() < expected {
            let line = answers.next_line().await.expect("it is text").expect("it answers before it leaves");
            let reply: Value = serde_json::from_str(&line).expect("it is JSON");
            if reply.get("id").is_some() {
                assert!(replies.insert(reply["id"].to_string(), reply).is_none(), "answered twice: {line}");
            }
        }
        questions.shutdown().await.expect("it is open");
        // The connection ends when both halves are gone.
        drop((questions, answers));
        replies
    };
    let serve = Front::serve(Arc::clone(&gateway), Box::new(input), Box::new(output));
    let (how, replies) =
        tokio::time::timeout(DEADLINE, futures::future::join(serve, client)).await.expect("no hang");
    gateway.stop(how).await;
    replies
}

fn call_line(id: &Value, meta: &Value) -> String {
    let params = json!({ "name": "whoami", "arguments": {}, "_meta": meta });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string()
}

#[tokio::test]
async fn s60_eight_calls_at_once_each_carry_their_own_turn() {
    let meta = |n: usize| {
        json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": { "name": format!("client-{n}"), "version": n.to_string() },
        })
    };
    let ids: Vec<Value> =
        (0..8).map(|n| if n % 2 == 0 { json!(n) } else { json!(format!("id-{n}")) }).collect();
    let lines = ids.iter().enumerate().map(|(n, id)| call_line(id, &meta(n))).collect();
    let replies = served(lines, 8).await;
    let mut sessions = Vec::new();
    for (n, id) in ids.iter().enumerate() {
        let facts = &replies[&id.to_string()]["result"]["structuredContent"];
        assert_eq!(facts["id"], *id);
        assert_eq!(facts["client"], format!("client-{n}/{n}"));
        assert_eq!(facts["version"], MODERN);
        sessions.push(facts["session"].clone());
    }
    sessions.dedup();
    assert_eq!(sessions.len(), 1, "one connection is one session");
    assert_ne!(sessions[0], "");
}

#[tokio::test]
async fn s60_in_a_session_the_handshake_says_who_calls() {
    let info = json!({ "name": "it", "version": "7" });
    let hello = json!({ "protocolVersion": VERSION, "capabilities": {}, "clientInfo": info });
    let mut lines = vec![
        json!({ "jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": hello }).to_string(),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string(),
    ];
    lines.extend((0..8).map(|n| call_line(&json!(n), &json!({}))));
    let replies = served(lines, 9).await;
    for n in 0..8 {
        let facts = &replies[&n.to_string()]["result"]["structuredContent"];
        assert_eq!(
            (&facts["id"], &facts["client"], &facts["version"]),
            (&json!(n), &json!("it/7"), &json!(VERSION))
        );
    }
}

#[test]
fn s61_a_cancelled_call_is_cancelled_upstream_and_never_answered() {
    let mut g = G::new(&format!("{BARE}{M}"));
    let hanging = g.post_call("m_hang", json!({ "tag": "h" }));
    let world = std::rc::Rc::clone(&g.world);
    until("the call runs", || world.events("start", "hang").len() == 1);
    g.send(
        &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": hanging } }),
    );
    until("the upstream hears of it", || world.events("cancel", "hang").len() == 1);
    // A call that conflicts with everything starts: the place is free.
    assert_eq!(text(&g.done("m_sleep", json!({ "ms": 1 }))), "slept 1 ms");
    g.request("ping", json!({}));
    assert!(!g.has_reply(&hanging), "a cancelled call was answered");
    // The id is free again.
    let id = g.post("ping", json!({}));
    assert!(g.reply(&id)["result"].is_object());
}

#[test]
fn s61_a_client_without_a_session_cancels_in_the_same_way() {
    let mut g = G::modern(&format!("{BARE}{M}"));
    let hanging = g.post_call("m_hang", json!({}));
    let world = std::rc::Rc::clone(&g.world);
    until("the call runs", || world.events("start", "hang").len() == 1);
    g.send(
        &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": hanging } }),
    );
    until("the upstream hears of it", || world.events("cancel", "hang").len() == 1);
    g.done("m_plain", json!({}));
    assert!(!g.has_reply(&hanging), "a cancelled call was answered");
}

#[test]
fn s61_a_cancelled_call_that_waits_for_a_person_withdraws_the_question() {
    let mut g = G::asking(&format!("{BARE}{M}"), "nothing");
    let waiting = g.post_call("m_danger", json!({}));
    let question = g.question();
    g.send(
        &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": waiting } }),
    );
    let withdrawn = g.notice("notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    // A late yes runs nothing.
    let yes = json!({ "action": "accept", "content": { "decision": "allow_once" } });
    g.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": yes }));
    g.done("m_plain", json!({}));
    assert!(!g.has_reply(&waiting));
    assert_eq!(g.world.runs("danger"), 0);
}

/// Each of the two waits until the other has begun; alone, none of them ends well.
#[test]
fn t6_tools_that_are_declared_parallel_safe_overlap() {
    let meet = |own: &str, other: &str| {
        format!(
            "run = [\"sh\", \"-c\", 'touch @dir@/{own}; n=0; until [ -e @dir@/{other} ]; do n=$((n+1)); \
             [ $n -gt 1500 ] && exit 1; sleep 0.01; done; echo met']\nparallel_safe = true\n"
        )
    };
    let config = format!("{BARE}[commands.left]\n{}[commands.right]\n{}", meet("l", "r"), meet("r", "l"));
    let mut g = G::new(&config);
    let ids = [g.post_call("left", json!({})), g.post_call("right", json!({}))];
    for id in ids {
        assert_eq!(text(&g.reply(&id)["result"]).trim(), "met");
    }
}

/// The default is cautious: what is not declared safe has the machine to itself.
#[test]
fn t6_tools_that_are_not_declared_parallel_safe_never_overlap() {
    let alone =
        "run = [\"sh\", \"-c\", 'mkdir @dir@/busy || exit 1; sleep 0.05; rmdir @dir@/busy; echo alone']\n";
    let config = format!("{BARE}[commands.silent]\n{alone}[commands.unsafe]\n{alone}parallel_safe = false\n");
    let mut g = G::new(&config);
    let ids: Vec<Value> = ["silent", "unsafe", "silent", "unsafe", "unsafe"]
        .iter()
        .map(|tool| g.post_call(tool, json!({})))
        .collect();
    for id in ids {
        let reply = g.reply(&id);
        assert_eq!(text(&reply["result"]).trim(), "alone", "{reply}");
    }
}

#[tokio::test]
async fn t40_pipelined_calls_give_what_the_service_gives() {
    let config = "[builtins]\nenabled = []\n[commands.say]\nrun = [\"printf\", \"%s\", \"{{word}}\"]\n\
                  params = { word = \"string\" }\nread_only = true\n[commands.fail]\nrun = [\"false\"]\n\
                  [policy.rules]\nnever = \"deny\"\n[commands.never]\nrun = [\"true\"]\n";
    let calls: Vec<(&str, Value)> = (0..4)
        .flat_map(|n| {
            [
                ("say", json!({ "word": format!("word {n}") })),
                ("fail", json!({})),
                ("never", json!({})),
                ("nothing", json!({})),
                ("say", json!({})),
            ]
        })
        .collect();
    let world = World::new(config);
    let options = toolcrib::config::Options {
        config: Some(world.path("tools.toml")),
        directory: world.path(""),
        ..Default::default()
    };
    let loaded = toolcrib::config::load(&options).expect("the configuration is good");
    let state = Arc::new(LazyState::at(Some(":memory:".into())));
    let gateway = Gateway::new(&loaded, state).expect("the configuration is usable");
    let scope = gateway.scope();
    let word = |outcome: Result<ToolOutput, ToolError>| match outcome {
        Ok(output) => format!("ok {}", output.plain_text()),
        Err(error) => format!("{} {error}", error.kind()),
    };
    let runs = calls.iter().map(|(tool, input)| scope.execute(tool, input.clone()));
    let in_process: Vec<String> = futures::future::join_all(runs).await.into_iter().map(word).collect();
    let mut g = world.session();
    let ids: Vec<Value> = calls.iter().map(|(tool, input)| g.post_call(tool, input.clone())).collect();
    let on_the_wire: Vec<String> = ids
        .iter()
        .map(|id| {
            let reply = g.reply(id);
            match crate::support::err_kind(&reply) {
                None => format!("ok {}", text(&reply["result"])),
                Some(kind) => format!(
                    "{kind} {}",
                    crate::support::facts(&reply)["message"].as_str().unwrap_or_default()
                ),
            }
        })
        .collect();
    assert_eq!(on_the_wire, in_process);
}

#[test]
fn a32_each_of_fifty_pipelined_calls_is_answered_once_with_its_own_result() {
    let mut g = G::new(&format!("{BARE}{M}"));
    let ids: Vec<Value> = (0..50)
        .map(|n| match n % 3 {
            0 => json!(1000 + n),
            1 => json!(format!("call-{n}")),
            _ => json!(format!("{}", 2000 + n)),
        })
        .collect();
    for (n, id) in ids.iter().enumerate() {
        let params = json!({ "name": "m_echo", "arguments": { "n": n } });
        g.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }));
    }
    // Fetched in another order than the calls were sent in.
    for (n, id) in ids.iter().enumerate().rev() {
        assert_eq!(g.reply(id)["result"]["structuredContent"], json!({ "n": n }), "{id}");
    }
    g.request("ping", json!({}));
    for id in &ids {
        let answers = g
            .transcript
            .iter()
            .filter(|line| serde_json::from_str::<Value>(line).is_ok_and(|message| message["id"] == *id));
        assert_eq!(answers.count(), 1, "{id}");
    }
    assert_eq!(g.world.runs("echo"), 50);
}

/// A call is over when it is answered, not when a limit has passed.
#[test]
fn s61_a_limit_ends_a_call_and_cancels_it_upstream() {
    let mut g = G::new(&format!("{BARE}[tools.limits]\nm_hang = 300\n{M}"));
    // The server is up now, so that the limit is the hanging tool's own.
    g.list();
    let error = g.fails("m_hang", json!({}), "timeout");
    assert!(error["elapsed_ms"].as_u64().is_some_and(|elapsed| elapsed >= 300), "{error}");
    assert!(u128::from(error["elapsed_ms"].as_u64().unwrap_or_default()) < DEADLINE.as_millis());
    let world = std::rc::Rc::clone(&g.world);
    until("the upstream hears of it", || world.events("cancel", "hang").len() == 1);
}
