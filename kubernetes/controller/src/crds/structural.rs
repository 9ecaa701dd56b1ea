//! JSON Schemas of documents -> structural schemas of Kubernetes.
//!
//! A structural schema has one type for each value and no references. Values that may have several
//! types are free for the API server, but for the constraints of each type; Leno checks the rest.
//! Defaults are left out, so that objects stay as they were written.

use super::rules;
use serde_json::{Map, Value, json};

/// Deeper than any document.
const MAX_DEPTH: usize = 32;

/// The schema of an object whose document has this schema.
pub(crate) fn object(document: &Value) -> Value {
    let converter = Converter { definitions: &document["$defs"] };
    let spec = converter.value(&document["properties"]["spec"], 0);
    let is_required = document["required"].as_array().is_some_and(|names| names.iter().any(|name| name == "spec"));
    let mut schema = json!({
        "type": "object",
        "description": text(document),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
                },
            },
            "spec": spec,
            "status": status(),
        },
    });
    if is_required {
        schema["required"] = json!(["spec"]);
    }
    schema
}

/// The schema of the status, which the controller writes.
fn status() -> Value {
    let line = |description: &str| json!({"type": "string", "description": description});
    let moment = json!({"type": "string", "format": "date-time"});
    json!({
        "type": "object",
        "description": "What the controller has made of the object.",
        "properties": {
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "description": "The generation that the conditions are about.",
            },
            "conditions": {
                "type": "array",
                "description": "`Accepted`: the object is valid together with all others. `Programmed`: all \
                    nodes that it concerns have it in force.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                    "properties": {
                        "type": line("Name of the condition."),
                        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                        "reason": line("Why, as one word."),
                        "message": line("Why, in sentences."),
                        "observedGeneration": {"type": "integer", "format": "int64"},
                        "lastTransitionTime": moment,
                    },
                },
            },
            "inForce": {
                "type": "object",
                "description": "The version that stays in force while the present one is refused.",
                "required": ["generation", "spec"],
                "properties": {
                    "generation": {"type": "integer", "format": "int64"},
                    "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                },
            },
        },
    })
}

struct Converter<'a> {
    definitions: &'a Value,
}

impl Converter<'_> {
    fn value(&self, node: &Value, depth: usize) -> Value {
        if depth > MAX_DEPTH {
            return json!({"x-kubernetes-preserve-unknown-fields": true});
        }
        let own = text(node);
        let (definition, node) = self.definition(node);
        let mut schema = match (choices(node), kinds(node)) {
            (Some(choices), _) => self.choice(choices, depth),
            (None, kinds) => self.of_type(node, &kinds, depth),
        };
        let described = if own.is_empty() { text(node) } else { own };
        if !described.is_empty() {
            let values = choices(node).map(meanings).unwrap_or_default();
            schema["description"] = Value::from(described + &values);
        }
        let rules = definition.map(rules::of).unwrap_or_default();
        if !rules.is_empty() {
            schema["x-kubernetes-validations"] = Value::from(rules);
        }
        schema
    }

    /// The definition that a node refers to, with its name, or else the node. The alternative `null`
    /// of a field that may be left out is no value.
    fn definition<'s>(&'s self, node: &'s Value) -> (Option<&'s str>, &'s Value) {
        let name = node["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/"));
        if let Some(name) = name {
            return (Some(name), &self.definitions[name]);
        }
        match node["anyOf"].as_array().map(|choices| &choices[..]) {
            Some([one, null]) if null["type"] == "null" => self.definition(one),
            _ => (None, node),
        }
    }

    fn of_type(&self, node: &Value, kinds: &[&str], depth: usize) -> Value {
        let mut schema = Map::new();
        for keyword in ["pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "enum"] {
            if let Some(limit) = node.get(keyword) {
                schema.insert(keyword.to_owned(), limit.clone());
            }
        }
        match kinds {
            // A text may be written as a number in YAML files, where its field decides about its type.
            kinds if kinds.contains(&"string") => drop(schema.insert("type".to_owned(), "string".into())),
            ["integer"] => {
                let fits = node["maximum"].as_i64().is_some_and(|maximum| i32::try_from(maximum).is_ok());
                schema.insert("type".to_owned(), "integer".into());
                schema.insert("format".to_owned(), if fits { "int32" } else { "int64" }.into());
            }
            ["number"] => {
                schema.insert("type".to_owned(), "number".into());
                schema.insert("format".to_owned(), "double".into());
            }
            ["boolean"] => drop(schema.insert("type".to_owned(), "boolean".into())),
            ["array"] => {
                schema.insert("type".to_owned(), "array".into());
                schema.insert("items".to_owned(), self.value(&node["items"], depth + 1));
            }
            ["object"] => {
                schema.insert("type".to_owned(), "object".into());
                self.fields(node, &mut schema, depth);
            }
            _ => drop(schema.insert("x-kubernetes-preserve-unknown-fields".to_owned(), true.into())),
        }
        Value::Object(schema)
    }

    fn fields(&self, node: &Value, schema: &mut Map<String, Value>, depth: usize) {
        if let Some(fields) = node["properties"].as_object() {
            let fields = fields.iter().map(|(name, field)| (name.clone(), self.value(field, depth + 1)));
            schema.insert("properties".to_owned(), Value::Object(fields.collect()));
        }
        if node["additionalProperties"].is_object() {
            let values = self.value(&node["additionalProperties"], depth + 1);
            schema.insert("additionalProperties".to_owned(), values);
        }
        if let Some(names) = node.get("required") {
            schema.insert("required".to_owned(), names.clone());
        }
    }

    fn choice(&self, choices: &[Value], depth: usize) -> Value {
        let constants: Vec<&Value> = choices.iter().filter_map(|choice| choice.get("const")).collect();
        if constants.len() == choices.len() {
            return json!({"type": "string", "enum": constants});
        }
        // The number 0 of a duration is its text too.
        let mut rest = choices.iter().filter(|choice| choice.get("const").is_none());
        if let (Some(one), None, Some([0])) = (rest.next(), rest.next(), number_constants(&constants).as_deref()) {
            return self.value(one, depth + 1);
        }
        let variants: Vec<Value> = choices
            .iter()
            .filter(|choice| choice.get("const").is_none())
            .map(|choice| self.value(choice, depth + 1))
            .collect();
        let is_number = |variant: &Value| variant["type"] == "integer" || variant["type"] == "string";
        let mut merged = Map::new();
        let is_plain = constants.is_empty() && variants.iter().all(is_number);
        let free = if is_plain { "x-kubernetes-int-or-string" } else { "x-kubernetes-preserve-unknown-fields" };
        merged.insert(free.to_owned(), true.into());
        for variant in variants {
            let Value::Object(variant) = variant else { continue };
            // Each constraint is one of its type, and says nothing about values of other types.
            for (keyword, value) in variant {
                match (&*keyword, merged.get_mut("properties").and_then(Value::as_object_mut)) {
                    ("type" | "format" | "description", _) => {}
                    ("properties", Some(fields)) => fields.extend(value.as_object().cloned().unwrap_or_default()),
                    // One of several kinds of objects.
                    ("required", _)
                        if !is_plain && choices.iter().filter(|one| one["type"] == "object").count() > 1 => {}
                    ("enum", _) => merged.extend(bounds(&value)),
                    _ => drop(merged.insert(keyword, value)),
                }
            }
        }
        Value::Object(merged)
    }
}

/// The numbers among constants; `None`: some are none.
fn number_constants(constants: &[&Value]) -> Option<Vec<i64>> {
    constants.iter().map(|constant| constant.as_i64()).collect()
}

/// The smallest and the largest of these numbers. A list of values would exclude texts.
fn bounds(values: &Value) -> Map<String, Value> {
    let numbers: Vec<i64> = values.as_array().into_iter().flatten().filter_map(Value::as_i64).collect();
    let (least, most) = (numbers.iter().min().copied(), numbers.iter().max().copied());
    [("minimum", least), ("maximum", most)]
        .into_iter()
        .filter_map(|(keyword, bound)| Some((keyword.to_owned(), bound?.into())))
        .collect()
}

fn choices(node: &Value) -> Option<&[Value]> {
    let choices = node["oneOf"].as_array().or_else(|| node["anyOf"].as_array())?;
    Some(choices)
}

/// The types of a node, without `null`.
fn kinds(node: &Value) -> Vec<&str> {
    let kinds = match &node["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect::<Vec<_>>(),
    };
    kinds.into_iter().filter(|kind| *kind != "null").collect()
}

/// Constants with their descriptions.
fn meanings(choices: &[Value]) -> String {
    let one = |choice: &Value| match (&choice["const"], text(choice)) {
        (Value::String(value), meaning) if !meaning.is_empty() => Some(format!(" `{value}`: {meaning}")),
        _ => None,
    };
    choices.iter().filter_map(one).collect()
}

/// A description on one line.
fn text(node: &Value) -> String {
    node["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}
