//! A person between the call and the tool: forms, tickets, and silence.

use serde_json::json;

use crate::support::{BARE, G, M, World};

#[test]
fn s20_a_dangerous_call_asks_once_and_a_no_is_a_no() {
    for answer in ["deny", "decline", "something that was not offered"] {
        let mut g = G::asking(&format!("{BARE}{M}"), answer);
        let denied = g.fails("m_danger", json!({ "tag": "t-17" }), "permission_denied");
        assert_eq!(denied["reason"], "user_denied", "{answer}");
        assert_eq!(g.prompts.len(), 1, "{answer}");
        let message = g.prompts[0]["params"]["message"].as_str().expect("a message").to_owned();
        assert!(message.contains("m_danger") && message.contains("t-17"), "{message}");
        assert_eq!(g.world.runs("danger"), 0, "{answer}");
    }
}

#[test]
fn s20_what_is_not_dangerous_asks_nobody() {
    let mut g = G::asking(&format!("{BARE}{M}"), "deny");
    for tool in ["m_plain", "m_ro", "m_idem"] {
        g.done(tool, json!({}));
    }
    assert!(g.prompts.is_empty());
}

#[test]
fn s20_a_yes_runs_the_call_once() {
    let mut g = G::asking(&format!("{BARE}{M}"), "allow_once");
    g.done("m_danger", json!({}));
    assert_eq!((g.prompts.len(), g.world.runs("danger")), (1, 1));
    g.done("m_danger", json!({}));
    assert_eq!((g.prompts.len(), g.world.runs("danger")), (2, 2));
}

#[test]
fn s20_invalid_arguments_are_refused_before_anybody_is_asked() {
    let mut g = G::asking(&format!("{BARE}{M}"), "allow_once");
    g.fails("m_danger", json!({ "ms": "x" }), "validation");
    assert!(g.prompts.is_empty());
}

#[test]
fn s24_a_ticket_that_a_person_allows_lets_the_same_call_run_once() {
    let world = World::new(&format!("{BARE}[policy]\ntier = \"ask\"\n{M}"));
    let mut g = world.session();
    let deferred = g.fails("m_plain", json!({ "tag": "a" }), "approval_deferred");
    let ticket = deferred["ticket"].as_str().expect("a ticket").to_owned();
    let listed = String::from_utf8_lossy(&world.run(&["approvals", "list"]).stdout).into_owned();
    assert!(listed.contains(&ticket) && listed.contains("m_plain"), "{listed}");
    assert!(world.run(&["approvals", "allow", &ticket]).status.success());
    g.fails("m_plain", json!({ "tag": "b" }), "approval_deferred");
    g.done("m_plain", json!({ "tag": "a" }));
    assert_eq!(world.runs("plain"), 1);
    let again = g.fails("m_plain", json!({ "tag": "a" }), "approval_deferred");
    assert_ne!(again["ticket"], deferred["ticket"], "a used ticket is used up");
    assert_eq!(world.runs("plain"), 1);
}

#[test]
fn s24_a_modern_client_is_not_asked_in_the_way_of_sessions() {
    let mut g = G::modern(&format!("{BARE}[policy]\ntier = \"ask\"\n{M}"));
    // A client that declares no elicitation can only be given a ticket, in either era.
    g.fails("m_plain", json!({}), "approval_deferred");
    g.done("m_ro", json!({}));
    assert_eq!((g.prompts.len(), g.world.runs("plain")), (0, 0));
}
