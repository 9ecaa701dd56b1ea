//! Escapes text for a terminal. Clients, functions and tokens choose parts of the output: no part
//! of it may move the cursor, start a new line, or change the direction of writing.

use serde_json::Value;
use std::borrow::Cow;
use std::io::{self, Write};

/// Escapes a text, so that it fits into one line.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, |character| character.escape_debug().collect())
}

/// Escapes all texts of a JSON value, so that each fits into one line.
pub(crate) fn shown_all(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(shown(&text).into_owned()),
        Value::Array(items) => items.into_iter().map(shown_all).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (shown(&name).into_owned(), shown_all(value))).collect()
        }
        other => other,
    }
}

/// Escapes JSON, which stays JSON: characters that its writer has not escaped occur only in
/// strings.
pub(crate) fn shown_json(text: &str) -> Cow<'_, str> {
    let escape = |character| match character {
        '\n' => "\n".to_owned(),
        character => format!("\\u{:04x}", u32::from(character)),
    };
    escaped(text, escape)
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(acts) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if acts(character) { escaped.push_str(&escape(character)) } else { escaped.push(character) }
    }
    escaped.into()
}

/// Whether a terminal acts on this character rather than showing it: controls, and marks of
/// direction (UAX #9).
fn acts(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Log lines, one with each write. Lines after the first of an entry are indented, so that none of
/// them looks like an entry.
pub(crate) struct Log<W> {
    to: W,
    /// Whether the text contains the formatter's own escape sequences. The formatter escapes those
    /// of others.
    coloured: bool,
}

impl<W> Log<W> {
    /// A log that writes to `to`.
    pub(crate) fn to(to: W, coloured: bool) -> Self {
        Self { to, coloured }
    }
}

impl<W: Write> Write for Log<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let escape = |character| match character {
            '\t' => "\t".to_owned(),
            '\x1b' if self.coloured => "\x1b".to_owned(),
            character => character.escape_debug().to_string(),
        };
        let parts: Vec<Cow<'_, str>> =
            text.trim_end_matches('\n').split('\n').map(|part| escaped(part, escape)).collect();
        // A node outlives the reader of its log, so a failure does not end it.
        let _ = self.to.write_all(format!("{}\n", parts.join("\n    ")).as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVIL: &str = "a\x1b[2J\r\nINFO all is well\0\u{9b}31m\u{202e}\x7f";

    fn logged(line: &str, coloured: bool) -> String {
        let mut log = Log::to(Vec::new(), coloured);
        log.write_all(line.as_bytes()).unwrap();
        String::from_utf8(log.to).unwrap()
    }

    #[test]
    fn nothing_acts_on_the_terminal() {
        assert_eq!(shown(EVIL), r"a\u{1b}[2J\r\nINFO all is well\0\u{9b}31m\u{202e}\u{7f}");
        assert!(matches!(shown("käthe 東京 \\ \""), Cow::Borrowed("käthe 東京 \\ \"")));
        let told = shown_all(serde_json::json!({ "a": [EVIL, 1], "b": { EVIL: null } })).to_string();
        assert!(!told.contains(acts), "{told}");
    }

    #[test]
    fn json_stays_json() {
        let body = serde_json::to_string_pretty(&serde_json::json!({ "a": EVIL })).unwrap();
        let told = shown_json(&body);
        assert!(!told.contains(|character| character != '\n' && acts(character)), "{told}");
        assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["a"], EVIL);
    }

    #[test]
    fn nobody_else_begins_a_line_of_the_log() {
        let line = format!("WARN it failed: {EVIL}\n");
        assert_eq!(
            logged(&line, false),
            "WARN it failed: a\\u{1b}[2J\\r\n    INFO all is well\\0\\u{9b}31m\\u{202e}\\u{7f}\n"
        );
        assert_eq!(logged("\x1b[33mWARN\x1b[0m it\tfailed\n", true), "\x1b[33mWARN\x1b[0m it\tfailed\n");
    }
}
