//! The JSON Schemas, which editors use, and the parser agree on every field.

use leno_config::load_text;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Plain and quoted values, as YAML text and as YAML 1.2 reads it.
fn candidates() -> Vec<(&'static str, Value)> {
    vec![
        ("5", json!(5)),
        ("\"5\"", json!("5")),
        ("0", json!(0)),
        ("1.5", json!(1.5)),
        (".5", json!(0.5)),
        ("true", json!(true)),
        ("\"true\"", json!("true")),
        ("no", json!("no")),
        ("off", json!("off")),
        ("abc", json!("abc")),
        ("5s", json!("5s")),
        ("1m30s", json!("1m30s")),
        ("1s1m", json!("1s1m")),
        ("8Mi", json!("8Mi")),
        ("8MB", json!("8MB")),
        ("\"127.0.0.1:80\"", json!("127.0.0.1:80")),
        ("null", Value::Null),
        ("[]", json!([])),
        ("{}", json!({})),
        ("{bogus: 1}", json!({"bogus": 1})),
        ("[5]", json!([5])),
        ("[abc]", json!(["abc"])),
        ("[true]", json!([true])),
        ("[null]", json!([null])),
        ("{a: 5}", json!({"a": 5})),
        ("{a: true}", json!({"a": true})),
        ("{a: [b]}", json!({"a": ["b"]})),
    ]
}

/// The schema that a `$ref` leads to.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => &root["$defs"][reference.strip_prefix("#/$defs/").unwrap()],
        None => schema,
    }
}

/// Whether a schema accepts a value; ranges and lengths aside, which the compiler checks.
fn accepts(root: &Value, schema: &Value, value: &Value) -> bool {
    let schema = resolved(root, schema);
    let Some(keywords) = schema.as_object() else { return schema != &json!(false) };
    keywords.iter().all(|(keyword, content)| match keyword.as_str() {
        "$schema" | "$defs" | "title" | "description" | "default" | "format" | "minimum" | "maximum" | "minLength"
        | "maxLength" | "maxItems" => true,
        "$ref" => accepts(root, schema, value),
        "anyOf" => content.as_array().unwrap().iter().any(|one| accepts(root, one, value)),
        "oneOf" => content.as_array().unwrap().iter().filter(|one| accepts(root, one, value)).count() == 1,
        "const" => content == value,
        "enum" => content.as_array().unwrap().contains(value),
        "type" => {
            let is = |kind: &Value| match kind.as_str().unwrap() {
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64(),
                "number" => value.is_number(),
                "null" => value.is_null(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => panic!("type {other}"),
            };
            content.as_array().map_or_else(|| is(content), |kinds| kinds.iter().any(is))
        }
        "pattern" => value.as_str().is_none_or(|text| {
            let regex = PikeVM::new(content.as_str().unwrap()).unwrap();
            regex.is_match(&mut regex.create_cache(), text)
        }),
        "minItems" => value.as_array().is_none_or(|list| list.len() as u64 >= content.as_u64().unwrap()),
        "items" => value.as_array().is_none_or(|list| list.iter().all(|one| accepts(root, content, one))),
        "properties" => value.as_object().is_none_or(|fields| {
            fields.iter().all(|(name, value)| content.get(name).is_none_or(|schema| accepts(root, schema, value)))
        }),
        "required" => value.as_object().is_none_or(|fields| {
            content.as_array().unwrap().iter().all(|name| fields.contains_key(name.as_str().unwrap()))
        }),
        "additionalProperties" => value.as_object().is_none_or(|fields| {
            let known = &schema["properties"];
            fields.iter().all(|(name, value)| known.get(name).is_some() || accepts(root, content, value))
        }),
        "propertyNames" => true,
        other => panic!("keyword {other}"),
    })
}

/// A step from a document to one of its values.
#[derive(Clone)]
enum Step {
    Field(String),
    Element,
}

struct Checker<'a> {
    kind: &'a str,
    root: &'a Value,
    found: BTreeSet<String>,
    fields: usize,
}

impl Checker<'_> {
    fn walk(&mut self, path: &[Step], schema: &Value, inside: &[&str]) {
        if let Some(reference) = schema["$ref"].as_str() {
            if inside.contains(&reference) {
                return;
            }
            let inside: Vec<&str> = inside.iter().copied().chain([reference]).collect();
            return self.walk(path, resolved(self.root, schema), &inside);
        }
        for choice in ["anyOf", "oneOf"].iter().flat_map(|keyword| schema[keyword].as_array()).flatten() {
            self.walk(path, choice, inside);
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = [path, &[Step::Field(name.clone())]].concat();
            self.field(&path, field);
            self.walk(&path, field, inside);
        }
        for (keyword, step) in [("items", Step::Element), ("additionalProperties", Step::Field("a".to_owned()))] {
            if schema[keyword].is_object() {
                let path = [path, &[step]].concat();
                self.field(&path, &schema[keyword]);
                self.walk(&path, &schema[keyword], inside);
            }
        }
    }

    /// Compares the verdicts on each candidate.
    fn field(&mut self, path: &[Step], schema: &Value) {
        self.fields += 1;
        let (mut before, mut after, mut name) = (String::new(), String::new(), String::new());
        for (index, step) in path.iter().enumerate() {
            match step {
                Step::Field(field) => {
                    if index > 0 {
                        before.push('{');
                        after.insert(0, '}');
                        name.push('.');
                    }
                    before += &format!("{field}: ");
                    name += field;
                }
                Step::Element => {
                    before.push('[');
                    after.insert(0, ']');
                    name += "[0]";
                }
            }
        }
        for (text, value) in candidates() {
            let header = if name == "kind" { "" } else { &format!("kind: {}, ", self.kind) };
            if name == "kind" {
                continue;
            }
            // Documents with an unknown field are not compiled: only the parser decides.
            let document = format!("{{{header}bogus: 1, {before}{text}{after}}}");
            let problems = load_text(Path::new("a.yaml"), &document).unwrap_err();
            let here = |field: &str| {
                field.strip_prefix(&name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            };
            let problem = problems.iter().find(|problem| here(&problem.field));
            if problem.is_none() != accepts(self.root, schema, &value) {
                let verdict = problem.map_or("accepts".to_owned(), |problem| format!("refuses ({})", problem.message));
                self.found.insert(format!("{}: {name}: {text}: the parser {verdict}, the schema does not", self.kind));
            }
        }
    }
}

#[test]
fn the_schemas_and_the_parser_agree_on_every_field() {
    let (mut found, mut fields) = (BTreeSet::new(), 0);
    for (kind, root) in leno_config::reference::schemas() {
        let mut checker = Checker { kind, root: &root, found: BTreeSet::new(), fields: 0 };
        checker.walk(&[], &root, &[]);
        fields += checker.fields;
        found.extend(checker.found);
    }
    assert!(fields > 300, "{fields} fields");
    assert!(found.is_empty(), "{}\n{}", found.len(), found.into_iter().collect::<Vec<_>>().join("\n"));
}
