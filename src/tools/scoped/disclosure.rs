//! Decides how much of each tool a model is shown before it asks for more.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::policy::{Pattern, patterns};
use crate::tools::service::{Source, ToolDefinition};

/// Most tools in an initial list that no `core` describes: one client folds longer lists away.
pub const INITIAL_LIST_LIMIT: usize = 13;
/// Bytes of JSON that make about one token; an estimate that errs on the high side for English and code.
pub const BYTES_PER_TOKEN: usize = 4;

/// `[modes.NAME]`: what a way of working keeps out of sight until it is searched for.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModeConfig {
    /// Families of own tools to defer: `file` means `file` and `file_*`. Upstream tools are never meant.
    pub defer: Vec<String>,
    /// Patterns added to `core`.
    pub core_add: Vec<String>,
    /// Patterns taken from `core`.
    pub core_remove: Vec<String>,
}

/// The modes that need no configuration.
pub fn shipped_modes() -> BTreeMap<String, ModeConfig> {
    let family = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    BTreeMap::from([
        ("work".to_owned(), ModeConfig::default()),
        ("chat".to_owned(), ModeConfig { defer: family(&["file", "shell"]), ..ModeConfig::default() }),
        ("code".to_owned(), ModeConfig { core_add: family(&["file_*", "shell"]), ..ModeConfig::default() }),
    ])
}

/// Which tools keep their full schema.
#[derive(Debug, Clone)]
pub enum Core {
    /// No rewriter at all: everything that is not deferred is shown as it is.
    Detached,
    /// Decided by the size of the whole array.
    Automatic {
        /// Largest array, in estimated tokens, that is shown as it is.
        tokens: usize,
    },
    /// These keep their schemas, the others collapse.
    Named(Vec<Pattern>),
}

/// The static part of disclosure: the same for every message of a connection.
#[derive(Debug, Clone)]
pub struct Disclosure {
    core: Core,
    without: Vec<Pattern>,
    families: Vec<String>,
    defer_mcp: bool,
}

/// How one tool is shown, before policy and promotion are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// With its whole schema.
    Full,
    /// Name and description.
    Collapsed,
    /// Not in the list, but found and callable.
    Deferred,
}

impl Default for Disclosure {
    fn default() -> Self {
        Disclosure { core: Core::Detached, without: Vec::new(), families: Vec::new(), defer_mcp: false }
    }
}

impl Disclosure {
    /// Reads `[tools] core`, `defer_mcp_tools`, `auto_tokens` and the session's mode.
    ///
    /// # Errors
    /// A malformed pattern, in words.
    pub fn new(
        core: Option<&[String]>,
        auto_tokens: usize,
        defer_mcp: bool,
        mode: &ModeConfig,
    ) -> Result<Disclosure, String> {
        let named = match core {
            None => Core::Automatic { tokens: auto_tokens },
            Some(names) if names.is_empty() || names.iter().any(|name| name == "*") => Core::Detached,
            Some(names) => {
                let mut all = patterns(names)?;
                all.extend(patterns(&mode.core_add)?);
                Core::Named(all)
            }
        };
        Ok(Disclosure {
            core: named,
            without: patterns(&mode.core_remove)?,
            families: mode.defer.clone(),
            defer_mcp,
        })
    }

    /// Decides for all tools at once; `tools` are those that policy shows, in order of name.
    /// The second value tells whether disclosure is on, which is when `get_tool_schema` exists.
    pub fn exposures(&self, tools: &[&ToolDefinition]) -> (Vec<Exposure>, bool) {
        match &self.core {
            Core::Detached => {
                (tools.iter().map(|tool| self.unless_deferred(tool, Exposure::Full)).collect(), false)
            }
            Core::Named(core) => {
                let exposure = |tool: &&ToolDefinition| {
                    let is_core =
                        core.iter().any(|p| p.matches(tool)) && !self.without.iter().any(|p| p.matches(tool));
                    if is_core { Exposure::Full } else { self.unless_deferred(tool, Exposure::Collapsed) }
                };
                (tools.iter().map(exposure).collect(), true)
            }
            Core::Automatic { tokens } => {
                let bytes: usize = tools
                    .iter()
                    .filter(|tool| self.unless_deferred(tool, Exposure::Full) == Exposure::Full)
                    .map(|tool| tool.wire.len() + 1)
                    .sum();
                if bytes <= tokens * BYTES_PER_TOKEN {
                    let all = tools.iter().map(|tool| self.unless_deferred(tool, Exposure::Full));
                    return (all.collect(), false);
                }
                let mut room = INITIAL_LIST_LIMIT - META_TOOLS;
                let exposure = |tool: &&ToolDefinition| match tool.source {
                    Source::Builtin | Source::Command | Source::Agent if room > 0 => {
                        let exposure = self.unless_deferred(tool, Exposure::Full);
                        room -= usize::from(exposure == Exposure::Full);
                        exposure
                    }
                    _ => Exposure::Deferred,
                };
                (tools.iter().map(exposure).collect(), true)
            }
        }
    }

    fn unless_deferred(&self, tool: &ToolDefinition, otherwise: Exposure) -> Exposure {
        let is_upstream = matches!(tool.source, Source::Mcp(_));
        let is_deferred = tool.metadata.unlistable.is_some()
            || tool.metadata.defer.unwrap_or(self.defer_mcp && is_upstream)
            || (!is_upstream && self.families.iter().any(|family| is_of_family(&tool.name, family)));
        if is_deferred { Exposure::Deferred } else { otherwise }
    }
}

/// Meta tools that stand in a list with deferred tools.
const META_TOOLS: usize = 5;

/// `file` means `file` and `file_read`, not `files` and not `filesx`.
fn is_of_family(name: &str, family: &str) -> bool {
    name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::json::RawJson;
    use crate::tools::service::ToolMetadata;

    fn tool(name: &str, source: Source) -> ToolDefinition {
        ToolDefinition::new(name, "text", RawJson::EMPTY_OBJECT, source, ToolMetadata::default())
    }

    fn check(core: Option<&[&str]>, tokens: usize, defer: bool, mode: &ModeConfig, expected: &str) {
        let own = |name| tool(name, Source::Builtin);
        let up = |name| tool(name, Source::Mcp("m".into()));
        let tools = [own("file_read"), own("filesx"), up("file_x"), up("m_ro")];
        let core: Option<Vec<String>> = core.map(|names| names.iter().map(|n| (*n).to_owned()).collect());
        let disclosure = Disclosure::new(core.as_deref(), tokens, defer, mode).unwrap();
        let (exposures, on) = disclosure.exposures(&tools.iter().collect::<Vec<_>>());
        let letters: String = exposures
            .iter()
            .map(|e| match e {
                Exposure::Full => 'F',
                Exposure::Collapsed => 'C',
                Exposure::Deferred => 'D',
            })
            .collect();
        assert_eq!(
            format!("{letters} {}", if on { "on" } else { "off" }),
            expected,
            "{core:?} {tokens} {defer}"
        );
    }

    #[test]
    fn core_deferral_modes_and_the_automatic_threshold() {
        let work = ModeConfig::default();
        check(Some(&[]), 0, false, &work, "FFFF off");
        check(Some(&["m_ro", "*"]), 0, false, &work, "FFFF off");
        check(Some(&[]), 0, true, &work, "FFDD off");
        check(Some(&["m_ro"]), 0, false, &work, "CCCF on");
        check(Some(&["m_ro"]), 0, true, &work, "CCDF on");
        check(None, 4000, false, &work, "FFFF off");
        check(None, 10, false, &work, "FFDD on");
        check(None, 4000, true, &work, "FFDD off");
        let no_files = ModeConfig { defer: vec!["file".into()], ..ModeConfig::default() };
        check(Some(&[]), 0, false, &no_files, "DFFF off");
        let without =
            ModeConfig { core_remove: vec!["m_ro".into()], core_add: vec!["filesx".into()], ..work };
        check(Some(&["m_ro"]), 0, false, &without, "CFCC on");
    }
}
