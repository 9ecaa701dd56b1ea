//! Rules among which a request's path does not decide alone, in their order.

use crate::entry::Entry;
use crate::pattern::TextKind;
use crate::request::RequestParts;
use crate::rule_set::{self, RuleSet};
use crate::values::{MAX_AUTOMATA, Patterns, TextPattern, ValueIndex};
use http::HeaderName;
use leno_model::{FieldMatch, PathPattern, RouteMatch, ValuePattern};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Words of a set that fit on the stack: those of 1024 rules.
const WORDS: usize = 16;

/// The paths that a group's rules have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupPaths {
    /// All have the same path, which the request has too.
    Same,
    /// Each has its own.
    Own,
}

/// Rules in their order.
#[derive(Debug)]
pub(crate) struct Group<T> {
    entries: Vec<Arc<Entry<T>>>,
    /// `None`: each request that gets here matches all of them.
    index: Option<Index>,
}

impl<T> Group<T> {
    /// The rules come in their order. With more than `most` automata for a text the group is not
    /// complete.
    pub(crate) fn new(entries: Vec<Arc<Entry<T>>>, paths: GroupPaths, most: usize) -> Self {
        let is_plain = |RouteMatch { method, headers, query, .. }: &RouteMatch| {
            method.is_empty() && headers.is_empty() && query.is_empty()
        };
        let plain = paths == GroupPaths::Same && entries.iter().all(|entry| is_plain(&entry.pattern));
        let index = (!plain).then(|| Index::new(entries.iter().map(|entry| &entry.pattern), paths, most));
        Self { entries, index }
    }

    /// The largest number of automata for one text.
    pub(crate) fn automata(&self) -> usize {
        self.index.as_ref().map_or(0, Index::automata)
    }

    /// The values of the rules that are too much if there are more than [`MAX_AUTOMATA`] for a text.
    /// Lower values come first.
    pub(crate) fn excess(&self) -> BTreeSet<T>
    where
        T: Copy + Ord,
    {
        let value = |place: usize| self.entries.get(place).map(|entry| entry.value);
        let mut excess = BTreeSet::new();
        for values in self.index.iter().flat_map(Index::values).filter(|values| values.automata() > MAX_AUTOMATA) {
            let all = values.rules();
            let mut automata: Vec<BTreeSet<T>> =
                all.iter().map(|rules| rules.places().filter_map(value).collect()).collect();
            // The automata stay that have the first rules, and with them all their rules.
            automata.sort_by_key(|rules| rules.first().copied());
            excess.extend(automata.into_iter().skip(MAX_AUTOMATA).flatten());
            excess.extend(values.missing().places().filter_map(value));
        }
        excess
    }

    pub(crate) fn entries(&self) -> &[Arc<Entry<T>>] {
        &self.entries
    }

    /// The first rule that matches and whose value `admits` accepts.
    pub(crate) fn find(&self, request: &RequestParts<'_>, admits: &mut impl FnMut(&T) -> bool) -> Option<&Entry<T>> {
        let Some(index) = &self.index else {
            return self.entries.iter().find(|entry| admits(&entry.value)).map(|entry| &**entry);
        };
        let mut find = |sets: [&mut [u64]; 2]| {
            let rules = index.matching(request, sets);
            rule_set::places(rules)
                .filter_map(|place| self.entries.get(place))
                .find(|entry| admits(&entry.value))
                .map(|entry| &**entry)
        };
        match rule_set::words(self.entries.len()) {
            words @ ..=WORDS => {
                let (mut rules, mut scratch) = ([0; WORDS], [0; WORDS]);
                find([&mut rules[..words], &mut scratch[..words]])
            }
            words => find([&mut vec![0; words], &mut vec![0; words]]),
        }
    }
}

/// Finds the rules of a group that a request matches, without looking at each: for the path, the
/// method, each header field and each query parameter, the set of the rules that it lets pass.
#[derive(Debug)]
struct Index {
    rules: usize,
    /// Rules of any method, and of each; empty: all are of any.
    methods: Vec<(String, RuleSet)>,
    paths: Option<ValueIndex>,
    headers: Vec<(HeaderName, FieldIndex)>,
    parameters: Vec<FieldIndex>,
    /// The places of parameters by name.
    names: HashMap<Box<[u8]>, usize>,
}

/// The conditions on one field.
#[derive(Debug)]
struct FieldIndex {
    /// The rules that have one.
    conditional: RuleSet,
    values: ValueIndex,
}

impl Index {
    fn new<'m>(rules: impl Iterator<Item = &'m RouteMatch>, paths: GroupPaths, most: usize) -> Self {
        let mut methods: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut all_paths = Patterns::new();
        let mut headers: BTreeMap<String, Patterns<'_>> = BTreeMap::new();
        let mut parameters: BTreeMap<String, Patterns<'_>> = BTreeMap::new();
        let mut count = 0;
        for (place, rule) in rules.enumerate() {
            count = place + 1;
            methods.entry(&rule.method).or_default().push(place);
            for pattern in path_patterns(&rule.path).into_iter().flatten() {
                all_paths.entry(pattern).or_default().push(place);
            }
            for (fields, conditions) in
                [(&mut headers, header_conditions(rule)), (&mut parameters, parameter_conditions(rule))]
            {
                for (name, value) in conditions {
                    let pattern = match value {
                        ValuePattern::Exact(text) => TextPattern::Exact(text),
                        ValuePattern::Regex(text) => TextPattern::Regex(text),
                    };
                    fields.entry(name).or_default().entry(pattern).or_default().push(place);
                }
            }
        }
        if methods.keys().all(|method| method.is_empty()) {
            methods.clear();
        }
        let names = parameters.keys().enumerate().map(|(place, name)| (name.as_bytes().into(), place)).collect();
        let mut headers: Vec<_> = headers
            .into_iter()
            .filter_map(|(name, patterns)| {
                let name = HeaderName::try_from(name).ok()?;
                Some((name, FieldIndex::new(patterns, TextKind::Line, most)))
            })
            .collect();
        headers.sort_by_key(|(_, field)| Reverse(field.conditional.size()));
        Self {
            rules: count,
            methods: methods.into_iter().map(|(method, places)| (method.to_owned(), RuleSet::of(places))).collect(),
            paths: (paths == GroupPaths::Own).then(|| ValueIndex::new(all_paths, TextKind::Line, most)),
            headers,
            parameters: parameters
                .into_values()
                .map(|patterns| FieldIndex::new(patterns, TextKind::Lines, most))
                .collect(),
            names,
        }
    }

    fn automata(&self) -> usize {
        self.values().map(ValueIndex::automata).max().unwrap_or_default()
    }

    fn values(&self) -> impl Iterator<Item = &ValueIndex> {
        let fields = self.headers.iter().map(|(_, field)| field).chain(&self.parameters);
        fields.map(|field| &field.values).chain(&self.paths)
    }

    /// The rules that match. The sets are empty, and of the size of the group.
    fn matching<'s>(&self, request: &RequestParts<'_>, [rules, scratch]: [&'s mut [u64]; 2]) -> &'s [u64] {
        if self.methods.is_empty() {
            rule_set::add_all(self.rules, rules);
        } else {
            let method = request.method.as_str();
            for (_, set) in self.methods.iter().filter(|(name, _)| name.is_empty() || name == method) {
                set.add_to(rules);
            }
        }
        if let Some(paths) = &self.paths {
            paths.run(request.path.as_bytes(), scratch);
            rules.iter_mut().zip(&*scratch).for_each(|(rules, matching)| *rules &= matching);
        }
        for (name, field) in &self.headers {
            // A field that decides about no rule that is left need not be looked up.
            if field.conditional.meets(rules) {
                field.retain(request.header(name).as_deref(), rules, scratch);
            }
        }
        if !self.parameters.is_empty() && rules.iter().any(|word| *word != 0) {
            let mut values: Vec<Option<Cow<'_, [u8]>>> = vec![None; self.parameters.len()];
            for (name, value) in request.parameters() {
                if let Some(slot) = self.names.get(&*name).and_then(|place| values.get_mut(*place)) {
                    slot.get_or_insert(value);
                }
            }
            for (field, value) in self.parameters.iter().zip(values) {
                if field.conditional.meets(rules) {
                    field.retain(value.as_deref(), rules, scratch);
                }
            }
        }
        rules
    }
}

impl FieldIndex {
    fn new(patterns: Patterns<'_>, kind: TextKind, most: usize) -> Self {
        let mut places: Vec<usize> = patterns.values().flatten().copied().collect();
        places.sort_unstable();
        Self { conditional: RuleSet::of(places), values: ValueIndex::new(patterns, kind, most) }
    }

    /// Removes the rules that want another value.
    fn retain(&self, value: Option<&[u8]>, rules: &mut [u64], scratch: &mut [u64]) {
        self.conditional.clear(scratch);
        if let Some(value) = value {
            self.values.run(value, scratch);
        }
        self.conditional.retain(scratch, rules);
    }
}

fn path_patterns(path: &PathPattern) -> [Option<TextPattern<'_>>; 2] {
    match path {
        PathPattern::Exact(path) => [Some(TextPattern::Exact(path)), None],
        PathPattern::Prefix(path) if path.is_empty() => [Some(TextPattern::Prefix(path)), None],
        PathPattern::Prefix(path) => [Some(TextPattern::Exact(path)), Some(TextPattern::Folder(path))],
        PathPattern::Literal(path) => [Some(TextPattern::Prefix(path)), None],
        PathPattern::Regex(path) => [Some(TextPattern::Regex(path)), None],
    }
}

/// The conditions on header fields that count: the first one of each name.
pub(crate) fn header_conditions(rule: &RouteMatch) -> Vec<(String, &ValuePattern)> {
    firsts(&rule.headers, str::to_ascii_lowercase)
}

/// The same of query parameters.
pub(crate) fn parameter_conditions(rule: &RouteMatch) -> Vec<(String, &ValuePattern)> {
    firsts(&rule.query, str::to_owned)
}

fn firsts(fields: &[FieldMatch], form: impl Fn(&str) -> String) -> Vec<(String, &ValuePattern)> {
    let mut firsts: Vec<(String, &ValuePattern)> = Vec::with_capacity(fields.len());
    for FieldMatch { name, value } in fields {
        let name = form(name);
        if firsts.iter().all(|(first, _)| *first != name) {
            firsts.push((name, value));
        }
    }
    firsts
}
