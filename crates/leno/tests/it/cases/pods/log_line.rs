//! Lines of the access log, in the format for people.

use std::collections::BTreeMap;

/// The fields of a line, by name.
#[derive(Clone, Debug)]
pub(crate) struct LogLine(pub BTreeMap<String, String>);

impl LogLine {
    pub(crate) fn read(line: &str) -> Self {
        let words = words(line);
        let place = |name: &str, place: usize| Some((name.to_owned(), words.get(place)?.clone()));
        let places = [place("verdict", 2), place("source", 6)];
        let named =
            words.iter().filter_map(|word| word.split_once('=')).map(|(name, text)| (name.to_owned(), text.to_owned()));
        Self(named.chain(places.into_iter().flatten()).collect())
    }
}

/// The words of a line. Quoted text belongs to the word before it, without quotes and escapes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (vec![String::new()], false);
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        let word = words.last_mut().unwrap();
        match character {
            ' ' if !is_quoted => words.push(String::new()),
            '"' => is_quoted = !is_quoted,
            '\\' => match rest.next() {
                Some('u') => {
                    let digits: String = rest.by_ref().skip(1).take_while(|digit| *digit != '}').collect();
                    word.extend(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32));
                }
                Some('n') => word.push('\n'),
                Some('r') => word.push('\r'),
                Some('t') => word.push('\t'),
                Some('0') => word.push('\0'),
                other => word.extend(other),
            },
            other => word.push(other),
        }
    }
    words
}

#[test]
fn words_are_without_quotes_and_escapes() {
    let read = LogLine::read(
        r#"T inbound deny 403 GET /a\u{20}b 10.0.0.1:2 -> s/c 1ms rule="p/a" clause="\"x y\" is \u{1}\\""#,
    );
    let [verdict, source, rule, clause] = ["verdict", "source", "rule", "clause"].map(|name| &*read.0[name]);
    assert_eq!([verdict, source, rule, clause], ["deny", "10.0.0.1:2", "p/a", "\"x y\" is \u{1}\\"]);
}
