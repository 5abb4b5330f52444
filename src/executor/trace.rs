//! What became of a call on its way: for the client, as `_meta["toolcrib/run"]` of its result.

use std::fmt::Write;
use std::time::Duration;

use crate::tools::json::{ObjectWriter, RawJson};

/// A call's place in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Which group of the batch it was in, from 0.
    pub index: usize,
    /// How many calls were in it.
    pub size: usize,
}

/// What one call claimed, how long it waited for its turn, and how often it was tried.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// The claim in words.
    pub claim: String,
    /// How long it waited for other calls; never for people.
    pub waited: Duration,
    /// How long its handler ran.
    pub ran: Duration,
    /// How often the handler was called.
    pub attempts: u32,
    /// Its place in a batch.
    pub group: Option<Group>,
}

/// Letters of a claim that are told; paths among arguments may be of any length.
const CLAIM_LETTERS: usize = 200;

impl Trace {
    /// The object under `toolcrib/run`; times are milliseconds.
    pub fn json(&self) -> RawJson {
        let mut out = ObjectWriter::with_capacity(96 + self.claim.len());
        match self.claim.char_indices().nth(CLAIM_LETTERS) {
            Some((end, _)) => out.string("claim", &format!("{}…", &self.claim[..end])),
            None => out.string("claim", &self.claim),
        };
        out.raw("waited_ms", millis(self.waited).as_bytes());
        out.raw("ran_ms", millis(self.ran).as_bytes());
        out.raw("attempts", self.attempts.to_string().as_bytes());
        match self.group {
            Some(Group { index, size }) => {
                out.raw("group", format!(r#"{{"index":{index},"size":{size}}}"#).as_bytes())
            }
            None => out.raw("group", b"null"),
        };
        out.json()
    }
}

fn millis(time: Duration) -> String {
    let mut text = String::with_capacity(12);
    let micros = time.as_micros();
    let _ = write!(text, "{}.{:03}", micros / 1000, micros % 1000);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_tells_claim_waits_and_group() {
        let trace = Trace {
            claim: "shared nodes \"m\"".to_owned(),
            waited: Duration::from_micros(12_034),
            ran: Duration::from_millis(2),
            attempts: 1,
            group: None,
        };
        let expected =
            r#"{"claim":"shared nodes \"m\"","waited_ms":12.034,"ran_ms":2.000,"attempts":1,"group":null}"#;
        assert_eq!(trace.json().as_str(), expected);
        let trace = Trace { group: Some(Group { index: 1, size: 3 }), ..Trace::default() };
        let expected =
            r#"{"claim":"","waited_ms":0.000,"ran_ms":0.000,"attempts":0,"group":{"index":1,"size":3}}"#;
        assert_eq!(trace.json().as_str(), expected);
    }
}
