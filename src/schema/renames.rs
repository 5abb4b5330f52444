//! Gives arguments keys that model APIs take, and maps what comes back to the keys the tool knows.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use crate::catalog::names::short_hash;
use crate::schema::keywords::{MAX_KEY_LENGTH, is_legal_in_key, is_legal_key};

/// Which keys were renamed, and where.
///
/// Follows `properties`, items and combinators; keys below a reference or `additionalProperties` are never renamed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyRenames {
    /// By exposed key: the keys that were renamed, and those with such a key below them.
    keys: BTreeMap<String, Renamed>,
    items: Option<Box<KeyRenames>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Renamed {
    original: String,
    below: KeyRenames,
}

impl KeyRenames {
    /// Whether every key is as the tool knows it.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.items.is_none()
    }

    /// A text that names arguments of the outermost level in backticks, with the keys that are shown.
    pub(crate) fn expose_in(&self, text: String) -> String {
        self.keys.iter().fold(text, |text, (exposed, renamed)| {
            text.replace(&format!("`{}`", renamed.original), &format!("`{exposed}`"))
        })
    }

    /// Arguments with the keys that the tool knows; unknown keys and values of other shapes stay as they are.
    pub fn restore(&self, arguments: Value) -> Value {
        match arguments {
            Value::Object(members) if !self.keys.is_empty() => {
                let restored = members.into_iter().map(|(key, value)| match self.keys.get(&key) {
                    Some(renamed) => (renamed.original.clone(), renamed.below.restore(value)),
                    None => (key, value),
                });
                Value::Object(restored.collect())
            }
            Value::Array(list) => match &self.items {
                Some(items) => list.into_iter().map(|item| items.restore(item)).collect(),
                None => Value::Array(list),
            },
            other => other,
        }
    }
}

/// Renames, within `schema`, the keys of arguments that do not fit the pattern.
pub(crate) fn rename_keys(schema: &mut Value) -> KeyRenames {
    rename_at(vec![schema])
}

/// Renames in all the subschemas that speak about one place in the arguments, alike in each.
fn rename_at(schemas: Vec<&mut Value>) -> KeyRenames {
    let mut parts = Parts::default();
    schemas.into_iter().for_each(|schema| parts.gather(schema));
    let exposed = exposed_keys(&parts.properties);
    let rename = |key: &str| exposed.get(key).cloned().unwrap_or_else(|| key.to_owned());
    if !exposed.is_empty() {
        let rename_members = |map: &mut Map<String, Value>| {
            *map = std::mem::take(map).into_iter().map(|(key, value)| (rename(&key), value)).collect();
        };
        let rename_names = |names: &mut Vec<Value>| {
            for name in names {
                if let Value::String(name) = name {
                    *name = rename(name);
                }
            }
        };
        parts.names.into_iter().for_each(rename_names);
        parts.properties.iter_mut().for_each(|map| rename_members(map));
        for map in parts.dependents {
            rename_members(map);
            map.values_mut().filter_map(Value::as_array_mut).for_each(rename_names);
        }
    }

    let mut below: BTreeMap<String, Vec<&mut Value>> = BTreeMap::new();
    for (key, value) in parts.properties.into_iter().flat_map(|map| map.iter_mut()) {
        below.entry(key.clone()).or_default().push(value);
    }
    let mut originals: BTreeMap<String, String> =
        exposed.into_iter().map(|(key, exposed)| (exposed, key)).collect();
    let keys = below.into_iter().filter_map(|(key, schemas)| {
        let below = rename_at(schemas);
        let original = originals.remove(&key);
        (original.is_some() || !below.is_empty()).then(|| {
            let original = original.unwrap_or_else(|| key.clone());
            (key, Renamed { original, below })
        })
    });
    let keys = keys.collect();
    let items = if parts.items.is_empty() { KeyRenames::default() } else { rename_at(parts.items) };
    KeyRenames { keys, items: (!items.is_empty()).then(|| Box::new(items)) }
}

/// What several subschemas say about one place in the arguments.
#[derive(Default)]
struct Parts<'a> {
    properties: Vec<&'a mut Map<String, Value>>,
    /// Lists of keys.
    names: Vec<&'a mut Vec<Value>>,
    /// Maps by key, of lists of keys or of subschemas.
    dependents: Vec<&'a mut Map<String, Value>>,
    items: Vec<&'a mut Value>,
}

impl<'a> Parts<'a> {
    fn gather(&mut self, schema: &'a mut Value) {
        let Value::Object(members) = schema else { return };
        for (keyword, value) in members.iter_mut() {
            match (keyword.as_str(), value) {
                ("properties", Value::Object(map)) => self.properties.push(map),
                ("required", Value::Array(names)) => self.names.push(names),
                ("dependentRequired" | "dependentSchemas" | "dependencies", Value::Object(map)) => {
                    self.dependents.push(map)
                }
                ("items" | "prefixItems", Value::Array(list)) => self.items.extend(list),
                ("items", value) => self.items.push(value),
                ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                    list.iter_mut().for_each(|value| self.gather(value))
                }
                ("not" | "if" | "then" | "else", value) => self.gather(value),
                _ => {}
            }
        }
    }
}

/// New keys for those that do not fit, by old key.
///
/// A new key depends on nothing but the set of keys: whoever is not alone with it carries a hash.
fn exposed_keys(properties: &[&mut Map<String, Value>]) -> BTreeMap<String, String> {
    let keys: HashSet<&str> = properties.iter().flat_map(|map| map.keys()).map(String::as_str).collect();
    let odd: Vec<&str> = keys.iter().copied().filter(|key| !is_legal_key(key)).collect();
    let mut claims: BTreeMap<String, usize> = BTreeMap::new();
    for key in &odd {
        *claims.entry(legal_key(key)).or_default() += 1;
    }
    let name = |key: &&str| {
        let plain = legal_key(key);
        let is_taken = keys.contains(plain.as_str()) || claims.get(&plain).is_some_and(|claims| *claims > 1);
        let exposed = if is_taken { with_hash(&plain, key) } else { plain };
        ((*key).to_owned(), exposed)
    };
    odd.iter().map(name).collect()
}

fn legal_key(key: &str) -> String {
    let legal = key.chars().map(|char| if is_legal_in_key(char) { char } else { '_' });
    let legal: String = legal.take(MAX_KEY_LENGTH).collect();
    if legal.is_empty() { "_".to_owned() } else { legal }
}

fn with_hash(plain: &str, key: &str) -> String {
    let hash = short_hash(key);
    let room = MAX_KEY_LENGTH - hash.len() - 1;
    format!("{}_{hash}", &plain[..plain.len().min(room)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `arguments` are what a client sends for `expected`, what the tool gets.
    fn check(original: Value, exposed: Value, arguments: Value, expected: Value) {
        let mut schema = original.clone();
        let renames = rename_keys(&mut schema);
        assert_eq!(schema.to_string(), exposed.to_string());
        assert_eq!(renames.restore(arguments), expected);
        assert_eq!(renames.is_empty(), schema == original);
    }

    #[test]
    fn legal_keys_stay() {
        let schema = json!({"properties": {"a.b-c_1": {}, "d": {"items": {"properties": {"e": {}}}}}});
        check(schema.clone(), schema, json!({"a b": 1, "d": [{"e": 2}]}), json!({"a b": 1, "d": [{"e": 2}]}));
    }

    #[test]
    fn odd_keys_are_renamed_and_restored_wherever_they_nest() {
        check(
            json!({
                "properties": {
                    "filter[status]": {"type": "string"},
                    "list": {"items": {"properties": {"@type": {}, "ok": {}}, "required": ["@type"]}},
                    "one": {"anyOf": [{"type": "null"}, {"properties": {"a b": {}}}]},
                },
                "required": ["list", "filter[status]"],
                "dependentRequired": {"list": ["filter[status]"]},
            }),
            json!({
                "properties": {
                    "filter_status_": {"type": "string"},
                    "list": {"items": {"properties": {"_type": {}, "ok": {}}, "required": ["_type"]}},
                    "one": {"anyOf": [{"type": "null"}, {"properties": {"a_b": {}}}]},
                },
                "required": ["list", "filter_status_"],
                "dependentRequired": {"list": ["filter_status_"]},
            }),
            json!({"filter_status_": "x", "list": [{"_type": 1, "ok": 2}, 3], "one": {"a_b": 4}, "a_b": 5}),
            json!({"filter[status]": "x", "list": [{"@type": 1, "ok": 2}, 3], "one": {"a b": 4}, "a_b": 5}),
        );
    }

    #[test]
    fn keys_that_would_meet_carry_a_hash() {
        let [space, slash] = ["a b", "a/b"].map(|key| format!("a_b_{}", short_hash(key)));
        check(
            json!({"properties": {"a b": {}, "a_b": {}}}),
            json!({"properties": {&space: {}, "a_b": {}}}),
            json!({&space: 1, "a_b": 2}),
            json!({"a b": 1, "a_b": 2}),
        );
        check(
            json!({"properties": {"a b": {}, "a/b": {}}}),
            json!({"properties": {&space: {}, &slash: {}}}),
            json!({&slash: 1}),
            json!({"a/b": 1}),
        );
        let long = "x".repeat(70);
        check(
            json!({"properties": {&long: {}, "": {}}}),
            json!({"properties": {"x".repeat(64): {}, "_": {}}}),
            json!({"x".repeat(64): 1, "_": 2}),
            json!({&long: 1, "": 2}),
        );
    }
}
