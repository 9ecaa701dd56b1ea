//! Values as YAML, for files that people read.

use serde_json::Value;
use std::fmt::Write as _;

/// A value as a YAML document. All versions of YAML read the same from it.
pub(crate) fn text(value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, value, 0);
    text
}

fn write(text: &mut String, value: &Value, indent: usize) {
    let margin = " ".repeat(indent);
    // Writing to a text does not fail.
    let _ = match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, field)| match is_nested(field) {
            true => {
                writeln!(text, "{margin}{}:", scalar(name))?;
                write(text, field, indent + 2);
                Ok(())
            }
            false => writeln!(text, "{margin}{}: {}", scalar(name), plain(field)),
        }),
        Value::Array(elements) => elements.iter().try_for_each(|element| match is_nested(element) {
            true => {
                let begin = text.len();
                write(text, element, indent + 2);
                text.replace_range(begin + indent..begin + indent + 1, "-");
                Ok(())
            }
            false => writeln!(text, "{margin}- {}", plain(element)),
        }),
        other => writeln!(text, "{margin}{}", plain(other)),
    };
}

/// Whether a value begins on the next line.
fn is_nested(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(elements) => !elements.is_empty(),
        _ => false,
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), scalar)
}

/// A text, in quotes unless it can be nothing else.
fn scalar(text: &str) -> String {
    let words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte))
        && !words.contains(&&*text.to_lowercase());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::text;
    use serde_json::json;

    #[test]
    fn odd_values_are_quoted() {
        let odd = json!({"on": ["y", "", "- a", {"b": [[], {}, [1, [true]]]}], "1": {"x": null, "c: d": "e\n#f"}});
        let yaml = "\"1\":\n  \"c: d\": \"e\\n#f\"\n  x: null\n\"on\":\n  - \"y\"\n  - \"\"\n  - \"- a\"\n  - b:\n      - []\n      - {}\n      - - 1\n        - - true\n";
        assert_eq!(text(&odd), yaml);
    }
}
