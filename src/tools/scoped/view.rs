//! Computes what one scope shows of a snapshot: the one visibility function behind list, search, lookup and calls.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;

use super::disclosure::{Disclosure, Exposure};
use super::paths::Workspace;
use super::policy::{Judgement, Pattern, Policy};
use super::rewriters::{
    DefinitionRewriter, ProgressiveDisclosureRewriter, always_loaded, without_output_schema,
};
use crate::catalog::registry::{Grants, RegisteredTool};
use crate::catalog::snapshot::Snapshot;
use crate::tools::claim_rule::ClaimRule;
use crate::tools::json::{RawJson, array};
use crate::tools::service::{Source, ToolDefinition};

/// What the configuration says about scopes; the same for every connection.
#[derive(Default)]
pub struct Settings {
    /// Allowlist, rules, tier.
    pub policy: Policy,
    /// What callers hold.
    pub grants: Grants,
    /// Core, deferral, mode.
    pub disclosure: Disclosure,
    /// Applied to every presented tool, in order, before disclosure.
    pub rewriters: Vec<Arc<dyn DefinitionRewriter>>,
    /// `[tools.limits]`: the operator's time limits.
    pub limits: Vec<(Pattern, Duration)>,
    /// `[tools.claims]`: what tools touch, as the operator knows it.
    pub claims: Vec<(Pattern, ClaimRule)>,
    /// Where paths among arguments start.
    pub workspace: Workspace,
    /// `call_tools` is there also when nothing is deferred.
    pub offers_batch: bool,
    /// Results may be cut, so that there is something to read on in.
    pub cuts_results: bool,
}

/// How a tool appears in a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visibility {
    /// In the list, with its whole schema.
    Full,
    /// In the list, as name and description.
    Collapsed,
    /// Not in the list; found by search, and callable.
    Deferred,
    /// Nowhere to be seen.
    Withheld(Reason),
}

impl fmt::Display for Visibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Visibility::Full => f.write_str("in full"),
            Visibility::Collapsed => f.write_str("name and description"),
            Visibility::Deferred => f.write_str("found by tool_search"),
            Visibility::Withheld(Reason::NotAllowlisted) => f.write_str("withheld: not in the allowlist"),
            Visibility::Withheld(Reason::Denied(rule)) => write!(f, "withheld: {rule}"),
            Visibility::Withheld(Reason::Ungranted(missing)) => {
                write!(f, "withheld: not granted: {}", missing.join(", "))
            }
            Visibility::Withheld(Reason::Unhealthy(why)) => write!(f, "withheld: {why}"),
        }
    }
}

/// Why a tool is nowhere to be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Outside the allowlist: it does not exist here.
    NotAllowlisted,
    /// A rule or the tier denies it; the text names which.
    Denied(String),
    /// Grants that are not held, in the order of declaration.
    Ungranted(Vec<String>),
    /// Its source cannot run it at the moment.
    Unhealthy(String),
}

/// One tool in a view.
#[derive(Debug, Clone)]
pub struct Place {
    /// How it appears.
    pub visibility: Visibility,
    /// How it would appear if nothing had been promoted.
    pub exposure: Exposure,
    /// What policy says about running it.
    pub judgement: Judgement,
    /// Whether an exact rule allows it.
    pub is_exactly_allowed: bool,
}

impl Default for Place {
    /// The place of the gateway's own tools: shown, allowed, nothing asked.
    fn default() -> Self {
        Place {
            visibility: Visibility::Full,
            exposure: Exposure::Full,
            judgement: Judgement::Allow,
            is_exactly_allowed: false,
        }
    }
}

/// One line of the list.
enum Listed<'a> {
    Meta(&'a RegisteredTool),
    Tool(usize),
}

/// The tools of the gateway itself, where they exist.
pub struct MetaTools {
    /// Finds tools that are not shown in full.
    pub search: Arc<RegisteredTool>,
    /// Returns full parameters.
    pub schema: Arc<RegisteredTool>,
    /// Calls a tool by name for clients that never list again.
    pub call: Arc<RegisteredTool>,
    /// Calls several tools.
    pub batch: Arc<RegisteredTool>,
    /// Reads on in results that were cut.
    pub read: Arc<RegisteredTool>,
}

/// One snapshot seen through one scope. Immutable; replaced when either changes.
pub struct View {
    /// The tools behind the view.
    pub snapshot: Arc<Snapshot>,
    /// The settings behind the view.
    pub settings: Arc<Settings>,
    /// The meta tools that exist in this view, by name.
    meta: Vec<Arc<RegisteredTool>>,
    places: Vec<Place>,
    promoted: Arc<[Arc<str>]>,
    servers: Vec<String>,
    listed: OnceLock<Arc<[ToolDefinition]>>,
    wire: OnceLock<Bytes>,
}

impl View {
    /// Decides for every tool of a snapshot.
    pub fn new(
        snapshot: Arc<Snapshot>,
        settings: Arc<Settings>,
        promoted: Arc<[Arc<str>]>,
        tools: &MetaTools,
    ) -> View {
        let mut places: Vec<Place> =
            snapshot.tools().iter().map(|tool| place(tool.definition(), &snapshot, &settings)).collect();
        let shown: Vec<usize> = (0..places.len())
            .filter(|&i| {
                matches!(places[i].visibility, Visibility::Full | Visibility::Withheld(Reason::Unhealthy(_)))
            })
            .collect();
        let definitions: Vec<&ToolDefinition> =
            shown.iter().map(|&i| snapshot.tools()[i].definition()).collect();
        let (exposures, disclosure_on) = settings.disclosure.exposures(&definitions);
        for (&i, exposure) in shown.iter().zip(exposures) {
            places[i].exposure = exposure;
            if places[i].visibility == Visibility::Full {
                places[i].visibility = match exposure {
                    Exposure::Full => Visibility::Full,
                    Exposure::Collapsed => Visibility::Collapsed,
                    Exposure::Deferred => Visibility::Deferred,
                };
            }
        }
        let any = |exposure: Exposure| shown.iter().any(|&i| places[i].exposure == exposure);
        let (any_deferred, any_collapsed) = (any(Exposure::Deferred), any(Exposure::Collapsed));
        for name in promoted.iter() {
            if let Some(i) = snapshot.position(name)
                && matches!(places[i].visibility, Visibility::Deferred | Visibility::Collapsed)
            {
                places[i].visibility = Visibility::Full;
            }
        }
        let mut meta = Vec::new();
        if any_deferred {
            meta.push(Arc::clone(&tools.call));
        }
        if any_deferred || settings.offers_batch {
            meta.push(Arc::clone(&tools.batch));
        }
        if settings.cuts_results {
            meta.push(Arc::clone(&tools.read));
        }
        if disclosure_on {
            meta.push(Arc::clone(&tools.schema));
        }
        if any_deferred || any_collapsed {
            meta.push(Arc::clone(&tools.search));
        }
        let mut servers: Vec<String> = Vec::new();
        for &i in &shown {
            if let Source::Mcp(name) = &snapshot.tools()[i].definition().source
                && !servers.contains(name)
            {
                servers.push(name.clone());
            }
        }
        let (listed, wire) = (OnceLock::new(), OnceLock::new());
        View { snapshot, settings, meta, places, promoted, servers, listed, wire }
    }

    /// The place of the tool at a position of the snapshot.
    pub fn place(&self, position: usize) -> &Place {
        &self.places[position]
    }

    /// A meta tool that exists here.
    pub fn meta(&self, name: &str) -> Option<&Arc<RegisteredTool>> {
        self.meta.iter().find(|tool| &*tool.definition().name == name)
    }

    /// The upstream servers behind the view, in order of their tools.
    pub fn servers(&self) -> &[String] {
        &self.servers
    }

    /// Tools that can be called, at positions of the snapshot.
    pub fn dispatchable(&self) -> impl Iterator<Item = (usize, &Arc<RegisteredTool>)> {
        let tools = self.snapshot.tools().iter().enumerate();
        tools.filter(|(i, _)| !matches!(self.places[*i].visibility, Visibility::Withheld(_)))
    }

    /// Tools that search can find: everything callable that was not shown in full from the start.
    pub fn searchable(&self) -> impl Iterator<Item = (usize, &Arc<RegisteredTool>)> {
        self.dispatchable().filter(|(i, _)| self.places[*i].exposure != Exposure::Full)
    }

    /// How a tool is presented; `None` if it is nowhere to be seen.
    pub fn present(&self, position: usize) -> Option<ToolDefinition> {
        let tool = &self.snapshot.tools()[position];
        let mut shown = match &self.places[position].visibility {
            Visibility::Withheld(_) => return None,
            _ if tool.output_promise_withdrawn() => without_output_schema(tool.definition()),
            _ => tool.definition().clone(),
        };
        for rewriter in &self.settings.rewriters {
            shown = rewriter.rewrite(shown);
        }
        if self.places[position].visibility == Visibility::Collapsed {
            shown = ProgressiveDisclosureRewriter.rewrite(shown);
        }
        if self.is_promoted(position) {
            shown = always_loaded(&shown);
        }
        Some(shown)
    }

    fn is_promoted(&self, position: usize) -> bool {
        let place = &self.places[position];
        place.visibility == Visibility::Full && place.exposure != Exposure::Full
    }

    /// The tools in the list, in its order: sorted by name, then promoted ones in order of promotion.
    pub fn listed(&self) -> &Arc<[ToolDefinition]> {
        self.listed.get_or_init(|| {
            let shown = self.order().into_iter().filter_map(|entry| match entry {
                Listed::Meta(tool) => Some(self.present_meta(tool)),
                Listed::Tool(position) => self.present(position),
            });
            shown.collect()
        })
    }

    /// What stands in the list, in its order.
    fn order(&self) -> Vec<Listed<'_>> {
        let tools = self.snapshot.tools();
        let in_list = (0..self.places.len()).filter(|&i| {
            matches!(self.places[i].visibility, Visibility::Full | Visibility::Collapsed)
                && !self.is_promoted(i)
        });
        let mut order: Vec<Listed> = in_list.map(Listed::Tool).collect();
        // The snapshot is sorted by name already; the few meta tools find their places in it.
        for meta in &self.meta {
            let name = &meta.definition().name;
            let at = order.partition_point(|entry| match entry {
                Listed::Meta(other) => other.definition().name < *name,
                Listed::Tool(position) => tools[*position].definition().name < *name,
            });
            order.insert(at, Listed::Meta(meta));
        }
        let promoted = self.promoted.iter().filter_map(|name| self.snapshot.position(name));
        order.extend(promoted.filter(|&i| self.is_promoted(i)).map(Listed::Tool));
        order
    }

    /// The wire form of a listed tool; that of a tool nothing changes is not copied.
    fn wire_of(&self, entry: &Listed<'_>) -> RawJson {
        match entry {
            Listed::Meta(tool) => self.present_meta(tool).wire,
            Listed::Tool(position) => {
                let tool = &self.snapshot.tools()[*position];
                let is_plain = self.settings.rewriters.is_empty()
                    && self.places[*position].visibility == Visibility::Full
                    && !self.is_promoted(*position)
                    && !tool.output_promise_withdrawn();
                match is_plain {
                    true => tool.definition().wire.clone(),
                    false => self.present(*position).map_or(RawJson::EMPTY_OBJECT, |shown| shown.wire),
                }
            }
        }
    }

    /// The text of the `tools` array.
    pub fn wire(&self) -> &Bytes {
        self.wire.get_or_init(|| {
            let wires: Vec<RawJson> = self.order().iter().map(|entry| self.wire_of(entry)).collect();
            array(wires.iter()).into()
        })
    }

    fn present_meta(&self, tool: &RegisteredTool) -> ToolDefinition {
        let definition = tool.definition();
        if &*definition.name != "tool_search" || self.servers.is_empty() {
            return always_loaded(definition);
        }
        // The first 250 letters are all that some hosts show, so the servers come first.
        let mut behind = String::new();
        for server in &self.servers {
            if behind.len() + server.len() > 150 {
                behind.push_str(", …");
                break;
            }
            if !behind.is_empty() {
                behind.push_str(", ");
            }
            behind.push_str(server);
        }
        let mut shown = ToolDefinition::new(
            &definition.name,
            &format!("Finds tools of: {behind}. {}", definition.description),
            definition.input_schema.clone(),
            definition.source.clone(),
            definition.metadata.clone(),
        );
        shown.title.clone_from(&definition.title);
        always_loaded(&shown)
    }

    /// How often each reason withholds a tool, in counts without names.
    pub fn withheld_counts(&self) -> HashMap<&'static str, usize> {
        let mut counts = HashMap::new();
        for place in &self.places {
            let Visibility::Withheld(reason) = &place.visibility else { continue };
            let word = match reason {
                // Outside the allowlist means not existing; existence is not counted either.
                Reason::NotAllowlisted => continue,
                Reason::Denied(_) => "denied by policy",
                Reason::Ungranted(_) => "missing grants",
                Reason::Unhealthy(_) => "not reachable",
            };
            *counts.entry(word).or_default() += 1;
        }
        counts
    }
}

/// Policy, grants and health of one tool; disclosure comes later because it looks at all tools at once.
fn place(tool: &ToolDefinition, snapshot: &Snapshot, settings: &Settings) -> Place {
    let judgement = settings.policy.judge(tool);
    let missing = settings.grants.missing(&tool.metadata.permissions);
    let visibility = if !settings.policy.is_allowlisted(tool) {
        Visibility::Withheld(Reason::NotAllowlisted)
    } else if let Judgement::Deny(rule) = &judgement {
        Visibility::Withheld(Reason::Denied(rule.clone()))
    } else if !missing.is_empty() {
        Visibility::Withheld(Reason::Ungranted(missing))
    } else if let Some(reason) = snapshot.unhealthy(&tool.source) {
        Visibility::Withheld(Reason::Unhealthy(reason.to_owned()))
    } else {
        Visibility::Full
    };
    let is_exactly_allowed = settings.policy.allows_exactly(tool);
    Place { visibility, exposure: Exposure::Full, judgement, is_exactly_allowed }
}
