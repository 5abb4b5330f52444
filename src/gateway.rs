//! Builds everything from the configuration, owns every server and task, and shuts them down.

pub mod clients;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use self::clients::{ClientRules, Clients};
use crate::builtins;
use crate::catalog::registry::{Grants, RegisteredTool};
use crate::catalog::snapshot::Catalog;
use crate::commands;
use crate::config::Loaded;
use crate::config::tables::{Config, Promote, WithoutClient};
use crate::executor::approvals::TicketDesk;
use crate::executor::calls::{Executor, Shared};
use crate::executor::schedule::Schedule;
use crate::hooks;
use crate::skills;
use crate::state::LazyState;
use crate::tools::approval::{ApprovalHandler, Nobody};
use crate::tools::results::Budget;
use crate::tools::scoped::disclosure::{Disclosure, ModeConfig, shipped_modes};
use crate::tools::scoped::paths::Workspace;
use crate::tools::scoped::policy::{Pattern, Policy, patterns};
use crate::tools::scoped::service::ScopedToolService;
use crate::tools::scoped::view::Settings;
use crate::tools::service::Source;
use crate::upstream::cache::CatalogCache;
use crate::upstream::client::{ClientSide, ClientSlot};
use crate::upstream::link::Era;
use crate::upstream::owners::Owners;
use crate::upstream::publisher::{Decorate, Publisher};
use crate::upstream::server::{Spec, Status, Upstream};
use crate::upstream::supervisor::{DEPTH_VARIABLE, Shutdown, supervise};
use crate::upstream::tools::Translated;

/// Longest wait for all servers to leave; each has shorter limits of its own.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(3);

/// Gateways may stand behind gateways; deeper than this a configuration starts itself.
const DEEPEST: u32 = 4;

/// How many gateways stand before this one.
fn depth() -> u32 {
    std::env::var(DEPTH_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The whole gateway, shared by its connections.
pub struct Gateway {
    catalog: Arc<Catalog>,
    upstreams: Vec<Arc<Upstream>>,
    client: Arc<ClientSlot>,
    settings: Arc<Settings>,
    decorate: Decorate,
    cache: Arc<CatalogCache>,
    shared: Arc<Shared>,
    budget: Budget,
    approvals: Arc<dyn ApprovalHandler>,
    approval_limit: Duration,
    clients: Clients,
    list_deadline: Duration,
    tasks: Mutex<JoinSet<()>>,
    shutdown: watch::Sender<Shutdown>,
    started: Mutex<Option<Instant>>,
    is_started: AtomicBool,
    sessions: AtomicU64,
}

impl Gateway {
    /// Puts everything together; nothing is started.
    ///
    /// # Errors
    /// Configuration that cannot be put in force, in words for the operator.
    pub fn new(loaded: &Loaded, state: Arc<LazyState>) -> Result<Arc<Gateway>> {
        let config = &loaded.config;
        let catalog = Arc::new(Catalog::default());
        let requirements = requirements(config)?;
        let decorate: Decorate = {
            let requirements = requirements.clone();
            Arc::new(move |mut translated: Translated| {
                for tool in &mut translated.tools {
                    if let Some(decorated) = with_requirements(tool, &requirements) {
                        *tool = Arc::new(decorated);
                    }
                }
                translated
            })
        };
        let publish = |source: Source, tools: Vec<RegisteredTool>| {
            let tools = tools
                .into_iter()
                .map(|tool| Arc::new(with_requirements(&tool, &requirements).unwrap_or(tool)));
            catalog.publish(source, tools.collect());
        };
        publish(
            Source::Builtin,
            builtins::tools::all(&config.builtins.roots, config.builtins.enabled.as_deref())?,
        );
        for (name, command) in &config.commands {
            commands::check(name, command).map_err(|why| anyhow::anyhow!("`[commands.{name}]`: {why}"))?;
        }
        let usable = config.commands.iter().filter(|(name, _)| !loaded.disabled_commands.contains_key(*name));
        publish(Source::Command, usable.map(|(name, command)| commands::tool::tool(name, command)).collect());
        publish(Source::Skill, skills::tools(&config.skills.paths));
        for (name, why) in loaded.disabled.iter().chain(&loaded.disabled_commands) {
            tracing::error!(%name, "disabled: {why}");
        }
        let client = Arc::new(ClientSlot::default());
        let upstreams = upstreams(loaded, &client);
        let approvals: Arc<dyn ApprovalHandler> = match config.approvals.without_client {
            WithoutClient::Ticket => Arc::new(TicketDesk::new(Arc::clone(&state))),
            WithoutClient::Deny => Arc::new(Nobody),
        };
        let shared = Arc::new(Shared {
            schedule: Schedule::new(config.tools.max_parallel_calls),
            hooks: hooks::hooks(&config.hooks).map_err(anyhow::Error::msg)?,
            parallel_limit: Duration::from_millis(config.tools.parallel_timeout_ms),
            owners: Owners::new(upstreams.clone()),
        });
        let budget = Budget {
            max_chars: config.results.max_chars,
            keep_bytes: config.results.keep_mb.saturating_mul(1 << 20),
        };
        Ok(Arc::new(Gateway {
            catalog,
            upstreams,
            shared,
            budget,
            client,
            settings: Arc::new(settings(config)?),
            decorate,
            cache: Arc::new(CatalogCache::new(state)),
            approvals,
            approval_limit: Duration::from_millis(config.approvals.timeout_ms),
            clients: Clients::new(config, settings)?,
            list_deadline: Duration::from_millis(config.tools.first_list_wait_ms),
            tasks: Mutex::default(),
            shutdown: watch::Sender::new(Shutdown::No),
            started: Mutex::default(),
            is_started: AtomicBool::new(false),
            sessions: AtomicU64::new(1),
        }))
    }

    /// Starts all upstream servers side by side, the first time this is called.
    pub fn start(&self) {
        if self.is_started.swap(true, Ordering::Relaxed) {
            return;
        }
        *self.started.lock().expect("no code panics while it holds the start time") = Some(Instant::now());
        let mut tasks = self.tasks.lock().expect("no code panics while it holds the tasks");
        if depth() >= DEEPEST {
            tracing::error!(
                "this gateway was started by itself {DEEPEST} times over: its servers are not started"
            );
            for upstream in &self.upstreams {
                upstream
                    .set_status(Status::Failed("a gateway that starts itself was stopped here".to_owned()));
                upstream.settle();
            }
            return;
        }
        let usable: Vec<Arc<Upstream>> =
            self.upstreams.iter().filter(|upstream| !upstream.is_settled()).cloned().collect();
        if usable.is_empty() {
            return;
        }
        for upstream in &usable {
            tasks.spawn(supervise(
                Arc::clone(upstream),
                Publisher {
                    catalog: Arc::clone(&self.catalog),
                    decorate: Arc::clone(&self.decorate),
                    cache: Arc::clone(&self.cache),
                },
                self.shutdown.subscribe(),
            ));
        }
        let publisher = Publisher {
            catalog: Arc::clone(&self.catalog),
            decorate: Arc::clone(&self.decorate),
            cache: Arc::clone(&self.cache),
        };
        tasks.spawn(async move { publisher.publish_cached(usable).await });
    }

    /// Lets each server go as soon as none of its calls is open.
    pub fn wind_down(&self) {
        self.shutdown.send_replace(Shutdown::WhenIdle);
    }

    /// Ends all servers and waits until none is left.
    pub async fn stop(&self, how: Shutdown) {
        self.shutdown.send_replace(how);
        let mut tasks =
            std::mem::take(&mut *self.tasks.lock().expect("no code panics while it holds the tasks"));
        let all = async { while tasks.join_next().await.is_some() {} };
        if timeout(SHUTDOWN_LIMIT, all).await.is_err() {
            tracing::warn!("some servers did not leave in time and were ended");
        }
        // Dropping what is left kills its process groups.
        tasks.shutdown().await;
        let cache = Arc::clone(&self.cache);
        let _ = timeout(SHUTDOWN_LIMIT, tokio::task::spawn_blocking(move || cache.write_waiting())).await;
    }

    /// A new connection: its view of the tools, and what runs its calls.
    pub fn connect(&self) -> (Arc<ScopedToolService>, Arc<Executor>) {
        self.connect_with(self.budget)
    }

    /// A new connection whose results may be this long.
    pub fn connect_with(&self, budget: Budget) -> (Arc<ScopedToolService>, Arc<Executor>) {
        let (catalog, settings) = (Arc::clone(&self.catalog), Arc::clone(&self.settings));
        Executor::connect(catalog, settings, Arc::clone(&self.shared), budget)
    }

    /// A new connection's view of the tools, for whoever only looks.
    pub fn scope(&self) -> Arc<ScopedToolService> {
        self.connect().0
    }

    /// What runs all connections' calls.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sets whom upstream servers may ask. What it can do is told to servers that start afterwards.
    pub fn introduce(&self, client: Arc<dyn ClientSide>) {
        self.client.set(client);
    }

    /// Tells every running server of the session era something that the client said.
    pub fn tell_servers(&self, method: &str) {
        for upstream in &self.upstreams {
            if let Status::Ready(link) = upstream.status()
                && link.era() == Era::Session
            {
                link.notify(method, b"{}");
            }
        }
    }

    /// All tools.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// All configured servers that can be used.
    pub fn upstreams(&self) -> &[Arc<Upstream>] {
        &self.upstreams
    }

    /// A number no other connection of this process has.
    pub fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    /// How long a person may take to answer.
    pub fn approval_limit(&self) -> Duration {
        self.approval_limit
    }

    /// Who is asked where the client cannot ask.
    pub fn approvals_without_client(&self) -> Arc<dyn ApprovalHandler> {
        Arc::clone(&self.approvals)
    }

    /// What holds for a client that calls itself so.
    pub fn rules_for(&self, client: &str) -> ClientRules {
        self.clients.rules(client)
    }

    /// Whether what a search finds joins a client's list.
    pub fn promotes(promote: Promote, is_modern: bool, listens: bool) -> bool {
        match promote {
            Promote::Always => true,
            Promote::Never => false,
            Promote::Auto => !is_modern || listens,
        }
    }

    /// Whether a list need not wait: all servers have answered or failed, or the first list has waited long enough.
    pub fn is_list_ready(&self) -> bool {
        self.upstreams.iter().all(|upstream| upstream.is_settled())
            || self.list_deadline().is_none_or(|deadline| Instant::now() >= deadline)
    }

    /// Waits until [`Gateway::is_list_ready`].
    pub async fn until_list_ready(&self) {
        if let Some(deadline) = self.list_deadline() {
            let _ = timeout_at(deadline, self.until_settled()).await;
        }
    }

    /// Waits until every server has answered or failed once.
    pub async fn until_settled(&self) {
        for upstream in &self.upstreams {
            upstream.until_settled().await;
        }
    }

    /// Waits until every server is ready or has failed; what was kept from an earlier start does not count.
    pub async fn until_answered(&self) {
        for upstream in &self.upstreams {
            upstream.until_answered().await;
        }
    }

    fn list_deadline(&self) -> Option<Instant> {
        let started = *self.started.lock().expect("no code panics while it holds the start time");
        started.map(|started| started + self.list_deadline)
    }

    /// A few sentences for a model that has never seen this server.
    pub fn instructions(&self) -> String {
        instructions(self.upstreams.iter().map(|upstream| &upstream.spec))
    }
}

/// Letters of the names of servers that come first: some hosts show no more than 250 of the whole.
const NAMES_LETTERS: usize = 130;
/// Letters of what one server is good for.
const ABOUT_LETTERS: usize = 120;
/// Letters of the whole; hosts cut at 4,096 or pay for each.
const INSTRUCTIONS_LETTERS: usize = 2_000;

fn instructions<'a>(servers: impl Iterator<Item = &'a Spec> + Clone) -> String {
    let names: Vec<&str> = servers.clone().map(|spec| spec.name.as_str()).collect();
    let mut text = match names.is_empty() {
        true => "This gateway brings local file, search and shell tools.".to_owned(),
        false => format!("Gateway to the tools of: {}.", shortened(&names.join(", "), NAMES_LETTERS)),
    };
    text.push_str(
        " If tool_search is among your tools, use it to find tools that are not: a few words for one capability at a \
         time. Call what it finds by its name, or by call_tool. Tools are named SERVER_TOOL. Dangerous calls may ask the \
         user first; an answer with a ticket means that the user has to allow the call in a terminal before you send it \
         again. A result that was cut says how read_result gives the rest.",
    );
    for spec in servers.filter(|spec| !spec.about.is_empty()) {
        let line = format!("\n- {}: {}", spec.name, shortened(&spec.about, ABOUT_LETTERS));
        if text.len() + line.len() > INSTRUCTIONS_LETTERS {
            break;
        }
        text.push_str(&line);
    }
    text
}

fn shortened(text: &str, letters: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(letters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Tools that a pattern means, and what they require.
type Requirements = [(Pattern, Vec<String>)];

/// `[tools.permissions]`: what tools require beyond what their sources declare.
fn requirements(config: &Config) -> Result<Arc<Requirements>> {
    let parsed = config.tools.permissions.iter().map(|(text, permissions)| {
        let pattern = Pattern::parse(text).map_err(anyhow::Error::msg).context("in `[tools.permissions]`")?;
        Ok((pattern, permissions.clone()))
    });
    parsed.collect::<Result<Vec<_>>>().map(Into::into)
}

fn with_requirements(tool: &RegisteredTool, requirements: &Requirements) -> Option<RegisteredTool> {
    let definition = tool.definition();
    let mut added: Vec<String> = Vec::new();
    for (_, permissions) in requirements.iter().filter(|(pattern, _)| pattern.matches(definition)) {
        added.extend(permissions.iter().cloned());
    }
    (!added.is_empty()).then(|| tool.requiring(&added))
}

fn settings(config: &Config) -> Result<Settings> {
    let words = |result: Result<Vec<Pattern>, String>, place: &'static str| {
        result.map_err(anyhow::Error::msg).context(place)
    };
    let allow = match &config.policy.allow {
        Some(allow) => Some(words(patterns(allow), "in `[policy] allow`")?),
        None => None,
    };
    let mut rules = Vec::new();
    for (text, action) in &config.policy.rules {
        let pattern = Pattern::parse(text).map_err(anyhow::Error::msg).context("in `[policy.rules]`")?;
        rules.push((pattern, *action));
    }
    let mut limits = Vec::new();
    for (text, limit) in &config.tools.limits {
        let pattern = Pattern::parse(text).map_err(anyhow::Error::msg).context("in `[tools.limits]`")?;
        limits.push((pattern, Duration::from_millis(*limit)));
    }
    let mut claims = Vec::new();
    for (text, rule) in &config.tools.claims {
        let pattern = Pattern::parse(text).map_err(anyhow::Error::msg).context("in `[tools.claims]`")?;
        claims.push((pattern, rule.clone()));
    }
    let mode = mode(config)?;
    let disclosure = Disclosure::new(
        config.tools.core.as_deref(),
        config.tools.auto_tokens,
        config.tools.defer_mcp_tools,
        &mode,
    );
    Ok(Settings {
        policy: Policy { allow, rules, tier: config.policy.tier },
        grants: Grants::new(config.policy.grants.iter().cloned()),
        disclosure: disclosure.map_err(anyhow::Error::msg).context("in `[tools] core` or the mode")?,
        rewriters: Vec::new(),
        limits,
        claims,
        workspace: Workspace::new(
            std::env::current_dir().context("the current folder cannot be found")?,
            std::env::home_dir(),
        ),
        offers_batch: config.tools.batch,
        cuts_results: true,
    })
}

/// The session's mode; one of the configuration replaces a shipped one of the same name.
fn mode(config: &Config) -> Result<ModeConfig> {
    let name = &config.tools.session_mode;
    if let Some(mode) = config.modes.get(name) {
        return Ok(mode.clone());
    }
    let known =
        || anyhow::anyhow!("there is no mode `{name}`; define `[modes.{name}]` or use work, chat or code");
    shipped_modes().remove(name).ok_or_else(known)
}

/// A server for each entry that can be used. One that cannot is there too, failed from the start, so that calls and
/// `doctor` say why.
fn upstreams(loaded: &Loaded, client: &Arc<ClientSlot>) -> Vec<Arc<Upstream>> {
    let config = &loaded.config;
    let secrets: Arc<[String]> = loaded.secrets.clone().into();
    let all_servers: Arc<[String]> = config.mcp_servers.keys().cloned().collect::<Vec<_>>().into();
    let mut upstreams = Vec::new();
    for (name, server) in config.mcp_servers.iter().filter(|(_, server)| server.enabled) {
        let spec = Spec {
            name: name.clone(),
            command: server.command.clone().unwrap_or_default(),
            args: server.args.clone(),
            env: server.env.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            cwd: server.cwd.as_ref().map(Into::into),
            about: server.description.clone().unwrap_or_default(),
            startup_timeout: server.startup_timeout,
            tool_timeout: server.tool_timeout,
            trust_hints: server.trust_hints,
            isolated: server.isolated || server.url.is_some(),
            defer: server.defer,
            permissions: server.permissions.clone(),
            enabled_tools: server.enabled_tools.clone(),
            disabled_tools: server.disabled_tools.clone(),
            all_servers: Arc::clone(&all_servers),
        };
        let upstream = Upstream::new(spec, Arc::clone(&secrets), Arc::clone(client));
        let unusable = match loaded.disabled.get(name) {
            Some(why) => Some(why.clone()),
            None if server.url.is_some() => Some(
                "servers reached by `url` are not supported by this version; start one with `command`"
                    .to_owned(),
            ),
            None => None,
        };
        if let Some(why) = unusable {
            if !loaded.disabled.contains_key(name) {
                tracing::error!(server = %name, "{why}");
            }
            upstream.set_status(Status::Failed(why));
            upstream.settle();
        }
        upstreams.push(upstream);
    }
    upstreams
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, about: &str) -> Spec {
        Spec { name: name.to_owned(), about: about.to_owned(), ..Spec::default() }
    }

    #[test]
    fn instructions_name_the_servers_first_and_stay_short() {
        let text = instructions([spec("memory", "remembers\n facts"), spec("time", "")].iter());
        assert!(text.starts_with("Gateway to the tools of: memory, time. If tool_search"), "{text}");
        assert!(text.ends_with("\n- memory: remembers facts"), "{text}");
        let many: Vec<Spec> = (0..400).map(|n| spec(&format!("server-{n}"), &"long ".repeat(99))).collect();
        let text = instructions(many.iter());
        assert!(text.len() <= 2_000 && text.contains("\n- server-3: long"), "{text}");
        assert!(text[..250].contains("tool_search"), "{text}");
        assert!(instructions([].iter()).starts_with("This gateway brings local"));
    }
}
