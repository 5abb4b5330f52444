//! Standard input and output as non-blocking pipes on the one thread, wherever the system can do that.

use tokio::io::{AsyncRead, AsyncWrite};

/// What messages are read from.
pub type Input = Box<dyn AsyncRead + Unpin + Send>;
/// What messages are written to.
pub type Output = Box<dyn AsyncWrite + Unpin + Send>;

/// This process's standard input and output.
///
/// Pipes and sockets, which is what clients give us, are polled on this thread. A terminal or a file cannot be
/// (or would be left non-blocking for whoever shares it) and goes through a helper thread.
pub fn standard() -> (Input, Output) {
    #[cfg(unix)]
    let (input, output) = (unix::input(), unix::output());
    #[cfg(not(unix))]
    let (input, output): (Option<Input>, Option<Output>) = (None, None);
    (input.unwrap_or_else(threaded_input), output.unwrap_or_else(threaded_output))
}

#[expect(clippy::disallowed_methods, reason = "the fallback for terminals and files")]
fn threaded_input() -> Input {
    Box::new(tokio::io::stdin())
}

#[expect(clippy::disallowed_methods, reason = "the fallback for terminals and files")]
fn threaded_output() -> Output {
    Box::new(tokio::io::stdout())
}

#[cfg(unix)]
mod unix {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::FileType;
    use tokio::net::UnixStream;
    use tokio::net::unix::pipe;

    use super::{Input, Output};

    pub fn input() -> Option<Input> {
        let (fd, kind) = duplicate(std::io::stdin())?;
        match kind {
            FileType::Fifo => Some(Box::new(pipe::Receiver::from_owned_fd(fd).ok()?)),
            FileType::Socket => Some(Box::new(socket(fd)?)),
            _ => None,
        }
    }

    pub fn output() -> Option<Output> {
        let (fd, kind) = duplicate(std::io::stdout())?;
        match kind {
            FileType::Fifo => Some(Box::new(pipe::Sender::from_owned_fd(fd).ok()?)),
            FileType::Socket => Some(Box::new(socket(fd)?)),
            _ => None,
        }
    }

    fn duplicate(stream: impl AsFd) -> Option<(OwnedFd, FileType)> {
        let fd = stream.as_fd().try_clone_to_owned().ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        Some((fd, FileType::from_raw_mode(stat.st_mode)))
    }

    fn socket(fd: OwnedFd) -> Option<UnixStream> {
        let stream = std::os::unix::net::UnixStream::from(fd);
        stream.set_nonblocking(true).ok()?;
        UnixStream::from_std(stream).ok()
    }
}
