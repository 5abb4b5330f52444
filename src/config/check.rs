//! Checks of `tools.toml` that no single value can fail.

use std::collections::HashMap;

use globset::Glob;
use toml::de::{DeTable, DeValue};

use super::diagnose::{ConfigError, Source, did_you_mean, place_of, twice};
use super::tables::{Config, SHIPPED_MODES, is_limit};
use crate::hooks;

/// The first thing that is wrong, if any.
pub(crate) fn check(source: &Source, document: &DeTable<'_>, config: &Config) -> Result<(), ConfigError> {
    distinct_names(source, document, "mcp_servers", "server")?;
    distinct_names(source, document, "commands", "command")?;
    distinct_names(source, document, "hooks", "hook")?;
    transports(source, document, config)?;
    limits(source, document, config)?;
    working_hooks(source, document, config)?;
    session_mode(source, document, config)?;
    patterns(source, document, config)
}

/// Names of servers and commands become names of tools, which are compared without regard to case.
fn distinct_names(
    source: &Source,
    document: &DeTable<'_>,
    table: &str,
    what: &str,
) -> Result<(), ConfigError> {
    let Some(DeValue::Table(entries)) = document.get(table).map(|value| value.get_ref()) else {
        return Ok(());
    };
    let mut seen = HashMap::new();
    for name in entries.keys() {
        if name.get_ref().trim().is_empty() {
            return Err(source.error(name.span(), format!("a {what} needs a name")));
        }
        if let Some(first) = seen.insert(name.get_ref().to_lowercase(), name) {
            return Err(twice(source, what, first.get_ref(), first.span(), name.get_ref(), name.span()));
        }
    }
    Ok(())
}

fn transports(source: &Source, document: &DeTable<'_>, config: &Config) -> Result<(), ConfigError> {
    for (name, server) in &config.mcp_servers {
        let fail = |key: Option<&str>, message: &str| {
            let path: Vec<_> = ["mcp_servers", name].into_iter().chain(key).collect();
            Err(source.error(place_of(document, &path), format!("server `{name}` {message}")))
        };
        match (server.command.as_deref(), server.url.as_deref()) {
            (None, None) => return fail(None, "needs a `command` or a `url`"),
            (Some(_), Some(_)) => {
                return fail(Some("url"), "has both `command` and `url`; it can be reached one way only");
            }
            (Some(""), None) => return fail(Some("command"), "has an empty `command`"),
            (None, Some("")) => return fail(Some("url"), "has an empty `url`"),
            (Some(_), None) | (None, Some(_)) => {}
        }
    }
    Ok(())
}

fn limits(source: &Source, document: &DeTable<'_>, config: &Config) -> Result<(), ConfigError> {
    match config.tools.limits.iter().find(|(_, millis)| !is_limit(**millis)) {
        None => Ok(()),
        Some((pattern, _)) => Err(source.error(
            place_of(document, &["tools", "limits", pattern]),
            format!("`{pattern}` in `[tools.limits]`: must be more than 0 and at most a year"),
        )),
    }
}

fn working_hooks(source: &Source, document: &DeTable<'_>, config: &Config) -> Result<(), ConfigError> {
    for (name, hook) in &config.hooks {
        hooks::check(name, hook).map_err(|problem| {
            source.error(place_of(document, &["hooks", name, problem.key]), problem.message)
        })?;
    }
    Ok(())
}

fn session_mode(source: &Source, document: &DeTable<'_>, config: &Config) -> Result<(), ConfigError> {
    let known: Vec<&str> = SHIPPED_MODES.into_iter().chain(config.modes.keys().map(String::as_str)).collect();
    let general = (["tools", "session_mode"].to_vec(), config.tools.session_mode.as_str());
    let of_clients = config.clients.iter().filter_map(|(name, client)| {
        Some((["clients", name.as_str(), "session_mode"].to_vec(), client.session_mode.as_deref()?))
    });
    for (path, mode) in std::iter::once(general).chain(of_clients) {
        if !known.contains(&mode) {
            let hint = did_you_mean(mode, &known);
            let table = path[..path.len() - 1].join(".");
            let message = format!("`session_mode` in `[{table}]`: there is no mode `{mode}`{hint}");
            return Err(source.error(place_of(document, &path), message));
        }
    }
    Ok(())
}

/// A pattern that can never match would be a rule that never holds.
fn patterns(source: &Source, document: &DeTable<'_>, config: &Config) -> Result<(), ConfigError> {
    let tools = &config.tools;
    let lists: [(&[&str], Option<&[String]>); 3] = [
        (&["tools", "core"], tools.core.as_deref()),
        (&["policy", "allow"], config.policy.allow.as_deref()),
        (&["builtins", "enabled"], config.builtins.enabled.as_deref()),
    ];
    for (path, list) in lists {
        for pattern in list.unwrap_or_default() {
            is_pattern(pattern).map_err(|why| source.error(place_of(document, path), why))?;
        }
    }
    for (name, client) in &config.clients {
        is_pattern(name).map_err(|why| source.error(place_of(document, &["clients", name]), why))?;
        for pattern in client.core.as_deref().unwrap_or_default() {
            let place = place_of(document, &["clients", name, "core"]);
            is_pattern(pattern).map_err(|why| source.error(place, why))?;
        }
    }
    let keys = (tools.limits.keys().map(|key| ["tools", "limits", key.as_str()].to_vec()))
        .chain(tools.claims.keys().map(|key| ["tools", "claims", key.as_str()].to_vec()))
        .chain(tools.permissions.keys().map(|key| ["tools", "permissions", key.as_str()].to_vec()))
        .chain(config.policy.rules.keys().map(|key| ["policy", "rules", key.as_str()].to_vec()));
    for path in keys {
        let pattern = path.last().copied().unwrap_or_default();
        is_pattern(pattern).map_err(|why| source.error(place_of(document, &path), why))?;
    }
    Ok(())
}

fn is_pattern(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("an empty pattern: it has to be a name or a glob".to_owned());
    }
    Glob::new(text).map(|_| ()).map_err(|error| format!("`{text}` is no valid pattern: {}", error.kind()))
}
