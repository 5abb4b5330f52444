//! `call_tools` over the wire: groups, plans, failures within, what stops a batch and what does not.

use std::rc::Rc;

use serde_json::{Value, json};

use crate::concurrency::{
    CLAIMS, LONG, Row, S56, S57, S58, S59, cancel, has_begun, run_of, spans, step, steps,
};
use crate::support::{BARE, G, M, err_kind, text, until};

/// A batch as arguments.
fn batch(calls: &[(&str, Value)]) -> Value {
    let calls: Vec<Value> =
        calls.iter().map(|(name, arguments)| json!({ "name": name, "arguments": arguments })).collect();
    json!({ "calls": calls })
}

/// A gateway that offers batches, with `m` and the commands of [`steps`].
fn config(more: &str) -> String {
    format!("{BARE}[tools]\nbatch = true\n{more}{CLAIMS}{M}{}", steps())
}

fn workshop() -> G {
    let mut g = G::new(&config(""));
    g.list();
    g
}

/// What became of each call of a batch.
fn results(result: &Value) -> Vec<Value> {
    result["structuredContent"]["results"]
        .as_array()
        .unwrap_or_else(|| panic!("no results: {result}"))
        .clone()
}

fn statuses(result: &Value) -> Vec<String> {
    results(result).iter().map(|one| one["status"].as_str().expect("a status").to_owned()).collect()
}

/// Runs the calls of a row as one batch; `groups` says in which group each call is.
fn holds_in_a_batch((calls, holds): Row, groups: &[usize]) {
    let mut g = workshop();
    let calls = calls("");
    let result = g.done("call_tools", batch(&calls));
    assert_eq!(statuses(&result), vec!["ok"; calls.len()], "{result}");
    for (i, one) in results(&result).iter().enumerate() {
        let size = groups.iter().filter(|group| **group == groups[i]).count();
        assert_eq!(one["run"]["group"], json!({ "index": groups[i], "size": size }), "{i}: {one}");
        assert_eq!(one["name"], calls[i].0);
    }
    holds(&spans(&g.world), "");
}

#[test]
fn s56_groups_of_a_batch_run_one_after_another() {
    holds_in_a_batch(S56, &[0, 0, 1, 2]);
}

#[test]
fn s57_t28_the_calls_of_a_group_run_at_once() {
    holds_in_a_batch(S57, &[0, 0, 0, 0]);
}

#[test]
fn s58_a_batch_reads_together_runs_the_shell_alone_and_writes_together() {
    holds_in_a_batch(S58, &[0, 0, 1, 2, 2]);
}

#[test]
fn s59_a_batch_does_not_gather_its_reads() {
    holds_in_a_batch(S59, &[0, 1, 2]);
}

#[test]
fn s44_a_batch_keeps_the_folder_apart_from_what_lies_in_it() {
    let mut g = workshop();
    let sleep = |tag: &str, path: &str| ("m_sleep", json!({ "tag": tag, "ms": 5, "path": path }));
    let calls = [sleep("1", "a"), sleep("2", "b"), sleep("3", "./a/x"), sleep("4", "c")];
    let result = g.done("call_tools", batch(&calls));
    let groups: Vec<Value> =
        results(&result).iter().map(|one| one["run"]["group"]["index"].clone()).collect();
    assert_eq!(groups, [0, 0, 1, 1]);
    let spans = spans(&g.world);
    assert!(
        ["1", "2"].iter().all(|a| ["3", "4"].iter().all(|b| spans[*a].is_before(spans[*b]))),
        "{spans:?}"
    );
}

/// Batches and single calls keep out of each other's way as single calls do.
#[test]
fn c9_batches_and_single_calls_that_meet_never_overlap() {
    let mut g = workshop();
    let sleep = |tag: String, path: &str| ("m_sleep", json!({ "tag": tag, "ms": 2, "path": path }));
    let mut ids = Vec::new();
    for round in 0..10 {
        let tag = |name: &str| format!("{round}-{name}");
        let calls = [sleep(tag("b1"), "a"), sleep(tag("b2"), "a/x"), sleep(tag("b3"), "a")];
        ids.push(g.post_call("call_tools", batch(&calls)));
        let (tool, arguments) = sleep(tag("single"), "a");
        ids.push(g.post_call(tool, arguments));
    }
    for id in ids {
        let reply = g.reply(&id);
        assert!(reply["result"].is_object() && reply["result"]["isError"] != true, "{reply}");
    }
    let spans = spans(&g.world);
    assert_eq!(spans.len(), 40);
    let all: Vec<_> = spans.iter().collect();
    for (i, (a, one)) in all.iter().enumerate() {
        assert!(all[i + 1..].iter().all(|(_, other)| !one.overlaps(**other)), "{a} {spans:?}");
    }
}

/// The order of the wire holds for the first group of a batch as for any other call.
#[test]
fn c9_a_batch_comes_before_a_call_that_was_sent_behind_it() {
    let mut g = workshop();
    let sleep = |tag: &str| json!({ "tag": tag, "ms": 5, "path": "a" });
    let first = g.post_call("call_tools", batch(&[("m_sleep", sleep("batch"))]));
    let second = g.post_call("m_sleep", sleep("single"));
    g.reply(&first);
    g.reply(&second);
    let spans = spans(&g.world);
    assert!(spans["batch"].is_before(spans["single"]), "{spans:?}");
}

#[test]
fn t27_t33_a_call_that_is_put_off_stops_what_has_not_started() {
    let count = |key: &str| ("m_count", json!({ "key": key }));
    let danger = || ("m_danger", json!({ "tag": "d" }));
    let after = |g: &mut G, first: &str| {
        assert_eq!(g.world.runs("count"), 0, "{first}");
        assert_eq!(g.world.runs("danger"), 0, "{first}");
        g.done("m_count", json!({ "key": "later" }));
    };
    // A client that cannot ask gets a ticket.
    let mut g = workshop();
    let reply = g.call("call_tools", batch(&[danger(), count("a"), count("b")]));
    assert_eq!(reply["result"]["isError"], true, "none succeeded: {reply}");
    assert_eq!(statuses(&reply["result"]), ["approval_deferred", "not_executed", "not_executed"], "{reply}");
    let told = results(&reply["result"]);
    assert!(told[0]["error"]["ticket"].is_string(), "{reply}");
    assert_eq!(
        (&told[2]["error"]["stopped_by"], &told[2]["error"]["retryable"]),
        (&json!("m_danger"), &json!(true))
    );
    assert!(text(&reply["result"]).contains("stopped the batch"), "{reply}");
    after(&mut g, "ticket");
    // A person puts the question off.
    let mut g = G::asking(&config(""), "cancel");
    g.list();
    let reply = g.call("call_tools", batch(&[danger(), count("a"), danger()]));
    assert_eq!(statuses(&reply["result"]), ["approval_deferred", "not_executed", "not_executed"], "{reply}");
    assert_eq!(g.prompts.len(), 1, "the second question was never put");
    after(&mut g, "cancel");
    // What ran before stays done.
    let reply = g.call("call_tools", batch(&[count("a"), danger(), count("b")]));
    assert_eq!(statuses(&reply["result"]), ["ok", "approval_deferred", "not_executed"], "{reply}");
    assert_ne!(reply["result"]["isError"], true, "one succeeded");
    assert_eq!(g.world.runs("count"), 2);
}

#[test]
fn t32_a_no_to_one_call_does_not_stop_the_others() {
    let mut g = G::asking(&config(""), "deny");
    g.list();
    let calls = [("m_danger", json!({ "tag": "d" })), ("m_count", json!({})), ("m_count", json!({}))];
    let result = g.done("call_tools", batch(&calls));
    assert_eq!(statuses(&result), ["permission_denied", "ok", "ok"], "{result}");
    assert_eq!((g.prompts.len(), g.world.runs("danger"), g.world.runs("count")), (1, 0, 2));
}

#[test]
fn t30_questions_of_a_group_come_one_at_a_time_in_order_before_it_runs() {
    let claims = "\"m_danger\" = { nodes = [\"tag\"] }\n";
    let mut g = G::asking(&config("").replacen(CLAIMS, &format!("{CLAIMS}{claims}"), 1), "nothing");
    g.list();
    let danger = |tag: &str| ("m_danger", json!({ "tag": tag, "ms": 1 }));
    let id = g.post_call("call_tools", batch(&[danger("one"), danger("two"), danger("three")]));
    for tag in ["one", "two", "three"] {
        let question = g.question();
        let message = question["params"]["message"].as_str().expect("a message");
        assert!(message.contains(&format!("\"{tag}\"")), "{message}");
        assert_eq!(g.world.runs("danger"), 0, "all are asked before one runs");
        let yes = json!({ "action": "accept", "content": { "decision": "allow_once" } });
        g.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": yes }));
    }
    let reply = g.reply(&id);
    assert_eq!(statuses(&reply["result"]), ["ok"; 3], "{reply}");
    assert_eq!((g.prompts.len(), g.world.runs("danger")), (3, 3));
}

#[test]
fn t29_a_call_of_a_group_may_take_so_long_and_its_siblings_go_on() {
    let claims = "\"m_hang\" = { nodes = [\"tag\"] }\n";
    let config = config("parallel_timeout_ms = 400\n").replacen(CLAIMS, &format!("{CLAIMS}{claims}"), 1);
    let mut g = G::new(&config);
    g.list();
    let calls =
        [("m_hang", json!({ "tag": "h" })), ("m_sleep", json!({ "tag": "s", "ms": 100, "path": "a" }))];
    let result = g.done("call_tools", batch(&calls));
    assert_eq!(statuses(&result), ["timeout", "ok"], "{result}");
    let told = results(&result);
    assert!(told[0]["error"]["elapsed_ms"].as_u64().is_some_and(|ms| ms >= 400), "{result}");
    assert_eq!(told[0]["run"]["group"], json!({ "index": 0, "size": 2 }));
    let world = Rc::clone(&g.world);
    until("the server hears of it", || world.events("cancel", "hang").len() == 1);
    // Alone nobody waits for it: only its own limit counts. Nor is a single call cut short.
    let slow = |tag: &str| ("m_sleep", json!({ "tag": tag, "ms": 700, "path": "a" }));
    let result = g.done("call_tools", batch(&[slow("alone"), ("bash", json!({ "tag": "sh" }))]));
    assert_eq!(statuses(&result), ["ok", "ok"], "{result}");
    let (tool, arguments) = slow("single");
    g.done(tool, arguments);
}

#[test]
fn t29_a_limit_of_the_operator_goes_before_that_of_the_group() {
    let config = config("parallel_timeout_ms = 100\nlimits = { m_sleep = 20000 }\n");
    let mut g = G::new(&config);
    g.list();
    let sleep = |path: &str| ("m_sleep", json!({ "ms": 400, "path": path }));
    let result = g.done("call_tools", batch(&[sleep("a"), sleep("b")]));
    assert_eq!(statuses(&result), ["ok", "ok"], "{result}");
}

#[test]
fn s54_a_plan_tells_groups_claims_and_who_waits_and_runs_nothing() {
    let mut g = workshop();
    let mut arguments = batch(&[
        ("m_ro", json!({ "tag": "1" })),
        ("ro", json!({ "tag": "2" })),
        ("bash", json!({ "tag": "3" })),
        ("write", json!({ "tag": "4", "path": "a" })),
        ("m_sleep", json!({ "tag": "5", "ms": 1, "path": "b" })),
        ("m_sleep", json!({ "tag": "6", "ms": 1, "path": "a/x" })),
        ("m_danger", json!({ "tag": "7" })),
        ("nothing_like_that", json!({})),
        ("m_sleep", json!({ "ms": "x" })),
    ]);
    arguments["plan"] = json!(true);
    let result = g.done("call_tools", arguments);
    let plan = &result["structuredContent"];
    assert_eq!(plan["plan"], true);
    assert_eq!(plan["groups"], json!([[1, 2], [3], [4, 5], [6], [7], [8, 9]]));
    let expected = [
        ("m_ro", "shared nodes m", json!([])),
        ("ro", "shared", json!([])),
        ("bash", "exclusive", json!([1, 2])),
        ("write", "exclusive paths a", json!([2, 3])),
        ("m_sleep", "exclusive paths b", json!([2, 3])),
        ("m_sleep", "exclusive paths a/x", json!([2, 3, 4])),
        ("m_danger", "exclusive", json!([1, 2, 3, 4, 5, 6])),
    ];
    for (i, (name, claim, waits_for)) in expected.iter().enumerate() {
        let call = &plan["calls"][i];
        assert_eq!((&call["call"], &call["name"]), (&json!(i + 1), &json!(name)), "{call}");
        assert_eq!((&call["claim"], &call["waits_for"]), (&json!(claim), waits_for), "{call}");
        let group = plan["groups"]
            .as_array()
            .expect("groups")
            .iter()
            .position(|group| group.as_array().is_some_and(|group| group.contains(&json!(i + 1))));
        assert_eq!(call["group"], json!(group), "{call}");
    }
    assert!(plan["calls"][6]["asks"].is_string(), "{plan}");
    assert_eq!(plan["calls"][7]["error"]["kind"], "not_found", "{plan}");
    assert_eq!(plan["calls"][8]["error"]["kind"], "validation", "{plan}");
    assert!(text(&result).contains("Nothing was run"), "{result}");
    assert!(spans(&g.world).is_empty() && g.prompts.is_empty(), "something was run");
}

#[test]
fn t25_what_fails_within_a_batch_stops_nothing_and_answers_keep_their_order() {
    // `call_tool` exists because something is deferred.
    let mut g = G::new(&config("defer_mcp_tools = true\n"));
    g.list();
    let inner = batch(&[("m_ro", json!({}))]);
    let result = g.done(
        "call_tools",
        batch(&[
            ("nothing_like_that", json!({})),
            ("m_count", json!({ "key": "a" })),
            ("m_sleep", json!({ "ms": "x" })),
            ("call_tools", inner.clone()),
            ("m_boom", json!({ "message": "the fuse was lit" })),
            ("m_boom", json!({ "as": "error" })),
            ("call_tool", json!({ "name": "m_count", "arguments": { "key": "b" } })),
            ("m_echo", json!({ "n": 12345678901234567890_u64 })),
            ("call_tool", json!({ "name": "call_tools", "arguments": inner })),
        ]),
    );
    let expected =
        ["not_found", "ok", "validation", "validation", "failed", "failed", "ok", "ok", "validation"];
    assert_eq!(statuses(&result), expected, "{result}");
    let told = results(&result);
    assert_eq!(told[2]["error"]["path"], "/ms");
    assert!(told[3]["error"]["message"].as_str().is_some_and(|said| said.contains("batch")), "{result}");
    assert_eq!(told[4]["result"]["content"][0]["text"], "the fuse was lit");
    assert_eq!(told[5]["error"]["code"], -32050);
    assert_eq!(told[7]["result"]["structuredContent"], json!({ "n": 12345678901234567890_u64 }));
    assert_eq!(g.world.runs("count"), 2);
    // Each answer stands under its own line, in the order of the calls.
    let text = text(&result);
    let places: Vec<usize> = (1..=9)
        .map(|n| text.find(&format!("[{n}] ")).unwrap_or_else(|| panic!("no [{n}] in {text}")))
        .collect();
    assert!(places.is_sorted(), "{text}");
}

#[test]
fn t25_a_batch_is_an_error_only_if_nothing_succeeded() {
    let mut g = workshop();
    let boom = || ("m_boom", json!({}));
    let reply = g.call("call_tools", batch(&[boom(), ("nothing_like_that", json!({})), boom()]));
    assert_eq!(reply["result"]["isError"], true, "{reply}");
    assert_eq!(statuses(&reply["result"]), ["failed", "not_found", "failed"]);
    let result = g.done("call_tools", batch(&[boom(), ("m_ro", json!({}))]));
    assert_eq!(statuses(&result), ["failed", "ok"]);
    // The batch itself is judged as any other call.
    let too_many: Vec<(&str, Value)> = (0..101).map(|_| ("m_ro", json!({}))).collect();
    for arguments in
        [json!({}), json!({ "calls": [] }), json!({ "calls": [{ "name": "" }] }), batch(&too_many)]
    {
        g.fails("call_tools", arguments, "validation");
    }
    assert_eq!(g.world.runs("ro"), 1);
}

#[test]
fn s61_a_cancelled_batch_takes_its_calls_with_it() {
    let mut g = workshop();
    let sleep = |tag: &str, path: &str| ("m_sleep", json!({ "tag": tag, "ms": LONG, "path": path }));
    let calls = [sleep("1", "a"), sleep("2", "b"), sleep("3", "a")];
    let id = g.post_call("call_tools", batch(&calls));
    let world = Rc::clone(&g.world);
    until("the first group runs", || has_begun(&world, "1") && has_begun(&world, "2"));
    cancel(&mut g, &id);
    until("both are cancelled", || world.events("cancel", "sleep").len() == 2);
    // All places are free: this one claims everything.
    g.done("m_plain", json!({}));
    assert_eq!(world.runs("sleep"), 2, "the second group never ran");
    assert!(!g.has_reply(&id));
}

#[test]
fn s61_a_cancelled_batch_that_waits_for_a_person_withdraws_the_question() {
    let mut g = G::asking(&config(""), "nothing");
    g.list();
    let id = g.post_call("call_tools", batch(&[("m_count", json!({})), ("m_danger", json!({}))]));
    let question = g.question();
    // Nobody waits for a person.
    g.done("m_plain", json!({}));
    cancel(&mut g, &id);
    let withdrawn = g.notice("notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    let yes = json!({ "action": "accept", "content": { "decision": "allow_once" } });
    g.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": yes }));
    g.done("m_plain", json!({}));
    assert!(!g.has_reply(&id));
    assert_eq!((g.world.runs("count"), g.world.runs("danger")), (1, 0));
}

/// A group without room for all its members is still one group.
#[test]
fn s57_a_batch_of_a_hundred_reads_is_one_group() {
    let mut g = workshop();
    let calls: Vec<(&str, Value)> = (0..100).map(|n| ("m_echo", json!({ "n": n }))).collect();
    let result = g.done("call_tools", batch(&calls));
    for (n, one) in results(&result).iter().enumerate() {
        assert_eq!(one["result"]["structuredContent"], json!({ "n": n }));
        assert_eq!(one["run"]["group"], json!({ "index": 0, "size": 100 }));
        assert_eq!((&one["run"]["claim"], &one["run"]["attempts"]), (&json!("shared nodes m"), &json!(1)));
    }
}

/// The gateway's own tools are in nobody's way, also in a batch.
#[test]
fn s44_the_gateways_own_tools_wait_for_nothing() {
    let mut g = workshop();
    let world = Rc::clone(&g.world);
    let holding = g.post_call("m_sleep", json!({ "tag": "all", "ms": LONG }));
    until("the call runs", || has_begun(&world, "all"));
    let reply = g.call("read_result", json!({ "id": "r1" }));
    assert_eq!(err_kind(&reply), Some("execution"), "{reply}");
    assert_eq!(*run_of(&reply), Value::Null);
    let reply = g.call("call_tools", batch(&[("read_result", json!({ "id": "r1" }))]));
    assert_eq!(statuses(&reply["result"]), ["execution"], "{reply}");
    assert!(!g.has_reply(&holding));
    cancel(&mut g, &holding);
}

#[test]
fn t26_calls_of_a_batch_that_are_not_parallel_safe_run_one_by_one() {
    let unsafe_step = |name: &str| step(name, "parallel_safe = false\n");
    let config = [BARE, "[tools]\nbatch = true\n", &unsafe_step("one"), &unsafe_step("two")].concat();
    let mut g = G::new(&config);
    let call = |tool: &'static str, tag: &str| (tool, json!({ "tag": tag, "pause": "0.01" }));
    let result = g.done("call_tools", batch(&[call("two", "1"), call("one", "2"), call("two", "3")]));
    let groups: Vec<Value> = results(&result).iter().map(|one| one["run"]["group"].clone()).collect();
    assert_eq!(groups, (0..3).map(|index| json!({ "index": index, "size": 1 })).collect::<Vec<_>>());
    let spans = spans(&g.world);
    assert!(spans["1"].is_before(spans["2"]) && spans["2"].is_before(spans["3"]), "{spans:?}");
}

/// A batch is one answer: it may hold four results of full length, and beyond that each call has its share.
#[test]
fn s65_a_batch_shares_a_budget_and_every_whole_is_kept() {
    let config = format!("{BARE}[results]\nmax_chars = 4000\n[tools]\nbatch = true\n{M}");
    let mut g = G::new(&config);
    let batch = |calls: usize| {
        let calls: Vec<Value> =
            (0..calls).map(|_| json!({ "name": "m_big", "arguments": { "n": 10_000 } })).collect();
        json!({ "calls": calls })
    };
    let few = g.done("call_tools", batch(4));
    assert!(text(&few).chars().count() > 4 * 3_800, "{}", text(&few).chars().count());
    let many = g.done("call_tools", batch(40));
    let length = text(&many).chars().count();
    assert!(length < 40 * 440, "{length}");
    let last = &many["structuredContent"]["results"][39]["result"]["_meta"]["toolcrib/result"];
    assert_eq!(last["characters"], 10_000);
    let rest = g.done("read_result", json!({ "id": last["id"], "offset": 9_990 }));
    assert_eq!(rest["structuredContent"]["text"].as_str().map(str::len), Some(10));
}
