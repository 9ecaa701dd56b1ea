//! Values of the chart: they are read, merged as Helm merges them, and checked by the chart's schema.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

/// Reads values in YAML.
pub(crate) fn read(text: &str) -> Result<Value> {
    let values: Option<Value> = serde_saphyr::from_str(text)?;
    match values {
        None => Ok(Value::Object(Map::new())),
        Some(values @ Value::Object(_)) => Ok(values),
        Some(_) => bail!("values are a map, such as `controller: {{replicas: 3}}`"),
    }
}

/// The values of `a.b=c`.
pub(crate) fn setting(text: &str) -> Result<Value> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .with_context(|| format!("--set {text}: NAME=VALUE"))?;
    ensure!(!value.starts_with(['[', '{']), "--set {text}: put lists and maps into a file, and name it with --values");
    let value = match value {
        "true" => true.into(),
        "false" => false.into(),
        _ => value.parse::<i64>().map_or_else(|_| value.into(), Value::from),
    };
    Ok(at(name, value))
}

/// A value at a path of names: `a.b` is `{a: {b: value}}`.
pub(crate) fn at(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |value, name| Value::Object([(name.to_owned(), value)].into_iter().collect()))
}

/// Maps are merged, and other values replaced. `null` removes a value.
pub(crate) fn merge(into: &mut Value, values: Value) {
    match (into, values) {
        (Value::Object(into), Value::Object(values)) => {
            for (name, value) in values {
                match value {
                    Value::Null => drop(into.remove(&name)),
                    value => merge(into.entry(name).or_insert(Value::Null), value),
                }
            }
        }
        (into, values) => *into = values,
    }
}

/// Checks values by the part of JSON Schema that the chart's schema uses.
pub(crate) fn check(schema: &Value, value: &Value, path: &str) -> Result<()> {
    let name = if path.is_empty() { "the chart" } else { path };
    if let Some(kind) = schema["type"].as_str() {
        let is_it = match kind {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64(),
            _ => bail!("the chart's schema has the type {kind} at {name}"),
        };
        ensure!(is_it, "{name}: the value has to be of the type {kind}, and is {value}");
    }
    if let Some(choices) = schema["enum"].as_array() {
        let texts: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
        ensure!(choices.contains(value), "{name}: the value is {value}, and not one of {}", texts.join(", "));
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_i64(), value.as_i64()) {
        ensure!(number >= least, "{name}: the value is {number}, and has to be at least {least}");
    }
    for (field, value) in value.as_object().into_iter().flatten() {
        let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
        match schema["properties"].get(field) {
            Some(schema) => check(schema, value, &path)?,
            None => ensure!(
                schema["additionalProperties"] != false,
                "{path}: the chart has no such value; {name} has {}",
                schema["properties"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, _)| &**name)
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        }
    }
    Ok(())
}
