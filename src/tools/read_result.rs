//! `read_result`: what a cut result left out, page by page or line by line.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use futures::future::BoxFuture;
use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use serde_json::{Value, json};

use super::error::ToolError;
use super::json::RawJson;
use super::results::{ResultStore, Text, written};
use super::service::{
    Input, Source, ToolDefinition, ToolHandler, ToolMetadata, ToolOutput, ToolResult, Turn,
};
use crate::catalog::registry::RegisteredTool;

const NAME: &str = "read_result";
/// Every page has so much, even if the budget has hardly room for the facts: reading must come to an end.
const LEAST: usize = 16;
/// Bytes for a compiled pattern and for its cache: generous for a pattern, small for a gateway.
const PATTERN_BYTES: usize = 10 << 20;
/// Characters of an unknown id that are repeated to whoever sent it.
const ID_LETTERS: usize = 32;

struct ReadResult(Arc<ResultStore>);

/// The tool over the results of one connection.
pub fn tool(store: Arc<ResultStore>) -> Arc<RegisteredTool> {
    let definition = ToolDefinition::new(
        NAME,
        "Reads what a shortened result left out.",
        RawJson::from_value(&json!({
            "type": "object",
            "properties": {
                "id": { "type": "string", "description": "Such as r1." },
                "offset": { "type": "integer", "minimum": 0, "description": "First character." },
                "limit": { "type": "integer", "minimum": 1, "description": "Most characters." },
                "grep": { "type": "string", "description": "Regular expression: only matching lines." },
                "part": { "enum": ["text", "structured"] }
            },
            "required": ["id"],
            "additionalProperties": false,
        })),
        Source::Builtin,
        ToolMetadata::looks_only(),
    );
    Arc::new(RegisteredTool::new(definition, Arc::new(ReadResult(store))))
}

impl ToolHandler for ReadResult {
    fn call<'a>(&'a self, input: Input, _: &'a Turn) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move { answer(&self.0, &input.value) })
    }
}

/// What is read, and how much of it may be shown.
struct Reading<'a> {
    id: &'a str,
    text: &'a Text,
    offset: usize,
    limit: usize,
    max: usize,
}

fn answer(store: &ResultStore, input: &Value) -> Result<ToolResult, ToolError> {
    let id = input["id"].as_str().unwrap_or_default().trim();
    let Some(whole) = store.find(id) else {
        return Ok(ToolResult::ToolError(unknown(id, store.ids())));
    };
    let part = match input["part"].as_str() {
        Some("structured") => whole.structure.as_ref(),
        Some(_) => whole.text.as_ref(),
        None => whole.text.as_ref().or(whole.structure.as_ref()),
    };
    let Some(text) = part else {
        let message = format!("this part of `{id}` was not shortened: the result itself has all of it");
        return Ok(ToolResult::ToolError(message));
    };
    let (offset, total) = (number(&input["offset"]).unwrap_or(0), text.characters());
    if offset > total {
        let message = format!("offset {offset} is beyond the end: `{id}` has {total} characters");
        return Ok(ToolResult::ToolError(message));
    }
    let limit = number(&input["limit"]).map_or(usize::MAX, |limit| limit.max(1));
    let reading = Reading { id, text, offset, limit, max: store.max_chars() };
    let output = match input["grep"].as_str().filter(|pattern| !pattern.is_empty()) {
        Some(pattern) => reading.lines(&matcher(pattern)?),
        None => reading.page(),
    };
    Ok(ToolResult::Completed(output))
}

fn unknown(id: &str, kept: Option<(String, String)>) -> String {
    let id: String = id.chars().take(ID_LETTERS).collect();
    let kept = match kept {
        None => "none is kept".to_owned(),
        Some((first, last)) if first == last => format!("only `{last}` is kept"),
        Some((first, last)) => format!("`{first}` to `{last}` are kept"),
    };
    format!("there is no result `{id}`; {kept}, for this connection only, and the oldest leave first")
}

/// JSON Schema counts `5.0` among the integers; what is too large means the end.
fn number(value: &Value) -> Option<usize> {
    let whole = value.as_u64().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    whole.or_else(|| value.as_f64().map(|n| n as usize))
}

fn matcher(pattern: &str) -> Result<RegexMatcher, ToolError> {
    RegexMatcherBuilder::new()
        // `^` and `$` are the ends of lines, with either line ending; no match goes beyond them.
        .multi_line(true)
        .crlf(true)
        .size_limit(PATTERN_BYTES)
        .dfa_size_limit(PATTERN_BYTES)
        .build(pattern)
        .map_err(|error| ToolError::Validation {
            tool: NAME.to_owned(),
            path: "/grep".to_owned(),
            message: format!("{error}; the pattern is matched within single lines"),
            schema: None,
        })
}

/// Characters that are free in the text block, and in the structure, where some are escaped.
#[derive(Clone, Copy)]
struct Room {
    text: usize,
    structure: usize,
}

impl Room {
    /// What facts leave over of a budget. A `null` may be longer than the number it stands for.
    fn beside(max: usize, (text, structure): &(String, Value)) -> Room {
        let left = |taken: usize| max.saturating_sub(taken).max(LEAST);
        Room { text: left(text.chars().count() + 1), structure: left(structure.to_string().len() + 4) }
    }

    /// What is left behind a text and what stands around it, if they fit.
    fn without(self, text: &str, around: Room) -> Option<Room> {
        let mut room = Room {
            text: self.text.checked_sub(around.text)?,
            structure: self.structure.checked_sub(around.structure)?,
        };
        for c in text.chars() {
            room.text = room.text.checked_sub(1)?;
            room.structure = room.structure.checked_sub(written(c))?;
        }
        Some(room)
    }
}

impl Reading<'_> {
    fn page(&self) -> ToolOutput {
        let total = self.text.characters();
        let facts = |end: usize, text: &str| {
            let next = (end < total).then_some(end);
            let then = next.map_or("end".to_owned(), |next| format!("next offset {next}"));
            (
                format!("characters {}-{end} of {total}; {then}", self.offset),
                json!({
                    "id": self.id, "offset": self.offset, "next_offset": next, "total": total, "text": text,
                }),
            )
        };
        let mut room = Room::beside(self.max, &facts(total.saturating_sub(1), ""));
        let rest = &self.text.as_str()[self.text.byte_of(self.offset)..];
        let (mut end, mut bytes) = (self.offset, 0);
        for c in rest.chars().take(self.limit) {
            match room.without(&rest[bytes..bytes + c.len_utf8()], Room { text: 0, structure: 0 }) {
                Some(left) => room = left,
                None if end - self.offset < LEAST => {}
                None => break,
            }
            end += 1;
            bytes += c.len_utf8();
        }
        let shown = &rest[..bytes];
        let (line, structure) = facts(end, shown);
        ToolOutput::structured(&format!("{line}\n{shown}"), &structure)
    }

    fn lines(&self, matcher: &RegexMatcher) -> ToolOutput {
        let (total, from) = (self.text.characters(), self.offset);
        let facts = |hits: usize, left_out: usize, next: Option<usize>| {
            let line = match (hits, next) {
                (0, _) => format!("no line of `{}` matches in characters {from}-{total}", self.id),
                (n, None) => format!("matching lines: {n}; end"),
                (n, Some(next)) => {
                    format!("matching lines: {n}; {left_out} more left out; next offset {next}")
                }
            };
            let structure = json!({
                "id": self.id, "offset": from, "next_offset": next, "total": total,
                "matches": [], "left_out": left_out,
            });
            (line, structure)
        };
        let longest = facts(total, total, Some(total));
        let limit = self.limit.saturating_add(longest.1.to_string().len());
        let digits = total.to_string().len();
        // `N: ` and a line break; `{"offset":N,"text":""},`.
        let around = Room { text: digits + 3, structure: digits + 22 };
        let all = Room::beside(self.max, &longest);
        let mut room = Room::beside(self.max.min(limit), &longest);
        let mut places = Places::at(self.text, from);
        let (mut text, mut matches) = (String::new(), Vec::new());
        let (mut left_out, mut next) = (0, None);
        let mut at = self.text.byte_of(from);
        while let Some(line) = Line::matching(self.text.as_str(), at, matcher) {
            at = line.next();
            if next.is_some() {
                left_out += 1;
                continue;
            }
            let shown = match all.without(line.text, around) {
                Some(_) => Shown { start: line.start, text: line.text.into(), resumes: line.next() },
                None => line.excerpt(all.text.min(all.structure) / 4),
            };
            let offset = places.character_of(shown.start);
            let rest = room.without(&shown.text, around);
            if rest.is_none() && !matches.is_empty() {
                (left_out, next) = (1, Some(offset));
                continue;
            }
            room = rest.unwrap_or(Room { text: 0, structure: 0 });
            write!(text, "\n{offset}: {}", shown.text).expect("writing into memory cannot fail");
            matches.push(json!({ "offset": offset, "text": shown.text }));
            at = shown.resumes;
        }
        let (line, mut structure) = facts(matches.len(), left_out, next);
        structure["matches"] = matches.into();
        ToolOutput::structured(&format!("{line}{text}"), &structure)
    }
}

/// A line that matches, without its line break. All places are bytes of the whole text.
struct Line<'a> {
    text: &'a str,
    start: usize,
    end: usize,
    /// Where the search began, if that was within this line.
    searched_from: usize,
    found: usize,
}

/// What is shown of a line, and where the search goes on.
struct Shown<'a> {
    start: usize,
    text: Cow<'a, str>,
    resumes: usize,
}

impl<'a> Line<'a> {
    fn matching(whole: &'a str, at: usize, matcher: &RegexMatcher) -> Option<Line<'a>> {
        let bytes = whole.as_bytes();
        bytes.get(at..)?;
        // A pattern without Unicode can match within a character.
        let found = whole.floor_char_boundary(matcher.find_at(bytes, at).ok()??.start());
        let start = memchr::memrchr(b'\n', &bytes[..found]).map_or(0, |at| at + 1);
        let end = memchr::memchr(b'\n', &bytes[found..]).map_or(bytes.len(), |n| found + n);
        // Behind the last line break there is no line.
        let is_line = start < bytes.len();
        let text = whole[start..end].strip_suffix('\r').unwrap_or(&whole[start..end]);
        is_line.then_some(Line { text, start, end, searched_from: at.max(start), found })
    }

    fn next(&self) -> usize {
        self.end + 1
    }

    /// About so much of a long line, around the match. The search goes on in the same line.
    fn excerpt(&self, size: usize) -> Shown<'a> {
        let within = |at: usize| (at - self.start).min(self.text.len());
        let (first, found) = (within(self.searched_from), within(self.found));
        let lead = self.text[first..found].char_indices().rev().take(size / 4).last();
        let from = lead.map_or(found, |(at, _)| first + at);
        let mut room = size.max(LEAST);
        let mut to = from;
        for c in self.text[from..].chars() {
            let Some(rest) = room.checked_sub(written(c)) else { break };
            room = rest;
            to += c.len_utf8();
        }
        let is_end = to == self.text.len();
        let (before, behind) = (if from > 0 { "…" } else { "" }, if is_end { "" } else { "…" });
        Shown {
            start: self.start + from,
            text: [before, &self.text[from..to], behind].concat().into(),
            resumes: if is_end { self.next() } else { self.start + to },
        }
    }
}

/// Turns bytes into characters; linear, as long as the bytes only grow.
struct Places<'a> {
    text: &'a str,
    byte: usize,
    character: usize,
}

impl<'a> Places<'a> {
    fn at(text: &'a Text, character: usize) -> Places<'a> {
        Places { text: text.as_str(), byte: text.byte_of(character), character }
    }

    fn character_of(&mut self, byte: usize) -> usize {
        self.character = match byte.checked_sub(self.byte) {
            Some(_) => self.character + self.text[self.byte..byte].chars().count(),
            None => self.character - self.text[byte..self.byte].chars().count(),
        };
        self.byte = byte;
        self.character
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::results::Budget;
    use expect_test::{Expect, expect};

    fn store(max_chars: usize, texts: &[&str]) -> ResultStore {
        let store = ResultStore::new(Budget { max_chars, keep_bytes: 1 << 20 });
        for text in texts {
            store.fit(ToolOutput::text(text), |_| true);
        }
        store
    }

    fn completed(store: &ResultStore, input: &Value) -> Value {
        match answer(store, input) {
            Ok(ToolResult::Completed(output)) => {
                // Nothing that this tool says is cut again.
                assert_eq!(store.fit(output.clone(), |_| true), output);
                let ToolOutput::Result(raw) = output else { panic!("{output:?}") };
                raw.to_value().unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Text and structure, or the failure.
    fn shown(store: &ResultStore, input: &Value) -> String {
        match answer(store, input) {
            Ok(ToolResult::Completed(_)) => {
                let value = completed(store, input);
                let text = value["content"][0]["text"].as_str().unwrap();
                format!("{text}\n{}", value["structuredContent"])
            }
            Ok(ToolResult::ToolError(message)) => format!("tool error: {message}"),
            Ok(other) => panic!("{other:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn pages_lines_and_failures() {
        let digits = "0123456789".repeat(30);
        let prose: String = (0..80).map(|n| format!("line {n} is {}\n", ["é", "odd"][n % 2])).collect();
        let long = format!("{}needle{}needle{}\nend\n", "a".repeat(400), "b".repeat(400), "c".repeat(400));
        let store = store(250, &[&digits, &prose, &long]);
        let check = |input: Value, expected: Expect| expected.assert_eq(&shown(&store, &input));
        check(
            json!({ "id": "r1", "offset": 295 }),
            expect![[r#"
            characters 295-300 of 300; end
            56789
            {"id":"r1","offset":295,"next_offset":null,"total":300,"text":"56789"}"#]],
        );
        check(
            json!({ "id": "r1", "offset": 11.0, "limit": 9 }),
            expect![[r#"
            characters 11-20 of 300; next offset 20
            123456789
            {"id":"r1","offset":11,"next_offset":20,"total":300,"text":"123456789"}"#]],
        );
        check(
            json!({ "id": " r1 ", "limit": 1_000_000 }),
            expect![[r#"
            characters 0-184 of 300; next offset 184
            0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123
            {"id":"r1","offset":0,"next_offset":184,"total":300,"text":"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123"}"#]],
        );
        check(
            json!({ "id": "r2", "offset": 3, "limit": 10, "part": "text" }),
            expect![[r#"
            characters 3-13 of 1110; next offset 13
            e 0 is é
            l
            {"id":"r2","offset":3,"next_offset":13,"total":1110,"text":"e 0 is é\nl"}"#]],
        );
        check(
            json!({ "id": "r1", "offset": 300 }),
            expect![[r#"
            characters 300-300 of 300; end

            {"id":"r1","offset":300,"next_offset":null,"total":300,"text":""}"#]],
        );
        check(
            json!({ "id": "r1", "offset": 301 }),
            expect!["tool error: offset 301 is beyond the end: `r1` has 300 characters"],
        );
        check(
            json!({ "id": "r1", "offset": 1e30 }),
            expect!["tool error: offset 18446744073709551615 is beyond the end: `r1` has 300 characters"],
        );
        check(
            json!({ "id": "r1", "part": "structured" }),
            expect!["tool error: this part of `r1` was not shortened: the result itself has all of it"],
        );
        check(
            json!({ "id": "r9" }),
            expect![
                "tool error: there is no result `r9`; `r1` to `r3` are kept, for this connection only, and the oldest leave first"
            ],
        );
        check(
            json!({ "id": "r2", "grep": "^line 7 is odd$" }),
            expect![[r#"
                matching lines: 1; end
                90: line 7 is odd
                {"id":"r2","offset":0,"next_offset":null,"total":1110,"matches":[{"offset":90,"text":"line 7 is odd"}],"left_out":0}"#]],
        );
        check(
            json!({ "id": "r2", "grep": "é" }),
            expect![[r#"
                matching lines: 4; 36 more left out; next offset 104
                0: line 0 is é
                26: line 2 is é
                52: line 4 is é
                78: line 6 is é
                {"id":"r2","offset":0,"next_offset":104,"total":1110,"matches":[{"offset":0,"text":"line 0 is é"},{"offset":26,"text":"line 2 is é"},{"offset":52,"text":"line 4 is é"},{"offset":78,"text":"line 6 is é"}],"left_out":36}"#]],
        );
        check(
            json!({ "id": "r2", "grep": "é", "offset": 900, "limit": 30 }),
            expect![[r#"
                matching lines: 1; 6 more left out; next offset 942
                914: line 66 is é
                {"id":"r2","offset":900,"next_offset":942,"total":1110,"matches":[{"offset":914,"text":"line 66 is é"}],"left_out":6}"#]],
        );
        check(
            json!({ "id": "r2", "grep": "nothing" }),
            expect![[r#"
            no line of `r2` matches in characters 0-1110
            {"id":"r2","offset":0,"next_offset":null,"total":1110,"matches":[],"left_out":0}"#]],
        );
        check(
            json!({ "id": "r3", "grep": "needle|end" }),
            expect![[r#"
                matching lines: 2; 1 more left out; next offset 1213
                390: …aaaaaaaaaaneedlebbbbbbbbbbbbbbbbbbbbbbbb…
                796: …bbbbbbbbbbneedlecccccccccccccccccccccccc…
                {"id":"r3","offset":0,"next_offset":1213,"total":1217,"matches":[{"offset":390,"text":"…aaaaaaaaaaneedlebbbbbbbbbbbbbbbbbbbbbbbb…"},{"offset":796,"text":"…bbbbbbbbbbneedlecccccccccccccccccccccccc…"}],"left_out":1}"#]],
        );
        check(
            json!({ "id": "r2", "grep": "(" }),
            expect![[r#"
            invalid arguments for `read_result` at `/grep`: regex parse error:
                (?:()
                ^
            error: unclosed group; the pattern is matched within single lines"#]],
        );
        check(
            json!({ "id": "r2", "grep": "a\\nb" }),
            expect![[
                r#"invalid arguments for `read_result` at `/grep`: the literal "\n" is not allowed in a regex; the pattern is matched within single lines"#
            ]],
        );
        assert_eq!(
            shown(&self::store(250, &[]), &json!({ "id": "x".repeat(99) })),
            format!(
                "tool error: there is no result `{}`; none is kept, for this connection only, and the oldest leave first",
                "x".repeat(32)
            )
        );
    }

    #[test]
    fn paging_gives_the_whole_text_back() {
        let check = |max: usize, text: &str| {
            let store = store(max, &[text]);
            let (mut read, mut offset) = (String::new(), json!(0));
            while !offset.is_null() {
                let Ok(ToolResult::Completed(output)) =
                    answer(&store, &json!({ "id": "r1", "offset": offset }))
                else {
                    panic!("no page at {offset} of {max}")
                };
                let ToolOutput::Result(raw) = output else { panic!("{output:?}") };
                let value = raw.to_value().unwrap();
                let facts = &value["structuredContent"];
                let shown = value["content"][0]["text"].as_str().unwrap();
                assert!(shown.chars().count() <= max.max(100), "{shown}");
                assert!(facts.to_string().chars().count() <= max.max(200), "{facts}");
                assert_eq!(shown.split_once('\n').unwrap().1, facts["text"].as_str().unwrap());
                read.push_str(facts["text"].as_str().unwrap());
                offset = facts["next_offset"].clone();
            }
            assert_eq!(read, text, "budget {max}");
        };
        for max in [1, 20, 50, 100, 250, 999, 1000, 4000] {
            for piece in ["0123456789", "é", "汉字😀", "\"\\\n", "\u{1}", "a\r\n"] {
                check(max, &piece.repeat(max + 20));
            }
        }
    }

    #[test]
    fn every_matching_line_is_found_by_following_the_offsets() {
        let check = |max: usize, line: &dyn Fn(usize) -> String, ends: &str| {
            let lines: Vec<String> = (0..max).map(line).collect();
            let text: String = lines.iter().map(|line| format!("{line}{ends}")).collect();
            let store = store(max, &[&text]);
            let (mut read, mut offset) = (Vec::new(), json!(0));
            while !offset.is_null() {
                let value = completed(&store, &json!({ "id": "r1", "offset": offset, "grep": "[37]" }));
                let facts = &value["structuredContent"];
                for hit in facts["matches"].as_array().unwrap() {
                    let place = text.char_indices().nth(hit["offset"].as_u64().unwrap() as usize).unwrap().0;
                    assert!(text[place..].starts_with(hit["text"].as_str().unwrap()), "{hit}");
                    read.push(hit["text"].as_str().unwrap().to_owned());
                }
                let left_out = facts["left_out"].as_u64().unwrap();
                assert_eq!(left_out > 0, !facts["next_offset"].is_null(), "{facts}");
                offset = facts["next_offset"].clone();
            }
            let expected: Vec<String> = lines.into_iter().filter(|line| line.contains(['3', '7'])).collect();
            assert_eq!(read, expected, "budget {max}");
        };
        for max in [300, 1000] {
            check(max, &|n| n.to_string(), "\n");
            check(max, &|n| format!("é{n}\"😀"), "\r\n");
        }
    }

    #[test]
    fn the_description_stays_short() {
        let tool = tool(Arc::new(store(4000, &[])));
        assert!(tool.definition().wire.len() < 650, "{}", tool.definition().wire.len());
    }
}
