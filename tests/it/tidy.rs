//! The tree itself: first lines, forgotten words, documents, dependencies, and a test for each requirement.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::support::{World, root};

/// Rows that have to be shown by a test that is named after them.
const REQUIRED: &str = "s1 s2 s3 s4 s5 s6 s7 s8 s9 s11 s12 s13 s14 s15 s16 s17 s18 s19 s20 s21 s22 s23 s24 s25 s42 s43 s44 \
    s45 s46 s47 s48 s49 s50 s51 s52 s53 s54 s55 s56 s57 s58 s59 s60 s61 s62 s63 s64 s65 s66 s67 s68 s69 \
    s70 s72 s73 s74 s82 s83 s84 t1 t2 t3 t4 t5 t6 t7 t8 t18 t20 t21 t22 t23 t24 t25 t26 t27 t28 t29 t33 \
    t36 t37 t38 t39 t40 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18 a19 a20 a21 a22 \
    a23 a24 a25 a26 a27 a28 a29 a30 a31 a32 c1 c2 c3 c4 c5 c6 c9 c10 c11 c12";

/// Folders that hold nothing of ours.
const FOREIGN: [&str; 7] = ["target", ".git", "node_modules", "__pycache__", ".e2e", ".venv", "venv"];

fn walk(folder: &Path, found: &mut Vec<String>) {
    let mut entries: Vec<_> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (name, kind) =
            (entry.file_name().to_string_lossy().into_owned(), entry.file_type().expect("a kind"));
        if kind.is_dir() && !FOREIGN.contains(&name.as_str()) {
            walk(&entry.path(), found);
        } else if kind.is_file() && !name.ends_with(".pyc") {
            let path = entry.path();
            found.push(path.strip_prefix(root()).expect("it is below").to_string_lossy().replace('\\', "/"));
        }
    }
}

/// Every file of the tree, with `/` on every system.
fn files() -> Vec<String> {
    let mut found = Vec::new();
    walk(root(), &mut found);
    found
}

/// The Rust files of the product.
pub fn sources() -> Vec<String> {
    files().into_iter().filter(|path| path.starts_with("src/") && path.ends_with(".rs")).collect()
}

fn read(path: &str) -> String {
    String::from_utf8_lossy(&fs::read(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}")))
        .into_owned()
}

fn rust() -> Vec<String> {
    files().into_iter().filter(|path| path.ends_with(".rs")).collect()
}

#[test]
fn every_file_says_its_job_in_its_first_line() {
    let silent: Vec<String> = rust()
        .into_iter()
        .filter(|path| {
            !read(path).lines().next().is_some_and(|line| line.starts_with("//! ") && line.len() > 12)
        })
        .collect();
    assert_eq!(silent, [""; 0]);
}

#[test]
fn every_file_is_part_of_the_program() {
    let all: String = rust().iter().map(|path| read(path)).collect();
    for path in sources() {
        let stem = Path::new(&path).file_stem().expect("a name").to_string_lossy().into_owned();
        let is_module = all.contains(&format!("mod {stem};")) || all.contains(&format!("/{stem}.rs\""));
        assert!(is_module || ["main", "lib"].contains(&stem.as_str()), "{path} is no module");
    }
}

/// The ids at the beginning of the name of a test.
fn ids(name: &str) -> Vec<String> {
    let is_id = |word: &&str| {
        word.strip_prefix(['s', 't', 'a', 'c'])
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    name.split('_').take_while(is_id).map(str::to_owned).collect()
}

#[test]
fn every_requirement_has_a_test_that_is_named_after_it() {
    let mut shown = BTreeSet::new();
    for path in rust() {
        let text = read(&path);
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn ")) {
                if is_test {
                    shown.extend(ids(name.split('(').next().unwrap_or_default()));
                }
                is_test = false;
            } else if line == "#[test]" || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if line.is_empty() {
                is_test = false;
            }
        }
    }
    let missing: Vec<&str> = REQUIRED.split_whitespace().filter(|id| !shown.contains(*id)).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn nothing_is_left_half_done() {
    // In pieces, so that this file does not hold them.
    let words = [
        ["to", "do!("].concat(),
        ["unimple", "mented!("].concat(),
        ["db", "g!("].concat(),
        ["#[ig", "nore"].concat(),
        ["FIX", "ME"].concat(),
        ["XX", "X:"].concat(),
    ];
    for path in rust() {
        let text = read(&path);
        for word in &words {
            assert!(!text.contains(word.as_str()), "{path} holds `{word}`");
        }
    }
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    let paths = [
        ["/wo", "rk/"].concat(),
        ["/ro", "ot/"].concat(),
        ["/home/", "user/"].concat(),
        ["/Use", "rs/"].concat(),
    ];
    let hosts = [
        ["index.", "crates.io"].concat(),
        ["static.", "crates.io"].concat(),
        ["registry.", "npmjs.org"].concat(),
        ["files.", "pythonhosted.org"].concat(),
        ["pypi.", "org/simple"].concat(),
    ];
    // A path begins where nothing of a path stands before it.
    let begins = |line: &str, word: &str| {
        let is_start =
            |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-~@}$/".contains(c));
        line.match_indices(word).any(|(at, _)| is_start(at))
    };
    let mut wrong = Vec::new();
    for path in files() {
        let text = read(&path);
        for (number, line) in text.lines().enumerate() {
            let is_wrong = paths.iter().any(|word| begins(line, word))
                || hosts.iter().any(|word| line.contains(word.as_str()));
            if is_wrong {
                wrong.push(format!("{path}:{}: {}", number + 1, line.chars().take(100).collect::<String>()));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    let index = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let lock = read("Cargo.lock");
    assert!(lock.lines().filter(|line| line.starts_with("source = ")).all(|line| line == index));
}

#[test]
fn c4_what_a_reader_looks_for_is_there() {
    for name in
        ["Cargo.toml", "Cargo.lock", "tools.toml", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "LICENSE"]
    {
        assert!(root().join(name).is_file(), "{name} is missing");
    }
    for name in ["src", "tests"] {
        assert!(root().join(name).is_dir(), "{name} is missing");
    }
    assert!(read("ARCHITECTURE.md").contains("prepare"));
    assert!(read("LICENSE").contains("Apache License"));
    assert!(read("CHANGELOG.md").contains(env!("CARGO_PKG_VERSION")));
}

/// The text inside fences of a language, or of any if there is no word behind the fence.
fn fenced(text: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in text.lines() {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(word)) => open = Some((word.trim() == language, String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take().filter(|(fits, _)| *fits).map(|(_, text)| text)),
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

fn subcommands() -> BTreeSet<String> {
    let help = World::new("").bare_command().arg("--help").output().expect("the binary starts");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// Words behind the program's name, where code is shown and not prose.
fn commands_in(text: &str) -> BTreeSet<String> {
    let mut code: Vec<String> =
        ["", "sh", "bash", "console", "text"].iter().flat_map(|word| fenced(text, word)).collect();
    code.extend(text.split('`').skip(1).step_by(2).filter(|span| !span.contains('\n')).map(str::to_owned));
    let lines = code.iter().flat_map(|block| block.lines());
    let words = lines.filter_map(|line| {
        let line = line.trim_start_matches(['$', ' ']);
        line.strip_prefix("toolcrib ")?
            .split_whitespace()
            .find(|word| !word.starts_with('-'))
            .map(str::to_owned)
    });
    words.filter(|word| word.bytes().all(|b| b.is_ascii_lowercase())).collect()
}

#[test]
fn documents_mention_only_subcommands_that_exist() {
    let known = subcommands();
    assert!(known.contains("serve") && known.contains("doctor"), "{known:?}");
    for path in ["README.md", "ARCHITECTURE.md"] {
        let unknown: Vec<String> =
            commands_in(&read(path)).into_iter().filter(|word| !known.contains(word)).collect();
        assert_eq!(unknown, [""; 0], "{path}");
    }
    let missing: Vec<String> = known
        .into_iter()
        .filter(|word| word != "help" && !read("README.md").contains(&format!("toolcrib {word}")))
        .collect();
    assert_eq!(missing, [""; 0], "the readme does not mention them");
}

#[test]
fn every_configuration_in_the_readme_can_be_read() {
    let blocks = fenced(&read("README.md"), "toml");
    assert!(!blocks.is_empty(), "the readme shows no configuration");
    for block in blocks {
        let read = toml::from_str::<toolcrib::config::tables::Config>(&block);
        assert!(read.is_ok(), "{}\n{block}", read.expect_err("it was an error"));
    }
}

#[test]
fn c4_every_key_of_the_shipped_file_exists() {
    // A line `#key = …` or `#[table]` is a key that is not set, shown with an example.
    let text: String = read("tools.toml")
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '"' || c == '[') => {
                format!("{rest}\n")
            }
            _ => format!("{line}\n"),
        })
        .collect();
    let read = toml::from_str::<toolcrib::config::tables::Config>(&text);
    assert!(read.is_ok(), "{}", read.expect_err("it was an error"));
}

/// The lines of `[dependencies]` and its like, with the table they stand in.
fn dependency_lines() -> BTreeMap<String, Vec<String>> {
    let mut tables: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut table = String::new();
    for line in read("Cargo.toml").lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.clone_into(&mut table);
        } else if table.ends_with("dependencies") {
            tables.entry(table.clone()).or_default().push(line.to_owned());
        }
    }
    tables
}

/// What the project is built on; these need no reason.
const BASE: [&str; 7] = ["rmcp", "tokio", "serde", "serde_json", "schemars", "anyhow", "tracing"];

#[test]
fn c3_the_seven_packages_are_direct_dependencies_and_used() {
    let lines = dependency_lines();
    let direct: Vec<&str> =
        lines["dependencies"].iter().filter_map(|line| line.split(" = ").next()).collect();
    let all: String = sources().iter().map(|path| crate::layers::code(path)).collect();
    for name in BASE {
        assert!(direct.contains(&name), "`{name}` is no direct dependency");
        assert!(all.contains(&format!("{name}::")), "`{name}` is not used");
    }
}

#[test]
fn c3_every_other_dependency_has_its_reason_above_it_and_is_used() {
    let all: String = rust().iter().map(|path| read(path)).collect();
    let family = |name: &str| name.split(['-', '_']).next().unwrap_or_default().to_owned();
    let mut wrong = Vec::new();
    for (table, lines) in dependency_lines() {
        if table == "dev-dependencies" {
            continue;
        }
        let mut above = String::new();
        for line in &lines {
            let Some((name, _)) = line.split_once(" = ") else {
                above.clone_from(line);
                continue;
            };
            // Crates of one family, and those that only work together, share the reason above the first.
            let shares = family(&above) == family(name) || (name == "ignore" && above.starts_with("grep-"));
            if !above.starts_with("# ") && !shares && !BASE.contains(&name) {
                wrong.push(format!("`{name}` has no reason above it"));
            }
            let module = name.replace('-', "_");
            if !all.contains(&format!("{module}::")) && !all.contains(&format!("{module}.")) {
                wrong.push(format!("`{name}` is not used"));
            }
            name.clone_into(&mut above);
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// BM25 is ours: no search engine comes in by a side door.
#[test]
fn c3_no_search_engine_is_a_dependency() {
    for (table, lines) in dependency_lines() {
        for line in lines {
            let is_engine = ["tantivy", "bm25", "milli", "sonic", "probly-search"]
                .iter()
                .any(|name| line.starts_with(name));
            assert!(!is_engine, "`[{table}]` has {line}");
        }
    }
}
