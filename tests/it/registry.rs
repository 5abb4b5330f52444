//! The registry is alone at the bottom: one way to a handler, no transport, nothing above it.

use std::collections::BTreeSet;
use std::fs;

use crate::layers::{Layer, code, layer_of, reached_from, uses_of};
use crate::support::root;
use crate::tidy::sources;

/// Files whose code, tests and comments aside, holds a text.
fn holders(text: &str) -> Vec<String> {
    sources().into_iter().filter(|path| code(path).contains(text)).collect()
}

#[test]
fn a4_a28_one_line_of_the_program_calls_a_handler() {
    assert_eq!(holders("handler.call("), ["src/catalog/registry.rs"]);
    let text = code("src/catalog/registry.rs");
    assert_eq!(text.matches("handler.call(").count(), 1);
    // The check stands before the call, in the same function.
    let body = text.split("pub fn execute<'a>").nth(1).expect("the registered tool executes");
    let (check, call) = (body.find(".missing("), body.find("handler.call("));
    assert!(check.expect("it checks") < call.expect("it calls"));
    // Whoever holds no handler cannot call one: only the registry keeps them.
    let keepers: Vec<String> =
        sources().into_iter().filter(|path| code(path).contains(": Arc<dyn ToolHandler>,\n")).collect();
    assert_eq!(keepers, ["src/catalog/registry.rs"]);
    // And what is prepared is run in one place.
    assert_eq!(holders("tool.execute(prepared"), ["src/executor/attempt.rs"]);
}

#[test]
fn a9_the_catalog_and_the_tools_know_no_transport() {
    for path in sources() {
        if path.starts_with("src/catalog") || path.starts_with("src/tools") || path.starts_with("src/schema")
        {
            assert!(!code(&path).contains("rmcp"), "{path} names the MCP SDK");
            assert!(!code(&path).contains("stdin") && !code(&path).contains("stdout"), "{path} names a pipe");
        }
    }
}

#[test]
fn a25_the_registry_needs_words_and_rules_only() {
    for path in reached_from("src/catalog/registry.rs") {
        let layer = layer_of(&path).unwrap_or_else(|| panic!("{path} has no layer"));
        assert!(layer <= Layer::Rules, "the registry reaches {path}");
    }
}

#[test]
fn a26_the_catalog_knows_none_of_its_sources() {
    let catalog = sources().into_iter().filter(|path| path.starts_with("src/catalog/"));
    for path in catalog {
        let above: BTreeSet<String> = reached_from(&path)
            .into_iter()
            .filter(|reached| layer_of(reached).is_none_or(|layer| layer > Layer::Rules))
            .collect();
        assert_eq!(above, BTreeSet::new(), "{path}");
    }
}

#[test]
fn a27_the_front_end_reaches_the_registry_and_never_the_other_way_round() {
    assert!(reached_from("src/server/front.rs").contains("src/catalog/registry.rs"));
    let from_below = reached_from("src/catalog/registry.rs");
    assert!(from_below.iter().all(|path| !path.starts_with("src/server") && !path.starts_with("src/cli")));
}

#[test]
fn a29_nothing_below_names_the_front_end() {
    for path in sources() {
        if layer_of(&path).is_some_and(|layer| layer < Layer::Edge) {
            let up: Vec<String> =
                uses_of(&path).into_iter().filter(|used| layer_of(used) == Some(Layer::Edge)).collect();
            assert_eq!(up, [""; 0], "{path} names the front end");
        }
    }
}

#[test]
fn a30_messages_of_the_protocol_are_made_at_the_edge() {
    for path in holders("\"toolcrib/error\"") {
        assert!(path.starts_with("src/server/") || path.starts_with("src/cli/"), "{path} encodes errors");
    }
    for path in holders("rmcp::") {
        let may =
            path.starts_with("src/server/") || path == "src/cli/demo.rs" || path.starts_with("src/upstream");
        assert!(may, "{path} names the MCP SDK");
    }
    for path in holders("jsonrpc") {
        let may = ["src/server/", "src/cli/", "src/upstream/"].iter().any(|folder| path.starts_with(folder));
        assert!(may, "{path} speaks JSON-RPC");
    }
}

#[test]
fn a31_the_library_stands_without_the_binary() {
    let manifest: toml::Table =
        toml::from_str(&fs::read_to_string(root().join("Cargo.toml")).expect("text")).unwrap();
    assert_eq!(manifest["lib"]["name"].as_str(), Some("toolcrib"));
    let main = code("src/main.rs");
    assert!(main.contains("toolcrib::cli::main()") && !main.contains("mod "), "the binary is a thin shell");
    for path in sources().into_iter().filter(|path| path != "src/main.rs") {
        assert!(!code(&path).contains("use toolcrib::"), "{path} names the library from outside");
    }
}

#[test]
fn t1_the_words_know_nothing_of_whoever_runs_them() {
    for path in ["src/tools/service.rs", "src/tools/error.rs", "src/tools/approval.rs", "src/tools/json.rs"] {
        let above: Vec<String> =
            uses_of(path).into_iter().filter(|used| layer_of(used) != Some(Layer::Words)).collect();
        assert_eq!(above, [""; 0], "{path}");
    }
}

#[test]
fn s84_no_code_speaks_to_a_model() {
    let words =
        ["api.openai", "api.anthropic", "generativelanguage", "chat/completions", "v1/messages", "bedrock"];
    for path in sources() {
        let text = fs::read_to_string(root().join(&path)).expect("text").to_lowercase();
        for word in words {
            assert!(!text.contains(word), "{path} holds `{word}`");
        }
    }
}
