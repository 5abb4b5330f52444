//! Health of sources: one probe each, briefly remembered, never asked twice at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Instant, timeout};

use crate::tools::service::Source;

/// How long a probe may take; a listing must not wait for a dead machine.
pub const PROBE_LIMIT: Duration = Duration::from_millis(200);
/// How long a verdict is believed.
pub const PROBE_LIFE: Duration = Duration::from_secs(30);

/// Says whether a source can run its tools now.
pub trait HealthProbe: Send + Sync {
    /// `Err` carries the reason in a few words.
    fn check(&self) -> BoxFuture<'_, Result<(), String>>;
}

/// A verdict and when it stops counting; `None` means until the source says otherwise.
#[derive(Clone)]
struct Verdict {
    until: Option<Instant>,
    reason: Option<String>,
}

#[derive(Default)]
struct Entry {
    probe: Option<Arc<dyn HealthProbe>>,
    /// Held while a probe runs, so that others wait for its verdict instead of probing too.
    flight: Arc<tokio::sync::Mutex<()>>,
    verdict: Option<Verdict>,
}

/// What is known about the health of each source. No verdict, or an old one, counts as healthy.
#[derive(Default)]
pub struct HealthBoard {
    entries: Mutex<HashMap<Source, Entry>>,
}

impl HealthBoard {
    /// Sets the probe of a source.
    pub fn register(&self, source: Source, probe: Arc<dyn HealthProbe>) {
        self.lock().entry(source).or_default().probe = Some(probe);
    }

    /// Takes a source's own word, which holds until it says otherwise. Returns whether that changed anything.
    pub fn report(&self, source: &Source, reason: Option<String>) -> bool {
        let mut entries = self.lock();
        let entry = entries.entry(source.clone()).or_default();
        let before = entry.verdict.take().and_then(|v| v.reason);
        let changed = before != reason;
        entry.verdict = Some(Verdict { until: None, reason });
        changed
    }

    /// Every source known to be unhealthy, with the reason.
    pub fn unhealthy(&self) -> HashMap<Source, String> {
        let now = Instant::now();
        let entries = self.lock();
        entries
            .iter()
            .filter_map(|(source, entry)| {
                let verdict = entry.verdict.as_ref()?;
                let counts = verdict.until.is_none_or(|until| now < until);
                let reason = verdict.reason.clone()?;
                counts.then(|| (source.clone(), reason))
            })
            .collect()
    }

    /// Probes a source now, unless a fresh good verdict exists. A source without a probe is as healthy as it last said.
    ///
    /// # Errors
    /// The reason why its tools cannot run.
    pub async fn check(&self, source: &Source) -> Result<(), String> {
        let (probe, flight) = {
            let mut entries = self.lock();
            let entry = entries.entry(source.clone()).or_default();
            let Some(probe) = entry.probe.clone() else {
                return entry.verdict.as_ref().and_then(|v| v.reason.clone()).map_or(Ok(()), Err);
            };
            (probe, Arc::clone(&entry.flight))
        };
        let arrived = Instant::now();
        let _flight = flight.lock().await;
        if let Some(verdict) = self.fresh_since(source, arrived) {
            return verdict.reason.map_or(Ok(()), Err);
        }
        let result = match timeout(PROBE_LIMIT, probe.check()).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer to a health probe within {} ms", PROBE_LIMIT.as_millis())),
        };
        let verdict =
            Verdict { until: Some(Instant::now() + PROBE_LIFE), reason: result.as_ref().err().cloned() };
        self.lock().entry(source.clone()).or_default().verdict = Some(verdict);
        result
    }

    /// A verdict that another caller's probe brought while this one waited for it.
    fn fresh_since(&self, source: &Source, arrived: Instant) -> Option<Verdict> {
        let entries = self.lock();
        let verdict = entries.get(source)?.verdict.clone()?;
        (verdict.until? > arrived + PROBE_LIFE).then_some(verdict)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Source, Entry>> {
        self.entries.lock().expect("no code panics while it holds the health table")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Scripted {
        answer: Result<(), String>,
        takes: Duration,
        asked: AtomicUsize,
    }

    impl HealthProbe for Scripted {
        fn check(&self) -> BoxFuture<'_, Result<(), String>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            Box::pin(async {
                tokio::time::sleep(self.takes).await;
                self.answer.clone()
            })
        }
    }

    fn board(answer: Result<(), String>, takes_ms: u64) -> (HealthBoard, Arc<Scripted>, Source) {
        let probe =
            Arc::new(Scripted { answer, takes: Duration::from_millis(takes_ms), asked: AtomicUsize::new(0) });
        let board = HealthBoard::default();
        let source = Source::Mcp("x".into());
        board.register(source.clone(), probe.clone());
        (board, probe, source)
    }

    #[tokio::test(start_paused = true)]
    async fn s14_a_failing_probe_makes_its_source_unhealthy_with_the_reason() {
        let (board, _, source) = board(Err("gone".into()), 1);
        assert!(board.unhealthy().is_empty(), "no verdict counts as healthy");
        assert_eq!(board.check(&source).await, Err("gone".into()));
        assert_eq!(board.unhealthy()[&source], "gone");
        assert_eq!(board.check(&Source::Builtin).await, Ok(()), "no probe counts as healthy");
    }

    #[tokio::test(start_paused = true)]
    async fn a_verdict_expires_and_a_slow_probe_counts_as_failed() {
        let (board, _, source) = board(Ok(()), 5_000);
        assert!(board.check(&source).await.unwrap_err().contains("200 ms"));
        tokio::time::advance(PROBE_LIFE).await;
        assert!(board.unhealthy().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn many_callers_share_one_probe() {
        let (board, probe, source) = board(Err("gone".into()), 50);
        let calls = (0..20).map(|_| board.check(&source));
        let verdicts = futures::future::join_all(calls).await;
        assert!(verdicts.iter().all(|v| v == &Err("gone".to_owned())));
        assert_eq!(probe.asked.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_sources_own_word_holds_until_it_changes() {
        let board = HealthBoard::default();
        let source = Source::Mcp("x".into());
        assert!(board.report(&source, Some("down".into())));
        assert!(!board.report(&source, Some("down".into())));
        assert!(board.report(&source, None));
        assert!(board.unhealthy().is_empty());
    }
}
