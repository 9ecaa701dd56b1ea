//! Regular expressions: built into automata here, so that a sandbox only has to follow them.

use super::forms::{self, Form};
use super::template;
use crate::problem::Scope;
use crate::snapshot::Policy;
use leno_policy::regex::Regex;
use leno_policy::spec::{Matches, Operation, PathMatch, StringMatch};
use regex_automata::MatchKind;
use regex_automata::dfa::{StartKind, dense};
use regex_automata::nfa::thompson;
use regex_syntax::ParserBuilder;
use regex_syntax::ast;
use regex_syntax::hir::{Hir, HirKind};

/// Longest pattern, in bytes.
const LONGEST: usize = 1024;
/// Largest automaton, in bytes.
const LARGEST: usize = 32 * 1024;
/// Equivalent states are merged afterwards, which often leaves a tenth.
const BEFORE_MINIMIZING: usize = 4 * LARGEST;
/// The automata of all policies of one function together. Each of its sandboxes contains them.
pub(super) const LARGEST_TOTAL: usize = 128 * 1024;

/// A pattern that a whole text has to match. A class such as `\w` stands for ASCII bytes, and a dot
/// for any byte except a line's end. A pattern that matches no text of the form is refused: a rule
/// with it would decide nothing.
pub(super) fn regex(scope: &Scope<'_>, pattern: &str, form: Form) -> Option<Regex> {
    let bad = |message: String, fix: &str| {
        scope.problem(message, fix);
        None
    };
    if pattern.is_empty() || pattern.len() > LONGEST {
        return bad(format!("a regular expression of {} bytes", pattern.len()), "expected 1 to 1024 bytes");
    }
    let parsed = ParserBuilder::new().unicode(false).utf8(false).nest_limit(50).build().parse(pattern);
    let hir = match parsed {
        Ok(hir) => hir,
        Err(error) => {
            let (what, span) = match &error {
                regex_syntax::Error::Parse(error) => (error.kind().to_string(), Some(error.span())),
                regex_syntax::Error::Translate(error) => (error.kind().to_string(), Some(error.span())),
                error => (error.to_string(), None),
            };
            let at = span.map(|span: &ast::Span| format!(" at character {}", span.start.column)).unwrap_or_default();
            let message = format!("`{}` is not a regular expression: {what}{at}", pattern.escape_debug());
            return bad(message, "expected RE2's syntax: no look-around and no back-references");
        }
    };
    let built = thompson::Compiler::new()
        .configure(thompson::Config::new().utf8(false).nfa_size_limit(Some(BEFORE_MINIMIZING)))
        .build_from_hir(&hir)
        .map_err(|error| error.to_string())
        .and_then(|nfa| {
            let config = dense::Config::new()
                // All matches, so that the state after the last byte shows whether one ends there.
                .match_kind(MatchKind::All)
                .start_kind(StartKind::Anchored)
                .accelerate(false)
                .minimize(true)
                .dfa_size_limit(Some(BEFORE_MINIMIZING))
                .determinize_size_limit(Some(4 * BEFORE_MINIMIZING));
            dense::Builder::new().configure(config).build_from_nfa(&nfa).map_err(|error| error.to_string())
        });
    let small = built.and_then(|automaton| match automaton.memory_usage() {
        size if size > LARGEST => Err(format!("{size} bytes")),
        _ => Ok(automaton),
    });
    match small {
        Ok(automaton) if !forms::may_match(&automaton, form) => {
            let message = format!("`{}` can never match", pattern.escape_debug());
            match mended(&hir, form) {
                Some(text) => bad(message, &format!("write {{regex: \"{}\"}}", regex_syntax::escape(&text))),
                None => bad(message, form.words()),
            }
        }
        Ok(automaton) => {
            let (bytes, padding) = automaton.to_bytes_little_endian();
            Regex::new(pattern.to_owned(), &bytes[padding..]).map_err(|error| scope.problem(error.to_string(), "")).ok()
        }
        Err(reason) => {
            let message = format!("`{}` is too large as an automaton: {reason}", pattern.escape_debug());
            bad(message, "expected one of at most 32 KiB: repeat less often, or write several")
        }
    }
}

/// The corrected text of an expression that is a plain text, if it is known.
fn mended(hir: &Hir, form: Form) -> Option<String> {
    let HirKind::Literal(literal) = hir.kind() else { return None };
    let text = std::str::from_utf8(&literal.0).ok()?;
    match form {
        Form::Path | Form::PathWithQuery if text.starts_with('/') => template::mended(text),
        Form::Host => crate::host::normal(text).filter(|text| !text.contains(':')),
        Form::Method => Some(text.to_ascii_uppercase()).filter(|text| !text.contains([' ', ','])),
        _ => None,
    }
}

/// Bytes of all automata of a policy.
pub(super) fn size(policy: &Policy) -> usize {
    let in_rules = policy.authorization.iter().flat_map(|rule| {
        let values = rule.when.iter().flat_map(|condition| texts(&condition.values));
        rule.to.iter().flat_map(operation).chain(values)
    });
    let in_limits = policy.rate_limits.iter().filter_map(|limit| limit.only.as_ref()).flat_map(operation);
    let in_questions = policy.authorizers.iter().flat_map(|authorizer| &authorizer.only).flat_map(operation);
    in_rules.chain(in_limits).chain(in_questions).map(Regex::size).sum()
}

fn operation(operation: &Operation) -> impl Iterator<Item = &Regex> {
    let paths = operation.paths.any.iter().chain(&operation.paths.none).filter_map(|path| match path {
        PathMatch::WithQuery(regex) | PathMatch::Text(StringMatch::Regex(regex)) => Some(&**regex),
        _ => None,
    });
    texts(&operation.methods).chain(texts(&operation.hosts)).chain(paths)
}

fn texts(matches: &Matches<StringMatch>) -> impl Iterator<Item = &Regex> {
    let all = matches.any.iter().chain(&matches.none);
    all.filter_map(|text| if let StringMatch::Regex(regex) = text { Some(&**regex) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Problem;
    use crate::yaml;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::path::Path;

    fn compiled(pattern: &str) -> Result<Regex, Vec<Problem>> {
        let node = yaml::documents("a").into_iter().next().unwrap().unwrap_or_else(|_| panic!("a document"));
        let problems = RefCell::default();
        let compiled = regex(&Scope::root(Path::new("a.yaml"), &node, &problems), pattern, Form::Any);
        compiled.ok_or(problems.into_inner())
    }

    #[test]
    fn whole_texts_match() {
        for (pattern, text, matches) in [
            ("/orders/[0-9]+", "/orders/12", true),
            ("/orders/[0-9]+", "/orders/12x", false),
            ("/orders/[0-9]+", "x/orders/12", false),
            ("^/orders/[0-9]+$", "/orders/12", true),
            ("a|ab", "ab", true),
            ("(?:a|ab)c?", "abc", true),
            ("a*?", "aaa", true),
            ("", "", false),
            ("a?", "", true),
            (".*", "é\u{0}", true),
            ("...", "éa", true),
            (".", "\n", false),
            ("(?i)get", "GeT", true),
            (r"\d+\b", "12", true),
            ("a$b", "ab", false),
            ("GET|POST", "POST", true),
            ("GET|POST", "GETX", false),
            ("a)(b", "ab", false),
        ] {
            let found = compiled(pattern).is_ok_and(|regex| regex.matches(&[text.as_bytes()]));
            assert_eq!(found, matches, "{pattern} {text}");
        }
        let regex = compiled(r"/a\?b=.*").unwrap();
        assert!(regex.matches(&[b"/a", b"?", b"b=c"]) && !regex.matches(&[b"/a"]));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (pattern, fragment) in [
            ("a(b", "unclosed group at character 2"),
            ("a)(b", "unopened group at character 2"),
            ("a{2", "at character 2"),
            ("(?=a)b", "look-around"),
            (r"(a)\1", "backreferences are not supported at character 4"),
            ("[z-a]", "at character 2"),
            ("(?:a{1000}){1000}", "too large as an automaton"),
            ("(a|b)*a(a|b){20}", "too large as an automaton"),
        ] {
            let problems = compiled(pattern).unwrap_err();
            assert!(problems[0].message.contains(fragment), "{pattern}: {problems:?}");
        }
        assert!(compiled(&"a".repeat(1025)).unwrap_err()[0].to_string().contains("1025 bytes"));
    }

    #[test]
    fn common_ones_are_small() {
        for pattern in
            ["/orders/[0-9]+", "/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "/api/v[12]/.*", ".*\\.(css|js|png)"]
        {
            let size = compiled(pattern).unwrap().size();
            assert!(size < 8 * 1024, "{pattern}: {size}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Another engine of the same library gives the same result.
        #[test]
        fn the_automaton_means_what_the_pattern_says(pattern in r"[ab.|*+?()\[\]^$-]{1,10}", text in "[abc]{0,8}") {
            if let Ok(regex) = compiled(&pattern) {
                let whole = format!(r"\A(?:{pattern})\z");
                let other = regex_automata::nfa::thompson::pikevm::PikeVM::builder()
                    .syntax(regex_automata::util::syntax::Config::new().unicode(false).utf8(false))
                    .thompson(thompson::Config::new().utf8(false))
                    .build(&whole);
                if let Ok(other) = other {
                    prop_assert_eq!(regex.matches(&[text.as_bytes()]), other.is_match(&mut other.create_cache(), &text));
                }
                let bytes = serde_json::to_string(&regex).unwrap();
                let back: Regex = serde_json::from_str(&bytes).unwrap();
                prop_assert_eq!(regex.matches(&[text.as_bytes()]), back.matches(&[text.as_bytes()]));
            }
        }

        #[test]
        fn no_pattern_makes_it_panic(pattern in r"\PC{0,30}") {
            let _ = compiled(&pattern);
        }
    }
}
