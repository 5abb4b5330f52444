//! Progress of calls on its way to the client, and a sign of life where there is none.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, interval_at};

use super::encode;
use crate::lines::Outbox;
use crate::tools::json::{ObjectWriter, RawObject};
use crate::tools::service::ProgressSink;

/// How often a client that asked for progress hears that its call still runs.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Progress of one call on its way to the client.
pub struct Progress {
    token: String,
    outbox: Outbox,
    last: Mutex<Option<f64>>,
}

impl Progress {
    /// Progress under the token that the client gave, as JSON text.
    pub fn new(token: String, outbox: Outbox) -> Progress {
        Progress { token, outbox, last: Mutex::new(None) }
    }

    /// Whether this value is above the last one; the protocol wants them to grow.
    fn advances(&self, value: f64) -> bool {
        let mut last = self.last.lock().expect("no code panics while it holds the last value");
        let advances = last.is_none_or(|last| value > last);
        if advances {
            *last = Some(value);
        }
        advances
    }

    /// Says that the call still runs. The values are too small to stand in the way of real ones.
    fn beat(&self, count: u32, running: Duration) {
        let value = f64::from(count) * 1e-6;
        if self.advances(value) {
            let message = format!("running for {} s", running.as_secs());
            let params = format!(
                r#"{{"progressToken":{},"progress":{value},"message":{}}}"#,
                self.token,
                Value::from(message)
            );
            encode::notification(&self.outbox, "notifications/progress", params.as_bytes());
        }
    }
}

impl ProgressSink for Progress {
    fn forward(&self, params: &RawObject<'_>) {
        let Some(value) = params.get("progress").and_then(|raw| raw.get().parse::<f64>().ok()) else {
            return;
        };
        if !self.advances(value) {
            return;
        }
        let mut out = ObjectWriter::default();
        for (key, value) in &params.members {
            match key.as_ref() {
                "progressToken" => out.raw("progressToken", self.token.as_bytes()),
                key => out.raw(key, value.get().as_bytes()),
            };
        }
        encode::notification(&self.outbox, "notifications/progress", &out.finish());
    }
}

/// Runs a call and tells a client that asked for progress that it still runs.
pub async fn with_heartbeat<T>(call: impl Future<Output = T>, progress: Option<&Progress>) -> T {
    let Some(progress) = progress else { return call.await };
    let mut call = std::pin::pin!(call);
    let started = Instant::now();
    let mut beats = interval_at(started + HEARTBEAT, HEARTBEAT);
    let mut count = 0;
    loop {
        tokio::select! {
            biased;
            done = &mut call => return done,
            _ = beats.tick() => {
                count += 1;
                progress.beat(count, started.elapsed());
            }
        }
    }
}
