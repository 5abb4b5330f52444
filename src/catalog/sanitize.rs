//! Removes what a person cannot see from the text of tools: control characters, terminal escapes, invisible Unicode.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Map, Value};

const ESCAPE: char = '\u{1b}';
const ZERO_WIDTH_JOINER: char = '\u{200d}';

/// Whether raw JSON text surely holds nothing that `clean` would remove.
///
/// One pass over the bytes for the common case of plain ASCII. Any other byte, and any escape that does not stand for
/// a printable ASCII character, a newline or a tab, counts as unclean: then `clean_value` decides.
pub fn is_clean_raw(json: &str) -> bool {
    // A fold without an early exit over blocks, so that the compiler can use wide registers.
    let plain = |block: &[u8]| {
        !block.iter().fold(false, |odd, &byte| {
            odd | !(byte.wrapping_sub(b' ') < 0x5f || matches!(byte, b'\n' | b'\r' | b'\t'))
        })
    };
    json.as_bytes().chunks(256).all(plain) && escapes_are_plain(json)
}

fn escapes_are_plain(json: &str) -> bool {
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let escape = &rest.as_bytes()[at + 1..];
        let length = match escape.first() {
            Some(b'"' | b'\\' | b'/' | b'n' | b't') => 1,
            Some(b'u') => {
                let code = rest.get(at + 2..at + 6).and_then(|hex| u8::from_str_radix(hex, 16).ok());
                match code {
                    Some(b' '..=b'~' | b'\n' | b'\t') => 5,
                    _ => return false,
                }
            }
            _ => return false,
        };
        rest = &rest[at + 1 + length..];
    }
    true
}

/// Text without what cannot be seen; borrowed when there was nothing to remove.
///
/// Terminal sequences go whole, with their parameters. Newlines and tabs stay, a carriage return becomes a newline.
/// Joiners and a variation selector stay where they belong to an emoji.
pub fn clean(text: &str) -> Cow<'_, str> {
    let Some(first) = text.find(is_hidden) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len());
    // The character before the first odd one is read again: it may be the emoji that the odd one belongs to.
    let start = text[..first].char_indices().next_back().map_or(0, |(at, _)| at);
    out.push_str(&text[..start]);
    let mut rest = text[start..].chars().peekable();
    while let Some(char) = rest.next() {
        match char {
            ESCAPE => skip_escape(&mut rest),
            '\u{9b}' => skip_control_sequence(&mut rest),
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => skip_control_string(&mut rest),
            '\r' => {
                if rest.peek() != Some(&'\n') {
                    out.push('\n');
                }
            }
            '\u{fe0e}' | '\u{fe0f}' => {
                let before = out.chars().next_back();
                let is_keycap = rest.peek() == Some(&'\u{20e3}');
                if before.is_some_and(|before| is_emoji(before) || is_keycap && before.is_ascii_graphic()) {
                    out.push(char);
                }
            }
            ZERO_WIDTH_JOINER => {
                let before = out.chars().rev().find(|before| *before != '\u{fe0f}');
                if before.is_some_and(is_emoji) && rest.peek().is_some_and(|next| is_emoji(*next)) {
                    out.push(char);
                }
            }
            char if is_hidden(char) => {}
            char => out.push(char),
        }
    }
    if out == text { Cow::Borrowed(text) } else { Cow::Owned(out) }
}

/// Cleans every string in a tool definition, its schemas included; true if anything changed.
///
/// Keys are cleaned too, except those of `properties`: only `schema::repair` may rename these, because arguments must
/// find their way back, so repair comes first. A `pattern` that would change its meaning is dropped.
pub fn clean_value(value: &mut Value) -> bool {
    match value {
        Value::String(text) => match clean(text) {
            Cow::Borrowed(_) => false,
            Cow::Owned(cleaned) => {
                *text = cleaned;
                true
            }
        },
        Value::Array(items) => clean_each(items.iter_mut()),
        Value::Object(members) => clean_members(members),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn clean_each<'a>(values: impl Iterator<Item = &'a mut Value>) -> bool {
    values.fold(false, |changed, value| clean_value(value) | changed)
}

fn clean_members(members: &mut Map<String, Value>) -> bool {
    let mut changed = false;
    let mut broke_pattern = false;
    for (key, value) in members.iter_mut() {
        let changed_here = match value.as_object_mut() {
            Some(properties) if key == "properties" => clean_each(properties.values_mut()),
            _ => clean_value(value),
        };
        broke_pattern |= changed_here && key == "pattern" && value.is_string();
        changed |= changed_here;
    }
    if broke_pattern {
        members.shift_remove("pattern");
    }
    if members.keys().any(|key| matches!(clean(key), Cow::Owned(_))) {
        let cleaned = std::mem::take(members).into_iter();
        *members = cleaned.map(|(key, value)| (clean(&key).into_owned(), value)).collect();
        changed = true;
    }
    changed
}

/// Characters without a visible form: controls other than newline and tab, zero-width, direction, tags, selectors.
pub fn is_hidden(char: char) -> bool {
    if char.is_ascii() {
        return char.is_ascii_control() && char != '\n' && char != '\t';
    }
    matches!(char,
        '\u{80}'..='\u{9f}'             // C1 controls
        | '\u{ad}'                      // soft hyphen
        | '\u{34f}'                     // combining grapheme joiner
        | '\u{61c}'                     // Arabic letter mark
        | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' // Hangul fillers
        | '\u{17b4}' | '\u{17b5}'       // Khmer inherent vowels
        | '\u{180b}'..='\u{180f}'       // Mongolian selectors
        | '\u{200b}'..='\u{200f}'       // zero-width characters and direction marks
        | '\u{202a}'..='\u{202e}'       // direction overrides
        | '\u{2060}'..='\u{206f}'       // word joiner, invisible operators, direction isolates
        | '\u{fe00}'..='\u{fe0f}'       // variation selectors
        | '\u{feff}'                    // byte order mark
        | '\u{fff9}'..='\u{fffb}'       // interlinear annotation
        | '\u{1bca0}'..='\u{1bca3}'     // shorthand format controls
        | '\u{1d173}'..='\u{1d17a}'     // musical format controls
        | '\u{e0000}'..='\u{e0fff}'     // tags, more variation selectors
    )
}

/// Blocks that hold emoji, roughly: enough to tell a joiner that belongs from one that hides something.
fn is_emoji(char: char) -> bool {
    matches!(char,
        '\u{a9}' | '\u{ae}' | '\u{203c}' | '\u{2049}' | '\u{2122}' | '\u{2139}' | '\u{3030}' | '\u{303d}'
        | '\u{3297}' | '\u{3299}'
        | '\u{2190}'..='\u{21ff}' | '\u{2300}'..='\u{23ff}' | '\u{25a0}'..='\u{27bf}' | '\u{2900}'..='\u{297f}'
        | '\u{2b00}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}'
    )
}

/// After ESC: a sequence as ECMA-48 and ECMA-35 shape them.
fn skip_escape(rest: &mut Peekable<Chars>) {
    match rest.peek() {
        Some('[') => {
            rest.next();
            skip_control_sequence(rest);
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            rest.next();
            skip_control_string(rest);
        }
        _ => {
            while rest.next_if(|char| matches!(char, ' '..='/')).is_some() {}
            rest.next_if(|char| matches!(char, '0'..='~'));
        }
    }
}

fn skip_control_sequence(rest: &mut Peekable<Chars>) {
    while rest.next_if(|char| matches!(char, ' '..='?')).is_some() {}
    rest.next_if(|char| matches!(char, '@'..='~'));
}

/// Up to the terminator. Without one only the introducer goes: what follows may be text that is meant to be read.
fn skip_control_string(rest: &mut Peekable<Chars>) {
    let mut ahead = rest.clone();
    while let Some(char) = ahead.next() {
        let is_end = match char {
            '\u{7}' | '\u{9c}' => true,
            ESCAPE => ahead.next_if_eq(&'\\').is_some(),
            _ => false,
        };
        if is_end {
            *rest = ahead;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(text: &str, expected: &str) {
        assert_eq!(clean(text), expected, "{text:?}");
        assert_eq!(clean(expected), expected, "cleaning twice changes nothing: {expected:?}");
        assert_eq!(matches!(clean(text), Cow::Borrowed(_)), text == expected, "{text:?}");
    }

    #[test]
    fn visible_text_stays() {
        check("", "");
        check("Adds numbers.\n\tTwice.", "Adds numbers.\n\tTwice.");
        check("naïve 日本語 עברית", "naïve 日本語 עברית");
        check("👨‍👩‍👧 ❤️ ❤️‍🔥 👍🏽 1️⃣", "👨‍👩‍👧 ❤️ ❤️‍🔥 👍🏽 1️⃣");
        check("one\r\ntwo\rthree", "one\ntwo\nthree");
    }

    #[test]
    fn poi_01_invisible_characters_go() {
        check(
            "Adds\u{e0073}\u{e0065} it.\u{200b}\u{202e}gpj\u{202c} \u{2066}x\u{2069}\u{feff}\u{2060}",
            "Adds it.gpj x",
        );
        check("de\u{ad}lete\u{fff9}a\u{fffb}", "deletea");
        check("a\u{fe0f}b\u{fe01}\u{e0101}", "ab");
        check("🙂\u{fe0f}\u{fe0f}\u{fe01}\u{e0101}", "🙂\u{fe0f}");
        check("a\u{200d}b 🙂\u{200d}b", "ab 🙂b");
    }

    #[test]
    fn poi_02_terminal_sequences_go_whole() {
        check("Adds \u{1b}[2J\u{1b}]0;PWNED\u{7} numbers", "Adds  numbers");
        check("\u{1b}]8;;http://evil\u{7}click\u{1b}]8;;\u{1b}\\ \u{9b}31mred", "click red");
        check("Add\u{1b}[8m hidden", "Add hidden");
        check("\u{1b}(B\u{1b}7plain\u{1b}", "plain");
        check("\u{1b}Pdcs\u{9c}seen", "seen");
        check("\u{1b}]never ended", "never ended");
        check("\u{0}a\u{8}b\u{7f}c\u{85}d", "abcd");
    }

    #[test]
    fn raw_text_is_clean_only_if_surely_so() {
        let check = |json: &str, expected: bool| assert_eq!(is_clean_raw(json), expected, "{json}");
        check(r#"{"a": "b\n\t\"\\ \/ \u0041"}"#, true);
        check("{\n\t\"a\": 1\r\n}", true);
        check(r#""a \\u001b b""#, true);
        check(r#""\u001b[2J""#, false);
        check(r#""\\\u001b""#, false);
        check(r#""\u200b""#, false);
        check(r#""\u007f""#, false);
        check(r#""\r""#, false);
        check("\"\u{7f}\"", false);
        check("\"\u{1b}\"", false);
        check("\"é\"", false);
        check(r#""\u00"#, false);
        check(r#""\"#, false);
        let long = format!("\"{}\u{1}\"", "x".repeat(1000));
        check(&long, false);
    }

    #[test]
    fn values_are_cleaned_in_place() {
        let mut tool = json!({
            "title": "Add\u{1b}[8m",
            "inputSchema": {
                "properties": {"a\u{200b}": {"description": "x\u{200b}", "pattern": "^\u{1}$"}, "b": {"pattern": "^b$"}},
                "$defs": {"N\u{200b}": {"enum": ["v\u{feff}", 1, null]}},
            },
        });
        assert!(clean_value(&mut tool));
        let expected = json!({
            "title": "Add",
            "inputSchema": {
                "properties": {"a\u{200b}": {"description": "x"}, "b": {"pattern": "^b$"}},
                "$defs": {"N": {"enum": ["v", 1, null]}},
            },
        });
        assert_eq!(tool, expected);
        assert!(!clean_value(&mut json!({"pattern": null, "a": ["b", {"c": "d"}]})));
    }
}
