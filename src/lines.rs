//! Lines in, lines out: a reader that never searches a byte twice, and a queue that writes what has gathered at once.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// How much of a line over the cap is kept, so that its id can still be found.
const PREFIX: usize = 4 << 10;
/// One read takes at most about what a pipe holds.
const READ: usize = 64 << 10;

/// One line of input, without its line break.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A whole line; CR before LF is removed.
    Text(Bytes),
    /// A line over the cap: its first bytes. The rest was skipped without being kept.
    TooLong(Bytes),
}

/// Splits a byte stream into lines with bounded memory.
pub struct LineReader<R> {
    input: R,
    buffer: BytesMut,
    /// Bytes at the front of the buffer that hold no line break.
    searched: usize,
    cap: usize,
    skipped: Option<Bytes>,
    at_end: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// Lines of at most `cap` bytes.
    pub fn new(input: R, cap: usize) -> LineReader<R> {
        LineReader { input, buffer: BytesMut::new(), searched: 0, cap, skipped: None, at_end: false }
    }

    /// The next line that has arrived already, without waiting.
    pub fn buffered(&mut self) -> Option<Line> {
        let Some(offset) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
            self.searched = self.buffer.len();
            if self.skipped.is_some() {
                self.buffer.clear();
                self.searched = 0;
            } else if self.buffer.len() > self.cap {
                self.skipped = Some(Bytes::copy_from_slice(&self.buffer[..PREFIX]));
                self.buffer = BytesMut::new();
                self.searched = 0;
            }
            return if self.at_end { self.last() } else { None };
        };
        let mut line = self.buffer.split_to(self.searched + offset);
        self.buffer.advance(1);
        self.searched = 0;
        if let Some(prefix) = self.skipped.take() {
            return Some(Line::TooLong(prefix));
        }
        if line.len() > self.cap {
            return Some(Line::TooLong(line.split_to(PREFIX).freeze()));
        }
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        Some(Line::Text(line.freeze()))
    }

    /// What stands after the last line break.
    fn last(&mut self) -> Option<Line> {
        if let Some(prefix) = self.skipped.take() {
            return Some(Line::TooLong(prefix));
        }
        self.searched = 0;
        let rest = self.buffer.split().freeze();
        (!rest.is_empty()).then_some(Line::Text(rest))
    }

    /// The next line; `None` at the end of input. May be dropped while it waits: nothing is lost.
    ///
    /// # Errors
    /// Those of the input.
    pub async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.buffered() {
                return Ok(Some(line));
            }
            if self.at_end {
                return Ok(None);
            }
            self.buffer.reserve(READ);
            if self.input.read_buf(&mut self.buffer).await? == 0 {
                self.at_end = true;
            }
        }
    }
}

/// A queue of outgoing bytes. Whoever holds it may add a message at any time; one task writes.
#[derive(Clone, Default)]
pub struct Outbox(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Notify,
    emptied: Notify,
}

#[derive(Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    closed: bool,
    writing: bool,
}

enum Chunk {
    Own(Vec<u8>),
    Shared(Bytes),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Own(bytes) => bytes,
            Chunk::Shared(bytes) => bytes,
        }
    }
}

/// Parts from this size on are queued by reference instead of being copied.
const BY_REFERENCE: usize = 32 << 10;

impl Outbox {
    /// Queues one message made of parts; the line break is added here. Nothing is queued once the box is closed.
    pub fn push(&self, parts: &[&Bytes]) {
        self.push_with(|queue| {
            for part in parts {
                if part.len() >= BY_REFERENCE {
                    queue.chunks.push_back(Chunk::Shared((*part).clone()));
                } else {
                    queue.tail().extend_from_slice(part);
                }
            }
        });
    }

    /// Queues one message whose text is written straight into the queue.
    pub fn write(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.push_with(|queue| write(queue.tail()));
    }

    fn push_with(&self, fill: impl FnOnce(&mut Queue)) {
        let mut queue = self.lock();
        if queue.closed {
            return;
        }
        fill(&mut queue);
        queue.tail().push(b'\n');
        drop(queue);
        self.0.filled.notify_one();
    }

    /// No more messages: the writer ends once the queue is empty.
    pub fn close(&self) {
        self.lock().closed = true;
        self.0.filled.notify_one();
        self.0.emptied.notify_waiters();
    }

    /// Waits until everything queued so far has been handed to the system, or the box is closed and empty.
    pub async fn flushed(&self) {
        loop {
            let emptied = self.0.emptied.notified();
            {
                let queue = self.lock();
                if queue.chunks.is_empty() && !queue.writing {
                    return;
                }
            }
            emptied.await;
        }
    }

    /// Writes what is queued until the box is closed and empty.
    ///
    /// # Errors
    /// Those of the output; the box is closed then.
    pub async fn drive(self, mut output: impl AsyncWrite + Unpin) -> io::Result<()> {
        loop {
            let filled = self.0.filled.notified();
            let chunks = {
                let mut queue = self.lock();
                queue.writing = !queue.chunks.is_empty();
                std::mem::take(&mut queue.chunks)
            };
            if chunks.is_empty() {
                self.0.emptied.notify_waiters();
                if self.lock().closed {
                    return Ok(());
                }
                filled.await;
                continue;
            }
            for chunk in &chunks {
                if let Err(error) = output.write_all(chunk.bytes()).await {
                    let mut queue = self.lock();
                    queue.closed = true;
                    queue.writing = false;
                    queue.chunks.clear();
                    drop(queue);
                    self.0.emptied.notify_waiters();
                    return Err(error);
                }
            }
            output.flush().await?;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.0.queue.lock().expect("no code panics while it holds an outgoing queue")
    }
}

impl Queue {
    fn tail(&mut self) -> &mut Vec<u8> {
        if !matches!(self.chunks.back(), Some(Chunk::Own(_))) {
            self.chunks.push_back(Chunk::Own(Vec::with_capacity(512)));
        }
        match self.chunks.back_mut() {
            Some(Chunk::Own(tail)) => tail,
            _ => unreachable!("an own chunk was just made sure of"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], cap: usize) -> Vec<String> {
        let mut reader = LineReader::new(input, cap);
        let mut lines = Vec::new();
        while let Some(line) = reader.next().await.unwrap() {
            lines.push(match line {
                Line::Text(text) => format!("{}", String::from_utf8_lossy(&text)),
                Line::TooLong(prefix) => format!("too long, from {}", prefix.len()),
            });
        }
        lines
    }

    #[tokio::test]
    async fn lines_end_at_lf_and_lose_their_cr() {
        assert_eq!(lines(b"a\r\n\nb\nc", 100).await, ["a", "", "b", "c"]);
        assert_eq!(lines(b"", 100).await, [""; 0]);
    }

    #[tokio::test]
    async fn a_line_over_the_cap_is_reported_and_the_next_one_is_read() {
        let mut input = vec![b'x'; 3 << 20];
        input.extend_from_slice(b"\nnext\n");
        assert_eq!(lines(&input, 10_000).await, ["too long, from 4096", "next"]);
        let unended = vec![b'x'; 3 << 20];
        assert_eq!(lines(&unended, 10_000).await, ["too long, from 4096"]);
    }

    #[tokio::test]
    async fn what_is_pushed_is_written_in_order_whatever_its_size() {
        let outbox = Outbox::default();
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let big = Bytes::from(vec![b'b'; BY_REFERENCE]);
        outbox.push(&[&Bytes::from_static(b"a"), &big, &Bytes::from_static(b"c")]);
        outbox.write(|out| out.extend_from_slice(b"d"));
        outbox.close();
        outbox.write(|out| out.extend_from_slice(b"never"));
        outbox.clone().drive(near).await.unwrap();
        outbox.flushed().await;
        let mut text = String::new();
        far.read_to_string(&mut text).await.unwrap();
        assert_eq!(text.len(), BY_REFERENCE + 5);
        assert!(text.starts_with("ab") && text.ends_with("bc\nd\n"));
    }

    #[tokio::test]
    async fn a_broken_output_closes_the_box() {
        let outbox = Outbox::default();
        let (near, far) = tokio::io::duplex(8);
        drop(far);
        outbox.write(|out| out.push(b'x'));
        assert!(outbox.clone().drive(near).await.is_err());
        outbox.flushed().await;
    }
}
