//! Every kind of failure as a client sees it, and what does not become one.

use serde_json::json;

use crate::support::{BARE, G, M, World, err_kind, facts, text, untraced};

#[test]
fn s66_a17_an_unknown_name_is_a_protocol_error_with_suggestions() {
    let mut g = G::new(&format!("{BARE}{M}"));
    g.list();
    for (asked, suggestions) in [("nope", json!([])), ("m_plian", json!(["m_plain"])), ("", json!([]))] {
        let reply = g.call(asked, json!({}));
        assert_eq!(reply["error"]["code"], -32602, "{asked}: {reply}");
        assert_eq!((err_kind(&reply), &facts(&reply)["tool"]), (Some("not_found"), &json!(asked)));
        assert_eq!(facts(&reply)["suggestions"], suggestions, "{asked}");
    }
}

#[test]
fn a17_not_found_wins_over_missing_permissions() {
    let config = format!("{BARE}[tools.permissions]\n\"*\" = [\"p\"]\n{M}");
    let mut g = G::new(&config);
    assert_eq!(g.names(), [""; 0]);
    g.fails("m_nothing", json!({}), "not_found");
    g.fails("m_plain", json!({}), "permission_denied");
}

#[test]
fn s68_arguments_that_do_not_fit_are_refused_with_the_place() {
    let mut g = G::new(&format!("{BARE}{M}"));
    let error = g.fails("m_sleep", json!({ "ms": "x" }), "validation");
    assert_eq!((&error["path"], &error["tool"]), (&json!("/ms"), &json!("m_sleep")));
    assert_eq!((&error["retryable"], &error["executed"]), (&json!(false), &json!(false)));
    assert!(error.get("schema").is_none(), "the schema was in the list");
    for arguments in [json!({}), json!({ "ms": -1 }), json!({ "ms": 1, "unknown": 2 }), json!({ "ms": 1.5 })]
    {
        g.fails("m_sleep", arguments, "validation");
    }
    assert_eq!(g.world.runs("sleep"), 0);
}

#[test]
fn s68_whoever_was_not_shown_the_schema_is_shown_it_now() {
    let mut g = G::new(&format!("{BARE}[tools]\ncore = [\"m_ro\"]\n{M}"));
    let error = g.fails("m_sleep", json!({ "ms": "x" }), "validation");
    let declared = crate::support::tools_of_m().into_iter().find(|tool| tool["name"] == "sleep");
    assert_eq!(error["schema"], declared.expect("it is declared")["inputSchema"]);
    assert!(g.fails("m_ro", json!({ "ms": "x" }), "validation").get("schema").is_none());
}

/// DESIGN.md, errors: an upstream's own `isError` result is the tool's answer, not an error of ours.
#[test]
fn s69_t8_an_upstreams_own_failure_passes_through_untouched() {
    let mut g = G::new(&format!("{BARE}{M}"));
    let failing = g.post_call("m_boom", json!({ "message": "the fuse was lit" }));
    let other = g.post_call("m_plain", json!({}));
    let reply = g.reply(&failing);
    let expected = json!({ "content": [{ "type": "text", "text": "the fuse was lit" }], "isError": true });
    assert_eq!(untraced(reply["result"].clone()), expected);
    assert_eq!(text(&g.reply(&other)["result"]), "done", "the others go on");
}

#[test]
fn s69_an_upstreams_protocol_error_stays_one() {
    let mut g = G::new(&format!("{BARE}{M}"));
    let reply = g.call("m_boom", json!({ "as": "error", "message": "the fuse was lit" }));
    let expected = json!({ "code": -32050, "message": "the fuse was lit", "data": { "fuse": "lit" } });
    assert_eq!(reply["error"], expected);
}

#[test]
fn s69_a_command_that_fails_is_an_execution_error_with_its_cause() {
    let config = "[builtins]\nenabled = []\n\
                  [commands.broken]\nrun = [\"sh\", \"-c\", \"echo no paper >&2; exit 3\"]\n\
                  [commands.missing]\nrun = [\"toolcrib-no-such-program\"]\n\
                  [commands.fine]\nrun = [\"echo\", \"all is well\"]\n";
    let mut g = G::new(config);
    let error = g.fails("broken", json!({}), "execution");
    let cause = error["cause"].as_str().expect("a cause");
    assert!(cause.contains("no paper") && cause.contains('3'), "{cause}");
    assert_eq!((&error["retryable"], &error["executed"]), (&json!(false), &json!(true)));
    let error = g.fails("missing", json!({}), "execution");
    assert!(
        error["cause"].as_str().is_some_and(|cause| cause.contains("toolcrib-no-such-program")),
        "{error}"
    );
    for told in ["panicked", "src/", ".rs:", "stack backtrace"] {
        assert!(g.transcript.iter().all(|line| !line.contains(told)), "{told}");
    }
    assert_eq!(text(&g.done("fine", json!({}))).trim(), "all is well");
}

#[test]
fn s72_a_server_that_ends_in_a_call_is_a_transport_error_and_costs_nothing_else() {
    let mut g = G::new(&format!("{BARE}{M}"));
    let error = g.fails("m_die", json!({}), "transport");
    assert_eq!((&error["retryable"], &error["executed"]), (&json!(true), &json!("maybe")));
    assert!(g.request("ping", json!({}))["result"].is_object());
    assert_eq!(g.world.runs("die"), 1, "what may have changed something is not sent twice");
    g.done("m_plain", json!({}));
}

/// Found when errors of upstream tools carried the server's own spelling, which no client can call.
#[test]
fn s72_an_error_names_the_tool_as_the_client_knows_it() {
    let error = G::new(&format!("{BARE}{M}")).fails("m_die", json!({}), "transport");
    assert_eq!(error["tool"], "m_die");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("`m_die`")), "{error}");
}

#[test]
fn s73_a_tool_that_stands_twice_in_the_configuration_is_an_error_with_both_places() {
    let twice = "[commands.lint]\nrun = [\"true\"]\n[commands.lint]\nrun = [\"false\"]\n";
    let by_case = "[commands.lint]\nrun = [\"true\"]\n[commands.Lint]\nrun = [\"false\"]\n";
    let servers = "[mcp_servers.m]\ncommand = \"true\"\n[mcp_servers.M]\ncommand = \"true\"\n";
    for (config, name, line) in [(twice, "lint", ":3"), (by_case, "lint", ":3"), (servers, "m", ":3")] {
        let world = World::new(config);
        let ended = world.run(&["serve"]);
        let said = String::from_utf8_lossy(&ended.stderr).to_lowercase();
        assert!(!ended.status.success() && ended.stdout.is_empty(), "{config}");
        assert!(said.contains("tools.toml") && said.contains(name) && said.contains(line), "{said}");
    }
}

#[test]
fn s74_every_error_on_the_wire_has_the_same_members() {
    let config = format!("{BARE}[policy]\nrules = {{ m_big = \"deny\", m_count = \"ask\" }}\n{M}");
    let mut g = G::new(&config);
    let calls = [
        ("m_nope", "not_found", false),
        ("m_sleep", "validation", false),
        ("m_big", "permission_denied", false),
        ("m_count", "approval_deferred", true),
        ("m_die", "transport", true),
    ];
    for (tool, kind, retryable) in calls {
        let reply = g.call(tool, json!({}));
        let facts = facts(&reply);
        assert_eq!((err_kind(&reply), &facts["kind"]), (Some(kind), &json!(kind)), "{reply}");
        assert_eq!((&facts["retryable"], &facts["tool"]), (&json!(retryable), &json!(tool)), "{facts}");
        assert!(facts["message"].as_str().is_some_and(|message| message.contains(tool)), "{facts}");
        assert!(facts.get("executed").is_some(), "{facts}");
        if kind != "not_found" {
            assert!(text(&reply["result"]).contains(tool), "the model reads a sentence: {reply}");
        }
    }
}
