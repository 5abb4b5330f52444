//! `file_edit`: exact replacements in a text file, all of them or none.

use std::io::{self, Read};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::atomic::{Existing, PathLocks, replace_with};
use super::blocking::{Stop, blocking};
use super::outcome::{BuiltinFailure, BuiltinOutput, count, decode, shorten};
use super::roots::{Place, Roots};
use crate::tools::scoped::paths::LastLink;

/// Bytes of the largest file that is edited: it is held in memory twice.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// Bytes of the summary; the caller knows what it asked for.
const MAX_SUMMARY: usize = 4000;

/// Replacements of one edit that are described; the rest is counted.
const MAX_DESCRIBED: usize = 100;

/// Letters of a line in hints and in the summary.
const LINE_LETTERS: usize = 200;

/// Lines that are compared to find the nearest one; beyond that a hint is not worth the wait.
const MAX_COMPARED: usize = 20_000;

/// Arguments of `file_edit`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// The file. Relative paths start in the first allowed folder.
    path: String,
    /// Several replacements, each in the result of the one before; instead of the three below.
    edits: Option<Vec<Edit>>,
    /// The text to replace, exactly as in the file, long enough to occur once.
    old_text: Option<String>,
    /// The text to put there.
    new_text: Option<String>,
    /// Replaces every occurrence.
    replace_all: Option<bool>,
}

/// One replacement.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// As below.
    old_text: String,
    /// As below.
    new_text: String,
    /// As below.
    #[serde(default)]
    replace_all: bool,
}

/// Edits.
pub async fn run(roots: &Roots, locks: &PathLocks, input: Value) -> Result<BuiltinOutput, BuiltinFailure> {
    let arguments: Arguments = decode(input)?;
    let path = arguments.path.clone();
    let edits = edits_of(arguments)?;
    let roots = roots.clone();
    let (roots, place) = blocking(move |_| {
        let place = roots.resolve("/path", &path, LastLink::Followed)?;
        Ok((roots, place))
    })
    .await?;
    let lock = locks.lock(place.path()).await;
    blocking(move |stop| {
        let _lock = lock;
        edit(&roots, &place, &edits, stop)
    })
    .await
}

fn edits_of(arguments: Arguments) -> Result<Vec<Edit>, BuiltinFailure> {
    let Arguments { path: _, edits, old_text, new_text, replace_all } = arguments;
    let edits = match (edits, old_text, new_text) {
        (Some(edits), None, None) if replace_all.is_none() => edits,
        (None, Some(old_text), Some(new_text)) => {
            let edit = Edit { old_text, new_text, replace_all: replace_all.unwrap_or(false) };
            check("", &edit)?;
            return Ok(vec![edit]);
        }
        (None, Some(_), None) => {
            return Err(BuiltinFailure::invalid("/new_text", "`new_text` is missing; it may be empty"));
        }
        (None, None, _) => {
            return Err(BuiltinFailure::invalid("", "give either `edits`, or `old_text` and `new_text`"));
        }
        (Some(_), _, _) => {
            return Err(BuiltinFailure::invalid(
                "",
                "give either `edits`, or `old_text` and `new_text`, not both",
            ));
        }
    };
    if edits.is_empty() {
        return Err(BuiltinFailure::invalid("/edits", "there is nothing to do"));
    }
    for (index, edit) in edits.iter().enumerate() {
        check(&format!("/edits/{index}"), edit)?;
    }
    Ok(edits)
}

fn check(at: &str, edit: &Edit) -> Result<(), BuiltinFailure> {
    if edit.old_text.is_empty() {
        return Err(BuiltinFailure::invalid(
            &format!("{at}/old_text"),
            "it is empty; to insert, repeat a line of the file in both texts and add to it in `new_text`",
        ));
    }
    if edit.old_text == edit.new_text {
        return Err(BuiltinFailure::invalid(
            &format!("{at}/new_text"),
            "it equals `old_text`, so nothing would change",
        ));
    }
    Ok(())
}

fn edit(roots: &Roots, place: &Place, edits: &[Edit], stop: &Stop) -> Result<BuiltinOutput, BuiltinFailure> {
    let shown = place.shown();
    let mut text = load(roots, place, stop)?;
    let mut done = Vec::with_capacity(edits.len());
    let mut total = 0;
    for (index, edit) in edits.iter().enumerate() {
        stop.check()?;
        let (changed, made, replacements) = apply(&text, edit).map_err(|reason| {
            let which = if edits.len() == 1 {
                String::new()
            } else {
                format!("edit {} of {}: ", index + 1, edits.len())
            };
            BuiltinFailure::failed(format!("`{shown}` was not changed: {which}{reason}"))
        })?;
        text = changed;
        total += made;
        done.push(replacements);
    }
    replace_with(roots, place, Existing::Replace, stop, text.as_bytes())?;

    let summary = summary(done.iter().flatten(), total);
    let lines: Vec<Vec<usize>> = done.iter().map(|made| made.iter().map(|one| one.line).collect()).collect();
    Ok(BuiltinOutput {
        text: format!("edited `{shown}`: {}\n{summary}", count(total, "replacement")),
        structured: json!({ "path": shown, "replacements": total, "lines": lines, "diff": summary }),
    })
}

fn load(roots: &Roots, place: &Place, stop: &Stop) -> Result<String, BuiltinFailure> {
    let shown = place.shown();
    let file = roots.open(place)?;
    let failed = |error: io::Error| BuiltinFailure::io("read", shown, &error);
    let size = file.metadata().map_err(failed)?.len();
    if size > MAX_FILE {
        return Err(BuiltinFailure::failed(format!(
            "`{shown}` has {size} bytes, and files over {MAX_FILE} are not edited; use a program made for it"
        )));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    stop.reader(file).read_to_end(&mut bytes).map_err(failed)?;
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(BuiltinFailure::failed(format!(
            "`{shown}` is not UTF-8 text and would be damaged by an edit"
        ))),
    }
}

/// One replacement that was made.
#[derive(Debug, PartialEq, Eq)]
struct Replacement {
    /// The line where it begins, at the time it was made.
    line: usize,
    /// The lines it touched, before.
    before: String,
    /// The same lines, after.
    after: String,
}

/// Makes one edit. Line endings follow the file: a model writes `\n` whatever is in it.
fn apply(text: &str, edit: &Edit) -> Result<(String, u64, Vec<Replacement>), String> {
    let unix = edit.old_text.replace("\r\n", "\n");
    let windows = unix.replace('\n', "\r\n");
    let mut spellings = vec![edit.old_text.as_str(), &windows, &unix];
    spellings.dedup();
    let Some(old) = spellings.into_iter().find(|old| text.contains(old)) else {
        return Err(format!("`old_text` is not in it{}", hint(text, edit)));
    };
    if !edit.replace_all {
        let places = occurrences(text, old);
        if places.len() > 1 {
            let lines: Vec<String> =
                places.iter().take(10).map(|place| line_of(text, *place).to_string()).collect();
            let more = if places.len() > 10 { ", …" } else { "" };
            return Err(format!(
                "`old_text` is in it {} times, at lines {}{more}; add lines around it until it is unique, or set `replace_all`",
                places.len(),
                lines.join(", ")
            ));
        }
    }
    let mut changed = String::with_capacity(text.len() + edit.new_text.len());
    let mut replacements = Vec::new();
    let mut from = 0;
    let (mut line, mut counted) = (1, 0);
    let mut made = 0;
    for (at, found) in text.match_indices(old) {
        let end = at + found.len();
        let new = with_endings(&edit.new_text, text, at, found != edit.old_text);
        changed.push_str(&text[from..at]);
        changed.push_str(&new);
        from = end;
        made += 1;
        if replacements.len() == MAX_DESCRIBED {
            continue;
        }
        line += text[counted..at].matches('\n').count();
        counted = at;
        let (start, stop) = line_around(text, at, end);
        replacements.push(Replacement {
            line,
            before: text[start..stop].to_owned(),
            after: format!("{}{new}{}", &text[start..at], &text[end..stop]),
        });
    }
    changed.push_str(&text[from..]);
    Ok((changed, made, replacements))
}

/// The whole lines that hold `at..end`, except that very long ones are left out beyond what is shown of them.
fn line_around(text: &str, at: usize, end: usize) -> (usize, usize) {
    let lower = text.floor_char_boundary(at.saturating_sub(LINE_LETTERS));
    let upper = text.ceil_char_boundary(text.len().min(end + LINE_LETTERS));
    let start = text[lower..at].rfind('\n').map_or(lower, |newline| lower + newline + 1);
    if text[at..end].ends_with('\n') {
        return (start, end);
    }
    (start, text[end..upper].find('\n').map_or(upper, |newline| end + newline))
}

/// `new` with the line endings that the file has at `at`. Unless forced, `\n` becomes `\r\n` but never the other way round.
fn with_endings(new: &str, text: &str, at: usize, is_forced: bool) -> String {
    let newline = text[at..].find('\n').map(|n| at + n).or_else(|| text[..at].rfind('\n'));
    let is_windows = newline.is_some_and(|newline| text[..newline].ends_with('\r'));
    let unix = || new.replace("\r\n", "\n");
    match (is_windows, is_forced) {
        (true, _) => unix().replace('\n', "\r\n"),
        (false, true) => unix(),
        (false, false) => new.to_owned(),
    }
}

/// Where `old` begins, overlapping ones included: they are just as ambiguous.
fn occurrences(text: &str, old: &str) -> Vec<usize> {
    let step = old.chars().next().map_or(1, char::len_utf8);
    let mut places = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(old) {
        places.push(from + at);
        from += at + step;
    }
    places
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// What is most like the text that was not found.
fn hint(text: &str, edit: &Edit) -> String {
    if text.is_empty() {
        return "; the file is empty".to_owned();
    }
    if !edit.new_text.trim().is_empty()
        && let Some(at) = text.find(&edit.new_text)
    {
        return format!("; `new_text` is there already, at line {}", line_of(text, at));
    }
    let wanted: Vec<&str> = edit.old_text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let Some(first) = wanted.first() else {
        return "; read the file again and copy the text from it".to_owned();
    };
    let lines: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty())
        .take(MAX_COMPARED)
        .collect();
    let is_same = |window: &&[(usize, &str)]| window.iter().map(|(_, line)| line).eq(&wanted);
    if let Some([(number, _), ..]) = lines.windows(wanted.len()).find(is_same) {
        return format!(
            "; from line {number} on it matches except for white space, so copy indentation and blank lines from the file"
        );
    }
    let likeness =
        |line: &str| strsim::sorensen_dice(&shorten(line, LINE_LETTERS), &shorten(first, LINE_LETTERS));
    let nearest = lines
        .iter()
        .map(|(number, line)| (likeness(line), *number, *line))
        .max_by(|(a, first, _), (b, second, _)| a.total_cmp(b).then(second.cmp(first)));
    match nearest {
        Some((likeness, number, line)) if likeness > 0.4 => {
            format!("; the nearest line is {number}: `{}`", shorten(line, LINE_LETTERS))
        }
        _ => "; no line is like it, so read the file again and copy the text from it".to_owned(),
    }
}

/// What changed, as a short diff.
fn summary<'a>(replacements: impl Iterator<Item = &'a Replacement>, total: u64) -> String {
    let mut summary = String::new();
    let mut omitted = total;
    for one in replacements {
        let mut part = format!("@@ line {} @@\n", one.line);
        for (sign, lines) in [('-', &one.before), ('+', &one.after)] {
            for line in lines.lines() {
                part.push_str(&format!("{sign}{}\n", shorten(line, LINE_LETTERS)));
            }
        }
        if summary.len() + part.len() > MAX_SUMMARY {
            break;
        }
        summary.push_str(&part);
        omitted -= 1;
    }
    if omitted > 0 {
        summary.push_str(&format!("[{} not shown]\n", count(omitted, "more change")));
    }
    summary
}

#[cfg(test)]
mod tests {
    use std::fs;

    use expect_test::{Expect, expect};
    use tempfile::TempDir;

    use super::*;

    async fn edited(content: &str, arguments: Value) -> (Result<BuiltinOutput, BuiltinFailure>, String) {
        let world = TempDir::new().unwrap();
        let path = world.path().join("a.txt");
        fs::write(&path, content).unwrap();
        let mut input = json!({ "path": "a.txt" });
        input.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        let result = run(&Roots::new(&[".".into()], world.path(), None), &PathLocks::default(), input).await;
        (result, fs::read_to_string(path).unwrap())
    }

    async fn check(content: &str, arguments: Value, expected: &str) {
        let (result, after) = edited(content, arguments).await;
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(after, expected);
    }

    async fn refused(content: &str, arguments: Value, expected: Expect) {
        let (result, after) = edited(content, arguments).await;
        assert_eq!(after, content, "a refused edit changes nothing");
        let said = match result.unwrap_err() {
            BuiltinFailure::Validation { path, message } => format!("at {path}: {message}"),
            BuiltinFailure::Execution { message } | BuiltinFailure::Timeout { message } => message,
        };
        expected.assert_eq(&said);
    }

    #[tokio::test]
    async fn texts_are_replaced_exactly() {
        check("a b c\n", json!({ "old_text": "b", "new_text": "x" }), "a x c\n").await;
        check("a b c\n", json!({ "old_text": "b ", "new_text": "" }), "a c\n").await;
        check("a a a", json!({ "old_text": "a", "new_text": "aa", "replace_all": true }), "aa aa aa").await;
        check("$1 \\n .*", json!({ "old_text": ".*", "new_text": "$0" }), "$1 \\n $0").await;
        check(
            "one\ntwo\n",
            json!({ "edits": [
                { "old_text": "one", "new_text": "1" },
                { "old_text": "1\ntwo", "new_text": "1\n2\n3", "replace_all": false },
            ] }),
            "1\n2\n3\n",
        )
        .await;
    }

    #[tokio::test]
    async fn line_endings_of_the_file_are_kept() {
        check("a\r\nb\r\nc\r\n", json!({ "old_text": "b", "new_text": "x\ny" }), "a\r\nx\r\ny\r\nc\r\n")
            .await;
        check("a\r\nb\r\nc\r\n", json!({ "old_text": "a\nb\n", "new_text": "x\n" }), "x\r\nc\r\n").await;
        check("a\r\nb\r\n", json!({ "old_text": "a\r\nb", "new_text": "x\r\ny" }), "x\r\ny\r\n").await;
        check("a\r\nlast", json!({ "old_text": "last", "new_text": "x\ny" }), "a\r\nx\r\ny").await;
        check("a\nb\n", json!({ "old_text": "a\r\nb", "new_text": "x\r\ny" }), "x\ny\n").await;
        check("a\nb\r\nc\n", json!({ "old_text": "c", "new_text": "x\ny" }), "a\nb\r\nx\ny\n").await;
    }

    #[tokio::test]
    async fn what_is_ambiguous_or_absent_is_refused_with_a_way_out() {
        refused("a\nb\na\n", json!({ "old_text": "a", "new_text": "x" }), expect![[r#"`a.txt` was not changed: `old_text` is in it 2 times, at lines 1, 3; add lines around it until it is unique, or set `replace_all`"#]]).await;
        refused("aaa", json!({ "old_text": "aa", "new_text": "x" }), expect![[r#"`a.txt` was not changed: `old_text` is in it 2 times, at lines 1, 1; add lines around it until it is unique, or set `replace_all`"#]]).await;
        refused("fn main() {\n    run();\n}\n", json!({ "old_text": "fn main() {\n  run();", "new_text": "x" }), expect![[r#"`a.txt` was not changed: `old_text` is not in it; from line 1 on it matches except for white space, so copy indentation and blank lines from the file"#]]).await;
        refused(
            "let count = 1;\nlet other = 2;\n",
            json!({ "old_text": "let counts = 1;", "new_text": "x" }),
            expect![[
                r#"`a.txt` was not changed: `old_text` is not in it; the nearest line is 1: `let count = 1;`"#
            ]],
        )
        .await;
        refused(
            "new text\n",
            json!({ "old_text": "old", "new_text": "new text" }),
            expect![[
                r#"`a.txt` was not changed: `old_text` is not in it; `new_text` is there already, at line 1"#
            ]],
        )
        .await;
        refused("qqq\n", json!({ "old_text": "zzz", "new_text": "x" }), expect![[r#"`a.txt` was not changed: `old_text` is not in it; no line is like it, so read the file again and copy the text from it"#]]).await;
        refused(
            "",
            json!({ "old_text": "zzz", "new_text": "x" }),
            expect![[r#"`a.txt` was not changed: `old_text` is not in it; the file is empty"#]],
        )
        .await;
        refused("one two\n", json!({ "edits": [{ "old_text": "one", "new_text": "1" }, { "old_text": "four", "new_text": "4" }] }), expect![[r#"`a.txt` was not changed: edit 2 of 2: `old_text` is not in it; no line is like it, so read the file again and copy the text from it"#]]).await;
    }

    #[tokio::test]
    async fn edits_that_make_no_sense_are_refused() {
        refused("a", json!({ "old_text": "", "new_text": "x" }), expect![[r#"at /old_text: it is empty; to insert, repeat a line of the file in both texts and add to it in `new_text`"#]]).await;
        refused(
            "a",
            json!({ "edits": [{ "old_text": "a", "new_text": "a" }] }),
            expect![[r#"at /edits/0/new_text: it equals `old_text`, so nothing would change"#]],
        )
        .await;
        refused("a", json!({ "edits": [] }), expect![[r#"at /edits: there is nothing to do"#]]).await;
        refused("a", json!({}), expect![[r#"at : give either `edits`, or `old_text` and `new_text`"#]]).await;
        refused(
            "a",
            json!({ "old_text": "a" }),
            expect![[r#"at /new_text: `new_text` is missing; it may be empty"#]],
        )
        .await;
        refused(
            "a",
            json!({ "edits": [{ "old_text": "a", "new_text": "b" }], "old_text": "a" }),
            expect![[r#"at : give either `edits`, or `old_text` and `new_text`, not both"#]],
        )
        .await;
        refused(
            "a\0b",
            json!({ "old_text": "a", "new_text": "b" }),
            expect![[r#"`a.txt` is not UTF-8 text and would be damaged by an edit"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn the_result_shows_what_changed() {
        let (result, _) = edited(
            "one\ntwo three\nfour\n",
            json!({ "edits": [{ "old_text": "three\n", "new_text": "3\n3.5\n" }, { "old_text": "four", "new_text": "4" }] }),
        )
        .await;
        let output = result.unwrap();
        expect![[r#"
            edited `a.txt`: 2 replacements
            @@ line 2 @@
            -two three
            +two 3
            +3.5
            @@ line 4 @@
            -four
            +4
        "#]]
        .assert_eq(&output.text);
        assert_eq!(output.structured["lines"], json!([[2], [4]]));
        let (result, _) =
            edited(&"a\n".repeat(2000), json!({ "old_text": "a", "new_text": "b", "replace_all": true }))
                .await;
        let output = result.unwrap();
        assert!(output.text.len() < MAX_SUMMARY + 200);
        assert!(output.text.contains("more changes not shown"));
        assert_eq!(output.structured["replacements"], 2000);
    }

    #[tokio::test]
    async fn a_hundred_edits_at_once_lose_none() {
        let world = TempDir::new().unwrap();
        let path = world.path().join("a.txt");
        fs::write(&path, (0..100).map(|n| format!("<{n}>\n")).collect::<String>()).unwrap();
        let roots = Roots::new(&[".".into()], world.path(), None);
        let locks = PathLocks::default();
        let mut edits = tokio::task::JoinSet::new();
        for n in 0..100 {
            let (roots, locks) = (roots.clone(), locks.clone());
            edits.spawn(async move {
                let input =
                    json!({ "path": "a.txt", "old_text": format!("<{n}>"), "new_text": format!("done {n}") });
                run(&roots, &locks, input).await
            });
        }
        while let Some(result) = edits.join_next().await {
            result.unwrap().unwrap();
        }
        assert_eq!(
            fs::read_to_string(path).unwrap(),
            (0..100).map(|n| format!("done {n}\n")).collect::<String>()
        );
    }
}
