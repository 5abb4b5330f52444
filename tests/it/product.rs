//! The binary as a client starts it: eras, pipes, configuration, ends, and the servers behind it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::support::{
    BARE, G, M, MODERN, VERSION, World, err_kind, fake, is_alive, root, signal, text, until, untraced,
};

#[test]
fn c1_every_session_revision_is_spoken() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut g = World::new(&format!("{BARE}{M}")).start();
        let hello = g.initialize(version, &json!({}));
        assert_eq!(hello["protocolVersion"], version);
        assert_eq!(hello["serverInfo"]["name"], "toolcrib");
        assert_eq!(hello["serverInfo"]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(hello["capabilities"]["tools"]["listChanged"], true);
        assert_eq!(text(&g.done("m_ro", json!({}))), "done", "{version}");
    }
    let mut g = World::new(BARE).start();
    let hello = g.initialize("1999-01-01", &json!({}));
    assert_eq!(hello["protocolVersion"], "2025-11-25", "an unknown revision is answered with the latest");
}

#[test]
fn c1_a_request_that_stands_for_itself_needs_no_handshake() {
    let mut g = G::modern(&format!("{BARE}{M}"));
    let list = g.request("tools/list", json!({}))["result"].clone();
    assert_eq!((&list["resultType"], list["tools"].as_array().map(Vec::len)), (&json!("complete"), Some(15)));
    assert!(list["ttlMs"].is_u64() && list["cacheScope"].is_string(), "{list}");
    let info = |result: &Value| result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"].clone();
    assert_eq!(info(&list), "toolcrib");
    let called = g.done("m_ro", json!({}));
    assert_eq!(
        (&called["resultType"], info(&called), text(&called)),
        (&json!("complete"), json!("toolcrib"), "done".into())
    );
    let discovered = g.request("server/discover", json!({}))["result"].clone();
    assert!(
        discovered["supportedVersions"].as_array().is_some_and(|versions| versions.contains(&json!(MODERN)))
    );
    assert_eq!(discovered["capabilities"]["tools"]["listChanged"], true);
}

#[test]
fn c1_s66_s68_s72_errors_are_the_same_where_requests_stand_for_themselves() {
    let mut g = G::modern(&format!("{BARE}{M}"));
    let reply = g.call("m_plian", json!({}));
    assert_eq!((&reply["error"]["code"], err_kind(&reply)), (&json!(-32602), Some("not_found")));
    assert_eq!(reply["error"]["data"]["suggestions"], json!(["m_plain"]));
    for (tool, arguments, kind) in
        [("m_sleep", json!({ "ms": "x" }), "validation"), ("m_die", json!({}), "transport")]
    {
        let reply = g.call(tool, arguments);
        assert_eq!((err_kind(&reply), &reply["result"]["resultType"]), (Some(kind), &json!("complete")));
        let meta = &reply["result"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/serverInfo"]["name"], "toolcrib", "{meta}");
    }
    let bare = json!({ "jsonrpc": "2.0", "id": "bare", "method": "tools/list", "params": {} });
    g.send(&bare);
    assert_eq!(g.reply(&json!("bare"))["error"]["code"], -32602, "neither handshake nor metadata");
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2099-01-01", "io.modelcontextprotocol/clientCapabilities": {},
    });
    let unknown =
        json!({ "jsonrpc": "2.0", "id": "far", "method": "tools/list", "params": { "_meta": meta } });
    g.send(&unknown);
    assert_eq!(g.reply(&json!("far"))["error"]["code"], -32022);
}

#[test]
fn c1_s16_a_client_without_a_session_hears_of_changes_if_it_listens() {
    let mut g = G::modern(&format!("{BARE}[tools]\ncore = []\n{M}"));
    let before = g.names().len();
    let listening = g.post("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
    let id = |notice: &Value| notice["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"].clone();
    let acknowledged = g.notice("notifications/subscriptions/acknowledged");
    assert_eq!(id(&acknowledged), listening);
    g.done("m_add_tool", json!({ "name": "fresh" }));
    let changed = g.notice("notifications/tools/list_changed");
    assert_eq!(id(&changed), listening);
    assert_eq!(g.names().len(), before + 1);
    g.close();
    assert!(g.exit().success());
}

#[test]
fn c2_stdout_carries_the_protocol_and_nothing_else() {
    let world = World::new(&format!("{BARE}{M}[mcp_servers.gone]\ncommand = \"no-such-program-at-all\"\n"));
    let mut command = world.command(&["serve"]);
    command.env("TOOLCRIB_LOG", "debug,rmcp=trace");
    let mut g = world.start_as(command);
    g.initialize(VERSION, &json!({}));
    g.list();
    g.call("m_boom", json!({}));
    g.call("m_nope", json!({}));
    g.done("m_plain", json!({}));
    g.send_line("this is no JSON");
    assert_eq!(g.reply(&Value::Null)["error"]["code"], -32700);
    g.send_line(r#"[{"jsonrpc":"2.0","id":77,"method":"ping"}]"#);
    assert_eq!(g.reply(&Value::Null)["error"]["code"], -32600);
    g.send_line("{\"jsonrpc\":\"2.0\",");
    assert_eq!(g.reply(&Value::Null)["error"]["code"], -32700);
    g.send_line("");
    assert!(g.request("ping", json!({}))["result"].is_object(), "the session goes on");
    g.close();
    assert!(g.exit().success());
    for line in &g.transcript {
        let message: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(message.is_object() && message["jsonrpc"] == "2.0", "{line}");
    }
    assert!(!g.stderr().is_empty(), "with debug logging something is logged");
}

#[test]
fn c4_a_bad_configuration_ends_the_start_with_file_line_and_key() {
    let cases = [
        ("[tools]\n\ndefer_mcp_tool = true\n", ":3", "defer_mcp_tool", "defer_mcp_tools"),
        ("[tools]\ndefer_mcp_tools = \"yes\"\n", ":2", "defer_mcp_tools", "true or false"),
        ("[policy]\ntier = \"careful\"\n", ":2", "careful", "ask"),
        ("[mcp_servers.a]\nargs = []\n", ":1", "a", "command"),
        ("[tools]\nsession_mode = \"nap\"\n", ":2", "nap", "session_mode"),
        ("[tools\n", ":1", "bad.toml", ""),
    ];
    for (config, line, key, hint) in cases {
        let world = World::new("");
        world.write("bad.toml", config);
        let mut command = world.bare_command();
        let ended = command.args(["serve", "--config", "bad.toml"]).output().expect("the binary starts");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(3), 0), "{config}{said}");
        for part in ["bad.toml", line, key, hint] {
            assert!(said.contains(part), "`{part}` is missing for {config}{said}");
        }
    }
    let world = World::new("");
    let missing =
        world.bare_command().args(["list", "--config", "nowhere.toml"]).output().expect("it starts");
    assert_eq!(missing.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("nowhere.toml"));
}

#[test]
fn c4_the_shipped_configuration_and_none_at_all_mean_the_built_ins() {
    let names = |args: &[&str]| {
        let world = World::new("");
        let mut command = world.bare_command();
        let told =
            command.args(["list", "--json", "--state", ":memory:"]).args(args).output().expect("it starts");
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        let tools: Vec<Value> = serde_json::from_slice(&told.stdout).expect("`list --json` prints JSON");
        tools.iter().map(crate::support::name_of).collect::<Vec<_>>()
    };
    let shipped = root().join("tools.toml");
    let without = names(&[]);
    assert_eq!(names(&["--config", &shipped.to_string_lossy()]), without);
    assert!(
        ["file_read", "file_write", "shell"].iter().all(|name| without.iter().any(|known| known == name))
    );
}

#[test]
fn c5_the_list_is_what_every_filter_leaves_sorted_and_stable() {
    let config = format!(
        "{BARE}[tools]\ncore = [\"m_ro\", \"m_danger\", \"file_note\"]\nsession_mode = \"quiet\"\n\
         [modes.quiet]\ndefer = [\"later\"]\ncore_remove = [\"m_danger\"]\ncore_add = [\"own\"]\n\
         [tools.permissions]\nm_count = [\"p\"]\nm_idem = [\"held\"]\n\
         [policy]\nallow = [\"m/*\", \"d_*\", \"own\", \"later_on\"]\ngrants = [\"held\"]\n\
         [policy.rules]\n\"m_*_tool\" = \"deny\"\nm_die = \"deny\"\n\
         [commands.own]\nrun = [\"true\"]\n[commands.later_on]\nrun = [\"true\"]\n[commands.outside]\nrun = [\"true\"]\n\
         {M}disabled_tools = [\"hang\"]\n\
         [mcp_servers.d]\ncommand = \"python3\"\nargs = [\"@fixtures@/m_server.py\"]\nenabled_tools = [\"ro\", \"plain\"]\n\
         defer = true\n"
    );
    let world = World::new(&config);
    let mut g = world.session();
    let expected = [
        "call_tool",
        "call_tools",
        "get_tool_schema",
        "m_big",
        "m_boom",
        "m_danger",
        "m_echo",
        "m_idem",
        "m_plain",
        "m_progress",
        "m_ro",
        "m_sleep",
        "own",
        "read_result",
        "tool_search",
    ];
    let tools = g.list();
    assert_eq!(tools.iter().map(crate::support::name_of).collect::<Vec<_>>(), expected);
    let open = json!({ "type": "object", "additionalProperties": true });
    for tool in &tools {
        let name = crate::support::name_of(tool);
        let is_core =
            ["m_ro", "own", "call_tool", "call_tools", "get_tool_schema", "read_result", "tool_search"]
                .contains(&name.as_str());
        assert_eq!(tool["inputSchema"] != open, is_core, "{name}");
    }
    let first = g.list_text();
    for _ in 0..10 {
        assert_eq!(g.list_text(), first);
    }
    assert_eq!(world.session().list_text(), first, "a restart changes nothing");
    let hidden = g.done("tool_search", json!({ "query": "later", "limit": 20 }));
    assert!(text(&hidden).contains("later_on"));
}

#[test]
fn c6_arguments_reach_the_tool_as_they_were_written() {
    let mut g = G::new(&format!("{BARE}{M}"));
    let written = r#"{"z":1,"a":123456789012345678901234567890,"f":1.0,"e":1e2,"t":-0.5E-7,"n":null,"s":"é 汉 \"q\" \\ /","o":{"b":[1,2.50,{}],"a":[]}}"#;
    g.send_line(&format!(
        r#"{{"jsonrpc":"2.0","id":"as-written","method":"tools/call","params":{{"name":"m_echo","arguments":{written}}}}}"#
    ));
    g.reply(&json!("as-written"));
    let line = g.transcript.last().expect("it answered");
    assert!(line.contains(&format!("\"structuredContent\":{written}")), "{line}");
    for params in [json!({ "name": "m_echo" }), json!({ "name": "m_echo", "arguments": null })] {
        let result = g.request("tools/call", params)["result"].clone();
        assert_eq!((result["structuredContent"].clone(), text(&result)), (json!({}), "{}".to_owned()));
    }
    for params in [json!({}), json!({ "name": 7 }), json!({ "name": "m_echo", "arguments": [] })] {
        let reply = g.request("tools/call", params.clone());
        assert_eq!(reply["error"]["code"], -32602, "{params}");
    }
    let reply = g.call("nothing_of_the_kind", json!({}));
    assert_eq!((&reply["error"]["code"], err_kind(&reply)), (&json!(-32602), Some("not_found")));
}

#[test]
fn c6_results_of_every_kind_pass_as_they_are() {
    let result = json!({
        "content": [
            { "type": "text", "text": "a", "annotations": { "audience": ["user"], "priority": 0.5 } },
            { "type": "image", "data": "aGk=", "mimeType": "image/png" },
            { "type": "audio", "data": "aGk=", "mimeType": "audio/wav" },
            { "type": "resource_link", "uri": "file:///x", "name": "x" },
            { "type": "resource", "resource": { "uri": "file:///y", "text": "y", "mimeType": "text/plain" } },
            { "type": "something_new", "payload": [1, 2, 3] },
        ],
        "structuredContent": { "n": 1 },
        "vendor": { "unknown": true },
        "_meta": { "a/b": 1 },
    });
    let tools = r#"tools=[{"name":"all","description":"Everything.","inputSchema":{"type":"object"}}]"#;
    let behaviour = format!("on_call={}", json!({ "all": { "result": result } }));
    let mut g = G::new(&format!("{BARE}{}", fake("f", &[tools, &behaviour])));
    assert_eq!(untraced(g.done("f_all", json!({}))), result);
}

/// The processes that a gateway has started, its helper for them included.
fn children_of(pid: u64) -> Vec<u64> {
    let told = std::process::Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output().expect("`ps` runs");
    let rows = String::from_utf8_lossy(&told.stdout).into_owned();
    let pairs = rows.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        Some((numbers.next()?, numbers.next()?))
    });
    pairs.filter(|(_, parent)| *parent == pid).map(|(child, _)| child).collect()
}

fn family_of(pid: u64) -> Vec<u64> {
    children_of(pid).into_iter().flat_map(|child| [vec![child], family_of(child)].concat()).collect()
}

fn nobody_is_left(family: &[u64]) {
    until(&format!("everybody of {family:?} is gone"), || family.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn c11_any_working_directory_will_do() {
    let world = World::new(&format!("{BARE}{M}"));
    let mut command = world.command(&["serve"]);
    command.current_dir("/");
    let mut g = world.start_as(command);
    g.initialize(VERSION, &json!({}));
    g.done("m_ro", json!({}));
    // Options may stand before the subcommand, and `serve` is what is meant where there is none.
    let mut g = world.start_as(world.command(&[]));
    g.initialize(VERSION, &json!({}));
    g.done("m_ro", json!({}));
}

/// A server that starts once a file named `go` is there.
const GATED: &str = "[mcp_servers.m]\ncommand = \"@dir@/wrapper\"\n";

fn gated(config: &str) -> Rc<World> {
    let world = World::new(&format!("{BARE}{config}{GATED}"));
    let wrapper = format!(
        "#!/bin/sh\nuntil [ -e '{}' ]; do sleep 0.02; done\nexec python3 '{}' --log '{}'\n",
        world.path("go").display(),
        root().join("tests/fixtures/m_server.py").display(),
        world.path("m.log").display()
    );
    world.write("wrapper", &wrapper);
    fs::set_permissions(world.path("wrapper"), fs::Permissions::from_mode(0o755)).expect("it is ours");
    world
}

#[test]
fn c11_a_slow_server_delays_nobody_and_its_tools_arrive_later() {
    let world = gated("[tools]\nfirst_list_wait_ms = 100\n[commands.own]\nrun = [\"true\"]\n");
    let mut g = world.session();
    assert_eq!(g.names(), ["own"]);
    g.done("own", json!({}));
    world.write("go", "");
    g.notice("notifications/tools/list_changed");
    assert_eq!(g.names().len(), 15);
    g.done("m_ro", json!({}));
}

#[test]
fn c11_a_call_of_a_slow_servers_tool_waits_for_it() {
    let world = gated("[tools]\nfirst_list_wait_ms = 50\n");
    let mut g = world.session();
    let early = g.post_call("m_ro", json!({}));
    assert_eq!(g.names(), [""; 0]);
    assert!(!g.has_reply(&early));
    world.write("go", "");
    assert_eq!(text(&g.reply(&early)["result"]), "done");
}

#[test]
fn c11_the_end_of_input_and_a_signal_end_everything() {
    for end in ["eof", "TERM", "INT", "HUP"] {
        let mut g = G::new(&format!("{BARE}{M}"));
        g.done("m_ro", json!({}));
        let family = family_of(g.pid());
        assert!(family.contains(&g.world.pids()[0]), "{family:?}");
        match end {
            "eof" => g.close(),
            signal => g.signal(signal),
        }
        assert_eq!(g.exit().code(), Some(0), "{end}");
        nobody_is_left(&family);
    }
}

#[test]
fn c11_an_open_question_or_call_keeps_nobody_alive() {
    for end in ["eof", "TERM"] {
        let mut g = G::asking(&format!("{BARE}{M}"), "nothing");
        g.post_call("m_hang", json!({}));
        let world = Rc::clone(&g.world);
        until("the call runs", || !world.events("start", "hang").is_empty());
        g.post_call("m_danger", json!({}));
        g.question();
        let family = family_of(g.pid());
        match end {
            "eof" => g.close(),
            signal => g.signal(signal),
        }
        assert_eq!(g.exit().code(), Some(0), "{end}");
        nobody_is_left(&family);
        assert_eq!(g.world.runs("danger"), 0);
    }
}

#[test]
fn c11_servers_that_do_not_want_to_leave_are_ended_with_their_children() {
    let stubborn = "[mcp_servers.m]\ncommand = \"python3\"\nargs = [\"@fixtures@/m_server.py\", \"--log\", \
                    \"@dir@/m.log\", \"--ignore-eof\", \"--ignore-term\", \"--grandchild\"]\n";
    let mut g = G::new(&format!("{BARE}{stubborn}"));
    g.done("m_ro", json!({}));
    let family = family_of(g.pid());
    let m = g.world.pids()[0];
    assert!(!children_of(m).is_empty(), "the grandchild is there");
    g.close();
    assert_eq!(g.exit().code(), Some(0));
    nobody_is_left(&family);
}

#[test]
fn c11_a_killed_gateway_leaves_no_server_behind() {
    let mut g = G::new(&format!("{BARE}{M}"));
    g.done("m_ro", json!({}));
    let family = family_of(g.pid());
    signal(g.pid(), "KILL");
    assert_eq!(g.exit().code(), None);
    nobody_is_left(&family);
}

/// Two servers in one gateway, each with a log of its own.
fn two() -> String {
    format!(
        "{BARE}[tools]\ncore = []\n{M}\
         [mcp_servers.n]\ncommand = \"python3\"\nargs = [\"@fixtures@/m_server.py\", \"--name\", \"n\", \"--modern-only\", \"--env-dump\"]\n\
         env = {{ TC_GIVEN = \"${{TC_OUTER}}\", TC_PLAIN = \"a b\" }}\n"
    )
}

fn with_environment(world: &Rc<World>) -> G {
    let mut command = world.command(&["serve"]);
    command.env("TC_OUTER", "from outside").env("TC_SECRET", "not for servers");
    let mut g = world.start_as(command);
    g.initialize(VERSION, &json!({}));
    g
}

#[test]
fn c12_two_servers_of_either_era_stand_side_by_side() {
    let world = World::new(&two());
    let mut g = with_environment(&world);
    let names = g.names();
    assert_eq!(names.iter().filter(|name| name.starts_with("m_")).count(), 14);
    assert_eq!(names.iter().filter(|name| name.starts_with("n_")).count(), 15);
    for server in ["m", "n"] {
        assert_eq!(text(&g.done(&format!("{server}_ro"), json!({}))), "done");
        let said = g.done(&format!("{server}_echo"), json!({ "k": 1.0 }));
        assert!(
            said.get("resultType").is_none(),
            "a session's results carry no marks of the other era: {said}"
        );
    }
}

#[test]
fn c12_environment_and_arguments_reach_the_server_and_nothing_else_does() {
    let world = World::new(&two());
    let mut g = with_environment(&world);
    let value = |g: &mut G, name: &str| {
        g.done("n_env", json!({ "name": name }))["structuredContent"]["value"].clone()
    };
    assert_eq!(value(&mut g, "TC_GIVEN"), "from outside");
    assert_eq!(value(&mut g, "TC_PLAIN"), "a b");
    assert_eq!(value(&mut g, "TC_SECRET"), Value::Null);
    assert_eq!(value(&mut g, "TC_OUTER"), Value::Null);
    assert!(value(&mut g, "PATH").is_string());
}

#[test]
fn c12_timeouts_and_errors_pass_through() {
    let hasty = "[mcp_servers.q]\ncommand = \"python3\"\nargs = [\"@fixtures@/m_server.py\"]\ntool_timeout_sec = 0.4\n";
    let world = World::new(&format!("{}{hasty}", two()));
    let mut g = with_environment(&world);
    g.list();
    let error = g.fails("q_hang", json!({}), "timeout");
    assert_eq!((&error["tool"], &error["retryable"]), (&json!("q_hang"), &json!(true)));
    assert!(error["elapsed_ms"].as_u64().is_some_and(|elapsed| elapsed >= 400), "{error}");
    for server in ["m", "n"] {
        let reply = g.call(&format!("{server}_boom"), json!({ "as": "error" }));
        assert_eq!(
            (&reply["error"]["code"], &reply["error"]["data"]),
            (&json!(-32050), &json!({ "fuse": "lit" }))
        );
        let result = g.call(&format!("{server}_boom"), json!({ "message": "x" }))["result"].clone();
        assert_eq!((&result["isError"], text(&result)), (&json!(true), "x".to_owned()));
    }
}

#[test]
fn c12_progress_reaches_the_caller_under_its_own_token() {
    let world = World::new(&two());
    let mut g = with_environment(&world);
    for (tool, token) in [("m_progress", json!("mine")), ("n_progress", json!(42))] {
        g.notices.clear();
        let params = json!({ "name": tool, "arguments": { "count": 3, "every_ms": 1 }, "_meta": { "progressToken": token } });
        let reply = g.request("tools/call", params);
        assert_eq!(text(&reply["result"]), "3 steps");
        let steps: Vec<(Value, Value, Value)> = g
            .notices
            .iter()
            .filter(|notice| notice["method"] == "notifications/progress")
            .map(|notice| &notice["params"])
            // A loaded machine may take so long that the caller is told of that as well.
            .filter(|step| {
                !step["message"].as_str().is_some_and(|message| message.starts_with("running for"))
            })
            .map(|step| (step["progressToken"].clone(), step["progress"].clone(), step["message"].clone()))
            .collect();
        let expected: Vec<_> =
            (1..=3).map(|n| (token.clone(), json!(n), json!(format!("step {n}")))).collect();
        assert_eq!(steps, expected, "{tool}");
    }
    g.notices.clear();
    g.done("m_progress", json!({ "count": 2 }));
    assert!(
        g.notices.iter().all(|notice| notice["method"] != "notifications/progress"),
        "nobody asked for progress"
    );
}

#[test]
fn c12_one_crashing_leaves_the_other_working_and_comes_back() {
    let world = World::new(&two());
    let mut g = with_environment(&world);
    let crash = g.post_call("m_die", json!({}));
    let other = g.post_call("n_ro", json!({}));
    assert_eq!(err_kind(&g.reply(&crash)), Some("transport"));
    assert_eq!(text(&g.reply(&other)["result"]), "done");
    assert_eq!(text(&g.done("m_ro", json!({}))), "done", "it is started again");
    assert_eq!(world.pids().len(), 2);
}

#[test]
fn c12_a_server_that_is_hopeless_costs_itself_only() {
    let tools = r#"tools=[{"name":"ok","description":"Fine.","inputSchema":{"type":"object"}},
        {"name":"bad","inputSchema":{"type":"object","properties":{"a":{"$ref":"https://x.invalid/y"}}}},7,{"description":"nameless"}]"#;
    let config = format!(
        "{BARE}[tools]\ncore = []\n{M}{}[mcp_servers.gone]\ncommand = \"no-such-program-at-all\"\n\
         [mcp_servers.dead]\ncommand = \"false\"\n[mcp_servers.late]\ncommand = \"python3\"\n\
         args = [\"-c\", \"print('no protocol at all')\"]\n",
        fake("odd", &[tools])
    );
    let mut g = G::new(&config);
    let names = g.names();
    assert_eq!(names.iter().filter(|name| name.starts_with("m_")).count(), 14, "{names:?}");
    assert!(names.contains(&"odd_ok".to_owned()), "{names:?}");
    g.done("m_ro", json!({}));
    g.done("odd_ok", json!({}));
    // A schema that cannot be shown as it is costs at most its own place in the list.
    assert!(text(&g.done("odd_bad", json!({ "a": 1 }))).contains('1'));
    let doctor = g.world.run(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&doctor.stdout).expect("`doctor --json` prints JSON");
    let state = |name: &str| {
        let servers = report["servers"].as_array().expect("servers");
        servers.iter().find(|server| server["server"] == name).expect("it is there")["state"].clone()
    };
    assert_eq!(
        [state("m"), state("odd"), state("gone"), state("dead")],
        ["ready", "ready", "failed", "failed"]
    );
    assert_eq!(doctor.status.code(), Some(1));
}

/// What was kept from an earlier start is shown without waiting for anybody.
#[test]
fn c11_what_was_seen_once_is_listed_at_once() {
    // Longer than the deadline of these tests: whoever waits for the server is caught.
    let world = gated("[tools]\nfirst_list_wait_ms = 3600000\ncore = []\n");
    world.write("go", "");
    let mut g = world.session();
    let cold = g.list_text();
    g.close();
    assert!(g.exit().success());
    fs::remove_file(world.path("go")).expect("it is there");
    let mut g = world.session();
    assert_eq!(g.list_text(), cold);
    let early = g.post_call("m_ro", json!({}));
    assert_eq!(world.pids().len(), 1, "the server is not up yet");
    world.write("go", "");
    assert_eq!(text(&g.reply(&early)["result"]), "done");
}
