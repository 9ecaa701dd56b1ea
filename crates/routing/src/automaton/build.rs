//! Builds an automaton: each of its states is the set of states in which the patterns'
//! non-deterministic automata can be after the same text.

use super::look::{Neighbour, holds};
use super::{Automaton, Edge, State};
use crate::pattern::Pattern;
use crate::rule_set::RuleSet;
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::primitives::{PatternID, StateID};
use regex_syntax::hir::Hir;
use std::collections::HashMap;

/// States with more edges get a row.
const MAX_EDGES: usize = 6;
/// Steps of building for each byte that the automaton may have, and those that each may take.
const STEPS_PER_BYTE: usize = 16;
const MIN_STEPS: usize = 2_000_000;

/// The states of the patterns after a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    /// The last byte of the text, if patterns look around.
    before: Neighbour,
    /// Patterns that any text can come before can begin here.
    floats: bool,
    items: Box<[u32]>,
}

/// An edge from one state of the patterns.
#[derive(Clone, Copy)]
struct Move {
    first: u8,
    last: u8,
    item: u32,
}

/// The moves and matches of some states of the patterns.
#[derive(Default)]
struct Moves {
    moves: Vec<Move>,
    matches: Vec<u32>,
}

pub(super) struct Builder<'p> {
    patterns: &'p [(Pattern, RuleSet)],
    nfa: NFA,
    looks: bool,
    /// Number of classes of bytes.
    classes: usize,
    places: Vec<Place>,
    ids: HashMap<Place, u32>,
    /// The patterns that any text can come before: those that match it, where the bytes of their
    /// moves begin and end, and the next states by class.
    floating_matches: Vec<u32>,
    floating_cuts: Vec<u16>,
    floating_items: Vec<Vec<u32>>,
    outputs: HashMap<Vec<u32>, u32>,
    /// Marks of the states that [`Self::close`] has seen.
    seen: Vec<u32>,
    round: u32,
    limit: usize,
    size: usize,
    steps: usize,
    built: Automaton,
}

impl<'p> Builder<'p> {
    /// `None`: already the patterns are too large.
    pub(super) fn new(patterns: &'p [(Pattern, RuleSet)], limit: usize) -> Option<Self> {
        let config = thompson::Config::new()
            .utf8(false)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(limit.saturating_mul(STEPS_PER_BYTE)));
        let expressions: Vec<&Hir> = patterns.iter().map(|(pattern, _)| &pattern.hir).collect();
        let nfa = thompson::Compiler::new().configure(config).build_many_from_hir(&expressions).ok()?;
        let classes = Classes::of(&nfa);
        let built = Automaton {
            states: Vec::new(),
            edges: Vec::new(),
            rows: vec![0; classes.count],
            classes: classes.of_bytes,
            outputs: vec![RuleSet::default()],
            start: 0,
        };
        Some(Self {
            patterns,
            looks: !nfa.look_set_any().is_empty(),
            seen: vec![0; nfa.states().len()],
            classes: classes.count,
            nfa,
            places: Vec::new(),
            ids: HashMap::new(),
            floating_matches: Vec::new(),
            floating_cuts: Vec::new(),
            floating_items: Vec::new(),
            outputs: HashMap::from([(Vec::new(), 0)]),
            round: 0,
            limit,
            size: 0,
            steps: 0,
            built,
        })
    }

    /// `None`: it is too large.
    pub(super) fn build(mut self) -> Option<Automaton> {
        self.id(Neighbour::Edge, false, &[]);
        let (floating, fixed) = self.starts();
        if !floating.is_empty() {
            let items = self.close(&floating, Neighbour::Edge, Neighbour::Edge);
            let Moves { moves, matches } = self.moves(&items);
            self.floating_cuts = moves.iter().flat_map(ends).chain([10, 11]).collect();
            self.floating_cuts.sort_unstable();
            self.floating_cuts.dedup();
            self.floating_matches = matches;
            let mut row = Vec::with_capacity(self.classes);
            for byte in 0..=u8::MAX {
                if usize::from(self.built.classes[usize::from(byte)]) == row.len() {
                    let items = targets(&moves, byte);
                    row.push(self.id(Neighbour::Edge, byte != b'\n', &items));
                    self.floating_items.push(items);
                }
            }
            self.built.rows.extend(row);
        }
        self.built.start = self.id(Neighbour::Edge, !floating.is_empty(), &fixed);
        let mut at = 0;
        while let Some(place) = self.places.get(at).cloned() {
            self.add_state(&place);
            if self.size > self.limit
                || self.steps > self.limit.saturating_mul(STEPS_PER_BYTE).saturating_add(MIN_STEPS)
            {
                return None;
            }
            at += 1;
        }
        Some(self.built)
    }

    /// The first states of the patterns: of those that any text can come before, and of the others.
    fn starts(&self) -> (Vec<u32>, Vec<u32>) {
        let (mut floating, mut fixed) = (Vec::new(), Vec::new());
        for (index, (pattern, _)) in self.patterns.iter().enumerate() {
            let start = PatternID::new(index).ok().and_then(|id| self.nfa.start_pattern(id));
            let starts = if pattern.floats { &mut floating } else { &mut fixed };
            starts.extend(start.map(|state| state.as_u32()));
        }
        (floating, fixed)
    }

    fn id(&mut self, before: Neighbour, floats: bool, items: &[u32]) -> u32 {
        // Without looking around, the ways from a state do not depend on the text.
        let items = if self.looks { sorted(items.to_vec()) } else { self.close(items, before, before) };
        let place = Place { before, floats, items: items.into() };
        let next = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        *self.ids.entry(place).or_insert_with_key(|place| {
            self.size += size_of::<State>();
            self.places.push(place.clone());
            next
        })
    }

    fn add_state(&mut self, place: &Place) {
        let own = self.moves_at(place);
        let mut matches = own.matches;
        let mut cuts: Vec<u16> = own.moves.iter().flat_map(ends).collect();
        if place.floats {
            matches.extend(&self.floating_matches);
            cuts.extend(&self.floating_cuts);
        }
        cuts.sort_unstable();
        cuts.dedup();
        self.steps += place.items.len() + own.moves.len().saturating_mul(cuts.len());
        let mut edges: Vec<Edge> = Vec::new();
        for cut in cuts.windows(2) {
            let [Ok(first), Ok(last)] = [cut[0], cut[1] - 1].map(u8::try_from) else { continue };
            let mut items = targets(&own.moves, first);
            if items.is_empty() {
                continue;
            }
            if place.floats {
                items.extend(&self.floating_items[usize::from(self.built.classes[usize::from(first)])]);
            }
            let before = if self.looks { Neighbour::of(first) } else { Neighbour::Edge };
            let next = self.id(before, place.floats && first != b'\n', &items);
            self.steps += items.len();
            match edges.last_mut() {
                Some(edge) if edge.next == next && u16::from(edge.last) + 1 == cut[0] => edge.last = last,
                _ => edges.push(Edge { first, last, next }),
            }
        }
        let mut row = if place.floats { self.classes } else { 0 };
        if edges.len() > MAX_EDGES || size_of_val(&*edges) > self.classes * size_of::<u32>() {
            let first = std::mem::replace(&mut row, self.built.rows.len());
            self.built.rows.extend_from_within(first..first + self.classes);
            for edge in edges.drain(..) {
                for byte in edge.first..=edge.last {
                    self.built.rows[row + usize::from(self.built.classes[usize::from(byte)])] = edge.next;
                }
            }
            self.size += self.classes * size_of::<u32>();
        }
        let row = u32::try_from(row).unwrap_or_default();
        self.size += size_of_val(&*edges);
        let (open, closed) = matches.into_iter().partition(|id| self.patterns[*id as usize].0.is_open);
        let (open, closed) = (self.output(open), self.output(closed));
        let first_edge = u32::try_from(self.built.edges.len()).unwrap_or_default();
        let count = u32::try_from(edges.len()).unwrap_or_default();
        self.built.edges.append(&mut edges);
        self.built.states.push(State { first_edge, edges: count, row, open, closed });
    }

    /// The rules of some patterns.
    fn output(&mut self, patterns: Vec<u32>) -> u32 {
        let patterns = sorted(patterns);
        self.steps += patterns.len();
        if let Some(id) = self.outputs.get(&patterns) {
            return *id;
        }
        let set = RuleSet::union(patterns.iter().map(|id| &self.patterns[*id as usize].1));
        self.size += set.size() + size_of::<RuleSet>();
        let id = u32::try_from(self.built.outputs.len()).unwrap_or_default();
        self.built.outputs.push(set);
        self.outputs.insert(patterns, id);
        id
    }

    fn moves_at(&mut self, place: &Place) -> Moves {
        if !self.looks {
            return self.moves(&place.items);
        }
        let mut all = Moves::default();
        for after in Neighbour::BYTES {
            let items = self.close(&place.items, place.before, after);
            let moves = self.moves(&items).moves;
            all.moves.extend(moves.iter().flat_map(|way| {
                let ranges = after.ranges().iter();
                let common = ranges.map(|(first, last)| (way.first.max(*first), way.last.min(*last)));
                let common = common.filter(|(first, last)| first <= last);
                common.map(|(first, last)| Move { first, last, item: way.item })
            }));
        }
        let items = self.close(&place.items, place.before, Neighbour::Edge);
        all.matches = self.moves(&items).matches;
        all
    }

    fn moves(&self, items: &[u32]) -> Moves {
        let mut found = Moves::default();
        for item in items {
            match self.state(*item) {
                thompson::State::ByteRange { trans } => found.add(trans),
                thompson::State::Sparse(sparse) => sparse.transitions.iter().for_each(|trans| found.add(trans)),
                thompson::State::Dense(dense) => {
                    for byte in 0..=u8::MAX {
                        if let Some(next) = dense.matches_byte(byte) {
                            found.moves.push(Move { first: byte, last: byte, item: next.as_u32() });
                        }
                    }
                }
                thompson::State::Match { pattern_id } => found.matches.push(pattern_id.as_u32()),
                _ => {}
            }
        }
        found
    }

    /// The states that read a byte or match, and that can be reached without a byte.
    fn close(&mut self, items: &[u32], before: Neighbour, after: Neighbour) -> Vec<u32> {
        self.round += 1;
        let mut stack: Vec<u32> = items.to_vec();
        let mut found = Vec::new();
        while let Some(item) = stack.pop() {
            let Some(seen) = self.seen.get_mut(item as usize) else { continue };
            if std::mem::replace(seen, self.round) == self.round {
                continue;
            }
            self.steps += 1;
            match self.state(item) {
                thompson::State::Look { look, next } if holds(*look, before, after) => stack.push(next.as_u32()),
                thompson::State::Look { .. } | thompson::State::Fail => {}
                thompson::State::Union { alternates } => stack.extend(alternates.iter().map(|id| id.as_u32())),
                thompson::State::BinaryUnion { alt1, alt2 } => stack.extend([alt1.as_u32(), alt2.as_u32()]),
                thompson::State::Capture { next, .. } => stack.push(next.as_u32()),
                _ => found.push(item),
            }
        }
        sorted(found)
    }

    fn state(&self, id: u32) -> &thompson::State {
        self.nfa.state(StateID::new(id as usize).unwrap_or(StateID::ZERO))
    }
}

impl Moves {
    fn add(&mut self, trans: &thompson::Transition) {
        self.moves.push(Move { first: trans.start, last: trans.end, item: trans.next.as_u32() });
    }
}

/// Classes of bytes, in the order of bytes: the bytes of one have the same edges everywhere.
struct Classes {
    of_bytes: Box<[u8; 256]>,
    count: usize,
}

impl Classes {
    fn of(nfa: &NFA) -> Self {
        // Expressions that any text can come before end at a line's end.
        let mut begins = [false; 257];
        begins[10] = true;
        begins[11] = true;
        let mut range = |first: u8, last: u8| {
            begins[usize::from(first)] = true;
            begins[usize::from(last) + 1] = true;
        };
        if !nfa.look_set_any().is_empty() {
            let ranges = Neighbour::BYTES.into_iter().flat_map(Neighbour::ranges);
            ranges.for_each(|(first, last)| range(*first, *last));
        }
        for state in nfa.states() {
            match state {
                thompson::State::ByteRange { trans } => range(trans.start, trans.end),
                thompson::State::Sparse(sparse) => sparse.transitions.iter().for_each(|one| range(one.start, one.end)),
                thompson::State::Dense(_) => (0..=u8::MAX).for_each(|byte| range(byte, byte)),
                _ => {}
            }
        }
        let mut of_bytes = Box::new([0; 256]);
        let mut class = 0;
        for byte in 1..256 {
            class += u8::from(begins[byte]);
            of_bytes[byte] = class;
        }
        Self { of_bytes, count: usize::from(class) + 1 }
    }
}

/// Where a range of bytes begins and ends.
fn ends(way: &Move) -> [u16; 2] {
    [u16::from(way.first), u16::from(way.last) + 1]
}

fn targets(moves: &[Move], byte: u8) -> Vec<u32> {
    moves.iter().filter(|way| way.first <= byte && byte <= way.last).map(|way| way.item).collect()
}

fn sorted(mut items: Vec<u32>) -> Vec<u32> {
    items.sort_unstable();
    items.dedup();
    items
}
