//! Puts what a server lists into the catalog, and into the cache for the next start.

use std::sync::Arc;

use super::cache::CatalogCache;
use super::server::Upstream;
use super::tools::{Translated, translate};
use crate::catalog::snapshot::Catalog;
use crate::tools::json::RawJson;
use crate::tools::service::Source;

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
        let (cache, upstream) = (Arc::clone(&self.cache), Arc::clone(upstream));
        // Nobody waits for it: a list that was not kept is read from its server again.
        tokio::task::spawn_blocking(move || cache.keep(&upstream.spec, &raw));
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
