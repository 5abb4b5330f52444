//! `file_read`: a range of a text file's lines.

use std::io::{self, BufRead, BufReader};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::blocking::{Stop, blocking};
use super::outcome::{BuiltinFailure, BuiltinOutput, count, decode};
use super::roots::Roots;
use crate::tools::scoped::paths::LastLink;

/// Bytes of text in one answer: about sixteen thousand tokens, which models still take in well.
const MAX_BYTES: usize = 64 * 1024;

/// Bytes read only to count lines; beyond them the total is not worth the wait.
const MAX_COUNTED: u64 = 256 * 1024 * 1024;

/// Bytes at the start of a file in which a NUL makes it binary; ripgrep and git look about as far.
const PROBE: usize = 8 * 1024;

/// Arguments of `file_read`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// The file. Relative paths start in the first allowed folder.
    path: String,
    /// First line, counted from 1.
    start_line: Option<u64>,
    /// Last line, included.
    end_line: Option<u64>,
}

/// Reads.
pub async fn run(roots: &Roots, input: Value) -> Result<BuiltinOutput, BuiltinFailure> {
    let arguments: Arguments = decode(input)?;
    let roots = roots.clone();
    blocking(move |stop| read(&roots, &arguments, stop)).await
}

fn read(roots: &Roots, arguments: &Arguments, stop: &Stop) -> Result<BuiltinOutput, BuiltinFailure> {
    let first = arguments.start_line.unwrap_or(1);
    let last = arguments.end_line.unwrap_or(u64::MAX);
    if first == 0 {
        return Err(BuiltinFailure::invalid("/start_line", "lines are counted from 1"));
    }
    if last < first {
        return Err(BuiltinFailure::invalid(
            "/end_line",
            format!("`end_line` {last} is before `start_line` {first}"),
        ));
    }
    let place = roots.resolve("/path", &arguments.path, LastLink::Followed)?;
    let shown = place.shown();
    let file = roots.open(&place)?;
    let failed = |error: io::Error| BuiltinFailure::io("read", shown, &error);
    let size = file.metadata().map_err(failed)?.len();
    let mut reader = BufReader::with_capacity(PROBE.max(64 * 1024), stop.reader(file));
    let start = reader.fill_buf().map_err(failed)?;
    if let Some(kind) = binary_kind(start) {
        return Err(binary(shown, kind, size));
    }
    let lines = take_lines(&mut reader, first, last).map_err(failed)?;
    if lines.bytes.contains(&0) {
        return Err(binary(shown, "unknown", size));
    }
    let content = String::from_utf8_lossy(&lines.bytes);
    let replaced = content.matches(char::REPLACEMENT_CHARACTER).count();
    // A tenth is far more than accented letters make in Latin-1 text, and far less than there is in compressed data.
    if replaced * 10 > content.chars().count() {
        return Err(binary(shown, "unknown", size));
    }
    if let Some(total) = lines.total
        && total > 0
        && first > total
    {
        return Err(BuiltinFailure::failed(format!(
            "`{shown}` has only {}; choose a smaller `start_line`",
            count(total, "line")
        )));
    }
    let content = content.strip_prefix('\u{feff}').unwrap_or(&content);
    Ok(report(shown, size, first, content, &lines, replaced))
}

fn report(
    shown: &str,
    size: u64,
    first: u64,
    content: &str,
    lines: &Lines,
    replaced: usize,
) -> BuiltinOutput {
    let total = match lines.total {
        Some(total) => total.to_string(),
        None => format!("more than {}", lines.counted),
    };
    let mut notes = Vec::new();
    if lines.bytes.is_empty() {
        notes.push("empty".to_owned());
    } else {
        notes.push(format!("lines {first}-{} of {total}", lines.last));
    }
    if lines.is_last_cut {
        notes.push(format!("line {} is cut at {MAX_BYTES} bytes", lines.last));
    }
    if let Some(next) = lines.next {
        notes.push(format!("the answer is full, read on with start_line {next}"));
    }
    if replaced > 0 {
        notes.push(format!("{} not UTF-8 and shown as U+FFFD", count(replaced as u64, "place")));
    }
    let mut structured = json!({
        "path": shown,
        "size": size,
        "start_line": first,
        "end_line": lines.last,
        "total_lines": lines.total,
        "content": content,
    });
    if let Some(next) = lines.next {
        structured["next_line"] = next.into();
    }
    if lines.is_last_cut {
        structured["last_line_cut"] = true.into();
    }
    if replaced > 0 {
        structured["not_utf8"] = replaced.into();
    }
    let text = format!("{shown} ({size} bytes; {})\n\n{content}", notes.join("; "));
    BuiltinOutput { text, structured }
}

fn binary(shown: &str, kind: &str, size: u64) -> BuiltinFailure {
    BuiltinFailure::failed(format!(
        "`{shown}` is not a text file (kind: {kind}, {size} bytes), and only text can be read"
    ))
}

/// Lines taken out of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lines {
    bytes: Vec<u8>,
    /// The last line that is in `bytes`.
    last: u64,
    /// Whether that line goes on.
    is_last_cut: bool,
    /// Where to read on, if the range did not fit.
    next: Option<u64>,
    /// Lines of the whole file, unless it was too long to count.
    total: Option<u64>,
    /// Lines that were counted.
    counted: u64,
}

/// Takes the lines from `first` to `last`, as many as fit, and counts on to the end.
fn take_lines(reader: &mut impl BufRead, first: u64, last: u64) -> io::Result<Lines> {
    let mut lines = Lines { last: first - 1, ..Lines::default() };
    let mut line = 1;
    let mut line_start = 0;
    let mut read = 0;
    let mut is_full = false;
    let mut ends_open = false;
    loop {
        let chunk = reader.fill_buf()?;
        if chunk.is_empty() {
            lines.counted = line - 1 + u64::from(ends_open);
            lines.total = Some(lines.counted);
            break;
        }
        let length = chunk.len();
        let mut rest = chunk;
        while !rest.is_empty() {
            let (piece, after) = match memchr::memchr(b'\n', rest) {
                Some(end) => rest.split_at(end + 1),
                None => (rest, &[][..]),
            };
            rest = after;
            ends_open = piece.last() != Some(&b'\n');
            if (first..=last).contains(&line) && !is_full {
                lines.bytes.extend_from_slice(piece);
                lines.last = line;
                is_full = lines.bytes.len() > MAX_BYTES;
                if is_full && line_start == 0 {
                    lines.bytes.truncate(character_end(&lines.bytes, MAX_BYTES));
                    lines.is_last_cut = true;
                } else if is_full {
                    lines.bytes.truncate(line_start);
                    lines.last = line - 1;
                    lines.next = Some(line);
                }
            }
            if !ends_open {
                line += 1;
                line_start = lines.bytes.len();
            }
        }
        reader.consume(length);
        read += length as u64;
        if read > MAX_COUNTED && (is_full || line > last) {
            lines.counted = line - 1;
            break;
        }
    }
    // The line after a cut one, unless the cut one was the last that was wanted.
    if lines.is_last_cut && lines.last < last && lines.total.is_none_or(|total| lines.last < total) {
        lines.next = Some(lines.last + 1);
    }
    Ok(lines)
}

/// The greatest end at or below `end` that goes through no UTF-8 character.
fn character_end(bytes: &[u8], end: usize) -> usize {
    let continues = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    (end.saturating_sub(3)..=end).rev().find(|end| !continues(bytes[*end])).unwrap_or(end)
}

/// What a file is that is no text, by its first bytes.
fn binary_kind(start: &[u8]) -> Option<&'static str> {
    const KINDS: &[(&[u8], &str)] = &[
        (b"\x89PNG", "PNG image"),
        (b"\xff\xd8\xff", "JPEG image"),
        (b"GIF8", "GIF image"),
        (b"%PDF-", "PDF document"),
        (b"PK\x03\x04", "ZIP archive or office document"),
        (b"\x1f\x8b", "gzip archive"),
        (b"\x28\xb5\x2f\xfd", "zstd archive"),
        (b"\xfd7zXZ", "xz archive"),
        (b"\x7fELF", "program"),
        (b"MZ", "program"),
        (b"\xcf\xfa\xed\xfe", "program"),
        (b"\0asm", "WebAssembly module"),
        (b"SQLite format 3\0", "SQLite database"),
        (b"\xff\xfe", "UTF-16 text"),
        (b"\xfe\xff", "UTF-16 text"),
    ];
    let probe = &start[..start.len().min(PROBE)];
    let known = KINDS.iter().find(|(magic, _)| probe.starts_with(magic)).map(|(_, kind)| *kind);
    // Text may begin with `MZ` or `GIF8`; binary files have a NUL soon, or are no UTF-8.
    let is_text =
        !probe.contains(&0) && std::str::from_utf8(probe).map_or_else(|e| e.error_len().is_none(), |_| true);
    match known {
        Some("PDF document") => known,
        Some(_) if is_text => None,
        Some(kind) => Some(kind),
        None => probe.contains(&0).then_some("unknown"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    async fn read(content: impl AsRef<[u8]>, arguments: Value) -> Result<BuiltinOutput, BuiltinFailure> {
        let world = TempDir::new().unwrap();
        fs::write(world.path().join("a.txt"), content).unwrap();
        let mut input = json!({ "path": "a.txt" });
        input.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        run(&Roots::new(&[".".into()], world.path(), None), input).await
    }

    fn facts(output: &BuiltinOutput) -> String {
        let s = &output.structured;
        format!(
            "{}-{} of {} next {}: {:?}",
            s["start_line"],
            s["end_line"],
            s["total_lines"],
            s["next_line"],
            s["content"].as_str().unwrap()
        )
    }

    #[tokio::test]
    async fn ranges_are_counted_from_one_and_inclusive() {
        let content = "one\ntwo\r\nthree";
        let check = async |arguments: Value, expected: &str| {
            assert_eq!(facts(&read(content, arguments).await.unwrap()), expected);
        };
        check(json!({}), r#"1-3 of 3 next null: "one\ntwo\r\nthree""#).await;
        check(json!({ "start_line": 2 }), r#"2-3 of 3 next null: "two\r\nthree""#).await;
        check(json!({ "start_line": 2, "end_line": 2 }), r#"2-2 of 3 next null: "two\r\n""#).await;
        check(json!({ "end_line": 99 }), r#"1-3 of 3 next null: "one\ntwo\r\nthree""#).await;
        check(json!({ "start_line": 3, "end_line": null }), r#"3-3 of 3 next null: "three""#).await;
        let whole = read("one\n", json!({})).await.unwrap();
        assert_eq!(whole.text, "a.txt (4 bytes; lines 1-1 of 1)\n\none\n");
    }

    #[tokio::test]
    async fn ranges_that_make_no_sense_are_refused() {
        let check = async |arguments: Value, expected: &str| {
            let failure = read("one\n", arguments).await.unwrap_err();
            assert!(format!("{failure:?}").contains(expected), "{failure:?}");
        };
        check(json!({ "start_line": 0 }), "/start_line").await;
        check(json!({ "start_line": 3, "end_line": 2 }), "/end_line").await;
        check(json!({ "start_line": 5 }), "has only 1 line").await;
        check(json!({ "start_line": -1 }), "/start_line").await;
        check(json!({ "lines": 3 }), "unknown field `lines`").await;
    }

    #[tokio::test]
    async fn an_empty_file_is_empty_and_still_says_so() {
        let output = read("", json!({})).await.unwrap();
        assert_eq!(output.text, "a.txt (0 bytes; empty)\n\n");
        assert_eq!(facts(&output), r#"1-0 of 0 next null: """#);
    }

    #[tokio::test]
    async fn a_long_file_is_read_in_whole_lines_until_nothing_is_left() {
        let content: String = (1..=5000).map(|n| format!("this is line number {n}\n")).collect();
        let mut seen = String::new();
        let mut next = json!(1);
        while !next.is_null() {
            let output = read(&content, json!({ "start_line": next })).await.unwrap();
            let part = output.structured["content"].as_str().unwrap();
            assert!(part.len() <= MAX_BYTES && part.ends_with('\n'));
            assert_eq!(output.structured["total_lines"], 5000);
            seen.push_str(part);
            next = output.structured["next_line"].clone();
        }
        assert!(seen == content);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_cut_at_a_character() {
        let content = format!("x{}\nnext\n", "é".repeat(MAX_BYTES));
        let output = read(&content, json!({})).await.unwrap();
        let part = output.structured["content"].as_str().unwrap();
        assert_eq!(part.len(), MAX_BYTES - 1);
        assert!(content.starts_with(part));
        assert_eq!(output.structured["next_line"], 2);
        assert_eq!(output.structured["last_line_cut"], true);
        assert!(output.text.contains("line 1 is cut"));
    }

    #[tokio::test]
    async fn what_is_no_text_is_named_and_refused() {
        let check = async |content: &[u8], expected: &str| {
            let failure = read(content, json!({})).await.unwrap_err();
            assert!(format!("{failure:?}").contains(expected), "{failure:?}");
        };
        check(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "kind: PNG image, 16 bytes").await;
        check(b"\xff\xfeh\0i\0", "UTF-16 text").await;
        check(b"text\0text", "kind: unknown").await;
        check(&[0xf0, 0x9f, 0x81, 0xfe, 0x80, 0x91, 0xc3].repeat(100), "kind: unknown").await;
        check(&[b"a".repeat(20_000).as_slice(), b"\n\0"].concat(), "kind: unknown").await;
    }

    #[tokio::test]
    async fn a_little_of_another_encoding_is_shown_and_told() {
        let output = read(b"caf\xe9 au lait, caf\xe9 noir\n", json!({})).await.unwrap();
        assert_eq!(output.structured["content"], "caf\u{fffd} au lait, caf\u{fffd} noir\n");
        assert_eq!(output.structured["not_utf8"], 2);
        assert!(output.text.contains("2 places not UTF-8"));
        assert_eq!(
            read("MZ is no program", json!({})).await.unwrap().structured["content"],
            "MZ is no program"
        );
    }

    #[tokio::test]
    async fn folders_pipes_and_missing_files_say_what_they_are() {
        let world = TempDir::new().unwrap();
        let roots = Roots::new(&[".".into()], world.path(), None);
        let check = async |path: &str, expected: &str| {
            let failure = run(&roots, json!({ "path": path })).await.unwrap_err();
            assert!(format!("{failure:?}").contains(expected), "{failure:?}");
        };
        check(".", "operation `list`").await;
        check("missing.txt", "it does not exist").await;
        fs::write(world.path().join("file"), "").unwrap();
        check("file/below", "is a file, not a folder").await;
        #[cfg(unix)]
        {
            let made = std::process::Command::new("mkfifo").arg(world.path().join("pipe")).status().unwrap();
            assert!(made.success());
            check("pipe", "neither a file nor a folder").await;
        }
    }
}
