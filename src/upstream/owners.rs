//! Whose tool a name would be that is not in the catalog: of a server on its way up, or of one that is down.

use std::sync::Arc;

use super::server::{Status, Upstream};
use crate::catalog::names::fold;
use crate::tools::json::RawJson;
use crate::tools::scoped::policy::{Judgement, Policy};
use crate::tools::service::{Source, ToolDefinition, ToolMetadata};

/// All configured servers, asked by names of tools.
pub struct Owners(Vec<Arc<Upstream>>);

impl Owners {
    /// Over these servers.
    pub fn new(upstreams: Vec<Arc<Upstream>>) -> Owners {
        Owners(upstreams)
    }

    /// The server on its way up that a tool of this name may belong to.
    pub fn on_its_way(&self, tool: &str) -> Option<&str> {
        let folded = fold(tool);
        let owner = self.0.iter().find(|upstream| may_own(upstream, &folded))?;
        Some(&owner.spec.name)
    }

    /// Waits for every server on its way up that a tool of this name may belong to.
    pub async fn until_settled(&self, tool: &str) {
        let folded = fold(tool);
        for upstream in self.0.iter().filter(|upstream| may_own(upstream, &folded)) {
            upstream.until_settled().await;
        }
    }

    /// Why the server that a tool of this name belongs to cannot be reached, if that is so. What policy hides is not
    /// told apart from what does not exist, whether its server runs or not.
    pub fn failed(&self, tool: &str, policy: &Policy) -> Option<String> {
        let folded = fold(tool);
        self.0.iter().find_map(|upstream| {
            let server = fold(&upstream.spec.name);
            let rest = folded.strip_prefix(&server)?.strip_prefix('_')?;
            let source = Source::Mcp(upstream.spec.name.clone());
            let mut would_be =
                ToolDefinition::new(tool, "", RawJson::EMPTY_OBJECT, source, ToolMetadata::default());
            would_be.original = rest.into();
            if !policy.is_allowlisted(&would_be) || matches!(policy.judge(&would_be), Judgement::Deny(_)) {
                return None;
            }
            match upstream.status() {
                Status::Down(why) | Status::Failed(why) => {
                    Some(format!("server `{}`: {why}", upstream.spec.name))
                }
                Status::Starting | Status::Ready(_) => None,
            }
        })
    }
}

fn may_own(upstream: &Upstream, folded_tool: &str) -> bool {
    !upstream.is_settled() && folded_tool.starts_with(&fold(&upstream.spec.name))
}
