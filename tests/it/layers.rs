//! The layers of STYLE.md over the present tree: a file names only files of its own layer or of lower ones.

use std::collections::BTreeSet;
use std::fs;

use crate::support::root;
use crate::tidy::sources;

/// From the bottom to the top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    Words,
    Rules,
    Sources,
    Run,
    Compose,
    Edge,
}

/// Files and folders of each layer; the first that fits counts.
const TABLE: [(Layer, &[&str]); 6] = [
    (
        Layer::Words,
        &[
            "tools.rs",
            "tools/json.rs",
            "tools/error.rs",
            "tools/service.rs",
            "tools/approval.rs",
            "tools/concurrency.rs",
            "tools/claim_rule.rs",
            "tools/hook.rs",
        ],
    ),
    (
        Layer::Rules,
        &[
            "schema.rs",
            "schema/",
            "catalog.rs",
            "catalog/",
            "tools/bm25.rs",
            "tools/results.rs",
            "tools/scoped.rs",
            "tools/scoped/",
            "state.rs",
            "state/",
            "lines.rs",
        ],
    ),
    (
        Layer::Sources,
        &[
            "process.rs",
            "process/",
            "upstream.rs",
            "upstream/",
            "builtins.rs",
            "builtins/",
            "commands.rs",
            "commands/",
            "skills.rs",
            "tools/tool_search.rs",
            "tools/schema_lookup.rs",
            "tools/read_result.rs",
            "hooks.rs",
        ],
    ),
    (Layer::Run, &["executor.rs", "executor/"]),
    (Layer::Compose, &["gateway.rs", "gateway/", "config.rs", "config/"]),
    (Layer::Edge, &["server.rs", "server/", "cli.rs", "cli/", "main.rs", "lib.rs"]),
];

/// The layer of a file, if the table knows it.
pub fn layer_of(path: &str) -> Option<Layer> {
    let path = path.strip_prefix("src/")?;
    let fits = |place: &&str| if place.ends_with('/') { path.starts_with(*place) } else { path == *place };
    TABLE.iter().find(|(_, places)| places.iter().any(fits)).map(|(layer, _)| *layer)
}

/// A file without comments and without its tests.
pub fn code(path: &str) -> String {
    if path.ends_with("/tests.rs") {
        return String::new();
    }
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    text.lines()
        .filter(is_code)
        .map(|line| format!("{}\n", line.split(" // ").next().unwrap_or_default()))
        .collect()
}

/// The module path of a file.
fn module_of(path: &str) -> Vec<String> {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    match path {
        "lib" | "main" => Vec::new(),
        path => path.split('/').map(str::to_owned).collect(),
    }
}

/// All paths that begin here; a group in braces is several.
fn paths(text: &str) -> (Vec<Vec<String>>, usize) {
    let skipped = text.len() - text.trim_start().len();
    let rest = &text[skipped..];
    if let Some(mut inner) = rest.strip_prefix('{') {
        let (mut all, mut taken) = (Vec::new(), skipped + 1);
        loop {
            let (mut some, length) = paths(inner);
            all.append(&mut some);
            taken += length;
            inner = &inner[length..];
            let gap = inner.len() - inner.trim_start().len();
            match inner[gap..].chars().next() {
                Some(',') => {
                    taken += gap + 1;
                    inner = &inner[gap + 1..];
                }
                Some('}') => return (all, taken + gap + 1),
                // Something that is no list of imports, such as a block.
                _ => return (all, taken + gap),
            }
        }
    }
    let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    if length == 0 {
        return (Vec::new(), skipped);
    }
    let name = rest[..length].to_owned();
    let mut taken = skipped + length;
    if let Some(after) = rest[length..].strip_prefix("::") {
        let (tails, more) = paths(after);
        taken += 2 + more;
        if !tails.is_empty() {
            let joined = tails.into_iter().map(|tail| [vec![name.clone()], tail].concat());
            return (joined.collect(), taken);
        }
    }
    // `x as y`
    if let Some(alias) = text[taken..].strip_prefix(" as ") {
        let length = alias.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(alias.len());
        taken += 4 + length;
    }
    (vec![vec![name]], taken)
}

/// The file that a path inside the crate leads to: the longest part of it that is a module.
fn file_of(segments: &[String]) -> Option<String> {
    let candidates = (1..=segments.len()).rev().map(|n| format!("src/{}.rs", segments[..n].join("/")));
    candidates.into_iter().find(|path| root().join(path).is_file())
}

/// The files that a file names, itself aside.
pub fn uses_of(path: &str) -> BTreeSet<String> {
    let (text, module) = (code(path), module_of(path));
    let mut used = BTreeSet::new();
    for start in ["crate::", "super::", "self::"] {
        let is_start =
            |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
        for (at, _) in text.match_indices(start).filter(|(at, _)| is_start(*at)) {
            for found in paths(&text[at..]).0 {
                let mut place = if start == "crate::" { Vec::new() } else { module.clone() };
                for segment in found {
                    match segment.as_str() {
                        "crate" | "self" => {}
                        "super" => drop(place.pop()),
                        _ => place.push(segment),
                    }
                }
                used.extend(file_of(&place));
            }
        }
    }
    used.remove(path);
    used
}

/// Every file that a file reaches, over any number of steps.
pub fn reached_from(path: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![path.to_owned()];
    while let Some(next) = open.pop() {
        open.extend(uses_of(&next).into_iter().filter(|used| reached.insert(used.clone())));
    }
    reached
}

#[test]
fn imports_are_read_as_the_compiler_reads_them() {
    let check = |text: &str, expected: &[&str]| {
        let found: Vec<String> = paths(text).0.into_iter().map(|path| path.join("::")).collect();
        assert_eq!(found, expected, "{text}");
    };
    check("crate::a::b::C;", &["crate::a::b::C"]);
    check(
        "crate::a::{self, b::C, d::{E, F as G}, h};",
        &["crate::a::self", "crate::a::b::C", "crate::a::d::E", "crate::a::d::F", "crate::a::h"],
    );
    check("crate::a::f(x)", &["crate::a::f"]);
    check("super::super::b::*;", &["super::super::b"]);
    let gateway = uses_of("src/gateway.rs");
    for path in ["src/catalog/snapshot.rs", "src/upstream/owners.rs", "src/config/tables.rs"] {
        assert!(gateway.contains(path), "{path} is not in {gateway:?}");
    }
}

#[test]
fn a25_a26_a27_a29_no_file_names_a_file_above_it() {
    let mut wrong = Vec::new();
    for path in sources() {
        let Some(own) = layer_of(&path) else {
            wrong.push(format!("{path} has no layer"));
            continue;
        };
        for used in uses_of(&path) {
            if layer_of(&used).is_some_and(|layer| layer > own) {
                wrong.push(format!("{path} ({own:?}) names {used}"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}
