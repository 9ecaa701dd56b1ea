//! JSON Schemas and reference pages, generated from the types of the documents.

use crate::document;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Path below `docs/reference`.
    pub path: String,
    /// Content.
    pub text: String,
}

/// The JSON Schema (2020-12) of each kind.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("Mesh", schema::<document::Mesh>()),
        ("Function", schema::<document::Function>()),
        ("Job", schema::<document::Job>()),
        ("External", schema::<document::External>()),
        ("Chain", schema::<document::Chain>()),
        ("Policy", schema::<document::Policy>()),
        ("StoredSecret", schema::<document::StoredSecret>()),
        ("NamespaceQuota", schema::<document::NamespaceQuota>()),
    ]
}

fn schema<T: JsonSchema>() -> Value {
    let mut schema = SchemaGenerator::new(SchemaSettings::draft2020_12()).into_root_schema_for::<T>().to_value();
    plain_texts(&mut schema);
    schema
}

/// Lets plain numbers and booleans stand for texts, as in documents: `PORT_COUNT: 5` of an `env`.
fn plain_texts(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let limits = ["pattern", "enum", "const"].iter().any(|keyword| fields.contains_key(*keyword));
            let kinds = match fields.get("type") {
                Some(Value::String(kind)) if kind == "string" => Some(json!(["string", "number", "boolean"])),
                Some(Value::Array(kinds)) if kinds.iter().any(|kind| kind == "string") => {
                    Some(json!(["string", "number", "boolean", "null"]))
                }
                _ => None,
            };
            if let Some(kinds) = kinds.filter(|_| !limits) {
                fields.insert("type".to_owned(), kinds);
            }
            fields.values_mut().for_each(plain_texts);
        }
        Value::Array(list) => list.iter_mut().for_each(plain_texts),
        _ => {}
    }
}

/// All generated files of `docs/reference`.
pub fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    for (kind, schema) in schemas() {
        let name = kind.to_lowercase();
        pages.push(Page { path: format!("{name}.md"), text: markdown(kind, &schema) });
        pages.push(Page { path: format!("schema/{name}.json"), text: format!("{schema:#}\n") });
    }
    pages
}

fn markdown(kind: &str, schema: &Value) -> String {
    let name = kind.to_lowercase();
    let mut writer =
        Writer { definitions: schema["$defs"].as_object().cloned().unwrap_or_default(), ..Writer::default() };
    let _ = write!(
        writer.text,
        "<!-- Generated from the types in crates/config/src/document; `make reference` writes it anew. -->\n\n\
         # {kind}\n\n{}\n\n\
         The same as a [JSON Schema](schema/{name}.json), for editors: \
         `# yaml-language-server: $schema=…/schema/{name}.json` in the first line of a document.\n",
        paragraph(schema)
    );
    writer.table("", schema);
    while let Some((path, object)) = writer.pending.pop() {
        let _ = write!(writer.text, "\n## `{path}`\n\n{}\n", paragraph(&object));
        writer.table(&path, &object);
    }
    writer.text.push_str(
        "\n## Durations, sizes and addresses\n\n\
         A *duration* is whole numbers with units, the largest first: `us`, `ms`, `s`, `m`, `h`, `d`; for example `250ms` or `1m30s`.\n\
         A *size* is a whole number of `Ki`, `Mi` or `Gi` (1024, 1024² or 1024³ bytes): `512Ki`, `8Mi`.\n\
         An *address* is an IP address and a port: `127.0.0.1:8080`, `[::1]:8080`.\n\
         Unknown fields, fields that appear twice, and values that cannot be meant are refused with file, line and the fix.\n",
    );
    writer.text
}

#[derive(Default)]
struct Writer {
    text: String,
    definitions: Map<String, Value>,
    /// Objects that still need a section, the next one last.
    pending: Vec<(String, Value)>,
    /// The anchor of the section of a definition.
    sections: BTreeMap<String, String>,
}

impl Writer {
    /// A table of an object's fields, required ones first.
    fn table(&mut self, path: &str, object: &Value) {
        let Some(properties) = object["properties"].as_object() else { return };
        let required: Vec<&str> =
            object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut fields: Vec<(&String, &Value)> = properties.iter().collect();
        fields.sort_by_key(|(name, _)| (!required.contains(&name.as_str()), name.as_str()));
        self.text.push_str("\n| field | type | default | meaning |\n|---|---|---|---|\n");
        let before = self.pending.len();
        for (name, field) in fields {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let kind = self.kind(&path, field);
            let default = if required.contains(&name.as_str()) { "*required*".to_owned() } else { default(field) };
            let meaning = paragraph(field) + &self.values(field);
            let _ = writeln!(self.text, "| `{name}` | {} | {} | {} |", cell(&kind), cell(&default), cell(&meaning));
        }
        self.pending[before..].reverse();
    }

    /// The type of a field in words; an object gets its own section.
    fn kind(&mut self, path: &str, field: &Value) -> String {
        if let Some(choices) = field["anyOf"].as_array() {
            let kinds: Vec<String> = choices
                .iter()
                .filter(|choice| choice["type"] != "null")
                .map(|choice| self.kind(path, choice))
                .collect();
            return kinds.join(" or ");
        }
        if let Some(name) = field["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/")) {
            return self.named(path, name);
        }
        match kind_name(field) {
            Some("string") => "text".to_owned(),
            Some("boolean") => "`true` or `false`".to_owned(),
            Some("number") => "number".to_owned(),
            Some("integer") => "whole number".to_owned(),
            Some("array") => format!("list of {}", plural(&self.kind(&format!("{path}[]"), &field["items"]))),
            Some("object") if field["additionalProperties"].is_object() => "mapping of text to text".to_owned(),
            _ => "mapping".to_owned(),
        }
    }

    fn named(&mut self, path: &str, name: &str) -> String {
        let definition = self.definitions.get(name).cloned().unwrap_or_default();
        if matches!(name, "Duration" | "Address" | "Size") {
            return format!("[{}](#durations-sizes-and-addresses)", name.to_lowercase());
        }
        if let Some(choices) = definition["oneOf"].as_array() {
            let only = choices.first().filter(|_| choices.len() == 1).and_then(|choice| choice["const"].as_str());
            return only.map_or("one of these".to_owned(), |only| format!("`{only}`"));
        }
        if !definition["properties"].is_object() {
            return self.kind(path, &definition);
        }
        let section = self.sections.get(name).cloned().unwrap_or_else(|| {
            self.sections.insert(name.to_owned(), path.to_owned());
            self.pending.push((path.to_owned(), definition));
            path.to_owned()
        });
        format!("[`{section}`](#{})", anchor(&section))
    }

    /// The values of an enumeration, with their meanings.
    fn values(&self, field: &Value) -> String {
        let direct = [field, &field["items"]].into_iter();
        let any = field["anyOf"].as_array().into_iter().flatten();
        let reference = direct.chain(any).find_map(|field| field["$ref"].as_str()?.strip_prefix("#/$defs/"));
        let choices =
            reference.and_then(|name| self.definitions.get(name)).and_then(|definition| definition["oneOf"].as_array());
        let mut text = String::new();
        for choice in choices.into_iter().flatten() {
            let value = match (
                &choice["const"],
                choice["properties"].as_object().and_then(|properties| properties.keys().next()),
            ) {
                (Value::String(value), _) => value.clone(),
                (_, Some(name)) => format!("{{{name}: …}}"),
                _ => continue,
            };
            // The only value of `apiVersion` and `kind` is in their description.
            if choices.is_some_and(|choices| choices.len() > 1) {
                let _ = write!(text, "<br>`{value}`: {}", paragraph(choice));
            }
        }
        text
    }
}

/// `string` of `"string"` and of `["string", "null"]`.
fn kind_name(field: &Value) -> Option<&str> {
    match &field["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        kind => kind.as_str(),
    }
}

fn plural(kind: &str) -> String {
    match kind {
        "text" => "texts".to_owned(),
        "whole number" => "whole numbers".to_owned(),
        kind => kind.to_owned(),
    }
}

/// The default, if it is worth showing.
fn default(field: &Value) -> String {
    match &field["default"] {
        Value::Null | Value::Object(_) => String::new(),
        Value::Array(list) if list.is_empty() => String::new(),
        Value::Array(list) => {
            list.iter().filter_map(Value::as_str).map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", ")
        }
        Value::String(text) => format!("`{text}`"),
        // 100.0 is written 100.
        Value::Number(number) => format!("`{}`", number.as_f64().unwrap_or_default()),
        other => format!("`{other}`"),
    }
}

/// A description on one line.
fn paragraph(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The anchor that Markdown readers give a heading.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect()
}

#[cfg(test)]
mod tests {
    use super::pages;
    use std::fs;
    use std::path::Path;

    /// `make reference` (`LENO_BLESS=1 cargo test -p leno-config reference`) writes the pages anew.
    #[test]
    fn committed_reference_pages_are_up_to_date() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
        let mut stale = Vec::new();
        for page in pages() {
            let file = folder.join(&page.path);
            if std::env::var_os("LENO_BLESS").is_some() {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(&file, &page.text).unwrap();
            }
            if fs::read_to_string(&file).ok().as_deref() != Some(page.text.as_str()) {
                stale.push(page.path);
            }
        }
        assert!(stale.is_empty(), "docs/reference: {stale:?} are stale; run: make reference");
    }
}
