//! What differs from client to client: whether it hears of changes, and what the operator wants it to see.

use std::sync::Arc;

use anyhow::{Context, Result};
use globset::{GlobBuilder, GlobMatcher};

use crate::config::tables::{Config, Promote};
use crate::tools::scoped::view::Settings;

/// Clients that read the list once, by the names they give themselves: Codex and the Cline command line drop the
/// notice, Claude Desktop reads the list again and does not use it. What a search finds they reach by `call_tool`.
const DEAF_TO_CHANGES: [&str; 3] = ["codex-mcp-client", "@cline/core", "local-agent-mode-*"];

/// What holds for one client.
#[derive(Clone, Default)]
pub struct ClientRules {
    /// Whether what a search finds joins its list.
    pub promote: Promote,
    /// What it is shown, where that differs from what others are.
    pub settings: Option<Arc<Settings>>,
}

/// What holds for each client.
pub struct Clients {
    /// What the operator says of clients, in the order of the file.
    configured: Vec<(GlobMatcher, ClientRules)>,
    deaf: Vec<GlobMatcher>,
    general: Promote,
}

impl Clients {
    /// Reads `[clients]`; `settings` makes what a changed configuration means.
    ///
    /// # Errors
    /// A name that is no pattern, or an override that cannot be put in force.
    pub fn new(config: &Config, settings: impl Fn(&Config) -> Result<Settings>) -> Result<Clients> {
        let mut configured = Vec::new();
        for (name, client) in &config.clients {
            let mut own = config.clone();
            let mut differs = false;
            if let Some(mode) = &client.session_mode {
                own.tools.session_mode.clone_from(mode);
                differs = true;
            }
            if let Some(core) = &client.core {
                own.tools.core = Some(core.clone());
                differs = true;
            }
            if let Some(defer) = client.defer_mcp_tools {
                own.tools.defer_mcp_tools = defer;
                differs = true;
            }
            let place = || format!("in `[clients.{name}]`");
            let own = if differs { Some(Arc::new(settings(&own).with_context(place)?)) } else { None };
            let promote = client.promote.unwrap_or(config.tools.promote);
            let rules = ClientRules { promote, settings: own };
            configured.push((glob(name).with_context(place)?, rules));
        }
        let deaf = DEAF_TO_CHANGES.iter().map(|name| glob(name)).collect::<Result<_>>()?;
        Ok(Clients { configured, deaf, general: config.tools.promote })
    }

    /// What holds for a client that calls itself so. Of several entries of the operator the first counts.
    pub fn rules(&self, name: &str) -> ClientRules {
        if let Some((_, rules)) = self.configured.iter().find(|(pattern, _)| pattern.is_match(name)) {
            return rules.clone();
        }
        let is_deaf = self.deaf.iter().any(|pattern| pattern.is_match(name));
        let promote = match self.general {
            Promote::Auto if is_deaf => Promote::Never,
            general => general,
        };
        ClientRules { promote, settings: None }
    }
}

fn glob(name: &str) -> Result<GlobMatcher> {
    Ok(GlobBuilder::new(name).case_insensitive(true).literal_separator(false).build()?.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(config: &str) -> Clients {
        Clients::new(&toml::from_str(config).unwrap(), |_| Ok(Settings::default())).unwrap()
    }

    #[test]
    fn the_operator_knows_better_than_we_and_we_know_some_clients() {
        let check = |config: &str, name: &str, promote: Promote, has_settings: bool| {
            let rules = clients(config).rules(name);
            assert_eq!((rules.promote, rules.settings.is_some()), (promote, has_settings), "{config} {name}");
        };
        check("", "claude-code", Promote::Auto, false);
        check("", "codex-mcp-client", Promote::Never, false);
        check("", "local-agent-mode-toolcrib", Promote::Never, false);
        check("", "@cline/core", Promote::Never, false);
        check("[tools]\npromote = 'always'", "codex-mcp-client", Promote::Always, false);
        check("[clients.'codex*']\npromote = 'auto'", "codex-mcp-client", Promote::Auto, false);
        check("[clients.mine]\ncore = ['a']", "mine", Promote::Auto, true);
        check("[clients.mine]\nsession_mode = 'chat'", "MINE", Promote::Auto, true);
        check("[clients.mine]\ndefer_mcp_tools = true", "other", Promote::Auto, false);
    }
}
