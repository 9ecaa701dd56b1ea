use super::*;
use crate::pattern::TextKind;
use crate::reference;
use proptest::prelude::*;

/// Automata for patterns: the rule of each is its place.
fn automata(patterns: &[&str], kind: TextKind) -> Vec<Automaton> {
    let pattern = |(place, text): (usize, &&str)| {
        let patterns = Pattern::regex(text, kind).unwrap().into_iter();
        patterns.map(move |pattern| (pattern, RuleSet::of([place])))
    };
    Automaton::all(patterns.iter().enumerate().flat_map(pattern).collect(), usize::MAX)
}

fn matching(automata: &[Automaton], text: &[u8], kind: TextKind) -> Vec<usize> {
    let last_line = match kind {
        TextKind::Line => 0,
        TextKind::Lines => text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1),
    };
    let mut rules = vec![0; 64];
    automata.iter().for_each(|automaton| automaton.run(text, last_line, &mut rules));
    crate::rule_set::places(&rules).collect()
}

#[test]
fn whole_texts_match() {
    for (pattern, text, expected) in [
        ("/orders/[0-9]+", "/orders/12", true),
        ("/orders/[0-9]+", "/orders/12x", false),
        ("/orders/[0-9]+", "x/orders/12", false),
        ("^/orders/[0-9]+$", "/orders/12", true),
        ("^(/orders/.*)$", "/orders/12", true),
        ("a|ab", "ab", true),
        ("(?:a|ab)c?", "abc", true),
        ("a*?", "aaa", true),
        ("", "", true),
        ("", "a", false),
        (".*", "", true),
        (".+", "", false),
        (".{2,}", "a", false),
        (".{2,}", "ab", true),
        (".*b.+", "ab", false),
        (".*b.+", "abb", true),
        (".+b", "b", false),
        (".*", "é\u{0}", true),
        ("...", "éa", true),
        (".", "\n", false),
        (".*", "a\nb", false),
        (".*b.*", "a\nb", false),
        ("(?s).*b.*", "a\nb", true),
        ("a\n.*", "a\nb", true),
        (".*\nb", "a\nb", true),
        (".*\nb", "a\na\nb", false),
        ("(?i)get", "GeT", true),
        (r"\d+\b", "12", true),
        (r".*\bfoo\b.*", "a foo b", true),
        (r".*\bfoo\b.*", "a food b", false),
        (r"(?m)a$\nb", "a\nb", true),
        ("a$b", "ab", false),
        ("(?:^a|b$)+", "ab", true),
        ("GET|POST", "POST", true),
        ("^(.*?; ?)?(user=a)(;.*)?$", "b=c;user=a", true),
        ("^(.*?; ?)?(user=a)(;.*)?$", "user=a; b=c", true),
        ("^(.*?; ?)?(user=a)(;.*)?$", "user=ab", false),
        ("^(.*?; ?)?(user=a)(;.*)?$", "buser=a", false),
        ("(.*)?", "a", true),
        ("(a|.*b)(c|d.*)", "xbd", true),
        ("(a|.*b)(c|d.*)", "adx", true),
        ("(a|.*b)(c|d.*)", "xac", false),
    ] {
        let found = matching(&automata(&[pattern], TextKind::Lines), text.as_bytes(), TextKind::Lines);
        assert_eq!(!found.is_empty(), expected, "{pattern} {text}");
        assert_eq!(reference::is_match(pattern, text.as_bytes()), expected, "reference: {pattern} {text}");
    }
}

#[test]
fn what_many_have_in_common_is_read_once() {
    for form in [
        |i: usize| format!("/api/item-{i:04}/[0-9]+"),
        |i: usize| format!("/[^/]+/item-{i:04}/[^/]+/x"),
        |i: usize| format!(".*token-{i:04}.*"),
        |i: usize| format!("(?i)tenant-{i:04}-.*"),
        |i: usize| format!(".*/v[0-9]+/item-{i:04}"),
        |i: usize| format!("^(.*?; ?)?(user=name-{i:04})(;.*)?$"),
        |i: usize| format!("(x|.*; )user-{i:04}(,|;.*)"),
    ] {
        let patterns: Vec<String> = (0..1000).map(form).collect();
        let texts: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let automata = automata(&texts, TextKind::Line);
        assert_eq!(automata.len(), 1, "{}", patterns[0]);
        assert!(automata[0].size() < 4 * 1024 * 1024, "{}: {}", patterns[0], automata[0].size());
    }
}

#[test]
fn patterns_with_no_small_common_automaton_are_divided() {
    let patterns: Vec<String> = (0..100).map(|i| format!(".*a{i:02}.*b{i:02}.*")).collect();
    let texts: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let automata = automata(&texts, TextKind::Line);
    assert!((2..=50).contains(&automata.len()), "{}", automata.len());
    assert_eq!(matching(&automata, b"a03.a17.b17.b04.b03", TextKind::Line), [3, 17]);
}

#[test]
fn one_too_large_is_refused() {
    for pattern in ["(a|b)*a(a|b){16}", "(?:a{1000}){1000}", "(?:[ab]{50}c?){40}.*a.{12}"] {
        assert!(crate::check_regex(pattern).unwrap_err().contains("too large"), "{pattern}");
    }
    for (pattern, fragment) in [
        ("a(b", "unclosed group at character 2"),
        ("a)(b", "unopened group at character 2"),
        ("(?=a)b", "look-around"),
        (r"(a)\1", "backreferences"),
        ("[z-a]", "at character 2"),
        (&"a".repeat(2561), "2561 bytes"),
    ] {
        let error = crate::check_regex(pattern).unwrap_err();
        assert!(error.contains(fragment), "{error}");
    }
    for pattern in
        ["/orders/[0-9]+", "/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", r".*\.(css|js|png)", &"a".repeat(2560)]
    {
        assert_eq!(crate::check_regex(pattern), Ok(()));
    }
}

fn kinds() -> impl Strategy<Value = TextKind> {
    prop_oneof![Just(TextKind::Line), Just(TextKind::Lines)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn many_patterns_mean_what_each_means(
        patterns in prop::collection::vec(r"(\.\*|\(\.\*a\)\?|\(a\|\.\*b\)|\.\+|\^|\(\.\*\))?[ab.|*+?\[\]-]{0,6}(\\b|\$|\^)?[ab.]{0,3}(\.\*|\.\+|\$|\(\.\*\)|\(b\.\*\)\?|\(\.\+\|b\))?", 1..8),
        texts in prop::collection::vec("[abc\n]{0,8}", 1..6),
        kind in kinds(),
    ) {
        let good: Vec<&str> = patterns.iter().map(String::as_str).filter(|text| crate::check_regex(text).is_ok()).collect();
        let automata = automata(&good, kind);
        for text in texts {
            let text = if kind == TextKind::Line { text.replace('\n', "") } else { text };
            let expected: Vec<usize> =
                good.iter().enumerate().filter(|(_, one)| reference::is_match(one, text.as_bytes())).map(|(place, _)| place).collect();
            prop_assert_eq!(matching(&automata, text.as_bytes(), kind), expected, "{:?} {:?}", good, text);
        }
    }

    #[test]
    fn looks_at_neighbours_are_right(
        pattern in r"(\(\?m\)|\(\?mR\)|\(\?R\))?([ab.\n]|\\b|\\B|\\<|\\>|\^|\$|\\b\{start-half\}|\\b\{end-half\}|\\r|\\n|\*|\?){1,7}",
        text in "[ab \r\n]{0,6}",
    ) {
        if crate::check_regex(&pattern).is_ok() {
            let found = !matching(&automata(&[&pattern], TextKind::Lines), text.as_bytes(), TextKind::Lines).is_empty();
            prop_assert_eq!(found, reference::is_match(&pattern, text.as_bytes()));
        }
    }

    #[test]
    fn no_pattern_makes_it_panic(pattern in r"\PC{0,30}") {
        let _ = crate::check_regex(&pattern);
    }
}
