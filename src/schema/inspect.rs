//! Tells in one pass over the text whether a schema can be shown to every client as it is.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::keywords::{Holds, holds, is_barred_at_root, is_legal_key, leads_to_schema};

/// Whether an input schema needs no repair: what the strictest client and the strictest model API take.
///
/// Nothing is built for a schema without references into itself. Text that serde_json cannot turn into a value, such as one
/// nested deeper than its recursion limit, is not safe.
pub fn is_safe(raw: &str) -> bool {
    inspect_text(raw, Kind::Input)
}

/// Whether an output schema can be passed on; clients refuse the whole list for one that cannot.
///
/// Only its form is judged: that it compiles, and that the results keep it, is the caller's to find out.
pub fn output_is_exposable(raw: &str) -> bool {
    inspect_text(raw, Kind::Output)
}

/// The same judgement as `is_safe` over a value that was already read.
pub(crate) fn is_safe_value(schema: &Value) -> bool {
    let mut found = Found::default();
    inspect(schema, Kind::Input, &mut found).is_ok() && found.all_resolve(|| Some(Cow::Borrowed(schema)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Input,
    Output,
}

fn inspect_text(raw: &str, kind: Kind) -> bool {
    let mut found = Found::default();
    let mut text = serde_json::Deserializer::from_str(raw);
    inspect(&mut text, kind, &mut found).is_ok()
        && text.end().is_ok()
        && found.all_resolve(|| serde_json::from_str(raw).ok().map(Cow::Owned))
}

fn inspect<'de, D: Deserializer<'de>>(source: D, kind: Kind, found: &mut Found) -> Result<(), D::Error> {
    Check { place: Place::Root, kind, found }.deserialize(source)
}

/// What can only be judged at the end: most references point to what comes later in the text.
#[derive(Default)]
struct Found {
    references: BTreeSet<String>,
    /// Pointers to the members of the root's definitions.
    definitions: BTreeSet<String>,
}

impl Found {
    /// Whether every reference leads to a subschema; the whole schema is read only for unusual ones.
    fn all_resolve<'v>(&self, whole: impl FnOnce() -> Option<Cow<'v, Value>>) -> bool {
        let mut unusual = self.references.difference(&self.definitions).peekable();
        unusual.peek().is_none()
            || whole().is_some_and(|schema| unusual.all(|pointer| leads_to_schema(&schema, pointer)))
    }
}

/// Where in a schema a value stands.
#[derive(Clone, Copy)]
enum Place {
    Root,
    Schema,
    /// A member of the old `dependencies`.
    SchemaOrNames,
    /// The root's own definitions, under their keyword.
    Definitions(&'static str),
    Under(Holds),
}

struct Check<'a> {
    place: Place,
    kind: Kind,
    found: &'a mut Found,
}

impl Check<'_> {
    fn at(&mut self, place: Place) -> Check<'_> {
        Check { place, kind: self.kind, found: self.found }
    }

    fn members<'de, A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let is_root = matches!(self.place, Place::Root);
        let mut types = Types::default();
        let mut has_items = false;
        while let Some(keyword) = map.next_key_seed(ReadKeyword)? {
            has_items |= keyword.is_items;
            match keyword.role {
                Role::Type => types = map.next_value_seed(ReadTypes)?,
                Role::Required if is_root => map.next_value_seed(Names)?,
                Role::Barred if is_root && self.kind == Kind::Input => {
                    return Err(A::Error::custom("barred at the root"));
                }
                Role::Definitions(name) if is_root => {
                    map.next_value_seed(self.at(Place::Definitions(name)))?
                }
                Role::Required | Role::Barred | Role::Definitions(_) | Role::Plain => match keyword.holds {
                    Holds::Data => map.next_value_seed(Data)?,
                    holds => map.next_value_seed(self.at(Place::Under(holds)))?,
                },
            }
        }
        if is_root && !types.is_object {
            return Err(A::Error::custom("no object at the root"));
        }
        // Several model APIs refuse an array that does not say of what.
        if types.has_array && !has_items && self.kind == Kind::Input {
            return Err(A::Error::custom("array without items"));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Check<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Check<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("what the keyword holds")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        match self.place {
            Place::Under(Holds::SchemaOrBool) => Ok(()),
            _ => Err(E::custom("boolean schema")),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        match (self.place, text.strip_prefix('#')) {
            (Place::Under(Holds::Reference), Some("")) => Ok(()),
            // Names of anchors count as foreign: not every client knows them.
            (Place::Under(Holds::Reference), Some(pointer)) if pointer.starts_with('/') => {
                self.found.references.insert(pointer.to_owned());
                Ok(())
            }
            _ => Err(E::custom("no local reference")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        match self.place {
            Place::Under(Holds::List | Holds::SchemaOrList) => {
                while list.next_element_seed(self.at(Place::Schema))?.is_some() {}
                Ok(())
            }
            Place::SchemaOrNames => {
                while list.next_element_seed(Data)?.is_some() {}
                Ok(())
            }
            _ => Err(A::Error::custom("list where a schema is expected")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        match self.place {
            Place::Root
            | Place::Schema
            | Place::SchemaOrNames
            | Place::Under(Holds::Schema | Holds::SchemaOrBool | Holds::SchemaOrList) => self.members(map),
            Place::Under(Holds::Properties) => {
                while let Some(is_legal) = map.next_key_seed(ReadKey)? {
                    if !is_legal && self.kind == Kind::Input {
                        return Err(A::Error::custom("odd key"));
                    }
                    map.next_value_seed(self.at(Place::Schema))?;
                }
                Ok(())
            }
            Place::Definitions(keyword) => {
                while let Some(key) = map.next_key::<Cow<str>>()? {
                    // Names that a pointer has to escape are left to the slow way.
                    if !key.contains(['~', '/']) {
                        self.found.definitions.insert(format!("/{keyword}/{key}"));
                    }
                    map.next_value_seed(self.at(Place::Schema))?;
                }
                Ok(())
            }
            Place::Under(Holds::Map) => {
                while map.next_key_seed(ReadKey)?.is_some() {
                    map.next_value_seed(self.at(Place::Schema))?;
                }
                Ok(())
            }
            Place::Under(Holds::MapOrNames) => {
                while map.next_key_seed(ReadKey)?.is_some() {
                    map.next_value_seed(self.at(Place::SchemaOrNames))?;
                }
                Ok(())
            }
            Place::Under(Holds::List | Holds::Reference | Holds::Data) => {
                Err(A::Error::custom("object out of place"))
            }
        }
    }
}

/// A keyword, classified while its text is at hand, so that nothing need be kept of it.
struct Keyword {
    role: Role,
    holds: Holds,
    is_items: bool,
}

enum Role {
    Type,
    Required,
    Barred,
    Definitions(&'static str),
    Plain,
}

struct ReadKeyword;

impl<'de> DeserializeSeed<'de> for ReadKeyword {
    type Value = Keyword;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Keyword, D::Error> {
        source.deserialize_str(self)
    }
}

impl Visitor<'_> for ReadKeyword {
    type Value = Keyword;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a keyword")
    }

    fn visit_str<E: Error>(self, keyword: &str) -> Result<Keyword, E> {
        let role = match keyword {
            "type" => Role::Type,
            "required" => Role::Required,
            "$defs" => Role::Definitions("$defs"),
            "definitions" => Role::Definitions("definitions"),
            keyword if is_barred_at_root(keyword) => Role::Barred,
            _ => Role::Plain,
        };
        Ok(Keyword { role, holds: holds(keyword), is_items: matches!(keyword, "items" | "prefixItems") })
    }
}

/// Reads a key of a map of schemas: is it one that model APIs take as the name of an argument?
struct ReadKey;

impl<'de> DeserializeSeed<'de> for ReadKey {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<bool, D::Error> {
        source.deserialize_str(self)
    }
}

impl Visitor<'_> for ReadKey {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        Ok(is_legal_key(key))
    }
}

#[derive(Default)]
struct Types {
    /// Exactly the one type `object`.
    is_object: bool,
    has_array: bool,
}

struct ReadTypes;

impl<'de> DeserializeSeed<'de> for ReadTypes {
    type Value = Types;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Types, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ReadTypes {
    type Value = Types;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a type or several")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Types, E> {
        Ok(Types { is_object: name == "object", has_array: name == "array" })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Types, A::Error> {
        let mut types = Types::default();
        while let Some(one) = list.next_element_seed(ReadTypes)? {
            types.has_array |= one.has_array;
        }
        Ok(types)
    }
}

/// A list of texts.
struct Names;

impl<'de> DeserializeSeed<'de> for Names {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Names {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of names")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(ReadKey)?.is_some() {}
        Ok(())
    }
}

/// Anything at all; unlike serde's `IgnoredAny` it stops at the recursion limit.
struct Data;

impl<'de> DeserializeSeed<'de> for Data {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Data {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Data)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(ReadKey)?.is_some() {
            map.next_value_seed(Data)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_that_every_client_takes_are_safe() {
        let check = |schema: Value, expected: bool| {
            assert_eq!(is_safe(&schema.to_string()), expected, "{schema}");
            assert_eq!(is_safe_value(&schema), expected, "{schema}");
        };
        check(json!({"type": "object"}), true);
        check(json!({"type": "object", "properties": {"a": {"type": "string", "enum": ["b", true]}}}), true);
        check(json!({"type": "object", "additionalProperties": false, "required": ["a"]}), true);
        check(json!({"type": "object", "properties": {"a": {"additionalProperties": true}}}), true);
        check(json!({"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {}]}}}), true);

        check(json!({}), false);
        check(json!(true), false);
        check(json!(null), false);
        check(json!([]), false);
        check(json!({"type": ["object"]}), false);
        check(json!({"type": "array", "items": {}}), false);
        check(json!({"type": "object", "required": null}), false);
        check(json!({"type": "object", "required": [1]}), false);
        check(json!({"type": "object", "properties": null}), false);
        check(json!({"type": "object", "properties": {"a": "string"}}), false);
    }

    #[test]
    fn booleans_are_no_schemas_where_clients_want_objects() {
        let check = |members: Value, expected: bool| {
            let schema = json!({"type": "object", "properties": {"a": members}}).to_string();
            assert_eq!(is_safe(&schema), expected, "{schema}");
        };
        check(json!(true), false);
        check(json!({"items": false}), false);
        check(json!({"items": [{}, true]}), false);
        check(json!({"prefixItems": [true]}), false);
        check(json!({"anyOf": [{}, false]}), false);
        check(json!({"not": true}), false);
        check(json!({"patternProperties": {"x": true}}), false);
        check(json!({"dependencies": {"x": ["y"], "z": {}}}), true);
        check(json!({"dependencies": {"x": true}}), false);
        check(json!({"items": [{}, {}], "additionalItems": false}), true);
        check(json!({"unevaluatedProperties": false}), true);
        // Data may be anything.
        check(
            json!({"const": true, "default": {"anyOf": [true]}, "examples": [{"$ref": "x"}], "x-a": {"not": true}}),
            true,
        );
        check(json!({"type": "array"}), false);
        check(json!({"type": ["array", "null"]}), false);
        check(json!({"type": ["array", "null"], "items": {}}), true);
    }

    #[test]
    fn an_argument_may_be_called_like_a_keyword() {
        let names = ["items", "$ref", "anyOf", "type", "required", "not", "properties"];
        for name in names {
            let schema =
                json!({"type": "object", "properties": {"a": {"properties": {name: {"type": "string"}}}}});
            // This one is refused for its dollar sign alone.
            let expected = name != "$ref";
            assert_eq!(is_safe(&schema.to_string()), expected, "{schema}");
        }
    }

    #[test]
    fn the_root_holds_no_combinators() {
        for keyword in ["allOf", "anyOf", "oneOf", "enum", "not", "if", "$ref"] {
            let schema = json!({"type": "object", keyword: [{}]});
            assert!(!is_safe(&schema.to_string()), "{schema}");
        }
    }

    #[test]
    fn references_stay_inside_and_lead_somewhere() {
        let check = |reference: &str, expected: bool| {
            let schema = json!({
                "type": "object",
                "properties": {"a": {"$ref": reference}, "b": {"items": [{"type": "string"}]}},
                "$defs": {"n/m": {"properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/n~1m"}}}}},
                "components": {"x": {}},
            });
            assert_eq!(is_safe(&schema.to_string()), expected, "{reference}");
        };
        check("#", true);
        check("#/$defs/n~1m", true);
        check("#/$defs/n~1m/properties/kids/items", true);
        check("#/properties/b/items/0", true);
        check("#/properties/b/items/1", false);
        check("#/$defs/missing", false);
        check("#/$defs", false);
        check("#anchor", false);
        check("#/components/x", false);
        check("https://example.org/schema.json", false);
        check("other.json#/a", false);
        check("", false);
    }

    #[test]
    fn keys_fit_the_pattern_of_model_apis() {
        let check = |key: &str, expected: bool| {
            let schema = json!({"type": "object", "properties": {"a": {"items": {"properties": {key: {}}}}}});
            assert_eq!(is_safe(&schema.to_string()), expected, "{key}");
        };
        check("a_B-1.c", true);
        check(&"x".repeat(64), true);
        check(&"x".repeat(65), false);
        check("", false);
        check("a b", false);
        check("filter[status]", false);
        check("é", false);
    }

    #[test]
    fn sch_15_too_deep_is_not_safe() {
        let nest = |levels: usize, inner: &str| {
            let (open, close) =
                (r#"{"type":"object","properties":{"a":"#.repeat(levels), "}}".repeat(levels));
            format!("{open}{inner}{close}")
        };
        assert!(is_safe(&nest(50, r#"{"type":"string"}"#)));
        assert!(!is_safe(&nest(100, r#"{"type":"string"}"#)));
        assert!(!is_safe(&format!(
            r#"{{"type":"object","default":{}{}}}"#,
            "[".repeat(200),
            "]".repeat(200)
        )));
        assert!(!is_safe(r#"{"type":"object"} x"#));
        assert!(!is_safe(r#"{"type":"object""#));
    }

    #[test]
    fn sch_09_output_schemas_are_objects() {
        let check = |schema: Value, expected: bool| {
            assert_eq!(output_is_exposable(&schema.to_string()), expected, "{schema}");
        };
        check(json!({"type": "object", "properties": {"a b": {"type": "array"}}, "anyOf": [{}, {}]}), true);
        check(json!({"$id": "urn:x:result", "description": "the result"}), false);
        check(json!({"type": "object", "properties": {"a": true}}), false);
        check(json!({"type": "object", "properties": {"a": {"$ref": "https://example.org/x"}}}), false);
        check(json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}}), false);
        check(json!({"type": "array", "items": {}}), false);
    }
}
