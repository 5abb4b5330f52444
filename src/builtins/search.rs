//! `file_search`: lines that match a pattern, found by ripgrep's own crates.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use grep_matcher::{LineTerminator, Matcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch};
use ignore::overrides::{Override, OverrideBuilder};
use ignore::{DirEntry, WalkBuilder};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::atomic::TEMPORARY_PREFIX;
use super::blocking::{Stop, blocking};
use super::outcome::{BuiltinFailure, BuiltinOutput, count, decode};
use super::roots::{Place, Roots, open_regular};
use crate::tools::claim_rule::{Access, ClaimRule, Footprint, Reference};
use crate::tools::scoped::paths::LastLink;

/// Results of a call that does not say how many it wants.
const DEFAULT_RESULTS: usize = 100;

/// Results of any call.
const MAX_RESULTS: usize = 1000;

/// Lines of context on each side, at most.
const MAX_CONTEXT: usize = 20;

/// Bytes of text in one answer.
const MAX_BYTES: usize = 64 * 1024;

/// The longest search; an instant much later than that cannot be told.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Letters of a line that are shown; the match is among them.
const LINE_LETTERS: usize = 300;

/// Letters shown before a match far to the right.
const LETTERS_BEFORE: usize = 80;

/// Folders of version control, which hold copies of everything.
const VERSION_CONTROL: &[&str] = &[".git", ".hg", ".svn", ".jj"];

/// Arguments of `file_search`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// A regular expression for one line, or plain text with `fixed`.
    pattern: String,
    /// Folder or file; the first allowed folder if absent.
    path: Option<String>,
    /// Only files whose path matches: `*.rs`, `src/**/*.{ts,tsx}`, `!*.lock`.
    glob: Option<String>,
    /// Whether case counts.
    #[serde(default = "yes")]
    case_sensitive: bool,
    /// `pattern` is plain text.
    #[serde(default)]
    fixed: bool,
    /// Lines shown around each match, 20 at most.
    #[serde(default)]
    context: usize,
    /// 100 if absent, 1000 at most.
    max_results: Option<usize>,
    /// Only the paths of files that match.
    #[serde(default)]
    files_only: bool,
}

fn yes() -> bool {
    true
}

/// Searches, and answers with what was found so far when `limit` is near.
pub async fn run(roots: &Roots, input: Value, limit: Duration) -> Result<BuiltinOutput, BuiltinFailure> {
    let arguments: Arguments = decode(input)?;
    let roots = roots.clone();
    // A tenth is left for the answer.
    let deadline = Instant::now() + (limit - limit / 10).min(LONGEST);
    blocking(move |stop| search(&roots, &arguments, &stop.or_after(deadline))).await
}

/// What a call touches: the folder or file it names, or the first allowed folder.
pub fn claim() -> ClaimRule {
    let reads = |path: &str| Footprint {
        access: Access::Shared,
        paths: vec![Reference::named(path)],
        nodes: Vec::new(),
        sessions: Vec::new(),
        otherwise: Box::new(ClaimRule::Exclusive),
    };
    let first = ClaimRule::Footprint(reads("=."));
    ClaimRule::Footprint(Footprint { otherwise: Box::new(first), ..reads("path") })
}

fn search(roots: &Roots, arguments: &Arguments, stop: &Stop) -> Result<BuiltinOutput, BuiltinFailure> {
    let matcher = matcher(arguments)?;
    let room = arguments.max_results.unwrap_or(DEFAULT_RESULTS).min(MAX_RESULTS);
    if room == 0 {
        return Err(BuiltinFailure::invalid("/max_results", "it is 0, so nothing could be found"));
    }
    let base = match &arguments.path {
        Some(path) => roots.resolve("/path", path, LastLink::Followed)?,
        None => roots.first()?,
    };
    let globs = globs(&base, arguments.glob.as_deref())?;
    let metadata = std::fs::symlink_metadata(base.path())
        .map_err(|error| BuiltinFailure::io("search", base.shown(), &error))?;
    let context = arguments.context.min(MAX_CONTEXT);
    let mut searcher = SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .line_terminator(LineTerminator::crlf())
        .line_number(true)
        .before_context(if arguments.files_only { 0 } else { context })
        .after_context(if arguments.files_only { 0 } else { context })
        .build();
    let mut found = Found { room, ..Found::default() };
    let mut visit = |path: &Path| {
        if stop.is_requested() {
            found.end = Some(End::Time);
            return ControlFlow::Break(());
        }
        if globs.matched(path, false).is_ignore() {
            return ControlFlow::Continue(());
        }
        // A file that vanished or may not be read is not worth losing the rest.
        if let Ok(file) = open_regular(path) {
            found.search(&mut searcher, &matcher, file, base.shown_below(path), arguments.files_only, stop);
        }
        if found.end.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    if metadata.is_dir() {
        // From the root, since ignore files on the way to the folder count; those above the root do not.
        let visited = walk(base.root(), base.path(), &mut visit);
        // A folder that is ignored itself was asked for by name, which counts more.
        if visited == 0 && base.root() != base.path() {
            walk(base.path(), base.path(), &mut visit);
        }
    } else {
        let _ = visit(base.path());
    }
    Ok(report(arguments, base.shown(), &found))
}

fn matcher(arguments: &Arguments) -> Result<RegexMatcher, BuiltinFailure> {
    if arguments.pattern.is_empty() {
        return Err(BuiltinFailure::invalid("/pattern", "it is empty and would match every line"));
    }
    RegexMatcherBuilder::new()
        .case_insensitive(!arguments.case_sensitive)
        .fixed_strings(arguments.fixed)
        // `^` and `$` are the ends of lines, with either line ending.
        .multi_line(true)
        .crlf(true)
        .build(&arguments.pattern)
        .map_err(|error| {
            BuiltinFailure::invalid(
                "/pattern",
                format!(
                    "{error}; the pattern is matched within single lines, and `fixed` takes it as plain text"
                ),
            )
        })
}

fn globs(base: &Place, glob: Option<&str>) -> Result<Override, BuiltinFailure> {
    let Some(glob) = glob else { return Ok(Override::empty()) };
    let whole = if glob.ends_with('/') { format!("{glob}**") } else { glob.to_owned() };
    let invalid = |error: ignore::Error| BuiltinFailure::invalid("/glob", error.to_string());
    let mut builder = OverrideBuilder::new(base.path());
    builder.add(whole.strip_prefix("./").unwrap_or(&whole)).map_err(invalid)?;
    builder.build().map_err(invalid)
}

/// Visits the files below `base`, with the ignore files from `top` on, and counts them.
fn walk(top: &Path, base: &Path, visit: &mut impl FnMut(&Path) -> ControlFlow<()>) -> u64 {
    let wanted = base.to_owned();
    let walk = WalkBuilder::new(top)
        .follow_links(false)
        .hidden(false)
        .parents(false)
        .git_global(false)
        .require_git(false)
        .sort_by_file_name(Ord::cmp)
        .filter_entry(move |entry| {
            let path = entry.path();
            (path.starts_with(&wanted) || wanted.starts_with(path)) && !is_left_out(entry)
        })
        .build();
    let mut visited = 0;
    for entry in walk.flatten() {
        if !entry.file_type().is_some_and(|kind| kind.is_file()) || !entry.path().starts_with(base) {
            continue;
        }
        visited += 1;
        if visit(entry.path()).is_break() {
            break;
        }
    }
    visited
}

fn is_left_out(entry: &DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy();
    entry.depth() > 0 && (VERSION_CONTROL.contains(&name.as_ref()) || name.starts_with(TEMPORARY_PREFIX))
}

/// Why a search ended before everything was searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Results,
    Size,
    Time,
}

/// What was found so far.
#[derive(Debug, Default)]
struct Found {
    room: usize,
    matches: usize,
    bytes: usize,
    files: Vec<FileLines>,
    searched: u64,
    binary: u64,
    end: Option<End>,
}

#[derive(Debug)]
struct FileLines {
    path: String,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    number: u64,
    is_match: bool,
    text: String,
}

impl Found {
    fn search(
        &mut self,
        searcher: &mut Searcher,
        matcher: &RegexMatcher,
        file: File,
        path: String,
        files_only: bool,
        stop: &Stop,
    ) {
        self.searched += 1;
        let mut lines = Lines {
            matcher,
            lines: Vec::new(),
            matches: 0,
            // One more than there is room for shows whether there are more.
            room: if files_only { 1 } else { self.room - self.matches + 1 },
            bytes: self.bytes,
            is_binary: false,
        };
        let result = searcher.search_reader(matcher, stop.reader(file), &mut lines);
        if stop.is_requested() {
            self.end = Some(End::Time);
        }
        if lines.is_binary {
            self.binary += 1;
            return;
        }
        // What was found before a file could not be read on is found all the same.
        let _ = result;
        if lines.matches == 0 {
            return;
        }
        if files_only {
            lines.matches = 1;
        }
        if self.matches + lines.matches > self.room {
            self.end = Some(End::Results);
            lines.matches = self.room - self.matches;
            if lines.matches == 0 {
                return;
            }
            lines.lines.pop();
        }
        if lines.bytes > MAX_BYTES && self.end.is_none() {
            self.end = Some(End::Size);
        }
        self.matches += lines.matches;
        self.bytes = lines.bytes + path.len();
        let lines = if files_only { Vec::new() } else { lines.lines };
        self.files.push(FileLines { path, lines });
    }
}

/// Takes the lines of one file from the searcher.
struct Lines<'a> {
    matcher: &'a RegexMatcher,
    lines: Vec<Line>,
    matches: usize,
    room: usize,
    bytes: usize,
    is_binary: bool,
}

impl Lines<'_> {
    fn push(&mut self, number: Option<u64>, bytes: &[u8], is_match: bool) -> bool {
        let text = window(
            bytes,
            if is_match { self.matcher.find(bytes).ok().flatten().map_or(0, |m| m.start()) } else { 0 },
        );
        self.bytes += text.len() + 8;
        self.lines.push(Line { number: number.unwrap_or(0), is_match, text });
        self.bytes <= MAX_BYTES
    }
}

impl Sink for &mut Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.matches += 1;
        let has_room = self.push(found.line_number(), found.bytes(), true);
        Ok(has_room && self.matches < self.room)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        Ok(self.push(context.line_number(), context.bytes(), false))
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> io::Result<()> {
        self.is_binary = finish.binary_byte_offset().is_some();
        Ok(())
    }
}

/// The part of a line around a match.
fn window(line: &[u8], match_start: usize) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // Only so much is decoded: lines of generated files have megabytes.
    let from = if match_start > LINE_LETTERS { match_start - LETTERS_BEFORE } else { 0 };
    let from = (from..line.len()).find(|at| line[*at] & 0b1100_0000 != 0b1000_0000).unwrap_or(from);
    let upper = line.len().min(from + LINE_LETTERS * 4);
    let text = String::from_utf8_lossy(&line[from..upper]);
    let mut shown = if from > 0 { "…".to_owned() } else { String::new() };
    shown.extend(text.chars().take(LINE_LETTERS));
    if upper < line.len() || text.chars().nth(LINE_LETTERS).is_some() {
        shown.push('…');
    }
    shown
}

fn report(arguments: &Arguments, shown: &str, found: &Found) -> BuiltinOutput {
    let files = count(found.searched, "file");
    let mut text = match (found.matches, arguments.files_only) {
        (0, _) => format!("no match for `{}` in {files} below `{shown}`", arguments.pattern),
        (number, true) => format!("{} of {} match", number, files),
        (number, false) => {
            format!("{} in {} of {files}", count(number as u64, "match"), found.files.len())
        }
    };
    if found.binary > 0 {
        text.push_str(&format!("; {} skipped", count(found.binary, "binary file")));
    }
    let end = found.end.map(|end| match end {
        End::Results => ("max_results", "there are more; narrow the search or raise `max_results`"),
        End::Size => ("size", "the answer is full; narrow the search"),
        End::Time => ("time", "the time was up; narrow the search"),
    });
    if let Some((_, hint)) = end {
        text.push_str(&format!("; {hint}"));
    }
    text.push('\n');
    let mut matches = Vec::new();
    for file in &found.files {
        text.push_str(&format!("{}{}\n", if arguments.files_only { "" } else { "\n" }, file.path));
        let mut last = None;
        for line in &file.lines {
            if arguments.context > 0 && last.is_some_and(|last| last + 1 != line.number) {
                text.push_str("--\n");
            }
            last = Some(line.number);
            text.push_str(&format!(
                "{}{} {}\n",
                line.number,
                if line.is_match { ':' } else { '-' },
                line.text
            ));
            let mut entry = json!({ "path": file.path, "line": line.number, "text": line.text });
            if !line.is_match {
                entry["context"] = true.into();
            }
            matches.push(entry);
        }
    }
    let mut structured = json!({
        "path": shown,
        "match_count": found.matches,
        "files_searched": found.searched,
        "binary_skipped": found.binary,
        "complete": found.end.is_none(),
    });
    if let Some((reason, _)) = end {
        structured["stopped_by"] = reason.into();
    }
    if arguments.files_only {
        structured["files"] = found.files.iter().map(|file| file.path.as_str()).collect();
    } else {
        structured["matches"] = matches.into();
    }
    BuiltinOutput { text, structured }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn world(files: &[(&str, &[u8])]) -> TempDir {
        let world = TempDir::new().unwrap();
        fs::create_dir(world.path().join("root")).unwrap();
        for (path, content) in files {
            let path = world.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        world
    }

    async fn found(world: &TempDir, input: Value) -> Result<BuiltinOutput, BuiltinFailure> {
        let roots = Roots::new(&["root".into()], world.path(), None);
        run(&roots, input, Duration::from_secs(60)).await
    }

    async fn places(world: &TempDir, input: Value) -> Vec<String> {
        let output = found(world, input).await.unwrap();
        let matches = output.structured["matches"].as_array().unwrap();
        matches.iter().map(|one| format!("{}:{}", one["path"].as_str().unwrap(), one["line"])).collect()
    }

    #[tokio::test]
    async fn ignore_files_binaries_and_version_control_are_respected() {
        let world = world(&[
            (".gitignore", b"*\n"),
            ("root/.gitignore", b"/target\n*.log\n"),
            ("root/target/a.txt", b"needle\n"),
            ("root/x.log", b"needle\n"),
            ("root/.git/config", b"needle\n"),
            ("root/.hidden", b"needle\n"),
            ("root/b.bin", b"needle\n\0\n"),
            ("root/src/.gitignore", b"gen\n"),
            ("root/src/gen/a.rs", b"needle\n"),
            ("root/src/a.rs", b"hay\r\nneedle\r\n"),
            ("root/src/deep/x.log", b"needle\n"),
        ]);
        assert_eq!(places(&world, json!({ "pattern": "^needle$" })).await, [".hidden:1", "src/a.rs:2"]);
        assert_eq!(places(&world, json!({ "pattern": "needle", "path": "src" })).await, ["src/a.rs:2"]);
        assert_eq!(
            places(&world, json!({ "pattern": "needle", "path": "target" })).await,
            ["target/a.txt:1"]
        );
        assert_eq!(places(&world, json!({ "pattern": "needle", "path": "x.log" })).await, ["x.log:1"]);
        let output = found(&world, json!({ "pattern": "needle" })).await.unwrap();
        assert_eq!(output.structured["binary_skipped"], 1);
        assert!(output.text.contains("1 binary file skipped"), "{}", output.text);
    }

    #[tokio::test]
    async fn patterns_case_globs_and_plain_text() {
        let world = world(&[
            ("root/a.rs", b"Fn main(x)\nfn two\n"),
            ("root/sub/b.ts", b"fn main(x)\n"),
            ("root/sub/c.rs", b"other\n"),
        ]);
        let check = async |input: Value, expected: &[&str]| {
            assert_eq!(places(&world, input.clone()).await, expected, "{input}");
        };
        check(json!({ "pattern": "^fn \\w+" }), &["a.rs:2", "sub/b.ts:1"]).await;
        check(json!({ "pattern": "^fn \\w+", "case_sensitive": false }), &["a.rs:1", "a.rs:2", "sub/b.ts:1"])
            .await;
        check(json!({ "pattern": "main(x)", "fixed": true, "glob": "*.ts" }), &["sub/b.ts:1"]).await;
        check(json!({ "pattern": "main", "glob": "!*.ts" }), &["a.rs:1"]).await;
        check(json!({ "pattern": "main", "glob": "sub/" }), &["sub/b.ts:1"]).await;
        check(json!({ "pattern": "main", "glob": "**/*.{ts,js}" }), &["sub/b.ts:1"]).await;
        check(json!({ "pattern": "main", "path": "sub", "glob": "b*" }), &["sub/b.ts:1"]).await;
        check(json!({ "pattern": "no such" }), &[]).await;
        let none = found(&world, json!({ "pattern": "no such" })).await.unwrap();
        assert_eq!(none.text, "no match for `no such` in 3 files below `.`\n");
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_refused() {
        let world = world(&[("root/a", b"x"), ("outside/s", b"secret")]);
        let check = async |input: Value, expected: &str| {
            let failure = format!("{:?}", found(&world, input).await.unwrap_err());
            assert!(failure.contains(expected), "{failure}");
        };
        check(json!({ "pattern": "(" }), "/pattern").await;
        check(json!({ "pattern": "" }), "/pattern").await;
        check(json!({ "pattern": "a\nb" }), "within single lines").await;
        check(json!({ "pattern": "x", "glob": "[" }), "/glob").await;
        check(json!({ "pattern": "x", "max_results": 0 }), "/max_results").await;
        check(json!({ "pattern": "x", "path": "none" }), "it does not exist").await;
        check(json!({ "pattern": "x", "path": "../outside" }), "outside the allowed folders").await;
    }

    #[tokio::test]
    async fn results_are_capped_and_say_so() {
        let world = world(&[("root/a", &b"x\ny\n".repeat(50)), ("root/b", b"x\n")]);
        let capped = found(&world, json!({ "pattern": "x", "max_results": 50 })).await.unwrap();
        assert_eq!(capped.structured["match_count"], 50);
        assert_eq!(capped.structured["stopped_by"], "max_results");
        assert!(capped.text.starts_with("50 matches in 1 of 2 files; there are more"), "{}", capped.text);
        let exact = found(&world, json!({ "pattern": "x", "max_results": 51 })).await.unwrap();
        assert_eq!(
            (&exact.structured["match_count"], &exact.structured["complete"]),
            (&json!(51), &json!(true))
        );
        let few = found(&world, json!({ "pattern": "x", "max_results": 3, "context": 1 })).await.unwrap();
        assert_eq!(few.structured["match_count"], 3);
        assert!(few.text.ends_with("\na\n1: x\n2- y\n3: x\n4- y\n5: x\n6- y\n"), "{}", few.text);
        let files = found(&world, json!({ "pattern": "x", "files_only": true })).await.unwrap();
        assert_eq!(files.structured["files"], json!(["a", "b"]));
        assert_eq!(files.text, "2 of 2 files match\na\nb\n");
        let one =
            found(&world, json!({ "pattern": "x", "files_only": true, "max_results": 1 })).await.unwrap();
        assert_eq!((&one.structured["files"], &one.structured["complete"]), (&json!(["a"]), &json!(false)));
    }

    #[tokio::test]
    async fn long_lines_show_the_match_and_long_answers_end() {
        let line = format!("{}needle{}\n", "é".repeat(5000), "z".repeat(5000));
        let world = world(&[("root/min.js", line.repeat(300).as_bytes())]);
        let output = found(&world, json!({ "pattern": "needle", "max_results": 1000 })).await.unwrap();
        let text = output.structured["matches"][0]["text"].as_str().unwrap();
        assert!(text.contains("needle") && text.starts_with("…é") && text.ends_with("z…"), "{text}");
        assert_eq!(output.structured["stopped_by"], "size");
        assert!(output.text.len() < 2 * MAX_BYTES);
    }

    #[tokio::test]
    async fn time_that_is_up_ends_a_search_with_what_there_is() {
        let world = world(&[("root/a", b"x\n")]);
        let roots = Roots::new(&["root".into()], world.path(), None);
        let output = run(&roots, json!({ "pattern": "x" }), Duration::ZERO).await.unwrap();
        assert_eq!(
            (&output.structured["stopped_by"], &output.structured["complete"]),
            (&json!("time"), &json!(false))
        );
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn links_are_not_followed_out() {
        let world = world(&[("root/a", b"secret\n"), ("outside/s", b"secret\n")]);
        std::os::unix::fs::symlink(world.path().join("outside"), world.path().join("root/dir")).unwrap();
        std::os::unix::fs::symlink(world.path().join("outside/s"), world.path().join("root/file")).unwrap();
        assert_eq!(places(&world, json!({ "pattern": "secret" })).await, ["a:1"]);
        assert!(found(&world, json!({ "pattern": "secret", "path": "dir" })).await.is_err());
        assert!(found(&world, json!({ "pattern": "secret", "path": "file" })).await.is_err());
    }
}
