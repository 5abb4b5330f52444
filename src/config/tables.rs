//! The tables of `tools.toml`, with their defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use indexmap::IndexMap;
use serde::de::{Error as _, value};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};

use crate::commands::CommandConfig;
use crate::executor::calls::DEFAULT_PARALLEL_LIMIT;
use crate::executor::schedule::DEFAULT_PARALLEL_CALLS;
use crate::hooks::HookConfig;
use crate::tools::claim_rule::ClaimRule;
use crate::tools::results::DEFAULT_MAX_CHARS;
use crate::tools::scoped::disclosure::ModeConfig;
use crate::tools::scoped::policy::{Action, Tier};

/// All of `tools.toml`. Each table may be absent; `Config::default()` is what no file at all means.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[tools]`: what clients see, and limits of single tools.
    pub tools: Tools,
    /// `[policy]`: what may run.
    pub policy: Policy,
    /// `[approvals]`: how a person is asked.
    pub approvals: Approvals,
    /// `[results]`: how long results may be.
    pub results: Results,
    /// `[builtins]`: the built-in tools.
    pub builtins: Builtins,
    /// `[mcp_servers.NAME]`: upstream servers, in the order of the file.
    pub mcp_servers: IndexMap<String, McpServer>,
    /// `[commands.NAME]`: command tools, in the order of the file.
    pub commands: IndexMap<String, CommandConfig>,
    /// `[hooks.NAME]`: programs that are asked about calls, in the order of the file.
    pub hooks: IndexMap<String, HookConfig>,
    /// `[skills]`: where skills lie.
    pub skills: Skills,
    /// `[modes.NAME]`: modes beside the shipped ones.
    pub modes: BTreeMap<String, ModeConfig>,
    /// `[clients.NAME]`: what differs for single clients, in the order of the file.
    pub clients: IndexMap<String, ClientConfig>,
}

/// `[tools]`: what clients see, and limits of single tools.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tools {
    /// Names or globs that keep their full schema; absent: automatic; empty or with `*`: everything does.
    pub core: Option<Vec<String>>,
    /// Upstream tools wait behind `tool_search`. Default: false.
    pub defer_mcp_tools: bool,
    /// The mode of sessions that choose none. Default: `work`.
    pub session_mode: String,
    /// Whether hits of a search join the list. Default: `auto`.
    pub promote: Promote,
    /// Under this estimate of tokens everything is shown in full, when `core` is absent. Default: 4000.
    pub auto_tokens: usize,
    /// Offer `call_tools` also when nothing is deferred. Default: false.
    pub batch: bool,
    /// How long the first list waits for servers that were never seen before. Default: 400.
    pub first_list_wait_ms: u64,
    /// Calls that run at the same time. Default: 16.
    #[serde(deserialize_with = "count")]
    pub max_parallel_calls: usize,
    /// The longest a call may take beside others of its group of a batch. Default: 30000.
    #[serde(deserialize_with = "millis")]
    pub parallel_timeout_ms: u64,
    /// Glob → time limit of a call in milliseconds.
    pub limits: IndexMap<String, u64>,
    /// Glob → grants that a call needs.
    pub permissions: IndexMap<String, Vec<String>>,
    /// Glob → what a call touches.
    pub claims: IndexMap<String, ClaimRule>,
}

impl Default for Tools {
    fn default() -> Self {
        Self {
            core: None,
            defer_mcp_tools: false,
            session_mode: "work".to_owned(),
            promote: Promote::Auto,
            auto_tokens: 4000,
            batch: false,
            first_list_wait_ms: 400,
            max_parallel_calls: DEFAULT_PARALLEL_CALLS,
            parallel_timeout_ms: DEFAULT_PARALLEL_LIMIT.as_millis() as u64,
            limits: IndexMap::new(),
            permissions: IndexMap::new(),
            claims: IndexMap::new(),
        }
    }
}

/// `[tools] promote`: whether hits of a search join the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promote {
    /// For clients that hear of changes.
    #[default]
    Auto,
    /// For every client.
    Always,
    /// For none: the list stays constant.
    Never,
}

/// `[policy]`: what may run.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Patterns of the only tools that exist; absent: all.
    pub allow: Option<Vec<String>>,
    /// Pattern → verdict, in the order of the file.
    pub rules: IndexMap<String, Action>,
    /// What runs unasked where no rule decides. Default: `auto`.
    pub tier: Tier,
    /// Granted permissions. Default: none.
    pub grants: Vec<String>,
}

/// `[approvals]`: how a person is asked.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Approvals {
    /// What happens where the client cannot ask. Default: `ticket`.
    pub without_client: WithoutClient,
    /// How long an answer is waited for. Default: 120000.
    #[serde(deserialize_with = "millis")]
    pub timeout_ms: u64,
}

impl Default for Approvals {
    fn default() -> Self {
        Self { without_client: WithoutClient::Ticket, timeout_ms: 120_000 }
    }
}

/// `[approvals] without_client`: what happens where the client cannot ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutClient {
    /// A ticket that any terminal can answer.
    #[default]
    Ticket,
    /// The call is refused.
    Deny,
}

/// `[results]`: how long results may be.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Results {
    /// Characters of text in one result, and of structured content. Default: 4000.
    #[serde(deserialize_with = "result_chars")]
    pub max_chars: usize,
    /// Megabytes of whole results that are kept to be read on. Default: 64.
    pub keep_mb: usize,
}

impl Default for Results {
    fn default() -> Self {
        Self { max_chars: DEFAULT_MAX_CHARS, keep_mb: 64 }
    }
}

/// `[builtins]`: the built-in tools.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Builtins {
    /// Folders that file tools may touch; after loading absolute. Default: the working directory.
    /// An empty list means none.
    pub roots: Vec<String>,
    /// Names or globs of the built-ins that exist; absent: all.
    pub enabled: Option<Vec<String>>,
}

impl Default for Builtins {
    fn default() -> Self {
        Self { roots: vec![".".to_owned()], enabled: None }
    }
}

/// `[mcp_servers.NAME]`: one upstream server, started by `command` or reached at `url`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpServer {
    /// The program; never a shell line.
    pub command: Option<String>,
    /// Its arguments, each passed on as one.
    pub args: Vec<String>,
    /// Variables added to the base environment.
    pub env: IndexMap<String, String>,
    /// The folder it runs in; after loading absolute. Default: the working directory.
    pub cwd: Option<String>,
    /// What it is good for, in one line, for models that have not seen its tools.
    pub description: Option<String>,
    /// The address of a Streamable HTTP server.
    pub url: Option<String>,
    /// The variable that holds a bearer token for `url`.
    pub bearer_token_env_var: Option<String>,
    /// Headers sent to `url`.
    pub http_headers: IndexMap<String, String>,
    /// Default: true.
    pub enabled: bool,
    /// The only tools taken from it; absent: all.
    pub enabled_tools: Option<Vec<String>>,
    /// Tools not taken from it.
    pub disabled_tools: Vec<String>,
    /// How long it may take to start. Default: 30 s.
    #[serde(rename = "startup_timeout_sec", deserialize_with = "seconds")]
    pub startup_timeout: Duration,
    /// How long a call may take. Default: 60 s.
    #[serde(rename = "tool_timeout_sec", deserialize_with = "seconds")]
    pub tool_timeout: Duration,
    /// Its annotations may loosen what happens to a call, not only tighten it. Default: true.
    pub trust_hints: bool,
    /// It shares nothing with other servers, so that calls need not wait for theirs. Default: false.
    pub isolated: bool,
    /// Its tools wait behind `tool_search`; absent: as `[tools] defer_mcp_tools` says.
    pub defer: Option<bool>,
    /// Grants that each of its tools needs.
    pub permissions: Vec<String>,
}

impl Default for McpServer {
    fn default() -> Self {
        Self {
            command: None,
            args: Vec::new(),
            env: IndexMap::new(),
            cwd: None,
            description: None,
            url: None,
            bearer_token_env_var: None,
            http_headers: IndexMap::new(),
            enabled: true,
            enabled_tools: None,
            disabled_tools: Vec::new(),
            startup_timeout: Duration::from_secs(30),
            tool_timeout: Duration::from_secs(60),
            trust_hints: true,
            isolated: false,
            defer: None,
            permissions: Vec::new(),
        }
    }
}

/// `[skills]`: where skills lie.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Skills {
    /// Folders of skill folders; after loading absolute. Default: none.
    pub paths: Vec<String>,
}

/// `[clients.NAME]`: what differs for clients that call themselves so; NAME is a pattern.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientConfig {
    /// As `[tools] promote`.
    pub promote: Option<Promote>,
    /// As `[tools] session_mode`.
    pub session_mode: Option<String>,
    /// As `[tools] core`.
    pub core: Option<Vec<String>>,
    /// As `[tools] defer_mcp_tools`.
    pub defer_mcp_tools: Option<bool>,
}

/// The modes that need no `[modes.NAME]`.
pub const SHIPPED_MODES: [&str; 3] = ["work", "chat", "code"];

/// The longest time limit: a year. Longer ones are slips of the keyboard, and overflow clocks.
pub(crate) const LONGEST_LIMIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Whether a number of milliseconds can be a time limit.
pub(crate) fn is_limit(millis: u64) -> bool {
    millis > 0 && Duration::from_millis(millis) <= LONGEST_LIMIT
}

fn millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let millis = u64::deserialize(deserializer)?;
    if is_limit(millis) {
        Ok(millis)
    } else {
        Err(D::Error::custom("must be more than 0 and at most a year"))
    }
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    match usize::deserialize(deserializer)? {
        0 => Err(D::Error::custom("must be more than 0; 1 means one after another")),
        count => Ok(count),
    }
}

/// Below this, not even the sentence about what is missing fits.
const FEWEST_CHARS: usize = 100;

fn result_chars<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    match usize::deserialize(deserializer)? {
        chars if chars < FEWEST_CHARS => Err(D::Error::custom("must be at least 100")),
        chars => Ok(chars),
    }
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|limit| !limit.is_zero() && *limit <= LONGEST_LIMIT)
        .ok_or_else(|| D::Error::custom("must be more than 0 and at most a year"))
}

/// Every table with its keys, as the structs above have them.
pub(crate) fn known_keys() -> [(&'static str, &'static [&'static str]); 12] {
    [
        ("", fields_of::<Config>()),
        ("tools", fields_of::<Tools>()),
        ("policy", fields_of::<Policy>()),
        ("approvals", fields_of::<Approvals>()),
        ("results", fields_of::<Results>()),
        ("builtins", fields_of::<Builtins>()),
        ("mcp_servers.NAME", fields_of::<McpServer>()),
        ("commands.NAME", fields_of::<CommandConfig>()),
        ("hooks.NAME", fields_of::<HookConfig>()),
        ("skills", fields_of::<Skills>()),
        ("modes.NAME", fields_of::<ModeConfig>()),
        ("clients.NAME", fields_of::<ClientConfig>()),
    ]
}

/// The keys of a struct, asked from its own `Deserialize`, so that no second list can go stale.
fn fields_of<T: Deserialize<'static>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // Always an error: the probe stops as soon as it has seen the keys.
    let _ = T::deserialize(FieldProbe(&mut fields));
    fields
}

struct FieldProbe<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldProbe<'_> {
    type Error = value::Error;

    fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(value::Error::custom("not a struct"))
    }

    fn deserialize_struct<V: serde::de::Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(value::Error::custom("seen"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::HookEvent;

    const SHIPPED: &str = include_str!("../../tools.toml");

    /// The shipped file with the lines that begin with `#key` brought in.
    fn all_brought_in() -> String {
        let bring_in = |line: &str| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with([' ', '#']) => format!("{rest}\n"),
            _ => format!("{line}\n"),
        };
        SHIPPED.lines().map(bring_in).collect()
    }

    #[test]
    fn c4_the_shipped_file_means_the_defaults() {
        // The one difference: whoever writes a file at all gets room for longer results.
        let shipped =
            Config { results: Results { max_chars: 20_000, ..Results::default() }, ..Config::default() };
        assert_eq!(toml::from_str::<Config>(SHIPPED), Ok(shipped));
        assert_eq!(toml::from_str::<Config>(""), Ok(Config::default()));
    }

    #[test]
    fn c4_the_shipped_file_has_every_key() {
        let document: toml::Table = toml::from_str(&all_brought_in()).unwrap();
        for (table, keys) in known_keys() {
            assert_ne!(keys, [""; 0], "the keys of `[{table}]` are known");
            // Servers of both kinds are in the file: a key has to be in one of them.
            let tables: Vec<&toml::Table> = match table.split_once('.') {
                None if table.is_empty() => vec![&document],
                None => vec![document[table].as_table().unwrap()],
                Some((parent, _)) => document[parent]
                    .as_table()
                    .unwrap()
                    .values()
                    .map(|entry| entry.as_table().unwrap())
                    .collect(),
            };
            for key in keys {
                assert!(
                    tables.iter().any(|table| table.contains_key(*key)),
                    "`{key}` of `[{table}]` is missing"
                );
            }
        }
    }

    #[test]
    fn c4_every_key_of_the_shipped_file_is_known_and_commented() {
        toml::from_str::<Config>(&all_brought_in()).unwrap();
        let mut is_explained = false;
        for line in SHIPPED.lines() {
            let is_comment = line.starts_with("# ");
            let is_key = line.trim_start_matches('#').contains(" = ") && !is_comment;
            assert!(!is_key || is_explained, "`{line}` has no comment");
            is_explained = is_comment || (is_explained && !line.is_empty());
        }
    }

    #[test]
    fn c4_missing_keys_have_the_documented_defaults() {
        let config = Config::default();
        assert_eq!(config.tools.core, None);
        assert_eq!((config.tools.defer_mcp_tools, config.tools.batch), (false, false));
        assert_eq!((config.tools.session_mode.as_str(), config.tools.promote), ("work", Promote::Auto));
        assert_eq!((config.tools.auto_tokens, config.tools.first_list_wait_ms), (4000, 400));
        assert_eq!((config.tools.max_parallel_calls, config.tools.parallel_timeout_ms), (16, 30_000));
        assert_eq!((config.results.max_chars, config.results.keep_mb), (4000, 64));
        assert_eq!((config.policy.tier, config.policy.allow), (Tier::Auto, None));
        assert_eq!(
            (config.approvals.without_client, config.approvals.timeout_ms),
            (WithoutClient::Ticket, 120_000)
        );
        assert_eq!(config.builtins, Builtins { roots: vec![".".to_owned()], enabled: None });
        let hook = toml::from_str::<HookConfig>("run = ['a']").unwrap();
        assert_eq!((hook.on, hook.timeout_ms, hook.unusable), (HookEvent::Before, 5000, None));
        assert_eq!((hook.tools.as_slice(), hook.cwd, hook.env.len()), (["*".to_owned()].as_slice(), None, 0));
        let server = toml::from_str::<McpServer>("command = 'a'").unwrap();
        assert_eq!(
            (server.startup_timeout, server.tool_timeout),
            (Duration::from_secs(30), Duration::from_secs(60))
        );
        assert_eq!(
            (server.enabled, server.trust_hints, server.isolated, server.defer),
            (true, true, false, None)
        );
    }

    #[test]
    fn limits_in_seconds_may_be_whole_or_not() {
        let limit = |text: &str| toml::from_str::<McpServer>(text).map(|server| server.tool_timeout).ok();
        assert_eq!(limit("tool_timeout_sec = 2"), Some(Duration::from_secs(2)));
        assert_eq!(limit("tool_timeout_sec = 0.25"), Some(Duration::from_millis(250)));
        for bad in ["0", "-1", "nan", "inf", "1e30", "'2'", "31536001"] {
            assert_eq!(limit(&format!("tool_timeout_sec = {bad}")), None, "{bad}");
        }
    }

    #[test]
    fn rules_keep_the_order_of_the_file() {
        let policy: Policy = toml::from_str("[rules]\nz = 'allow'\na = 'deny'\n'm/*' = 'ask'\n").unwrap();
        let rules: Vec<_> =
            policy.rules.iter().map(|(pattern, action)| (pattern.as_str(), *action)).collect();
        assert_eq!(rules, [("z", Action::Allow), ("a", Action::Deny), ("m/*", Action::Ask)]);
    }
}
