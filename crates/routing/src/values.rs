//! Patterns of one text (the path, a header field, a query parameter), and the rules that have
//! them.

use crate::automaton::Automaton;
use crate::pattern::{Pattern, TextKind};
use crate::rule_set::RuleSet;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most automata for one text: a request with a long head takes at most so many times as long as
/// with one.
pub(crate) const MAX_AUTOMATA: usize = 32;

/// A pattern of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TextPattern<'p> {
    /// This text.
    Exact(&'p str),
    /// Texts that begin with this one.
    Prefix(&'p str),
    /// Texts that begin with this one and a slash.
    Folder(&'p str),
    /// Texts that this regular expression matches from beginning to end.
    Regex(&'p str),
}

/// The patterns of one text, with the places of their rules.
pub(crate) type Patterns<'p> = BTreeMap<TextPattern<'p>, Vec<usize>>;

/// Finds the rules whose pattern a text matches.
#[derive(Debug)]
pub(crate) struct ValueIndex {
    exact: HashMap<Box<[u8]>, RuleSet>,
    automata: Vec<Automaton>,
    kind: TextKind,
    /// The rules that are in no automaton, because there are too many.
    missing: RuleSet,
}

impl ValueIndex {
    /// The patterns are checked: [`crate::check_regex`]. With more than `most` automata it is not
    /// complete.
    pub(crate) fn new(patterns: Patterns<'_>, kind: TextKind, most: usize) -> Self {
        let mut exact = HashMap::new();
        let mut others = Vec::new();
        for (pattern, places) in patterns {
            let rules = RuleSet::of(places);
            match pattern {
                TextPattern::Exact(text) => {
                    exact.insert(text.as_bytes().into(), rules);
                }
                TextPattern::Prefix(text) => others.push((Pattern::literal(text.as_bytes(), true), rules)),
                TextPattern::Folder(text) => {
                    others.push((Pattern::literal(&[text.as_bytes(), b"/"].concat(), true), rules));
                }
                TextPattern::Regex(text) => {
                    let patterns = Pattern::regex(text, kind).unwrap_or_default();
                    others.extend(patterns.into_iter().map(|pattern| (pattern, rules.clone())));
                }
            }
        }
        let all = RuleSet::union(others.iter().map(|(_, rules)| rules));
        let mut index = Self { exact, automata: Automaton::all(others, most), kind, missing: RuleSet::default() };
        if index.automata.len() > most {
            let found: BTreeSet<usize> = index.rules().iter().flat_map(RuleSet::places).collect();
            index.missing = RuleSet::of(all.places().filter(|place| !found.contains(place)));
        }
        index
    }

    pub(crate) fn automata(&self) -> usize {
        self.automata.len()
    }

    /// The rules of each automaton.
    pub(crate) fn rules(&self) -> Vec<RuleSet> {
        self.automata.iter().map(Automaton::rules).collect()
    }

    /// The rules that are in none, because there are too many.
    pub(crate) fn missing(&self) -> &RuleSet {
        &self.missing
    }

    /// Adds the rules whose pattern `text` matches.
    pub(crate) fn run(&self, text: &[u8], rules: &mut [u64]) {
        if !self.exact.is_empty()
            && let Some(exact) = self.exact.get(text)
        {
            exact.add_to(rules);
        }
        if self.automata.is_empty() {
            return;
        }
        let last_line = match self.kind {
            TextKind::Line => 0,
            TextKind::Lines => text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1),
        };
        for automaton in &self.automata {
            automaton.run(text, last_line, rules);
        }
    }
}
