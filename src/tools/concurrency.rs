//! What calls touch while they run, which of them get in each other's way, and how a batch is cut into groups.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What one call touches while it runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ConcurrencyClaim {
    /// Reads, nobody knows what: runs beside everything that is not exclusive.
    Shared,
    /// Reads this and nothing else. Never of [`Scope::Global`]: that is [`ConcurrencyClaim::Shared`].
    SharedIn(Scope),
    /// Changes this and nothing else.
    Exclusive(Scope),
}

/// Where a call reads or changes something. No list in it is empty: what nobody knows is `Global`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Anything at all.
    Global,
    /// Files and folders, with all that lies below them. All are rooted.
    Paths(Vec<ClaimPath>),
    /// Things that are told apart by name: servers, databases, windows.
    Nodes(Vec<Arc<str>>),
    /// Agent sessions.
    Sessions(Vec<Arc<str>>),
}

/// Paths that one claim keeps apart. A call that names more touches so much that it may as well run alone.
pub const MOST_PATHS: usize = 500;

impl Scope {
    /// Files and folders; without any, with one that is not rooted, or with very many, it is everything.
    pub fn paths(paths: impl IntoIterator<Item = ClaimPath>) -> Scope {
        let mut paths: Vec<ClaimPath> = paths.into_iter().take(MOST_PATHS + 1).collect();
        if paths.is_empty() || paths.len() > MOST_PATHS || paths.iter().any(|path| !path.is_rooted()) {
            return Scope::Global;
        }
        // What lies below another path of the same claim says nothing new, and follows it in this order.
        paths.sort_by(|a, b| a.parts.cmp(&b.parts));
        paths.dedup_by(|below, above| above.holds(below));
        Scope::Paths(paths)
    }

    /// Things by name; without any, or with a blank one, nobody knows what is meant.
    pub fn nodes(names: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Scope {
        distinct(names).map_or(Scope::Global, Scope::Nodes)
    }

    /// Sessions by name; without any, or with a blank one, nobody knows what is meant.
    pub fn sessions(names: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Scope {
        distinct(names).map_or(Scope::Global, Scope::Sessions)
    }

    /// Whether something may lie in both.
    pub fn meets(&self, other: &Scope) -> bool {
        match (self, other) {
            (Scope::Global, _) | (_, Scope::Global) => true,
            (Scope::Paths(a), Scope::Paths(b)) => a.iter().any(|a| b.iter().any(|b| a.overlaps(b))),
            (Scope::Nodes(a), Scope::Nodes(b)) | (Scope::Sessions(a), Scope::Sessions(b)) => {
                a.iter().any(|a| b.contains(a))
            }
            (Scope::Paths(_), Scope::Nodes(_)) | (Scope::Nodes(_), Scope::Paths(_)) => false,
            // An agent may touch anything.
            (Scope::Sessions(_), Scope::Paths(_) | Scope::Nodes(_))
            | (Scope::Paths(_) | Scope::Nodes(_), Scope::Sessions(_)) => true,
        }
    }
}

fn distinct(names: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Option<Vec<Arc<str>>> {
    let mut kept: Vec<Arc<str>> = Vec::new();
    for name in names {
        let name: Arc<str> = name.into();
        if name.trim().is_empty() {
            return None;
        }
        if !kept.contains(&name) {
            kept.push(name);
        }
    }
    (!kept.is_empty()).then_some(kept)
}

impl ConcurrencyClaim {
    /// A claim on everything: what is unknown runs alone.
    pub const GLOBAL: ConcurrencyClaim = ConcurrencyClaim::Exclusive(Scope::Global);

    /// A read whose footprint is known, as far as it is.
    pub fn shared_in(scope: Scope) -> ConcurrencyClaim {
        match scope {
            Scope::Global => ConcurrencyClaim::Shared,
            scope => ConcurrencyClaim::SharedIn(scope),
        }
    }

    /// Whether it changes nothing.
    pub fn is_shared(&self) -> bool {
        match self {
            ConcurrencyClaim::Shared | ConcurrencyClaim::SharedIn(_) => true,
            ConcurrencyClaim::Exclusive(_) => false,
        }
    }

    fn scope(&self) -> &Scope {
        match self {
            ConcurrencyClaim::Shared => &Scope::Global,
            ConcurrencyClaim::SharedIn(scope) | ConcurrencyClaim::Exclusive(scope) => scope,
        }
    }

    /// Whether two calls must not run at the same time: one of them changes something, and their scopes meet.
    pub fn conflicts_with(&self, other: &ConcurrencyClaim) -> bool {
        !(self.is_shared() && other.is_shared()) && self.scope().meets(other.scope())
    }
}

impl fmt::Display for ConcurrencyClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_shared() { "shared" } else { "exclusive" })?;
        match self.scope() {
            Scope::Global => Ok(()),
            Scope::Paths(paths) => list(f, " paths ", paths.iter().map(ClaimPath::shown)),
            Scope::Nodes(names) => list(f, " nodes ", names.iter().map(|name| &**name)),
            Scope::Sessions(names) => list(f, " sessions ", names.iter().map(|name| &**name)),
        }
    }
}

fn list<'a>(f: &mut fmt::Formatter<'_>, kind: &str, items: impl Iterator<Item = &'a str>) -> fmt::Result {
    f.write_str(kind)?;
    items.enumerate().try_for_each(|(i, item)| write!(f, "{}{item}", if i > 0 { ", " } else { "" }))
}

/// A path in its normal form: one separator, no `.`, and `..` only where it leads out of what is known.
///
/// Compared by what it names, not by how it was written.
#[derive(Debug, Clone, Eq)]
pub struct ClaimPath {
    is_rooted: bool,
    /// How many `..` a path that is not rooted begins with.
    ups: usize,
    /// A drive, such as `C:`, is the first part of a rooted path.
    parts: Vec<Box<str>>,
    shown: Arc<str>,
}

impl PartialEq for ClaimPath {
    fn eq(&self, other: &ClaimPath) -> bool {
        (self.is_rooted, self.ups, &self.parts) == (other.is_rooted, other.ups, &other.parts)
    }
}

impl std::hash::Hash for ClaimPath {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.is_rooted, self.ups, &self.parts).hash(state);
    }
}

impl ClaimPath {
    /// Reads a path without looking at a disk; both slashes separate. `None` for a blank text.
    pub fn parse(text: &str) -> Option<ClaimPath> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        let is_drive = |part: &str| matches!(part.as_bytes(), [letter, b':'] if letter.is_ascii_alphabetic());
        let mut pieces = text.split(['/', '\\']).peekable();
        let is_rooted = text.starts_with(['/', '\\']) || pieces.peek().is_some_and(|part| is_drive(part));
        let mut path = ClaimPath { is_rooted, ups: 0, parts: Vec::new(), shown: text.into() };
        for piece in pieces {
            match piece {
                "" | "." => {}
                ".." if path.parts.last().is_some_and(|part| !(is_rooted && is_drive(part))) => {
                    path.parts.pop();
                }
                // Above the top is the top.
                ".." if is_rooted => {}
                ".." => path.ups += 1,
                part => path.parts.push(part.into()),
            }
        }
        Some(path)
    }

    /// A path whose links and dots are resolved already. `shown` is how the caller wrote it.
    pub fn rooted(parts: Vec<Box<str>>, shown: &str) -> ClaimPath {
        ClaimPath { is_rooted: true, ups: 0, parts, shown: shown.into() }
    }

    /// The same path on a disk that does not tell upper and lower case apart.
    pub fn folded(mut self) -> ClaimPath {
        for part in &mut self.parts {
            *part = part.to_lowercase().into();
        }
        self
    }

    /// How the caller wrote it.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Whether it is known from the top.
    pub fn is_rooted(&self) -> bool {
        self.is_rooted
    }

    /// Its names from the top, or from where its `..` lead.
    pub fn parts(&self) -> &[Box<str>] {
        &self.parts
    }

    /// Whether `other` is this path or lies below it.
    fn holds(&self, other: &ClaimPath) -> bool {
        (self.is_rooted, self.ups) == (other.is_rooted, other.ups) && other.parts.starts_with(&self.parts)
    }

    /// Whether the two may be the same or one may lie below the other. Unsure means yes.
    pub fn overlaps(&self, other: &ClaimPath) -> bool {
        // A path from the top and one from somewhere, or two from different heights, cannot be told apart.
        (self.is_rooted, self.ups) != (other.is_rooted, other.ups) || self.holds(other) || other.holds(self)
    }
}

impl fmt::Display for ClaimPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_drive = self.parts.first().is_some_and(|part| part.len() == 2 && part.ends_with(':'));
        let rest = self.parts.join("/");
        match (self.is_rooted, self.ups) {
            (true, _) if is_drive => f.write_str(&rest),
            (true, _) => write!(f, "/{rest}"),
            (false, 0) if rest.is_empty() => f.write_str("."),
            (false, 0) => f.write_str(&rest),
            (false, ups) => {
                let way = vec![".."; ups].join("/");
                if rest.is_empty() { f.write_str(&way) } else { write!(f, "{way}/{rest}") }
            }
        }
    }
}

/// Cuts calls into runs of neighbours that may run together: left to right, each group as long as it can be.
///
/// The ranges cover all calls in order, none is empty, and no cut of neighbours without conflicts has fewer.
pub fn partition_parallel_groups(claims: &[ConcurrencyClaim]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (i, claim) in claims.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if !claims[group.clone()].iter().any(|member| member.conflicts_with(claim)) => {
                group.end = i + 1;
            }
            _ => groups.push(i..i + 1),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `S` shared, `G` global, `Pa` path /a, `N1` node, `Q1` session; a small letter in front: only read.
    fn claim(word: &str) -> ConcurrencyClaim {
        let (word, is_read) = match word.strip_prefix('r') {
            Some(rest) => (rest, true),
            None => (word, false),
        };
        let scope = match word.split_at(1) {
            ("S", "") => return ConcurrencyClaim::Shared,
            ("G", "") => Scope::Global,
            ("P", paths) => {
                Scope::paths(paths.split('+').map(|path| ClaimPath::parse(&format!("/{path}")).unwrap()))
            }
            ("N", names) => Scope::nodes(names.split('+')),
            ("Q", names) => Scope::sessions(names.split('+')),
            _ => panic!("{word}"),
        };
        if is_read { ConcurrencyClaim::shared_in(scope) } else { ConcurrencyClaim::Exclusive(scope) }
    }

    fn check_conflict(a: &str, b: &str, expected: bool) {
        assert_eq!(claim(a).conflicts_with(&claim(b)), expected, "{a} × {b}");
        assert_eq!(claim(b).conflicts_with(&claim(a)), expected, "{b} × {a}");
    }

    #[test]
    fn s42_a_claim_is_shared_or_exclusive_in_a_scope() {
        let words = |claim: &ConcurrencyClaim| match claim {
            ConcurrencyClaim::Shared => "shared",
            ConcurrencyClaim::SharedIn(_) => "shared in",
            ConcurrencyClaim::Exclusive(Scope::Global) => "global",
            ConcurrencyClaim::Exclusive(Scope::Paths(_)) => "paths",
            ConcurrencyClaim::Exclusive(Scope::Nodes(_)) => "nodes",
            ConcurrencyClaim::Exclusive(Scope::Sessions(_)) => "sessions",
        };
        let all = ["S", "rN1", "G", "Pa", "N1", "Q1"].map(|word| words(&claim(word)));
        assert_eq!(all, ["shared", "shared in", "global", "paths", "nodes", "sessions"]);
        assert_eq!(claim("rG"), ConcurrencyClaim::Shared);
    }

    #[test]
    fn s43_shared_conflicts_only_with_exclusive() {
        check_conflict("S", "S", false);
        for exclusive in ["G", "Pa", "N1", "Q1"] {
            check_conflict("S", exclusive, true);
        }
        for read in ["S", "rPa", "rN1", "rQ1"] {
            for other in ["S", "rPa", "rN1", "rQ1", "rPb"] {
                check_conflict(read, other, false);
            }
        }
        // A read whose footprint is known meets only what overlaps it.
        for (read, exclusive, expected) in [
            ("rPa", "Pa/x", true),
            ("rPa", "Pb", false),
            ("rPa", "N1", false),
            ("rPa", "Q1", true),
            ("rPa", "G", true),
            ("rN1", "N1+2", true),
            ("rN1", "N2", false),
            ("rN1", "Pa", false),
            ("rN1", "Q1", true),
            ("rQ1", "Q1", true),
            ("rQ1", "Q2", false),
            ("rQ1", "Pa", true),
        ] {
            check_conflict(read, exclusive, expected);
        }
    }

    #[test]
    fn s44_global_conflicts_with_everything() {
        for other in ["S", "G", "Pa", "N1", "Q1", "rPa", "rN1", "rQ1"] {
            check_conflict("G", other, true);
        }
    }

    #[test]
    fn s45_s51_s52_paths_conflict_when_equal_or_one_above_the_other() {
        check_conflict("Pa", "Pa", true);
        check_conflict("Pa", "Pb", false);
        check_conflict("Psrc/a", "Psrc/ab", false);
        check_conflict("Psrc/a", "Psrc/a/b.rs", true);
        check_conflict("Pa+b", "Pc+b/x", true);
        check_conflict("Pa+b", "Pc+d", false);
        check_conflict("P", "Pa", true);
    }

    #[test]
    fn s46_nodes_conflict_only_on_common_nodes() {
        check_conflict("N1", "N2", false);
        check_conflict("N1+2", "N2", true);
        check_conflict("N1", "N1", true);
        check_conflict("N1", "Pa", false);
    }

    #[test]
    fn s47_disjoint_sessions_run_together() {
        check_conflict("Q1", "Q2", false);
        check_conflict("Q1", "Q1", true);
        check_conflict("Q1+2", "Q2+3", true);
    }

    #[test]
    fn s48_sessions_conflict_with_every_other_kind() {
        for other in ["S", "G", "Pa", "N1", "rPa", "rN1"] {
            check_conflict("Q1", other, true);
        }
    }

    #[test]
    fn paths_below_others_of_the_same_claim_are_left_out() {
        let check = |word: &str, expected: &str| assert_eq!(claim(word).to_string(), expected, "{word}");
        check("Pb+a/x+a+a/y/z", "exclusive paths /a, /b");
        check("Pa+ab+a-b+a/b", "exclusive paths /a, /a-b, /ab");
        check("Pa+a", "exclusive paths /a");
    }

    #[test]
    fn s53_what_is_not_known_is_global() {
        assert_eq!(Scope::paths([]), Scope::Global);
        assert_eq!(Scope::paths(ClaimPath::parse("  ")), Scope::Global);
        assert_eq!(Scope::paths([ClaimPath::parse("a").unwrap()]), Scope::Global);
        let many = |n: usize| (0..n).filter_map(|i| ClaimPath::parse(&format!("/a/{i}")));
        assert!(matches!(Scope::paths(many(500)), Scope::Paths(paths) if paths.len() == 500));
        assert_eq!(Scope::paths(many(501)), Scope::Global);
        assert_eq!(Scope::nodes([""; 0]), Scope::Global);
        assert_eq!(Scope::nodes(["n", " "]), Scope::Global);
        assert_eq!(Scope::sessions([""]), Scope::Global);
    }

    #[test]
    fn s45_paths_have_one_normal_form() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(ClaimPath::parse(text).map(|path| path.to_string()).as_deref(), expected, "{text}");
        };
        check("  src//a/./b  ", Some("src/a/b"));
        check("/src/a/../b", Some("/src/b"));
        check("a/b/../../c", Some("c"));
        check("../x", Some("../x"));
        check("../../x/..", Some("../.."));
        check(".", Some("."));
        check("a/..", Some("."));
        check("/..", Some("/"));
        check("/../a", Some("/a"));
        check(r"C:\w\a.rs", Some("C:/w/a.rs"));
        check(r"C:\..\a", Some("C:/a"));
        check("C:", Some("C:"));
        check(r"\\host\share", Some("/host/share"));
        check(" \t", None);
        check("", None);
    }

    #[test]
    fn s45_overlap_is_decided_part_by_part_and_unsure_means_yes() {
        let check = |a: &str, b: &str, expected: bool| {
            let (a, b) = (ClaimPath::parse(a).unwrap(), ClaimPath::parse(b).unwrap());
            assert_eq!((a.overlaps(&b), b.overlaps(&a)), (expected, expected), "{a} ~ {b}");
        };
        check("src/a", "src/a", true);
        check("src/a", "src/a/b.rs", true);
        check("src/a", "src/ab", false);
        check("src/./a.rs", "src/a.rs", true);
        check("/w/a.rs", "a.rs", true);
        check("/", "/x", true);
        check(".", "src/a", true);
        check("..", "a", true);
        check("../x", "../y", false);
        check("../x", "a", true);
        check("C:/a", "D:/a", false);
        check("A", "a", false);
        let folded = |text: &str| ClaimPath::parse(text).unwrap().folded();
        assert!(folded("A/ß").overlaps(&folded("a/ß")));
    }

    fn groups(line: &str) -> String {
        let claims: Vec<ConcurrencyClaim> = line.split_whitespace().map(claim).collect();
        let ranges = partition_parallel_groups(&claims);
        ranges.iter().map(|range| format!("{}-{}", range.start, range.end)).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn s54_s55_groups_are_contiguous_in_order_and_greedy() {
        let check = |line: &str, expected: &str| assert_eq!(groups(line), expected, "{line}");
        check("", "");
        check("G", "0-1");
        check("S S G S", "0-2, 2-3, 3-4");
        check("Pa Pb Pa/x Pc", "0-2, 2-4");
        check("N1 N2 N1", "0-2, 2-3");
        check("Pa N1", "0-2");
        check("Q1 Q2 Pa", "0-2, 2-3");
        check("S Pa", "0-1, 1-2");
        check("Pa S Pb", "0-1, 1-2, 2-3");
        check("Pa Pb N1 Q1 S", "0-3, 3-4, 4-5");
        check("rPa rPb Pc Pa", "0-3, 3-4");
    }

    #[test]
    fn t24_neighbours_that_are_parallel_safe_form_a_group() {
        assert_eq!(groups("S S G S"), "0-2, 2-3, 3-4");
    }

    #[test]
    fn claims_are_told_as_the_caller_wrote_them() {
        let path = ClaimPath::rooted(vec!["home".into(), "src".into(), "a".into()], "src/a");
        assert_eq!(ConcurrencyClaim::Exclusive(Scope::paths([path])).to_string(), "exclusive paths src/a");
        assert_eq!(claim("rN1+2").to_string(), "shared nodes 1, 2");
        assert_eq!(claim("G").to_string(), "exclusive");
        assert_eq!(claim("S").to_string(), "shared");
    }
}
