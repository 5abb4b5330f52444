//! Says where a configuration file is wrong, and what was probably meant.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use super::tables::{Config, known_keys};

/// Why a configuration file cannot be used: `file:line:column: what`, then the line with a caret.
///
/// Values of other keys than the plain ones are blackened in the line: it ends up in logs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// Where in it, if it could be read at all.
    pub position: Option<Position>,
    /// What is wrong, with the nearest known key.
    pub message: String,
    excerpt: Option<String>,
}

/// A place in a file; both count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(Position { line, column }) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)?;
        if let Some(excerpt) = &self.excerpt {
            write!(f, "\n{excerpt}")?;
        }
        Ok(())
    }
}

/// The notation of a configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notation {
    Toml,
    Json,
}

/// The text of a configuration file, without byte order mark.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    notation: Notation,
}

impl Source {
    pub(crate) fn read(path: &Path, notation: Notation) -> Result<Self, ConfigError> {
        let unusable =
            |message: String| ConfigError { path: path.to_owned(), position: None, message, excerpt: None };
        let bytes = fs::read(path).map_err(|error| match path.is_dir() {
            true => unusable("is a folder, not a file".to_owned()),
            false => unusable(format!("failed to read: {error}")),
        })?;
        Self::decode(path, bytes, notation)
    }

    pub(crate) fn decode(path: &Path, bytes: Vec<u8>, notation: Notation) -> Result<Self, ConfigError> {
        let utf16 = bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]);
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").map(<[u8]>::to_vec).unwrap_or(bytes);
        let (text, bad) = match String::from_utf8(bytes) {
            Ok(text) => (text, None),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(at))
            }
        };
        let source = Self { path: path.to_owned(), text, notation };
        match bad {
            None => Ok(source),
            Some(_) if utf16 => Err(source.error(0..0, "is UTF-16; save the file as UTF-8")),
            Some(at) => Err(source.error(at..at, "is not valid UTF-8; save the file as UTF-8")),
        }
    }

    pub(crate) fn error(&self, span: Range<usize>, message: impl Into<String>) -> ConfigError {
        ConfigError {
            path: self.path.clone(),
            position: Some(self.position(span.start)),
            message: message.into(),
            excerpt: Some(self.excerpt(span)),
        }
    }

    pub(crate) fn position(&self, offset: usize) -> Position {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        Position { line: before.matches('\n').count() + 1, column: before[start..].chars().count() + 1 }
    }

    fn excerpt(&self, span: Range<usize>) -> String {
        let Position { line: number, column } = self.position(span.start);
        let start = self.text[..self.text.floor_char_boundary(span.start)].rfind('\n').map_or(0, |at| at + 1);
        let line = self.text[start..].lines().next().unwrap_or_default();
        let in_block = ["\"\"\"", "'''"].iter().any(|mark| self.text[..start].matches(mark).count() % 2 == 1);
        let shown: Vec<char> = match in_block && self.notation == Notation::Toml {
            true => blacken(line, 0),
            false => without_values(line, self.notation),
        };
        let skipped = column.saturating_sub(WIDEST_EXCERPT / 2);
        let printable = |c: char| if c.is_control() && c != '\t' { char::REPLACEMENT_CHARACTER } else { c };
        let shown: Vec<char> = shown.into_iter().map(printable).skip(skipped).take(WIDEST_EXCERPT).collect();
        let column = (column - 1 - skipped).min(shown.len());
        // Tabs stay tabs, so that the caret stands where the reader sees the mistake.
        let pad: String = shown[..column].iter().map(|c| if *c == '\t' { '\t' } else { ' ' }).collect();
        let marked =
            self.text.get(span).map_or(1, |text| text.lines().next().unwrap_or_default().chars().count());
        let carets = "^".repeat(marked.clamp(1, (shown.len() - column).max(1)));
        let gutter = " ".repeat(number.to_string().len());
        let shown: String = shown.into_iter().collect();
        format!("{gutter} |\n{number} | {shown}\n{gutter} | {pad}{carets}")
    }
}

/// Longer lines, as in files without line breaks, are cut around the mistake.
const WIDEST_EXCERPT: usize = 120;

/// Keys of other programs' files whose values are safe to show, beside our own.
const PLAIN_KEYS: [&str; 5] = ["type", "transport", "disabled", "timeout", "description"];

/// Our own keys whose values may hold secrets.
const SECRET_KEYS: [&str; 5] = ["args", "env", "http_headers", "run", "url"];

/// A line of the file as it may appear in a log: values are blackened unless their key is plain.
fn without_values(line: &str, notation: Notation) -> Vec<char> {
    let separator = match notation {
        Notation::Toml => '=',
        Notation::Json => ':',
    };
    let separators = unquoted(line, separator);
    match separators.as_slice() {
        [] if is_header(line, notation) => line.chars().collect(),
        [] => blacken_strings(line),
        [at] if is_plain_key(&line[..*at]) => line.chars().collect(),
        [at, ..] => blacken(line, *at),
    }
}

/// Where a sign stands outside of quotes.
fn unquoted(line: &str, sign: char) -> Vec<usize> {
    let mut quote = None;
    let mut found = Vec::new();
    for (at, c) in line.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == sign => found.push(at),
            _ => {}
        }
    }
    found
}

fn is_header(line: &str, notation: Notation) -> bool {
    let inner = line.trim_start().trim_start_matches('[');
    notation == Notation::Toml && inner.len() < line.trim_start().len() && !inner.contains(',')
}

fn is_plain_key(key: &str) -> bool {
    let key = key.trim_matches(|c: char| c.is_whitespace() || "{,\"'".contains(c));
    let key = key.rsplit('.').next().unwrap_or(key).trim();
    !SECRET_KEYS.contains(&key)
        && (PLAIN_KEYS.contains(&key) || known_keys().iter().any(|(_, keys)| keys.contains(&key)))
}

fn blacken(line: &str, from: usize) -> Vec<char> {
    let keep = |c: char| c.is_whitespace() || "=:[]{},\"'#".contains(c);
    line.char_indices().map(|(at, c)| if at < from || keep(c) { c } else { '•' }).collect()
}

fn blacken_strings(line: &str) -> Vec<char> {
    let mut quote = None;
    let black = |c: char| match quote {
        Some(open) if c == open => {
            quote = None;
            c
        }
        None if c == '"' || c == '\'' => {
            quote = Some(c);
            c
        }
        None => c,
        Some(_) => '•',
    };
    line.chars().map(black).collect()
}

/// Parses `tools.toml`; also gives the document with the places of its keys.
pub(crate) fn parse_toml(source: &Source) -> Result<(Config, DeTable<'_>), ConfigError> {
    let document = DeTable::parse(&source.text).map_err(|error| syntax_error(source, &error))?;
    no_lists_for_tables(source, document.get_ref())?;
    match Config::deserialize(toml::Deserializer::from(document.clone())) {
        Ok(config) => Ok((config, document.into_inner())),
        Err(error) => Err(type_error(source, document.get_ref(), &error)),
    }
}

/// Serde would take a list for the values of a table in their order.
fn no_lists_for_tables(source: &Source, document: &DeTable<'_>) -> Result<(), ConfigError> {
    let families = ["mcp_servers", "commands", "hooks", "modes"];
    let families = families.into_iter().filter_map(|name| document.get(name));
    let below = families.filter_map(|family| family.get_ref().as_table()).flatten();
    let (_, tables) = known_keys()[0];
    let top = document.iter().filter(|(key, _)| tables.contains(&key.get_ref().as_ref()));
    match top.chain(below).find(|(_, value)| value.get_ref().is_array()) {
        None => Ok(()),
        Some((key, _)) => {
            let message = format!("`{}` is one table, not a list: write it as `[…]`", key.get_ref());
            Err(source.error(key.span(), message))
        }
    }
}

fn syntax_error(source: &Source, error: &toml::de::Error) -> ConfigError {
    let span = error.span().unwrap_or(0..0);
    let message = error.message();
    if message == "duplicate key" {
        return duplicate_error(source, span);
    }
    let hint = match message {
        _ if message.starts_with("missing escaped value") || message.contains("escape") => {
            "; a backslash is written `\\\\`, or use single quotes"
        }
        _ if message.starts_with("string values must be quoted") => "; for example `key = \"value\"`",
        _ => "",
    };
    source.error(span, format!("not valid TOML: {message}{hint}"))
}

/// Names both places of a table or key that is there twice.
fn duplicate_error(source: &Source, second: Range<usize>) -> ConfigError {
    // With the second one renamed, the first is the sibling of the new name that has the old one.
    const MARK: &str = "toolcrib-second-place";
    let written = &source.text[second.clone()];
    let name = DeTable::parse(&format!("{written} = 0"))
        .ok()
        .and_then(|table| table.get_ref().iter().next().map(|(key, _)| key.get_ref().to_string()))
        .unwrap_or_else(|| written.to_owned());
    let renamed = format!("{}{MARK}{}", &source.text[..second.start], &source.text[second.end..]);
    let (document, _) = DeTable::parse_recoverable(&renamed);
    match sibling(document.get_ref(), MARK, &name) {
        Some(first) => twice(source, "key or table", &name, first, &name, second),
        None => source.error(second, format!("`{name}` is there twice")),
    }
}

/// The error for two things that may be there only once.
pub(crate) fn twice(
    source: &Source,
    what: &str,
    first: &str,
    first_span: Range<usize>,
    second: &str,
    second_span: Range<usize>,
) -> ConfigError {
    let Position { line, column } = source.position(first_span.start);
    let message = match first == second {
        true => format!("{what} `{second}` is there twice: first on line {line}, column {column}"),
        false => format!(
            "{what} `{second}` differs from `{first}` on line {line}, column {column} only in upper and lower case"
        ),
    };
    source.error(second_span, message)
}

fn sibling(table: &DeTable<'_>, of: &str, name: &str) -> Option<Range<usize>> {
    if table.contains_key(of) {
        return table.get_key_value(name).map(|(key, _)| key.span());
    }
    table.values().find_map(|value| sibling_below(value.get_ref(), of, name))
}

fn sibling_below(value: &DeValue<'_>, of: &str, name: &str) -> Option<Range<usize>> {
    match value {
        DeValue::Table(table) => sibling(table, of, name),
        DeValue::Array(items) => items.iter().find_map(|item| sibling_below(item.get_ref(), of, name)),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => None,
    }
}

/// Words serde's message for a person: which key, what was expected, what was probably meant.
fn type_error(source: &Source, document: &DeTable<'_>, error: &toml::de::Error) -> ConfigError {
    let span = error.span().unwrap_or(0..0);
    let path = path_to(document, span.start);
    let message = error.message();
    let mut quoted = message.split('`').skip(1).step_by(2);
    let text = if message.starts_with("unknown field") {
        let name = quoted.next().unwrap_or_default();
        let table = table_name(path.split_last().map_or(&[], |(_, table)| table));
        let place = if table.is_empty() { String::new() } else { format!(" in `[{table}]`") };
        format!("unknown key `{name}`{place}{}", hint_for_key(name, &quoted.collect::<Vec<_>>()))
    } else if message.starts_with("unknown variant") {
        let value = quoted.next().unwrap_or_default();
        let known: Vec<_> = quoted.collect();
        format!("{}: unknown value `{value}`, known are {}", key_name(&path), listed(&known))
            + &did_you_mean(value, &known)
    } else if let Some((_, expected)) =
        message.rsplit_once(", expected ").filter(|_| message.starts_with("invalid value: "))
    {
        format!("{}: expected {}", key_name(&path), plain_type(expected))
    } else if let Some(rest) = message.strip_prefix("invalid type: ") {
        let (found, expected) = rest.rsplit_once(", expected ").unwrap_or((rest, "something else"));
        // The value itself is left out: it may be a secret.
        let found = plain_type(found.split(['`', '"']).next().unwrap_or_default());
        format!("{}: expected {}, found {found}", key_name(&path), plain_type(expected))
    } else if message.starts_with("wanted string or table") {
        format!("{}: expected a string", key_name(&path))
    } else if message.starts_with("missing field") {
        format!("`[{}]` lacks the key `{}`", table_name(&path), quoted.next().unwrap_or_default())
    } else {
        format!("{}: {message}", key_name(&path))
    };
    source.error(span, text)
}

/// The nearest known key here, else the table in which the key is known.
fn hint_for_key(name: &str, known_here: &[&str]) -> String {
    let tables = known_keys();
    match tables.iter().find(|(table, keys)| !table.is_empty() && keys.contains(&name)) {
        Some((table, _)) if slip(name, known_here).is_none() => format!("; it belongs to `[{table}]`"),
        _ if known_here.is_empty() => String::new(),
        _ => match nearest(name, known_here) {
            Some(known) => format!("; did you mean `{known}`?"),
            None => format!("; known are {}", listed(known_here)),
        },
    }
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// `; did you mean …?`, or nothing.
pub(crate) fn did_you_mean(name: &str, known: &[&str]) -> String {
    nearest(name, known).map(|known| format!("; did you mean `{known}`?")).unwrap_or_default()
}

fn folded(name: &str) -> String {
    name.to_lowercase().replace(['_', '-', '.', ' '], "")
}

/// The known name that differs by a few letters only.
fn slip<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let name = folded(name);
    let slips = |known: &&str| strsim::damerau_levenshtein(&name, &folded(known));
    let best = known.iter().copied().min_by_key(slips)?;
    (slips(&best) * 3 <= name.len().max(folded(best).len())).then_some(best)
}

/// The known name that was probably meant: another spelling, a slip, or a longer form.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    if let Some(slip) = slip(name, known) {
        return Some(slip);
    }
    let name = folded(name);
    let longer = |known: &&str| {
        let known = folded(known);
        name.len().min(known.len()) >= 3 && (known.contains(&name) || name.contains(&known))
    };
    known.iter().copied().find(longer)
}

/// A type in the words of TOML.
fn plain_type(text: &str) -> &str {
    let text = text.trim();
    match text.split(' ').next().unwrap_or(text) {
        "integer" => "a whole number",
        "floating" => "a number with a point",
        "string" => "a string",
        "boolean" | "bool" => "true or false",
        "sequence" => "a list",
        "map" | "struct" => "a table",
        "u64" | "usize" | "u32" => "a whole number, 0 or more",
        "f64" => "a number",
        "a" if text == "a sequence" => "a list",
        "a" if text == "a map" => "a table",
        "a" if text == "a boolean" => "true or false",
        _ => text,
    }
}

/// `` `core` in `[tools]` ``
fn key_name(path: &[String]) -> String {
    match path.split_last() {
        None => "the file".to_owned(),
        Some((key, [])) => format!("`{key}`"),
        Some((key, table)) => format!("`{key}` in `[{}]`", table_name(table)),
    }
}

fn table_name(path: &[String]) -> String {
    let is_bare =
        |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let part = |key: &String| if is_bare(key) { key.clone() } else { format!("{key:?}") };
    path.iter().map(part).collect::<Vec<_>>().join(".")
}

/// The keys that lead to a place in the file.
fn path_to(table: &DeTable<'_>, offset: usize) -> Vec<String> {
    for (key, value) in table {
        if key.span().contains(&offset) {
            return vec![key.get_ref().to_string()];
        }
        let here = value.span().contains(&offset);
        let below = match value.get_ref() {
            DeValue::Table(table) => path_to(table, offset),
            _ => Vec::new(),
        };
        if here || !below.is_empty() {
            return std::iter::once(key.get_ref().to_string()).chain(below).collect();
        }
    }
    Vec::new()
}

/// Where the last key of a path stands.
pub(crate) fn place_of(document: &DeTable<'_>, path: &[&str]) -> Range<usize> {
    let mut table = document;
    let mut place = 0..0;
    for name in path {
        let Some((key, value)) = table.get_key_value(*name) else { return place };
        place = key.span();
        let DeValue::Table(below) = value.get_ref() else { return place };
        table = below;
    }
    place
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn error_of(text: &[u8]) -> String {
        let source = Source::decode(Path::new("tools.toml"), text.to_vec(), Notation::Toml);
        let parsed = source.and_then(|source| {
            let (config, document) = parse_toml(&source)?;
            super::super::check::check(&source, &document, &config)
        });
        parsed.map_or_else(|error| error.to_string(), |()| "fine".to_owned())
    }

    fn check(text: &str, expected: Expect) {
        expected.assert_eq(&error_of(text.as_bytes()));
    }

    #[test]
    fn c4_an_unknown_key_comes_with_the_nearest_known_one() {
        check(
            "[tools]\ncor = [\"*\"]\n",
            expect![[r#"
                tools.toml:2:1: unknown key `cor` in `[tools]`; did you mean `core`?
                  |
                2 | cor = ["•"]
                  | ^^^"#]],
        );
        check(
            "[tools]\ndeferMcpTools = true\n",
            expect![[r#"
                tools.toml:2:1: unknown key `deferMcpTools` in `[tools]`; did you mean `defer_mcp_tools`?
                  |
                2 | deferMcpTools = ••••
                  | ^^^^^^^^^^^^^"#]],
        );
        check(
            "\n\n[tool]\ncore = []\n",
            expect![[r#"
                tools.toml:3:2: unknown key `tool`; did you mean `tools`?
                  |
                3 | [tool]
                  |  ^^^^"#]],
        );
        check(
            "[tools]\ntimeout_ms = 5\n",
            expect![[r#"
                tools.toml:2:1: unknown key `timeout_ms` in `[tools]`; it belongs to `[approvals]`
                  |
                2 | timeout_ms = 5
                  | ^^^^^^^^^^"#]],
        );
        check(
            "core = []\n",
            expect![[r#"
                tools.toml:1:1: unknown key `core`; it belongs to `[tools]`
                  |
                1 | core = []
                  | ^^^^"#]],
        );
        check(
            "[mcpServers.x]\ncommand = \"a\"\n",
            expect![[r#"
                tools.toml:1:2: unknown key `mcpServers`; did you mean `mcp_servers`?
                  |
                1 | [mcpServers.x]
                  |  ^^^^^^^^^^"#]],
        );
        check(
            "[mcp_servers.\"a b\"]\ncommand = \"a\"\nenviron = { TOKEN = \"sk-live-1\" }\n",
            expect![[r#"
                tools.toml:3:1: unknown key `environ` in `[mcp_servers."a b"]`; did you mean `env`?
                  |
                3 | environ = { ••••• = "•••••••••" }
                  | ^^^^^^^"#]],
        );
        check(
            "[mcp_servers.x]\nheaders = {}\n",
            expect![[r#"
                tools.toml:2:1: unknown key `headers` in `[mcp_servers.x]`; did you mean `http_headers`?
                  |
                2 | headers = {}
                  | ^^^^^^^"#]],
        );
        check(
            "[approvals]\nqqq = 1\n",
            expect![[r#"
                tools.toml:2:1: unknown key `qqq` in `[approvals]`; known are `without_client`, `timeout_ms`
                  |
                2 | qqq = •
                  | ^^^"#]],
        );
        check(
            "[policy]\npin = \"ask\"\n",
            expect![[r#"
                tools.toml:2:1: unknown key `pin` in `[policy]`; known are `allow`, `rules`, `tier`, `grants`
                  |
                2 | pin = "•••"
                  | ^^^"#]],
        );
        check(
            "[tools]\n\tbatc = true # tab\n",
            expect![[r#"
                tools.toml:2:2: unknown key `batc` in `[tools]`; did you mean `batch`?
                  |
                2 | 	batc = •••• # •••
                  | 	^^^^"#]],
        );
    }

    #[test]
    fn c4_a_wrong_type_or_value_names_its_key() {
        check(
            "[tools]\ncore = \"*\"\n",
            expect![[r#"
                tools.toml:2:8: `core` in `[tools]`: expected a list, found a string
                  |
                2 | core = "*"
                  |        ^^^"#]],
        );
        check(
            "[tools]\ncore = [1]\n",
            expect![[r#"
                tools.toml:2:9: `core` in `[tools]`: expected a string, found a whole number
                  |
                2 | core = [1]
                  |         ^"#]],
        );
        check(
            "[tools]\nauto_tokens = -1\n",
            expect![[r#"
                tools.toml:2:15: `auto_tokens` in `[tools]`: expected a whole number, 0 or more
                  |
                2 | auto_tokens = -1
                  |               ^^"#]],
        );
        check(
            "[tools]\nbatch = \"yes\"\n",
            expect![[r#"
                tools.toml:2:9: `batch` in `[tools]`: expected true or false, found a string
                  |
                2 | batch = "yes"
                  |         ^^^^^"#]],
        );
        check(
            "[tools]\npromote = \"allways\"\n",
            expect![[r#"
                tools.toml:2:11: `promote` in `[tools]`: unknown value `allways`, known are `auto`, `always`, `never`; did you mean `always`?
                  |
                2 | promote = "allways"
                  |           ^^^^^^^^^"#]],
        );
        check(
            "[tools]\npromote = 3\n",
            expect![[r#"
                tools.toml:2:11: `promote` in `[tools]`: expected a string
                  |
                2 | promote = 3
                  |           ^"#]],
        );
        check(
            "[policy.rules]\n\"github/*\" = \"denny\"\n",
            expect![[r#"
                tools.toml:2:14: `github/*` in `[policy.rules]`: unknown value `denny`, known are `allow`, `ask`, `deny`; did you mean `deny`?
                  |
                2 | "github/*" = "•••••"
                  |              ^^^^^^^"#]],
        );
        check(
            "[mcp_servers]\nx = 4\n",
            expect![[r#"
                tools.toml:2:5: `x` in `[mcp_servers]`: expected a table, found a whole number
                  |
                2 | x = •
                  |     ^"#]],
        );
        check(
            "[[tools]]\n",
            expect![[r#"
                tools.toml:1:3: `tools` is one table, not a list: write it as `[…]`
                  |
                1 | [[tools]]
                  |   ^^^^^"#]],
        );
        check(
            "tools = [[]]\n",
            expect![[r#"
                tools.toml:1:1: `tools` is one table, not a list: write it as `[…]`
                  |
                1 | tools = [[]]
                  | ^^^^^"#]],
        );
        check(
            "mcp_servers.x = ['a']\n",
            expect![[r#"
                tools.toml:1:13: `x` is one table, not a list: write it as `[…]`
                  |
                1 | mcp_servers.x = ['•']
                  |             ^"#]],
        );
        check(
            "[[mcp_servers.x]]\ncommand = 'a'\n",
            expect![[r#"
                tools.toml:1:15: `x` is one table, not a list: write it as `[…]`
                  |
                1 | [[mcp_servers.x]]
                  |               ^"#]],
        );
        check(
            "tools = 1\n",
            expect![[r#"
                tools.toml:1:9: `tools`: expected a table, found a whole number
                  |
                1 | tools = 1
                  |         ^"#]],
        );
        check(
            "[mcp_servers.x]\ncommand = 'a'\ntool_timeout_sec = 0\n",
            expect![[r#"
                tools.toml:3:20: `tool_timeout_sec` in `[mcp_servers.x]`: must be more than 0 and at most a year
                  |
                3 | tool_timeout_sec = 0
                  |                    ^"#]],
        );
        check(
            "[mcp_servers.x]\ncommand = 'a'\nstartup_timeout_sec = 1e300\n",
            expect![[r#"
                tools.toml:3:23: `startup_timeout_sec` in `[mcp_servers.x]`: must be more than 0 and at most a year
                  |
                3 | startup_timeout_sec = 1e300
                  |                       ^^^^^"#]],
        );
        check(
            "[approvals]\ntimeout_ms = 0\n",
            expect![[r#"
                tools.toml:2:14: `timeout_ms` in `[approvals]`: must be more than 0 and at most a year
                  |
                2 | timeout_ms = 0
                  |              ^"#]],
        );
        check(
            "[commands.x]\ndescription = 'no program'\n",
            expect![[r#"
                tools.toml:1:1: `[commands.x]` lacks the key `run`
                  |
                1 | [commands.x]
                  | ^^^^^^^^^^^^"#]],
        );
    }

    #[test]
    fn c4_what_is_no_toml_is_shown_with_its_place() {
        check(
            "this is [not valid",
            expect![[r#"
                tools.toml:1:6: not valid TOML: key with no value, expected `=`
                  |
                1 | this is [not valid
                  |      ^"#]],
        );
        check(
            "[tools\ncore = []\n",
            expect![[r#"
                tools.toml:1:7: not valid TOML: unclosed table, expected `]`
                  |
                1 | [tools
                  |       ^"#]],
        );
        check(
            "[mcp_servers.x]\ncommand = C:/dir\n",
            expect![[r#"
                tools.toml:2:11: not valid TOML: string values must be quoted, expected literal string; for example `key = "value"`
                  |
                2 | command = C:/dir
                  |           ^^^^^^"#]],
        );
        check(
            "[mcp_servers.x]\ncommand = \"C:\\dir\"\n",
            expect![[r#"
                tools.toml:2:15: not valid TOML: missing escaped value, expected `b`, `e`, `f`, `n`, `r`, `\`, `"`, `x`, `u`, `U`; a backslash is written `\\`, or use single quotes
                  |
                2 | command = "C:\dir"
                  |               ^"#]],
        );
        check(
            "[tools]\r\nbatch = maybe\r\n",
            expect![[r#"
                tools.toml:2:9: not valid TOML: string values must be quoted, expected literal string; for example `key = "value"`
                  |
                2 | batch = maybe
                  |         ^^^^^"#]],
        );
        check(
            "[tools]\ncore = [",
            expect![[r#"
                tools.toml:2:9: not valid TOML: unclosed array, expected `]`
                  |
                2 | core = [
                  |         ^"#]],
        );
        check(
            "\u{feff}[tools]\nbatch = 1\n",
            expect![[r#"
                tools.toml:2:9: `batch` in `[tools]`: expected true or false, found a whole number
                  |
                2 | batch = 1
                  |         ^"#]],
        );
        check("\u{feff}[tools]\nbatch = true\n", expect!["fine"]);
        expect![[r#"
            tools.toml:2:6: is not valid UTF-8; save the file as UTF-8
              |
            2 | # caf�
              |      ^"#]]
        .assert_eq(&error_of(b"[tools]\n# caf\xe9\n"));
        expect![[r#"
            tools.toml:1:1: is UTF-16; save the file as UTF-8
              |
            1 | ��[�t�
              | ^"#]]
        .assert_eq(&error_of(b"\xff\xfe[\0t\0"));
    }

    #[test]
    fn s73_what_is_there_twice_names_both_places() {
        check(
            "[tools]\nbatch = true\n\nbatch = false\n",
            expect![[r#"
                tools.toml:4:1: key or table `batch` is there twice: first on line 2, column 1
                  |
                4 | batch = false
                  | ^^^^^"#]],
        );
        check(
            "[mcp_servers.x]\ncommand = 'a'\n\n[mcp_servers.x]\ncommand = 'b'\n",
            expect![[r#"
                tools.toml:4:14: key or table `x` is there twice: first on line 1, column 14
                  |
                4 | [mcp_servers.x]
                  |              ^"#]],
        );
        check(
            "[commands.'a b']\nrun = ['a']\n[commands.\"a b\"]\nrun = ['b']\n",
            expect![[r#"
                tools.toml:3:11: key or table `a b` is there twice: first on line 1, column 11
                  |
                3 | [commands."a b"]
                  |           ^^^^^"#]],
        );
        check(
            "tools.batch = true\n[tools]\n",
            expect![[r#"
                tools.toml:2:2: key or table `tools` is there twice: first on line 1, column 1
                  |
                2 | [tools]
                  |  ^^^^^"#]],
        );
        check(
            "mcp_servers.x = { command = 'a', command = 'b' }\n",
            expect![[r#"
                tools.toml:1:34: key or table `command` is there twice: first on line 1, column 19
                  |
                1 | mcp_servers.x = { ••••••• = '•', ••••••• = '•' }
                  |                                  ^^^^^^^"#]],
        );
        check(
            "[commands.lint]\nrun = ['a']\n\n[commands.Lint]\nrun = ['b']\n",
            expect![[r#"
                tools.toml:4:11: command `Lint` differs from `lint` on line 1, column 11 only in upper and lower case
                  |
                4 | [commands.Lint]
                  |           ^^^^"#]],
        );
        check(
            "[mcp_servers]\nx = { command = 'a' }\nX = { command = 'a' }\n",
            expect![[r#"
                tools.toml:3:1: server `X` differs from `x` on line 2, column 1 only in upper and lower case
                  |
                3 | X = { ••••••• = '•' }
                  | ^"#]],
        );
        check(
            "[hooks.guard]\nrun = ['a']\n[hooks.Guard]\nrun = ['b']\n",
            expect![[r#"
                tools.toml:3:8: hook `Guard` differs from `guard` on line 1, column 8 only in upper and lower case
                  |
                3 | [hooks.Guard]
                  |        ^^^^^"#]],
        );
        check("[mcp_servers.x]\ncommand = 'a'\n[commands.x]\nrun = ['a']\n", expect!["fine"]);
    }

    #[test]
    fn c4_checks_across_keys_name_the_place() {
        check(
            "[mcp_servers.x]\nargs = ['a']\n",
            expect![[r#"
                tools.toml:1:14: server `x` needs a `command` or a `url`
                  |
                1 | [mcp_servers.x]
                  |              ^"#]],
        );
        check(
            "[mcp_servers.x]\ncommand = 'a'\nurl = 'http://h'\n",
            expect![[r#"
                tools.toml:3:1: server `x` has both `command` and `url`; it can be reached one way only
                  |
                3 | url = '••••:•••'
                  | ^^^"#]],
        );
        check(
            "[mcp_servers.x]\ncommand = ''\n",
            expect![[r#"
                tools.toml:2:1: server `x` has an empty `command`
                  |
                2 | command = ''
                  | ^^^^^^^"#]],
        );
        check(
            "[mcp_servers.'']\ncommand = 'a'\n",
            expect![[r#"
                tools.toml:1:14: a server needs a name
                  |
                1 | [mcp_servers.'']
                  |              ^^"#]],
        );
        check(
            "[tools.limits]\n\"a_*\" = 0\n",
            expect![[r#"
                tools.toml:2:1: `a_*` in `[tools.limits]`: must be more than 0 and at most a year
                  |
                2 | "a_*" = •
                  | ^^^^^"#]],
        );
        check(
            "[tools]\nsession_mode = 'chta'\n",
            expect![[r#"
                tools.toml:2:1: `session_mode` in `[tools]`: there is no mode `chta`; did you mean `chat`?
                  |
                2 | session_mode = 'chta'
                  | ^^^^^^^^^^^^"#]],
        );
        check("[tools]\nsession_mode = 'mine'\n[modes.mine]\n", expect!["fine"]);
        check(
            "[policy.rules]\n'a[' = 'deny'\n",
            expect![[r#"
                tools.toml:2:1: `a[` is no valid pattern: unclosed character class; missing ']'
                  |
                2 | 'a[' = '••••'
                  | ^^^^"#]],
        );
        check(
            "[policy]\nallow = ['ok', '']\n",
            expect![[r#"
                tools.toml:2:1: an empty pattern: it has to be a name or a glob
                  |
                2 | allow = ['ok', '']
                  | ^^^^^"#]],
        );
    }

    #[test]
    fn c4_a_hook_that_cannot_work_is_shown_with_its_place() {
        check("[hooks.x]\nrun = ['a']\ntools = ['m/*', 'file_?']\n", expect!["fine"]);
        check(
            "[hooks.'']\nrun = ['a']\n",
            expect![[r#"
                tools.toml:1:8: a hook needs a name
                  |
                1 | [hooks.'']
                  |        ^^"#]],
        );
        check(
            "[hooks.x]\non = 'after'\n",
            expect![[r#"
                tools.toml:1:1: `[hooks.x]` lacks the key `run`
                  |
                1 | [hooks.x]
                  | ^^^^^^^^^"#]],
        );
        check(
            "[hooks.x]\nrun = []\n",
            expect![[r#"
                tools.toml:2:1: `run` in `[hooks.x]` names no program: its first element is empty or missing
                  |
                2 | run = []
                  | ^^^"#]],
        );
        check(
            "[hooks.x]\nrun = ['', 'a']\n",
            expect![[r#"
                tools.toml:2:1: `run` in `[hooks.x]` names no program: its first element is empty or missing
                  |
                2 | run = ['', '•']
                  | ^^^"#]],
        );
        check(
            "[hooks.x]\nrun = ['a']\non = 'during'\n",
            expect![[r#"
                tools.toml:3:6: `on` in `[hooks.x]`: unknown value `during`, known are `before`, `after`
                  |
                3 | on = 'during'
                  |      ^^^^^^^^"#]],
        );
        check(
            "[hooks.x]\nrun = ['a']\ntools = ['m/*', 'a[']\n",
            expect![[r#"
                tools.toml:3:1: `tools` in `[hooks.x]` holds a bad pattern `a[`: error parsing glob 'a[': unclosed character class; missing ']'
                  |
                3 | tools = ['m/*', 'a[']
                  | ^^^^^"#]],
        );
        check(
            "[hooks.x]\nrun = ['a']\ntools = ['m/']\n",
            expect![[r#"
                tools.toml:3:1: `tools` in `[hooks.x]` holds a bad pattern `m/`: write a tool name, `SOURCE/TOOL`, or a glob
                  |
                3 | tools = ['m/']
                  | ^^^^^"#]],
        );
        check(
            "[hooks.x]\nrun = ['a']\ntools = [' ']\n",
            expect![[r#"
                tools.toml:3:1: `tools` in `[hooks.x]` holds an empty pattern: it has to be a name or a glob
                  |
                3 | tools = [' ']
                  | ^^^^^"#]],
        );
        check(
            "[hooks.x]\nrun = ['a']\ntools = []\n",
            expect![[r#"
                tools.toml:3:1: `tools` in `[hooks.x]` is empty, so the hook would never be asked; leave it out for all tools
                  |
                3 | tools = []
                  | ^^^^^"#]],
        );
        check(
            "[hooks.x]\nrun = ['a']\ntimeout_ms = 0\n",
            expect![[r#"
                tools.toml:3:1: `timeout_ms` in `[hooks.x]` must be more than 0 and at most a year
                  |
                3 | timeout_ms = 0
                  | ^^^^^^^^^^"#]],
        );
        check(
            "[hooks.x]\nrun = ['a']\ntimeout_ms = 99999999999999\n",
            expect![[r#"
                tools.toml:3:1: `timeout_ms` in `[hooks.x]` must be more than 0 and at most a year
                  |
                3 | timeout_ms = 99999999999999
                  | ^^^^^^^^^^"#]],
        );
        check(
            "[hooks.x]\nrun = ['a']\nenv = { 'A=B' = 'sk-live-1' }\n",
            expect![[r#"
                tools.toml:3:1: `env` in `[hooks.x]` holds a name or a value that no environment can
                  |
                3 | env = { '•=•' = '•••••••••' }
                  | ^^^"#]],
        );
        check(
            "[hooks.x]\nrun = ['a']\nunusable = 'x'\n",
            expect![[r#"
                tools.toml:3:1: unknown key `unusable` in `[hooks.x]`; known are `run`, `on`, `tools`, `timeout_ms`, `cwd`, `env`
                  |
                3 | unusable = '•'
                  | ^^^^^^^^"#]],
        );
        check(
            "[[hooks.x]]\nrun = ['a']\n",
            expect![[r#"
                tools.toml:1:9: `x` is one table, not a list: write it as `[…]`
                  |
                1 | [[hooks.x]]
                  |         ^"#]],
        );
    }

    #[test]
    fn sec_01_values_are_blackened_in_the_line() {
        check(
            "[mcp_servers.x.env]\nTOKEN = sk-live-1\n",
            expect![[r#"
                tools.toml:2:9: not valid TOML: string values must be quoted, expected literal string; for example `key = "value"`
                  |
                2 | TOKEN = •••••••••
                  |         ^^^^^^^^^"#]],
        );
        check(
            "[mcp_servers.x.env]\nTOKEN = \"sk-live-1\n",
            expect![[r#"
                tools.toml:2:19: not valid TOML: invalid basic string, expected `"`
                  |
                2 | TOKEN = "•••••••••
                  |                   ^"#]],
        );
        check(
            "[mcp_servers.x]\nargs = \"--key=sk-live-1\"\n",
            expect![[r#"
                tools.toml:2:8: `args` in `[mcp_servers.x]`: expected a list, found a string
                  |
                2 | args = "•••••=•••••••••"
                  |        ^^^^^^^^^^^^^^^^^"#]],
        );
        check(
            "[mcp_servers.x]\nargs = [\n  \"sk-live-1\"\n  \"more\"\n]\n",
            expect![[r#"
                tools.toml:4:3: not valid TOML: missing comma between array elements, expected `,`
                  |
                4 |   "••••"
                  |   ^"#]],
        );
        check(
            "[mcp_servers.x]\nenv = { A = \"sk-live-1\", B = 2 }\n",
            expect![[r#"
                tools.toml:2:30: `B` in `[mcp_servers.x.env]`: expected a string, found a whole number
                  |
                2 | env = { • = "•••••••••", • = • }
                  |                              ^"#]],
        );
        check(
            "[mcp_servers.x.env]\nA = \"\"\"\nsk/live=1 \\q\n\"\"\"\n",
            expect![[r#"
                tools.toml:3:12: not valid TOML: missing escaped value, expected `b`, `e`, `f`, `n`, `r`, `\`, `"`, `x`, `u`, `U`; a backslash is written `\\`, or use single quotes
                  |
                3 | •••••••=• ••
                  |            ^"#]],
        );
        check(
            &format!("[tools]\nbatch = [{}]\n", "'abcdefgh', ".repeat(60)),
            expect![[r#"
                tools.toml:2:9: `batch` in `[tools]`: expected true or false, found a list
                  |
                2 | batch = ['abcdefgh', 'abcdefgh', 'abcdefgh', 'abcdefgh', 'abcdefgh', 'abcdefgh', 'abcdefgh', 'abcdefgh', 'abcdefgh', 'ab
                  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"#]],
        );
    }
}
