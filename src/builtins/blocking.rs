//! Runs work that blocks on the disk away from the runtime, and stops it when nobody waits for it any more.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::task::spawn_blocking;

use super::outcome::BuiltinFailure;

/// Asked by blocking work between its steps: is anybody still waiting?
#[derive(Debug, Clone, Default)]
pub struct Stop {
    dropped: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Stop {
    /// The same, and also once `deadline` has passed.
    pub fn or_after(&self, deadline: Instant) -> Stop {
        Stop { dropped: Arc::clone(&self.dropped), deadline: Some(deadline) }
    }

    /// Whether to go no further.
    pub fn is_requested(&self) -> bool {
        self.dropped.load(Ordering::Relaxed)
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// An error once it is time to stop; nobody reads it.
    pub fn check(&self) -> Result<(), BuiltinFailure> {
        if self.is_requested() {
            Err(BuiltinFailure::failed("it was stopped before its end"))
        } else {
            Ok(())
        }
    }

    /// A reader that fails once it is time to stop.
    pub fn reader<R: Read>(&self, inner: R) -> StoppableReader<'_, R> {
        StoppableReader { inner, stop: self }
    }
}

/// See [`Stop::reader`].
#[derive(Debug)]
pub struct StoppableReader<'a, R> {
    inner: R,
    stop: &'a Stop,
}

impl<R: Read> Read for StoppableReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_requested() {
            return Err(io::Error::other("stopped"));
        }
        self.inner.read(buffer)
    }
}

/// Says "stop" when the future that holds it is dropped.
struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.dropped.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` on a thread where it may block. Dropping the future asks the work to stop at its next step.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce(&Stop) -> Result<T, BuiltinFailure> + Send + 'static,
) -> Result<T, BuiltinFailure> {
    let stop = Stop::default();
    let _stop_on_drop = StopOnDrop(stop.clone());
    match spawn_blocking(move || work(&stop)).await {
        Ok(result) => result,
        // What a panic says is for the log, where the panic hook has put it.
        Err(_) => Err(BuiltinFailure::failed("an internal error ended this call")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn dropping_the_future_stops_the_work() {
        let (started, has_started) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let call = tokio::spawn(blocking(move |stop| {
            started.send(()).unwrap();
            while !stop.is_requested() {
                std::thread::yield_now();
            }
            ended.send(stop.check()).unwrap();
            Ok(())
        }));
        spawn_blocking(move || has_started.recv_timeout(Duration::from_secs(20)).unwrap()).await.unwrap();
        call.abort();
        let checked =
            spawn_blocking(move || has_ended.recv_timeout(Duration::from_secs(20)).unwrap()).await.unwrap();
        assert!(checked.is_err());
    }

    #[tokio::test]
    async fn a_panic_costs_one_call_and_its_text_stays_here() {
        let result = blocking::<()>(|_| panic!("secret")).await;
        assert_eq!(result, Err(BuiltinFailure::failed("an internal error ended this call")));
    }
}
