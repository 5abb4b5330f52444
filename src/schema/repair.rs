//! Makes an input schema one that every client and every model API takes, or says why that cannot be done.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};

use super::inspect::is_safe_value;
use super::keywords::{Holds, for_each_schema, holds, is_barred_at_root, leads_to_schema};
use super::renames::{KeyRenames, rename_keys};

/// A schema to show; the original stays the one that validates.
#[derive(Clone, Debug, PartialEq)]
pub struct Repaired {
    /// Safe in the sense of `inspect::is_safe`.
    pub schema: Value,
    /// How arguments find back to the keys of the original.
    pub renames: KeyRenames,
    /// What the original demands and the schema no longer says, for the description of the tool.
    pub sentence: Option<String>,
}

/// Why a schema cannot be shown without saying something else than the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unrepairable {
    /// For a person: lower case, without a full stop.
    pub reason: String,
}

impl fmt::Display for Unrepairable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unrepairable {}

/// The schema that takes any arguments.
pub fn open_object() -> Value {
    json!({"type": "object", "additionalProperties": true})
}

/// A schema to show in place of `original`; one that is safe already comes back as it is.
///
/// The shown schema may take more than the original does: the sentence says what else is expected.
pub fn repair(original: &Value) -> Result<Repaired, Unrepairable> {
    let mut source = original.clone();
    tidy(&mut source);
    let Value::Object(root) = &source else {
        return Ok(Repaired {
            schema: json!({"type": "object"}),
            renames: KeyRenames::default(),
            sentence: None,
        });
    };
    let mut merge = Merge { source: &source, trail: Vec::new(), sentences: Vec::new(), steps: 0 };
    let shape = merge.shape(root)?;
    let mut schema = Value::Object(plain_root(root, shape, &source)?);
    anchor_references(&mut schema, &source)?;
    let renames = rename_keys(&mut schema);
    if !is_safe_value(&schema) {
        return Err(unrepairable("keys of arguments that clients refuse, where they cannot be renamed"));
    }
    let sentence = (!merge.sentences.is_empty()).then(|| renames.expose_in(merge.sentences.join(" ")));
    Ok(Repaired { schema, renames, sentence })
}

fn unrepairable(reason: impl Into<String>) -> Unrepairable {
    Unrepairable { reason: reason.into() }
}

/// Turns booleans into objects and drops what is no schema where one is expected, without moving anything.
fn tidy(schema: &mut Value) {
    for_each_schema(schema, &mut |members| {
        members.retain(|keyword, value| tidy_member(holds(keyword), value));
        let has_array = match members.get("type") {
            Some(Value::String(name)) => name == "array",
            Some(Value::Array(names)) => names.iter().any(|name| name == "array"),
            Some(_) => {
                members.shift_remove("type");
                false
            }
            None => false,
        };
        if has_array && !members.contains_key("items") && !members.contains_key("prefixItems") {
            members.insert("items".to_owned(), json!({}));
        }
    });
}

/// Tidies the value of a keyword; false if there is nothing to keep.
fn tidy_member(holds: Holds, value: &mut Value) -> bool {
    match (holds, &mut *value) {
        (Holds::SchemaOrBool, value) => value.is_boolean() || value.is_object(),
        (Holds::Schema, value) | (Holds::SchemaOrList, value @ (Value::Bool(_) | Value::Object(_))) => {
            tidy_schema(value);
            true
        }
        (Holds::SchemaOrList | Holds::List, Value::Array(list)) => {
            list.iter_mut().for_each(tidy_schema);
            !list.is_empty()
        }
        (Holds::Properties | Holds::Map, Value::Object(map)) => {
            map.values_mut().for_each(tidy_schema);
            true
        }
        (Holds::MapOrNames, Value::Object(map)) => {
            map.values_mut().filter(|value| !value.is_array()).for_each(tidy_schema);
            true
        }
        (Holds::Reference, value) => value.is_string(),
        (Holds::Data, _) => true,
        (Holds::SchemaOrList | Holds::List | Holds::Properties | Holds::Map | Holds::MapOrNames, _) => false,
    }
}

fn tidy_schema(schema: &mut Value) {
    match schema {
        Value::Object(_) => {}
        Value::Bool(false) => *schema = json!({"not": {}}),
        _ => *schema = json!({}),
    }
}

/// The root without what is barred there, with everything it says about arguments in `properties`.
fn plain_root(
    root: &Map<String, Value>,
    mut shape: Shape,
    source: &Value,
) -> Result<Map<String, Value>, Unrepairable> {
    let conditional = std::mem::take(&mut shape.conditional);
    shape.add_missing(conditional);
    let mut plain = Map::new();
    if !root.contains_key("type") {
        plain.insert("type".to_owned(), json!("object"));
    }
    let mut properties = Some(shape.properties);
    for (keyword, value) in root {
        let value = match keyword.as_str() {
            "type" => json!("object"),
            "properties" => Value::Object(properties.take().unwrap_or_default()),
            "required" if value.is_array() => json!(shape.required),
            "required" => continue,
            keyword if is_barred_at_root(keyword) => continue,
            _ => value.clone(),
        };
        plain.insert(keyword.clone(), value);
    }
    if let Some(properties) = properties
        && !properties.is_empty()
    {
        plain.insert("properties".to_owned(), Value::Object(properties));
    }
    if !shape.required.is_empty() && !plain.contains_key("required") {
        plain.insert("required".to_owned(), json!(shape.required));
    }
    // A root that is only a reference says all the rest in its target.
    if let Some(Value::String(reference)) = root.get("$ref")
        && let Value::Object(target) = resolve(source, reference)?
    {
        for (keyword, value) in target {
            let is_about_itself =
                keyword.starts_with('$') || matches!(keyword.as_str(), "id" | "definitions");
            if !is_about_itself
                && !is_barred_at_root(keyword)
                && !plain.contains_key(keyword)
                && keyword != "required"
            {
                plain.insert(keyword.clone(), value.clone());
            }
        }
    }
    Ok(plain)
}

/// The arguments that a schema speaks of.
#[derive(Default)]
struct Shape {
    properties: Map<String, Value>,
    required: Vec<String>,
    /// What holds under a condition only: shown if nothing else is said about the argument.
    conditional: Map<String, Value>,
}

impl Shape {
    fn require(&mut self, name: &str) {
        if !self.required.iter().any(|known| known == name) {
            self.required.push(name.to_owned());
        }
    }

    fn add_missing(&mut self, properties: Map<String, Value>) {
        for (name, schema) in properties {
            self.properties.entry(name).or_insert(schema);
        }
    }

    /// Both at once, as `allOf` has it.
    fn and(&mut self, other: Shape) {
        for (name, schema) in other.properties {
            match self.properties.get_mut(&name) {
                Some(known) => *known = both(std::mem::take(known), schema),
                None => {
                    self.properties.insert(name, schema);
                }
            }
        }
        for (name, schema) in other.conditional {
            self.conditional.entry(name).or_insert(schema);
        }
        other.required.iter().for_each(|name| self.require(name));
    }

    /// One of several, as `anyOf` and `oneOf` have it.
    fn and_one_of(&mut self, alternatives: Vec<Shape>) {
        let common = alternatives.first().map(|first| first.required.clone()).unwrap_or_default();
        let is_common = |name: &&String| alternatives.iter().all(|shape| shape.required.contains(name));
        common.iter().filter(is_common).for_each(|name| self.require(name));
        let count = alternatives.len();
        for (name, variants) in variants(alternatives) {
            let is_everywhere = variants.len() == count;
            let schema = either(variants);
            match self.properties.get_mut(&name) {
                Some(known) if is_everywhere => narrow(known, schema),
                Some(_) => {}
                None => {
                    self.properties.insert(name, schema);
                }
            }
        }
    }
}

/// What each of the alternatives says about an argument, in order of first mention.
fn variants(alternatives: Vec<Shape>) -> impl Iterator<Item = (String, Vec<Value>)> {
    let mut order: Vec<(String, Vec<Value>)> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for mut shape in alternatives {
        let conditional = std::mem::take(&mut shape.conditional);
        shape.add_missing(conditional);
        for (name, schema) in shape.properties {
            let place = *places.entry(name).or_insert_with_key(|name| {
                order.push((name.clone(), Vec::new()));
                order.len() - 1
            });
            order[place].1.push(schema);
        }
    }
    order.into_iter()
}

/// Collects the shape of a schema from its combinators, and sentences about what a shape cannot say.
struct Merge<'a> {
    source: &'a Value,
    /// References being followed, so that a circle ends.
    trail: Vec<String>,
    sentences: Vec<String>,
    steps: usize,
}

/// References that fan out again and again describe exponentially many shapes; real schemas stay far below.
const MOST_STEPS: usize = 2_000;

/// What was merged away and is still referred to is copied as often; real schemas have a handful.
const MOST_COPIES: usize = 64;

const DEPENDENT: &str =
    "Some arguments depend on each other; a call that does not fit is refused with the reason.";

impl Merge<'_> {
    fn shape(&mut self, schema: &Map<String, Value>) -> Result<Shape, Unrepairable> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(unrepairable("too many combinations"));
        }
        let mut shape = Shape::default();
        if let Some(Value::Object(properties)) = schema.get("properties") {
            shape.properties = properties.clone();
        }
        for name in texts(schema.get("required")) {
            shape.require(name);
        }
        for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
            if let Some(Value::String(reference)) = schema.get(keyword) {
                shape.and(self.follow(reference)?);
            }
        }
        for member in list(schema.get("allOf")) {
            shape.and(self.shape(member)?);
        }
        for (keyword, start) in
            [("oneOf", "Give exactly one of these"), ("anyOf", "Give at least one of these")]
        {
            self.alternatives(list(schema.get(keyword)), start, &mut shape)?;
        }
        self.conditions(schema, &mut shape)?;
        Ok(shape)
    }

    fn follow(&mut self, reference: &str) -> Result<Shape, Unrepairable> {
        let Value::Object(target) = resolve(self.source, reference)? else { return Ok(Shape::default()) };
        if std::ptr::eq(target, self.source.as_object().unwrap_or(target))
            || self.trail.iter().any(|at| at == reference)
        {
            return Ok(Shape::default());
        }
        self.trail.push(reference.to_owned());
        let shape = self.shape(target);
        self.trail.pop();
        shape
    }

    fn alternatives<'s>(
        &mut self,
        members: impl Iterator<Item = &'s Map<String, Value>>,
        start: &str,
        shape: &mut Shape,
    ) -> Result<(), Unrepairable> {
        let mut shapes = Vec::new();
        let mut words = Vec::new();
        for member in members.filter(|member| may_be_object(member)) {
            let alternative = self.shape(member)?;
            words.push(describe(&alternative, &shape.required));
            shapes.push(alternative);
        }
        shape.and_one_of(shapes);
        words.dedup();
        if words.len() > 1 {
            self.say(format!("{start}: {}.", enumerate(&words)));
        }
        Ok(())
    }

    fn conditions(&mut self, schema: &Map<String, Value>, shape: &mut Shape) -> Result<(), Unrepairable> {
        let mut consequences = Vec::new();
        for (keyword, when) in [("then", "if"), ("else", "unless")] {
            let Some(Value::Object(consequence)) = schema.get(keyword) else { continue };
            let consequence = self.shape(consequence)?;
            let condition = schema.get("if").and_then(Value::as_object).and_then(condition);
            match condition {
                Some(condition) if !consequence.required.is_empty() => {
                    self.say(format!("Also give {} {when} {condition}.", quoted(&consequence.required)));
                }
                _ => self.say(DEPENDENT.to_owned()),
            }
            consequences.push(consequence);
        }
        for (name, variants) in variants(consequences) {
            shape.conditional.entry(name).or_insert_with(|| either(variants));
        }
        if let Some(Value::Object(excluded)) = schema.get("not") {
            let names: Vec<String> = texts(excluded.get("required")).map(str::to_owned).collect();
            match &names[..] {
                [] => self.say(DEPENDENT.to_owned()),
                [name] => self.say(format!("Do not give `{name}`.")),
                names => self.say(format!("Do not give {} together.", quoted(names))),
            }
        }
        if schema.contains_key("const") || schema.contains_key("enum") {
            self.say(DEPENDENT.to_owned());
        }
        Ok(())
    }

    fn say(&mut self, sentence: String) {
        /// More is not read; the tool says the rest when it refuses.
        const MOST: usize = 4;
        if self.sentences.len() < MOST && !self.sentences.contains(&sentence) {
            self.sentences.push(sentence);
        }
    }
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Map<String, Value>> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

fn texts(value: Option<&Value>) -> impl Iterator<Item = &str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Arguments are always an object, so an alternative of another type is never taken.
fn may_be_object(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        _ => schema.get("not").is_none_or(|excluded| *excluded != json!({})),
    }
}

/// The one schema that two demand together.
fn both(known: Value, other: Value) -> Value {
    match (known, other) {
        (known, other) if known == other => known,
        (Value::Object(mut known), Value::Object(other)) if can_join(&known, &other) => {
            known.extend(other);
            Value::Object(known)
        }
        (known, other) => json!({"allOf": [known, other]}),
    }
}

/// Whether keywords side by side mean the same as the two schemas together.
fn can_join(known: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let is_independent = |keyword: &String| {
        matches!(
            keyword.as_str(),
            "type"
                | "title"
                | "description"
                | "default"
                | "examples"
                | "enum"
                | "const"
                | "format"
                | "pattern"
                | "minimum"
                | "maximum"
                | "exclusiveMinimum"
                | "exclusiveMaximum"
                | "multipleOf"
                | "minLength"
                | "maxLength"
                | "minItems"
                | "maxItems"
                | "uniqueItems"
                | "minProperties"
                | "maxProperties"
        )
    };
    let is_compatible = |(keyword, value)| known.get(keyword).is_none_or(|here: &Value| here == value);
    known.is_empty()
        || other.iter().all(is_compatible) && other.keys().all(is_independent) && !known.contains_key("$ref")
}

/// The one schema that takes what any of the variants takes.
fn either(variants: Vec<Value>) -> Value {
    let mut distinct: Vec<Value> = Vec::new();
    for variant in variants {
        if !distinct.contains(&variant) {
            distinct.push(variant);
        }
    }
    match distinct.len() {
        1 => distinct.swap_remove(0),
        _ => one_enum(&distinct).unwrap_or_else(|| json!({"anyOf": distinct})),
    }
}

/// Variants that differ only in their constants, such as the tag of a union, as one list of values.
fn one_enum(variants: &[Value]) -> Option<Value> {
    let mut values: Vec<Value> = Vec::new();
    let mut rest: Option<Map<String, Value>> = None;
    for variant in variants {
        let mut variant = variant.as_object()?.clone();
        let constants = match (variant.shift_remove("const"), variant.shift_remove("enum")) {
            (Some(constant), None) => vec![constant],
            (None, Some(Value::Array(constants))) => constants,
            _ => return None,
        };
        variant.retain(|keyword, _| !matches!(keyword.as_str(), "title" | "description" | "default"));
        if *rest.get_or_insert_with(|| variant.clone()) != variant {
            return None;
        }
        for constant in constants {
            if !values.contains(&constant) {
                values.push(constant);
            }
        }
    }
    let mut merged = rest?;
    merged.insert("enum".to_owned(), Value::Array(values));
    Some(Value::Object(merged))
}

/// Takes over from alternatives what the argument's own schema leaves open: all of it, or its list of values.
fn narrow(known: &mut Value, alternatives: Value) {
    let Value::Object(members) = known else { return };
    if members.is_empty() {
        *known = alternatives;
        return;
    }
    let constrains = ["enum", "const", "$ref", "anyOf", "oneOf", "allOf"];
    if let Some(values) = alternatives.get("enum")
        && !constrains.iter().any(|keyword| members.contains_key(*keyword))
    {
        members.insert("enum".to_owned(), values.clone());
    }
}

/// What has to be given for one alternative, beyond what is always required.
fn describe(alternative: &Shape, always: &[String]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (name, schema) in &alternative.properties {
        if let Some(constant) = short_constant(schema) {
            parts.push(format!("`{name}` = {constant}"));
        }
    }
    let is_told = |name: &String| {
        alternative.properties.get(name).is_some_and(|schema| short_constant(schema).is_some())
    };
    let further = alternative.required.iter().filter(|name| !always.contains(name) && !is_told(name));
    parts.extend(further.map(|name| format!("`{name}`")));
    if parts.is_empty() {
        let names: Vec<String> = alternative.properties.keys().take(5).cloned().collect();
        return if names.is_empty() {
            "nothing more".to_owned()
        } else {
            format!("any of {}", quoted(&names))
        };
    }
    join(&parts, "and")
}

/// The condition of an `if`, when it is simple enough for words.
fn condition(schema: &Map<String, Value>) -> Option<String> {
    let mut parts = Vec::new();
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for (name, schema) in properties {
                    let words = match short_constant(schema) {
                        Some(constant) => format!("is {constant}"),
                        None => format!("is one of {}", short_json(schema.get("enum")?)?),
                    };
                    parts.push(format!("`{name}` {words}"));
                }
            }
            ("required", _) => {}
            ("type", value) if value == "object" => {}
            _ => return None,
        }
    }
    if parts.is_empty() {
        parts.extend(texts(schema.get("required")).map(|name| format!("`{name}` is given")));
    }
    (!parts.is_empty()).then(|| join(&parts, "and"))
}

fn short_constant(schema: &Value) -> Option<String> {
    match (schema.get("const"), schema.get("enum").and_then(Value::as_array).map(Vec::as_slice)) {
        (Some(constant), _) | (None, Some([constant])) => short_json(constant),
        _ => None,
    }
}

fn short_json(value: &Value) -> Option<String> {
    let text = value.to_string();
    (text.len() <= 60).then_some(text)
}

fn quoted(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    join(&names, "and")
}

fn join(parts: &[String], word: &str) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} {word} {last}", first.join(", ")),
    }
}

fn enumerate(alternatives: &[String]) -> String {
    /// Unions of dozens of members exist; their first few show the principle.
    const MOST: usize = 8;
    let shown = &alternatives[..alternatives.len().min(MOST)];
    let left_out = alternatives.len() - shown.len();
    match (shown, left_out) {
        ([first @ .., last], 0) => format!("{}; or {last}", first.join("; ")),
        _ => format!("{}; or one of {left_out} more combinations", shown.join("; ")),
    }
}

/// Makes every reference lead somewhere within `schema`: what was merged away is kept in its `$defs`.
fn anchor_references(schema: &mut Value, source: &Value) -> Result<(), Unrepairable> {
    let mut places: BTreeMap<String, String> = BTreeMap::new();
    let mut kept: Map<String, Value> = Map::new();
    let mut pending = references(schema);
    while let Some(reference) = pending.pop() {
        if places.contains_key(&reference) {
            continue;
        }
        let target = resolve(source, &reference)?;
        let fragment = local_fragment(source, &reference)?;
        let place = if leads_to_schema(schema, fragment) {
            format!("#{fragment}")
        } else {
            if kept.len() == MOST_COPIES {
                return Err(unrepairable("too many references into combinations"));
            }
            let mut target = target.clone();
            tidy_schema(&mut target);
            tidy(&mut target);
            pending.extend(references(&mut target));
            let is_taken = |name: &String| schema["$defs"].get(name).is_some() || kept.contains_key(name);
            let name =
                (1..).map(|number| format!("part_{number}")).find(|name| !is_taken(name)).unwrap_or_default();
            let place = format!("#/$defs/{name}");
            kept.insert(name, target);
            place
        };
        places.insert(reference, place);
    }
    if !kept.is_empty() {
        let Value::Object(members) = &mut *schema else { return Ok(()) };
        let definitions = members.entry("$defs").or_insert_with(|| json!({}));
        if let Value::Object(definitions) = definitions {
            definitions.extend(kept);
        }
    }
    for_each_reference(schema, &mut |reference| {
        if let Some(place) = places.get(reference) {
            reference.clone_from(place);
        }
    });
    Ok(())
}

fn references(schema: &mut Value) -> Vec<String> {
    let mut found = Vec::new();
    for_each_reference(schema, &mut |reference| found.push(reference.clone()));
    found
}

fn for_each_reference(schema: &mut Value, act: &mut impl FnMut(&mut String)) {
    for_each_schema(schema, &mut |members| {
        for (keyword, value) in members.iter_mut() {
            if holds(keyword) == Holds::Reference
                && let Value::String(reference) = value
            {
                act(reference);
            }
        }
    });
}

/// What a reference stands for: a pointer, percent-encoded or not, or the name of an anchor.
fn resolve<'a>(source: &'a Value, reference: &str) -> Result<&'a Value, Unrepairable> {
    let fragment = local_fragment(source, reference)?;
    let target = if fragment.is_empty() || fragment.starts_with('/') {
        source.pointer(fragment).or_else(|| source.pointer(&percent_decoded(fragment)))
    } else {
        find_anchor(source, fragment)
    };
    target.ok_or_else(|| unrepairable(format!("reference `{reference}` leads nowhere")))
}

fn local_fragment<'r>(source: &Value, reference: &'r str) -> Result<&'r str, Unrepairable> {
    let own_address =
        ["$id", "id"].iter().find_map(|keyword| source.get(keyword)?.as_str()).unwrap_or_default();
    let own_address = own_address.trim_end_matches('#');
    reference
        .strip_prefix(own_address)
        .unwrap_or(reference)
        .strip_prefix('#')
        .ok_or_else(|| unrepairable(format!("reference `{reference}` leads outside the schema")))
}

fn find_anchor<'a>(here: &'a Value, name: &str) -> Option<&'a Value> {
    match here {
        Value::Object(members) => {
            let is_it = |keyword: &str| members.get(keyword).is_some_and(|value| value == name);
            let has_old_id = || {
                ["$id", "id"].iter().any(|key| {
                    members.get(*key).and_then(Value::as_str).and_then(|id| id.strip_prefix('#'))
                        == Some(name)
                })
            };
            if is_it("$anchor") || is_it("$dynamicAnchor") || has_old_id() {
                return Some(here);
            }
            members.values().find_map(|value| find_anchor(value, name))
        }
        Value::Array(list) => list.iter().find_map(|value| find_anchor(value, name)),
        _ => None,
    }
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let decoded = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(original: Value, exposed: Value, sentence: &str) -> KeyRenames {
        let repaired = repair(&original).unwrap();
        assert_eq!(repaired.schema.to_string(), exposed.to_string(), "{original}");
        assert_eq!(repaired.sentence.unwrap_or_default(), sentence, "{original}");
        assert!(is_safe_value(&exposed), "{exposed}");
        assert_eq!(repair(&exposed).unwrap().schema, exposed, "repairing twice changes nothing");
        repaired.renames
    }

    fn check_refused(original: Value, reason: &str) {
        assert_eq!(repair(&original).unwrap_err().reason, reason, "{original}");
    }

    #[test]
    fn sch_05_a_missing_schema_becomes_an_object() {
        for original in [json!(null), json!(true), json!("x"), json!([]), json!({})] {
            check(original, json!({"type": "object"}), "");
        }
        check(
            json!({"properties": {"a": {}}, "required": null}),
            json!({"type": "object", "properties": {"a": {}}}),
            "",
        );
        check(json!({"type": ["object", "null"], "properties": null}), json!({"type": "object"}), "");
    }

    #[test]
    fn booleans_become_objects() {
        check(
            json!({"type": "object", "properties": {
                "a": true, "b": false, "c": {"type": "array"}, "d": {"items": [true, {"not": false}]},
                "e": "string", "f": {"anyOf": [], "type": null}, "g": {"additionalProperties": false}, "h": {"enum": [true]},
            }, "patternProperties": {"^x": true}}),
            json!({"type": "object", "properties": {
                "a": {}, "b": {"not": {}}, "c": {"type": "array", "items": {}}, "d": {"items": [{}, {"not": {"not": {}}}]},
                "e": {}, "f": {}, "g": {"additionalProperties": false}, "h": {"enum": [true]},
            }, "patternProperties": {"^x": {}}}),
            "",
        );
    }

    #[test]
    fn sch_01_alternatives_at_the_root() {
        check(
            json!({"anyOf": [
                {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
                {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
                {"type": "null"},
            ]}),
            json!({"type": "object", "properties": {"url": {"type": "string"}, "id": {"type": "integer"}}}),
            "Give at least one of these: `url`; or `id`.",
        );
        check(
            json!({"type": "object", "properties": {"kind": {"type": "string"}}, "oneOf": [
                {"properties": {"kind": {"const": "file"}, "path": {}, "n": {"type": "integer"}}, "required": ["kind", "path"]},
                {"properties": {"kind": {"const": "url"}, "href": {}, "n": {"type": "string"}}, "required": ["kind", "href"]},
            ], "additionalProperties": false}),
            json!({"type": "object", "properties": {
                "kind": {"type": "string", "enum": ["file", "url"]},
                "path": {}, "n": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "href": {},
            }, "additionalProperties": false, "required": ["kind"]}),
            "Give exactly one of these: `kind` = \"file\" and `path`; or `kind` = \"url\" and `href`.",
        );
    }

    #[test]
    fn sch_02_conditions_next_to_alternatives() {
        check(
            json!({
                "type": "object",
                "properties": {"mode": {"enum": ["a", "b"]}, "size": {"type": "integer"}},
                "required": ["mode"],
                "allOf": [{
                    "if": {"properties": {"mode": {"const": "a"}}},
                    "then": {"properties": {"size": {"maximum": 10}}},
                    "else": {"properties": {"size": {"maximum": 99}, "more": {}}, "required": ["more"]},
                }],
                "oneOf": [{"required": ["size"]}, {"required": ["mode"]}],
            }),
            json!({
                "type": "object",
                "properties": {
                    "mode": {"enum": ["a", "b"]},
                    "size": {"type": "integer"},
                    "more": {},
                },
                "required": ["mode"],
            }),
            "Some arguments depend on each other; a call that does not fit is refused with the reason. \
             Also give `more` unless `mode` is \"a\". \
             Give exactly one of these: `size`; or nothing more.",
        );
        check(
            json!({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}}),
            json!({"type": "object", "properties": {"a": {}, "b": {}}}),
            "Do not give `a` and `b` together.",
        );
    }

    #[test]
    fn all_of_is_a_union() {
        check(
            json!({"allOf": [
                {"properties": {"a": {"type": "string"}, "b": {"properties": {"x": {}}}}, "required": ["a"]},
                {"properties": {"a": {"minLength": 1}, "b": {"properties": {"y": {}}}}, "required": ["b", "a"]},
            ]}),
            json!({
                "type": "object",
                "properties": {
                    "a": {"type": "string", "minLength": 1},
                    "b": {"allOf": [{"properties": {"x": {}}}, {"properties": {"y": {}}}]},
                },
                "required": ["a", "b"],
            }),
            "",
        );
    }

    #[test]
    fn references_stay_resolvable() {
        // A root that is a reference, as code generators write it.
        check(
            json!({"$ref": "#/definitions/Args", "definitions": {
                "Args": {"type": "object", "properties": {"next": {"$ref": "#/definitions/Args"}}, "additionalProperties": false},
            }}),
            json!({"type": "object", "definitions": {
                "Args": {"type": "object", "properties": {"next": {"$ref": "#/definitions/Args"}}, "additionalProperties": false},
            }, "properties": {"next": {"$ref": "#/definitions/Args"}}, "additionalProperties": false}),
            "",
        );
        // A reference into what is merged away.
        check(
            json!({"allOf": [{
                "properties": {"a": {"$ref": "#/allOf/0/$defs/n"}, "b": {"$ref": "#/properties/c"}, "d": {"$ref": "#"}},
                "$defs": {"n": {"items": {"$ref": "#/allOf/0/$defs/n"}}},
            }], "properties": {"c": {}}}),
            json!({"type": "object", "properties": {
                "c": {}, "a": {"$ref": "#/$defs/part_1"}, "b": {"$ref": "#/properties/c"}, "d": {"$ref": "#"},
            }, "$defs": {"part_1": {"items": {"$ref": "#/$defs/part_1"}}}}),
            "",
        );
        // Anchors, encoded pointers, unknown places and the schema's own address.
        check(
            json!({"$id": "https://example.org/s", "type": "object", "properties": {
                "a": {"$ref": "#here"}, "b": {"$ref": "#/definitions/T%3CU%3E"},
                "c": {"$ref": "#/components/x"}, "d": {"$ref": "https://example.org/s#/definitions/y"},
            }, "definitions": {"y": {"$anchor": "here"}, "T<U>": {"type": "null"}}, "components": {"x": true}}),
            json!({"$id": "https://example.org/s", "type": "object", "properties": {
                "a": {"$ref": "#/$defs/part_3"}, "b": {"$ref": "#/$defs/part_2"},
                "c": {"$ref": "#/$defs/part_1"}, "d": {"$ref": "#/definitions/y"},
            }, "definitions": {"y": {"$anchor": "here"}, "T<U>": {"type": "null"}}, "components": {"x": true},
            "$defs": {"part_1": {}, "part_2": {"type": "null"}, "part_3": {"$anchor": "here"}}}),
            "",
        );
    }

    #[test]
    fn sch_03_and_12_what_is_safe_stays() {
        for original in [
            json!({"type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}, "required": ["root"], "$defs": {
                "node": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
            }}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                "definitions": {"P": {"type": "integer"}},
                "properties": {"pair": {"type": "array", "items": [{"$ref": "#/definitions/P"}], "additionalItems": false}},
                "dependencies": {"pair": ["pair"]},
            }),
        ] {
            check(original.clone(), original, "");
        }
    }

    #[test]
    fn what_leads_nowhere_is_refused() {
        let schema = |reference: &str| json!({"type": "object", "properties": {"a": {"$ref": reference}}});
        check_refused(
            schema("https://example.org/x"),
            "reference `https://example.org/x` leads outside the schema",
        );
        check_refused(schema("other.json#/a"), "reference `other.json#/a` leads outside the schema");
        check_refused(schema("#/$defs/gone"), "reference `#/$defs/gone` leads nowhere");
        check_refused(schema("#gone"), "reference `#gone` leads nowhere");
        check_refused(json!({"allOf": [{"$ref": "x.json"}]}), "reference `x.json` leads outside the schema");
        check_refused(
            json!({"type": "object", "$defs": {"a": {"properties": {"x y": {}}}}}),
            "keys of arguments that clients refuse, where they cannot be renamed",
        );
    }

    #[test]
    fn what_grows_without_end_is_refused() {
        let mut definitions = Map::new();
        for level in 0..40 {
            let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
            definitions.insert(level.to_string(), json!({"anyOf": [next, {"allOf": [next]}]}));
        }
        definitions.insert("40".to_owned(), json!({}));
        check_refused(json!({"$ref": "#/$defs/0", "$defs": definitions}), "too many combinations");
    }

    #[test]
    fn circles_end() {
        check(json!({"$ref": "#"}), json!({"type": "object"}), "");
        check(
            json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}], "properties": {"x": {}}}}}),
            json!({
                "type": "object",
                "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}], "properties": {"x": {}}}},
                "properties": {"x": {}},
            }),
            "",
        );
    }

    #[test]
    fn odd_keys_in_merged_parts_are_renamed() {
        let renames = check(
            json!({"oneOf": [{"properties": {"a b": {}}, "required": ["a b"]}, {"properties": {"c": {}}}]}),
            json!({"type": "object", "properties": {"a_b": {}, "c": {}}}),
            "Give exactly one of these: `a_b`; or any of `c`.",
        );
        assert_eq!(renames.restore(json!({"a_b": 1})), json!({"a b": 1}));
    }
}
