//! Patterns of texts.

use regex_automata::dfa::{Automaton, dense};
use regex_automata::util::syntax;
use regex_automata::{Input, MatchKind};
use std::sync::OnceLock;

/// A regular expression that a text has to match somewhere.
pub(crate) struct Pattern {
    text: &'static str,
    /// The expected form, for messages.
    pub(crate) words: &'static str,
    automaton: OnceLock<Option<dense::DFA<Vec<u32>>>>,
}

/// Keys of labels and annotations.
pub(crate) static LABEL_KEY: Pattern = Pattern::new(
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$",
    "at most 63 letters, digits, `-`, `_` and `.`, perhaps after a domain and `/`",
);

impl Pattern {
    pub(crate) const fn new(text: &'static str, words: &'static str) -> Self {
        Self { text, words, automaton: OnceLock::new() }
    }

    /// Whether a text matches.
    pub(crate) fn matches(&self, text: &str) -> bool {
        // A test builds those of all patterns.
        let Some(automaton) = self.automaton() else { return false };
        automaton.try_search_fwd(&Input::new(text).earliest(true)).is_ok_and(|end| end.is_some())
    }

    /// Its automaton; `None`: it has none.
    pub(crate) fn automaton(&self) -> Option<&dense::DFA<Vec<u32>>> {
        let built = || {
            let syntax = syntax::Config::new().unicode(false).utf8(false);
            let config = dense::Config::new().match_kind(MatchKind::All);
            dense::Builder::new().syntax(syntax).configure(config).build(self.text).ok()
        };
        self.automaton.get_or_init(built).as_ref()
    }
}
