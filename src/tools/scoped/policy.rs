//! Decides by rules, tier and floor whether a tool may run, must be asked for, or is refused.

use std::fmt;

use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;

use crate::tools::service::ToolDefinition;

/// What a rule says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Runs unasked.
    Allow,
    /// A person is asked.
    Ask,
    /// Refused, and in no list.
    Deny,
}

/// How much runs unasked where no rule speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Only tools that are declared read-only run.
    Plan,
    /// Everything that is not declared read-only asks.
    Ask,
    /// What is declared destructive asks.
    #[default]
    Auto,
    /// Nothing asks but what declares that it always does.
    Full,
}

/// The verdict on one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// Runs unasked.
    Allow,
    /// A person is asked; `may_be_remembered` is false where the tool declares that it always asks.
    Ask {
        /// Why, for the person.
        reason: String,
        /// Whether an answer may hold for more than one call.
        may_be_remembered: bool,
    },
    /// Refused; the text names the rule.
    Deny(String),
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Judgement::Allow => f.write_str("runs unasked"),
            Judgement::Ask { reason, .. } => write!(f, "asks ({reason})"),
            Judgement::Deny(rule) => write!(f, "denied ({rule})"),
        }
    }
}

/// A pattern with a `/` is `SOURCE/TOOL` in the source's own spelling; one without is a glob over wire names.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    kind: PatternKind,
    source: Option<GlobMatcher>,
    tool: GlobMatcher,
}

/// Order of precedence: an exact pattern beats a glob, a glob beats the pattern for everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PatternKind {
    Everything,
    Glob,
    Exact,
}

impl Pattern {
    /// Compiles one pattern. Case does not count: two names that differ in nothing else cannot exist.
    ///
    /// # Errors
    /// A malformed glob, in words.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let glob = |part: &str| {
            let glob = GlobBuilder::new(part).case_insensitive(true).literal_separator(false).build();
            glob.map(|glob| glob.compile_matcher()).map_err(|error| format!("bad pattern `{text}`: {error}"))
        };
        let is_literal = |part: &str| !part.contains(['*', '?', '[', '{']);
        let (source, tool) = match text.split_once('/') {
            Some((source, tool)) => (Some(source), tool),
            None => (None, text),
        };
        if tool.is_empty() || source == Some("") {
            return Err(format!("bad pattern `{text}`: write a tool name, `SOURCE/TOOL`, or a glob"));
        }
        let kind = if matches!(text, "*" | "*/*") {
            PatternKind::Everything
        } else if is_literal(tool) && source.is_none_or(is_literal) {
            PatternKind::Exact
        } else {
            PatternKind::Glob
        };
        Ok(Pattern { text: text.to_owned(), kind, source: source.map(glob).transpose()?, tool: glob(tool)? })
    }

    /// Whether the pattern means this tool.
    pub fn matches(&self, tool: &ToolDefinition) -> bool {
        match &self.source {
            None => self.tool.is_match(&*tool.name),
            Some(source) => {
                (source.is_match(tool.source.label()) || source.is_match(tool.source.kind()))
                    && self.tool.is_match(&*tool.original)
            }
        }
    }

    /// The pattern as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Compiles a list of patterns.
///
/// # Errors
/// The first malformed one, in words.
pub fn patterns(texts: &[String]) -> Result<Vec<Pattern>, String> {
    texts.iter().map(|text| Pattern::parse(text)).collect()
}

/// Allowlist, rules and tier of one scope.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Tools outside it do not exist here; `None` lets everything in.
    pub allow: Option<Vec<Pattern>>,
    /// Rules, in no particular order: precedence is by kind of pattern, then the strictest action.
    pub rules: Vec<(Pattern, Action)>,
    /// What holds where no rule speaks.
    pub tier: Tier,
}

impl Policy {
    /// Whether the tool exists in this scope at all.
    pub fn is_allowlisted(&self, tool: &ToolDefinition) -> bool {
        self.allow.as_ref().is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(tool)))
    }

    /// The verdict on a tool. A function of the definition alone, so lists and calls agree.
    pub fn judge(&self, tool: &ToolDefinition) -> Judgement {
        let rule = self.deciding_rule(tool);
        let hints = &tool.metadata;
        if let Some((pattern, Action::Deny)) = rule {
            return Judgement::Deny(format!("rule `{}` = \"deny\"", pattern.text()));
        }
        if self.tier == Tier::Plan && !hints.read_only {
            return Judgement::Deny("tier \"plan\" runs declared read-only tools only".to_owned());
        }
        let floor = hints.destructive || hints.confirm;
        match rule {
            // An exact rule is the operator's word about this very tool; anything broader leaves the floor.
            Some((pattern, Action::Allow)) if !floor || pattern.kind == PatternKind::Exact => {
                Judgement::Allow
            }
            Some((pattern, Action::Ask)) => Judgement::Ask {
                reason: format!("rule `{}` asks", pattern.text()),
                may_be_remembered: !floor,
            },
            _ if floor => Judgement::Ask {
                reason: if hints.destructive {
                    "the tool declares that it can destroy something".to_owned()
                } else {
                    "the tool declares that it always asks".to_owned()
                },
                may_be_remembered: false,
            },
            _ if self.tier == Tier::Ask && !hints.read_only && rule.is_none() => Judgement::Ask {
                reason: "tier \"ask\": the tool is not declared read-only".to_owned(),
                may_be_remembered: true,
            },
            _ => Judgement::Allow,
        }
    }

    /// Whether an exact rule allows this very tool, which answers whatever it would ask.
    pub fn allows_exactly(&self, tool: &ToolDefinition) -> bool {
        matches!(self.deciding_rule(tool), Some((pattern, Action::Allow)) if pattern.kind == PatternKind::Exact)
    }

    /// The rule that decides: exact before glob before everything; within one kind the strictest.
    fn deciding_rule(&self, tool: &ToolDefinition) -> Option<(&Pattern, Action)> {
        self.rules
            .iter()
            .filter(|(pattern, _)| pattern.matches(tool))
            .max_by_key(|(pattern, action)| (pattern.kind, *action))
            .map(|(pattern, action)| (pattern, *action))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::json::RawJson;
    use crate::tools::service::{Source, ToolMetadata};

    fn tool(name: &str, original: &str, metadata: ToolMetadata) -> ToolDefinition {
        let mut definition =
            ToolDefinition::new(name, "d", RawJson::EMPTY_OBJECT, Source::Mcp("alpha".into()), metadata);
        definition.original = original.into();
        definition
    }

    fn policy(tier: Tier, rules: &[(&str, Action)]) -> Policy {
        let rules = rules.iter().map(|(text, action)| (Pattern::parse(text).unwrap(), *action)).collect();
        Policy { allow: None, rules, tier }
    }

    fn word(judgement: &Judgement) -> &'static str {
        match judgement {
            Judgement::Allow => "allow",
            Judgement::Ask { may_be_remembered: true, .. } => "ask",
            Judgement::Ask { may_be_remembered: false, .. } => "ask always",
            Judgement::Deny(_) => "deny",
        }
    }

    #[test]
    fn exact_beats_glob_and_among_globs_the_strictest_wins() {
        use Action::{Allow, Ask, Deny};
        let check = |rules: &[(&str, Action)], expected: &str| {
            let plain = tool("alpha_delete", "delete", ToolMetadata::default());
            assert_eq!(word(&policy(Tier::Auto, rules).judge(&plain)), expected, "{rules:?}");
        };
        check(&[], "allow");
        check(&[("alpha_*", Deny), ("alpha_delete", Allow)], "allow");
        check(&[("alpha/*", Deny), ("alpha/delete", Ask)], "ask");
        check(&[("alpha/delete", Deny), ("alpha/*", Allow), ("*", Allow)], "deny");
        check(&[("a*", Allow), ("al*", Ask)], "ask");
        check(&[("a*", Ask), ("al*", Deny), ("alp*", Allow)], "deny");
        check(&[("*", Deny), ("alpha/*", Allow)], "allow");
        check(&[("*", Deny), ("prod/*", Allow)], "deny");
        check(&[("alpha/delete_all", Deny)], "allow");
        check(&[("alpha/del", Deny)], "allow");
        check(&[("ALPHA/Delete", Deny)], "deny");
        check(&[("mcp/delete", Deny)], "deny");
        check(&[("delete", Deny)], "allow");
    }

    #[test]
    fn s24_tiers_and_floors() {
        use Action::{Allow, Deny};
        let ro = ToolMetadata { read_only: true, ..ToolMetadata::default() };
        let danger = ToolMetadata { destructive: true, ..ToolMetadata::default() };
        let confirm = ToolMetadata { confirm: true, ..ToolMetadata::default() };
        let check = |tier, rules: &[(&str, Action)], metadata: &ToolMetadata, expected: &str| {
            let tool = tool("alpha_x", "x", metadata.clone());
            assert_eq!(word(&policy(tier, rules).judge(&tool)), expected, "{tier:?} {rules:?} {metadata:?}");
        };
        let plain = ToolMetadata::default();
        check(Tier::Plan, &[], &ro, "allow");
        check(Tier::Plan, &[], &plain, "deny");
        check(Tier::Plan, &[("alpha_x", Allow)], &plain, "deny");
        check(Tier::Ask, &[], &ro, "allow");
        check(Tier::Ask, &[], &plain, "ask");
        check(Tier::Ask, &[("*", Allow)], &plain, "allow");
        check(Tier::Ask, &[("*", Deny)], &ro, "deny");
        check(Tier::Auto, &[], &plain, "allow");
        check(Tier::Auto, &[], &danger, "ask always");
        check(Tier::Full, &[], &plain, "allow");
        check(Tier::Full, &[], &danger, "ask always");
        check(Tier::Full, &[("*", Allow)], &danger, "ask always");
        check(Tier::Full, &[("alpha_*", Allow)], &confirm, "ask always");
        check(Tier::Full, &[("alpha/x", Allow)], &danger, "allow");
    }

    #[test]
    fn an_allowlist_is_not_a_prefix() {
        let policy = Policy { allow: Some(patterns(&["alpha/get".into()]).unwrap()), ..Policy::default() };
        assert!(policy.is_allowlisted(&tool("alpha_get", "get", ToolMetadata::default())));
        assert!(!policy.is_allowlisted(&tool("alpha_get_all", "get_all", ToolMetadata::default())));
    }

    #[test]
    fn bad_patterns_are_named() {
        for text in ["", "/x", "x/", "a[", "alpha/{x"] {
            assert!(Pattern::parse(text).unwrap_err().contains(text), "{text}");
        }
    }
}
