//! JSON-RPC messages as they come from a peer: the envelope is decoded, the rest stays text.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The outer members of one message. An absent member is `None`; an explicit `null` is not.
#[derive(Debug, Deserialize)]
pub struct Envelope<'a> {
    /// `"2.0"`, if the peer is correct.
    #[serde(borrow, default, deserialize_with = "present")]
    pub jsonrpc: Option<&'a RawValue>,
    /// Of a request or a response.
    #[serde(borrow, default, deserialize_with = "present")]
    pub id: Option<&'a RawValue>,
    /// Of a request or a notification.
    #[serde(borrow, default, deserialize_with = "present")]
    pub method: Option<&'a RawValue>,
    /// Of a request or a notification.
    #[serde(borrow, default, deserialize_with = "present")]
    pub params: Option<&'a RawValue>,
    /// Of a response.
    #[serde(borrow, default, deserialize_with = "present")]
    pub result: Option<&'a RawValue>,
    /// Of a response.
    #[serde(borrow, default, deserialize_with = "present")]
    pub error: Option<&'a RawValue>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// A JSON string's content, borrowed unless it holds escapes; `None` if the text is no string.
pub fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    let text = raw.get();
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        return serde_json::from_str::<String>(text).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
}

/// A request id that this program gave out, as peers send it back: a number, or the number as a string.
pub fn own_id(raw: &RawValue) -> Option<u64> {
    let text = raw.get().trim_matches('"');
    text.parse().ok().or_else(|| {
        let float: f64 = text.parse().ok()?;
        (float >= 0.0 && float.fract() == 0.0 && float < 9e15).then_some(float as u64)
    })
}

/// Searches a line that is no valid JSON for the id of a response, so that its call need not wait for nothing.
/// Only members of the outermost object count, and only ones before or after which the text can be followed.
pub fn id_of_broken(line: &[u8]) -> Option<&[u8]> {
    let (mut depth, mut at) = (0_usize, 0);
    let mut found = None;
    while at < line.len() {
        match line[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = end_of_string(line, at)?;
                let is_key = depth == 1 && &line[at..end] == b"\"id\"";
                at = end;
                if is_key && let Some(id) = value_after_colon(&line[at..]) {
                    found = Some(id);
                }
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The position after the closing quote of the string that opens at `start`; `None` if it never closes.
fn end_of_string(line: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    while at < line.len() {
        match line[at] {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

fn value_after_colon(rest: &[u8]) -> Option<&[u8]> {
    let rest = rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let end = match rest.first()? {
        b'"' => end_of_string(rest, 0)?,
        b'-' | b'0'..=b'9' => {
            rest.iter().position(|b| !matches!(b, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'))?
        }
        _ => return None,
    };
    Some(&rest[..end])
}

/// The id of a request whose line is too long to be kept, from its first bytes.
pub fn id_of_prefix(prefix: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    let mut depth = 0_usize;
    while at < prefix.len() {
        match prefix[at] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = end_of_string(prefix, at)?;
                if depth == 1
                    && &prefix[at..end] == b"\"id\""
                    && let Some(id) = value_after_colon(&prefix[end..])
                {
                    return Some(id);
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_absent_differ() {
        let message: Envelope = serde_json::from_str(r#"{"id":null,"method":"x"}"#).unwrap();
        assert!(message.id.is_some() && message.params.is_none());
    }

    #[test]
    fn ids_come_back_in_several_spellings() {
        let check = |text: &str, expected| {
            let raw: &RawValue = serde_json::from_str(text).unwrap();
            assert_eq!(own_id(raw), expected, "{text}");
        };
        check("7", Some(7));
        check("\"7\"", Some(7));
        check("7.0", Some(7));
        check("-7", None);
        check("\"x\"", None);
        check("null", None);
    }

    #[test]
    fn the_id_is_found_in_what_is_almost_json() {
        let check = |line: &str, expected: Option<&str>| {
            assert_eq!(id_of_broken(line.as_bytes()), expected.map(str::as_bytes), "{line}");
        };
        check(r#"{"jsonrpc":"2.0","id":5,"result":{"v":NaN}}"#, Some("5"));
        check(r#"{"result":{"id":9,"v":Infinity},"jsonrpc":"2.0","id":"a b"}"#, Some(r#""a b""#));
        check(r#"{"result":{"id":9}"#, None);
        check("no json", None);
        assert_eq!(
            id_of_prefix(br#"{"jsonrpc":"2.0","id":12,"method":"x","params":{"t":"aaaaa"#),
            Some(&b"12"[..])
        );
    }

    #[test]
    fn a_method_may_hold_escapes() {
        let raw: &RawValue = serde_json::from_str(r#""tools\/call""#).unwrap();
        assert_eq!(string(raw).unwrap(), "tools/call");
    }
}
