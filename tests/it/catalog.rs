//! Built-ins and their one table, as the catalog and a client see them.

use std::fs;

use serde_json::Value;
use toolcrib::builtins::definitions::BUILTIN_TOOL_DEFINITIONS;

use crate::support::{World, name_of, root};
use crate::tidy::sources;

#[test]
fn s11_the_catalog_has_exactly_the_built_ins_of_the_table() {
    let world = World::new("[tools]\ncore = []\n");
    let mut listed = world.session().list();
    listed.retain(|tool| tool["name"] != "read_result");
    let mut table: Vec<(&str, &str)> =
        BUILTIN_TOOL_DEFINITIONS.iter().map(|row| (row.name, row.description)).collect();
    table.sort_unstable();
    let in_list: Vec<(String, &str)> =
        listed.iter().map(|tool| (name_of(tool), tool["description"].as_str().expect("a text"))).collect();
    assert_eq!(in_list.iter().map(|(name, text)| (name.as_str(), *text)).collect::<Vec<_>>(), table);
    let mut names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
    names.dedup();
    assert_eq!(names.len(), BUILTIN_TOOL_DEFINITIONS.len(), "a name stands twice");
}

#[test]
fn s11_no_description_of_a_built_in_is_written_twice() {
    // A literal that goes on after a backslash continues where its next line's text begins.
    let joined = |text: &str| {
        text.split("\\\n")
            .enumerate()
            .map(|(n, part)| if n == 0 { part } else { part.trim_start() })
            .collect::<String>()
    };
    let texts: Vec<(String, String)> = sources()
        .into_iter()
        .map(|path| (path.clone(), joined(&fs::read_to_string(root().join(path)).expect("text"))))
        .collect();
    for row in BUILTIN_TOOL_DEFINITIONS {
        let literal = row.description.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let places: Vec<&String> =
            texts.iter().filter(|(_, text)| text.contains(&literal)).map(|(path, _)| path).collect();
        assert_eq!(places, ["src/builtins/definitions.rs"], "{}", row.name);
        let here = &texts.iter().find(|(path, _)| path == places[0]).expect("it was found").1;
        assert_eq!(here.matches(&literal).count(), 1, "{}", row.name);
    }
}

#[test]
fn s11_a_built_in_without_what_it_needs_does_not_exist() {
    let names = |config: &str| World::new(config).session().names();
    let without_roots = names("[tools]\ncore = []\n[builtins]\nroots = []\n");
    for row in BUILTIN_TOOL_DEFINITIONS {
        let needs_roots = row.needs.contains(&"builtins.roots");
        assert_eq!(without_roots.iter().any(|name| name == row.name), !needs_roots, "{}", row.name);
    }
    assert_eq!(names("[builtins]\nenabled = [\"file_read\"]\n"), ["file_read"]);
}

#[test]
fn s12_every_source_says_where_its_tools_come_from() {
    let config = format!(
        "[tools]\ncore = []\n[skills]\npaths = [\"@dir@/skills\"]\n[commands.hello]\nrun = [\"true\"]\n{}",
        crate::support::M
    );
    let world = World::new(&config);
    world.write("skills/pdf/SKILL.md", "---\nname: pdf\ndescription: Reads PDF files.\n---\n");
    for (tool, kind) in
        [("file_read", "builtin"), ("hello", "command"), ("skill_pdf", "skill"), ("m_ro", "mcp")]
    {
        let described = world.run(&["describe", tool, "--json"]);
        let facts: Value = serde_json::from_slice(&described.stdout).expect("`describe --json` prints JSON");
        assert_eq!(facts["source"]["kind"], kind, "{tool}");
    }
}

#[test]
fn s13_a_command_and_an_upstream_tool_of_one_name_end_the_same_way_in_any_order() {
    let command = "[commands.m_ro]\nrun = [\"echo\", \"the command\"]\n";
    let mut lists = Vec::new();
    for config in [format!("{command}{}", crate::support::M), format!("{}{command}", crate::support::M)] {
        let mut g = World::new(&format!("{}[tools]\ncore = []\n{config}", crate::support::BARE)).session();
        let names = g.names();
        assert!(names.contains(&"m_ro".to_owned()) && names.contains(&"m_ro_mcp".to_owned()), "{names:?}");
        let said = crate::support::text(&g.done("m_ro", serde_json::json!({})));
        assert_eq!(said.trim(), "the command");
        lists.push(names);
    }
    assert_eq!(lists[0], lists[1]);
}
