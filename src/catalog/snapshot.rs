//! Merges the tools of all sources into immutable snapshots, with conflicts resolved the same way in any order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::watch;

use super::health::HealthBoard;
use super::names::{fold, short_hash};
use super::registry::{RegisteredTool, requires};
use crate::tools::service::Source;

/// Longest wire name: hosts put a prefix of their own before it and stop at 63 or 64.
pub const NAME_LIMIT: usize = 40;

/// Names of tools that belong to the gateway itself; no source can take them.
pub const RESERVED: [&str; 5] = ["tool_search", "get_tool_schema", "call_tool", "call_tools", "read_result"];

/// The tools of one source, as the source last published them.
pub type SourceTools = Arc<[Arc<RegisteredTool>]>;

/// All tools at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Grows with every change.
    pub version: u64,
    table: Arc<Table>,
    unhealthy: HashMap<Source, String>,
}

/// The part of a snapshot that a flip of health does not touch.
#[derive(Debug, Default)]
struct Table {
    /// Sorted by name.
    tools: Vec<Arc<RegisteredTool>>,
    by_name: HashMap<Arc<str>, usize>,
    by_fold: OnceLock<HashMap<String, Folded>>,
}

#[derive(Debug, Clone, Copy)]
enum Folded {
    One(usize),
    Several,
}

impl Snapshot {
    /// Every tool, sorted by name.
    pub fn tools(&self) -> &[Arc<RegisteredTool>] {
        &self.table.tools
    }

    /// The position of a wire name in [`Snapshot::tools`].
    pub fn position(&self, name: &str) -> Option<usize> {
        self.table.by_name.get(name).copied()
    }

    /// The position of the one tool whose name differs from `name` only in case, separators or invisible letters.
    pub fn position_of_variant(&self, name: &str) -> Option<usize> {
        let folds = self.table.by_fold.get_or_init(|| {
            let mut folds = HashMap::with_capacity(self.table.tools.len());
            for (index, tool) in self.table.tools.iter().enumerate() {
                folds
                    .entry(fold(&tool.definition().name))
                    .and_modify(|folded| *folded = Folded::Several)
                    .or_insert(Folded::One(index));
            }
            folds
        });
        match folds.get(&fold(name)) {
            Some(Folded::One(index)) => Some(*index),
            Some(Folded::Several) | None => None,
        }
    }

    /// The tool of this wire name.
    pub fn get(&self, name: &str) -> Option<&Arc<RegisteredTool>> {
        self.position(name).map(|index| &self.table.tools[index])
    }

    /// The tools of one source.
    pub fn by_source<'a>(&'a self, source: &'a Source) -> impl Iterator<Item = &'a Arc<RegisteredTool>> {
        self.table.tools.iter().filter(move |tool| tool.definition().source == *source)
    }

    /// The tools that require this very permission.
    pub fn list_by_permission<'a>(
        &'a self,
        permission: &'a str,
    ) -> impl Iterator<Item = &'a Arc<RegisteredTool>> {
        self.table.tools.iter().filter(move |tool| requires(tool.definition(), permission))
    }

    /// The tools whose name or description holds a text, without regard to case.
    pub fn matching(&self, text: &str) -> impl Iterator<Item = &Arc<RegisteredTool>> {
        let text = text.to_lowercase();
        self.table.tools.iter().filter(move |tool| {
            let definition = tool.definition();
            definition.name.to_lowercase().contains(&text)
                || definition.description.to_lowercase().contains(&text)
        })
    }

    /// Why the tools of a source cannot run at the moment.
    pub fn unhealthy(&self, source: &Source) -> Option<&str> {
        self.unhealthy.get(source).map(String::as_str)
    }
}

/// Gathers what sources publish and hands out snapshots.
pub struct Catalog {
    sources: Mutex<BTreeMap<(u8, Source), SourceTools>>,
    health: HealthBoard,
    current: watch::Sender<Arc<Snapshot>>,
}

impl Default for Catalog {
    fn default() -> Self {
        Catalog {
            sources: Mutex::default(),
            health: HealthBoard::default(),
            current: watch::Sender::new(Arc::default()),
        }
    }
}

impl Catalog {
    /// Replaces the tools of one source.
    pub fn publish(&self, source: Source, tools: SourceTools) {
        let merged = {
            let mut sources = self.sources.lock().expect("no code panics while it holds the sources");
            sources.insert((source.rank(), source), tools);
            merge(sources.iter().map(|((_, source), tools)| (source, tools)))
        };
        self.replace(Arc::new(merged));
    }

    /// Takes a source out of the catalog.
    pub fn remove(&self, source: &Source) {
        let merged = {
            let mut sources = self.sources.lock().expect("no code panics while it holds the sources");
            sources.remove(&(source.rank(), source.clone()));
            merge(sources.iter().map(|((_, source), tools)| (source, tools)))
        };
        self.replace(Arc::new(merged));
    }

    /// Takes a source's word about its health; `None` means that its tools can run.
    pub fn report_health(&self, source: &Source, reason: Option<String>) {
        if self.health.report(source, reason) {
            self.touch();
        }
    }

    /// Makes a new snapshot of the same tools, because something they carry has changed.
    pub fn touch(&self) {
        let table = Arc::clone(&self.current.borrow().table);
        self.replace(table);
    }

    fn replace(&self, table: Arc<Table>) {
        let unhealthy = self.health.unhealthy();
        self.current.send_modify(|current| {
            *current = Arc::new(Snapshot { version: current.version + 1, table, unhealthy });
        });
    }

    /// The snapshot of this moment.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.borrow())
    }

    /// Tells when there is a newer snapshot.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.current.subscribe()
    }

    /// Probes and verdicts.
    pub fn health(&self) -> &HealthBoard {
        &self.health
    }
}

/// Sources come in order of rank and name; the first to want a name keeps it.
fn merge<'a>(sources: impl Iterator<Item = (&'a Source, &'a SourceTools)>) -> Table {
    let mut taken: HashSet<String> = RESERVED.iter().map(|name| (*name).to_owned()).collect();
    let mut tools: Vec<Arc<RegisteredTool>> = Vec::new();
    for (source, published) in sources {
        // By name, so that the order in which a source lists its tools decides nothing.
        let mut losers = Vec::new();
        for tool in published.iter() {
            match taken.insert(tool.definition().name.to_lowercase()) {
                true => tools.push(Arc::clone(tool)),
                false => losers.push(tool),
            }
        }
        losers.sort_by(|a, b| a.definition().name.cmp(&b.definition().name));
        for tool in losers {
            let name = loser_name(&tool.definition().name, source, &taken);
            taken.insert(name.to_lowercase());
            tools.push(Arc::new(tool.renamed(&name)));
        }
    }
    tools.sort_by(|a, b| a.definition().name.cmp(&b.definition().name));
    let by_name =
        tools.iter().enumerate().map(|(i, tool)| (Arc::clone(&tool.definition().name), i)).collect();
    Table { tools, by_name, by_fold: OnceLock::new() }
}

/// `name_SOURCE`, or a hashed form where that is too long or taken as well.
fn loser_name(name: &str, source: &Source, taken: &HashSet<String>) -> String {
    let plain = format!("{name}_{}", source.kind());
    if plain.len() <= NAME_LIMIT && !taken.contains(&plain.to_lowercase()) {
        return plain;
    }
    let hash = short_hash(&format!("{}\0{name}", source.label()));
    let room = NAME_LIMIT - source.kind().len() - hash.len() - 2;
    let head = name.get(..room).unwrap_or(name).trim_end_matches('_');
    format!("{head}_{}_{hash}", source.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::json::RawJson;
    use crate::tools::service::{TextHandler, ToolDefinition, ToolMetadata, ToolResult};

    fn tools(source: &Source, names: &[&str]) -> SourceTools {
        names
            .iter()
            .map(|name| {
                let metadata = ToolMetadata {
                    permissions: vec![format!("{}:use", source.kind())],
                    ..ToolMetadata::default()
                };
                let definition =
                    ToolDefinition::new(name, "some text", RawJson::EMPTY_OBJECT, source.clone(), metadata);
                let handler = TextHandler(|_: &str| ToolResult::from_result(Ok(String::new())));
                Arc::new(RegisteredTool::new(definition, Arc::new(handler)))
            })
            .collect()
    }

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.tools().iter().map(|tool| &*tool.definition().name).collect()
    }

    fn all_sources() -> [Source; 6] {
        [
            Source::Builtin,
            Source::Command,
            Source::Mcp("s".into()),
            Source::Plugin("p".into()),
            Source::Skill,
            Source::Agent,
        ]
    }

    #[test]
    fn s12_s15_one_of_each_source_is_found_by_every_query() {
        let catalog = Catalog::default();
        for source in all_sources() {
            let name = format!("{}_tool", source.kind());
            catalog.publish(source.clone(), tools(&source, &[&name]));
        }
        let snapshot = catalog.snapshot();
        for source in all_sources() {
            let name = format!("{}_tool", source.kind());
            assert_eq!(snapshot.by_source(&source).count(), 1, "{source:?}");
            assert_eq!(&*snapshot.get(&name).unwrap().definition().name, name);
            let permission = format!("{}:use", source.kind());
            assert_eq!(snapshot.list_by_permission(&permission).count(), 1);
            assert_eq!(snapshot.matching(&name.to_uppercase()).count(), 1);
        }
        assert_eq!(snapshot.list_by_permission("use").count(), 0);
        assert_eq!(snapshot.matching("some text").count(), 6);
    }

    #[test]
    fn s13_conflicts_end_the_same_way_in_any_order() {
        let check = |order: &[usize], expected: &[&str]| {
            let mcp = Source::Mcp("s".into());
            let wants = [(Source::Builtin, "x"), (mcp, "X"), (Source::Command, "x"), (Source::Skill, "x")];
            let catalog = Catalog::default();
            for &i in order {
                let (source, name) = &wants[i];
                catalog.publish(source.clone(), tools(source, &[name]));
            }
            assert_eq!(names(&catalog.snapshot()), expected, "{order:?}");
        };
        check(&[0, 1], &["X_mcp", "x"]);
        check(&[1, 0], &["X_mcp", "x"]);
        check(&[0, 1, 2, 3], &["X_mcp", "x", "x_command", "x_skill"]);
        check(&[3, 2, 1, 0], &["X_mcp", "x", "x_command", "x_skill"]);
    }

    #[test]
    fn a_tool_cannot_take_the_name_of_a_meta_tool() {
        let catalog = Catalog::default();
        let source = Source::Mcp("tool".into());
        catalog.publish(source.clone(), tools(&source, &["tool_search"]));
        assert_eq!(names(&catalog.snapshot()), ["tool_search_mcp"]);
    }

    #[test]
    fn a_long_loser_stays_within_the_limit_and_legal() {
        let long = "a".repeat(NAME_LIMIT);
        let catalog = Catalog::default();
        for source in [Source::Builtin, Source::Skill] {
            catalog.publish(source.clone(), tools(&source, &[&long]));
        }
        let snapshot = catalog.snapshot();
        assert!(names(&snapshot).iter().all(|n| n.len() <= NAME_LIMIT && !n.contains("__")), "{snapshot:?}");
        assert_eq!(snapshot.tools().len(), 2);
    }

    #[test]
    fn s14_health_is_part_of_the_snapshot() {
        let catalog = Catalog::default();
        let source = Source::Mcp("s".into());
        catalog.publish(source.clone(), tools(&source, &["s_x"]));
        assert_eq!(catalog.snapshot().unhealthy(&source), None);
        catalog.report_health(&source, Some("process ended".into()));
        assert_eq!(catalog.snapshot().unhealthy(&source), Some("process ended"));
        assert!(catalog.snapshot().get("s_x").is_some(), "an unhealthy tool is still known");
        catalog.report_health(&source, None);
        assert_eq!(catalog.snapshot().unhealthy(&source), None);
    }

    #[test]
    fn spellings_find_their_tool_unless_two_tools_fit() {
        let catalog = Catalog::default();
        let source = Source::Mcp("s".into());
        catalog.publish(source.clone(), tools(&source, &["s_get_user", "s_other"]));
        let snapshot = catalog.snapshot();
        let found = |asked: &str| snapshot.position_of_variant(asked).map(|i| names(&snapshot)[i].to_owned());
        assert_eq!(found("S.Get-User"), Some("s_get_user".into()));
        assert_eq!(found("s_getuser"), None);
    }
}
