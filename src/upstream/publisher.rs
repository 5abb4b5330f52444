//! Puts what a server lists into the catalog, and into the cache for the next start.

use std::sync::Arc;
use std::time::Duration;

use super::cache::CatalogCache;
use super::server::Upstream;
use super::tools::{Translated, translate};
use crate::catalog::snapshot::Catalog;
use crate::tools::json::RawJson;
use crate::tools::service::Source;

/// When lists are written to disk: the first answers to a client go before.
const AFTER_THE_START: Duration = Duration::from_secs(2);

/// Adds what the configuration says about single tools to what a server lists.
pub type Decorate = Arc<dyn Fn(Translated) -> Translated + Send + Sync>;

/// The way of a tool list into the catalog.
#[derive(Clone)]
pub struct Publisher {
    /// Where the tools go.
    pub catalog: Arc<Catalog>,
    /// What the configuration adds.
    pub decorate: Decorate,
    /// Where they are kept.
    pub cache: Arc<CatalogCache>,
}

impl Publisher {
    /// Publishes what a server has just listed.
    pub fn publish(&self, upstream: &Arc<Upstream>, raw: Vec<RawJson>) {
        self.put(upstream, &raw);
        self.cache.keep_later(&upstream.spec, raw);
        let cache = Arc::clone(&self.cache);
        // Nobody waits for it: a list that was not kept is read from its server again.
        tokio::spawn(async move {
            tokio::time::sleep(AFTER_THE_START).await;
            tokio::task::spawn_blocking(move || cache.write_waiting());
        });
    }

    /// Publishes what servers listed when they last ran, unless they have answered by now.
    pub async fn publish_cached(&self, upstreams: Vec<Arc<Upstream>>) {
        let cache = Arc::clone(&self.cache);
        let read = tokio::task::spawn_blocking(move || {
            let found = upstreams.into_iter().filter_map(|upstream| {
                let tools = cache.read(&upstream.spec)?;
                Some((upstream, tools))
            });
            found.collect::<Vec<_>>()
        });
        for (upstream, tools) in read.await.unwrap_or_default() {
            if !upstream.is_settled() {
                self.put(&upstream, &tools);
                upstream.settle();
            }
        }
    }

    fn put(&self, upstream: &Arc<Upstream>, raw: &[RawJson]) {
        let translated = (self.decorate)(translate(upstream, raw));
        for complaint in &translated.complaints {
            tracing::warn!(server = %upstream.spec.name, "{complaint}");
        }
        tracing::info!(server = %upstream.spec.name, tools = translated.tools.len(), "tools are known");
        upstream.note(|report| report.complaints = translated.complaints);
        let source = Source::Mcp(upstream.spec.name.clone());
        self.catalog.publish(source, translated.tools.into());
    }
}
