//! JSON that is carried as text: shared slices, shallow objects, splicing. Numbers and key order stay as they were.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// One JSON value as the text it arrived in; cloning shares the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct RawJson(Bytes);

impl RawJson {
    /// The empty object, `{}`.
    pub const EMPTY_OBJECT: RawJson = RawJson(Bytes::from_static(b"{}"));

    /// Takes text that must be one JSON value.
    ///
    /// # Errors
    /// The position and nature of the first syntax error.
    pub fn parse(text: impl Into<Bytes>) -> Result<RawJson, serde_json::Error> {
        let text = text.into();
        let part: &RawValue = serde_json::from_slice(&text)?;
        let part = text.slice_ref(part.get().as_bytes());
        Ok(RawJson(part))
    }

    /// A part of `whole` that a borrowing parser has already recognized, without copying it.
    ///
    /// # Panics
    /// When `part` does not lie inside `whole`.
    pub fn slice(whole: &Bytes, part: &RawValue) -> RawJson {
        RawJson(whole.slice_ref(part.get().as_bytes()))
    }

    /// The text of a value tree.
    pub fn from_value(value: &Value) -> RawJson {
        RawJson(Bytes::from(value.to_string()))
    }

    /// Joins text that is known to be one JSON value, such as the output of [`ObjectWriter`].
    pub(crate) fn trusted(text: impl Into<Bytes>) -> RawJson {
        RawJson(text.into())
    }

    /// The bytes of the text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("JSON text was parsed as UTF-8 when it was made")
    }

    /// The shared bytes themselves.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never true: a JSON value has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the text is an object.
    pub fn is_object(&self) -> bool {
        self.0.first() == Some(&b'{')
    }

    /// The value tree. Integers beyond 64 bits become floating point here, and only here.
    ///
    /// # Errors
    /// When the text is nested more than 128 levels deep.
    pub fn to_value(&self) -> Result<Value, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }

    /// A copy that shares no memory with a larger buffer.
    pub fn detached(&self) -> RawJson {
        RawJson(Bytes::copy_from_slice(&self.0))
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_slice(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawJson, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(RawJson(Bytes::from(Box::<str>::from(raw).into_string())))
    }
}

/// The members of one object in order, their values as text. Nothing below the first level is looked at.
#[derive(Debug, Default)]
pub struct RawObject<'a> {
    /// Key and value, in the order of the text; a repeated key appears twice.
    pub members: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'a> RawObject<'a> {
    /// Splits the text of an object.
    ///
    /// # Errors
    /// When the text is not an object.
    pub fn parse(text: &'a [u8]) -> Result<RawObject<'a>, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// The last value of a key, as every JSON parser in use decides a repeated one.
    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.members.iter().rev().find(|(k, _)| k == key).map(|(_, v)| *v)
    }

    /// A member decoded as a string.
    pub fn text(&self, key: &str) -> Option<String> {
        self.get(key).and_then(|raw| serde_json::from_str(raw.get()).ok())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawObject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = RawObject<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawObject<'de>, A::Error> {
                let mut members = Vec::with_capacity(8);
                while let Some(Key(key)) = map.next_key()? {
                    members.push((key, map.next_value()?));
                }
                Ok(RawObject { members })
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// A key that is borrowed unless it holds escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Writes one object from keys and ready-made JSON text.
#[derive(Debug)]
pub struct ObjectWriter {
    text: Vec<u8>,
}

impl Default for ObjectWriter {
    fn default() -> Self {
        ObjectWriter::with_capacity(128)
    }
}

impl ObjectWriter {
    /// An object of about `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> ObjectWriter {
        let mut text = Vec::with_capacity(capacity);
        text.push(b'{');
        ObjectWriter { text }
    }

    fn key(&mut self, key: &str) {
        if self.text.len() > 1 {
            self.text.push(b',');
        }
        write_string(&mut self.text, key);
        self.text.push(b':');
    }

    /// Adds a member whose value is JSON text already.
    pub fn raw(&mut self, key: &str, json: &[u8]) -> &mut ObjectWriter {
        self.key(key);
        self.text.extend_from_slice(json);
        self
    }

    /// Adds a string member.
    pub fn string(&mut self, key: &str, text: &str) -> &mut ObjectWriter {
        self.key(key);
        write_string(&mut self.text, text);
        self
    }

    /// Adds a member from anything that serializes.
    pub fn value(&mut self, key: &str, value: &impl Serialize) -> &mut ObjectWriter {
        self.key(key);
        serde_json::to_writer(&mut self.text, value).expect("values of this crate serialize into memory");
        self
    }

    /// Closes the object.
    pub fn finish(mut self) -> Vec<u8> {
        self.text.push(b'}');
        self.text
    }

    /// Closes the object and keeps it as a value.
    pub fn json(self) -> RawJson {
        RawJson::trusted(self.finish())
    }
}

/// An array of values that are JSON already.
pub fn array<'a>(items: impl Iterator<Item = &'a RawJson> + Clone) -> Vec<u8> {
    let mut out = Vec::with_capacity(items.clone().map(|item| item.len() + 1).sum::<usize>() + 2);
    out.push(b'[');
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(item.as_bytes());
    }
    out.push(b']');
    out
}

/// Appends a JSON string literal.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing a string into memory cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_key_order_survive_a_round_trip() {
        let text = r#"{"z":12345678901234567890123,"a":1.0,"z2":{"b":1,"a":2}}"#;
        let object = RawObject::parse(text.as_bytes()).unwrap();
        let mut writer = ObjectWriter::default();
        for (key, value) in &object.members {
            writer.raw(key, value.get().as_bytes());
        }
        assert_eq!(String::from_utf8(writer.finish()).unwrap(), text);
    }

    #[test]
    fn a_repeated_key_counts_as_its_last_value() {
        let object = RawObject::parse(br#"{"a":1,"a":2}"#).unwrap();
        assert_eq!(object.get("a").unwrap().get(), "2");
    }

    #[test]
    fn a_slice_shares_the_buffer() {
        let whole = Bytes::from_static(br#"{"a": [1, 2]}"#);
        let object = RawObject::parse(&whole).unwrap();
        let part = RawJson::slice(&whole, object.get("a").unwrap());
        assert_eq!(part.as_str(), "[1, 2]");
        assert_eq!(part.as_bytes().as_ptr(), whole[6..].as_ptr());
    }

    #[test]
    fn text_deeper_than_the_tree_parser_allows_is_still_carried() {
        let deep = format!("{}{}", "[".repeat(4000), "]".repeat(4000));
        let raw = RawJson::parse(deep.clone()).unwrap();
        assert_eq!(raw.as_str(), deep);
        assert!(raw.to_value().is_err());
    }
}
