//! What the keywords of JSON Schema hold, in all drafts at once, and where a pointer leads.

use serde_json::{Map, Value};

/// What the value of a keyword is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Schema,
    /// A boolean is part of the plain vocabulary here, and every client takes it.
    SchemaOrBool,
    SchemaOrList,
    List,
    /// Names of arguments, with a schema each.
    Properties,
    /// Other names, with a schema each.
    Map,
    MapOrNames,
    Reference,
    /// Anything else: data, numbers, texts, keywords that are not known here.
    Data,
}

pub(crate) fn holds(keyword: &str) -> Holds {
    match keyword {
        "not" | "if" | "then" | "else" | "contains" | "propertyNames" | "contentSchema" => Holds::Schema,
        "additionalProperties" | "unevaluatedProperties" | "additionalItems" | "unevaluatedItems" => {
            Holds::SchemaOrBool
        }
        "items" => Holds::SchemaOrList,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Holds::List,
        "properties" => Holds::Properties,
        "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => Holds::Map,
        "dependencies" => Holds::MapOrNames,
        "$ref" | "$dynamicRef" | "$recursiveRef" => Holds::Reference,
        _ => Holds::Data,
    }
}

/// Model APIs refuse these at the root of a tool's schema.
pub(crate) fn is_barred_at_root(keyword: &str) -> bool {
    matches!(
        keyword,
        "allOf"
            | "anyOf"
            | "oneOf"
            | "not"
            | "if"
            | "then"
            | "else"
            | "enum"
            | "const"
            | "$ref"
            | "$dynamicRef"
            | "$recursiveRef"
    )
}

/// The pattern `^[A-Za-z0-9_.-]{1,64}$`, outside which a model API refuses the whole tool.
pub(crate) fn is_legal_key(key: &str) -> bool {
    (1..=MAX_KEY_LENGTH).contains(&key.len()) && key.bytes().all(|byte| is_legal_in_key(char::from(byte)))
}

pub(crate) const MAX_KEY_LENGTH: usize = 64;

pub(crate) fn is_legal_in_key(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '_' | '.' | '-')
}

/// Whether a pointer leads to a subschema by way of keywords that hold subschemas.
///
/// The pointer is taken as it stands: percent signs are not decoded, as several clients do not.
pub(crate) fn leads_to_schema(root: &Value, pointer: &str) -> bool {
    let Some(tokens) = pointer.strip_prefix('/') else { return pointer.is_empty() };
    let mut tokens = tokens.split('/').map(unescape);
    let mut here = root;
    while let Some(keyword) = tokens.next() {
        let Some(value) = here.get(&keyword) else { return false };
        let next = match (holds(&keyword), value) {
            (Holds::Schema | Holds::SchemaOrBool | Holds::SchemaOrList, Value::Object(_)) => Some(value),
            (Holds::SchemaOrList | Holds::List, Value::Array(list)) => {
                tokens.next().and_then(|index| list.get(index.parse::<usize>().ok()?))
            }
            (Holds::Properties | Holds::Map | Holds::MapOrNames, Value::Object(map)) => {
                tokens.next().and_then(|key| map.get(&key))
            }
            _ => None,
        };
        let Some(next) = next else { return false };
        here = next;
    }
    here.is_object()
}

fn unescape(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// Calls `act` with every schema object at and below `schema`, outermost first.
pub(crate) fn for_each_schema(schema: &mut Value, act: &mut impl FnMut(&mut Map<String, Value>)) {
    let Value::Object(members) = schema else { return };
    act(members);
    for (keyword, value) in members.iter_mut() {
        match (holds(keyword), value) {
            (Holds::Schema | Holds::SchemaOrBool | Holds::SchemaOrList, value @ Value::Object(_)) => {
                for_each_schema(value, act);
            }
            (Holds::SchemaOrList | Holds::List, Value::Array(list)) => {
                list.iter_mut().for_each(|value| for_each_schema(value, act));
            }
            (Holds::Properties | Holds::Map | Holds::MapOrNames, Value::Object(map)) => {
                map.values_mut().for_each(|value| for_each_schema(value, act));
            }
            _ => {}
        }
    }
}
