//! Results on their way back: the budget, `read_result`, and hooks.

use std::sync::Arc;

use serde_json::{Value, json};
use toolcrib::catalog::registry::RegisteredTool;
use toolcrib::config::Loaded;
use toolcrib::gateway::Gateway;
use toolcrib::state::LazyState;
use toolcrib::tools::json::RawJson;
use toolcrib::tools::service::{Source, TextHandler, ToolDefinition, ToolMetadata, ToolResult, ToolService};

use crate::concurrency::run_of;
use crate::support::{BARE, G, M, World, err_kind, facts, is_alive, text, until, untraced};

/// `m` behind the budget that the requirements speak of.
fn config() -> String {
    format!("{BARE}[results]\nmax_chars = 4000\n{M}")
}

/// What `m_big` gives for `n`.
fn big(n: usize) -> String {
    let mut text: String = (0..n).step_by(8).map(|i| format!("{i:07},")).collect();
    text.truncate(n);
    text
}

/// The id under which the whole of a cut result is kept.
fn id_of(result: &Value) -> String {
    result["_meta"]["toolcrib/result"]["id"]
        .as_str()
        .unwrap_or_else(|| panic!("not cut: {result}"))
        .to_owned()
}

#[test]
fn t36_a_result_within_the_budget_is_unchanged() {
    let mut g = G::new(&config());
    for (arguments, expected) in [
        (json!({ "n": 4000 }), big(4000)),
        (json!({ "n": 4000, "char": "汉" }), "汉".repeat(4000)),
        (json!({ "n": 0 }), String::new()),
    ] {
        let result = untraced(g.done("m_big", arguments));
        assert_eq!(result, json!({ "content": [{ "type": "text", "text": expected }] }));
    }
}

#[test]
fn s65_t37_t38_a_longer_one_keeps_head_and_tail_and_says_what_is_missing() {
    let mut g = G::new(&config());
    for (n, omitted) in [(10_000, 6200), (4001, 201), (1_000_000, 996_200)] {
        let result = g.done("m_big", json!({ "n": n }));
        let (shown, whole) = (text(&result), big(n));
        assert!(shown.chars().count() <= 4000, "{n}: {}", shown.chars().count());
        assert!(shown.starts_with(&whole[..2600]) && shown.ends_with(&whole[n - 1200..]), "{n}: {shown}");
        assert!(shown[2600..shown.len() - 1200].contains(&omitted.to_string()), "{n}: {shown}");
        let meta = &result["_meta"]["toolcrib/result"];
        assert_eq!((&meta["characters"], &meta["omitted"]), (&json!(n), &json!(omitted)), "{result}");
        // The note names the way to the rest.
        assert!(shown.contains(&id_of(&result)) && shown.contains("read_result"), "{shown}");
    }
    let result = g.done("m_big", json!({ "n": 10_000, "char": "汉" }));
    let shown = text(&result);
    let letters: Vec<char> = shown.chars().collect();
    assert!(letters.len() <= 4000 && shown.contains("6200"), "{shown}");
    assert!(letters[..2600].iter().chain(&letters[letters.len() - 1200..]).all(|c| *c == '汉'));
}

#[test]
fn t36_without_a_setting_four_thousand_characters_are_the_budget() {
    let mut g = G::new(&format!("{BARE}{M}"));
    assert_eq!(text(&g.done("m_big", json!({ "n": 4000 }))), big(4000));
    assert!(text(&g.done("m_big", json!({ "n": 4001 }))).contains("201"));
}

#[test]
fn t38_read_result_gives_back_the_whole_page_by_page() {
    let mut g = G::new(&config());
    for arguments in
        [json!({ "n": 10_000 }), json!({ "n": 10_000, "char": "汉" }), json!({ "n": 10_000, "char": "\"" })]
    {
        let cut = g.done("m_big", arguments.clone());
        let id = id_of(&cut);
        let (mut read, mut offset, mut pages) = (String::new(), json!(0), 0);
        while !offset.is_null() {
            let page = g.done("read_result", json!({ "id": id, "offset": offset }));
            let facts = &page["structuredContent"];
            let shown = facts["text"].as_str().expect("a page has text");
            assert!(
                text(&page).chars().count() <= 4000 && facts.to_string().chars().count() <= 4000,
                "{page}"
            );
            assert!(text(&page).ends_with(shown), "both forms carry the same text: {page}");
            assert_eq!((&facts["total"], &facts["offset"]), (&json!(10_000), &offset));
            read.push_str(shown);
            offset = facts["next_offset"].clone();
            pages += 1;
            assert!(pages < 100, "reading never ends: {page}");
        }
        let whole = match arguments["char"].as_str() {
            Some(char) => char.repeat(10_000),
            None => big(10_000),
        };
        assert_eq!(read, whole, "{arguments}");
        assert!(pages > 2, "{pages}");
    }
    // The offset of the note is where the text was cut.
    let id = id_of(&g.done("m_big", json!({ "n": 10_000 })));
    let page = g.done("read_result", json!({ "id": id, "offset": 2600, "limit": 50 }));
    assert_eq!(page["structuredContent"]["text"], big(10_000)[2600..2650]);
    assert_eq!(page["structuredContent"]["next_offset"], 2650);
}

#[test]
fn t38_read_result_finds_lines_and_says_what_it_does_not_know() {
    let mut g = G::new(&config());
    let lines: Vec<String> = (0..1000).map(|n| format!("line {n} says {}", n * 7)).collect();
    let config =
        format!("{}[commands.lines]\nrun = [\"cat\", \"@dir@/lines.txt\"]\nread_only = true\n", config());
    let world = World::new(&config);
    world.write("lines.txt", &lines.join("\n"));
    let mut lister = world.session();
    let cut = lister.done("lines", json!({}));
    let id = id_of(&cut);
    let found = lister.done("read_result", json!({ "id": id, "grep": "^line 77[0-9] " }));
    let matches = found["structuredContent"]["matches"].as_array().expect("matches").clone();
    let shown: Vec<&str> = matches.iter().filter_map(|one| one["text"].as_str()).collect();
    assert_eq!(shown, lines[770..780].iter().map(String::as_str).collect::<Vec<_>>(), "{found}");
    assert!(lines[770..780].iter().all(|line| text(&found).contains(line.as_str())), "{found}");
    // A line's offset is where a page about it begins.
    let page = lister.done("read_result", json!({ "id": id, "offset": matches[0]["offset"], "limit": 8 }));
    assert_eq!(page["structuredContent"]["text"], "line 770");
    let nothing = lister.done("read_result", json!({ "id": id, "grep": "no such line" }));
    assert_eq!(nothing["structuredContent"]["matches"], json!([]));
    let error = lister.fails("read_result", json!({ "id": id, "grep": "(" }), "validation");
    assert_eq!(error["path"], "/grep");
    for unknown in ["r99", "", "x", "r0", "R1"] {
        let error = lister.fails("read_result", json!({ "id": unknown }), "execution");
        assert!(error["message"].as_str().is_some_and(|said| said.contains("no result")), "{error}");
    }
    lister.fails("read_result", json!({ "id": id, "offset": 1_000_000_000 }), "execution");
    lister.fails("read_result", json!({}), "validation");
    // Another connection knows nothing of it, whether it has results of its own or not.
    g.fails("read_result", json!({ "id": id }), "execution");
    let mut second = world.session();
    second.fails("read_result", json!({ "id": id }), "execution");
    let own = second.done("lines", json!({}));
    assert_eq!(id_of(&own), id, "numbers begin anew");
}

#[test]
fn s65_structured_content_that_is_cut_stays_whole_json_and_says_so() {
    let mut g = G::new(&config());
    let long = "x".repeat(10_000);
    let arguments = json!({ "n": 7, "long": long, "list": [1, 2, { "deep": long }], "exact": 1e2 });
    let result = g.done("m_echo", arguments.clone());
    let structure = &result["structuredContent"];
    assert!(structure.to_string().chars().count() <= 4000, "{}", structure.to_string().len());
    assert_eq!((&structure["n"], &structure["list"][1]), (&json!(7), &json!(2)), "{structure}");
    let shortened = structure["long"].as_str().expect("it is still a text");
    assert!(shortened.starts_with("xxx") && shortened.contains("omitted"), "{shortened}");
    let meta = &result["_meta"]["toolcrib/result"];
    assert!(meta["structured"]["omitted"].as_u64().is_some_and(|omitted| omitted > 15_000), "{meta}");
    assert!(text(&result).chars().count() <= 4000);
    // The whole of both parts can be read.
    let id = id_of(&result);
    for part in ["text", "structured"] {
        let (mut read, mut offset) = (String::new(), json!(0));
        while !offset.is_null() {
            let page = g.done("read_result", json!({ "id": id, "part": part, "offset": offset }));
            read.push_str(page["structuredContent"]["text"].as_str().expect("text"));
            offset = page["structuredContent"]["next_offset"].clone();
        }
        assert_eq!(serde_json::from_str::<Value>(&read).expect("it is JSON"), arguments, "{part}");
    }
    // Nothing but numbers cannot be shortened: an object says what is missing.
    let numbers: Vec<usize> = (0..5000).collect();
    let result = g.done("m_echo", json!({ "numbers": numbers }));
    let structure = &result["structuredContent"];
    assert!(structure.is_object() && structure["truncated"] == true, "{structure}");
}

#[test]
fn s65_a_result_within_a_batch_is_cut_as_any_other() {
    let config = format!("{BARE}[tools]\nbatch = true\n[results]\nmax_chars = 4000\n{M}");
    let mut g = G::new(&config);
    g.list();
    let calls: Vec<Value> =
        (1..=2).map(|n| json!({ "name": "m_big", "arguments": { "n": n * 10_000 } })).collect();
    let result = g.done("call_tools", json!({ "calls": calls }));
    for (n, one) in (1..=2).zip(result["structuredContent"]["results"].as_array().expect("results")) {
        let shown = text(&one["result"]);
        assert!(shown.chars().count() <= 4000 && shown.starts_with(&big(2600)), "{shown}");
        let id = id_of(&one["result"]);
        let page = g.done("read_result", json!({ "id": id, "offset": n * 10_000 - 8 }));
        assert_eq!(page["structuredContent"]["text"], big(n * 10_000)[n * 10_000 - 8..]);
    }
}

/// A hook: a program in Python that finds the question in `q` and prints what `answer` is.
fn hook(world: &World, file: &str, body: &str) {
    let program =
        format!("import json, os, sys, time\nq = json.load(sys.stdin)\n{body}\nprint(json.dumps(answer))\n");
    world.write(file, &program);
}

fn hook_table(name: &str, more: &str) -> String {
    format!("[hooks.{name}]\nrun = [\"python3\", \"@dir@/{name}.py\"]\n{more}")
}

#[test]
fn s63_a_hook_that_says_no_is_a_refusal_and_nothing_runs() {
    let deny = hook_table("deny", "tools = [\"m_plain\"]\n");
    let block = hook_table("block", "tools = [\"m/count\"]\n");
    let world = World::new(&format!("{BARE}{M}{deny}{block}"));
    hook(&world, "deny.py", "answer = {'decision': 'deny', 'reason': 'not on a ' + q['arguments']['tag']}");
    hook(&world, "block.py", "answer = {'decision': 'block', 'reason': q['original'] + ' is closed'}");
    let mut g = world.session();
    g.list();
    let error = g.fails("m_plain", json!({ "tag": "Friday" }), "permission_denied");
    assert_eq!((&error["reason"], &error["executed"]), (&json!("policy"), &json!(false)));
    assert!(error["message"].as_str().is_some_and(|said| said.contains("not on a Friday")), "{error}");
    let error = g.fails("m_count", json!({}), "execution");
    assert!(error["message"].as_str().is_some_and(|said| said.contains("count is closed")), "{error}");
    g.done("m_ro", json!({}));
    assert_eq!((world.runs("plain"), world.runs("count"), world.runs("ro")), (0, 0, 1));
}

#[test]
fn s63_a_hook_may_rewrite_arguments_which_are_judged_again() {
    let claims = "[tools.claims]\n\"m_sleep\" = { paths = [\"path\"] }\n";
    let rewrite = hook_table("rewrite", "tools = [\"m_echo\", \"m_sleep\"]\n");
    let world = World::new(&format!("{BARE}{claims}{M}{rewrite}"));
    let body = "a = q['arguments']\na.update(a.pop('to', {'seen': q['tool']}))\n\
                answer = {'decision': 'rewrite', 'arguments': a}";
    // The schema of `m_sleep` knows no `to`: there the tag says what is to be done.
    let body = format!(
        "{body}\nif q['tool'] == 'm_sleep':\n    answer['arguments'] = json.loads(q['arguments']['tag'])"
    );
    hook(&world, "rewrite.py", &body);
    let mut g = world.session();
    g.list();
    let result = g.done("m_echo", json!({ "a": 1, "to": { "b": 2 } }));
    assert_eq!(result["structuredContent"], json!({ "a": 1, "b": 2 }));
    let reply = g.call(
        "m_sleep",
        json!({ "ms": 1, "path": "a", "tag": "{\"ms\": 2, \"path\": \"b\", \"tag\": \"t\"}" }),
    );
    assert_eq!(run_of(&reply)["claim"], "exclusive paths b", "{reply}");
    assert_eq!(text(&reply["result"]), "slept 2 ms");
    let error = g.fails("m_sleep", json!({ "ms": 1, "tag": "{\"ms\": \"x\"}" }), "validation");
    assert_eq!(error["path"], "/ms");
    assert_eq!(world.runs("sleep"), 1);
}

#[test]
fn s63_a_hook_that_hangs_refuses_and_is_gone() {
    let world =
        World::new(&format!("{BARE}{M}{}", hook_table("hang", "tools = [\"m_plain\"]\ntimeout_ms = 200\n")));
    let pid_file = world.path("hang.pid");
    // Written before anything slow is loaded, so that it is there when the time is over.
    world.write(
        "hang.py",
        &format!("import os\nopen({pid_file:?}, 'w').write(str(os.getpid()))\nwhile True: pass\n"),
    );
    let mut g = world.session();
    g.list();
    let error = g.fails("m_plain", json!({}), "permission_denied");
    assert_eq!(error["reason"], "policy");
    assert!(error["message"].as_str().is_some_and(|said| said.contains("200 ms")), "{error}");
    assert_eq!(world.runs("plain"), 0);
    if let Some(pid) = std::fs::read_to_string(&pid_file).ok().and_then(|pid| pid.parse().ok()) {
        until("the hook is gone", || !is_alive(pid));
    }
    // Its place is free.
    g.done("m_sleep", json!({ "ms": 1 }));
}

#[test]
fn s63_nonsense_and_failing_hooks_refuse() {
    let tools = ["m_plain", "m_ro", "m_idem"];
    let table = |name: &str, tool: &str| hook_table(name, &format!("tools = [\"{tool}\"]\n"));
    let config =
        [BARE, M, &table("fails", tools[0]), &table("babbles", tools[1]), &table("missing", tools[2])];
    let world = World::new(&config.concat());
    world.write("fails.py", "import sys\nprint('{\"decision\": \"allow\"}')\nsys.exit(3)\n");
    world.write("babbles.py", "print('yes, go on')\n");
    let mut g = world.session();
    g.list();
    for tool in tools {
        let error = g.fails(tool, json!({}), "permission_denied");
        let said = error["message"].as_str().expect("a message");
        assert!(!said.contains(&*world.path("").to_string_lossy()), "a machine path: {said}");
    }
    assert_eq!(tools.map(|tool| world.runs(tool.trim_start_matches("m_"))), [0, 0, 0]);
}

#[test]
fn s63_a_hook_may_replace_or_withhold_a_result() {
    let replace = hook_table("replace", "on = \"after\"\ntools = [\"m_echo\"]\n");
    let withhold = hook_table("withhold", "on = \"after\"\ntools = [\"m_count\"]\n");
    let world = World::new(&format!("{BARE}[results]\nmax_chars = 4000\n{M}{replace}{withhold}"));
    let body = "secret = q['result']['structuredContent']['secret']\n\
                text = ('x' * q['arguments'].get('length', 0)) + 'was ' + str(len(secret)) + ' letters'\n\
                answer = {'decision': 'replace', 'result': {'content': [{'type': 'text', 'text': text}]}}";
    hook(&world, "replace.py", body);
    hook(&world, "withhold.py", "answer = {'decision': 'block', 'reason': 'it is secret'}");
    let mut g = world.session();
    g.list();
    let reply = g.call("m_echo", json!({ "secret": "hunter2" }));
    assert_eq!(run_of(&reply)["attempts"], 1, "{reply}");
    let expected = json!({ "content": [{ "type": "text", "text": "was 7 letters" }] });
    assert_eq!(untraced(reply["result"].clone()), expected);
    // The budget comes last.
    let result = g.done("m_echo", json!({ "secret": "", "length": 10_000 }));
    assert!(text(&result).contains("omitted") && text(&result).ends_with("was 0 letters"), "{result}");
    let reply = g.call("m_count", json!({}));
    assert_eq!(err_kind(&reply), Some("execution"), "{reply}");
    assert!(facts(&reply)["message"].as_str().is_some_and(|said| said.contains("it is secret")), "{reply}");
    assert_eq!(facts(&reply)["executed"], true);
    assert_eq!(world.runs("count"), 1, "what it did stays done");
}

#[tokio::test]
async fn t38_two_connections_of_one_gateway_keep_their_results_apart() {
    let state = Arc::new(LazyState::at(Some(":memory:".into())));
    let mut loaded = Loaded::default();
    loaded.config.builtins.enabled = Some(Vec::new());
    let gateway = Gateway::new(&loaded, state).expect("the defaults are usable");
    let (schema, metadata) = (RawJson::EMPTY_OBJECT, ToolMetadata::default());
    let definition = ToolDefinition::new("long", "Tells much.", schema, Source::Command, metadata);
    let handler = TextHandler(|_: &str| ToolResult::from_result(Ok(big(10_000))));
    let tool = RegisteredTool::new(definition, Arc::new(handler));
    gateway.catalog().publish(Source::Command, Arc::from([Arc::new(tool)]));
    let (first, second) = (gateway.scope(), gateway.scope());
    let cut = first.execute("long", json!({})).await.expect("it runs");
    assert!(cut.plain_text().contains("read_result"));
    let tail = json!({ "id": "r1", "offset": 9992 });
    let page = first.execute("read_result", tail.clone()).await.expect("it is kept");
    assert!(page.plain_text().ends_with(&big(10_000)[9992..]));
    let error = second.execute("read_result", tail).await.expect_err("it is another's");
    assert!(error.to_string().contains("none is kept"), "{error}");
}
