//! `shell`: one command line, run by the system's shell below the configured folders.

use std::ffi::OsString;
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::process::{Captured, Exit, RunError, RunSpec, base_environment, run as run_process};

use super::blocking::blocking;
use super::outcome::{BuiltinFailure, BuiltinOutput, decode};
use super::roots::Roots;
use crate::tools::scoped::paths::LastLink;

/// Bytes kept of each output; a caller that wants more has a file.
const OUTPUT_CAP: usize = 64 * 1024;

/// Bytes of each output in an error message.
const MESSAGE_CAP: usize = 8 * 1024;

/// Left of the limit for the answer, at most: whoever set it ends the call at the limit, output and all.
const SLACK: Duration = Duration::from_millis(300);

/// Arguments of `shell`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// For `sh -c` (Windows: `cmd /C`). No input, no terminal.
    command: String,
    /// Where it runs; the first allowed folder if absent.
    cwd: Option<String>,
    /// When it is ended, in milliseconds.
    timeout_ms: Option<u64>,
}

/// Runs it. Dropping the future ends the command and everything it started.
pub async fn run(roots: &Roots, input: Value, limit: Duration) -> Result<BuiltinOutput, BuiltinFailure> {
    let Arguments { command, cwd, timeout_ms } = decode(input)?;
    if command.trim().is_empty() || command.contains('\0') {
        return Err(BuiltinFailure::invalid("/command", "it is empty or holds a NUL character"));
    }
    if timeout_ms == Some(0) {
        return Err(BuiltinFailure::invalid("/timeout_ms", "it is 0, so nothing could run"));
    }
    let roots = roots.clone();
    let folder = blocking(move |_| {
        let folder = roots.resolve("/cwd", cwd.as_deref().unwrap_or("."), LastLink::Followed)?;
        if !folder.path().is_dir() {
            return Err(BuiltinFailure::failed(format!("`{}` is not a folder to run in", folder.shown())));
        }
        Ok(folder)
    })
    .await?;
    let limit = limit - SLACK.min(limit / 10);
    let limit = timeout_ms.map_or(limit, |wanted| limit.min(Duration::from_millis(wanted)));
    let (program, switch) = if cfg!(windows) { ("cmd", "/C") } else { ("/bin/sh", "-c") };
    let spec = RunSpec {
        program: OsString::from(program),
        args: vec![OsString::from(switch), OsString::from(command)],
        cwd: Some(folder.path().to_owned()),
        env: base_environment(),
        input: Bytes::new(),
        limit,
        output_cap: OUTPUT_CAP,
    };
    match run_process(spec).await {
        Ok(finished) => match finished.exit {
            Exit::Code(0) => {
                let (stdout, stderr) = (finished.stdout.text(), finished.stderr.text());
                Ok(BuiltinOutput {
                    text: format!("exit code 0{}", outputs(&stdout, &stderr)),
                    structured: json!({ "cwd": folder.shown(), "exit_code": 0, "stdout": stdout, "stderr": stderr }),
                })
            }
            Exit::Code(code) => Err(ended(&format!("exit code {code}"), &finished.stdout, &finished.stderr)),
            Exit::Signal(signal) => {
                Err(ended(&format!("ended by signal {signal}"), &finished.stdout, &finished.stderr))
            }
        },
        Err(RunError::Timeout { elapsed, stdout, stderr }) => Err(BuiltinFailure::Timeout {
            message: format!(
                "ended after {} ms, with everything it had started; what it did until then is done{}",
                elapsed.as_millis(),
                outputs(&shortened(&stdout), &shortened(&stderr))
            ),
        }),
        Err(RunError::NotFound { program }) => {
            Err(BuiltinFailure::failed(format!("there is no shell `{program}` on this machine")))
        }
        Err(RunError::Spawn(error)) => Err(BuiltinFailure::io("run in", folder.shown(), &error)),
    }
}

fn ended(how: &str, stdout: &Captured, stderr: &Captured) -> BuiltinFailure {
    BuiltinFailure::failed(format!("{how}{}", outputs(&shortened(stdout), &shortened(stderr))))
}

fn outputs(stdout: &str, stderr: &str) -> String {
    let stdout_end = if stdout.is_empty() || stdout.ends_with('\n') { "" } else { "\n" };
    match (stdout.is_empty(), stderr.is_empty()) {
        (true, true) => ", no output".to_owned(),
        (false, true) => format!("\n{stdout}"),
        (_, false) => format!("\n{stdout}{stdout_end}[stderr]\n{stderr}"),
    }
}

/// The beginning and, twice as long, the end: that is where errors are.
fn shortened(output: &Captured) -> String {
    let text = output.text();
    if text.len() <= MESSAGE_CAP {
        return text;
    }
    let head = text.floor_char_boundary(MESSAGE_CAP / 3);
    let tail = text.ceil_char_boundary(text.len() - MESSAGE_CAP / 3 * 2);
    format!("{}\n[{} bytes left out]\n{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use tempfile::TempDir;

    use super::*;

    fn world() -> (TempDir, Roots) {
        let world = TempDir::new().unwrap();
        fs::create_dir_all(world.path().join("root/sub")).unwrap();
        fs::create_dir(world.path().join("outside")).unwrap();
        std::os::unix::fs::symlink("../outside", world.path().join("root/link")).unwrap();
        let roots = Roots::new(&["root".into()], world.path(), None);
        (world, roots)
    }

    async fn ran(input: Value) -> Result<BuiltinOutput, BuiltinFailure> {
        let (_world, roots) = world();
        run(&roots, input, Duration::from_secs(30)).await
    }

    #[tokio::test]
    async fn output_and_code_come_back() {
        let output = ran(json!({ "command": "echo out; echo err >&2; basename \"$PWD\"", "cwd": "sub" }))
            .await
            .unwrap();
        assert_eq!(output.text, "exit code 0\nout\nsub\n[stderr]\nerr\n");
        assert_eq!(
            output.structured,
            json!({ "cwd": "sub", "exit_code": 0, "stdout": "out\nsub\n", "stderr": "err\n" })
        );
        assert_eq!(ran(json!({ "command": "true" })).await.unwrap().text, "exit code 0, no output");
    }

    #[tokio::test]
    async fn failures_carry_what_was_printed() {
        let check = async |input: Value, expected: &str| {
            let failure = format!("{:?}", ran(input).await.unwrap_err());
            assert!(failure.contains(expected), "{failure}");
        };
        check(
            json!({ "command": "printf half; echo bad >&2; exit 3" }),
            "exit code 3\\nhalf\\n[stderr]\\nbad\\n",
        )
        .await;
        check(json!({ "command": "kill -9 $$" }), "ended by signal 9, no output").await;
        check(json!({ "command": "echo so far; sleep 60", "timeout_ms": 2000 }), "so far").await;
        check(json!({ "command": "sleep 60", "timeout_ms": 100 }), "Timeout").await;
        check(json!({ "command": " " }), "/command").await;
        check(json!({ "command": "true", "timeout_ms": 0 }), "/timeout_ms").await;
        for cwd in ["..", "../outside", "link", "/"] {
            check(json!({ "command": "true", "cwd": cwd }), "outside the allowed folders").await;
        }
        check(json!({ "command": "true", "cwd": "none" }), "not a folder").await;
    }

    #[tokio::test]
    async fn a_flood_is_cut_and_says_so() {
        let flood = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done";
        let output = ran(json!({ "command": flood })).await.unwrap();
        assert!(output.text.len() < OUTPUT_CAP + 200);
        assert!(output.text.contains("bytes omitted") && output.text.ends_with("line 19999\n"));
        let Err(BuiltinFailure::Execution { message }) =
            ran(json!({ "command": format!("{flood}; exit 1") })).await
        else {
            panic!("it failed");
        };
        assert!(message.len() < MESSAGE_CAP + 200 && message.ends_with("line 19999\n"), "{}", message.len());
    }

    #[tokio::test]
    async fn the_callers_limit_holds() {
        let (_world, roots) = world();
        let started = Instant::now();
        let input = json!({ "command": "sleep 60", "timeout_ms": 50_000 });
        let result = run(&roots, input, Duration::from_millis(400)).await;
        assert!(matches!(result, Err(BuiltinFailure::Timeout { .. })), "{result:?}");
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
