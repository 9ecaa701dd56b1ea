//! YAML text -> JSON values, enough for the tables.

use granit_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// An open collection.
enum Open {
    List(Vec<Value>),
    Map(Map<String, Value>, Option<String>),
}

/// All documents of a text.
pub(crate) fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let mut parser = Parser::new_from_str(text);
    let (mut documents, mut open) = (Vec::new(), Vec::new());
    while let Some(event) = parser.next_event() {
        let (event, span) = event?;
        let value = match event {
            Event::Scalar(text, style, ..) => scalar(&text, style == ScalarStyle::Plain),
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Map(Map::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(items)) => Value::Array(items),
                Some(Open::Map(members, _)) => Value::Object(members),
                None => continue,
            },
            Event::Alias(_) => anyhow::bail!("line {}: no aliases here", span.start.line()),
            _ => continue,
        };
        match open.last_mut() {
            None => documents.push(value),
            Some(Open::List(items)) => items.push(value),
            Some(Open::Map(members, key)) => match key.take() {
                Some(name) => {
                    if members.insert(name.clone(), value).is_some() {
                        anyhow::bail!("line {}: `{name}` appears twice", span.start.line());
                    }
                }
                None => *key = Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
            },
        }
    }
    Ok(documents)
}

fn scalar(text: &str, plain: bool) -> Value {
    let number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    match text {
        _ if !plain => Value::from(text),
        "" | "~" | "null" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ if number => match (text.parse::<u64>(), text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(number), ..) => Value::from(number),
            (_, Ok(number), _) => Value::from(number),
            (_, _, Ok(number)) => Value::from(number),
            _ => Value::from(text),
        },
        _ => Value::from(text),
    }
}
