//! One automaton for many patterns: it reads a text once, and finds the rules of all patterns that
//! match the whole text.
//!
//! It is deterministic and complete before the first request: no text can make it slow, or make it
//! grow. Patterns whose common automaton would be too large are divided among several.

mod build;
mod look;

use crate::pattern::{Pattern, TextKind};
use crate::rule_set::RuleSet;
use build::Builder;

/// Largest automaton of one pattern, in bytes. [`crate::check_regex`] refuses larger ones.
const MAX_SINGLE: usize = 128 * 1024;
/// Bytes that an automaton may have for each further pattern.
const MAX_EACH: usize = 4 * 1024;
/// Largest automaton of many patterns, in bytes.
const MAX_SIZE: usize = 8 * 1024 * 1024;

/// An automaton. State 0 is the one that no text leaves.
#[derive(Debug)]
pub(crate) struct Automaton {
    states: Vec<State>,
    edges: Vec<Edge>,
    /// Next states by class of byte. Row 0 leads to state 0 only.
    rows: Vec<u32>,
    /// The classes of bytes: those of one class have the same edges everywhere.
    classes: Box<[u8; 256]>,
    /// Sets of rules. Set 0 is empty.
    outputs: Vec<RuleSet>,
    start: u32,
}

/// A state: its edges, and the row for bytes of no edge.
#[derive(Debug, Default)]
struct State {
    first_edge: u32,
    edges: u32,
    /// The place of the row's first class.
    row: u32,
    /// The rules that match however the text goes on.
    open: u32,
    /// The rules that match if the text ends here.
    closed: u32,
}

/// The next state for a range of bytes.
#[derive(Debug)]
struct Edge {
    first: u8,
    last: u8,
    next: u32,
}

impl Automaton {
    /// Automata for patterns and their rules. Each pattern on its own is small enough:
    /// [`crate::check_regex`]. Dividing ends with more than `most`: then some rules are missing.
    pub(crate) fn all(patterns: Vec<(Pattern, RuleSet)>, most: usize) -> Vec<Self> {
        let (looking, plain): (Vec<_>, Vec<_>) = patterns.into_iter().partition(|(pattern, _)| pattern.looks_around());
        let mut automata = Vec::new();
        divide(&plain, &mut automata, most);
        divide(&looking, &mut automata, most);
        automata
    }

    /// One automaton for all patterns; `None`: it would be too large. Either all patterns look
    /// around or none.
    pub(crate) fn bounded(patterns: &[(Pattern, RuleSet)]) -> Option<Self> {
        let limit = MAX_SINGLE.saturating_add(patterns.len().saturating_sub(1).saturating_mul(MAX_EACH)).min(MAX_SIZE);
        Builder::new(patterns, limit)?.build()
    }

    /// Adds the rules whose patterns match `text`. Patterns with an open end match only if no line
    /// ends at or after `last_line`, the place after the last line's end.
    pub(crate) fn run(&self, text: &[u8], last_line: usize, rules: &mut [u64]) {
        let mut state = self.state(self.start);
        if state.open != 0 && last_line == 0 {
            self.add(state.open, rules);
        }
        for (at, byte) in text.iter().enumerate() {
            let next = self.next(state, *byte);
            if next == 0 {
                return;
            }
            state = self.state(next);
            if state.open != 0 && at >= last_line.saturating_sub(1) {
                self.add(state.open, rules);
            }
        }
        self.add(state.closed, rules);
    }

    /// The rules that it can find.
    pub(crate) fn rules(&self) -> RuleSet {
        RuleSet::union(&self.outputs)
    }

    fn next(&self, state: &State, byte: u8) -> u32 {
        let first = state.first_edge as usize;
        let edges = self.edges.get(first..first + state.edges as usize).unwrap_or_default();
        match edges.iter().find(|edge| byte <= edge.last) {
            Some(edge) if edge.first <= byte => edge.next,
            _ => {
                let class = usize::from(self.classes[usize::from(byte)]);
                self.rows.get(state.row as usize + class).copied().unwrap_or_default()
            }
        }
    }

    fn state(&self, state: u32) -> &State {
        &self.states[state as usize]
    }

    fn add(&self, output: u32, rules: &mut [u64]) {
        if output != 0 {
            self.outputs[output as usize].add_to(rules);
        }
    }

    /// Memory, in bytes.
    #[cfg(test)]
    fn size(&self) -> usize {
        size_of_val(&*self.states)
            + size_of_val(&*self.edges)
            + size_of_val(&*self.rows)
            + self.outputs.iter().map(RuleSet::size).sum::<usize>()
    }
}

/// Builds an automaton, or if it is too large, those of both halves.
fn divide(patterns: &[(Pattern, RuleSet)], automata: &mut Vec<Automaton>, most: usize) {
    if patterns.is_empty() || automata.len() > most {
        return;
    }
    let automaton = match patterns {
        [_] => Builder::new(patterns, usize::MAX).and_then(Builder::build),
        patterns => Automaton::bounded(patterns),
    };
    match automaton {
        Some(automaton) => automata.push(automaton),
        None => {
            let (one, other) = patterns.split_at(patterns.len() / 2);
            divide(one, automata, most);
            divide(other, automata, most);
        }
    }
}

/// Checks a regular expression of a route. The message names the mistake.
///
/// # Errors
/// It is not RE2's syntax, or too large as an automaton.
pub fn check_regex(text: &str) -> Result<(), String> {
    for kind in [TextKind::Line, TextKind::Lines] {
        let patterns = Pattern::regex(text, kind)?;
        let patterns: Vec<_> = patterns.into_iter().map(|pattern| (pattern, RuleSet::default())).collect();
        if Automaton::bounded(&patterns).is_none() {
            let text = text.escape_debug();
            return Err(format!("`{text}` is too large as an automaton: repeat less often, or write several"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
