//! Reads servers from the JSON files of MCP clients: `mcpServers` and its relatives.
//!
//! Comments, trailing commas and a byte order mark are accepted, and every spelling that a client writes. Keys that mean
//! nothing here belong to the client: they are named in a note and ignored. An entry that makes no sense costs itself,
//! never the file. Nothing in such a file loosens what may run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use jsonc_parser::ast::{Object, ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::diagnose::{ConfigError, Source};
use super::tables::{LONGEST_LIMIT, McpServer};

/// The servers of one file, in its order.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ClientFile {
    pub(crate) servers: Vec<(String, Entry)>,
    pub(crate) warnings: Vec<String>,
    /// What was ignored: worth a line in a debug log.
    pub(crate) notes: Vec<String>,
}

/// A server, or why it cannot be one.
pub(crate) type Entry = Result<McpServer, String>;

/// Where clients keep their servers, as paths of keys.
const CONTAINERS: [&[&str]; 8] = [
    &["mcpServers"],
    &["servers"],
    &["context_servers"],
    &["mcp", "servers"],
    &["mcp", "mcpServers"],
    &["mcp"],
    &["mcp.servers"],
    &["amp.mcpServers"],
];

/// Keys that are another program's business, or that loosen what we do not loosen.
const OF_NO_CONCERN: [&str; 9] =
    ["alwaysAllow", "autoApprove", "description", "gallery", "name", "source", "title", "trust", "version"];

/// Keys that change how a server works, and that have no counterpart here.
const MISSED: [&str; 5] = ["auth", "authProviderType", "envFile", "headersHelper", "oauth"];

/// Reads a client's file.
pub(crate) fn parse(source: &Source) -> Result<ClientFile, ConfigError> {
    let strict = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let parsed = parse_to_ast(&source.text, &CollectOptions::default(), &strict).map_err(|error| {
        let span = error.range().start..error.range().end;
        source.error(span, format!("not valid JSON: {}", lower_first(&error.kind().to_string())))
    })?;
    let mut reader = Reader { source, file: ClientFile::default() };
    match &parsed.value {
        None => reader.file.warnings.push(format!("`{}` is empty", source.path.display())),
        Some(Value::Object(root)) => reader.root(root)?,
        Some(other) => return Err(source.error(span_of(other), "expected an object with `mcpServers`")),
    }
    Ok(reader.file)
}

/// The folder that editors mean by `${workspaceFolder}`: their own settings folders lie in it.
pub(crate) fn workspace_of(folder: &Path) -> PathBuf {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match folder.parent() {
        Some(parent) if [".vscode", ".cursor", ".zed", ".idea", ".roo", ".gemini"].contains(&name) => {
            parent.to_owned()
        }
        _ => folder.to_owned(),
    }
}

struct Reader<'a> {
    source: &'a Source,
    file: ClientFile,
}

impl Reader<'_> {
    fn root(&mut self, root: &Object<'_>) -> Result<(), ConfigError> {
        let mut is_found = false;
        for path in CONTAINERS {
            let Some(property) = descend(root, path) else { continue };
            let Some(container) = property.value.as_object() else {
                return Err(self.source.error(span_of(&property.value), "expected an object of servers"));
            };
            // `mcp` is a container itself only where none of the two inside it is there.
            if path == ["mcp"] && (container.get("servers").or(container.get("mcpServers"))).is_some() {
                continue;
            }
            is_found = true;
            self.container(container, path == ["mcp"]);
        }
        if !is_found && !root.properties.is_empty() {
            // Some plugins leave the wrapping object out.
            let is_server = |property: &ObjectProp<'_>| {
                property.value.as_object().is_some_and(|o| o.get("command").or(o.get("url")).is_some())
            };
            if !root.properties.iter().all(is_server) {
                let start = root.range.start;
                return Err(self.source.error(
                    start..start + 1,
                    "holds no servers: expected `mcpServers`, `servers`, `context_servers` or `mcp`",
                ));
            }
            self.container(root, false);
        }
        if self.file.servers.is_empty() {
            self.file.warnings.push(format!("`{}` holds no servers", self.source.path.display()));
        }
        Ok(())
    }

    fn container(&mut self, container: &Object<'_>, is_opencode: bool) {
        for property in &container.properties {
            let name = property.name.as_str().to_owned();
            let entry = match &property.value {
                Value::Object(entry) => self.server(&name, entry, is_opencode),
                other => Err(self.expected("the entry", "an object", other)),
            };
            let fold = name.to_lowercase();
            if let Some((known, _)) = self.file.servers.iter().find(|(known, _)| known.to_lowercase() == fold)
            {
                let place = self.place(property.range.start);
                self.file
                    .warnings
                    .push(format!("server `{name}` ({place}) is ignored: `{known}` came first"));
                continue;
            }
            self.file.servers.push((name, entry));
        }
    }

    fn server(&mut self, name: &str, entry: &Object<'_>, is_opencode: bool) -> Entry {
        let mut server = McpServer::default();
        let mut transport = None;
        let mut ignored = Vec::new();
        for property in &entry.properties {
            let value = &property.value;
            match property.name.as_str() {
                "command" => self.command(&mut server, value)?,
                "args" => server.args.extend(self.texts("args", value)?),
                "env" | "environment" => server.env.extend(self.map("env", value)?),
                "cwd" | "workingDirectory" => server.cwd = self.text("cwd", value)?,
                "type" | "transport" | "transportType" => {
                    transport = self.text("type", value)?.map(|text| (text, value));
                }
                "url" | "serverUrl" | "httpUrl" | "endpoint" => server.url = self.text("url", value)?,
                "headers" | "requestInit" => server.http_headers.extend(self.headers(value)?),
                "disabled" => server.enabled &= !self.boolean("disabled", value)?,
                "enabled" => server.enabled &= self.boolean("enabled", value)?,
                "includeTools" | "enabledTools" | "tools" => {
                    let tools = self.texts("tools", value)?;
                    server.enabled_tools = (!tools.iter().any(|tool| tool == "*")).then_some(tools);
                }
                "excludeTools" | "disabledTools" => {
                    server.disabled_tools.extend(self.texts("disabledTools", value)?);
                }
                "timeout" => match timeout(value) {
                    Some(limit) => server.tool_timeout = limit,
                    None => ignored.push("timeout"),
                },
                key if OF_NO_CONCERN.contains(&key) => {}
                key if MISSED.contains(&key) => {
                    let place = self.place(property.range.start);
                    self.file
                        .warnings
                        .push(format!("`{key}` of server `{name}` ({place}) has no effect here"));
                }
                key => ignored.push(key),
            }
        }
        if !ignored.is_empty() {
            let place = self.place(entry.range.start);
            self.file.notes.push(format!("server `{name}` ({place}): ignored {}", ignored.join(", ")));
        }
        self.settle_transport(name, &mut server, transport, entry)?;
        if is_opencode {
            translate_opencode(&mut server);
        }
        Ok(server)
    }

    /// A program, a program with its arguments, or (older Zed) an object of both.
    fn command(&mut self, server: &mut McpServer, value: &Value<'_>) -> Result<(), String> {
        match value {
            Value::Array(_) => {
                let mut words = self.texts("command", value)?.into_iter();
                server.command = words.next();
                // Before `args`, whichever of the two is written first.
                server.args.splice(0..0, words);
            }
            Value::Object(command) => {
                for property in &command.properties {
                    match property.name.as_str() {
                        "path" => server.command = self.text("command.path", &property.value)?,
                        "args" => server.args.extend(self.texts("command.args", &property.value)?),
                        "env" => server.env.extend(self.map("command.env", &property.value)?),
                        _ => {}
                    }
                }
            }
            _ => server.command = self.text("command", value)?,
        }
        Ok(())
    }

    /// Decides between `command` and `url`; an empty string counts as absent.
    fn settle_transport(
        &mut self,
        name: &str,
        server: &mut McpServer,
        transport: Option<(String, &Value<'_>)>,
        entry: &Object<'_>,
    ) -> Result<(), String> {
        let not_empty = |text: &String| !text.trim().is_empty();
        server.command = server.command.take().filter(not_empty);
        server.url = server.url.take().filter(not_empty);
        let place = self.place(entry.range.start);
        let kind = transport.as_ref().map(|(kind, _)| kind.to_lowercase().replace(['-', '_'], ""));
        match kind.as_deref() {
            Some("stdio" | "local" | "command") => server.url = None,
            Some("http" | "streamablehttp" | "remote" | "url") => server.command = None,
            Some("sse") => {
                server.command = None;
                let warning = format!("server `{name}` ({place}) is of type `sse`: tried as Streamable HTTP");
                self.file.warnings.push(warning);
            }
            None => {}
            Some(_) => {
                let (kind, value) = transport.unzip();
                let place = value.map_or(place, |value| self.place(value.range().start));
                return Err(format!("unknown type `{}` ({place})", kind.unwrap_or_default()));
            }
        }
        match (&server.command, &server.url) {
            (Some(_), Some(_)) => Err(format!("has both `command` and `url`, and no `type` ({place})")),
            (None, None) => Err(format!("has neither a `command` nor a `url` ({place})")),
            (Some(_), None) | (None, Some(_)) => Ok(()),
        }
    }

    /// Headers, also where they are wrapped as fetch options.
    fn headers(&self, value: &Value<'_>) -> Result<IndexMap<String, String>, String> {
        let inner =
            value.as_object().and_then(|object| object.get("headers")).map(|property| &property.value);
        match inner {
            Some(headers @ Value::Object(_)) => self.map("headers", headers),
            _ => self.map("headers", value),
        }
    }

    fn text(&self, key: &str, value: &Value<'_>) -> Result<Option<String>, String> {
        match value {
            Value::NullKeyword(_) => Ok(None),
            Value::StringLit(text) => Ok(Some(text.value.clone().into_owned())),
            other => Err(self.expected(key, "a string", other)),
        }
    }

    fn boolean(&self, key: &str, value: &Value<'_>) -> Result<bool, String> {
        match value {
            Value::BooleanLit(literal) => Ok(literal.value),
            other => Err(self.expected(key, "true or false", other)),
        }
    }

    fn texts(&self, key: &str, value: &Value<'_>) -> Result<Vec<String>, String> {
        match value {
            Value::NullKeyword(_) => Ok(Vec::new()),
            Value::Array(list) => list
                .elements
                .iter()
                .map(|item| scalar(item).ok_or_else(|| self.expected(key, "a list of strings", item)))
                .collect(),
            other => Err(self.expected(key, "a list of strings", other)),
        }
    }

    fn map(&self, key: &str, value: &Value<'_>) -> Result<IndexMap<String, String>, String> {
        match value {
            Value::NullKeyword(_) => Ok(IndexMap::new()),
            Value::Object(object) => object
                .properties
                .iter()
                .filter(|property| property.value.as_null_keyword().is_none())
                .map(|property| match scalar(&property.value) {
                    Some(text) => Ok((property.name.as_str().to_owned(), text)),
                    None => Err(self.expected(
                        &format!("{key}.{}", property.name.as_str()),
                        "a string",
                        &property.value,
                    )),
                })
                .collect(),
            other => Err(self.expected(key, "an object of strings", other)),
        }
    }

    fn expected(&self, key: &str, what: &str, value: &Value<'_>) -> String {
        let key = if key.contains(' ') { key.to_owned() } else { format!("`{key}`") };
        format!("{key} must be {what} ({})", self.place(value.range().start))
    }

    fn place(&self, offset: usize) -> String {
        let position = self.source.position(offset);
        format!("{}:{}:{}", self.source.path.display(), position.line, position.column)
    }
}

fn span_of(value: &Value<'_>) -> std::ops::Range<usize> {
    value.range().start..value.range().end
}

fn descend<'a, 'b>(object: &'b Object<'a>, path: &[&str]) -> Option<&'b ObjectProp<'a>> {
    let (last, above) = path.split_last()?;
    let mut object = object;
    for key in above {
        object = object.get(key)?.value.as_object()?;
    }
    object.get(last)
}

/// Strings, and what people write without quotes where a string is meant.
fn scalar(value: &Value<'_>) -> Option<String> {
    match value {
        Value::StringLit(text) => Some(text.value.clone().into_owned()),
        Value::NumberLit(number) => Some(number.value.to_owned()),
        Value::BooleanLit(literal) => Some(literal.value.to_string()),
        Value::Object(_) | Value::Array(_) | Value::NullKeyword(_) => None,
    }
}

/// Most clients write milliseconds, some seconds; nobody waits 1,000 s for a tool, nor less than a second.
fn timeout(value: &Value<'_>) -> Option<Duration> {
    let number: f64 = value.as_number_lit()?.value.parse().ok()?;
    let seconds = if number >= 1000.0 { number / 1000.0 } else { number };
    Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero() && *limit <= LONGEST_LIMIT)
}

/// opencode writes `{env:NAME}` and `{file:PATH}` where others write a dollar sign in front.
fn translate_opencode(server: &mut McpServer) {
    let texts = server
        .args
        .iter_mut()
        .chain(server.env.values_mut())
        .chain(server.http_headers.values_mut())
        .chain(&mut server.command)
        .chain(&mut server.cwd)
        .chain(&mut server.url);
    for text in texts {
        for prefix in ["{env:", "{file:"] {
            *text = text.replace(&format!("${prefix}"), prefix).replace(prefix, &format!("${prefix}"));
        }
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::config::diagnose::Notation;

    fn read(text: &str) -> Result<ClientFile, ConfigError> {
        parse(&Source::decode(Path::new("mcp.json"), text.into(), Notation::Json)?)
    }

    /// One line per server, then warnings and notes.
    fn check(text: &str, expected: Expect) {
        let shown = match read(text) {
            Err(error) => error.to_string(),
            Ok(file) => {
                let servers = file.servers.iter().map(|(name, entry)| match entry {
                    Ok(server) => format!("{name}: {}", brief(server)),
                    Err(reason) => format!("{name}: not usable: {reason}"),
                });
                let warnings = file.warnings.iter().map(|text| format!("warning: {text}"));
                let notes = file.notes.iter().map(|text| format!("note: {text}"));
                servers.chain(warnings).chain(notes).collect::<Vec<_>>().join("\n")
            }
        };
        expected.assert_eq(&shown);
    }

    /// What differs from a server without any settings.
    fn brief(server: &McpServer) -> String {
        let plain = McpServer::default();
        let mut parts = Vec::new();
        let mut part = |name: &str, differs: bool, value: String| {
            if differs {
                parts.push(format!("{name}={value}"));
            }
        };
        part(
            "command",
            server.command.is_some(),
            format!("{:?}", server.command.as_deref().unwrap_or_default()),
        );
        part("args", !server.args.is_empty(), format!("{:?}", server.args));
        part("env", !server.env.is_empty(), format!("{:?}", server.env));
        part("cwd", server.cwd.is_some(), format!("{:?}", server.cwd.as_deref().unwrap_or_default()));
        part("url", server.url.is_some(), format!("{:?}", server.url.as_deref().unwrap_or_default()));
        part("headers", !server.http_headers.is_empty(), format!("{:?}", server.http_headers));
        part("enabled", !server.enabled, "false".to_owned());
        part(
            "only",
            server.enabled_tools.is_some(),
            format!("{:?}", server.enabled_tools.as_deref().unwrap_or_default()),
        );
        part("without", !server.disabled_tools.is_empty(), format!("{:?}", server.disabled_tools));
        part("timeout", server.tool_timeout != plain.tool_timeout, format!("{:?}", server.tool_timeout));
        parts.join(" ")
    }

    #[test]
    fn cfg_03_comments_and_trailing_commas_are_accepted() {
        check(
            "\u{feff}// servers of this project\n{\n \"mcpServers\": {\n /* not now:\n \"off\": {},\n */\n \"alpha\": \
             {\"command\": \"a\", \"env\": {\"URL\": \"http://host//a/*b*/\"},}, // the only one\n },\n}\n",
            expect![[r#"alpha: command="a" env={"URL": "http://host//a/*b*/"}"#]],
        );
    }

    #[test]
    fn cfg_08_keys_of_clients_do_no_harm() {
        check(
            r#"{"mcpServers": {
                "alpha": {"type": "stdio", "transportType": "stdio", "command": "a", "disabled": false,
                    "autoApprove": ["echo"], "alwaysAllow": [], "timeout": 600, "gallery": true, "x-note": {"a": 1}},
                "beta": {"command": "b", "disabled": true},
                "gamma": {"command": "c", "enabled": false, "trust": true, "envFile": ".env"}
            }, "inputs": [], "other": 1}"#,
            expect![[r#"
                alpha: command="a" timeout=600s
                beta: command="b" enabled=false
                gamma: command="c" enabled=false
                warning: `envFile` of server `gamma` (mcp.json:5:76) has no effect here
                note: server `alpha` (mcp.json:2:26): ignored x-note"#]],
        );
    }

    #[test]
    fn s73_every_clients_spelling_is_read() {
        check(
            r#"{"servers": {"a": {"type": "stdio", "command": "a", "args": ["${workspaceFolder}"]}}}"#,
            expect![[r#"a: command="a" args=["${workspaceFolder}"]"#]],
        );
        check(
            r#"{"theme": "x", "context_servers": {"new": {"source": "custom", "command": "a", "args": ["b"], "env": null},
                "old": {"command": {"path": "a", "args": ["b"], "env": {"A": "1"}}, "settings": {}}}}"#,
            expect![[r#"
                new: command="a" args=["b"]
                old: command="a" args=["b"] env={"A": "1"}
                note: server `old` (mcp.json:2:24): ignored settings"#]],
        );
        check(
            r#"{"$schema": "x", "mcp": {"l": {"type": "local", "command": ["npx", "-y", "p"], "enabled": true,
                "environment": {"T": "{env:TOKEN}", "U": "${env:TOKEN}", "F": "{file:~/t}"}, "timeout": 5000},
                "r": {"type": "remote", "url": "https://h/mcp", "headers": {"Authorization": "Bearer {env:T}"}}}}"#,
            expect![[r#"
                l: command="npx" args=["-y", "p"] env={"T": "${env:TOKEN}", "U": "${env:TOKEN}", "F": "${file:~/t}"} timeout=5s
                r: url="https://h/mcp" headers={"Authorization": "Bearer ${env:T}"}"#]],
        );
        check(
            r#"{"mcp": {"inputs": [], "servers": {"a": {"command": "a"}}}}"#,
            expect![[r#"a: command="a""#]],
        );
        check(r#"{"mcp.servers": {"a": {"command": "a"}}}"#, expect![[r#"a: command="a""#]]);
        check(
            r#"{"mcpServers": {"w": {"serverUrl": "https://h/1"}, "g": {"httpUrl": "https://h/2", "includeTools": ["x"],
                "excludeTools": ["y"], "timeout": 1500}, "s": {"type": "sse", "url": "https://h/sse"},
                "h": {"type": "streamable-http", "url": "https://h/3", "command": "", "tools": ["*"]},
                "t": {"type": "streamableHttp", "url": "https://h/4"}}}"#,
            expect![[r#"
                w: url="https://h/1"
                g: url="https://h/2" only=["x"] without=["y"] timeout=1.5s
                s: url="https://h/sse"
                h: url="https://h/3"
                t: url="https://h/4"
                warning: server `s` (mcp.json:2:63) is of type `sse`: tried as Streamable HTTP"#]],
        );
        check(
            r#"{"mcpServers": {"a": {"command": "a", "args": ["-p", 8080, true],
                "env": {"N": 12345678901234567890, "F": 1.0, "B": true, "Z": null}}}}"#,
            expect![[
                r#"a: command="a" args=["-p", "8080", "true"] env={"N": "12345678901234567890", "F": "1.0", "B": "true"}"#
            ]],
        );
        check(
            r#"{"a": {"command": "a"}, "b": {"url": "https://h"}}"#,
            expect![[r#"
                a: command="a"
                b: url="https://h""#]],
        );
        check("{}", expect!["warning: `mcp.json` holds no servers"]);
        check("// nothing\n", expect!["warning: `mcp.json` is empty"]);
        check(r#"{"mcpServers": {}}"#, expect!["warning: `mcp.json` holds no servers"]);
    }

    #[test]
    fn s73_a_broken_entry_costs_itself_only() {
        check(
            r#"{"mcpServers": {
                "a": {"command": 1}, "b": {"args": []}, "c": {"command": "c", "args": "x y"}, "d": 7,
                "e": {"command": "e", "env": {"A": [1]}}, "f": {"command": "f", "url": "https://h"},
                "g": {"type": "carrier-pigeon", "command": "g"}, "h": {"type": "http", "command": "h"},
                "i": {"command": "i", "disabled": "yes"}, "j": {"command": "j", "timeout": -1},
                "ok": {"command": "ok"}, "OK": {"command": "other"}
            }}"#,
            expect![[r#"
                a: not usable: `command` must be a string (mcp.json:2:34)
                b: not usable: has neither a `command` nor a `url` (mcp.json:2:43)
                c: not usable: `args` must be a list of strings (mcp.json:2:87)
                d: not usable: the entry must be an object (mcp.json:2:100)
                e: not usable: `env.A` must be a string (mcp.json:3:52)
                f: not usable: has both `command` and `url`, and no `type` (mcp.json:3:64)
                g: not usable: unknown type `carrier-pigeon` (mcp.json:4:31)
                h: not usable: has neither a `command` nor a `url` (mcp.json:4:71)
                i: not usable: `disabled` must be true or false (mcp.json:5:51)
                j: command="j"
                ok: command="ok"
                warning: server `OK` (mcp.json:6:42) is ignored: `ok` came first
                note: server `j` (mcp.json:5:64): ignored timeout"#]],
        );
    }

    #[test]
    fn s73_a_broken_file_is_shown_with_its_place() {
        check(
            "{\"mcpServers\": {\n  \"a\": {\"command\": \"a\" \"args\": []}\n}}",
            expect![[r#"
                mcp.json:2:23: not valid JSON: expected comma
                  |
                2 |   "a": {"•••••••": "•" "••••": []}
                  |                       ^"#]],
        );
        check(
            "{\n \"mcpServers\": {\"a\": {\"command\": \"a\"}",
            expect![[r#"
                mcp.json:2:16: not valid JSON: unterminated object
                  |
                2 |  "mcpServers": {"•": {"•••••••": "•"}
                  |                ^^^^^^^^^^^^^^^^^^^^^^"#]],
        );
        check(
            "{\"mcpServers\": {'a': {}}}",
            expect![[r#"
                mcp.json:1:17: not valid JSON: single-quoted strings are not allowed
                  |
                1 | {"mcpServers": {'•': {}}}
                  |                 ^"#]],
        );
        check(
            "{\"mcpServers\": {\"a\": {\"command\": \"a\", \"env\": {\"T\": sk-live-1}}}}",
            expect![[r#"
                mcp.json:1:52: not valid JSON: unexpected token
                  |
                1 | {"mcpServers": {"•": {"•••••••": "•", "•••": {"•": •••••••••}}}}
                  |                                                    ^^^^^^^^^"#]],
        );
        check(
            "[]",
            expect![[r#"
                mcp.json:1:1: expected an object with `mcpServers`
                  |
                1 | []
                  | ^^"#]],
        );
        check(
            "{\"mcpServers\": []}",
            expect![[r#"
                mcp.json:1:16: expected an object of servers
                  |
                1 | {"mcpServers": []}
                  |                ^^"#]],
        );
        check(
            "{\"theme\": \"dark\"}",
            expect![[r#"
                mcp.json:1:1: holds no servers: expected `mcpServers`, `servers`, `context_servers` or `mcp`
                  |
                1 | {"theme": "••••"}
                  | ^"#]],
        );
        check(
            "\u{0}",
            expect![[r#"
                mcp.json:1:1: not valid JSON: unexpected token
                  |
                1 | �
                  | ^"#]],
        );
    }

    #[test]
    fn the_workspace_is_above_the_settings_folder() {
        for (folder, workspace) in [("/p/.vscode", "/p"), ("/p/.cursor", "/p"), ("/p/x", "/p/x"), ("/", "/")]
        {
            assert_eq!(workspace_of(Path::new(folder)), Path::new(workspace));
        }
    }
}
