//! One run of a handler under its clock, and once more where that can do no harm.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::tools::error::{Executed, ToolError};
use crate::tools::scoped::prepare::Prepared;
use crate::tools::service::{ToolMetadata, ToolResult, Turn};

/// Pause before the second try: long enough for a server that has just ended to be on its way up again.
const PAUSE: Duration = Duration::from_millis(100);

/// How long to wait before another try, if there is to be one: only the first failure counts, only of tools that are
/// declared to be repeatable, and only where the way to the tool failed, not the tool.
pub fn pause_after(attempt: u32, tool: &ToolMetadata, error: &ToolError) -> Option<Duration> {
    let is_repeatable = tool.idempotent || tool.read_only;
    let is_failed_way = match error {
        ToolError::Transport { .. } | ToolError::Timeout { .. } => true,
        ToolError::NotFound { .. }
        | ToolError::Validation { .. }
        | ToolError::PermissionDenied { .. }
        | ToolError::ApprovalDeferred { .. }
        | ToolError::ApprovalExpired { .. }
        | ToolError::NotExecuted { .. }
        | ToolError::Execution { .. }
        | ToolError::Duplicate { .. }
        | ToolError::Cancelled { .. } => false,
    };
    (attempt == 1 && is_repeatable && is_failed_way).then_some(PAUSE)
}

/// What a run gave, and what it took.
pub struct Ran {
    /// The handler's answer.
    pub answer: Result<ToolResult, ToolError>,
    /// From the first start of the handler to the last end.
    pub elapsed: Duration,
    /// How often the handler was called.
    pub attempts: u32,
}

/// Runs the handler. An overrun drops it, which ends a child and cancels an upstream. Only the gateway's own tools have
/// no limit: they end by themselves, and the calls of a batch have limits of their own.
pub async fn attempt(prepared: &Prepared, turn: &Turn, limit: Option<Duration>) -> Ran {
    let tool = prepared.tool();
    let name = &tool.definition().name;
    // A server that comes up has a limit of its own and is not on the call's clock.
    if let Some(source_is_up) = tool.starting() {
        source_is_up.await;
    }
    let started = Instant::now();
    let mut attempts = 0;
    let tries = async {
        loop {
            attempts += 1;
            match tool.execute(prepared.input().clone(), prepared.grants(), turn).await {
                Err(error)
                    if let Some(pause) = pause_after(attempts, &tool.definition().metadata, &error) =>
                {
                    sleep(pause).await;
                }
                answer => break answer.map_err(|error| error.about(name)),
            }
        }
    };
    let answer = match limit {
        Some(limit) => within(limit, tool.open_questions(), tries).await,
        None => Some(tries.await),
    };
    let elapsed = started.elapsed();
    let answer = answer.unwrap_or_else(|| {
        Err(ToolError::Timeout { tool: name.to_string(), elapsed, executed: Executed::Maybe })
    });
    Ran { answer, elapsed, attempts }
}

/// Lets work go on for at most `limit`, not counting the time in which people are asked; `None` is an overrun.
async fn within<T>(
    limit: Duration,
    questions: Option<watch::Receiver<usize>>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let Some(mut questions) = questions else { return timeout(limit, work).await.ok() };
    let mut work = std::pin::pin!(work);
    let mut left = limit;
    loop {
        let since = Instant::now();
        let is_running = *questions.borrow_and_update() == 0;
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            () = sleep(left), if is_running => return None,
            changed = questions.changed() => {
                if changed.is_err() {
                    return timeout(left, work).await.ok();
                }
                if is_running {
                    left = left.saturating_sub(since.elapsed());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn s62_time_in_which_people_are_asked_is_not_on_the_clock() {
        let questions = watch::Sender::new(0);
        let work = async {
            sleep(Duration::from_millis(600)).await;
            questions.send_replace(1);
            sleep(Duration::from_secs(100)).await;
            questions.send_replace(0);
            sleep(Duration::from_millis(300)).await;
        };
        assert_eq!(within(Duration::from_secs(1), Some(questions.subscribe()), work).await, Some(()));
        let work = async {
            questions.send_replace(1);
            sleep(Duration::from_secs(100)).await;
            questions.send_replace(0);
            sleep(Duration::from_millis(1100)).await;
        };
        assert_eq!(within(Duration::from_secs(1), Some(questions.subscribe()), work).await, None);
        assert_eq!(within(Duration::from_secs(1), None, sleep(Duration::from_secs(2))).await, None);
    }

    #[test]
    fn s64_only_a_failed_way_to_a_repeatable_tool_is_tried_once_more() {
        let transport =
            || ToolError::Transport { tool: "t".into(), cause: "gone".into(), executed: Executed::Maybe };
        let timeout = || ToolError::Timeout {
            tool: "t".into(),
            elapsed: Duration::from_secs(1),
            executed: Executed::Maybe,
        };
        let execution = || ToolError::Execution { tool: "t".into(), cause: "boom".into() };
        let none = ToolMetadata::default();
        let idempotent = ToolMetadata { idempotent: true, ..ToolMetadata::default() };
        let reads = ToolMetadata { read_only: true, ..ToolMetadata::default() };
        let check = |attempt: u32, tool: &ToolMetadata, error: ToolError, expected: Option<u64>| {
            let pause = pause_after(attempt, tool, &error);
            assert_eq!(pause, expected.map(Duration::from_millis), "{attempt} {tool:?} {error}");
        };
        check(1, &idempotent, transport(), Some(100));
        check(1, &reads, transport(), Some(100));
        check(1, &idempotent, timeout(), Some(100));
        check(2, &idempotent, transport(), None);
        check(1, &none, transport(), None);
        check(1, &none, timeout(), None);
        check(1, &idempotent, execution(), None);
        check(1, &reads, ToolError::Cancelled { tool: "t".into() }, None);
    }
}
