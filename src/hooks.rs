//! Hooks from `[hooks.NAME]`: programs that are asked before or after a call, and must answer well.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::process::{self, Captured, Exit, Finished, RunError, RunSpec};
use crate::tools::hook::{After, Before, Hook, HookCall};
use crate::tools::json::{ObjectWriter, RawJson, RawObject};
use crate::tools::scoped::policy::{Pattern, patterns};
use crate::tools::service::{ToolDefinition, ToolOutput};

/// Bytes of an answer before a call: arguments are seldom longer, and a flood ends somewhere.
const BEFORE_CAP: usize = 8 * 1024 * 1024;

/// Bytes of an answer after a call: a result of 32 MiB, with the spaces and escapes that the hook may add.
const AFTER_CAP: usize = 64 * 1024 * 1024;

/// Bytes of a hook's errors that reach the log.
const LOGGED_ERRORS: usize = 4 * 1024;

/// A year, as for every limit: longer ones are slips of the keyboard, and overflow clocks.
const LONGEST_LIMIT_MS: u64 = 365 * 24 * 60 * 60 * 1000;

/// `[hooks.NAME]` as it is written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookConfig {
    /// The program, then its arguments; no shell.
    pub run: Vec<String>,
    /// When it is asked. Default: before a call.
    #[serde(default)]
    pub on: HookEvent,
    /// Patterns of the tools that it is asked about. Default: all.
    #[serde(default = "all_tools")]
    pub tools: Vec<String>,
    /// How long it may take to answer. Default: 5000.
    #[serde(default = "usual_limit")]
    pub timeout_ms: u64,
    /// Where it runs; the gateway's working directory when absent.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Variables beside the few that every child gets.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Why it cannot be asked, in words that the model may read. It then refuses every call that it concerns.
    #[serde(skip)]
    pub unusable: Option<String>,
}

fn all_tools() -> Vec<String> {
    vec!["*".to_owned()]
}

fn usual_limit() -> u64 {
    5000
}

/// When a hook is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookEvent {
    /// Before the tool runs.
    #[default]
    Before,
    /// Once it has run, before the client sees the result.
    After,
}

impl HookEvent {
    /// The word for it in the configuration and in what the program reads.
    pub fn word(self) -> &'static str {
        match self {
            HookEvent::Before => "before",
            HookEvent::After => "after",
        }
    }
}

/// What is wrong with a `[hooks.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookProblem {
    /// The key to which it belongs.
    pub key: &'static str,
    /// What it is, with the key and the table.
    pub message: String,
}

/// Whether a hook can work at all.
///
/// # Errors
/// The first thing that it cannot work with.
pub fn check(name: &str, config: &HookConfig) -> Result<(), HookProblem> {
    let fail = |key: &'static str, what: &str| {
        Err(HookProblem { key, message: format!("`{key}` in `[hooks.{name}]` {what}") })
    };
    if config.run.first().is_none_or(String::is_empty) {
        return fail("run", "names no program: its first element is empty or missing");
    }
    if config.run.iter().any(|word| word.contains('\0')) {
        return fail("run", "holds a NUL byte, which no argument can");
    }
    if config.tools.is_empty() {
        return fail("tools", "is empty, so the hook would never be asked; leave it out for all tools");
    }
    if config.tools.iter().any(|text| text.trim().is_empty()) {
        return fail("tools", "holds an empty pattern: it has to be a name or a glob");
    }
    if let Err(why) = patterns(&config.tools) {
        return fail("tools", &format!("holds a {why}"));
    }
    if !(1..=LONGEST_LIMIT_MS).contains(&config.timeout_ms) {
        return fail("timeout_ms", "must be more than 0 and at most a year");
    }
    let is_variable = |(key, value): (&String, &String)| {
        !key.is_empty() && !key.contains(['=', '\0']) && !value.contains('\0')
    };
    if !config.env.iter().all(is_variable) {
        return fail("env", "holds a name or a value that no environment can");
    }
    Ok(())
}

/// The hooks of a configuration, in its order.
///
/// # Errors
/// What is wrong with the first one that cannot work, in words for the operator.
pub fn hooks(configs: &IndexMap<String, HookConfig>) -> Result<Vec<Arc<dyn Hook>>, String> {
    let hook = |(name, config): (&String, &HookConfig)| {
        check(name, config).map_err(|problem| problem.message)?;
        let tools = patterns(&config.tools)?;
        let hook: Arc<dyn Hook> = Arc::new(ProgramHook { name: name.clone(), tools, config: config.clone() });
        Ok(hook)
    };
    configs.iter().map(hook).collect()
}

/// A program that is asked about calls. Whatever it does but answer well refuses the call.
pub struct ProgramHook {
    name: String,
    tools: Vec<Pattern>,
    config: HookConfig,
}

impl Hook for ProgramHook {
    fn name(&self) -> &str {
        &self.name
    }

    fn concerns(&self, tool: &ToolDefinition) -> bool {
        self.tools.iter().any(|pattern| pattern.matches(tool))
    }

    fn before<'a>(&'a self, call: HookCall<'a>) -> BoxFuture<'a, Before> {
        Box::pin(async move {
            // Also if it is asked after a call: nothing of the result could be shown.
            if let Some(why) = &self.config.unusable {
                return Before::Deny { reason: self.refusal(&not_usable(why)) };
            }
            if self.config.on != HookEvent::Before {
                return Before::Allow;
            }
            let asked = self.ask(call, None).await;
            let before = asked.and_then(|answer| self.understood(&answer, before_of(&answer)));
            before.unwrap_or_else(|why| Before::Deny { reason: self.refusal(&why) })
        })
    }

    fn after<'a>(&'a self, call: HookCall<'a>, output: &'a ToolOutput) -> BoxFuture<'a, After> {
        Box::pin(async move {
            if let Some(why) = &self.config.unusable {
                return After::Block { reason: self.refusal(&not_usable(why)) };
            }
            if self.config.on != HookEvent::After {
                return After::Keep;
            }
            let asked = self.ask(call, Some(output)).await;
            let after = asked.and_then(|answer| self.understood(&answer, after_of(&answer)));
            after.unwrap_or_else(|why| After::Block { reason: self.refusal(&why) })
        })
    }
}

fn not_usable(why: &str) -> String {
    format!("is not usable: {why}")
}

impl ProgramHook {
    fn refusal(&self, what: &str) -> String {
        format!("hook `{}` {what}", self.name)
    }

    /// What the program answered. An error is what the model may know of it; the log has the rest.
    async fn ask(&self, call: HookCall<'_>, output: Option<&ToolOutput>) -> Result<Bytes, String> {
        let mut words = self.config.run.iter().map(OsString::from);
        let mut env = process::base_environment();
        env.extend(self.config.env.iter().map(|(name, value)| (name.into(), value.into())));
        let spec = RunSpec {
            program: words.next().unwrap_or_default(),
            args: words.collect(),
            cwd: self.config.cwd.as_ref().map(PathBuf::from),
            env,
            input: Bytes::from(question(self.config.on, call, output)),
            limit: Duration::from_millis(self.config.timeout_ms),
            output_cap: match self.config.on {
                HookEvent::Before => BEFORE_CAP,
                HookEvent::After => AFTER_CAP,
            },
        };
        let Finished { exit, stdout, stderr } = process::run(spec).await.map_err(|error| {
            let (stderr, what) = match &error {
                RunError::Timeout { stderr, .. } => {
                    (shortened(stderr), format!("did not answer within {} ms", self.config.timeout_ms))
                }
                RunError::NotFound { .. } | RunError::Spawn(_) => {
                    (String::new(), "could not be run".to_owned())
                }
            };
            tracing::warn!(hook = %self.name, tool = %call.tool.name, %stderr, "a hook failed: {error}");
            what
        })?;
        let failure = match exit {
            Exit::Code(0) => None,
            Exit::Code(code) => Some(format!("failed with exit code {code}")),
            Exit::Signal(signal) => Some(format!("was ended by signal {signal}")),
        };
        let stderr = shortened(&stderr);
        match (failure, stdout.whole()) {
            (None, Some(answer)) => {
                tracing::debug!(hook = %self.name, tool = %call.tool.name, %stderr, "a hook answered");
                Ok(Bytes::from(answer))
            }
            (failure, _) => {
                let what = failure.unwrap_or_else(|| "gave an answer that is too long".to_owned());
                tracing::warn!(hook = %self.name, tool = %call.tool.name, %stderr, "a hook {what}");
                Err(what)
            }
        }
    }

    /// Leaves to the log why an answer means nothing: the model cannot do anything about it.
    fn understood<T>(&self, answer: &Bytes, meaning: Result<T, String>) -> Result<T, String> {
        meaning.map_err(|why| {
            tracing::warn!(hook = %self.name, bytes = answer.len(), "a hook gave no valid answer: {why}");
            "gave no valid answer".to_owned()
        })
    }
}

fn shortened(stderr: &Captured) -> String {
    let mut short = Captured::new(LOGGED_ERRORS);
    short.push(stderr.text().trim().as_bytes());
    short.text()
}

/// What the program reads: one object and a line break; for an error of the protocol `error`, no `result`.
fn question(event: HookEvent, call: HookCall<'_>, output: Option<&ToolOutput>) -> Vec<u8> {
    let (key, output) = match output {
        None => ("", None),
        Some(ToolOutput::Result(result)) => ("result", Some(result)),
        Some(ToolOutput::RpcError(error)) => ("error", Some(error)),
    };
    let length = call.input.raw.len() + output.map_or(0, RawJson::len);
    let mut question = ObjectWriter::with_capacity(length + 512);
    question
        .string("event", event.word())
        .string("tool", &call.tool.name)
        .string("source", call.tool.source.label())
        .string("original", &call.tool.original)
        .raw("arguments", call.input.raw.as_bytes())
        .string("client", &call.turn.client)
        .string("session", &call.turn.session_id);
    if let Some(output) = output {
        question.raw(key, output.as_bytes());
    }
    let mut text = question.finish();
    text.push(b'\n');
    text
}

/// What the program writes. Values that are passed on stay text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer<'a> {
    decision: Decision,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default, borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Allow,
    Deny,
    Block,
    Rewrite,
    Replace,
}

fn answer_of(text: &Bytes) -> Result<Answer<'_>, String> {
    // Asked first, because serde would take a list for the values in their order.
    if text.trim_ascii_start().first() != Some(&b'{') {
        return Err("it is no JSON object".to_owned());
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

fn before_of(text: &Bytes) -> Result<Before, String> {
    let Answer { decision, reason, arguments, result } = answer_of(text)?;
    match (decision, reason, arguments, result) {
        (Decision::Allow, None, None, None) => Ok(Before::Allow),
        (Decision::Deny, Some(reason), None, None) => Ok(Before::Deny { reason }),
        (Decision::Block, Some(reason), None, None) => Ok(Before::Block { reason }),
        (Decision::Rewrite, None, Some(arguments), None) if arguments.get().starts_with('{') => {
            Ok(Before::Rewrite(RawJson::slice(text, arguments)))
        }
        (Decision::Rewrite, ..) => Err("`rewrite` needs `arguments`, an object, and nothing else".to_owned()),
        (Decision::Replace, ..) => Err("there is no result yet to replace".to_owned()),
        (Decision::Allow | Decision::Deny | Decision::Block, ..) => Err(misplaced(decision)),
    }
}

fn after_of(text: &Bytes) -> Result<After, String> {
    let Answer { decision, reason, arguments, result } = answer_of(text)?;
    match (decision, reason, arguments, result) {
        (Decision::Allow, None, None, None) => Ok(After::Keep),
        (Decision::Deny | Decision::Block, Some(reason), None, None) => Ok(After::Block { reason }),
        (Decision::Replace, None, None, Some(result)) if is_result(result) => {
            Ok(After::Replace(ToolOutput::Result(RawJson::slice(text, result))))
        }
        (Decision::Replace, ..) => {
            Err("`replace` needs `result`, an object with a list `content`, and nothing else".to_owned())
        }
        (Decision::Rewrite, ..) => Err("the arguments have been used already".to_owned()),
        (Decision::Allow | Decision::Deny | Decision::Block, ..) => Err(misplaced(decision)),
    }
}

fn misplaced(decision: Decision) -> String {
    match decision {
        Decision::Allow => "`allow` stands alone".to_owned(),
        Decision::Deny | Decision::Block | Decision::Rewrite | Decision::Replace => {
            "a refusal needs a `reason` and nothing else".to_owned()
        }
    }
}

fn is_result(result: &RawValue) -> bool {
    RawObject::parse(result.get().as_bytes())
        .is_ok_and(|object| object.get("content").is_some_and(|content| content.get().starts_with('[')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::service::{Input, Source, ToolMetadata, Turn};

    fn config(text: &str) -> HookConfig {
        toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// The only hook of this configuration; it is called `guard`.
    fn hook(config: HookConfig) -> Arc<dyn Hook> {
        hooks(&IndexMap::from([("guard".to_owned(), config)])).unwrap().remove(0)
    }

    fn tool() -> ToolDefinition {
        let source = Source::Mcp("m".into());
        let mut tool =
            ToolDefinition::new("m_plain", "d", RawJson::EMPTY_OBJECT, source, ToolMetadata::default());
        tool.original = "plain".into();
        tool
    }

    fn input(raw: impl Into<Bytes>) -> Input {
        Input::new(RawJson::parse(raw).unwrap()).unwrap()
    }

    async fn before(hook: &dyn Hook, input: &Input) -> Before {
        hook.before(HookCall { tool: &tool(), input, turn: &Turn::detached() }).await
    }

    async fn after(hook: &dyn Hook, output: &ToolOutput) -> After {
        hook.after(HookCall { tool: &tool(), input: &input("{}"), turn: &Turn::detached() }, output).await
    }

    fn result(text: impl Into<Bytes>) -> ToolOutput {
        ToolOutput::Result(RawJson::parse(text).unwrap())
    }

    #[test]
    fn answers_before_a_call() {
        let check = |answer: &'static str, expected: Before| {
            assert_eq!(before_of(&Bytes::from(answer)), Ok(expected), "{answer}");
        };
        let reason = || "no".to_owned();
        check(r#"{"decision":"allow"}"#, Before::Allow);
        check(" {\"decision\": \"allow\"}\r\n", Before::Allow);
        check(r#"{"decision":"deny","reason":"no"}"#, Before::Deny { reason: reason() });
        check(r#"{"reason":"no","decision":"block"}"#, Before::Block { reason: reason() });
        let arguments = r#"{"z":12345678901234567890123,"a":1.0}"#;
        let text = format!(r#"{{"decision":"rewrite","arguments": {arguments} }}"#);
        assert_eq!(before_of(&Bytes::from(text)), Ok(Before::Rewrite(RawJson::parse(arguments).unwrap())));

        for answer in NONSENSE.iter().chain(&[
            r#"{"decision":"rewrite"}"#,
            r#"{"decision":"rewrite","arguments":null}"#,
            r#"{"decision":"rewrite","arguments":[]}"#,
            r#"{"decision":"rewrite","arguments":{},"reason":"no"}"#,
            r#"{"decision":"allow","arguments":{}}"#,
            r#"{"decision":"replace","result":{"content":[]}}"#,
        ]) {
            assert!(before_of(&Bytes::from(*answer)).is_err(), "{answer}");
        }
        let no_text = &b"{\"decision\":\"rewrite\",\"arguments\":{\"a\":\"\xff\"}}"[..];
        assert!(before_of(&Bytes::from(no_text)).is_err());
    }

    #[test]
    fn answers_after_a_call() {
        let check = |answer: &'static str, expected: After| {
            assert_eq!(after_of(&Bytes::from(answer)), Ok(expected), "{answer}");
        };
        let reason = || "no".to_owned();
        check(r#"{"decision":"allow"}"#, After::Keep);
        check(r#"{"decision":"deny","reason":"no"}"#, After::Block { reason: reason() });
        check(r#"{"decision":"block","reason":"no"}"#, After::Block { reason: reason() });
        check(
            r#"{"decision":"replace","result":{"x":1.0,"content":[]}}"#,
            After::Replace(result(r#"{"x":1.0,"content":[]}"#)),
        );
        for answer in NONSENSE.iter().chain(&[
            r#"{"decision":"replace"}"#,
            r#"{"decision":"replace","result":[]}"#,
            r#"{"decision":"replace","result":{}}"#,
            r#"{"decision":"replace","result":{"content":{}}}"#,
            r#"{"decision":"replace","result":{"content":[]},"arguments":{}}"#,
            r#"{"decision":"rewrite","arguments":{}}"#,
        ]) {
            assert!(after_of(&Bytes::from(*answer)).is_err(), "{answer}");
        }
    }

    /// What is an answer neither before nor after a call.
    const NONSENSE: &[&str] = &[
        "",
        "\n",
        "ok",
        "null",
        "\"allow\"",
        "{}",
        "[\"allow\",null,null,null]",
        r#"{"decision":"allow""#,
        r#"{"decision":"allow"} {"decision":"allow"}"#,
        r#"{"decision":"deny","decision":"allow","reason":"no"}"#,
        r#"{"decision":"Allow"}"#,
        r#"{"decision":"approve"}"#,
        r#"{"decision":true}"#,
        r#"{"decision":null}"#,
        r#"{"decision":"allow","why":"x"}"#,
        r#"{"decision":"allow","reason":"x"}"#,
        r#"{"decision":"deny"}"#,
        r#"{"decision":"block","reason":7}"#,
    ];

    #[test]
    fn what_cannot_work_is_named() {
        let check_error = |text: &str, key: &str, expected: &str| {
            let config = config(text);
            let problem = check("x", &config).unwrap_err();
            assert_eq!((problem.key, problem.message.as_str()), (key, expected), "{text}");
            let built = hooks(&IndexMap::from([("x".to_owned(), config)])).map(|hooks| hooks.len());
            assert_eq!(built, Err(problem.message));
        };
        let no_program = "`run` in `[hooks.x]` names no program: its first element is empty or missing";
        check_error("run = []", "run", no_program);
        check_error("run = ['']", "run", no_program);
        check_error(
            "run = ['a', \"\\u0000\"]",
            "run",
            "`run` in `[hooks.x]` holds a NUL byte, which no argument can",
        );
        check_error(
            "run = ['a']\ntools = ['ok', 'm/']",
            "tools",
            "`tools` in `[hooks.x]` holds a bad pattern `m/`: write a tool name, `SOURCE/TOOL`, or a glob",
        );
        let limit = "`timeout_ms` in `[hooks.x]` must be more than 0 and at most a year";
        check_error("run = ['a']\ntimeout_ms = 0", "timeout_ms", limit);
        check_error("run = ['a']\ntimeout_ms = 9223372036854775807", "timeout_ms", limit);
        let variable = "`env` in `[hooks.x]` holds a name or a value that no environment can";
        check_error("run = ['a']\nenv = { '' = 'b' }", "env", variable);
    }

    #[test]
    fn a_hook_concerns_what_its_patterns_mean() {
        let concerns = |tools: &str| hook(config(&format!("run = ['a']\n{tools}"))).concerns(&tool());
        assert!(concerns(""));
        assert!(concerns("tools = ['x', 'm/pl*']"));
        assert!(!concerns("tools = ['plain', 'n/plain']"));
    }

    #[tokio::test]
    async fn a_hook_that_is_not_usable_refuses_before_anything_has_happened() {
        for on in ["before", "after"] {
            let why = Some("the environment variable `NOPE` is not set".to_owned());
            let hook = hook(HookConfig { unusable: why, ..config(&format!("run = ['true']\non = '{on}'")) });
            let reason = "hook `guard` is not usable: the environment variable `NOPE` is not set".to_owned();
            assert_eq!(before(&*hook, &input("{}")).await, Before::Deny { reason: reason.clone() }, "{on}");
            assert_eq!(after(&*hook, &ToolOutput::text("x")).await, After::Block { reason }, "{on}");
        }
    }

    #[cfg(unix)]
    mod processes {
        use std::fs;
        use std::time::Instant;

        use super::*;

        /// Long enough for a loaded machine, short enough to notice a hang.
        const SOON: Duration = Duration::from_secs(20);

        fn shell(on: &str, script: &str, rest: &str) -> Arc<dyn Hook> {
            hook(config(&format!("run = ['/bin/sh', '-c', '''{script}''']\non = '{on}'\n{rest}")))
        }

        fn deny(what: &str) -> Before {
            Before::Deny { reason: format!("hook `guard` {what}") }
        }

        fn block(what: &str) -> After {
            After::Block { reason: format!("hook `guard` {what}") }
        }

        #[tokio::test]
        async fn s63_whatever_is_no_good_answer_refuses_the_call() {
            let check = async |script: &str, expected: Before| {
                let hook = shell("before", script, "");
                let found = tokio::time::timeout(SOON, before(&*hook, &input(r#"{"a":1}"#))).await;
                assert_eq!(found.expect("it hangs"), expected, "{script}");
            };
            let reason = || "not on \"Sunday\"".to_owned();
            check(r#"echo '{"decision":"allow"}'"#, Before::Allow).await;
            check(r#"echo noise >&2; echo '{"decision":"allow"}'"#, Before::Allow).await;
            check(
                r#"echo '{"decision":"deny","reason":"not on \"Sunday\""}'"#,
                Before::Deny { reason: reason() },
            )
            .await;
            check(
                r#"echo '{"decision":"block","reason":"not on \"Sunday\""}'"#,
                Before::Block { reason: reason() },
            )
            .await;
            check(
                r#"echo '{"decision":"rewrite","arguments":{"b":2.0}}'"#,
                Before::Rewrite(RawJson::parse(r#"{"b":2.0}"#).unwrap()),
            )
            .await;

            let invalid = || deny("gave no valid answer");
            check("true", invalid()).await;
            check("echo yes", invalid()).await;
            check(r#"echo '{"decision":"approve"}'"#, invalid()).await;
            check(r#"echo '{"decision":"allow"}{"decision":"allow"}'"#, invalid()).await;
            check(r#"printf '{"decision":"deny","reason":"\377"}'"#, invalid()).await;
            check(r#"echo '{"decision":"allow"}' >&2"#, invalid()).await;
            let failed = |code| deny(&format!("failed with exit code {code}"));
            check(r#"echo '{"decision":"allow"}'; echo "$PWD" >&2; exit 1"#, failed(1)).await;
            check(r#"echo '{"decision":"allow"}'; exit 3"#, failed(3)).await;
            let killed = deny("was ended by signal 9");
            check(r#"echo '{"decision":"allow"}'; kill -9 $$"#, killed).await;
            let too_long = deny("gave an answer that is too long");
            check(r#"head -c 9000000 /dev/zero | tr '\0' ' '; echo '{"decision":"allow"}'"#, too_long).await;
        }

        #[tokio::test]
        async fn after_a_call_it_sees_and_may_replace_the_result() {
            let check = async |script: &str, expected: After| {
                let hook = shell("after", script, "");
                let output = result(r#"{"content":[],"n":12345678901234567890123}"#);
                let found = tokio::time::timeout(SOON, after(&*hook, &output)).await;
                assert_eq!(found.expect("it hangs"), expected, "{script}");
            };
            check(r#"echo '{"decision":"allow"}'"#, After::Keep).await;
            check(
                r#"sed 's/.*"result":/{"decision":"replace","result":/; s/"content"/"x":1.0,"content"/'"#,
                After::Replace(result(r#"{"x":1.0,"content":[],"n":12345678901234567890123}"#)),
            )
            .await;
            for word in ["block", "deny"] {
                let script = format!(r#"echo '{{"decision":"{word}","reason":"no"}}'"#);
                check(&script, After::Block { reason: "no".to_owned() }).await;
            }
            check(r#"echo '{"decision":"replace","result":{}}'"#, block("gave no valid answer")).await;
            check("exit 1", block("failed with exit code 1")).await;
        }

        #[tokio::test]
        async fn each_hook_is_asked_at_its_time_only() {
            let hook = shell("after", "exit 1", "");
            assert_eq!(before(&*hook, &input("{}")).await, Before::Allow);
            let hook = shell("before", "exit 1", "");
            assert_eq!(after(&*hook, &ToolOutput::text("x")).await, After::Keep);
        }

        #[tokio::test]
        async fn the_program_reads_the_whole_call_with_numbers_as_they_were() {
            let folder = tempfile::tempdir().unwrap();
            let rest = format!("cwd = '{}'\nenv = {{ WORD = 'hello' }}", folder.path().display());
            let seen = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
            let script = r#"cat > "$WORD"; echo '{"decision":"allow"}'"#;
            let arguments = input(r#"{"z": 123456789012345678901234567890, "a":1.0, "z2":[1E5]}"#);
            assert_eq!(before(&*shell("before", script, &rest), &arguments).await, Before::Allow);
            let expected = concat!(
                r#"{"event":"before","tool":"m_plain","source":"m","original":"plain","arguments":"#,
                r#"{"z": 123456789012345678901234567890, "a":1.0, "z2":[1E5]},"#,
                r#""client":"local","session":"local"}"#,
                "\n"
            );
            assert_eq!(seen("hello"), expected);

            let hook = shell("after", script, &rest);
            assert_eq!(after(&*hook, &result(r#"{"content":[] ,"n":1.50}"#)).await, After::Keep);
            let expected = concat!(
                r#"{"event":"after","tool":"m_plain","source":"m","original":"plain","arguments":{},"#,
                r#""client":"local","session":"local","result":{"content":[] ,"n":1.50}}"#,
                "\n"
            );
            assert_eq!(seen("hello"), expected);
            let error = ToolOutput::RpcError(RawJson::parse(r#"{"code":-1}"#).unwrap());
            assert_eq!(after(&*hook, &error).await, After::Keep);
            assert!(seen("hello").ends_with("\"session\":\"local\",\"error\":{\"code\":-1}}\n"));
        }

        #[tokio::test]
        async fn arguments_come_back_from_a_rewrite_as_they_went() {
            let script = r#"sed 's/.*"arguments":\({[^}]*}\).*/{"decision":"rewrite","arguments":\1}/'"#;
            let arguments = input(r#"{"n":123456789012345678901234567890,"f":1.0}"#);
            let found = before(&*shell("before", script, ""), &arguments).await;
            assert_eq!(found, Before::Rewrite(arguments.raw));
        }

        #[tokio::test]
        async fn a_hook_need_not_read_a_large_argument() {
            let arguments = input(format!(r#"{{"a":"{}"}}"#, "x".repeat(1024 * 1024)));
            for start in ["", "exec <&-;", "head -c 1 >&2;"] {
                let hook = shell("before", &format!(r#"{start} echo '{{"decision":"allow"}}'"#), "");
                let found = tokio::time::timeout(SOON, before(&*hook, &arguments)).await;
                assert_eq!(found.expect("it hangs"), Before::Allow, "{start}");
            }
            let hook = shell("before", "exec sleep 60", "timeout_ms = 200");
            let found = tokio::time::timeout(SOON, before(&*hook, &arguments)).await;
            assert_eq!(found.expect("it hangs"), deny("did not answer within 200 ms"));
        }

        #[tokio::test]
        async fn a_result_of_32_mebibytes_passes_both_ways() {
            let text = format!(r#"{{"content":[],"x":"{}"}}"#, "y".repeat(32 * 1024 * 1024));
            let script = r#"sed 's/.*"result":/{"decision":"replace","result":/'"#;
            let hook = shell("after", script, "timeout_ms = 60000");
            let output = result(text);
            let found = after(&*hook, &output).await;
            // Not printed: nobody reads 32 MiB.
            assert!(found == After::Replace(output));
        }

        #[tokio::test]
        async fn a_hook_that_hangs_is_killed_with_its_children() {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("pid");
            let rest = format!("timeout_ms = 200\nenv = {{ FILE = '{}' }}", file.display());
            let script = concat!(
                r#"echo '{"decision":"allow"}'; sleep 60 & "#,
                r#"echo $! > "$FILE.new"; mv "$FILE.new" "$FILE"; wait"#
            );
            let hook = shell("before", script, &rest);
            let deadline = Instant::now() + SOON;
            // On a loaded machine its time may be over before it has written anything.
            let pid = loop {
                assert!(Instant::now() < deadline, "it never got as far as that");
                let found = tokio::time::timeout(SOON, before(&*hook, &input("{}"))).await;
                assert_eq!(found.expect("it hangs"), deny("did not answer within 200 ms"));
                if let Ok(text) = fs::read_to_string(&file) {
                    break text.trim().parse::<i32>().unwrap();
                }
            };
            while is_running(pid) {
                assert!(Instant::now() < deadline, "process {pid} is still there");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }

        fn is_running(pid: i32) -> bool {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let state = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
            rustix::process::test_kill_process(pid).is_ok() && !state.contains(") Z ")
        }

        #[tokio::test]
        async fn a_missing_program_refuses_and_shows_no_path() {
            for run in ["no-such-program", "/no/such/place/hook"] {
                let before = before(&*hook(config(&format!("run = ['{run}']"))), &input("{}")).await;
                assert_eq!(before, deny("could not be run"), "{run}");
                let hook = hook(config(&format!("run = ['{run}']\non = 'after'")));
                assert_eq!(after(&*hook, &ToolOutput::text("x")).await, block("could not be run"), "{run}");
            }
            let hook = hook(config("run = ['true']\ncwd = '/no/such/folder'"));
            assert_eq!(before(&*hook, &input("{}")).await, deny("could not be run"));
        }

        #[tokio::test]
        async fn hooks_keep_the_order_of_the_file() {
            #[derive(Deserialize)]
            struct File {
                hooks: IndexMap<String, HookConfig>,
            }
            let text = "[hooks.z]\nrun = ['a']\n[hooks.a]\nrun = ['a']\n[hooks.m]\nrun = ['a']\n";
            let file: File = toml::from_str(text).unwrap();
            let hooks = hooks(&file.hooks).unwrap();
            assert_eq!(hooks.iter().map(|hook| hook.name()).collect::<Vec<_>>(), ["z", "a", "m"]);
        }
    }
}
