//! Everything that is decided about a call before anything waits or runs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::claims::call_concurrency_claim;
use super::disclosure::Exposure;
use super::policy::Judgement;
use super::view::{Place, Reason, Settings, View, Visibility};
use crate::catalog::names::suggestions;
use crate::catalog::registry::{Grants, RegisteredTool};
use crate::tools::concurrency::ConcurrencyClaim;
use crate::tools::error::{Denial, Executed, ToolError};
use crate::tools::json::{RawJson, RawObject};
use crate::tools::service::{Input, ToolDefinition};

/// A call that has passed every check that needs no waiting. Only [`prepare`] makes one.
pub struct Prepared {
    tool: Arc<RegisteredTool>,
    input: Input,
    settings: Arc<Settings>,
    confirmation: Option<Confirmation>,
    is_exactly_allowed: bool,
    is_meta: bool,
    limit: Duration,
    has_operators_limit: bool,
}

/// A person has to say yes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// Why.
    pub reason: String,
    /// Whether the answer may hold for more than this call.
    pub may_be_remembered: bool,
}

impl Prepared {
    /// The tool, under its canonical name.
    pub fn tool(&self) -> &Arc<RegisteredTool> {
        &self.tool
    }

    /// The arguments, in the tool's own spelling.
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// What the caller holds.
    pub fn grants(&self) -> &Grants {
        &self.settings.grants
    }

    /// Whether an exact rule of the operator allows this very tool, which answers whatever it would ask.
    pub fn is_exactly_allowed(&self) -> bool {
        self.is_exactly_allowed
    }

    /// The question to a person, if there is one.
    pub fn confirmation(&self) -> Option<&Confirmation> {
        self.confirmation.as_ref()
    }

    /// Whether it is one of the gateway's own tools, which look at the catalog and touch nothing.
    pub fn is_meta(&self) -> bool {
        self.is_meta
    }

    /// How long the tool may run.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether the operator has set that limit for this tool.
    pub fn has_operators_limit(&self) -> bool {
        self.has_operators_limit
    }

    /// What the call touches, as the disk stands now.
    pub fn claim(&self) -> ConcurrencyClaim {
        call_concurrency_claim(&self.settings, &self.tool, &self.input.value)
    }
}

/// Resolves a name and judges a call: allowlist, deny, grants, health, schema, confirmation, in this order.
///
/// # Errors
/// The first check that fails; nothing has been run.
pub fn prepare(view: &View, name: &str, arguments: RawJson) -> Result<Prepared, ToolError> {
    if let Some(meta) = view.meta(name) {
        if name == "call_tool" {
            let (inner, arguments) = unwrap_call_tool(meta, arguments)?;
            if inner == "call_tool" {
                return Err(not_found(view, &inner));
            }
            return prepare(view, &inner, arguments);
        }
        return checked(Arc::clone(meta), arguments, view, None, None);
    }
    let found = view.snapshot.position(name).or_else(|| view.snapshot.position_of_variant(name));
    let Some(position) = found else { return Err(not_found(view, name)) };
    let tool = Arc::clone(&view.snapshot.tools()[position]);
    let place = view.place(position);
    let canonical = || tool.definition().name.to_string();
    match &place.visibility {
        Visibility::Withheld(Reason::NotAllowlisted) => return Err(not_found(view, name)),
        Visibility::Withheld(Reason::Denied(rule)) => {
            let denial = Denial::Policy(rule.clone());
            return Err(ToolError::PermissionDenied { tool: canonical(), denial });
        }
        Visibility::Withheld(Reason::Ungranted(missing)) => {
            let denial = Denial::MissingPermissions(missing.clone());
            return Err(ToolError::PermissionDenied { tool: canonical(), denial });
        }
        // The snapshot's word may be old: the source itself is asked below.
        Visibility::Withheld(Reason::Unhealthy(_))
        | Visibility::Full
        | Visibility::Collapsed
        | Visibility::Deferred => {}
    }
    // Judged above, so that no spelling is a way around a rule; run only under a spelling that people use.
    if !is_plain_spelling(name) {
        return Err(not_found(view, name));
    }
    if let Some(cause) = tool.unhealthy() {
        return Err(ToolError::Transport { tool: canonical(), cause, executed: Executed::No });
    }
    let confirmation = match &place.judgement {
        Judgement::Ask { reason, may_be_remembered } => {
            Some(Confirmation { reason: reason.clone(), may_be_remembered: *may_be_remembered })
        }
        Judgement::Allow | Judgement::Deny(_) => None,
    };
    checked(tool, arguments, view, confirmation, Some(place))
}

/// Letters, digits and single separators: what models write when they misremember a name.
fn is_plain_spelling(name: &str) -> bool {
    let is_separator = |c: char| matches!(c, '_' | '-' | '.' | ':' | '/' | ' ');
    let mut before = '.';
    name.trim().chars().all(|c| {
        // Two underscores are how many hosts join a server and a tool.
        let fits = c.is_ascii_alphanumeric()
            || (is_separator(c) && (!is_separator(before) || (c, before) == ('_', '_')));
        before = c;
        fits
    })
}

/// The last checks. The gateway's own tools have no place in the view.
fn checked(
    tool: Arc<RegisteredTool>,
    arguments: RawJson,
    view: &View,
    confirmation: Option<Confirmation>,
    place: Option<&Place>,
) -> Result<Prepared, ToolError> {
    let input = Input::new(arguments).map_err(|error| ToolError::Validation {
        tool: tool.definition().name.to_string(),
        path: String::new(),
        message: format!("the arguments cannot be read: {error}"),
        schema: None,
    })?;
    let input = tool.own_spelling(input);
    tool.validate(&input.value).map_err(|error| match error {
        // A model that was not shown the schema can only repair its call if it is shown now.
        ToolError::Validation { tool: name, path, message, .. }
            if place.is_some_and(|place| place.exposure != Exposure::Full) =>
        {
            let schema = Some(tool.definition().input_schema.clone());
            ToolError::Validation { tool: name, path, message, schema }
        }
        error => error,
    })?;
    let operators_limit = limit(&view.settings, tool.definition());
    let limit = operators_limit.unwrap_or_else(|| tool.default_limit());
    Ok(Prepared {
        tool,
        input,
        settings: Arc::clone(&view.settings),
        confirmation,
        is_exactly_allowed: place.is_some_and(|place| place.is_exactly_allowed),
        is_meta: place.is_none(),
        limit,
        has_operators_limit: operators_limit.is_some(),
    })
}

/// The operator's limit; of several patterns the longest, which is the most specific, counts.
fn limit(settings: &Settings, tool: &ToolDefinition) -> Option<Duration> {
    let fitting = settings.limits.iter().filter(|(pattern, _)| pattern.matches(tool));
    fitting.max_by_key(|(pattern, _)| pattern.text().len()).map(|(_, limit)| *limit)
}

fn unwrap_call_tool(meta: &RegisteredTool, arguments: RawJson) -> Result<(String, RawJson), ToolError> {
    let value = arguments.to_value().unwrap_or(Value::Null);
    meta.validate(&value)?;
    let object = RawObject::parse(arguments.as_bytes()).unwrap_or_default();
    let name = object.text("name").unwrap_or_default();
    let inner = match object.get("arguments") {
        Some(raw) if raw.get() != "null" => RawJson::slice(arguments.bytes(), raw),
        _ => RawJson::EMPTY_OBJECT,
    };
    Ok((name, inner))
}

/// Only tools that could be called are ever suggested.
fn not_found(view: &View, name: &str) -> ToolError {
    let names = view.dispatchable().map(|(_, tool)| &*tool.definition().name);
    let suggestions = suggestions(name, names).into_iter().map(str::to_owned).collect();
    ToolError::NotFound { tool: name.to_owned(), suggestions }
}
