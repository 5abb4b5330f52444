//! Remembers what each server listed last, so that the next start can list before any server is up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::server::Spec;
use crate::state::LazyState;
use crate::tools::json::{RawJson, array};

/// Tool lists by server configuration, in the state store.
pub struct CatalogCache {
    state: Arc<LazyState>,
    /// Digest of what the store holds under each key, so that an unchanged list is not written again.
    held: Mutex<HashMap<String, [u8; 32]>>,
    /// Lists that are to be written: later, because the start has better things to do.
    waiting: Mutex<Vec<(Spec, Vec<RawJson>)>>,
}

impl CatalogCache {
    /// A cache in a store.
    pub fn new(state: Arc<LazyState>) -> CatalogCache {
        CatalogCache { state, held: Mutex::default(), waiting: Mutex::default() }
    }

    /// What a server with this very configuration listed last. Reads from disk: not for the event loop's thread.
    pub fn read(&self, spec: &Spec) -> Option<Vec<RawJson>> {
        let key = key(spec);
        let bytes = Bytes::from(self.state.get().cached_catalog(&key)?);
        let raw: Vec<&RawValue> = serde_json::from_slice(&bytes).ok()?;
        let tools = raw.into_iter().map(|tool| RawJson::slice(&bytes, tool)).collect();
        self.held().insert(key, Sha256::digest(&bytes).into());
        Some(tools)
    }

    /// Notes a list that [`CatalogCache::write_waiting`] is to keep; an older one of the same server is replaced.
    pub fn keep_later(&self, spec: &Spec, tools: Vec<RawJson>) {
        let mut waiting = self.waiting.lock().expect("no code panics while it holds the lists");
        waiting.retain(|(other, _)| other.name != spec.name);
        waiting.push((spec.clone(), tools));
    }

    /// Writes what waits. Not for the event loop's thread.
    pub fn write_waiting(&self) {
        let waiting =
            std::mem::take(&mut *self.waiting.lock().expect("no code panics while it holds the lists"));
        for (spec, tools) in waiting {
            self.keep(&spec, &tools);
        }
    }

    /// Keeps a list for the next start. Writes to disk, if it has changed: not for the event loop's thread.
    pub fn keep(&self, spec: &Spec, tools: &[RawJson]) {
        let text = array(tools.iter());
        let (key, digest) = (key(spec), Sha256::digest(&text).into());
        if self.held().insert(key.clone(), digest) == Some(digest) {
            return;
        }
        if let Err(error) = self.state.get().keep_catalog(&key, &spec.name, &text) {
            tracing::warn!(server = %spec.name, %error, "its tools could not be kept for the next start");
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<String, [u8; 32]>> {
        self.held.lock().expect("no code panics while it holds the digests")
    }
}

/// Everything that decides what a server is: another program, argument or variable is another server.
fn key(spec: &Spec) -> String {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    };
    part(&spec.name);
    part(&spec.command);
    part(&spec.cwd.as_ref().map(|cwd| cwd.to_string_lossy().into_owned()).unwrap_or_default());
    part(&spec.args.len().to_string());
    for arg in &spec.args {
        part(arg);
    }
    for (name, value) in &spec.env {
        part(name);
        part(value);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_found_under_the_same_configuration_only() {
        let cache = CatalogCache::new(Arc::new(LazyState::at(Some(":memory:".into()))));
        let spec = Spec { name: "a".into(), command: "x".into(), args: vec!["1".into()], ..Spec::default() };
        assert!(cache.read(&spec).is_none());
        let tools = [RawJson::parse(r#"{"name":"t","n":1.0}"#).unwrap(), RawJson::parse("{}").unwrap()];
        cache.keep(&spec, &tools);
        assert_eq!(cache.read(&spec).unwrap(), tools);
        for other in [
            Spec { command: "y".into(), ..spec.clone() },
            Spec { args: vec!["1".into(), "".into()], ..spec.clone() },
            Spec { env: vec![("A".into(), "b".into())], ..spec.clone() },
            Spec { cwd: Some("/".into()), ..spec.clone() },
        ] {
            assert!(cache.read(&other).is_none(), "{other:?}");
        }
    }
}
