//! Child processes in groups of their own, none of which outlives the gateway.

#[cfg(unix)]
pub mod guard;
#[cfg(not(unix))]
#[path = "process/no_guard.rs"]
pub mod guard;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, sleep_until, timeout};

#[cfg(unix)]
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
#[cfg(unix)]
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// How long a group may hold our pipes in silence once its leader is gone.
const SILENCE: Duration = Duration::from_millis(200);

/// How long a group may go on talking once its leader is gone: what was in the pipes takes milliseconds to read.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A child that leads its own process group. Dropping it kills the whole group at once.
///
/// Elsewhere than on Unix there is no group, and only the child itself is ended.
#[derive(Debug)]
pub struct GroupedChild {
    child: Child,
    pid: u32,
    /// Set once the child is reaped. From then on the number may belong to a stranger and is sent no signal.
    status: Option<ExitStatus>,
    #[cfg(unix)]
    exits: Signals,
}

/// Starts `command` as the leader of a new process group.
///
/// A program that does not exist is an error of kind `NotFound` which names it, a missing working directory one of kind
/// `NotADirectory`. On Linux the child dies with the *thread* that calls this: call it on one that lives as long as we do.
pub fn spawn_grouped(mut command: Command) -> io::Result<GroupedChild> {
    // Before the child exists: a host may have started us with SIGCHLD ignored, and then no exit status is kept.
    #[cfg(unix)]
    let exits = signal(SignalKind::child())?;
    command.kill_on_drop(true);
    #[cfg(unix)]
    command.process_group(0);
    guard::prepare(&mut command);
    let child = command.spawn().map_err(|error| {
        guard::forget();
        explain(&command, error)
    })?;
    let pid = child.id().ok_or_else(|| io::Error::other("the child has no process id"))?;
    guard::add(pid);
    Ok(GroupedChild {
        child,
        pid,
        status: None,
        #[cfg(unix)]
        exits,
    })
}

/// Says which of the two things that can be missing is missing, without a path that the configuration does not hold.
fn explain(command: &Command, error: io::Error) -> io::Error {
    let command = command.as_std();
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    if command.get_current_dir().is_some_and(|folder| !folder.is_dir()) {
        return io::Error::new(io::ErrorKind::NotADirectory, "its working directory does not exist");
    }
    io::Error::new(error.kind(), missing(&command.get_program().display().to_string()))
}

fn missing(program: &str) -> String {
    format!("there is no program `{program}`; is it installed and on the PATH?")
}

impl GroupedChild {
    /// The id of the child, which is also the id of its group.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The child's input, once. Dropping it is its end of input.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The child's output, once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The child's error output, once.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Waits until the child itself has ended and leaves the rest of its group alone. May be dropped and called again.
    pub async fn exited(&mut self) -> io::Result<()> {
        if self.status.is_some() {
            return Ok(());
        }
        #[cfg(unix)]
        {
            let child = WaitId::Pid(group(self.pid)?);
            // Seen, not reaped: the number stays ours until the group has been killed.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            while waitid(child.clone(), options)?.is_none() {
                self.exits.recv().await.ok_or_else(|| io::Error::other("no signals arrive any more"))?;
            }
        }
        #[cfg(not(unix))]
        self.child.wait().await?;
        Ok(())
    }

    /// Waits until the child itself has ended, then kills what is left of its group. May be dropped and called again.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        self.exited().await?;
        self.end();
        let status = self.child.wait().await?;
        self.status = Some(status);
        Ok(status)
    }

    /// Asks the whole group to end. Nothing happens once [`wait`](Self::wait) has returned.
    pub fn terminate(&mut self) {
        #[cfg(unix)]
        self.send(Signal::TERM);
        #[cfg(not(unix))]
        self.kill_group();
    }

    /// Kills the whole group. Nothing happens once [`wait`](Self::wait) has returned.
    pub fn kill_group(&mut self) {
        #[cfg(unix)]
        self.send(Signal::KILL);
        #[cfg(not(unix))]
        if let Err(error) = self.child.start_kill() {
            tracing::debug!(pid = self.pid, %error, "a child could not be killed");
        }
    }

    #[cfg(unix)]
    fn send(&self, signal: Signal) {
        if self.status.is_some() {
            return;
        }
        let sent = group(self.pid).and_then(|group| Ok(kill_process_group(group, signal)?));
        if let Err(error) = sent {
            tracing::debug!(pid = self.pid, ?signal, %error, "a process group could not be signalled");
        }
    }

    /// The last step before reaping: afterwards neither we nor the guard may signal this number.
    fn end(&mut self) {
        self.kill_group();
        guard::remove(self.pid);
    }
}

impl Drop for GroupedChild {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.end();
        }
    }
}

#[cfg(unix)]
fn group(pid: u32) -> io::Result<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no process id"))
}

/// A program to run to its end.
pub struct RunSpec {
    /// A path, or a name to be found on the `PATH` of `env`.
    pub program: OsString,
    /// Its arguments, one each.
    pub args: Vec<OsString>,
    /// Where it runs; ours when absent.
    pub cwd: Option<PathBuf>,
    /// Its whole environment; of two values for one name the later one holds.
    pub env: Vec<(OsString, OsString)>,
    /// What it is given on its input, which then ends; it need not read it.
    pub input: Bytes,
    /// When it is killed.
    pub limit: Duration,
    /// Bytes kept of each output.
    pub output_cap: usize,
}

/// A program that came to its end, whatever it made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub exit: Exit,
    /// What it printed.
    pub stdout: Captured,
    /// What it printed as errors.
    pub stderr: Captured,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Why a program did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no such program.
    #[error("{}", missing(.program))]
    NotFound {
        /// As it was asked for.
        program: String,
    },
    /// It could not be started, or its end could not be seen.
    #[error("the program could not be run: {0}")]
    Spawn(#[from] io::Error),
    /// It was killed at its limit.
    #[error("the program did not finish within {} ms", .elapsed.as_millis())]
    Timeout {
        /// How long it ran.
        elapsed: Duration,
        /// What it had printed.
        stdout: Captured,
        /// What it had printed as errors.
        stderr: Captured,
    },
}

/// Runs a program to its end; its group is killed at the limit, when the future is dropped, and after that end.
///
/// Processes that it leaves behind with its pipes may go on printing for a moment and are then killed with the group.
pub async fn run(spec: RunSpec) -> Result<Finished, RunError> {
    let started = Instant::now();
    let deadline = started + spec.limit;
    let mut command = Command::new(&spec.program);
    command.args(spec.args).env_clear().envs(spec.env);
    let stdin = if spec.input.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(cwd) = spec.cwd {
        command.current_dir(cwd);
    }
    let mut child = spawn_grouped(command).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => RunError::NotFound { program: spec.program.display().to_string() },
        _ => RunError::Spawn(error),
    })?;
    let mut feed = Feed { pipe: child.take_stdin(), rest: spec.input };
    let mut stdout = Drain::new(child.take_stdout(), spec.output_cap);
    let mut stderr = Drain::new(child.take_stderr(), spec.output_cap);

    let overran = loop {
        tokio::select! {
            () = feed.pour() => {}
            () = stdout.fill() => {}
            () = stderr.fill() => {}
            exited = child.exited() => break exited.map(|()| false)?,
            () = sleep_until(deadline) => break true,
        }
    };
    if overran {
        child.kill_group();
    }
    // Whoever is left over may be waiting for the end of its input.
    drop(feed);
    let last_words = if overran { SILENCE } else { LAST_WORDS };
    let rest = async {
        while stdout.is_open() || stderr.is_open() {
            tokio::select! {
                () = stdout.fill() => {}
                () = stderr.fill() => {}
                () = sleep(SILENCE) => break,
            }
        }
    };
    // Whoever still talks has had its time; it is killed with the group.
    let _ = timeout(last_words, rest).await;
    let (stdout, stderr) = (stdout.captured, stderr.captured);
    if overran {
        // Not waited for: a process stuck in the kernel dies when it comes out of it, whenever that is.
        return Err(RunError::Timeout { elapsed: started.elapsed(), stdout, stderr });
    }
    Ok(Finished { exit: exit_of(child.wait().await?), stdout, stderr })
}

fn exit_of(status: ExitStatus) -> Exit {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return Exit::Signal(signal);
    }
    Exit::Code(status.code().unwrap_or(-1))
}

/// The input while it is written.
struct Feed {
    pipe: Option<ChildStdin>,
    rest: Bytes,
}

impl Feed {
    /// Writes what the pipe takes; once it is closed it waits for ever. Dropping it loses nothing.
    async fn pour(&mut self) {
        let Some(pipe) = &mut self.pipe else { return std::future::pending().await };
        match pipe.write_buf(&mut self.rest).await {
            Ok(1..) if self.rest.has_remaining() => {}
            // All is written, or nobody reads it.
            Ok(_) | Err(_) => self.pipe = None,
        }
    }
}

/// One of the two outputs while it is read.
struct Drain<R> {
    pipe: Option<R>,
    buffer: Vec<u8>,
    captured: Captured,
}

impl<R: AsyncRead + Unpin> Drain<R> {
    fn new(pipe: Option<R>, cap: usize) -> Drain<R> {
        Drain { pipe, buffer: vec![0; 16 * 1024], captured: Captured::new(cap) }
    }

    fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Takes what there is, waiting for something; on a closed pipe it waits for ever. Dropping it loses nothing.
    async fn fill(&mut self) {
        let Some(pipe) = &mut self.pipe else { return std::future::pending().await };
        match pipe.read(&mut self.buffer).await {
            Ok(0) | Err(_) => self.pipe = None,
            Ok(length) => self.captured.push(&self.buffer[..length]),
        }
    }
}

/// The first and the last bytes of an output, with the number of bytes between them that were not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_cap: usize,
    tail_cap: usize,
    dropped: u64,
}

impl Captured {
    /// Nothing yet, with room for `cap` bytes.
    pub fn new(cap: usize) -> Captured {
        let tail_cap = cap / 2;
        Captured { head: Vec::new(), tail: VecDeque::new(), head_cap: cap - tail_cap, tail_cap, dropped: 0 }
    }

    /// Adds what was read next.
    pub fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.head_cap - self.head.len()));
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let excess = self.tail.len().saturating_sub(self.tail_cap);
        self.tail.drain(..excess);
        self.dropped += excess as u64;
    }

    /// Bytes that were printed and are gone.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether nothing was printed.
    pub fn is_empty(&self) -> bool {
        self.head.is_empty() && self.dropped == 0
    }

    /// Every byte that was printed, unless some are gone.
    pub fn whole(self) -> Option<Vec<u8>> {
        let mut bytes = self.head;
        let (first, second) = self.tail.as_slices();
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(second);
        (self.dropped == 0).then_some(bytes)
    }

    /// As text: what is not UTF-8 becomes `U+FFFD`, and a line says how many bytes were left out, if any were.
    pub fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if self.dropped == 0 {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        // The cuts may go through a character: its pieces are left out too.
        let head = match std::str::from_utf8(&self.head) {
            Err(error) if error.error_len().is_none() => &self.head[..error.valid_up_to()],
            _ => &self.head,
        };
        let pieces = tail.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
        let omitted = self.dropped + (self.head.len() - head.len() + pieces) as u64;
        format!(
            "{}\n[{omitted} bytes omitted]\n{}",
            String::from_utf8_lossy(head),
            String::from_utf8_lossy(&tail[pieces..])
        )
    }
}

/// What children get of our own environment; hosts hand us keys that are none of their business.
pub fn base_environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| is_for_children(name)).collect()
}

/// Where things are, who the user is, which language, and how to reach the network.
const FOR_CHILDREN: &[&str] =
    &["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TZ", "TMPDIR", "TMP", "TEMP"];

/// Without these most programs on Windows do not start or do not find their files.
const FOR_CHILDREN_ON_WINDOWS: &[&str] = &[
    "ALLUSERSPROFILE",
    "APPDATA",
    "COMMONPROGRAMFILES",
    "COMMONPROGRAMFILES(X86)",
    "COMSPEC",
    "HOMEDRIVE",
    "HOMEPATH",
    "LOCALAPPDATA",
    "NUMBER_OF_PROCESSORS",
    "OS",
    "PATHEXT",
    "PROCESSOR_ARCHITECTURE",
    "PROGRAMDATA",
    "PROGRAMFILES",
    "PROGRAMFILES(X86)",
    "PROGRAMW6432",
    "PUBLIC",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "USERDOMAIN",
    "USERNAME",
    "USERPROFILE",
    "WINDIR",
];

/// Written in either case.
const FOR_THE_NETWORK: &[&str] = &[
    "ALL_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
];

fn is_for_children(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let upper = name.to_ascii_uppercase();
    let name = if cfg!(windows) { upper.as_str() } else { name };
    FOR_CHILDREN.contains(&name)
        || name.starts_with("LC_")
        || name.starts_with("XDG_")
        || (cfg!(windows) && FOR_CHILDREN_ON_WINDOWS.contains(&name))
        || (FOR_THE_NETWORK.contains(&upper.as_str())
            && (name == upper || name == upper.to_ascii_lowercase()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Long enough for a loaded machine, short enough to notice a hang.
    const SOON: Duration = Duration::from_secs(5);

    fn shell(script: &str, limit: Duration) -> RunSpec {
        RunSpec {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            cwd: None,
            env: base_environment(),
            input: Bytes::new(),
            limit,
            output_cap: 64 * 1024,
        }
    }

    async fn finish(spec: RunSpec) -> Finished {
        timeout(SOON, run(spec)).await.expect("it hangs").expect("it runs")
    }

    /// Written by another process: a child forked here meanwhile would hold the file open, and then it cannot be run.
    pub(super) fn write_program(path: &std::path::Path, text: &str) {
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""]).arg(path).arg(text);
        assert!(shell.status().expect("a shell").success());
    }

    pub(super) fn is_running(pid: i32) -> bool {
        let exists = Pid::from_raw(pid).is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok());
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        exists && !state.contains(") Z ")
    }

    async fn until_gone(pid: i32) {
        let deadline = Instant::now() + SOON;
        while is_running(pid) {
            assert!(Instant::now() < deadline, "process {pid} is still there");
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn pid_in(text: &str) -> i32 {
        text.trim().parse().unwrap_or_else(|_| panic!("no process id in {text:?}"))
    }

    #[tokio::test]
    async fn the_end_of_a_program_is_told_as_it_was() {
        let finished = finish(shell("echo out; echo err >&2; exit 3", SOON)).await;
        assert_eq!(finished.exit, Exit::Code(3));
        assert_eq!((finished.stdout.text().as_str(), finished.stderr.text().as_str()), ("out\n", "err\n"));
        let finished = finish(shell("kill -9 $$", SOON)).await;
        assert_eq!(finished.exit, Exit::Signal(9));
    }

    #[tokio::test]
    async fn input_is_empty_and_never_ours() {
        assert_eq!(finish(shell("cat; echo end", SOON)).await.stdout.text(), "end\n");
    }

    #[tokio::test]
    async fn input_is_given_to_whoever_reads_it_and_holds_up_nobody() {
        let mebibyte = Bytes::from(vec![b'x'; 1024 * 1024]);
        let check = async |script: &str, expected: &str| {
            let finished = finish(RunSpec { input: mebibyte.clone(), ..shell(script, SOON) }).await;
            assert_eq!((finished.exit, finished.stdout.text().trim()), (Exit::Code(0), expected), "{script}");
        };
        check("wc -c", "1048576").await;
        check("echo first; wc -c", "first\n1048576").await;
        check("echo unread", "unread").await;
        check("exec <&-; echo closed", "closed").await;
        check("head -c 1", "x").await;
        let echoed =
            finish(RunSpec { input: mebibyte.clone(), output_cap: mebibyte.len(), ..shell("cat", SOON) });
        assert_eq!(echoed.await.stdout.whole().as_deref(), Some(&mebibyte[..]));
        let spec = RunSpec { input: mebibyte, ..shell("exec sleep 60", Duration::from_millis(200)) };
        let error = timeout(SOON, run(spec)).await.expect("it hangs").expect_err("it runs into its limit");
        assert!(matches!(error, RunError::Timeout { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_grandchild_is_killed_at_the_limit() {
        let spec = shell("sleep 60 & echo $!; wait", Duration::from_millis(300));
        let error = timeout(SOON, run(spec)).await.expect("it hangs").expect_err("it runs into its limit");
        let RunError::Timeout { elapsed, stdout, .. } = error else { panic!("{error}") };
        assert!(elapsed >= Duration::from_millis(300), "{elapsed:?}");
        until_gone(pid_in(&stdout.text())).await;
    }

    #[tokio::test]
    async fn a_grandchild_is_killed_when_the_future_is_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("pid");
        let script = format!("sleep 60 & echo $! > {0}.new; mv {0}.new {0}; wait", file.display());
        let mut running = Box::pin(run(shell(&script, Duration::from_secs(60))));
        let pid = loop {
            let _ = timeout(Duration::from_millis(20), &mut running).await;
            if let Ok(text) = std::fs::read_to_string(&file) {
                break pid_in(&text);
            }
        };
        assert!(is_running(pid));
        drop(running);
        until_gone(pid).await;
    }

    #[tokio::test]
    async fn a_leader_that_leaves_a_grandchild_with_its_pipes_is_not_waited_for() {
        let started = Instant::now();
        let finished = finish(shell("sleep 60 & echo $!", Duration::from_secs(60))).await;
        assert_eq!(finished.exit, Exit::Code(0));
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        until_gone(pid_in(&finished.stdout.text())).await;
    }

    #[tokio::test]
    async fn a_grandchild_that_never_falls_silent_is_not_listened_to_for_ever() {
        let chatter = "(while :; do echo x; sleep 0.05; done) & exit 4";
        assert_eq!(finish(shell(chatter, Duration::from_secs(60))).await.exit, Exit::Code(4));
    }

    #[tokio::test]
    async fn what_a_grandchild_still_has_to_say_is_kept() {
        let finished = finish(shell("(sleep 0.05; echo late) & echo early", SOON)).await;
        assert_eq!(finished.stdout.text(), "early\nlate\n");
    }

    #[tokio::test]
    async fn a_megabyte_of_errors_blocks_nothing_and_keeps_both_ends() {
        let finished =
            finish(shell("{ echo first; head -c 1048576 /dev/zero; echo last; } >&2; echo done", SOON)).await;
        assert_eq!((finished.exit, finished.stdout.text().as_str()), (Exit::Code(0), "done\n"));
        assert_eq!(finished.stderr.dropped(), 6 + 1_048_576 + 5 - 64 * 1024);
        let text = finished.stderr.text();
        assert!(text.starts_with("first\n") && text.ends_with("last\n"));
        assert!(text.contains(&format!("[{} bytes omitted]", finished.stderr.dropped())));
    }

    #[tokio::test]
    async fn what_is_missing_is_named() {
        let mut spec = shell("", SOON);
        spec.program = "no-such-program".into();
        spec.cwd = Some("/".into());
        let error = run(spec).await.expect_err("there is no such program");
        assert!(matches!(error, RunError::NotFound { .. }));
        assert_eq!(
            error.to_string(),
            "there is no program `no-such-program`; is it installed and on the PATH?"
        );
        let mut spec = shell("", SOON);
        spec.cwd = Some("/no/such/folder".into());
        let error = run(spec).await.expect_err("there is no such folder");
        assert_eq!(error.to_string(), "the program could not be run: its working directory does not exist");
    }

    #[tokio::test]
    async fn the_path_that_counts_is_the_one_of_the_child() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("only-here");
        write_program(&program, "#!/bin/sh\necho found\n");
        let mut spec = shell("", SOON);
        spec.program = "only-here".into();
        spec.args.clear();
        spec.env = vec![("PATH".into(), folder.path().into())];
        assert_eq!(finish(spec).await.stdout.text(), "found\n");
    }

    #[tokio::test]
    async fn the_environment_is_what_was_asked_for() {
        let mut spec = shell("env", SOON);
        spec.env = vec![("A".into(), "1".into()), ("A".into(), "2".into())];
        let printed = finish(spec).await.stdout.text();
        let mut names: Vec<&str> = printed.lines().filter(|line| !line.starts_with("_=")).collect();
        names.retain(|line| !line.starts_with("PWD=") && !line.starts_with("SHLVL="));
        assert_eq!(names, ["A=2"]);
    }

    #[test]
    fn keys_stay_here() {
        let check =
            |name: &str, expected: bool| assert_eq!(is_for_children(name.as_ref()), expected, "{name}");
        for name in ["PATH", "HOME", "LC_ALL", "XDG_RUNTIME_DIR", "https_proxy", "HTTPS_PROXY", "TZ"] {
            check(name, true);
        }
        for name in [
            "ANTHROPIC_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "LD_PRELOAD",
            "Https_Proxy",
            "PATHOLOGY",
            "",
            "SSH_AUTH_SOCK",
        ] {
            check(name, false);
        }
        assert!(base_environment().iter().all(|(name, _)| is_for_children(name)));
    }

    #[tokio::test]
    async fn a_group_can_be_watched_asked_and_waited_for() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 60 & echo $!; exec sleep 60"]).stdout(Stdio::piped());
        let mut child = spawn_grouped(command).expect("it starts");
        let mut output = child.take_stdout().expect("a pipe");
        let mut line = [0; 16];
        let length = output.read(&mut line).await.expect("a line");
        let grandchild = pid_in(&String::from_utf8_lossy(&line[..length]));
        assert!(timeout(Duration::from_millis(20), child.exited()).await.is_err());
        child.terminate();
        timeout(SOON, child.exited()).await.expect("it hangs").expect("it ends");
        let status = child.wait().await.expect("it ended");
        assert_eq!(exit_of(status), Exit::Signal(15));
        assert_eq!(child.wait().await.expect("it ended"), status);
        until_gone(grandchild).await;
    }

    #[tokio::test]
    async fn the_rest_of_a_group_dies_with_its_leader() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 60 >/dev/null & echo $!"]).stdout(Stdio::piped());
        let mut child = spawn_grouped(command).expect("it starts");
        let mut printed = String::new();
        child.take_stdout().expect("a pipe").read_to_string(&mut printed).await.expect("a line");
        child.exited().await.expect("it ends");
        let grandchild = pid_in(&printed);
        assert!(is_running(grandchild), "seeing the end of the leader kills nobody");
        drop(child);
        until_gone(grandchild).await;
    }

    #[test]
    fn both_ends_of_an_output_are_kept() {
        let check = |cap: usize, pieces: &[&str], expected: &str| {
            let mut captured = Captured::new(cap);
            pieces.iter().for_each(|piece| captured.push(piece.as_bytes()));
            assert_eq!(captured.text(), expected, "{pieces:?} in {cap}");
            let all = pieces.concat().into_bytes();
            let whole = (captured.dropped() == 0).then_some(all);
            assert_eq!(captured.whole(), whole, "{pieces:?} in {cap}");
        };
        check(8, &[], "");
        check(8, &["abcd", "efgh"], "abcdefgh");
        check(8, &["abcdefghi"], "abcd\n[1 bytes omitted]\nfghi");
        check(8, &["abc", "defgh", "ijklm"], "abcd\n[5 bytes omitted]\njklm");
        check(0, &["abc"], "\n[3 bytes omitted]\n");
        // Whole characters only, and one that lies across the seam is no cut.
        check(4, &["aé", "é€"], "a\n[7 bytes omitted]\n");
        check(3, &["é", "x"], "éx");
        check(2, &["é"], "é");
    }
}
