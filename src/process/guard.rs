//! A second process that ends our children when we are killed without a chance to do it ourselves.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// The argument with which our program is the guard.
pub const GUARD_ARGUMENT: &str = "guard";

/// How long groups may take to end when asked, before they are killed.
const GRACE: Duration = Duration::from_millis(300);

/// How often the guard looks whether they have ended.
const LOOK: Duration = Duration::from_millis(10);

/// How long telling the guard something may take before it counts as hung.
const PATIENCE: Duration = Duration::from_millis(100);

/// The first start and one restart: a guard that dies again would only die once more.
const STARTS: u8 = 2;

static GUARD: Mutex<Guard> = Mutex::new(Guard::new());

/// Names the program, by its whole path, that is the guard when called with [`GUARD_ARGUMENT`]. Without it there is none.
///
/// It is started with the next child; groups that exist already are known to it then.
pub fn set_guard_program(program: PathBuf) {
    guard().program = Some(program);
}

/// The guard itself: reads lines until our end of its input closes, then ends the groups that are left.
///
/// `?GROUP`: is about to start its program. `!`: what was about to start did not. `+GROUP`: runs. `-GROUP`: is gone.
pub fn guard_main() -> ExitCode {
    end(groups_left(io::stdin().lock()));
    ExitCode::SUCCESS
}

/// Sees to it that a child is known to the guard, and on Linux also to the kernel, before its program starts.
pub(super) fn prepare(command: &mut tokio::process::Command) {
    let link = guard().link();
    #[cfg(target_os = "linux")]
    die_with_parent(command, link);
    #[cfg(not(target_os = "linux"))]
    let _ = (command, link);
}

/// The prepared child did not start.
pub(super) fn forget() {
    guard().tell("!\n");
}

/// The prepared child leads this group.
pub(super) fn add(group: u32) {
    guard().add(group);
}

/// The group is gone, or as good as that.
pub(super) fn remove(group: u32) {
    guard().remove(group);
}

/// Has the kernel kill the child when we die, and has the child tell the guard about its group first.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "both can only be done between fork and exec")]
fn die_with_parent(command: &mut tokio::process::Command, link: Option<UnixStream>) {
    use rustix::net::{SendFlags, send};
    let parent = rustix::process::getpid();
    let before_exec = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if let Some(link) = &link {
            let mut line = [0; 16];
            let mut room = &mut line[..];
            writeln!(room, "?{}", rustix::process::getpid().as_raw_pid())?;
            let unused = room.len();
            // If nobody listens, the parent notices that next and starts another guard.
            let _ = send(link, &line[..line.len() - unused], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
        // A parent that died before the first line sends no signal any more.
        if rustix::process::getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::Error::from(rustix::io::Errno::SRCH))
        }
    };
    // SAFETY: the closure runs in the forked child, where only async-signal-safe calls are allowed: it makes plain system
    // calls and formats a number into an array on its stack; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(before_exec) };
}

fn guard() -> MutexGuard<'static, Guard> {
    GUARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Our side of it.
struct Guard {
    program: Option<PathBuf>,
    running: Option<(Child, UnixStream)>,
    groups: BTreeSet<u32>,
    starts_left: u8,
}

impl Guard {
    const fn new() -> Guard {
        Guard { program: None, running: None, groups: BTreeSet::new(), starts_left: STARTS }
    }

    /// A way to a guard that was alive a moment ago, if there can be one.
    fn link(&mut self) -> Option<UnixStream> {
        let is_alive =
            self.running.as_mut().is_some_and(|(process, _)| matches!(process.try_wait(), Ok(None)));
        if !is_alive {
            self.restart();
        }
        self.running.as_ref().and_then(|(_, link)| link.try_clone().ok())
    }

    fn add(&mut self, group: u32) {
        self.groups.insert(group);
        self.tell(&format!("+{group}\n"));
    }

    fn remove(&mut self, group: u32) {
        if self.groups.remove(&group) {
            self.tell(&format!("-{group}\n"));
        }
    }

    fn tell(&mut self, line: &str) {
        let Some((_, link)) = &mut self.running else { return };
        // So short a line is never split: it arrives, or the patience runs out.
        if let Err(error) = link.write_all(line.as_bytes()) {
            tracing::warn!(%error, "the guard process does not listen; starting another one");
            self.restart();
        }
    }

    fn restart(&mut self) {
        if let Some((process, link)) = self.running.take() {
            // Killed before it is let go: a guard that merely hangs would take the end of its input for our death.
            kill(process);
            drop(link);
        }
        let Some(program) = &self.program else { return };
        if self.starts_left == 0 {
            return;
        }
        self.starts_left -= 1;
        match start(program, &self.groups) {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                tracing::warn!(%error, "no guard process: children may outlive the gateway if it is killed");
            }
        }
    }
}

fn start(program: &Path, groups: &BTreeSet<u32>) -> io::Result<(Child, UnixStream)> {
    // A socket and no pipe: a child that announces itself would die of writing to a pipe that nobody reads.
    let (mut link, input) = UnixStream::pair()?;
    link.set_write_timeout(Some(PATIENCE))?;
    let process = Command::new(program)
        .arg(GUARD_ARGUMENT)
        .env_clear()
        .current_dir("/")
        // Out of reach of whoever kills our own group.
        .process_group(0)
        .stdin(OwnedFd::from(input))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let known: String = groups.iter().map(|group| format!("+{group}\n")).collect();
    match link.write_all(known.as_bytes()) {
        Ok(()) => Ok((process, link)),
        Err(error) => {
            kill(process);
            Err(error)
        }
    }
}

fn kill(mut process: Child) {
    if let Err(error) = process.kill().and_then(|()| process.wait()) {
        tracing::debug!(%error, "the guard process could not be killed");
    }
}

/// The groups that were announced and not taken back. A line without its end is not believed.
fn groups_left(mut input: impl BufRead) -> BTreeSet<i32> {
    let mut groups = BTreeSet::new();
    let mut starting = BTreeSet::new();
    let mut line = String::new();
    while input.read_line(&mut line).is_ok() && line.ends_with('\n') {
        let (sign, number) = line.split_at_checked(1).unwrap_or_default();
        if sign == "!" {
            starting.clear();
        }
        // 0 would be our own group and 1 everybody's.
        if let Some(group) = number.trim_end().parse::<i32>().ok().filter(|group| *group > 1) {
            // Whatever is said about a group, it has started.
            starting.remove(&group);
            match sign {
                "?" => starting.insert(group),
                "+" => groups.insert(group),
                "-" => groups.remove(&group),
                _ => false,
            };
        }
        line.clear();
    }
    groups.extend(starting);
    groups
}

/// Asks all groups to end, waits a moment, and kills those that have not.
fn end(mut groups: BTreeSet<i32>) {
    let of = |group: i32| Pid::from_raw(group).ok_or(rustix::io::Errno::SRCH);
    groups.retain(|group| of(*group).and_then(|pid| kill_process_group(pid, Signal::TERM)).is_ok());
    let deadline = Instant::now() + GRACE;
    while !groups.is_empty() && Instant::now() < deadline {
        std::thread::sleep(LOOK);
        // One that is gone is forgotten at once: its number may soon be somebody else's.
        groups.retain(|group| of(*group).and_then(test_kill_process_group).is_ok());
    }
    for group in groups {
        // Nobody is left to be told about a failure.
        let _ = of(group).and_then(|pid| kill_process_group(pid, Signal::KILL));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::{is_running, write_program};
    use super::*;

    /// Long enough for a loaded machine, short enough to notice a hang.
    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn only_groups_that_were_not_taken_back_are_left() {
        let check = |input: &str, expected: &[i32]| {
            assert_eq!(groups_left(input.as_bytes()), expected.iter().copied().collect(), "{input:?}");
        };
        check("", &[]);
        check("+20\n+30\n-20\n", &[30]);
        check("+20\n-20\n+20\n", &[20]);
        check("-20\n+30\n+30\n", &[30]);
        check("+0\n+1\n+-5\n+x\n\n \né20\n*20\n+99999999999\n+20\n", &[20]);
        check("+20\n+3000", &[20]);
        check("?20\n", &[20]);
        check("?20\n+20\n-20\n", &[]);
        check("+10\n?20\n!\n", &[10]);
        check("?20\n+20\n?30\n!\n", &[20]);
    }

    /// Two roles that this test binary plays for the test below when it is started again; otherwise it does nothing.
    #[test]
    fn role() {
        match std::env::var("TEST_ROLE").as_deref() {
            Ok("guard") => assert_eq!(guard_main(), ExitCode::SUCCESS),
            Ok("gateway") => gateway(Path::new(&std::env::var_os("TEST_FOLDER").expect("a folder"))),
            _ => {}
        }
    }

    /// Starts a family whose grandchild is deaf to requests, loses its first guard, and waits to be killed.
    fn gateway(folder: &Path) {
        set_guard_program(folder.join("guard"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let script = "trap '' TERM; sleep 600 & echo $! > \"$0.new\"; mv \"$0.new\" \"$0\"; wait";
            let family = |name: &str| {
                let mut command = tokio::process::Command::new("/bin/sh");
                command.args(["-c", script]).arg(folder.join(name));
                crate::process::spawn_grouped(command).expect("it starts")
            };
            let _first = family("first");
            guard().running.as_mut().expect("a guard").0.kill().expect("it is killed");
            guard().running.as_mut().expect("a guard").0.wait().expect("it is gone");
            let _second = family("second");
            tokio::time::sleep(Duration::from_secs(600)).await;
        });
    }

    #[test]
    fn nobody_outlives_a_gateway_that_was_killed() {
        let folder = tempfile::tempdir().expect("a folder");
        let this = std::env::current_exe().expect("this test");
        let role = format!("{}::role", module_path!().split_once("::").expect("a crate").1);
        let script =
            format!("#!/bin/sh\nTEST_ROLE=guard exec '{}' --exact {role} --nocapture\n", this.display());
        write_program(&folder.path().join("guard"), &script);
        let mut gateway = Command::new(&this)
            .args(["--exact", &role, "--nocapture"])
            .envs([("TEST_ROLE", "gateway".as_ref()), ("TEST_FOLDER", folder.path().as_os_str())])
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let deadline = Instant::now() + SOON;
        let grandchildren = ["first", "second"].map(|name| {
            loop {
                assert!(Instant::now() < deadline, "no grandchild");
                if let Ok(text) = fs::read_to_string(folder.path().join(name)) {
                    break text.trim().parse::<i32>().expect("a process id");
                }
                std::thread::sleep(LOOK);
            }
        });
        assert!(grandchildren.iter().all(|pid| is_running(*pid)));
        gateway.kill().expect("it is killed");
        gateway.wait().expect("it is gone");
        while grandchildren.iter().any(|pid| is_running(*pid)) {
            assert!(Instant::now() < deadline, "a grandchild is still there");
            std::thread::sleep(LOOK);
        }
    }
}
