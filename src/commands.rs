//! Tools from `[commands.NAME]`: a program with typed parameters, run without a shell.

pub mod tool;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use indexmap::IndexMap;
use serde::de::{Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, de};
use serde_json::{Map, Value, json};

use crate::process::{self, Exit, RunError, RunSpec};
use crate::tools::claim_rule::ClaimRule;

/// Bytes kept of each output: more than any result shows, less than a flood needs to do harm.
const OUTPUT_CAP: usize = 1024 * 1024;

/// `[commands.NAME]` as it is written.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandConfig {
    /// The program, then its arguments; `{{param}}` stands for the value of a parameter.
    pub run: Vec<String>,
    /// What the model reads about it.
    #[serde(default)]
    pub description: Option<String>,
    /// The parameters, in the order in which they are shown.
    #[serde(default)]
    pub params: IndexMap<String, ParamConfig>,
    /// Declared to change nothing.
    #[serde(default)]
    pub read_only: bool,
    /// Always asks a person first.
    #[serde(default)]
    pub confirm: bool,
    /// Grants that a caller must hold.
    #[serde(default)]
    pub permissions: Vec<String>,
    /// Whether it may run beside others; absent leaves that to what else is known about it.
    #[serde(default)]
    pub parallel_safe: Option<bool>,
    /// What it touches, said in terms of its parameters; absent leaves that to what else is known about it.
    #[serde(default)]
    pub claim: Option<ClaimRule>,
    /// Its time limit in milliseconds.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Where it runs; the gateway's working directory when absent.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Variables beside the few that every child gets.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// One parameter. A bare type name is short for a table with nothing but `type`.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamConfig {
    /// What its values are.
    pub kind: ParamType,
    /// What the model reads about it.
    pub description: Option<String>,
    /// Whether a call must give it: yes, unless the table says otherwise or has a default.
    pub required: bool,
    /// Its value when it is not given.
    pub default: Option<Value>,
    /// The only values allowed, of an array its only items; empty allows all.
    pub choices: Vec<Value>,
}

/// The types of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParamType {
    /// Text.
    #[default]
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A list of texts, each of which becomes an argument.
    Array,
}

impl ParamType {
    /// The word for it in JSON Schema and in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            ParamType::String => "string",
            ParamType::Integer => "integer",
            ParamType::Number => "number",
            ParamType::Boolean => "boolean",
            ParamType::Array => "array",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParamTable {
    #[serde(default, rename = "type")]
    kind: ParamType,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    required: Option<bool>,
    #[serde(default)]
    default: Option<Value>,
    #[serde(default, rename = "enum")]
    choices: Vec<Value>,
}

impl From<ParamTable> for ParamConfig {
    fn from(table: ParamTable) -> ParamConfig {
        ParamConfig {
            kind: table.kind,
            description: table.description,
            required: table.required.unwrap_or(table.default.is_none()),
            default: table.default,
            choices: table.choices,
        }
    }
}

impl<'de> Deserialize<'de> for ParamConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ParamConfig, D::Error> {
        deserializer.deserialize_any(ParamVisitor)
    }
}

struct ParamVisitor;

impl<'de> Visitor<'de> for ParamVisitor {
    type Value = ParamConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a type, or a table with `type`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ParamConfig, E> {
        let kind = ParamType::deserialize(de::value::StrDeserializer::new(text))?;
        Ok(ParamConfig { kind, description: None, required: true, default: None, choices: Vec::new() })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ParamConfig, A::Error> {
        ParamTable::deserialize(MapAccessDeserializer::new(map)).map(ParamConfig::from)
    }
}

/// The schema of a command's arguments: an object with its parameters in their order and nothing else.
pub fn input_schema(command: &CommandConfig) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, param) in &command.params {
        properties.insert(name.clone(), param_schema(param));
        if param.required {
            required.push(name.as_str());
        }
    }
    let mut schema = json!({ "type": "object", "properties": properties });
    // An empty list is an error in the oldest drafts.
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema["additionalProperties"] = json!(false);
    schema
}

fn param_schema(param: &ParamConfig) -> Value {
    let mut schema = json!({ "type": param.kind.word() });
    if let Some(description) = &param.description {
        schema["description"] = json!(description);
    }
    match param.kind {
        ParamType::Array => {
            schema["items"] = json!({ "type": "string" });
            if !param.choices.is_empty() {
                schema["items"]["enum"] = json!(param.choices);
            }
        }
        ParamType::String | ParamType::Integer | ParamType::Number | ParamType::Boolean => {
            if !param.choices.is_empty() {
                schema["enum"] = json!(param.choices);
            }
        }
    }
    if let Some(default) = &param.default {
        schema["default"] = default.clone();
    }
    schema
}

/// Whether a command can work at all; the error begins with the place and ends with a hint.
pub fn check(name: &str, command: &CommandConfig) -> Result<(), String> {
    let place = format!("commands.{name}");
    let Some((program, templates)) = command.run.split_first() else {
        return Err(format!("{place}.run is empty: its first element is the program"));
    };
    if program.is_empty() {
        return Err(format!("{place}.run begins with an empty program name"));
    }
    if command.run.iter().any(|element| element.contains('\0')) {
        return Err(format!("{place}.run holds a NUL byte, which no argument can"));
    }
    if command
        .env
        .iter()
        .any(|(key, value)| key.is_empty() || key.contains(['=', '\0']) || value.contains('\0'))
    {
        return Err(format!("{place}.env holds a name or a value that no environment can"));
    }
    if command.timeout_ms == Some(0) {
        return Err(format!("{place}.timeout_ms is 0; leave it out for the usual limit"));
    }
    for (param, config) in &command.params {
        check_param(param, config).map_err(|problem| format!("{place}.params.{param} {problem}"))?;
    }
    if let Some(param) = pieces(program).find_map(Piece::param) {
        return Err(format!(
            "{place}.run takes its program from `{{{{{param}}}}}`; a call may only choose arguments"
        ));
    }
    for element in templates {
        for param in pieces(element).filter_map(Piece::param) {
            let Some(config) = command.params.get(param) else {
                let hint = match nearest(param, command) {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => format!("add `params.{param} = \"string\"`"),
                };
                return Err(format!("{place}.run uses `{{{{{param}}}}}`, which is not declared; {hint}"));
            };
            if config.kind == ParamType::Array && whole(element).is_none() {
                return Err(format!(
                    "{place}.run uses the array `{{{{{param}}}}}` inside `{element}`; give it an element of its own"
                ));
            }
        }
    }
    Ok(())
}

fn check_param(name: &str, param: &ParamConfig) -> Result<(), String> {
    if !is_name(name) {
        return Err("has a name that is not made of up to 64 letters, digits, `_` and `-`".to_owned());
    }
    if let Some(choice) = param.choices.iter().find(|choice| !fits_item(param.kind, choice)) {
        return Err(format!("allows {choice}, which is no {}", item_word(param.kind)));
    }
    match &param.default {
        Some(default) => value_problem(param, default)
            .map_or(Ok(()), |problem| Err(format!("has a default that {problem}"))),
        None => Ok(()),
    }
}

fn nearest<'a>(name: &str, command: &'a CommandConfig) -> Option<&'a str> {
    let declared = command.params.keys().map(String::as_str);
    declared.min_by_key(|declared| strsim::damerau_levenshtein(name, declared))
}

/// The program and its arguments for one call.
///
/// Every element of `run` gives exactly one argument, whatever the values hold, with two exceptions: an array that is an
/// element of its own gives one per item, and an element with a parameter that has no value gives none.
pub fn arguments(command: &CommandConfig, input: &Value) -> Result<Vec<String>, String> {
    let empty = Map::new();
    let given = match input {
        Value::Object(given) => given,
        Value::Null => &empty,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err("arguments must be an object".to_owned());
        }
    };
    let mut values = BTreeMap::new();
    for (name, param) in &command.params {
        if let Some(value) = value_of(name, param, given)? {
            values.insert(name.as_str(), value);
        }
    }
    if let Some(name) = given.keys().find(|name| !command.params.contains_key(*name)) {
        return Err(match nearest(name, command) {
            Some(nearest) => format!("there is no argument `{name}`; did you mean `{nearest}`?"),
            None => format!("there is no argument `{name}`: this tool takes none"),
        });
    }
    let mut line = Vec::with_capacity(command.run.len());
    for (at, element) in command.run.iter().enumerate() {
        match whole(element).and_then(|param| values.get(param)) {
            // The program is never chosen by a call, also where nobody has checked the configuration.
            _ if at == 0 => line.push(element.clone()),
            Some(Rendered::Many(items)) => line.extend(items.iter().cloned()),
            Some(Rendered::One(_)) | None => line.extend(rendered(element, &values)?),
        }
    }
    Ok(line)
}

/// A value as arguments.
enum Rendered {
    One(String),
    Many(Vec<String>),
}

fn value_of(name: &str, param: &ParamConfig, given: &Map<String, Value>) -> Result<Option<Rendered>, String> {
    let Some(value) = given.get(name).filter(|value| !value.is_null()).or(param.default.as_ref()) else {
        return if param.required { Err(format!("`{name}` is required")) } else { Ok(None) };
    };
    if let Some(problem) = value_problem(param, value) {
        return Err(format!("`{name}` {problem}"));
    }
    Ok(Some(match value {
        Value::Array(items) => Rendered::Many(items.iter().map(|item| text(param.kind, item)).collect()),
        value => Rendered::One(text(param.kind, value)),
    }))
}

/// One argument, or none if a parameter in it has no value.
fn rendered(element: &str, values: &BTreeMap<&str, Rendered>) -> Result<Option<String>, String> {
    let mut argument = String::with_capacity(element.len());
    for piece in pieces(element) {
        match piece {
            Piece::Text(text) => argument.push_str(text),
            Piece::Param(param) => match values.get(param) {
                Some(Rendered::One(value)) => argument.push_str(value),
                Some(Rendered::Many(_)) => {
                    return Err(format!("`{param}` is an array inside another argument"));
                }
                None => return Ok(None),
            },
        }
    }
    Ok(Some(argument))
}

/// What is wrong with a value, in words that follow the name of the parameter.
fn value_problem(param: &ParamConfig, value: &Value) -> Option<String> {
    let items: &[Value] = match (param.kind, value) {
        (ParamType::Array, Value::Array(items)) => items,
        (ParamType::Array, _) => return Some("is no array".to_owned()),
        _ => std::slice::from_ref(value),
    };
    items.iter().find_map(|item| {
        if !fits_item(param.kind, item) {
            Some(format!("holds {item}, which is no {}", item_word(param.kind)))
        } else if item.as_str().is_some_and(|text| text.contains('\0')) {
            Some("holds a NUL byte, which no argument can".to_owned())
        } else if !param.choices.is_empty() && !param.choices.contains(item) {
            let choices: Vec<String> = param.choices.iter().map(Value::to_string).collect();
            Some(format!("holds {item}, which is none of {}", choices.join(", ")))
        } else {
            None
        }
    })
}

fn fits_item(kind: ParamType, item: &Value) -> bool {
    match kind {
        ParamType::String | ParamType::Array => item.is_string(),
        ParamType::Integer => {
            item.is_i64() || item.is_u64() || item.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        ParamType::Number => item.is_number(),
        ParamType::Boolean => item.is_boolean(),
    }
}

fn item_word(kind: ParamType) -> &'static str {
    match kind {
        ParamType::Array => ParamType::String.word(),
        kind => kind.word(),
    }
}

fn text(kind: ParamType, value: &Value) -> String {
    match (value, value.as_f64()) {
        (Value::String(text), _) => text.clone(),
        // `2.0` is an integer to JSON Schema and none to most programs.
        (Value::Number(number), Some(whole)) if kind == ParamType::Integer && number.is_f64() => {
            format!("{whole:.0}")
        }
        _ => value.to_string(),
    }
}

/// A part of a template. Double braces around anything but a name, as in `{{.Names}}`, are text.
#[derive(Clone, Copy)]
enum Piece<'a> {
    Text(&'a str),
    Param(&'a str),
}

impl<'a> Piece<'a> {
    fn param(self) -> Option<&'a str> {
        match self {
            Piece::Param(name) => Some(name),
            Piece::Text(_) => None,
        }
    }
}

fn pieces(template: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = template;
    std::iter::from_fn(move || {
        let placeholder = rest.match_indices("}}").find_map(|(end, _)| {
            let start = rest[..end].rfind("{{")?;
            let name = rest[start + 2..end].trim();
            is_name(name).then_some((start, name, end + 2))
        });
        let piece;
        (piece, rest) = match placeholder {
            Some((0, name, end)) => (Piece::Param(name), &rest[end..]),
            Some((start, ..)) => (Piece::Text(&rest[..start]), &rest[start..]),
            None if rest.is_empty() => return None,
            None => (Piece::Text(rest), ""),
        };
        Some(piece)
    })
}

/// The parameter that makes up the whole of an element.
fn whole(element: &str) -> Option<&str> {
    let mut pieces = pieces(element);
    match (pieces.next(), pieces.next()) {
        (Some(Piece::Param(name)), None) => Some(name),
        _ => None,
    }
}

/// What every client takes as a property key.
fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// What a command printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// How it ended.
    pub exit: Exit,
    /// Its output, with a line for what was too much of it.
    pub stdout: String,
    /// Its error output, likewise.
    pub stderr: String,
}

impl CommandOutput {
    /// Both outputs for a reader; never empty.
    pub fn text(&self) -> String {
        shown(&self.stdout, &self.stderr)
    }

    /// The same as data: `exit_code`, `stdout`, `stderr`. After a signal `exit_code` is null and `signal` is its number.
    pub fn structured(&self) -> Value {
        let (stdout, stderr) = (&self.stdout, &self.stderr);
        match self.exit {
            Exit::Code(code) => json!({ "exit_code": code, "stdout": stdout, "stderr": stderr }),
            Exit::Signal(signal) => {
                json!({ "exit_code": null, "signal": signal, "stdout": stdout, "stderr": stderr })
            }
        }
    }
}

/// Why a command gave no result. The message holds what the model can use, printed text included.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandFailure {
    /// The arguments do not fit; nothing was run.
    #[error("{0}")]
    Arguments(String),
    /// It could not be run.
    #[error("{0}")]
    Start(String),
    /// It ran and said that it failed.
    #[error("{}\n{}", ended(.0.exit), .0.text())]
    Failed(CommandOutput),
    /// It was killed at its limit.
    #[error("it did not finish within {} ms and was killed; until then it printed:\n{}", .elapsed.as_millis(), shown(.stdout, .stderr))]
    Timeout {
        /// How long it ran.
        elapsed: Duration,
        /// What it had printed.
        stdout: String,
        /// What it had printed as errors.
        stderr: String,
    },
}

fn ended(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exit code {code}"),
        Exit::Signal(signal) => format!("killed by signal {signal}"),
    }
}

fn shown(stdout: &str, stderr: &str) -> String {
    let seam = if stdout.is_empty() || stdout.ends_with('\n') { "" } else { "\n" };
    match (stdout, stderr) {
        ("", "") => "(no output)".to_owned(),
        (_, "") => stdout.to_owned(),
        _ => format!("{stdout}{seam}[stderr]\n{stderr}"),
    }
}

/// Runs a command with the arguments of one call; dropping the future kills what it started.
pub async fn run_command(
    command: &CommandConfig,
    input: &Value,
    limit: Duration,
) -> Result<CommandOutput, CommandFailure> {
    let mut line =
        arguments(command, input).map_err(CommandFailure::Arguments)?.into_iter().map(OsString::from);
    let Some(program) = line.next() else {
        return Err(CommandFailure::Start("`run` is empty".to_owned()));
    };
    let mut env = process::base_environment();
    env.extend(command.env.iter().map(|(name, value)| (name.into(), value.into())));
    let spec = RunSpec {
        program,
        args: line.collect(),
        cwd: command.cwd.as_ref().map(PathBuf::from),
        env,
        input: Bytes::new(),
        limit,
        output_cap: OUTPUT_CAP,
    };
    let finished = process::run(spec).await.map_err(|error| match error {
        RunError::Timeout { elapsed, stdout, stderr } => {
            CommandFailure::Timeout { elapsed, stdout: stdout.text(), stderr: stderr.text() }
        }
        error @ (RunError::NotFound { .. } | RunError::Spawn(_)) => CommandFailure::Start(error.to_string()),
    })?;
    let output =
        CommandOutput { exit: finished.exit, stdout: finished.stdout.text(), stderr: finished.stderr.text() };
    match output.exit {
        Exit::Code(0) => Ok(output),
        Exit::Code(_) | Exit::Signal(_) => Err(CommandFailure::Failed(output)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str) -> CommandConfig {
        toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
    }

    const CLIPPY: &str = r#"
        run = ["cargo", "clippy", "--package={{package}}", "{{level}}", "--", "{{flags}}", "{{ jobs }}"]
        [params]
        package = "string"
        level = { enum = ["-q", "-v"], required = false, description = "How loud." }
        flags = { type = "array", default = ["-D", "warnings"] }
        jobs = { type = "integer", default = 2 }
    "#;

    #[test]
    fn the_schema_follows_the_declaration() {
        let expected = r#"{"type":"object","properties":{"package":{"type":"string"},"level":{"type":"string","description":"How loud.","enum":["-q","-v"]},"flags":{"type":"array","items":{"type":"string"},"default":["-D","warnings"]},"jobs":{"type":"integer","default":2}},"required":["package"],"additionalProperties":false}"#;
        assert_eq!(input_schema(&command(CLIPPY)).to_string(), expected);
        let expected = r#"{"type":"object","properties":{},"additionalProperties":false}"#;
        assert_eq!(input_schema(&command("run = [\"true\"]")).to_string(), expected);
    }

    #[test]
    fn mistakes_in_the_file_are_named() {
        let check = |text: &str, expected: &str| {
            let error = toml::from_str::<CommandConfig>(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("run = ['a']\nparms = {}", "unknown field `parms`");
        check("run = ['a']\nparams.x = 'text'", "unknown variant `text`");
        check("run = ['a']\nparams.x = { typ = 'string' }", "unknown field `typ`");
        check("run = ['a']\nparams.x = 3", "the name of a type, or a table with `type`");
        check("description = 'x'", "missing field `run`");
    }

    #[test]
    fn a_command_that_cannot_work_is_refused() {
        let check = |text: &str, expected: &str| {
            let answer = super::check("lint", &command(text)).err().unwrap_or_default();
            assert_eq!(answer, expected, "{text}");
        };
        check(CLIPPY, "");
        check("run = ['docker', 'ps', '--format', '{{.Names}} {{json .}} {{ }} {{']", "");
        check("run = ['a']\nparams.unused = 'string'", "");
        check("run = []", "commands.lint.run is empty: its first element is the program");
        check("run = ['']", "commands.lint.run begins with an empty program name");
        check(
            "run = ['a', 'x{{pakage}}']\nparams = { level = 'string', package = 'string' }",
            "commands.lint.run uses `{{pakage}}`, which is not declared; did you mean `package`?",
        );
        check(
            "run = ['a', '{{b}}']",
            "commands.lint.run uses `{{b}}`, which is not declared; add `params.b = \"string\"`",
        );
        check(
            "run = ['{{p}}']\nparams.p = 'string'",
            "commands.lint.run takes its program from `{{p}}`; a call may only choose arguments",
        );
        check(
            "run = ['a', '-x={{p}}']\nparams.p = 'array'",
            "commands.lint.run uses the array `{{p}}` inside `-x={{p}}`; give it an element of its own",
        );
        check(
            "run = ['a']\nparams.p = { type = 'integer', default = 'x' }",
            "commands.lint.params.p has a default that holds \"x\", which is no integer",
        );
        check(
            "run = ['a']\nparams.p = { enum = ['x'], default = 'y' }",
            "commands.lint.params.p has a default that holds \"y\", which is none of \"x\"",
        );
        check(
            "run = ['a']\nparams.p = { enum = [1] }",
            "commands.lint.params.p allows 1, which is no string",
        );
        check(
            "run = ['a']\nparams.'a b' = 'string'",
            "commands.lint.params.a b has a name that is not made of up to 64 letters, digits, `_` and `-`",
        );
        check("run = [\"a\\u0000\"]", "commands.lint.run holds a NUL byte, which no argument can");
        check(
            "run = ['a']\nenv = { 'A=B' = 'x' }",
            "commands.lint.env holds a name or a value that no environment can",
        );
        check(
            "run = ['a']\ntimeout_ms = 0",
            "commands.lint.timeout_ms is 0; leave it out for the usual limit",
        );
    }

    #[test]
    fn each_element_is_one_argument() {
        let check = |text: &str, input: Value, expected: &[&str]| {
            let line = arguments(&command(text), &input).expect("they fit");
            assert_eq!(line, expected, "{input}");
        };
        check(
            CLIPPY,
            json!({ "package": "a b" }),
            &["cargo", "clippy", "--package=a b", "--", "-D", "warnings", "2"],
        );
        check(
            CLIPPY,
            json!({ "package": "'\"$(rm)\n;--help", "level": "-q", "flags": [], "jobs": 5.0 }),
            &["cargo", "clippy", "--package='\"$(rm)\n;--help", "-q", "--", "5"],
        );
        check(
            CLIPPY,
            json!({ "package": "{{level}}", "level": null, "flags": ["", "-x y"], "jobs": 18_446_744_073_709_551_615_u64 }),
            &["cargo", "clippy", "--package={{level}}", "--", "", "-x y", "18446744073709551615"],
        );
        let pair = "run = ['a', '{{x}}:{{y}}', '{{{x}}}', '{{.X}}']\nparams = { x = 'number', y = { type = 'boolean', required = false } }";
        check(pair, json!({ "x": 1.5, "y": true }), &["a", "1.5:true", "{1.5}", "{{.X}}"]);
        check(pair, json!({ "x": 2.0 }), &["a", "{2.0}", "{{.X}}"]);
        check("run = ['a', '']", Value::Null, &["a", ""]);
        // Nobody has checked this one, and still a call does not choose the program.
        check("run = ['{{p}}']\nparams.p = 'string'", json!({ "p": "rm" }), &["{{p}}"]);
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let check = |input: Value, expected: &str| {
            assert_eq!(arguments(&command(CLIPPY), &input), Err(expected.to_owned()), "{input}");
        };
        check(json!({}), "`package` is required");
        check(json!({ "package": null }), "`package` is required");
        check(json!([]), "arguments must be an object");
        check(json!({ "package": 1 }), "`package` holds 1, which is no string");
        check(json!({ "package": ["a"] }), "`package` holds [\"a\"], which is no string");
        check(json!({ "package": "a\0b" }), "`package` holds a NUL byte, which no argument can");
        check(
            json!({ "package": "a", "flags": ["a\0b"] }),
            "`flags` holds a NUL byte, which no argument can",
        );
        check(json!({ "package": "a", "flags": "-D" }), "`flags` is no array");
        check(json!({ "package": "a", "flags": [1] }), "`flags` holds 1, which is no string");
        check(
            json!({ "package": "a", "level": "-x" }),
            "`level` holds \"-x\", which is none of \"-q\", \"-v\"",
        );
        check(json!({ "package": "a", "jobs": 1.5 }), "`jobs` holds 1.5, which is no integer");
        check(json!({ "package": "a", "jbs": 1 }), "there is no argument `jbs`; did you mean `jobs`?");
    }

    #[cfg(unix)]
    mod processes {
        use super::*;

        /// Long enough for a loaded machine, short enough to notice a hang.
        const SOON: Duration = Duration::from_secs(5);

        async fn run(text: &str, input: Value, limit: Duration) -> Result<CommandOutput, CommandFailure> {
            tokio::time::timeout(SOON, run_command(&command(text), &input, limit)).await.expect("it hangs")
        }

        #[tokio::test]
        async fn nothing_in_a_value_is_ever_interpreted() {
            let text = "run = ['/bin/sh', '-c', 'printf \"%s|\" \"$#\" \"$@\"', 'sh', '{{x}}', '{{rest}}']
                params = { x = 'string', rest = 'array' }";
            for x in ["$(rm)", "`id`", "a b\n'c' \"d\"", "--help", "; exit 3", "*", "\\n", "é\u{1F980}", ""]
            {
                let output = run(text, json!({ "x": x, "rest": [x, "last"] }), SOON).await.expect("it runs");
                assert_eq!(output.stdout, format!("3|{x}|{x}|last|"));
            }
        }

        #[tokio::test]
        async fn both_outputs_are_told_apart() {
            let output = run("run = ['sh', '-c', 'printf out; echo err >&2']", json!({}), SOON)
                .await
                .expect("it runs");
            assert_eq!(output.text(), "out\n[stderr]\nerr\n");
            assert_eq!(output.structured(), json!({ "exit_code": 0, "stdout": "out", "stderr": "err\n" }));
            let output = run("run = ['true']", json!({}), SOON).await.expect("it runs");
            assert_eq!(output.text(), "(no output)");
        }

        #[tokio::test]
        async fn a_failure_carries_what_was_printed() {
            let script = "run = ['sh', '-c', 'echo out; echo err >&2; exit 3']";
            let failure = run(script, json!({}), SOON).await.expect_err("it fails");
            assert_eq!(failure.to_string(), "exit code 3\nout\n[stderr]\nerr\n");
            let failure =
                run("run = ['sh', '-c', 'kill -9 $$']", json!({}), SOON).await.expect_err("it fails");
            assert_eq!(failure.to_string(), "killed by signal 9\n(no output)");
            let CommandFailure::Failed(output) = failure else { panic!("{failure}") };
            let expected = json!({ "exit_code": null, "signal": 9, "stdout": "", "stderr": "" });
            assert_eq!(output.structured(), expected);
        }

        #[tokio::test]
        async fn an_overrun_carries_what_was_printed_so_far() {
            let script = "run = ['sh', '-c', 'echo so far; sleep 60']";
            let failure = run(script, json!({}), Duration::from_millis(300)).await.expect_err("it overruns");
            let CommandFailure::Timeout { elapsed, stdout, stderr } = failure else { panic!("{failure}") };
            assert!(elapsed >= Duration::from_millis(300));
            assert_eq!((stdout.as_str(), stderr.as_str()), ("so far\n", ""));
        }

        #[tokio::test]
        async fn place_and_variables_are_those_of_the_table() {
            let script = "run = ['sh', '-c', 'pwd; echo $GREETING']\ncwd = '/'\nenv.GREETING = 'hello'";
            assert_eq!(run(script, json!({}), SOON).await.expect("it runs").stdout, "/\nhello\n");
        }

        #[tokio::test]
        async fn a_missing_program_is_named() {
            let failure = run("run = ['no-such-program']", json!({}), SOON).await.expect_err("it is missing");
            let expected = "there is no program `no-such-program`; is it installed and on the PATH?";
            assert_eq!(failure, CommandFailure::Start(expected.to_owned()));
        }
    }
}
