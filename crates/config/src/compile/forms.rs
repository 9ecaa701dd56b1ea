//! The texts of requests to which regular expressions are applied: paths after they were
//! normalised, hosts, methods, header values. An expression that matches none of them decides
//! nothing, and a deny rule with it lets everything through.

use regex_automata::MatchKind;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use regex_automata::{Anchored, dfa::dense::DFA};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

/// The kind of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A normalised path.
    Path,
    /// A normalised path, followed by `?` and the query if there is one.
    PathWithQuery,
    /// A host in lower case, without port and dot at its end.
    Host,
    /// A method.
    Method,
    /// The value of a header field.
    HeaderValue,
    /// Any bytes.
    Any,
}

/// Characters that a path may have unescaped, and escapes of others: escapes of unreserved
/// characters were decoded, and those of control characters are refused. Escapes of separators
/// occur if a function gets paths as received (`leno_policy::path`).
const IN_PATH: &str =
    r#"(?:[!$&'()*+,\-.0-9:;=@A-Z\[\]_a-z~]|%(?:2[0-9A-CF]|3[A-F]|40|5[B-E]|60|7[B-D]|[89A-F][0-9A-F]))"#;
/// A dot segment, also with parameters, or a segment that consists of parameters.
const IRREGULAR: &str = r"[^?]*/(?:\.\.?(?:[/?].*)?|\.{0,2}(?:;|%3B).*)";
const KNOWN_METHODS: &str = "GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH";

impl Form {
    /// The form in words, for the fix of a problem.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Path => {
                "paths are compared without query and after they were normalised: they begin with `/`, other characters than ASCII's and blanks are percent-encoded in upper case (`%20`, `%C3%A9`), letters and digits are not, and there is no `//`, `/./`, `/../` or `#`; for a query, add `withQuery: true`"
            }
            Self::PathWithQuery => {
                "paths are compared after they were normalised: they begin with `/`, other characters than ASCII's and blanks are percent-encoded in upper case (`%20`, `%C3%A9`), letters and digits are not, and there is no `//`, `/./`, `/../` or `#`"
            }
            Self::Host => "hosts are compared in lower case, without port and without a dot at their end",
            Self::Method => "methods are upper case (`GET`), and have no blanks",
            Self::HeaderValue => {
                "values have no blanks at their ends and no control characters; the whole value has to match"
            }
            Self::Any => "the whole text has to match; look for `^` and `$` in its middle",
        }
    }

    fn language(self) -> &'static Language {
        static LANGUAGES: [OnceLock<Language>; 6] = [const { OnceLock::new() }; 6];
        let but = |matches: &[bool]| matches == [true, false];
        LANGUAGES[self as usize].get_or_init(|| match self {
            Self::Path => Language::new(&[&format!(r"\*|/|(?:/{IN_PATH}+)+/?"), IRREGULAR], but),
            Self::PathWithQuery => {
                let query = r"(?:\?[^#\x00-\x20\x7f]*)?";
                Language::new(&[&format!(r"(?:\*|/|(?:/{IN_PATH}+)+/?){query}"), IRREGULAR], but)
            }
            Self::Host => {
                Language::new(&[r"(?:[a-z0-9_\-]+(?:\.[a-z0-9_\-]+)*|\[[0-9a-f:.]+\])?"], |matches| matches[0])
            }
            Self::Method => Language::new(
                &[r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", &format!("(?i:{KNOWN_METHODS})"), KNOWN_METHODS],
                |matches| matches[0] && (matches[2] || !matches[1]),
            ),
            Self::HeaderValue => {
                Language::new(&[r"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?"], |matches| matches[0])
            }
            Self::Any => Language::new(&[r"(?s:.*)"], |matches| matches[0]),
        })
    }
}

/// An automaton of all texts of a form.
struct Language {
    /// The next state for each byte.
    next: Vec<[u16; 256]>,
    accepts: Vec<bool>,
    /// Whether any text leads from the state to an accepting one.
    alive: Vec<bool>,
}

impl Language {
    /// The texts for which `accept` is true, given which of these expressions (known to be valid)
    /// match.
    fn new(patterns: &[&str], accept: impl Fn(&[bool]) -> bool) -> Self {
        let automata: Vec<_> = patterns.iter().filter_map(|pattern| automaton(pattern)).collect();
        let start: Option<Vec<StateID>> = automata.iter().map(start_of).collect();
        let mut numbers: HashMap<Vec<StateID>, u16> = HashMap::new();
        let mut states: Vec<Vec<StateID>> = start.into_iter().collect();
        numbers.extend(states.first().map(|state| (state.clone(), 0)));
        let (mut next, mut accepts) = (Vec::new(), Vec::new());
        while let Some(state) = states.get(next.len()).cloned() {
            let mut row = [0; 256];
            for byte in 0..=u8::MAX {
                let to: Vec<_> =
                    automata.iter().zip(&state).map(|(automaton, at)| automaton.next_state(*at, byte)).collect();
                let number = u16::try_from(states.len()).unwrap_or_default();
                row[usize::from(byte)] = *numbers.entry(to.clone()).or_insert_with(|| {
                    states.push(to);
                    number
                });
            }
            let ends =
                |(automaton, at): (&DFA<Vec<u32>>, &StateID)| automaton.is_match_state(automaton.next_eoi_state(*at));
            let ends: Vec<bool> = automata.iter().zip(&state).map(ends).collect();
            accepts.push(accept(&ends));
            next.push(row);
        }
        let mut alive = accepts.clone();
        while let Some(found) =
            (0..next.len()).find(|at| !alive[*at] && next[*at].iter().any(|to| alive[usize::from(*to)]))
        {
            alive[found] = true;
        }
        Self { next, accepts, alive }
    }

    /// One representative of each class of bytes that neither automaton distinguishes.
    fn bytes(&self, other: &DFA<Vec<u32>>) -> Vec<u8> {
        let mut kinds = HashSet::new();
        let kind = |byte: u8| {
            (other.byte_classes().get(byte), self.next.iter().map(|row| row[usize::from(byte)]).collect::<Vec<_>>())
        };
        (0..=u8::MAX).filter(|byte| kinds.insert(kind(*byte))).collect()
    }
}

fn automaton(pattern: &str) -> Option<DFA<Vec<u32>>> {
    let config = dense::Config::new().match_kind(MatchKind::All).start_kind(StartKind::Anchored).minimize(true);
    let syntax = regex_automata::util::syntax::Config::new().unicode(false).utf8(false);
    let nfa = regex_automata::nfa::thompson::Config::new().utf8(false);
    dense::Builder::new().configure(config).syntax(syntax).thompson(nfa).build(pattern).ok()
}

fn start_of(automaton: &DFA<Vec<u32>>) -> Option<StateID> {
    automaton.start_state(&start::Config::new().anchored(Anchored::Yes)).ok()
}

/// Whether an automaton matches any text of a form.
pub(super) fn may_match(automaton: &DFA<Vec<u32>>, form: Form) -> bool {
    let language = form.language();
    let bytes = language.bytes(automaton);
    let mut open: Vec<(StateID, u16)> = start_of(automaton).into_iter().map(|start| (start, 0)).collect();
    let mut seen: HashSet<(StateID, u16)> = open.iter().copied().collect();
    while let Some((state, at)) = open.pop() {
        if language.accepts[usize::from(at)] && automaton.is_match_state(automaton.next_eoi_state(state)) {
            return true;
        }
        for byte in &bytes {
            let to = (automaton.next_state(state, *byte), language.next[usize::from(at)][usize::from(*byte)]);
            if !automaton.is_dead_state(to.0) && language.alive[usize::from(to.1)] && seen.insert(to) {
                open.push(to);
            }
        }
    }
    false
}

/// The alternatives in an expression that match no text of a form, as regular expressions. Empty
/// for an expression that cannot be parsed.
pub(crate) fn dead_alternatives(pattern: &str, form: Form) -> Vec<String> {
    let Ok(parsed) = ParserBuilder::new().unicode(false).utf8(false).nest_limit(50).build().parse(pattern) else {
        return Vec::new();
    };
    let language = form.language();
    let count = language.next.len();
    let start = (0..count).map(|at| at == 0).collect();
    let end = language.accepts.clone();
    let mut dead = Vec::new();
    Walk { language }.alternatives(&parsed, &start, &end, &mut dead);
    dead
}

/// Follows an expression through a language. A set of states is a list of booleans, one for each
/// state.
struct Walk<'a> {
    language: &'a Language,
}

type States = Vec<bool>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forward,
    Backward,
}

impl Walk<'_> {
    /// The states that the expression leads to from these states or, backwards, the states from
    /// which it leads to them. `^`, `$` and `\b` hold everywhere here.
    fn step(&self, hir: &Hir, from: &States, way: Way) -> States {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => from.clone(),
            HirKind::Literal(literal) => {
                let byte = |states: States, byte: &u8| self.bytes(&states, *byte, *byte, way);
                match way {
                    Way::Forward => literal.0.iter().fold(from.clone(), byte),
                    Way::Backward => literal.0.iter().rev().fold(from.clone(), byte),
                }
            }
            HirKind::Class(Class::Bytes(class)) => class.iter().fold(vec![false; from.len()], |to, range| {
                union(to, &self.bytes(from, range.start(), range.end(), way))
            }),
            // There is no such class if Unicode is off.
            HirKind::Class(Class::Unicode(_)) => vec![true; from.len()],
            HirKind::Repetition(repetition) => {
                let (mut all, mut present) = (vec![false; from.len()], from.clone());
                for count in 0..=repetition.max.unwrap_or(u32::MAX) {
                    if count >= repetition.min {
                        let more = union(all.clone(), &present);
                        if more == all {
                            break;
                        }
                        all = more;
                    }
                    present = self.step(&repetition.sub, &present, way);
                }
                all
            }
            HirKind::Capture(capture) => self.step(&capture.sub, from, way),
            HirKind::Concat(parts) => match way {
                Way::Forward => parts.iter().fold(from.clone(), |states, part| self.step(part, &states, way)),
                Way::Backward => parts.iter().rev().fold(from.clone(), |states, part| self.step(part, &states, way)),
            },
            HirKind::Alternation(parts) => {
                parts.iter().fold(vec![false; from.len()], |to, part| union(to, &self.step(part, from, way)))
            }
        }
    }

    fn bytes(&self, from: &States, first: u8, last: u8, way: Way) -> States {
        let mut to = vec![false; from.len()];
        for (at, row) in self.language.next.iter().enumerate() {
            for next in &row[usize::from(first)..=usize::from(last)] {
                match way {
                    Way::Forward if from[at] => to[usize::from(*next)] = true,
                    Way::Backward if from[usize::from(*next)] => to[at] = true,
                    _ => {}
                }
            }
        }
        to
    }

    /// Collects the alternatives that lead from no state of `before` to a state of `after`.
    fn alternatives(&self, hir: &Hir, before: &States, after: &States, dead: &mut Vec<String>) {
        match hir.kind() {
            HirKind::Capture(capture) => self.alternatives(&capture.sub, before, after, dead),
            HirKind::Repetition(repetition) => {
                let whole = Hir::repetition(regex_syntax::hir::Repetition {
                    min: 0,
                    max: None,
                    greedy: true,
                    sub: repetition.sub.clone(),
                });
                let (before, after) =
                    (self.step(&whole, before, Way::Forward), self.step(&whole, after, Way::Backward));
                self.alternatives(&repetition.sub, &before, &after, dead);
            }
            HirKind::Concat(parts) => {
                let mut before = before.clone();
                for (index, part) in parts.iter().enumerate() {
                    let rest = parts.get(index + 1..).unwrap_or_default();
                    let after =
                        rest.iter().rev().fold(after.clone(), |states, part| self.step(part, &states, Way::Backward));
                    self.alternatives(part, &before, &after, dead);
                    before = self.step(part, &before, Way::Forward);
                }
            }
            HirKind::Alternation(parts) => {
                for part in parts {
                    let to = self.step(part, before, Way::Forward);
                    if to.iter().zip(after).any(|(to, after)| *to && *after) {
                        self.alternatives(part, before, after, dead);
                    } else {
                        dead.push(shown(part));
                    }
                }
            }
            HirKind::Empty | HirKind::Look(_) | HirKind::Literal(_) | HirKind::Class(_) => {}
        }
    }
}

/// A text is shown without a surrounding group.
fn shown(part: &Hir) -> String {
    match part.kind() {
        HirKind::Literal(literal) => String::from_utf8_lossy(&literal.0).into_owned(),
        _ => part.to_string(),
    }
}

fn union(mut states: States, more: &States) -> States {
    states.iter_mut().zip(more).for_each(|(state, more)| *state |= more);
    states
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_policy::path::normalise;
    use proptest::prelude::*;

    fn is_in(form: Form, text: &[u8]) -> bool {
        let language = form.language();
        let end = text.iter().fold(0, |at, byte| language.next[usize::from(at)][usize::from(*byte)]);
        language.accepts[usize::from(end)]
    }

    /// Encoded separators are treated like other escapes here.
    fn is_normal(path: &str) -> bool {
        let path = path.replace("%2F", "%20").replace("%5C", "%20");
        normalise(&path).is_ok_and(|normal| normal == path)
    }

    fn matches(pattern: &str, form: Form) -> bool {
        may_match(&automaton(pattern).unwrap(), form)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// The language of paths is the set of normalised paths.
        #[test]
        fn paths_are_those_that_normalising_leaves_as_they_are(path in r"/?[a/.;%?*#25eEfF3bBcC~ é\[{\\]{0,10}") {
            let path = path.as_str();
            let normal = !path.contains('?') && is_normal(path);
            prop_assert_eq!(is_in(Form::Path, path.as_bytes()), normal);
            if !path.contains('?') {
                let with_query = format!("{path}?a=/../%2f");
                prop_assert_eq!(is_in(Form::PathWithQuery, with_query.as_bytes()), normal);
            }
        }

        #[test]
        fn every_byte_and_every_escape(byte in any::<u8>(), upper in any::<bool>()) {
            let escape = if upper { format!("/x%{byte:02X}") } else { format!("/x%{byte:02x}") };
            prop_assert_eq!(is_in(Form::Path, escape.as_bytes()), is_normal(&escape));
            if byte != b'?' && let Ok(text) = std::str::from_utf8(&[b'/', byte, b'x']) {
                prop_assert_eq!(is_in(Form::Path, text.as_bytes()), is_normal(text));
            }
        }
    }

    #[test]
    fn expressions_that_match_nothing_that_comes() {
        for (form, pattern) in [
            (Form::Path, "/a b"),
            (Form::Path, "/café"),
            (Form::Path, "/caf%c3%a9"),
            (Form::Path, "/a%2fb"),
            (Form::Path, "/%61"),
            (Form::Path, "//admin"),
            (Form::Path, r"/a/\./b"),
            (Form::Path, r"/a/\.\./b"),
            (Form::Path, r"/a/\.\.;x/b"),
            (Form::Path, "/a/;x"),
            (Form::Path, r"/a\?b=c"),
            (Form::Path, "/a#b"),
            (Form::Path, "admin/.*"),
            (Form::Path, r"/a\\b"),
            (Form::Path, "/a$/b"),
            (Form::Path, "/a^b"),
            (Form::Path, "/(a b|c d)"),
            (Form::Path, r"/\{id\}"),
            (Form::PathWithQuery, "/a b.*"),
            (Form::PathWithQuery, r"/a\?b#c"),
            (Form::PathWithQuery, r"/a\?b c"),
            (Form::Host, r"Shop\.example"),
            (Form::Host, r"shop\.example:8080"),
            (Form::Host, r"shop\.example\."),
            (Form::Host, r"shop\.\.example"),
            (Form::Host, "https://shop"),
            (Form::Method, "get"),
            (Form::Method, "get|Post"),
            (Form::Method, "GET POST"),
            (Form::Method, "GET,POST"),
            (Form::HeaderValue, " a"),
            (Form::HeaderValue, "a\\n"),
            (Form::Any, "a$b"),
            (Form::Any, "b^a"),
            (Form::Any, r"a\bb"),
        ] {
            assert!(!matches(pattern, form), "{form:?} {pattern}");
        }
        for (form, pattern) in [
            (Form::Path, "/a%20b"),
            (Form::Path, "/a%2Fb"),
            (Form::Path, "/caf%C3%A9"),
            (Form::Path, "/.*"),
            (Form::Path, "/a/../b"),
            (Form::Path, "^/orders/[0-9]+$"),
            (Form::Path, r"\*"),
            (Form::Path, r"/\.well-known/.*"),
            (Form::Path, "/a;v=1/"),
            (Form::Path, "(?i)/ADMIN"),
            (Form::Path, ".*"),
            (Form::Path, "/[^/]+"),
            (Form::PathWithQuery, r"/a\?b=%2f.*"),
            (Form::PathWithQuery, r"/a(\?.*)?"),
            (Form::Host, r"(?:.*\.)?shop\.example"),
            (Form::Host, "(?i)Shop.Example"),
            (Form::Host, ""),
            (Form::Host, r"\[::1\]"),
            (Form::Method, "GET|post"),
            (Form::Method, "(?i)get"),
            (Form::Method, "purge"),
            (Form::Method, "[a-z]+"),
            (Form::HeaderValue, "a b\\t.*"),
            (Form::HeaderValue, ""),
            (Form::Any, ".*\u{e9}"),
        ] {
            assert!(matches(pattern, form), "{form:?} {pattern}");
        }
    }

    #[test]
    fn alternatives_that_match_nothing_are_found() {
        for (form, pattern, dead) in [
            (Form::Path, "/admin|/café", vec!["/caf(?-u:\\xC3\\xA9)"]),
            (Form::Path, "/(x|a b)/c", vec!["a b"]),
            (Form::Path, "/(x|y)/c|/ok", vec![]),
            (Form::Path, "(?:/x|//y)*", vec!["//y"]),
            (Form::Path, "/api(/.*|$)", vec![]),
            (Form::Path, "/a/(b|/c)", vec!["/c"]),
            (Form::Method, "get|POST", vec!["get"]),
            (Form::Method, "GET|POST", vec![]),
            (Form::Host, r"shop\.example|Shop\.Example", vec!["Shop\\.Example"]),
        ] {
            let found = dead_alternatives(pattern, form);
            assert_eq!(found.len(), dead.len(), "{pattern}: {found:?} {dead:?}");
        }
    }
}
