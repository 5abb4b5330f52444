//! What one connection sees and may call: allowlist, rules, grants, health, deferral, modes.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::support::{BARE, G, M, World, err_kind, facts, fake, name_of, signal, text, until};

/// The tools of `m` in its list order, in the gateway's names.
const OF_M: [&str; 14] = [
    "m_add_tool",
    "m_big",
    "m_boom",
    "m_count",
    "m_danger",
    "m_die",
    "m_echo",
    "m_hang",
    "m_idem",
    "m_plain",
    "m_progress",
    "m_remove_tool",
    "m_ro",
    "m_sleep",
];

#[test]
fn s2_tools_of_every_source_stand_in_one_list_and_all_run() {
    let config = format!(
        "[tools]\ncore = []\n[skills]\npaths = [\"@dir@/skills\"]\n\
         [commands.hello]\nrun = [\"echo\", \"{{{{who}}}}\"]\nparams = {{ who = \"string\" }}\n{M}"
    );
    let world = World::new(&config);
    world
        .write("skills/pdf/SKILL.md", "---\nname: pdf\ndescription: Reads PDF files.\n---\nDo it like this.");
    world.write("note.txt", "written in a note");
    let mut g = world.session();
    let names = g.names();
    let wanted = [
        ("file_read", json!({ "path": "note.txt" }), "written in a note"),
        ("m_echo", json!({ "a": "from upstream" }), "from upstream"),
        ("skill_pdf", json!({}), "Do it like this."),
        ("hello", json!({ "who": "the world" }), "the world"),
    ];
    for (tool, arguments, expected) in wanted {
        assert!(names.iter().any(|name| name == tool), "`{tool}` is not in {names:?}");
        let said = text(&g.done(tool, arguments));
        assert!(said.contains(expected), "`{tool}` said {said}");
    }
}

/// One more reason than the row has: a source of our own that the mode hides.
#[test]
fn s3_five_causes_hide_one_tool_each_and_the_sixth_is_left() {
    let config = format!(
        "{BARE}[tools]\ncore = []\nsession_mode = \"quiet\"\n[modes.quiet]\ndefer = [\"look\"]\n\
         [policy]\nallow = [\"m_ro\", \"m_plain\", \"gone_*\", \"d_ro\", \"look_around\"]\n\
         rules = {{ m_plain = \"deny\" }}\n\
         [commands.look_around]\nrun = [\"echo\", \"around\"]\n\
         [mcp_servers.gone]\ncommand = \"@dir@/no-such-program\"\n\
         {M}enabled_tools = [\"ro\", \"plain\", \"idem\"]\n\
         [mcp_servers.d]\ncommand = \"python3\"\nargs = [\"@fixtures@/m_server.py\"]\nenabled_tools = [\"ro\"]\n\
         defer = true\n"
    );
    let mut g = G::new(&config);
    assert_eq!(g.names(), ["call_tool", "call_tools", "m_ro", "tool_search"]);
    // What is deferred can be called; what is withheld cannot.
    g.done("d_ro", json!({}));
    assert_eq!(text(&g.done("look_around", json!({}))).trim(), "around");
    g.fails("m_idem", json!({}), "not_found");
    g.fails("m_plain", json!({}), "permission_denied");
    assert_eq!(g.world.runs("plain") + g.world.runs("idem"), 0);
}

#[test]
fn s6_the_list_on_the_wire_is_the_list_of_the_service() {
    let config = format!("[tools]\ncore = [\"m_ro\", \"file_*\"]\n[policy.rules]\nm_big = \"deny\"\n{M}");
    let world = World::new(&config);
    let on_the_wire = world.session().list();
    let printed = world.run(&["list", "--json"]);
    let of_the_service: Vec<Value> =
        serde_json::from_slice(&printed.stdout).expect("`list --json` prints JSON");
    assert_eq!(
        on_the_wire.iter().map(name_of).collect::<Vec<_>>(),
        of_the_service.iter().map(name_of).collect::<Vec<_>>()
    );
    assert_eq!(on_the_wire, of_the_service);
}

#[test]
fn s7_a_deferred_tool_is_meant_by_its_other_spellings_and_no_look_alike_is() {
    let config = format!("{BARE}[commands.m_plane]\nrun = [\"echo\", \"the look-alike\"]\n{M}defer = true\n");
    let mut g = G::new(&config);
    assert!(!g.names().contains(&"m_plain".to_owned()));
    for (n, spelling) in ["M_Plain", "m.plain", "m-plain", "m/plain"].into_iter().enumerate() {
        assert_eq!(text(&g.done(spelling, json!({}))), "done", "{spelling}");
        assert_eq!(g.world.runs("plain"), n + 1, "{spelling}");
    }
    g.fails("m_plainn", json!({}), "not_found");
    assert_eq!(g.world.runs("plain"), 4, "a near miss is only suggested");
}

#[test]
fn s16_a_tool_that_an_upstream_adds_appears_and_takes_no_name_of_ours() {
    let config = "[tools]\ncore = []\n[mcp_servers.file]\ncommand = \"python3\"\nargs = [\"@fixtures@/m_server.py\"]\n";
    let world = World::new(config);
    world.write("note.txt", "written in a note");
    let mut g = world.session();
    let ours = g.listed("file_read");
    let before = g.names().len();
    g.done("file_add_tool", json!({ "name": "read" }));
    g.notice("notifications/tools/list_changed");
    let tools = g.list();
    assert_eq!(g.names().len(), before + 1);
    assert_eq!(g.listed("file_read"), ours);
    assert!(text(&g.done("file_read", json!({ "path": "note.txt" }))).contains("written in a note"));
    let added =
        tools.iter().find(|tool| tool["description"] == "Was added by add_tool.").expect("it is listed");
    let added = name_of(added);
    assert!(added.starts_with("file_read_"), "{added}");
    assert_eq!(text(&g.done(&added, json!({}))), "done");
}

#[test]
fn s17_outside_the_allowlist_is_not_found() {
    let mut g = G::new(&format!("{BARE}[policy]\nallow = [\"m_ro\"]\n{M}"));
    assert_eq!(g.names(), ["m_ro"]);
    let reply = g.call("m_plain", json!({}));
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
    assert_eq!(err_kind(&reply), Some("not_found"));
    assert_eq!(facts(&reply)["suggestions"], json!([]), "what does not exist is not suggested");
    assert_eq!(g.world.runs("plain"), 0);
    g.done("m_ro", json!({}));
}

/// Found when a call of a dead server's tool told its caller about the server, allowlist or not.
#[test]
fn s17_a_dead_server_is_no_way_around_the_allowlist() {
    let config = format!("{BARE}[policy]\nallow = [\"m_ro\"]\n[mcp_servers.gone]\ncommand = \"false\"\n{M}");
    let mut g = G::new(&config);
    assert_eq!(g.names(), ["m_ro"]);
    for asked in ["gone_tool", "gone.tool", "nothing_at_all"] {
        let reply = g.call(asked, json!({}));
        assert_eq!(
            (&reply["error"]["code"], err_kind(&reply)),
            (&json!(-32602), Some("not_found")),
            "{reply}"
        );
    }
}

#[test]
fn s18_s67_a_rule_denies_and_an_exact_one_goes_before_a_glob() {
    let mut g = G::new(&format!("{BARE}[policy.rules]\n\"m_*\" = \"deny\"\nm_ro = \"allow\"\n{M}"));
    let denied = g.fails("m_plain", json!({}), "permission_denied");
    assert_eq!((&denied["reason"], &denied["tool"]), (&json!("policy"), &json!("m_plain")));
    assert_eq!((&denied["retryable"], &denied["executed"]), (&json!(false), &json!(false)));
    assert_eq!(g.world.runs("plain"), 0);
    g.done("m_ro", json!({}));
    assert_eq!((g.names(), g.world.runs("ro")), (vec!["m_ro".to_owned()], 1));
}

/// A wrapper that does not start the server while a file is there stands for a server that cannot come back.
#[test]
fn s19_tools_of_a_dead_server_leave_the_list_and_return_with_it() {
    let config = format!(
        "{BARE}[mcp_servers.m]\ncommand = \"@dir@/wrapper\"\nargs = [\"@fixtures@/m_server.py\", \"--log\", \"@dir@/m.log\"]\n"
    );
    let world = World::new(&config);
    let flag = world.path("down");
    world.write(
        "wrapper",
        &format!("#!/bin/sh\n[ -e '{}' ] && exit 1\nexec python3 \"$@\"\n", flag.display()),
    );
    std::fs::set_permissions(world.path("wrapper"), std::fs::Permissions::from_mode(0o755))
        .expect("it is ours");
    let mut g = world.session();
    assert_eq!(g.names(), OF_M);
    world.write("down", "");
    let runs = world.runs("plain");
    signal(world.pids()[0], "KILL");
    let error = g.fails("m_plain", json!({}), "transport");
    assert_eq!(error["retryable"], true);
    assert_eq!(world.runs("plain"), runs);
    g.notice("notifications/tools/list_changed");
    assert_eq!(g.names(), [""; 0], "dead tools are still listed");
    g.fails("m_plain", json!({}), "transport");
    std::fs::remove_file(&flag).expect("it is there");
    g.notice("notifications/tools/list_changed");
    assert_eq!(g.names(), OF_M);
    g.done("m_plain", json!({}));
}

#[test]
fn s22_a_denied_tool_is_in_no_list_no_search_and_no_lookup() {
    let config =
        format!("{BARE}[tools]\ncore = [\"m_ro\"]\n[policy.rules]\nm_plain = \"deny\"\n{M}defer = true\n");
    let mut g = G::new(&config);
    assert!(!g.names().contains(&"m_plain".to_owned()));
    for query in ["m_plain", "plain", "carries no hints"] {
        let found = g.done("tool_search", json!({ "query": query, "limit": 20 }));
        let hits = found["structuredContent"]["hits"].as_array().expect("hits").clone();
        assert!(hits.iter().all(|hit| hit["name"] != "m_plain"), "{query}: {hits:?}");
        assert!(!text(&found).contains("m_plain") || query == "m_plain", "{query}: {}", text(&found));
    }
    for asked in ["m_plain", "m_plan", "plain", "M_PLAIN"] {
        let found = g.done("get_tool_schema", json!({ "tool_name": asked }))["structuredContent"].clone();
        assert_eq!(found["found"], false, "{asked}");
        let suggestions = found["suggestions"].as_array().expect("suggestions");
        assert!(!suggestions.contains(&json!("m_plain")), "{asked}: {suggestions:?}");
    }
    let reply = g.call("m_plan", json!({}));
    assert_eq!(err_kind(&reply), Some("not_found"));
    assert!(!reply.to_string().contains("m_plain"), "{reply}");
}

#[test]
fn s23_a_denied_name_is_refused_in_every_spelling_and_by_every_way() {
    let mut g = G::new(&format!("{BARE}[policy.rules]\nm_plain = \"deny\"\n{M}defer = true\n"));
    g.list();
    for spelling in ["m_plain", "m.plain", "M_PLAIN", "m-plain", "M.Plain"] {
        let denied = g.fails(spelling, json!({}), "permission_denied");
        assert_eq!((&denied["tool"], &denied["reason"]), (&json!("m_plain"), &json!("policy")), "{spelling}");
        let denied = g.fails("call_tool", json!({ "name": spelling, "arguments": {} }), "permission_denied");
        assert_eq!(denied["tool"], "m_plain", "call_tool {spelling}");
    }
    assert_eq!(g.world.runs("plain"), 0);
}

/// The declared hints are what counts, so a rule of the `ask` tier is told from the tool's own floor.
#[test]
fn s24_under_ask_only_what_is_declared_read_only_runs_unasked() {
    let mut g = G::new(&format!("{BARE}[policy]\ntier = \"ask\"\n{M}"));
    g.done("m_ro", json!({}));
    for tool in ["m_plain", "m_idem", "m_danger"] {
        let deferred = g.fails(tool, json!({}), "approval_deferred");
        assert!(deferred["ticket"].as_str().is_some_and(|ticket| !ticket.is_empty()), "{deferred}");
        assert_eq!((&deferred["retryable"], &deferred["executed"]), (&json!(true), &json!(false)));
    }
    assert_eq!(g.world.runs("plain") + g.world.runs("idem") + g.world.runs("danger"), 0);
    assert_eq!(g.world.runs("ro"), 1);
}

#[test]
fn s24_without_anybody_to_ask_the_call_is_refused() {
    let config = format!("{BARE}[policy]\ntier = \"ask\"\n[approvals]\nwithout_client = \"deny\"\n{M}");
    let mut g = G::new(&config);
    let denied = g.fails("m_plain", json!({}), "permission_denied");
    assert_eq!((&denied["reason"], &denied["retryable"]), (&json!("approval_unavailable"), &json!(false)));
    assert_eq!(g.world.runs("plain"), 0);
    g.done("m_ro", json!({}));
}

#[test]
fn s24_hints_of_a_server_that_is_not_trusted_loosen_nothing() {
    let config = format!("{BARE}[policy]\ntier = \"ask\"\n{M}trust_hints = false\n");
    let mut g = G::new(&config);
    g.fails("m_ro", json!({}), "approval_deferred");
    assert_eq!(g.world.runs("ro"), 0);
}

#[test]
fn s82_t3_t4_built_ins_are_there_with_descriptions_and_object_schemas() {
    let mut g = G::new("[tools]\ncore = [\"file_*\", \"shell\"]\n[commands.other]\nrun = [\"true\"]\n");
    let tools = g.list();
    for name in ["file_read", "file_write", "file_ops", "shell", "get_tool_schema", "tool_search"] {
        assert!(tools.iter().any(|tool| tool["name"] == name), "`{name}` is missing");
    }
    for tool in &tools {
        let name = name_of(tool);
        assert!(tool["description"].as_str().is_some_and(|text| text.len() > 10), "{name}");
        let schema = &tool["inputSchema"];
        assert_eq!(schema["type"], "object", "{name}");
        assert!(jsonschema::validator_for(schema).is_ok(), "{name}: {schema}");
    }
    assert!(g.listed("file_read")["inputSchema"]["properties"]["path"].is_object());
}

#[test]
fn t4_every_shown_schema_is_one_of_an_object_whatever_the_upstream_says() {
    let odd = r#"tools=[{"name":"none"},{"name":"null","inputSchema":null},{"name":"bare","inputSchema":{}},
        {"name":"any","inputSchema":true},{"name":"union","inputSchema":{"anyOf":[{"type":"object"},{"type":"object"}]}},
        {"name":"list","inputSchema":{"type":"array"}},{"name":"text","inputSchema":"x"}]"#;
    let mut g = G::new(&format!("{BARE}[tools]\ncore = []\n{}{M}", fake("odd", &[odd])));
    let tools = g.list();
    assert!(tools.iter().any(|tool| tool["name"] == "m_ro"), "odd tools cost others");
    assert!(tools.iter().any(|tool| tool["name"] == "odd_none"));
    for tool in &tools {
        let schema = &tool["inputSchema"];
        assert_eq!(schema["type"], "object", "{tool}");
        assert!(jsonschema::validator_for(schema).is_ok(), "{tool}");
    }
}

#[test]
fn s83_tools_carry_their_server_and_two_of_one_name_are_both_reachable() {
    let n = "[mcp_servers.n]\ncommand = \"python3\"\nargs = [\"@fixtures@/m_server.py\", \"--log\", \"@dir@/n.log\"]\n";
    let world = World::new(&format!("{BARE}[tools]\ncore = []\n{M}{n}"));
    let mut g = world.session();
    let names = g.names();
    assert!(["m_count", "n_count"].iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
    g.done("m_count", json!({ "key": "k" }));
    let of_m = g.done("m_count", json!({ "key": "k" }));
    let of_n = g.done("n_count", json!({ "key": "k" }));
    assert_eq!(
        (&of_m["structuredContent"]["count"], &of_n["structuredContent"]["count"]),
        (&json!(2), &json!(1))
    );
}

#[test]
fn s83_deferral_keeps_upstream_tools_out_of_the_list_and_callable() {
    let mut g = G::new(&format!("{BARE}[tools]\ncore = []\ndefer_mcp_tools = true\n{M}"));
    assert_eq!(g.names(), ["call_tool", "call_tools", "tool_search"]);
    assert_eq!(text(&g.done("m_plain", json!({}))), "done");
    assert_eq!(text(&g.done("call_tool", json!({ "name": "m_plain" }))), "done");
    assert_eq!(g.world.runs("plain"), 2);
    let mut g = G::new(&format!("{BARE}[tools]\ncore = []\n{M}"));
    assert_eq!(g.names(), OF_M);
}

/// Found when the list was compared by the address of its view, and the new view stood where the old one had been.
#[test]
fn s9_what_a_search_finds_joins_the_list_at_its_end() {
    let mut g = G::new(&format!("{BARE}[tools]\ncore = []\n{M}defer = true\n"));
    assert_eq!(g.names(), ["call_tool", "call_tools", "tool_search"]);
    let found = g.done("tool_search", json!({ "query": "m_ro", "limit": 1 }));
    assert_eq!(found["structuredContent"]["hits"][0]["name"], "m_ro");
    assert_eq!(g.notices.iter().filter(|n| n["method"] == "notifications/tools/list_changed").count(), 1);
    assert_eq!(g.names(), ["call_tool", "call_tools", "tool_search", "m_ro"]);
    g.done("tool_search", json!({ "query": "m_plain", "limit": 1 }));
    g.done("tool_search", json!({ "query": "m_ro", "limit": 1 }));
    assert_eq!(g.names(), ["call_tool", "call_tools", "tool_search", "m_ro", "m_plain"]);
}

#[test]
fn s8_s26_calls_and_lookups_change_nothing_of_what_is_shown() {
    let mut g = G::new(&format!("{BARE}[tools]\ncore = [\"m_ro\"]\n{M}"));
    let before = g.list_text();
    for n in 0..5 {
        g.done("m_plain", json!({ "tag": n.to_string() }));
        g.done("get_tool_schema", json!({ "tool_name": "m_plain" }));
        g.fails("m_nothing_like_it", json!({}), "not_found");
        g.fails("m_plain", json!({ "ms": "x" }), "validation");
    }
    assert_eq!(g.list_text(), before);
}

#[test]
fn a6_a19_a20_a21_missing_grants_are_named_and_nothing_runs() {
    let requirement = "[tools.permissions]\nm_plain = [\"fs:read\", \"fs:write\"]\n";
    for (grants, missing) in [
        ("[]", Some(json!(["fs:read", "fs:write"]))),
        ("[\"fs:read\", \"other\"]", Some(json!(["fs:write"]))),
        ("[\"fs:*\", \"FS:READ\", \"fs:write\"]", Some(json!(["fs:read"]))),
        ("[\"other\", \"fs:write\", \"fs:read\", \"fs:read\"]", None),
    ] {
        let mut g = G::new(&format!("{BARE}{requirement}[policy]\ngrants = {grants}\n{M}"));
        assert_eq!(g.names().contains(&"m_plain".to_owned()), missing.is_none(), "{grants}");
        match missing {
            None => drop(g.done("m_plain", json!({}))),
            Some(missing) => {
                let denied = g.fails("m_plain", json!({}), "permission_denied");
                assert_eq!(denied["reason"], "missing_permissions");
                assert_eq!(denied["missing_permissions"], missing, "{grants}");
                assert_eq!(g.world.runs("plain"), 0, "{grants}");
                // What requires nothing runs whatever is granted.
                g.done("m_idem", json!({}));
            }
        }
    }
}

#[test]
fn a28_no_spelling_and_no_way_around_leads_past_missing_grants() {
    let config = format!(
        "{BARE}[tools.permissions]\nm_plain = [\"fs:write\"]\n{M}defer = true\npermissions = [\"all\"]\n\
         [policy]\ngrants = [\"all\"]\n"
    );
    let mut g = G::new(&config);
    g.list();
    let found = g.done("tool_search", json!({ "query": "m_plain" }));
    assert!(
        found["structuredContent"]["hits"]
            .as_array()
            .expect("hits")
            .iter()
            .all(|hit| hit["name"] != "m_plain")
    );
    for spelling in ["m_plain", "M.Plain", "m-plain"] {
        g.fails(spelling, json!({}), "permission_denied");
        g.fails("call_tool", json!({ "name": spelling }), "permission_denied");
    }
    let ids: Vec<Value> = (0..10).map(|_| g.post_call("m_plain", json!({}))).collect();
    for id in ids {
        assert_eq!(err_kind(&g.reply(&id)), Some("permission_denied"));
    }
    assert_eq!(g.world.runs("plain"), 0);
    g.done("m_idem", json!({}));
}

#[test]
fn a7_a_tool_without_a_schema_takes_any_object() {
    let mut g = G::new(&format!(
        "{BARE}{}",
        fake("f", &[r#"tools=[{"name":"bare","description":"Takes anything."}]"#])
    ));
    assert_eq!(g.listed("f_bare")["inputSchema"]["type"], "object");
    let said = text(&g.done("f_bare", json!({ "a": { "b": [1, null] } })));
    let said: Value = serde_json::from_str(&said).expect("the fixture echoes");
    assert_eq!(said["arguments"], json!({ "a": { "b": [1, null] } }));
    let reply = g.request("tools/call", json!({ "name": "f_bare", "arguments": [1] }));
    assert_eq!(reply["error"]["code"], -32602, "{reply}");
}

#[test]
fn a5_a8_a_tool_is_listed_as_its_author_declared_it() {
    let mut g = G::new(&format!("{BARE}[tools]\ncore = []\n{M}"));
    for mut declared in crate::support::tools_of_m() {
        let name = format!("m_{}", name_of(&declared));
        declared["name"] = json!(name);
        assert_eq!(g.listed(&name), declared);
    }
    let config = "[builtins]\nenabled = []\n[commands.lint]\nrun = [\"true\"]\ndescription = \"Lints.\"\n\
                  params = { package = \"string\" }\n";
    let lint = G::new(config).listed("lint");
    assert_eq!(lint["description"], "Lints.");
    assert_eq!(lint["inputSchema"]["properties"], json!({ "package": { "type": "string" } }));
}

#[test]
fn a5_a_title_is_shown_beside_the_name() {
    let world = World::new(&format!("{BARE}[skills]\npaths = [\"@dir@/skills\"]\n"));
    world.write("skills/pdf/SKILL.md", "---\nname: PDF tools\ndescription: Reads PDF files.\n---\n");
    let tool = world.session().listed("skill_PDF_tools");
    assert_eq!(tool["title"], "PDF tools");
}

/// `until` is what makes this row independent of the clock: the grace time of the list is the server's business.
#[test]
fn s3_health_joins_the_other_causes_when_a_server_never_comes() {
    let config =
        format!("{BARE}[tools]\nfirst_list_wait_ms = 25000\n[mcp_servers.gone]\ncommand = \"false\"\n{M}");
    let mut g = G::new(&config);
    let mut names = Vec::new();
    until("the live server is listed", || {
        names = g.names();
        names.len() == OF_M.len()
    });
    assert_eq!(names, OF_M);
    let error = g.fails("gone_tool", json!({}), "transport");
    assert!(error["cause"].as_str().is_some_and(|cause| cause.contains("`gone`")), "{error}");
}

/// A client that lists again when it is told to has what was found among its tools when its model reads the answer.
#[test]
fn s34_the_answer_of_a_search_waits_for_the_list_that_it_changed() {
    let mut g = G::new(&format!("{BARE}{M}defer = true\n"));
    g.list();
    let search = g.post_call("tool_search", json!({ "query": "m_ro", "limit": 1 }));
    g.notice("notifications/tools/list_changed");
    assert!(!g.has_reply(&search), "answered before the list could be read again");
    let list = g.post("tools/list", json!({}));
    let tools = g.reply(&list)["result"]["tools"].clone();
    assert!(tools.as_array().expect("a list").iter().any(|tool| tool["name"] == "m_ro"));
    assert_eq!(g.reply(&search)["result"]["structuredContent"]["hits"][0]["name"], "m_ro");
}

/// A client that makes its next call instead is not waited for, then or later.
#[test]
fn s34_a_client_that_does_not_list_again_is_not_waited_for() {
    let mut g = G::new(&format!("{BARE}{M}defer = true\n"));
    g.list();
    let search = g.post_call("tool_search", json!({ "query": "m_ro", "limit": 1 }));
    g.notice("notifications/tools/list_changed");
    g.done("m_plain", json!({}));
    g.reply(&search);
    let names = |reply: &Value| reply["result"]["structuredContent"]["hits"][0]["name"].clone();
    for tool in ["m_idem", "m_echo", "m_count", "m_boom", "m_big", "m_hang", "m_progress", "m_sleep"] {
        assert_eq!(names(&g.call("tool_search", json!({ "query": tool, "limit": 1 }))), tool);
    }
}
