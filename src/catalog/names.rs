//! Wire names: makes them legal, short and unique, compares their spellings, proposes what may have been meant.

use std::collections::HashMap;

use super::sanitize::is_hidden;

/// Hosts add a prefix of their own and stop at 63 or 64 characters.
pub const MAX_LENGTH: usize = 40;

const HASH_LENGTH: usize = 6;

/// A name in the alphabet of wire names.
#[derive(Debug, PartialEq, Eq)]
pub struct Legal {
    /// Letters, digits and single inner `_`; empty if the original held nothing of the kind.
    pub name: String,
    /// More than separators was replaced, so that different originals may look alike.
    pub odd: bool,
}

/// What a name that was asked for stands for.
#[derive(Debug, PartialEq, Eq)]
pub enum Repair<'a> {
    /// This very name.
    Exact(&'a str),
    /// The only one with this spelling, letter case and separators aside.
    Unique(&'a str),
    /// None; a near miss is only suggested, never called.
    None {
        /// At most three, nearest first.
        suggestions: Vec<&'a str>,
    },
}

/// Six characters `[a-z0-9]` that stand for a text, the same on every platform and in every version.
///
/// FNV-1a, 64 bits (draft-eastlake-fnv), folded to 32 as its authors advise, in base 36.
pub fn short_hash(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut rest = (hash ^ (hash >> 32)) & 0xffff_ffff;
    let mut digits = String::with_capacity(HASH_LENGTH);
    for _ in 0..HASH_LENGTH {
        digits.push(char::from(b"0123456789abcdefghijklmnopqrstuvwxyz"[(rest % 36) as usize]));
        rest /= 36;
    }
    digits
}

/// The nearest name in the alphabet of wire names; its length is the caller's concern.
pub fn legal(name: &str) -> Legal {
    let mut out = String::with_capacity(name.len());
    let mut odd = false;
    let mut is_gap = false;
    for char in name.chars() {
        if char.is_ascii_alphanumeric() {
            if is_gap && !out.is_empty() {
                out.push('_');
            }
            is_gap = false;
            out.push(char);
        } else {
            is_gap = true;
            odd |= !is_separator(char);
        }
    }
    Legal { odd: odd || out.is_empty(), name: out }
}

/// Wire names for the tools of one upstream server, in the order of `tools`.
///
/// `servers` are all configured servers, with or without this one. A name depends on the three sets alone, not on any
/// order. The raw names must differ from each other: first duplicates are the caller's to drop.
pub fn upstream_names(server: &str, servers: &[&str], tools: &[&str]) -> Vec<String> {
    let word = server_word(server);
    let rivals = rivals(server, servers, &word);
    let candidates: Vec<Candidate> = tools.iter().map(|tool| Candidate::new(&word, tool)).collect();
    let keepers = keepers(&candidates);
    let must_hash = legal(server).odd || rivals.iter().any(|rival| rival.eq_ignore_ascii_case(&word));

    let mut names: Vec<String> = candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| {
            let keeps = keepers.get(&candidate.lower) == Some(&Some(index));
            let is_ambiguous = rivals.iter().any(|rival| begins_with_word(&candidate.lower, rival));
            if must_hash || candidate.odd || candidate.wire.len() > MAX_LENGTH || !keeps || is_ambiguous {
                with_hash(&candidate.wire, &short_hash(&format!("{server}\0{}", candidate.tool)))
            } else {
                candidate.wire.clone()
            }
        })
        .collect();
    separate(server, tools, &mut names);
    names
}

/// A tool with the name it would like to have.
struct Candidate<'a> {
    tool: &'a str,
    wire: String,
    lower: String,
    odd: bool,
    rank: Rank,
}

/// Who has the better right to a name that several tools would like to have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Rewritten,
    /// The original with the prefix put before it.
    Prefixed,
    /// The original itself.
    Original,
}

impl<'a> Candidate<'a> {
    fn new(word: &str, tool: &'a str) -> Self {
        let Legal { name, odd } = legal(tool);
        let wire = match name.get(word.len()..) {
            _ if name.is_empty() => word.to_owned(),
            // Not prefixed twice; the prefix gets the server's spelling, so that patterns match every tool.
            Some(rest) if rest.starts_with('_') && name[..word.len()].eq_ignore_ascii_case(word) => {
                format!("{word}{rest}")
            }
            _ => format!("{word}_{name}"),
        };
        let rank = if wire == tool {
            Rank::Original
        } else if wire.strip_prefix(word).and_then(|rest| rest.strip_prefix('_')) == Some(tool) {
            Rank::Prefixed
        } else {
            Rank::Rewritten
        };
        Self { tool, lower: wire.to_ascii_lowercase(), wire, odd, rank }
    }
}

/// The server's part of a name; never empty.
fn server_word(server: &str) -> String {
    let Legal { name, .. } = legal(server);
    if name.is_empty() { "mcp".to_owned() } else { name }
}

/// The other servers, in lower case, whose words are this server's word or begin with it.
fn rivals(server: &str, servers: &[&str], word: &str) -> Vec<String> {
    let word = word.to_ascii_lowercase();
    servers
        .iter()
        .filter(|other| **other != server)
        .map(|other| server_word(other).to_ascii_lowercase())
        .filter(|other| begins_with_word(other, &word))
        .collect()
}

fn begins_with_word(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// Who keeps each lower-cased name as it is; nobody if two have the same right to it.
fn keepers(candidates: &[Candidate]) -> HashMap<String, Option<usize>> {
    let mut best: HashMap<String, (Rank, Option<usize>)> = HashMap::with_capacity(candidates.len());
    for (index, candidate) in candidates.iter().enumerate().filter(|(_, candidate)| !candidate.odd) {
        best.entry(candidate.lower.clone())
            .and_modify(|held| {
                if candidate.rank > held.0 {
                    *held = (candidate.rank, Some(index));
                } else if candidate.rank == held.0 {
                    held.1 = None;
                }
            })
            .or_insert((candidate.rank, Some(index)));
    }
    best.into_iter().map(|(name, (_, keeper))| (name, keeper)).collect()
}

fn with_hash(wire: &str, hash: &str) -> String {
    let kept = &wire[..wire.len().min(MAX_LENGTH - HASH_LENGTH - 1)];
    format!("{}_{hash}", kept.trim_end_matches('_'))
}

/// Makes names differ that still do not: a tool can be called what another one's hash says.
fn separate(server: &str, tools: &[&str], names: &mut [String]) {
    /// A round that does not end it is one chance in a billion; equal raw names would never end.
    const MOST_ROUNDS: u32 = 4;
    for round in 1..=MOST_ROUNDS {
        let mut holders: HashMap<String, Vec<usize>> = HashMap::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            holders.entry(name.to_ascii_lowercase()).or_default().push(index);
        }
        let clashes = holders.into_values().filter(|holders| holders.len() > 1);
        let clashing: Vec<usize> = clashes.flatten().collect();
        if clashing.is_empty() {
            return;
        }
        for index in clashing {
            let hash = short_hash(&format!("{server}\0{}\0{round}", tools[index]));
            names[index] = with_hash(&names[index], &hash);
        }
    }
}

/// A spelling to compare by: case, separators, full-width forms and invisible characters make no difference.
pub fn fold(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut is_gap = false;
    for char in name.chars() {
        let char = match char {
            '\u{ff01}'..='\u{ff5e}' => char::from_u32(char as u32 - 0xfee0).unwrap_or(char),
            char => char,
        };
        if is_separator(char) {
            is_gap = true;
        } else if !is_hidden(char) {
            if is_gap && !out.is_empty() {
                out.push('_');
            }
            is_gap = false;
            if char.is_ascii() {
                out.push(char.to_ascii_lowercase());
            } else {
                out.extend(char.to_lowercase());
            }
        }
    }
    out
}

fn is_separator(char: char) -> bool {
    matches!(char, '_' | '-' | '.' | '/' | ':') || char.is_whitespace()
}

/// What `asked` stands for among `names`: itself, a unique other spelling, or nothing.
pub fn repair<'a>(asked: &str, names: impl Iterator<Item = &'a str> + Clone) -> Repair<'a> {
    if let Some(name) = names.clone().find(|name| *name == asked) {
        return Repair::Exact(name);
    }
    let folded = fold(asked);
    let mut same = names.clone().filter(|name| fold(name) == folded);
    match (same.next(), same.next()) {
        (Some(name), None) => Repair::Unique(name),
        (Some(_), Some(_)) => Repair::None { suggestions: Vec::new() },
        (None, _) => Repair::None { suggestions: suggestions(asked, names) },
    }
}

/// Names that may have been meant, at most three: misspelt by an edit or two, then with a prefix too few or too many.
///
/// Short names allow fewer edits, and two equally near names mean that neither is offered.
pub fn suggestions<'a>(asked: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    const MOST: usize = 3;
    let asked = fold(asked);
    let length = asked.chars().count();
    let limit = match length {
        0..4 => return Vec::new(),
        4..8 => 1,
        _ => 2,
    };
    let mut near: Vec<(usize, &str)> = Vec::new();
    let mut related: Vec<&str> = Vec::new();
    for name in names {
        let folded = fold(name);
        if ends_with_word(&folded, &asked) || ends_with_word(&asked, &folded) {
            related.push(name);
        } else if folded.chars().count().abs_diff(length) <= limit {
            let edits = strsim::osa_distance(&asked, &folded);
            if edits <= limit {
                near.push((edits, name));
            }
        }
    }
    near.sort_unstable();
    related.sort_unstable();
    if let [(first, _), (second, _), ..] = near[..]
        && first == second
    {
        near.clear();
    }
    near.into_iter().map(|(_, name)| name).chain(related).take(MOST).collect()
}

fn ends_with_word(name: &str, word: &str) -> bool {
    word.len() >= 3 && name.strip_suffix(word).is_some_and(|rest| rest.ends_with('_'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_hash_is_the_same_for_ever() {
        let check = |text: &str, expected: &str| assert_eq!(short_hash(text), expected, "{text:?}");
        check("", "h8595m");
        check("a", "4z9dhb");
        check("github\0create_issue", "ar82rl");
        check("日本", "or816e");
    }

    #[test]
    fn legal_names_fold_separators_and_mark_the_rest() {
        let check = |name: &str, expected: &str, odd: bool| {
            assert_eq!(legal(name), Legal { name: expected.to_owned(), odd }, "{name:?}");
        };
        check("read_file", "read_file", false);
        check("files.read", "files_read", false);
        check("git/commit", "git_commit", false);
        check("db:query", "db_query", false);
        check("with space", "with_space", false);
        check("a--b__c", "a_b_c", false);
        check("UPPER.Case", "UPPER_Case", false);
        check("trailing.", "trailing", false);
        check("_private", "private", false);
        check("naïve_日本", "na_ve", true);
        check("a+b", "a_b", true);
        check("日本", "", true);
        check("", "", true);
        check("___", "", true);
    }

    fn check_names(server: &str, servers: &[&str], tools: &[(&str, &str)]) {
        let originals: Vec<&str> = tools.iter().map(|(tool, _)| *tool).collect();
        let expected: Vec<String> = tools
            .iter()
            .map(|(tool, name)| name.replace('#', &short_hash(&format!("{server}\0{tool}"))))
            .collect();
        assert_eq!(upstream_names(server, servers, &originals), expected, "{server}");
    }

    #[test]
    fn s83_upstream_tools_carry_their_server() {
        check_names(
            "github",
            &["github"],
            &[("create_issue", "github_create_issue"), ("list.prs", "github_list_prs")],
        );
        check_names("my-server", &[], &[("get", "my_server_get")]);
        check_names("github", &[], &[("GitHub-search", "github_search"), ("github", "github_github")]);
        check_names("a&b", &[], &[("get", "a_b_get_#")]);
        check_names("日本", &[], &[("get", "mcp_get_#")]);
        check_names("s", &[], &[("naïve_日本", "s_na_ve_#"), ("日本", "s_#")]);
    }

    #[test]
    fn nam_01_long_names_are_cut_and_stay_distinct() {
        check_names(
            "enterprise-database-management",
            &[],
            &[
                ("synchronize_all_customer_records_first", "enterprise_database_management_sy_#"),
                ("synchronize_all_customer_records_second", "enterprise_database_management_sy_#"),
                ("get", "enterprise_database_management_get"),
            ],
        );
        check_names(
            "s",
            &[],
            &[
                ("exactly_forty_characters_with_a_prefix", "s_exactly_forty_characters_with_a_prefix"),
                ("exactly_forty_characters_with_a_prefix_", "s_exactly_forty_characters_with_a_#"),
            ],
        );
    }

    #[test]
    fn colliding_names_carry_a_hash_unless_one_is_exact() {
        check_names("s", &[], &[("a-b", "s_a_b_#"), ("a_b", "s_a_b"), ("a.b", "s_a_b_#")]);
        check_names("s", &[], &[("a-b", "s_a_b_#"), ("a.b", "s_a_b_#")]);
        check_names("s", &[], &[("Read", "s_Read_#"), ("read", "s_read_#")]);
        check_names("github", &[], &[("search", "github_search_#"), ("github_search", "github_search")]);
    }

    #[test]
    fn names_that_could_be_another_server_s_carry_a_hash() {
        check_names("a", &["a", "a_b"], &[("b_x", "a_b_x_#"), ("b", "a_b_#"), ("bx", "a_bx"), ("x", "a_x")]);
        check_names("a_b", &["a", "a_b"], &[("x", "a_b_x")]);
        check_names("a", &["A-B", "a"], &[("b_x", "a_b_x_#")]);
        check_names("my-server", &["my_server", "my-server"], &[("x", "my_server_x_#")]);
        check_names("my_server", &["my_server", "My.Server"], &[("x", "my_server_x_#")]);
    }

    #[test]
    fn a_tool_named_like_another_one_s_hash_stays_apart() {
        let odd = format!("x_{}", short_hash("s\0x+"));
        let names = upstream_names("s", &[], &["x+", &odd]);
        assert_ne!(names[0], names[1]);
    }

    /// Xorshift (Marsaglia 2003): enough for shuffling.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % n as u64) as usize
        }

        fn shuffle<T>(&mut self, items: &mut [T]) {
            for end in (1..items.len()).rev() {
                items.swap(end, self.below(end + 1));
            }
        }

        fn name(&mut self) -> String {
            let parts = ["a", "b", "A", "_", "-", ".", "ab", "é", "a_b", "read", "very_long_part_of_a_name"];
            (0..1 + self.below(4)).map(|_| parts[self.below(parts.len())]).collect()
        }
    }

    #[test]
    fn names_depend_on_the_sets_and_never_on_order() {
        for seed in 1..400 {
            let mut random = Random(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15));
            let draw = |random: &mut Random, n| -> Vec<String> {
                let set: BTreeSet<String> = (0..n).map(|_| random.name()).collect();
                set.into_iter().collect()
            };
            let servers = draw(&mut random, 4);
            let tools = draw(&mut random, 12);
            let mut servers: Vec<&str> = servers.iter().map(String::as_str).collect();
            let mut tools: Vec<&str> = tools.iter().map(String::as_str).collect();
            let mut expected: Option<BTreeMap<(&str, &str), String>> = None;
            for _ in 0..4 {
                random.shuffle(&mut servers);
                random.shuffle(&mut tools);
                let mut named = BTreeMap::new();
                for server in &servers {
                    for (tool, name) in tools.iter().zip(upstream_names(server, &servers, &tools)) {
                        let is_legal = legal(&name) == Legal { name: name.clone(), odd: false };
                        assert!(is_legal && name.len() <= MAX_LENGTH, "seed {seed}: {name}");
                        named.insert((*server, *tool), name);
                    }
                }
                let distinct: BTreeSet<String> =
                    named.values().map(|name| name.to_ascii_lowercase()).collect();
                assert_eq!(distinct.len(), named.len(), "seed {seed}: {named:?}");
                assert_eq!(*expected.get_or_insert_with(|| named.clone()), named, "seed {seed}");
            }
        }
    }

    #[test]
    fn pol_03_spellings_fold_together() {
        let check = |name: &str, expected: &str| assert_eq!(fold(name), expected, "{name:?}");
        check("Alpha__DELETE", "alpha_delete");
        check(" alpha.delete\n", "alpha_delete");
        check("alpha:/-delete", "alpha_delete");
        check("alpha_de\u{ad}lete\u{200b}", "alpha_delete");
        check("alpha__\u{ff44}elete", "alpha_delete");
        check("alpha\u{ff0f}delete", "alpha_delete");
        check("alpha_delete\u{0}x", "alpha_deletex");
        check("__init__", "init");
        check("ÄRGER", "ärger");
        check(" \u{200b}_", "");
    }

    fn check(asked: &str, names: &[&str], expected: Repair) {
        assert_eq!(repair(asked, names.iter().copied()), expected, "{asked} among {names:?}");
    }

    fn none<'a>(suggestions: &[&'a str]) -> Repair<'a> {
        Repair::None { suggestions: suggestions.to_vec() }
    }

    #[test]
    fn s7_golden_repairs() {
        check("read", &["read", "write"], Repair::Exact("read"));
        check("Read", &["read", "write"], Repair::Unique("read"));
        check("web.search", &["web_search"], Repair::Unique("web_search"));
        check("web_serch", &["web_search"], none(&["web_search"]));
        check("web_serh", &["web_search"], none(&["web_search"]));
        check("reaf", &["read", "real"], none(&[]));
        check("rd", &["read"], none(&[]));
        check("reet", &["read"], none(&[]));
        check("read", &["Read", "READ"], none(&[]));
    }

    #[test]
    fn suggestions_know_prefixes_and_are_few() {
        check("", &["read"], none(&[]));
        check("raed", &["read", "write"], none(&["read"]));
        check("create_issue", &["github_create_issue", "read"], none(&["github_create_issue"]));
        check("mcp__crib__github_search", &["github_search", "a"], none(&["github_search"]));
        check(
            "get_isue",
            &["get_issue", "get_issues", "get_tissue", "x"],
            none(&["get_issue", "get_issues", "get_tissue"]),
        );
        check("find", &["d_find", "c_find", "b_find", "a_find"], none(&["a_find", "b_find", "c_find"]));
    }
}
