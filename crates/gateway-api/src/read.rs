//! Values -> resources, by the schemas.

mod metadata;

use crate::GROUP;
use crate::document_value::{Content, DocumentValue, quoted};
use crate::fault::{Fault, Faults, Path};
use crate::metadata::ObjectMeta;
use crate::resource::{KIND_NAMES, KINDS, Resource};
use crate::rules;
use crate::schema::{ANY, Field, Kind, Object, Schema, Unique};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Whether documents of a kind belong to no namespace.
pub fn is_of_the_mesh(kind: &str) -> bool {
    KINDS.iter().any(|known| known.name == kind && !known.is_namespaced)
}

/// Reads a document whose `apiVersion` has the group [`GROUP`]. Defaults of the schema are in the
/// resource; `status` is not.
///
/// # Errors
/// All faults.
pub fn read<V: DocumentValue>(document: &V) -> Result<Resource, Vec<Fault>> {
    let mut faults = Faults::default();
    match resource(document, &mut faults) {
        Some(resource) if faults.len() == 0 => Ok(resource),
        _ => Err(faults.into_inner()),
    }
}

fn resource<V: DocumentValue>(document: &V, faults: &mut Faults) -> Option<Resource> {
    let Content::Map(fields) = document.content() else { return None };
    let find = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, value)| *value);
    let text = |name| match find(name).map(DocumentValue::content) {
        Some(Content::Scalar { text, .. }) => text,
        _ => "",
    };
    let (kind, version) = (text("kind"), text("apiVersion").split_once('/').map_or("", |(_, version)| version));
    let Some(kind) = KINDS.iter().find(|known| known.name == kind) else {
        faults.wrong_name(&Path::of("kind"), format!("there is no kind {} of {GROUP}", quoted(kind)), kind, KIND_NAMES);
        return None;
    };
    let Some((_, spec)) = kind.versions.iter().find(|(name, _)| *name == version) else {
        let versions: Vec<String> = kind.versions.iter().map(|(name, _)| format!("`{GROUP}/{name}`")).collect();
        let message = format!("{} is no version of `{}`", quoted(version), kind.name);
        faults.add(&Path::of("apiVersion"), message, format!("expected {}", versions.join(" or ")));
        return None;
    };
    for (name, _) in &fields {
        if !["apiVersion", "kind", "metadata", "spec", "status"].contains(name) {
            let known = ["apiVersion", "kind", "metadata", "spec"];
            faults.wrong_name(&Path::of(name), "there is no such field", name, known);
        }
    }
    let metadata = match find("metadata") {
        Some(value) => metadata::read(value, kind.is_namespaced, faults),
        None => {
            faults.add(&Path::of("metadata"), "the field `metadata` is missing", "add `metadata: {name: …}`");
            None
        }
    };
    let content = match find("spec") {
        Some(value) => self::object(spec, value, &Path::of("spec"), faults),
        None => {
            faults.add(&Path::of("spec"), "the field `spec` is missing", "add it");
            None
        }
    };
    typed(kind, metadata?, content?, faults)
}

/// The checked content as a resource, and the rules that no schema has.
fn typed(kind: &Kind, metadata: ObjectMeta, spec: Value, faults: &mut Faults) -> Option<Resource> {
    if faults.len() > 0 {
        return None;
    }
    match Resource::of(kind.name, metadata, spec) {
        Ok(resource) => {
            rules::check(&resource, faults);
            Some(resource)
        }
        // The types come from the same schemas, so this is a mistake of the generator.
        Err(error) => {
            faults.add(&Path::of("spec"), error.to_string(), "");
            None
        }
    }
}

/// The value with the defaults of its schema; `None`: faults were reported.
fn value<V: DocumentValue>(schema: &Schema, value: &V, path: &Path<'_>, faults: &mut Faults) -> Option<Value> {
    let content = value.content();
    match (schema, &content) {
        (Schema::Object(of), _) => object(of, value, path, faults),
        (Schema::Boolean, Content::Scalar { text: text @ ("true" | "false"), plain: true }) => {
            Some((*text == "true").into())
        }
        (Schema::Boolean, _) => unexpected("true or false", &content, path, faults),
        (Schema::Number(low, high), Content::Scalar { text, plain: true }) => {
            let number = whole(text);
            if number.is_some_and(|number| !(*low..=*high).contains(&number)) {
                faults.add(path, format!("{text} is out of range"), format!("expected {low} to {high}"));
                return None;
            }
            number.map(Value::from).or_else(|| unexpected("a whole number", &content, path, faults))
        }
        (Schema::Number(..), _) => unexpected("a whole number", &content, path, faults),
        (Schema::NumberOf(known), _) => {
            let number = match content {
                Content::Scalar { text, plain: true } => whole(text).filter(|number| known.contains(number)),
                _ => None,
            };
            let known: Vec<String> = known.iter().map(i64::to_string).collect();
            number
                .map(Value::from)
                .or_else(|| unexpected(&format!("one of {}", known.join(", ")), &content, path, faults))
        }
        (Schema::Text { least, most, form }, Content::Scalar { text, .. }) => {
            let before = faults.len();
            let length = text.chars().count();
            if !(*least..=*most).contains(&length) {
                let fix = match (least, *most) {
                    (0, most) => format!("expected at most {most} characters"),
                    (least, ANY) => format!("expected at least {least} characters"),
                    (least, most) => format!("expected {least} to {most} characters"),
                };
                faults.add(path, format!("a text of {length} characters"), fix);
            } else if let Some(form) = form.filter(|form| !form.matches(text)) {
                faults.add(
                    path,
                    format!("{} has another form than expected", quoted(text)),
                    format!("expected {}", form.words),
                );
            }
            (faults.len() == before).then(|| Value::from(*text))
        }
        (Schema::Text { .. }, _) => unexpected("text", &content, path, faults),
        (Schema::Choice(known), Content::Scalar { text, .. }) => {
            if known.contains(text) {
                return Some(Value::from(*text));
            }
            faults.wrong_name(
                path,
                format!("{} is none of the possible values", quoted(text)),
                text,
                known.iter().copied(),
            );
            None
        }
        (Schema::Choice(known), _) => unexpected(&format!("one of {}", known.join(", ")), &content, path, faults),
        (Schema::List { least, most, unique, of }, Content::List(elements)) => {
            if !(*least..=*most).contains(&elements.len()) {
                let fix = match *most {
                    ANY => format!("expected at least {least}"),
                    most if elements.len() > most => format!("expected at most {most}"),
                    _ => format!("expected at least {least}"),
                };
                faults.add(path, format!("a list of {} elements", elements.len()), fix);
                return None;
            }
            list(*unique, of, elements, path, faults)
        }
        (Schema::List { .. }, _) => unexpected("a list", &content, path, faults),
        (Schema::Map { most, of }, Content::Map(entries)) => {
            if entries.len() > *most {
                faults.add(path, format!("{} entries", entries.len()), format!("expected at most {most}"));
                return None;
            }
            let read = |(name, value): &(&str, &V)| {
                let path = path.field(name);
                Some(((*name).to_owned(), self::value(of, *value, &path, faults)?))
            };
            let read: Vec<Option<(String, Value)>> = entries.iter().map(read).collect();
            read.into_iter().collect::<Option<Map<String, Value>>>().map(Value::Object)
        }
        (Schema::Map { .. }, _) => unexpected("a mapping", &content, path, faults),
    }
}

fn list<V: DocumentValue>(
    unique: Unique,
    of: &Schema,
    elements: &[V],
    path: &Path<'_>,
    faults: &mut Faults,
) -> Option<Value> {
    let mut read = Vec::with_capacity(elements.len());
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let before = faults.len();
    for (index, element) in elements.iter().enumerate() {
        let path = path.element(index);
        let Some(element) = value(of, element, &path, faults) else { continue };
        let key = match unique {
            Unique::None => None,
            Unique::Whole => Some(&element),
            Unique::By(field) => element.get(field),
        };
        if let Some(key) = key.map(Value::to_string) {
            if let Some(first) = seen.get(&key) {
                let path = match unique {
                    Unique::By(field) => &path.field(field),
                    _ => &path,
                };
                faults.add(path, format!("{key} is there twice, also in element {first}"), "keep one of the two");
            } else {
                seen.insert(key, index);
            }
        }
        read.push(element);
    }
    (faults.len() == before).then_some(Value::Array(read))
}

fn object<V: DocumentValue>(of: &Object, value: &V, path: &Path<'_>, faults: &mut Faults) -> Option<Value> {
    let before = faults.len();
    let content = value.content();
    let entries = match content {
        Content::Map(entries) => entries,
        other => {
            let names: Vec<String> = of.fields.iter().take(8).map(|field| format!("`{}`", field.name)).collect();
            return unexpected(&format!("a mapping with {}", names.join(", ")), &other, path, faults);
        }
    };
    let mut object = Map::new();
    for (name, value) in &entries {
        let path = path.field(name);
        match of.fields.iter().find(|field| field.name == *name) {
            // Null is no value: the default takes its place.
            Some(_) if matches!(value.content(), Content::Null) => {}
            Some(field) => {
                if let Some(value) = self::value(&field.schema, *value, &path, faults) {
                    object.insert((*name).to_owned(), value);
                }
            }
            None => faults.wrong_name(&path, "there is no such field", name, of.fields.iter().map(|field| field.name)),
        }
    }
    for field in of.fields {
        let is_there =
            entries.iter().any(|(name, value)| *name == field.name && !matches!(value.content(), Content::Null));
        if is_there {
            continue;
        }
        if let Some(value) = default(field) {
            object.insert(field.name.to_owned(), value);
        } else if field.required {
            faults.add(path, format!("the field `{}` is missing", field.name), "add it");
        }
    }
    (faults.len() == before).then_some(Value::Object(object))
}

/// The default of a field, with those of the fields in it.
fn default(field: &Field) -> Option<Value> {
    let mut value = serde_json::from_str(field.default?).ok()?;
    complete(&field.schema, &mut value);
    Some(value)
}

/// Adds the defaults of all fields that a default leaves out.
fn complete(schema: &Schema, value: &mut Value) {
    match (schema, value) {
        (Schema::Object(of), Value::Object(object)) => {
            for field in of.fields {
                match object.get_mut(field.name) {
                    Some(value) => complete(&field.schema, value),
                    None => object.extend(default(field).map(|value| (field.name.to_owned(), value))),
                }
            }
        }
        (Schema::List { of, .. }, Value::Array(elements)) => {
            elements.iter_mut().for_each(|element| complete(of, element))
        }
        _ => {}
    }
}

/// A whole number in decimal digits.
fn whole(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_octal = digits.len() > 1 && digits.starts_with('0');
    text.parse().ok().filter(|_| plain && !is_octal)
}

fn unexpected<V, T>(expected: &str, found: &Content<'_, V>, path: &Path<'_>, faults: &mut Faults) -> Option<T> {
    faults.add(path, format!("expected {expected}, found {}", found.describe()), "");
    None
}

#[cfg(test)]
pub(crate) mod tests;
