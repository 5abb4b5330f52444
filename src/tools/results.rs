//! The result budget: what is too long is cut in the middle, and the whole is kept for `read_result`.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;

use bytes::Bytes;
use serde::Deserializer;
use serde::de::Visitor;
use serde_json::Value;
use serde_json::value::RawValue;

use super::json::{ObjectWriter, RawJson, RawObject, write_string};
use super::service::ToolOutput;

/// About 1000 tokens: room for what most calls are about, and ten of them are still cheap.
pub const DEFAULT_MAX_CHARS: usize = 4000;

/// Member of `_meta` that tells programs what was cut.
const META: &str = "toolcrib/result";
/// The least that stands for structured content. Content that is not longer is never cut.
const SMALLEST: &str = r#"{"truncated":true}"#;
/// Strings of structured content up to this length are names, dates and addresses: they stay whole.
const SHORT_STRING: usize = 200;
/// Below this depth the tree parser, and with it the schema, can judge what came out.
const MAX_DEPTH: usize = 100;
/// A smaller text is copied: a slice of it would keep the whole read buffer it arrived in.
const SHARED_FROM: usize = 64 << 10;

/// How much of a result a client gets, and how much is kept to be read later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Characters of text, and of structured content, in one result.
    pub max_chars: usize,
    /// Bytes of all whole results that one connection keeps.
    pub keep_bytes: usize,
}

/// Whole results of one connection that were cut, by ids `r1`, `r2`, … The oldest leave first.
pub struct ResultStore {
    budget: Budget,
    kept: Mutex<Kept>,
}

impl ResultStore {
    /// A store for one connection, without results.
    pub fn new(budget: Budget) -> ResultStore {
        ResultStore { budget, kept: Mutex::default() }
    }

    /// The most characters of text in one result.
    pub fn max_chars(&self) -> usize {
        self.budget.max_chars
    }

    /// The output itself while it is within the budget, else a shorter one whose whole is kept here.
    ///
    /// `fits_schema` judges structured content whose long strings were shortened. Where it says no, a small
    /// object that tells what is missing takes its place.
    pub fn fit(&self, output: ToolOutput, fits_schema: impl Fn(&Value) -> bool) -> ToolOutput {
        self.fit_within(self.budget.max_chars, output, fits_schema)
    }

    /// As [`ResultStore::fit`], for a result that may have a part of the budget only.
    pub fn fit_within(
        &self,
        max_chars: usize,
        output: ToolOutput,
        fits_schema: impl Fn(&Value) -> bool,
    ) -> ToolOutput {
        let ToolOutput::Result(raw) = &output else { return output };
        // There are never more characters than bytes.
        if raw.len() <= max_chars {
            return output;
        }
        match self.cut(raw, max_chars, fits_schema) {
            Some(shorter) => ToolOutput::Result(shorter),
            None => output,
        }
    }

    /// The whole of a result that was cut, while it is kept.
    pub(crate) fn find(&self, id: &str) -> Option<Whole> {
        let number = id.strip_prefix('r')?.parse().ok()?;
        self.kept.lock().expect("no code panics while it holds the results").find(number)
    }

    /// The oldest and the newest id that is kept; all between them are kept too.
    pub(crate) fn ids(&self) -> Option<(String, String)> {
        let (first, last) = self.kept.lock().expect("no code panics while it holds the results").numbers()?;
        Some((format!("r{first}"), format!("r{last}")))
    }

    fn cut(&self, raw: &RawJson, max: usize, fits_schema: impl Fn(&Value) -> bool) -> Option<RawJson> {
        let result = RawObject::parse(raw.as_bytes()).ok()?;
        let blocks = blocks(&result);
        let characters: usize =
            blocks.iter().filter_map(|block| Some(block.piece.as_ref()?.characters)).sum();
        let text = (characters > max).then(|| Text::joined(raw, &blocks));
        let mut structure = result
            .get("structuredContent")
            .map(RawValue::get)
            .filter(|json| json.chars().count() > max.max(SMALLEST.len()));
        let shape = structure.and_then(|json| Shape::of(json, max));
        let mut changes = Vec::new();
        if let Some(dense) = shape.as_ref().and_then(|shape| shape.dense(max)) {
            // Spaces alone made it too long: nothing is missing.
            changes.push(("structuredContent", dense.into_bytes()));
            structure = None;
        }
        if text.is_none() && structure.is_none() {
            return (!changes.is_empty()).then(|| RawJson::trusted(with_members(&result, &changes)));
        }

        let structure = structure.map(|json| Text::new(raw, Cow::Borrowed(json)));
        let whole = Whole { text, structure };
        let id = self
            .kept
            .lock()
            .expect("no code panics while it holds the results")
            .add(whole.clone(), self.budget.keep_bytes);
        let id = id.as_deref();
        let mut meta = ObjectWriter::default();
        if let Some(id) = id {
            meta.string("id", id);
        }
        if whole.text.is_some() {
            let cut = Cut::plan(characters, max, |omitted| text_notes(id, share(max, HEAD), omitted));
            changes.push(("content", cut_blocks(&blocks, characters, &cut)));
            meta.value("characters", &characters).value("omitted", &cut.omitted);
        }
        if let Some(structure) = &whole.structure {
            let is_second = whole.text.is_some();
            let fitting = shape.and_then(|shape| shape.shortened(max, |n| string_notes(id, is_second, n)));
            let fitting =
                fitting.filter(|(text, _)| serde_json::from_str(text).is_ok_and(|v| fits_schema(&v)));
            let stand_in = || stand_in(structure, max, reference(id, is_second).as_deref());
            let (text, omitted) = fitting.unwrap_or_else(stand_in);
            changes.push(("structuredContent", text.into_bytes()));
            if is_second {
                let mut facts = ObjectWriter::default();
                facts.value("characters", &structure.characters).value("omitted", &omitted);
                meta.raw("structured", &facts.finish());
            } else {
                meta.value("characters", &structure.characters).value("omitted", &omitted);
            }
        }
        let old = result.get("_meta").and_then(|meta| RawObject::parse(meta.get().as_bytes()).ok());
        changes.push(("_meta", with_members(&old.unwrap_or_default(), &[(META, meta.finish())])));
        Some(RawJson::trusted(with_members(&result, &changes)))
    }
}

/// The parts of one result that were cut, uncut. At least one is there.
#[derive(Debug, Clone)]
pub(crate) struct Whole {
    /// All text of the content blocks, one behind the other.
    pub(crate) text: Option<Text>,
    /// The structured content as it arrived.
    pub(crate) structure: Option<Text>,
}

impl Whole {
    fn bytes(&self) -> usize {
        [&self.text, &self.structure].into_iter().flatten().map(|text| text.bytes.len()).sum()
    }
}

/// A text and the number of its characters; cloning shares the bytes.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    bytes: Bytes,
    characters: usize,
}

impl Text {
    /// A text; a borrowed one is a part of `raw`.
    fn new(raw: &RawJson, text: Cow<'_, str>) -> Text {
        let characters = text.chars().count();
        let bytes = match text {
            Cow::Borrowed(part) if part.len() >= SHARED_FROM && part.len() >= raw.len() / 2 => {
                raw.bytes().slice_ref(part.as_bytes())
            }
            text => Bytes::from(text.into_owned()),
        };
        Text { bytes, characters }
    }

    fn joined(raw: &RawJson, blocks: &[Block<'_>]) -> Text {
        let texts: Vec<&Cow<'_, str>> =
            blocks.iter().filter_map(|block| Some(&block.piece.as_ref()?.text)).collect();
        match texts.as_slice() {
            [Cow::Borrowed(only)] => Text::new(raw, Cow::Borrowed(only)),
            several => Text::new(raw, Cow::Owned(several.iter().map(|text| text.as_ref()).collect())),
        }
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes).expect("it was a str when it was made")
    }

    /// How many characters it has.
    pub(crate) fn characters(&self) -> usize {
        self.characters
    }

    /// The byte at which a character begins; the length of the text if there is no such character.
    pub(crate) fn byte_of(&self, character: usize) -> usize {
        match self.characters == self.bytes.len() {
            true => character.min(self.bytes.len()),
            false => byte_of(self.as_str(), character),
        }
    }
}

/// The results themselves. Their numbers have no gaps, because only the oldest leave.
#[derive(Default)]
struct Kept {
    last: u64,
    bytes: usize,
    results: VecDeque<Whole>,
}

impl Kept {
    fn add(&mut self, whole: Whole, keep_bytes: usize) -> Option<String> {
        let size = whole.bytes();
        if size > keep_bytes {
            return None;
        }
        while self.bytes > keep_bytes - size {
            self.bytes -= self.results.pop_front().map_or(self.bytes, |oldest| oldest.bytes());
        }
        self.bytes += size;
        self.last += 1;
        self.results.push_back(whole);
        Some(format!("r{}", self.last))
    }

    fn numbers(&self) -> Option<(u64, u64)> {
        let count = self.results.len() as u64;
        (count > 0).then(|| (self.last - count + 1, self.last))
    }

    fn find(&self, number: u64) -> Option<Whole> {
        let at = number.checked_sub(self.numbers()?.0)?;
        self.results.get(usize::try_from(at).ok()?).cloned()
    }
}

/// Per cent of a budget for the beginning: it says what the text is.
const HEAD: usize = 65;
/// Per cent of a budget for the end: results and errors stand there. The rest is for the note between them.
const TAIL: usize = 30;

/// Where a text is cut, in characters, and what stands there instead.
#[derive(Debug)]
struct Cut {
    head: usize,
    tail: usize,
    omitted: usize,
    note: String,
}

impl Cut {
    /// `notes` are ways to say how much is omitted, the longest first; the end of the text makes room for the
    /// last one.
    fn plan(characters: usize, max: usize, notes: impl Fn(usize) -> Vec<String>) -> Cut {
        let (head, most) = (share(max, HEAD), share(max, TAIL));
        let with = |tail: usize, note: String| Cut { head, tail, omitted: characters - head - tail, note };
        let fits = |tail: usize, note: &String| head + tail + note.chars().count() <= max;
        if let Some(note) = notes(characters - head - most).into_iter().find(|note| fits(most, note)) {
            return with(most, note);
        }
        let shorter = (0..most).rev().find_map(|tail| {
            let note = notes(characters - head - tail).pop().unwrap_or_default();
            fits(tail, &note).then(|| with(tail, note))
        });
        // A budget of a few characters: only `_meta` says it.
        shorter.unwrap_or_else(|| with(most, String::new()))
    }

    fn of(&self, text: &str) -> String {
        let (head, tail) = ends(text, self.head, self.tail);
        [head, &self.note, tail].concat()
    }
}

fn share(max: usize, per_cent: usize) -> usize {
    max / 100 * per_cent + max % 100 * per_cent / 100
}

fn text_notes(id: Option<&str>, offset: usize, omitted: usize) -> Vec<String> {
    let (long, short) = match id {
        Some(id) => (
            format!(
                "\n[... {omitted} characters omitted; \
                 read_result {{\"id\":\"{id}\",\"offset\":{offset}}} has them ...]\n"
            ),
            format!("\n[... {omitted} omitted; read_result {id} ...]\n"),
        ),
        None => (
            format!("\n[... {omitted} characters omitted; the result is too large to be kept ...]\n"),
            format!("\n[... {omitted} omitted, not kept ...]\n"),
        ),
    };
    vec![long, short, format!("[...{omitted}...]"), omitted.to_string()]
}

/// Notes within structured content: without quotes, which would be escaped, and never a bare number.
fn string_notes(id: Option<&str>, is_second: bool, omitted: usize) -> Vec<String> {
    let part = if is_second { " part structured" } else { "" };
    match id {
        Some(id) => vec![
            format!("[... {omitted} characters omitted; read_result {id}{part} ...]"),
            format!("[... {omitted} omitted; read_result {id} ...]"),
        ],
        None => vec![format!("[... {omitted} omitted, not kept ...]")],
    }
}

/// Arguments of `read_result` for the structured content.
fn reference(id: Option<&str>, is_second: bool) -> Option<Vec<u8>> {
    let mut arguments = ObjectWriter::default();
    arguments.string("id", id?);
    if is_second {
        arguments.string("part", "structured");
    }
    Some(arguments.finish())
}

/// One content block.
struct Block<'a> {
    raw: &'a RawValue,
    piece: Option<Piece<'a>>,
}

/// The text of a block, and where in the block it stands.
struct Piece<'a> {
    block: RawObject<'a>,
    resource: Option<RawObject<'a>>,
    text: Cow<'a, str>,
    characters: usize,
}

/// The blocks of a result; none if its content is nothing that the protocol knows.
fn blocks<'a>(result: &RawObject<'a>) -> Vec<Block<'a>> {
    let blocks = result.get("content").map(|content| serde_json::from_str::<Vec<&RawValue>>(content.get()));
    let blocks = blocks.and_then(Result::ok).unwrap_or_default();
    blocks.into_iter().map(|raw| Block { raw, piece: Piece::of(raw) }).collect()
}

impl<'a> Piece<'a> {
    fn of(raw: &'a RawValue) -> Option<Piece<'a>> {
        let block = RawObject::parse(raw.get().as_bytes()).ok()?;
        let resource = match block.text("type")?.as_str() {
            "text" => None,
            "resource" => Some(RawObject::parse(block.get("resource")?.get().as_bytes()).ok()?),
            _ => return None,
        };
        let text = decoded(resource.as_ref().unwrap_or(&block).get("text")?.get())?;
        let characters = text.chars().count();
        Some(Piece { block, resource, text, characters })
    }

    fn with_text(&self, text: &str) -> Vec<u8> {
        let mut literal = Vec::with_capacity(text.len() + 2);
        write_string(&mut literal, text);
        match &self.resource {
            None => with_members(&self.block, &[("text", literal)]),
            Some(resource) => {
                with_members(&self.block, &[("resource", with_members(resource, &[("text", literal)]))])
            }
        }
    }
}

/// A string literal as text, borrowed unless it holds escapes; nothing if it is no string.
fn decoded(literal: &str) -> Option<Cow<'_, str>> {
    struct Letters;
    impl<'de> Visitor<'de> for Letters {
        type Value = Cow<'de, str>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }
        fn visit_borrowed_bytes<E>(self, text: &'de [u8]) -> Result<Cow<'de, str>, E> {
            Ok(String::from_utf8_lossy(text))
        }
        fn visit_bytes<E>(self, text: &[u8]) -> Result<Cow<'de, str>, E> {
            Ok(Cow::Owned(String::from_utf8_lossy(text).into_owned()))
        }
    }
    // As bytes, because JavaScript cuts surrogate pairs in two, and a half is no `str`.
    serde_json::Deserializer::from_str(literal).deserialize_bytes(Letters).ok()
}

/// The content with everything between head and tail left out; blocks that are not text stay.
fn cut_blocks(blocks: &[Block<'_>], characters: usize, cut: &Cut) -> Vec<u8> {
    let resumes = characters - cut.tail;
    let mut out = vec![b'['];
    let mut end = 0;
    for Block { raw, piece } in blocks {
        let start = end;
        end += piece.as_ref().map_or(0, |piece| piece.characters);
        let json = match piece {
            Some(piece) if end > cut.head && start < resumes => {
                let note = if start <= cut.head { cut.note.as_str() } else { "" };
                if note.is_empty() && start >= cut.head && end <= resumes {
                    continue;
                }
                let (head, tail) =
                    ends(&piece.text, cut.head.saturating_sub(start), end.saturating_sub(resumes));
                Cow::Owned(piece.with_text(&[head, note, tail].concat()))
            }
            _ => Cow::Borrowed(raw.get().as_bytes()),
        };
        if out.len() > 1 {
            out.push(b',');
        }
        out.extend_from_slice(&json);
    }
    out.push(b']');
    out
}

/// Structured content without spaces, taken apart at its long strings. Everything else is a copy of the text.
struct Shape<'a> {
    /// What stands before each long string, and behind the last.
    frame: Vec<String>,
    frame_characters: usize,
    long: Vec<LongString<'a>>,
}

struct LongString<'a> {
    literal: &'a str,
    text: Cow<'a, str>,
    characters: usize,
}

impl<'a> Shape<'a> {
    /// Nothing if the shape alone is over the budget or nested too deeply. `json` is one valid value.
    fn of(json: &'a str, max: usize) -> Option<Shape<'a>> {
        let mut shape = Shape { frame: Vec::new(), frame_characters: 0, long: Vec::new() };
        let (mut frame, mut at, mut depth) = (String::new(), 0, 0);
        while let Some(&byte) = json.as_bytes().get(at) {
            match byte {
                b'"' => {
                    let end = end_of_string(json.as_bytes(), at);
                    let literal = &json[at..end];
                    at = end;
                    let is_key = || json[end..].trim_start().starts_with(':');
                    if literal.len() > SHORT_STRING && !is_key() {
                        let text = decoded(literal)?;
                        let characters = text.chars().count();
                        shape.long.push(LongString { literal, text, characters });
                        shape.frame.push(std::mem::take(&mut frame));
                    } else {
                        frame.push_str(literal);
                        shape.frame_characters += literal.chars().count();
                    }
                }
                b' ' | b'\n' | b'\r' | b'\t' => at += 1,
                byte => {
                    depth += usize::from(byte == b'{' || byte == b'[');
                    depth -= usize::from(byte == b'}' || byte == b']');
                    frame.push(char::from(byte));
                    shape.frame_characters += 1;
                    at += 1;
                }
            }
            if depth > MAX_DEPTH || shape.frame_characters > max {
                return None;
            }
        }
        shape.frame.push(frame);
        Some(shape)
    }

    /// The same content without spaces, if that is enough.
    fn dense(&self, max: usize) -> Option<String> {
        let strings: usize = self.long.iter().map(|string| string.literal.chars().count()).sum();
        (self.frame_characters + strings <= max)
            .then(|| self.filled(|out, string| out.push_str(string.literal)))
    }

    /// The longest form within the budget whose strings are cut to one length, and the characters it lacks.
    fn shortened(&self, max: usize, notes: impl Fn(usize) -> Vec<String>) -> Option<(String, usize)> {
        let mut each = max;
        while each >= SHORT_STRING {
            // A cut string fills its budget to 95 per cent at least; escapes only make it longer.
            let least =
                |string: &LongString<'_>| string.characters.min(share(each, HEAD) + share(each, TAIL));
            if self.frame_characters + self.long.iter().map(least).sum::<usize>() <= max {
                let mut omitted = 0;
                let text = self.filled(|out, string| {
                    if string.characters <= each {
                        return out.push_str(string.literal);
                    }
                    let cut = Cut::plan(string.characters, each, &notes);
                    omitted += cut.omitted;
                    let literal = serde_json::to_string(&cut.of(&string.text));
                    out.push_str(&literal.expect("a string serializes into memory"));
                });
                if text.chars().count() <= max {
                    return Some((text, omitted));
                }
            }
            each = if each > SHORT_STRING { (each - each / 8 - 1).max(SHORT_STRING) } else { 0 };
        }
        None
    }

    fn filled(&self, mut write: impl FnMut(&mut String, &LongString<'a>)) -> String {
        let mut out = String::with_capacity(self.frame_characters);
        for (frame, string) in self.frame.iter().zip(&self.long) {
            out.push_str(frame);
            write(&mut out, string);
        }
        out.push_str(self.frame.last().map_or("", String::as_str));
        out
    }
}

/// The byte behind the string literal that begins at `start`.
fn end_of_string(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(found) = json.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        match json[at] {
            b'"' => return at + 1,
            _ => at += 2,
        }
    }
    json.len()
}

/// A small object in place of structured content, and the characters that it lacks.
fn stand_in(structure: &Text, max: usize, reference: Option<&[u8]>) -> (String, usize) {
    let all = structure.characters;
    let write = |ends: Option<(&str, &str)>, reference: Option<&[u8]>, omitted: usize| {
        let mut object = ObjectWriter::default();
        object.value("truncated", &true).value("omitted_characters", &omitted);
        if let Some((head, tail)) = ends {
            object.string("head", head).string("tail", tail);
        }
        if let Some(reference) = reference {
            object.raw("read_result", reference);
        }
        String::from_utf8(object.finish()).expect("the writer was given text")
    };
    if let Some(room) = max.checked_sub(write(Some(("", "")), reference, all).len()) {
        let text = structure.as_str();
        // Room is counted in escaped characters, of which there are never fewer.
        let head: usize = taken(text.chars(), room * HEAD / (HEAD + TAIL));
        let tail: usize = taken(text.chars().rev(), room * TAIL / (HEAD + TAIL));
        let omitted = all - head - tail;
        return (write(Some(ends(text, head, tail)), reference, omitted), omitted);
    }
    let smaller = [write(None, reference, all), write(None, None, all)];
    (smaller.into_iter().find(|text| text.len() <= max).unwrap_or_else(|| SMALLEST.to_owned()), all)
}

/// How many characters from the front fit into so much of a string literal.
fn taken(text: impl Iterator<Item = char>, mut room: usize) -> usize {
    let fits = |c: &char| match room.checked_sub(written(*c)) {
        Some(rest) => {
            room = rest;
            true
        }
        None => false,
    };
    text.take_while(fits).count()
}

/// Length of a character within a string literal.
pub(crate) fn written(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => 1,
    }
}

/// The first and the last characters of a text that has at least so many.
fn ends(text: &str, head: usize, tail: usize) -> (&str, &str) {
    let from = match tail.checked_sub(1) {
        Some(before) => text.char_indices().rev().nth(before).map_or(0, |(at, _)| at),
        None => text.len(),
    };
    (&text[..byte_of(text, head)], &text[from..])
}

fn byte_of(text: &str, character: usize) -> usize {
    text.char_indices().nth(character).map_or(text.len(), |(at, _)| at)
}

/// The object with some members changed in their places; new ones come last.
fn with_members(object: &RawObject<'_>, changes: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let size = |(key, value): &(Cow<'_, str>, &RawValue)| key.len() + value.get().len() + 4;
    let mut out = ObjectWriter::with_capacity(object.members.iter().map(size).sum());
    for (at, (key, value)) in object.members.iter().enumerate() {
        // Of a repeated key only the last counts.
        let is_last = || !object.members[at + 1..].iter().any(|(later, _)| later == key);
        match changes.iter().find(|(changed, _)| changed == key) {
            None => drop(out.raw(key, value.get().as_bytes())),
            Some((_, new)) if is_last() => drop(out.raw(key, new)),
            Some(_) => {}
        }
    }
    for (key, new) in changes.iter().filter(|(changed, _)| object.get(changed).is_none()) {
        out.raw(key, new);
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use serde_json::json;

    fn store(max_chars: usize) -> ResultStore {
        ResultStore::new(Budget { max_chars, keep_bytes: 1 << 20 })
    }

    fn output(result: &str) -> ToolOutput {
        ToolOutput::Result(RawJson::parse(result.to_owned()).unwrap())
    }

    fn json_of(output: &ToolOutput) -> &str {
        let ToolOutput::Result(raw) = output else { panic!("{output:?} is no result") };
        raw.as_str()
    }

    /// Text that is different at every place.
    fn numbered(characters: usize) -> String {
        (0..).flat_map(|n| format!("{n:05};").into_bytes()).map(char::from).take(characters).collect()
    }

    fn of_text(text: &str) -> ToolOutput {
        ToolOutput::text(text)
    }

    /// All text of a result, as the budget counts it.
    fn text_of(output: &ToolOutput) -> String {
        let result = RawObject::parse(json_of(output).as_bytes()).unwrap();
        blocks(&result).into_iter().filter_map(|block| Some(block.piece?.text.into_owned())).collect()
    }

    #[test]
    fn t36_results_over_the_budget_are_cut() {
        let check = |text: String, is_cut: bool| {
            let before = of_text(&text);
            let after = store(4000).fit(before.clone(), |_| true);
            let shown: String = text.chars().take(9).collect();
            assert_eq!(after != before, is_cut, "{shown}… of {} characters", text.chars().count());
            assert!(text_of(&after).chars().count() <= 4000, "{shown}");
            if !is_cut {
                assert_eq!(json_of(&after).as_ptr(), json_of(&before).as_ptr(), "{shown} was copied");
            }
        };
        check(String::new(), false);
        for letter in ["a", "汉", "😀", "\n", "\"", "\u{1}"] {
            check(letter.repeat(4000), false);
            check(letter.repeat(4001), true);
        }
        let error = ToolOutput::RpcError(RawJson::from_value(&json!({ "message": "a".repeat(9000) })));
        assert_eq!(store(4000).fit(error.clone(), |_| true), error);
        let failed = output(&format!(
            r#"{{"isError":true,"content":[{{"type":"text","text":"{}"}}]}}"#,
            numbered(5000)
        ));
        let failed = store(4000).fit(failed, |_| true);
        assert!(failed.is_error() && text_of(&failed).contains("1200 characters omitted"));
    }

    #[test]
    fn t37_head_and_tail_are_preserved() {
        let check = |text: String| {
            let cut = text_of(&store(4000).fit(of_text(&text), |_| true));
            let (head, tail) = ends(&text, 2600, 1200);
            assert!(cut.starts_with(head) && cut.ends_with(tail), "{cut}");
            assert!(cut.chars().count() <= 4000);
        };
        check(numbered(10_000));
        check(numbered(10_000).replace('1', "汉").replace('2', "😀").replace(';', "\n"));
        check(numbered(10_000).replace('0', "\u{301}"));
    }

    #[test]
    fn t38_the_number_of_omitted_characters_is_shown() {
        let check = |max: usize, characters: usize, note: &str, facts: Value| {
            let store = store(max);
            let once = store.fit(of_text(&numbered(characters)), |_| true);
            let text = text_of(&once);
            let cut = Cut::plan(characters, max, |n| text_notes(Some("r1"), share(max, HEAD), n));
            assert_eq!(cut.note, note, "{characters} characters at {max}");
            assert!(text.contains(note) && text.chars().count() <= max, "{text}");
            let meta: Value = serde_json::from_str::<Value>(json_of(&once)).unwrap()["_meta"][META].take();
            assert_eq!(meta, facts, "{characters} characters at {max}");
            let again = store.fit(once.clone(), |_| true);
            assert_eq!(again, once, "cutting twice");
            assert_eq!(store.ids(), Some(("r1".to_owned(), "r1".to_owned())));
        };
        check(
            4000,
            10_000,
            "\n[... 6200 characters omitted; read_result {\"id\":\"r1\",\"offset\":2600} has them ...]\n",
            json!({ "id": "r1", "characters": 10_000, "omitted": 6200 }),
        );
        check(
            4000,
            4001,
            "\n[... 201 characters omitted; read_result {\"id\":\"r1\",\"offset\":2600} has them ...]\n",
            json!({ "id": "r1", "characters": 4001, "omitted": 201 }),
        );
        let facts = |omitted: usize| json!({ "id": "r1", "characters": 10_000, "omitted": omitted });
        check(2000, 10_000, &text_notes(Some("r1"), 1300, 8100)[0], facts(8100));
        check(1000, 10_000, "\n[... 9050 omitted; read_result r1 ...]\n", facts(9050));
        check(300, 10_000, "[...9715...]", facts(9715));
        check(100, 10_000, "9905", facts(9905));
        check(50, 10_000, "9954", facts(9954));
        check(9, 10_000, "9995", facts(9995));
        check(1, 10_000, "", facts(10_000));
    }

    #[test]
    fn a_result_that_is_too_large_is_not_promised() {
        let store = ResultStore::new(Budget { max_chars: 4000, keep_bytes: 4000 });
        let cut = store.fit(of_text(&numbered(5000)), |_| true);
        assert!(text_of(&cut).contains("1200 characters omitted; the result is too large to be kept"));
        assert!(
            json_of(&cut).ends_with(r#""_meta":{"toolcrib/result":{"characters":5000,"omitted":1200}}}"#)
        );
        assert_eq!(store.ids(), None);
    }

    #[test]
    fn the_oldest_results_leave_first() {
        let store = ResultStore::new(Budget { max_chars: 10, keep_bytes: 100 });
        let check = |characters: usize, first: &str, last: &str| {
            store.fit(of_text(&numbered(characters)), |_| true);
            assert_eq!(store.ids(), Some((first.to_owned(), last.to_owned())), "{characters}");
        };
        check(40, "r1", "r1");
        check(60, "r1", "r2");
        check(1000, "r1", "r2");
        check(30, "r2", "r3");
        check(100, "r4", "r4");
        assert!(store.find("r3").is_none() && store.find("r5").is_none() && store.find("4").is_none());
        assert_eq!(store.find("r4").unwrap().text.unwrap().as_str(), numbered(100));
    }

    #[test]
    fn s65_only_the_omitted_middle_of_the_blocks_changes() {
        let check = |content: &str, expected: &str| {
            let fit =
                |content: &str| store(100).fit(output(&format!(r#"{{"content":{content}}}"#)), |_| true);
            let cut = fit(content);
            let result = RawObject::parse(json_of(&cut).as_bytes()).unwrap();
            assert_eq!(result.get("content").unwrap().get(), expected);
            assert_eq!(fit(expected), output(&format!(r#"{{"content":{expected}}}"#)));
        };
        let text = |letter: &str, n: usize| format!(r#"{{ "type":"text", "text":"{}" }}"#, letter.repeat(n));
        let image = format!(r#"{{"type":"image", "data":"{}", "mimeType":"image/png"}}"#, "A".repeat(500));
        let link = r#"{"type":"resource_link","uri":"file:///a","text":"not counted","name":"a"}"#;
        let (a, c, d) = (text("a", 60), text("c", 60), text("d", 20));
        // Head and tail are whole blocks or parts of them; the dropped block is wholly between them.
        check(
            &format!(
                r#"[{a},{image},{{"type":"text","_meta":{{"n":12345678901234567890123}},"text":"{}","x":1.0}},{c},{link},{d}]"#,
                "b".repeat(60)
            ),
            &format!(
                r#"[{a},{image},{{"type":"text","_meta":{{"n":12345678901234567890123}},"text":"bbbbb105","x":1.0}},{{"type":"text","text":"cccccccccc"}},{link},{d}]"#,
            ),
        );
        // The note has a block even where nothing else of the block is left.
        check(
            &format!("[{},{},{}]", text("a", 65), text("b", 40), text("c", 30)),
            &format!(r#"[{},{{"type":"text","text":"40"}},{}]"#, text("a", 65), text("c", 30)),
        );
        // Embedded resources are text.
        check(
            &format!(
                r#"[{{"type":"resource","resource":{{"uri":"u","text":"{}","mimeType":"t"}},"annotations":{{}}}}]"#,
                "é".repeat(200)
            ),
            &format!(
                r#"[{{"type":"resource","resource":{{"uri":"u","text":"{}105{}","mimeType":"t"}},"annotations":{{}}}}]"#,
                "é".repeat(65),
                "é".repeat(30)
            ),
        );
        // A half of a surrogate pair is no reason to let a text through.
        check(
            &format!(r#"[{{"type":"text","text":"{}\ud83d"}}]"#, "a".repeat(200)),
            &format!(
                r#"[{{"type":"text","text":"{}108{}{}"}}]"#,
                "a".repeat(65),
                "a".repeat(27),
                "\u{fffd}".repeat(3)
            ),
        );
        let long = "a".repeat(500);
        for odd in [
            format!(r#""{long}""#),
            format!(r#"{{"type":"text","text":"{long}"}}"#),
            format!(r#"["{long}",1,null,[]]"#),
            format!(r#"[{{"type":"new","text":"{long}"}},{image},{link}]"#),
            format!(
                r#"[{{"text":"{long}"}},{{"type":"text","text":["{long}"]}},{{"type":"resource","resource":"{long}"}}]"#
            ),
            format!(r#"[{{"type":"resource","resource":{{"uri":"u","blob":"{long}"}}}}]"#),
        ] {
            check(&odd, &odd);
        }
    }

    #[test]
    fn s65_other_members_keep_bytes_and_order() {
        let check = |before: &str, after: &str| {
            let letters = "a".repeat(200);
            let cut = format!("{}105{}", "a".repeat(65), "a".repeat(30));
            let got = store(100).fit(output(&before.replace("TEXT", &letters)), |_| true);
            assert_eq!(json_of(&got).replace(&cut, "CUT"), after);
        };
        check(
            r#"{"_meta":{"big":1e400,"toolcrib/result":0,"z":[ 1 ]},"content":[{"type":"text","text":"TEXT"}],"n":1.0}"#,
            r#"{"_meta":{"big":1e400,"toolcrib/result":{"id":"r1","characters":200,"omitted":105},"z":[ 1 ]},"content":[{"type":"text","text":"CUT"}],"n":1.0}"#,
        );
        check(
            r#"{"content":0,"_meta":null,"content":[{"text":"","type":"text","text":"TEXT"}]}"#,
            r#"{"_meta":{"toolcrib/result":{"id":"r1","characters":200,"omitted":105}},"content":[{"type":"text","text":"CUT"}]}"#,
        );
        check(r#"["TEXT"]"#, &format!(r#"["{}"]"#, "a".repeat(200)));
        check(r#"{"other":"TEXT"}"#, &format!(r#"{{"other":"{}"}}"#, "a".repeat(200)));
    }

    #[test]
    fn s65_structured_content_keeps_its_shape_or_is_replaced() {
        let cut = |max: usize, structure: &str, fits: bool| {
            let store = store(max);
            let once = store.fit(output(&format!(r#"{{"structuredContent":{structure}}}"#)), |_| fits);
            assert_eq!(store.fit(once.clone(), |_| fits), once, "cutting twice");
            let result = RawObject::parse(json_of(&once).as_bytes()).unwrap();
            let shown = result.get("structuredContent").unwrap().get().to_owned();
            let is_long = |n: usize| n > max && n > SMALLEST.len();
            assert!(!is_long(shown.chars().count()), "{shown}");
            serde_json::from_str::<Value>(&shown).unwrap();
            let kept = store.find("r1").and_then(|whole| whole.structure);
            assert!(kept.is_none_or(|text| text.as_str() == structure));
            (shown, result.get("_meta").map(|meta| meta.get().to_owned()))
        };
        let check = |max: usize, structure: &str, fits: bool, expected: Expect| {
            // A long run of one letter, as its length.
            let (shown, _) = cut(max, structure, fits);
            let mut short = String::new();
            let shown = shown.replace("\\n", "¶");
            let mut letters = shown.chars().peekable();
            while let Some(c) = letters.next() {
                let mut n = 1;
                while letters.next_if_eq(&c).is_some() {
                    n += 1;
                }
                match n {
                    1..5 => short.extend(std::iter::repeat_n(c, n)),
                    n => short.push_str(&format!("{c}×{n}")),
                }
            }
            expected.assert_eq(&short);
        };
        let x = "x".repeat(900);
        let numbers = r#"{"n":12345678901234567890123, "one":1.0, "text":"X", "e":1E+2 , "X":"\u00e9"}"#;
        let escaped = format!(r#"{{"a":"{}","b":"{}"}}"#, "\\n".repeat(900), "汉".repeat(900));
        let deep = format!("{}\"{x}\"{}", "[".repeat(101), "]".repeat(101));
        check(
            1700,
            &numbers.replace('X', &x),
            true,
            expect![[
                r#"{"n":12345678901234567890123,"one":1.0,"text":"x×432[... 272 omitted; read_result r1 ...]x×196","e":1E+2,"x×900":"\u00e9"}"#
            ]],
        );
        check(
            400,
            &numbers.replace("\"X\":", "\"k\":").replace('X', &x),
            true,
            expect![[
                r#"{"n":12345678901234567890123,"one":1.0,"text":"x×198[... 632 omitted; read_result r1 ...]x×70","e":1E+2,"k":"\u00e9"}"#
            ]],
        );
        check(
            400,
            &format!(r#"{{"text":"{x}"}}"#),
            false,
            expect![[
                r#"{"truncated":true,"omitted_characters":605,"head":"{\"text\":\"x×200","tail":"x×95\"}","read_result":{"id":"r1"}}"#
            ]],
        );
        check(
            2000,
            &escaped,
            true,
            expect![[
                r#"{"a":"¶×389[... 338 omitted; read_result r1 ...]¶×173","b":"汉×389[... 338 omitted; read_result r1 ...]汉×173"}"#
            ]],
        );
        check(
            400,
            &deep,
            true,
            expect![[
                r#"{"truncated":true,"omitted_characters":796,"head":"[×101\"x×109","tail":"]×97","read_result":{"id":"r1"}}"#
            ]],
        );
        check(
            1000,
            &format!("{{ \"a\" : [{}1 ] , \"b\":\"{x}\"}}", " ".repeat(900)),
            false,
            expect![[r#"{"a":[1],"b":"x×900"}"#]],
        );
        check(
            60,
            &format!("[{}1]", "1,".repeat(400)),
            true,
            expect![[r#"{"truncated":true,"omitted_characters":803}"#]],
        );
        check(
            90,
            &format!("[{}1]", "1,".repeat(400)),
            true,
            expect![[
                r#"{"truncated":true,"omitted_characters":803,"head":"","tail":"","read_result":{"id":"r1"}}"#
            ]],
        );
        check(20, &format!("[{}1]", "1,".repeat(400)), true, expect![[r#"{"truncated":true}"#]]);
        check(2, r#"{"truncated":true}"#, true, expect![[r#"{"truncated":true}"#]]);
        let (_, meta) = cut(400, &format!(r#"{{"text":"{x}"}}"#), true);
        assert_eq!(meta.unwrap(), r#"{"toolcrib/result":{"id":"r1","characters":911,"omitted":588}}"#);
        assert_eq!(cut(1000, &format!("[1,{}2]", " ".repeat(1000)), true), ("[1,2]".to_owned(), None));
    }

    #[test]
    fn s65_text_and_structure_share_an_id() {
        let store = store(300);
        let text = numbered(1000);
        let result = ToolOutput::structured(&text, &json!({ "text": text }));
        let cut = store.fit(result, |_| false);
        let value: Value = serde_json::from_str(json_of(&cut)).unwrap();
        assert_eq!(
            value["_meta"][META],
            json!({
                "id": "r1", "characters": 1000, "omitted": 715,
                "structured": { "characters": 1011, "omitted": 825 },
            })
        );
        assert_eq!(value["structuredContent"]["read_result"], json!({ "id": "r1", "part": "structured" }));
        let whole = store.find("r1").unwrap();
        assert_eq!(whole.text.unwrap().as_str(), text);
        assert_eq!(whole.structure.unwrap().as_str(), json!({ "text": text }).to_string());
    }

    #[test]
    fn a_large_text_without_escapes_is_shared() {
        let before = of_text(&numbered(SHARED_FROM));
        let store = store(4000);
        store.fit(before.clone(), |_| true);
        let kept = store.find("r1").unwrap().text.unwrap();
        let place = json_of(&before).as_bytes().as_ptr_range();
        assert!(place.contains(&kept.bytes.as_ptr()));
    }

    /// Xorshift (Marsaglia 2003): enough for test data.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % n as u64) as usize
        }

        fn text(&mut self, most: usize) -> String {
            let letters = ["a", "b", " ", "\n", "\"", "\\", "\u{1}", "é", "汉", "😀", "\u{301}", "\r\n"];
            let (from, n) = (self.below(letters.len()), self.below(most));
            let kinds = 1 + self.below(letters.len() - from);
            (0..n).map(|_| letters[from + self.below(kinds)]).collect()
        }

        fn block(&mut self, most: usize) -> Value {
            let text = self.text(most);
            match self.below(8) {
                0 => json!({ "type": "image", "data": text, "mimeType": "image/png" }),
                1 => json!({ "type": "resource_link", "uri": "u", "name": text }),
                2 => {
                    json!({ "type": "resource", "resource": { "uri": "u", "text": text, "n": 1 }, "_meta": {} })
                }
                3 => json!({ "type": "resource", "resource": { "uri": "u", "blob": text } }),
                4 => json!([text]),
                _ => json!({ "type": "text", "text": text, "annotations": { "priority": 0.5 } }),
            }
        }
    }

    #[test]
    fn generated_results_are_cut_within_the_budget_and_kept_whole() {
        for seed in 1..300 {
            let mut random = Random(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15));
            let max = 50 + random.below(if seed % 2 == 0 { 300 } else { 4950 });
            let content: Vec<Value> = (0..random.below(9)).map(|_| random.block(max)).collect();
            let structure: Vec<Value> = (0..random.below(9)).map(|_| random.block(max)).collect();
            let before =
                output(&json!({ "content": content, "structuredContent": { "a": structure } }).to_string());
            let (store, fits) = (store(max), seed % 3 != 0);
            let after = store.fit(before.clone(), |_| fits);
            let whole = store.find("r1");

            let value: Value = serde_json::from_str(json_of(&after)).unwrap();
            let text = text_of(&after);
            assert!(text.chars().count() <= max, "seed {seed}: {text}");
            let length = value["structuredContent"].to_string().chars().count();
            assert!(length <= max, "seed {seed}: structured content of {length} at {max}");
            assert_eq!(store.fit(after.clone(), |_| fits), after, "seed {seed}: cutting twice");
            let others = |output: &ToolOutput| -> Vec<String> {
                let result = RawObject::parse(json_of(output).as_bytes()).unwrap();
                let others = blocks(&result).into_iter().filter(|block| block.piece.is_none());
                others.map(|block| block.raw.get().to_owned()).collect()
            };
            assert_eq!(others(&after), others(&before), "seed {seed}");
            let before_text = text_of(&before);
            match whole.as_ref().and_then(|whole| whole.text.as_ref()) {
                Some(kept) => {
                    assert_eq!(kept.as_str(), before_text, "seed {seed}");
                    let (head, tail) =
                        ends(&before_text, share(max, HEAD), share(max, TAIL).saturating_sub(8));
                    assert!(text.starts_with(head) && text.ends_with(tail), "seed {seed}: {text}");
                }
                None => assert_eq!(text, before_text, "seed {seed}"),
            }
            if let Some(kept) = whole.and_then(|whole| whole.structure) {
                assert_eq!(kept.as_str(), json!({ "a": structure }).to_string(), "seed {seed}");
            }
        }
    }
}
