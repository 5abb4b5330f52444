//! The language of claims: what a call touches, said in terms of its arguments.

use std::fmt;

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde_json::Value;

/// How a tool's claim follows from the arguments of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimRule {
    /// Reads, nobody knows what.
    Shared,
    /// May change anything.
    Exclusive,
    /// Touches what the arguments name.
    Footprint(Footprint),
    /// Depends on the value of one argument.
    By {
        /// The argument.
        by: Reference,
        /// Its values.
        cases: IndexMap<String, ClaimRule>,
        /// For every other value, and for none.
        otherwise: Box<ClaimRule>,
    },
}

/// The arguments that name what a call touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    /// Whether it only reads.
    pub access: Access,
    /// Files and folders.
    pub paths: Vec<Reference>,
    /// Things that are told apart by name.
    pub nodes: Vec<Reference>,
    /// Agent sessions.
    pub sessions: Vec<Reference>,
    /// When the call gives none of these arguments.
    pub otherwise: Box<ClaimRule>,
}

/// Whether a call reads or changes what it touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It only reads.
    Shared,
    /// It changes.
    #[default]
    Exclusive,
}

/// One value among the arguments, or a text that stands for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A JSON pointer (RFC 6901); a segment `*` stands for every element of an array.
    Pointer(Vec<String>),
    /// The text itself.
    Literal(String),
}

/// What a rule says about one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// Nobody knows what.
    Everything(Access),
    /// These files and folders, as the arguments write them.
    Paths(Access, Vec<String>),
    /// These things.
    Nodes(Access, Vec<String>),
    /// These sessions.
    Sessions(Access, Vec<String>),
}

impl ClaimRule {
    /// A rule over paths, for tools of our own.
    pub fn paths(access: Access, arguments: &[&str]) -> ClaimRule {
        ClaimRule::Footprint(Footprint {
            access,
            paths: arguments.iter().map(|text| Reference::named(text)).collect(),
            nodes: Vec::new(),
            sessions: Vec::new(),
            otherwise: Box::new(ClaimRule::Exclusive),
        })
    }

    /// What this call touches. What the arguments do not say, or say in another form than text, is everything.
    pub fn touched(&self, arguments: &Value) -> Touched {
        match self {
            ClaimRule::Shared => Touched::Everything(Access::Shared),
            ClaimRule::Exclusive => Touched::Everything(Access::Exclusive),
            ClaimRule::Footprint(footprint) => footprint.touched(arguments),
            ClaimRule::By { by, cases, otherwise } => {
                let mut values = Vec::new();
                let case = match by.collect(arguments, &mut values) {
                    Ok(()) if values.len() == 1 => cases.get(&values[0]),
                    _ => None,
                };
                case.unwrap_or(otherwise).touched(arguments)
            }
        }
    }
}

/// A value that is there and names nothing.
struct Unusable;

impl Footprint {
    fn touched(&self, arguments: &Value) -> Touched {
        let read = |references: &[Reference]| {
            let mut values = Vec::new();
            references.iter().try_for_each(|reference| reference.collect(arguments, &mut values))?;
            if values.iter().any(|value| value.trim().is_empty()) { Err(Unusable) } else { Ok(values) }
        };
        let (paths, nodes, sessions) = match (read(&self.paths), read(&self.nodes), read(&self.sessions)) {
            (Ok(paths), Ok(nodes), Ok(sessions)) => (paths, nodes, sessions),
            _ => return Touched::Everything(Access::Exclusive),
        };
        match (paths.is_empty(), nodes.is_empty(), sessions.is_empty()) {
            (true, true, true) => self.otherwise.touched(arguments),
            (false, true, true) => Touched::Paths(self.access, paths),
            (true, false, true) => Touched::Nodes(self.access, nodes),
            (true, true, false) => Touched::Sessions(self.access, sessions),
            // No scope holds two kinds.
            _ => Touched::Everything(self.access),
        }
    }
}

impl Reference {
    /// `/a/b` is a pointer, `=text` the text, and a bare word an argument of that name.
    pub fn named(text: &str) -> Reference {
        if let Some(literal) = text.strip_prefix('=') {
            return Reference::Literal(literal.to_owned());
        }
        match text.strip_prefix('/') {
            Some(path) => {
                let unescaped = |segment: &str| segment.replace("~1", "/").replace("~0", "~");
                Reference::Pointer(path.split('/').map(unescaped).collect())
            }
            None => Reference::Pointer(vec![text.to_owned()]),
        }
    }

    /// Adds what it stands for; nothing where nothing is given.
    fn collect(&self, arguments: &Value, found: &mut Vec<String>) -> Result<(), Unusable> {
        match self {
            Reference::Literal(text) => {
                found.push(text.clone());
                Ok(())
            }
            Reference::Pointer(segments) => collect(arguments, segments, found),
        }
    }
}

fn collect(value: &Value, segments: &[String], found: &mut Vec<String>) -> Result<(), Unusable> {
    let Some((segment, rest)) = segments.split_first() else { return texts(value, found) };
    match value {
        Value::Null => Ok(()),
        Value::Object(members) => members.get(segment).map_or(Ok(()), |member| collect(member, rest, found)),
        Value::Array(items) if segment == "*" => {
            items.iter().try_for_each(|item| match (item, rest.is_empty()) {
                // An element without the member would be one whose footprint nobody knows.
                (Value::Object(members), false) if !members.contains_key(&rest[0]) => Err(Unusable),
                _ => collect(item, rest, found),
            })
        }
        Value::Array(items) => match segment.parse::<usize>().ok().and_then(|at| items.get(at)) {
            Some(item) => collect(item, rest, found),
            None => Ok(()),
        },
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Err(Unusable),
    }
}

fn texts(value: &Value, found: &mut Vec<String>) -> Result<(), Unusable> {
    match value {
        Value::Null => Ok(()),
        Value::String(text) => {
            found.push(text.clone());
            Ok(())
        }
        Value::Number(number) => {
            found.push(number.to_string());
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(|item| match item {
            Value::String(_) | Value::Number(_) => texts(item, found),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(Unusable),
        }),
        Value::Bool(_) | Value::Object(_) => Err(Unusable),
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Reference, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.strip_prefix('=').unwrap_or(&text).trim() {
            "" | "/" => Err(de::Error::custom(
                "a reference must be the name of an argument, a JSON pointer, or `=TEXT`",
            )),
            _ => Ok(Reference::named(&text)),
        }
    }
}

/// A rule as a table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimTable {
    #[serde(default)]
    access: Option<Access>,
    #[serde(default)]
    paths: Vec<Reference>,
    #[serde(default)]
    nodes: Vec<Reference>,
    #[serde(default)]
    sessions: Vec<Reference>,
    #[serde(default)]
    by: Option<Reference>,
    #[serde(default)]
    cases: IndexMap<String, ClaimRule>,
    #[serde(default)]
    otherwise: Option<ClaimRule>,
}

impl ClaimTable {
    fn rule(self) -> Result<ClaimRule, &'static str> {
        let otherwise = Box::new(self.otherwise.unwrap_or(ClaimRule::Exclusive));
        let names_nothing = self.paths.is_empty() && self.nodes.is_empty() && self.sessions.is_empty();
        match self.by {
            Some(by) if names_nothing && self.access.is_none() => {
                Ok(ClaimRule::By { by, cases: self.cases, otherwise })
            }
            Some(_) => Err("a claim with `by` says what is touched in its `cases`, not beside them"),
            None if !self.cases.is_empty() => {
                Err("a claim with `cases` needs `by`, the argument that decides")
            }
            None if names_nothing => Err(
                "a claim needs `paths`, `nodes` or `sessions`, or `by` with `cases`, or is \"shared\" or \"exclusive\"",
            ),
            None => Ok(ClaimRule::Footprint(Footprint {
                access: self.access.unwrap_or_default(),
                paths: self.paths,
                nodes: self.nodes,
                sessions: self.sessions,
                otherwise,
            })),
        }
    }
}

impl<'de> Deserialize<'de> for ClaimRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ClaimRule, D::Error> {
        deserializer.deserialize_any(RuleVisitor)
    }
}

struct RuleVisitor;

impl<'de> Visitor<'de> for RuleVisitor {
    type Value = ClaimRule;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"shared\", \"exclusive\", or a table with `paths`, `nodes`, `sessions` or `by`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ClaimRule, E> {
        match text {
            "shared" => Ok(ClaimRule::Shared),
            "exclusive" => Ok(ClaimRule::Exclusive),
            _ => Err(E::unknown_variant(text, &["shared", "exclusive"])),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ClaimRule, A::Error> {
        ClaimTable::deserialize(MapAccessDeserializer::new(map))?.rule().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(text: &str) -> ClaimRule {
        #[derive(Deserialize)]
        struct Holder {
            claim: ClaimRule,
        }
        toml::from_str::<Holder>(&format!("claim = {text}")).unwrap_or_else(|e| panic!("{text}: {e}")).claim
    }

    fn check(text: &str, arguments: Value, expected: &str) {
        let list =
            |access: Access, kind: &str, names: &[String]| format!("{access:?} {kind} {}", names.join("|"));
        let told = match rule(text).touched(&arguments) {
            Touched::Everything(access) => format!("{access:?}"),
            Touched::Paths(access, names) => list(access, "paths", &names),
            Touched::Nodes(access, names) => list(access, "nodes", &names),
            Touched::Sessions(access, names) => list(access, "sessions", &names),
        };
        assert_eq!(told, expected, "{text} of {arguments}");
    }

    #[test]
    fn s49_the_footprint_comes_from_this_calls_arguments() {
        check("'shared'", json!({}), "Shared");
        check("'exclusive'", json!({ "path": "a" }), "Exclusive");
        let paths = "{ paths = ['path', '/dest'] }";
        check(paths, json!({ "path": "a" }), "Exclusive paths a");
        check(paths, json!({ "path": "a", "dest": "b" }), "Exclusive paths a|b");
        check(paths, json!({ "path": "a", "dest": null }), "Exclusive paths a");
        check("{ access = 'shared', paths = ['path'] }", json!({ "path": "a" }), "Shared paths a");
        check("{ nodes = ['/on/0'] }", json!({ "on": ["x", "y"] }), "Exclusive nodes x");
        check("{ nodes = ['=db'] }", json!({}), "Exclusive nodes db");
        check("{ sessions = ['id'] }", json!({ "id": 7 }), "Exclusive sessions 7");
        check("{ paths = ['/a~1b/c~0'] }", json!({ "a/b": { "c~": "x" } }), "Exclusive paths x");
        // Arrays: of texts, and of objects that hold one.
        check("{ paths = ['paths'] }", json!({ "paths": ["a", "b"] }), "Exclusive paths a|b");
        check(
            "{ paths = ['/edits/*/path'] }",
            json!({ "edits": [{ "path": "a" }, { "path": "b" }] }),
            "Exclusive paths a|b",
        );
        // Kinds that do not fit into one scope.
        check("{ paths = ['p'], nodes = ['n'] }", json!({ "p": "a", "n": "x" }), "Exclusive");
        check("{ paths = ['p'], nodes = ['n'] }", json!({ "n": "x" }), "Exclusive nodes x");
    }

    #[test]
    fn s53_a_footprint_that_cannot_be_read_is_everything() {
        let paths = "{ paths = ['path', 'dest'] }";
        for arguments in [
            json!({}),
            json!(null),
            json!({ "path": "" }),
            json!({ "path": " \t" }),
            json!({ "path": true }),
            json!({ "path": {} }),
            json!({ "path": [] }),
            json!({ "path": ["a", null] }),
            json!({ "path": ["a", ["b"]] }),
            json!({ "path": "a", "dest": false }),
            json!({ "path": "a", "dest": " " }),
        ] {
            check(paths, arguments, "Exclusive");
        }
        check("{ paths = ['/edits/*/path'] }", json!({ "edits": [{ "path": "a" }, {}] }), "Exclusive");
        check("{ paths = ['/edits/*/path'] }", json!({ "edits": [] }), "Exclusive");
        check("{ paths = ['/a/b'] }", json!({ "a": "text" }), "Exclusive");
        check("{ nodes = ['n'] }", json!({ "n": "" }), "Exclusive");
        check("{ sessions = ['s'] }", json!({ "s": {} }), "Exclusive");
        check("{ access = 'shared', paths = ['path'] }", json!({}), "Exclusive");
        check(
            "{ access = 'shared', paths = ['path'], otherwise = { access = 'shared', paths = ['=.'] } }",
            json!({}),
            "Shared paths .",
        );
    }

    #[test]
    fn s50_one_argument_may_decide() {
        let by = "{ by = 'operation', cases = { list = 'shared', delete = { paths = ['path'] } } }";
        check(by, json!({ "operation": "list" }), "Shared");
        check(by, json!({ "operation": "delete", "path": "a" }), "Exclusive paths a");
        check(by, json!({ "operation": "delete" }), "Exclusive");
        check(by, json!({ "operation": "zap" }), "Exclusive");
        check(by, json!({}), "Exclusive");
        check(by, json!({ "operation": ["list"] }), "Shared");
        check(by, json!({ "operation": ["list", "delete"] }), "Exclusive");
        check(
            "{ by = 'n', cases = { '1' = 'exclusive' }, otherwise = 'shared' }",
            json!({ "n": 2 }),
            "Shared",
        );
        check(
            "{ by = 'n', cases = { '1' = 'exclusive' }, otherwise = 'shared' }",
            json!({ "n": 1 }),
            "Exclusive",
        );
    }

    #[test]
    fn mistakes_in_a_rule_are_named() {
        let check = |text: &str, expected: &str| {
            #[derive(Debug, Deserialize)]
            struct Holder {
                #[serde(rename = "claim")]
                _claim: ClaimRule,
            }
            let error = toml::from_str::<Holder>(&format!("claim = {text}")).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("'share'", "unknown variant `share`, expected `shared` or `exclusive`");
        check("3", "or a table with `paths`");
        check("{}", "a claim needs `paths`");
        check("{ path = ['a'] }", "unknown field `path`");
        check("{ paths = [''] }", "the name of an argument");
        check("{ by = 'x', paths = ['a'] }", "in its `cases`");
        check("{ cases = { a = 'shared' } }", "needs `by`");
        check("{ access = 'read', paths = ['a'] }", "unknown variant `read`");
    }
}
