//! Finds out what one call touches: from the operator's rules, the tool's own, its hints, or from knowing nothing.

use serde_json::Value;

use super::policy::Pattern;
use super::view::Settings;
use crate::catalog::registry::RegisteredTool;
use crate::tools::claim_rule::{Access, ClaimRule, Touched};
use crate::tools::concurrency::{ConcurrencyClaim, MOST_PATHS, Scope};
use crate::tools::service::{Source, ToolDefinition};

/// What this very call touches: the first that speaks of `[tools.claims]`, the tool itself, its hints, its source.
/// Whatever is not known is everything.
pub fn call_concurrency_claim(
    settings: &Settings,
    tool: &RegisteredTool,
    arguments: &Value,
) -> ConcurrencyClaim {
    let definition = tool.definition();
    let hints = &definition.metadata;
    if let Some(rule) = operators_rule(&settings.claims, definition).or(hints.claim.as_ref()) {
        return claim(settings, tool, rule.touched(arguments));
    }
    match hints.parallel_safe {
        Some(false) => ConcurrencyClaim::GLOBAL,
        _ if hints.read_only => match &definition.source {
            Source::Mcp(name) | Source::Plugin(name) => {
                ConcurrencyClaim::shared_in(Scope::nodes([name.as_str()]))
            }
            Source::Builtin | Source::Command | Source::Skill | Source::Agent => ConcurrencyClaim::Shared,
        },
        Some(true) => ConcurrencyClaim::Shared,
        None if hints.isolated => ConcurrencyClaim::Exclusive(Scope::nodes([definition.source.label()])),
        None => ConcurrencyClaim::GLOBAL,
    }
}

/// The operator's rule; of several patterns the longest, which is the most specific, counts.
fn operators_rule<'a>(rules: &'a [(Pattern, ClaimRule)], tool: &ToolDefinition) -> Option<&'a ClaimRule> {
    let fitting = rules.iter().filter(|(pattern, _)| pattern.matches(tool));
    fitting.max_by_key(|(pattern, _)| pattern.text().len()).map(|(_, rule)| rule)
}

fn claim(settings: &Settings, tool: &RegisteredTool, touched: Touched) -> ConcurrencyClaim {
    let (access, scope) = match touched {
        Touched::Everything(access) => (access, Scope::Global),
        Touched::Nodes(access, names) => (access, Scope::nodes(names)),
        Touched::Sessions(access, names) => (access, Scope::sessions(names)),
        Touched::Paths(access, texts) => {
            // Looking at the disk for very many would hold up everybody, and the claim would be everything anyway.
            let resolved: Option<Vec<_>> = match texts.len() <= MOST_PATHS {
                true => texts
                    .iter()
                    .map(|text| settings.workspace.resolve(text, |path| tool.locate(path)))
                    .collect(),
                false => None,
            };
            match resolved {
                Some(paths) => (access, Scope::paths(paths.into_iter().flatten())),
                // A path that cannot be told may be any.
                None => (Access::Exclusive, Scope::Global),
            }
        }
    };
    match access {
        Access::Shared => ConcurrencyClaim::shared_in(scope),
        Access::Exclusive => ConcurrencyClaim::Exclusive(scope),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use indexmap::IndexMap;
    use serde_json::json;

    use super::*;
    use crate::tools::json::RawJson;
    use crate::tools::scoped::paths::Workspace;
    use crate::tools::service::{TextHandler, ToolMetadata, ToolResult};

    fn tool(name: &str, source: Source, metadata: ToolMetadata) -> RegisteredTool {
        let definition = ToolDefinition::new(name, "does it", RawJson::EMPTY_OBJECT, source, metadata);
        let handler = TextHandler(|text: &str| ToolResult::from_result(Ok(text.to_owned())));
        RegisteredTool::new(definition, Arc::new(handler))
    }

    fn settings(rules: &[(&str, ClaimRule)]) -> Settings {
        let folder = std::env::temp_dir().canonicalize().unwrap_or_else(|_| PathBuf::from("/"));
        Settings {
            claims: rules.iter().map(|(text, rule)| (Pattern::parse(text).unwrap(), rule.clone())).collect(),
            workspace: Workspace::new(folder, None),
            ..Settings::default()
        }
    }

    fn told(settings: &Settings, tool: &RegisteredTool, arguments: &Value) -> String {
        call_concurrency_claim(settings, tool, arguments).to_string()
    }

    #[test]
    fn t6_without_rules_the_hints_decide_and_silence_means_everything() {
        let check = |source: Source, metadata: ToolMetadata, expected: &str| {
            let case = format!("{source:?} {metadata:?}");
            assert_eq!(told(&settings(&[]), &tool("t", source, metadata), &json!({})), expected, "{case}");
        };
        let none = ToolMetadata::default();
        let mcp = || Source::Mcp("m".into());
        check(Source::Command, none.clone(), "exclusive");
        check(Source::Command, ToolMetadata { parallel_safe: Some(true), ..none.clone() }, "shared");
        check(Source::Command, ToolMetadata { parallel_safe: Some(false), ..none.clone() }, "exclusive");
        check(Source::Command, ToolMetadata { read_only: true, ..none.clone() }, "shared");
        let contradictory = ToolMetadata { read_only: true, parallel_safe: Some(false), ..none.clone() };
        check(Source::Command, contradictory, "exclusive");
        check(mcp(), none.clone(), "exclusive");
        check(mcp(), ToolMetadata { read_only: true, ..none.clone() }, "shared nodes m");
        check(mcp(), ToolMetadata { isolated: true, ..none.clone() }, "exclusive nodes m");
        check(mcp(), ToolMetadata { isolated: true, read_only: true, ..none }, "shared nodes m");
    }

    #[test]
    fn s49_the_claim_follows_from_the_tool_and_this_calls_input() {
        let by_path = ClaimRule::paths(Access::Exclusive, &["path"]);
        let settings = settings(&[
            ("m/*", ClaimRule::Shared),
            ("m/edit", by_path.clone()),
            (
                "loose",
                ClaimRule::By {
                    by: crate::tools::claim_rule::Reference::named("op"),
                    cases: IndexMap::new(),
                    otherwise: Box::new(ClaimRule::Exclusive),
                },
            ),
        ]);
        let edit = tool("edit", Source::Mcp("m".into()), ToolMetadata::default());
        let check = |tool: &RegisteredTool, arguments: Value, expected: &str| {
            assert_eq!(told(&settings, tool, &arguments), expected, "{arguments}");
        };
        check(&edit, json!({ "path": "a" }), "exclusive paths a");
        check(&edit, json!({ "path": "./b" }), "exclusive paths ./b");
        check(&edit, json!({}), "exclusive");
        check(&edit, json!({ "path": "https://x/a" }), "exclusive");
        let other = tool("other", Source::Mcp("m".into()), ToolMetadata::default());
        check(&other, json!({}), "shared");
        // A tool's own rule goes before its hints.
        let own = ToolMetadata { claim: Some(by_path), read_only: true, ..ToolMetadata::default() };
        check(&tool("own", Source::Builtin, own), json!({ "path": "a" }), "exclusive paths a");
        check(&tool("loose", Source::Command, ToolMetadata::default()), json!({ "op": "x" }), "exclusive");
        // Two spellings of one path are one claim.
        let claim = |path: &str| call_concurrency_claim(&settings, &edit, &json!({ "path": path }));
        assert_eq!(claim("a/../b"), claim("b"));
        assert_ne!(claim("a"), claim("b"));
    }
}
