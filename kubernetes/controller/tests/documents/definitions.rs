//! CustomResourceDefinitions.

use leno_config::{Document, Node, Problem, foreign_documents};
use leno_controller::crds::{KINDS, ObjectKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `LENO_BLESS=1 cargo test -p leno-controller crds` writes the files anew.
#[test]
fn committed_definitions_are_up_to_date() {
    let folder = repository().join("kubernetes/chart/definitions");
    let mut stale = Vec::new();
    for kind in KINDS {
        let (file, text) = (folder.join(format!("{}.yaml", kind.plural)), kind.definition_yaml());
        if std::env::var_os("LENO_BLESS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&file, &text).unwrap();
        }
        if fs::read_to_string(&file).ok().as_deref() != Some(&*text) {
            stale.push(kind.plural);
        }
        // `kubectl apply` keeps the whole object in an annotation of this size.
        assert!(text.len() < 256 << 10, "{}: {} bytes", kind.plural, text.len());
    }
    assert!(
        stale.is_empty(),
        "kubernetes/chart/definitions: {stale:?} are stale; run: LENO_BLESS=1 cargo test -p leno-controller crds"
    );
}

/// YAML as an API server reads it.
pub(crate) fn value(node: &Node) -> Value {
    match &node.value {
        leno_config::Value::List(nodes) => nodes.iter().map(value).collect(),
        leno_config::Value::Map(entries) => {
            Value::Object(entries.iter().map(|(key, node)| (key.text.clone(), value(node))).collect())
        }
        leno_config::Value::Scalar { text, plain: true } => {
            serde_json::from_str(text).ok().filter(|value: &Value| !value.is_object()).unwrap_or_else(|| json!(text))
        }
        leno_config::Value::Scalar { text, .. } => json!(text),
    }
}

#[test]
fn a_definition_is_the_same_as_yaml() {
    for kind in KINDS {
        let nodes = foreign_documents(Path::new("crd"), &kind.definition_yaml()).unwrap();
        assert_eq!(value(&nodes[0]), kind.definition(), "{}", kind.name);
    }
}

/// The rules of a structural schema, as apiextensions-apiserver checks them.
fn assert_structural(schema: &Value, path: &str) {
    let free = ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"];
    assert!(schema["type"].is_string() || free.iter().any(|name| schema[*name] == true), "{path} has no type");
    for forbidden in ["$ref", "oneOf", "anyOf", "allOf", "not", "const", "default"] {
        assert!(schema.get(forbidden).is_none(), "{path} has `{forbidden}`");
    }
    assert!(schema["type"] != "array" || schema["items"].is_object(), "{path} has no items");
    assert!(schema.get("properties").is_none() || schema.get("additionalProperties").is_none(), "{path} has both");
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        assert_structural(field, &format!("{path}.{name}"));
    }
    for name in ["items", "additionalProperties"] {
        if schema.get(name).is_some() {
            assert_structural(&schema[name], &format!("{path}[]"));
        }
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        assert!(schema["properties"].get(name).is_some(), "{path} requires `{name}`, which it does not have");
    }
}

#[test]
fn schemas_are_structural() {
    for kind in KINDS {
        let schema = kind.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
        assert_structural(&schema, kind.name);
        assert!(schema["properties"]["spec"]["properties"].as_object().is_some_and(|fields| fields.len() > 4));
    }
}

/// Objections of an API server to a value, without patterns and rules.
fn objections(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let is = |kind: &str| match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    if schema["x-kubernetes-int-or-string"] == true && !value.is_string() && !value.is_i64() {
        found.push(format!("{path} is neither a number nor a text"));
    }
    if let Some(kind) = schema["type"].as_str().filter(|kind| !is(kind)) {
        return found.push(format!("{path} is no {kind}: {value}"));
    }
    if let Some(number) = value.as_f64() {
        let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
        if least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most) {
            found.push(format!("{path} is out of range: {number}"));
        }
    }
    if let Some(text) = value.as_str() {
        let is_one = schema["enum"].as_array().is_none_or(|values| values.contains(value));
        let is_long = schema["minLength"].as_u64().is_none_or(|length| text.len() as u64 >= length);
        if !is_one || !is_long {
            found.push(format!("{path} cannot be `{text}`"));
        }
    }
    for (index, element) in value.as_array().into_iter().flatten().enumerate() {
        if schema["items"].is_object() {
            objections(&schema["items"], element, &format!("{path}[{index}]"), found);
        }
    }
    for (name, field) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (known @ Value::Object(_), _) | (_, known @ Value::Object(_)) => objections(known, field, &path, found),
            _ if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            _ if path.starts_with(".metadata.") => {}
            _ => found.push(format!("{path} is no field")),
        }
    }
    if let Some(fields) = value.as_object() {
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        found.extend(
            required.filter(|name| !fields.contains_key(*name)).map(|name| format!("{path}.{name} is missing")),
        );
    }
}

/// All files of a folder with one of these endings.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            files(&entry, endings, found);
        } else if endings.iter().any(|ending| entry.to_string_lossy().ends_with(ending)) {
            found.push(entry);
        }
    }
}

/// All valid documents of the repository, each with the name of its file.
pub(crate) fn examples() -> Vec<(PathBuf, Value)> {
    let mut paths = Vec::new();
    for folder in ["examples", "conformance/mesh", "conformance/nodes", "crates/config/tests/documents", "ui/test"] {
        files(&repository().join(folder), &[".yaml"], &mut paths);
    }
    let mut texts: Vec<(PathBuf, String)> =
        paths.iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
    let mut pages = vec![repository().join("README.md")];
    files(&repository().join("docs"), &[".md"], &mut pages);
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next().map(str::to_owned));
        texts.extend(blocks.map(|block| (page.clone(), block)));
    }
    let mut examples = Vec::new();
    for (path, text) in texts {
        let nodes = foreign_documents(&path, &text).unwrap_or_default();
        examples.extend(nodes.iter().map(|node| (path.clone(), value(node))));
    }
    examples.retain(|(_, example)| {
        let kind = example["kind"].as_str().and_then(ObjectKind::named);
        kind.is_some() && example["metadata"].is_object() && example["apiVersion"] == "leno.dev/v1alpha1"
    });
    examples
}

#[test]
fn documents_of_the_repository_fit_their_schemas() {
    let schemas: BTreeMap<&str, Value> = KINDS
        .iter()
        .map(|kind| (kind.name, kind.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()))
        .collect();
    let (examples, mut found) = (examples(), Vec::new());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, example) in &examples {
        let kind = example["kind"].as_str().unwrap();
        *counts.entry(kind).or_default() += 1;
        let mut own = Vec::new();
        objections(&schemas[kind], example, "", &mut own);
        let name = &example["metadata"]["name"];
        found.extend(own.into_iter().map(|objection| format!("{}: {kind} {name}: {objection}", path.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(KINDS.iter().all(|kind| counts.get(kind.name).is_some_and(|count| *count > 0)), "{counts:?}");
}

/// What Leno says to a document of one kind with a specification.
fn problems(kind: &str, spec: Value) -> Vec<Problem> {
    let text = json!({"apiVersion": "leno.dev/v1alpha1", "kind": kind, "metadata": {"name": "one"}, "spec": spec});
    let documents = match Document::read(Path::new("one"), &text.to_string()) {
        Ok(documents) => documents,
        Err(problems) => return problems,
    };
    let mut set = leno_config::DocumentSet::of_documents(&documents, &leno_config::Effort::unbounded());
    set.documents.incomplete = true;
    set.compile().err().unwrap_or_default()
}

/// Leno refuses what breaks a rule of the API server, so that rules say nothing new.
#[test]
fn leno_refuses_what_rules_refuse() {
    let (hash, until) = ("0".repeat(64), "2099-01-01T00:00:00Z");
    let extension = |fields: Value| {
        let mut one = json!({"name": "x"});
        one.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        ("Policy", json!({"selector": {}, "extensions": [one]}))
    };
    let fault = |fields: Value| {
        let mut one = json!({"name": "x", "routes": ["r"], "until": until});
        one.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        ("Policy", json!({"faults": [one]}))
    };
    let keys = |jwks: Value| {
        (
            "Policy",
            json!({"selector": {}, "authentication": {"issuers": [{"issuer": "https://a.example", "jwks": jwks}]}}),
        )
    };
    let url = "https://a.example/x";
    let cases = [
        ("External", json!({"ports": [{"port": 443, "protocol": "https"}]})),
        ("External", json!({"hosts": ["a.example"], "ports": []})),
        extension(json!({"path": "/a.wasm", "url": url, "sha256": hash})),
        extension(json!({"url": url})),
        extension(json!({"url": url, "sha256": hash, "ca": "x", "caFile": "/x"})),
        fault(json!({})),
        fault(json!({"abort": {}})),
        keys(json!({"url": url, "file": "/x"})),
        keys(json!({"url": url, "ca": "x", "caFile": "/x"})),
        ("Policy", json!({"functions": ["a"], "selectorExpressions": [{"key": "a", "operator": "Exists"}]})),
        ("Policy", json!({"functions": ["a"], "namespaces": ["b"]})),
        ("Policy", json!({"accessLog": {}})),
        ("Mesh", json!({"gateway": {"trustedProxies": {"addresses": ["10.0.0.1"], "hops": 1}}})),
    ];
    let rules: usize = KINDS.iter().map(|kind| kind.definition().to_string().matches("\"rule\":").count()).sum();
    assert_eq!(cases.len(), rules, "one case for each rule");
    for (kind, spec) in cases {
        assert!(!problems(kind, spec.clone()).is_empty(), "{kind} {spec} passes");
    }
}
