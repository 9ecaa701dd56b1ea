//! Tables of rules.

use crate::automaton::check_regex;
use crate::entry::Entry;
use crate::group::{Group, GroupPaths, header_conditions, parameter_conditions};
use crate::pattern::MAX_LENGTH;
use crate::request::RequestParts;
use crate::tree::{Node, Slot, is_below};
use crate::values::MAX_AUTOMATA;
use http::HeaderName;
use leno_model::{HttpRouteKind, PathPattern, Precedence, RouteMatch, ValuePattern};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// A pattern that no table can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("route {route}: {reason}")]
pub struct BadPattern {
    /// Name of the route.
    pub route: String,
    /// The mistake.
    pub reason: String,
}

/// Rules for the requests of one host or one callee, in order of precedence. Copies share the parts
/// that do not change.
///
/// [`Precedence::MostSpecific`] is the order of the Gateway API:
///
/// 1. exact paths;
/// 2. regular expressions and [`PathPattern::Literal`], the longer pattern first (the specification
///    leaves their place open: so a prefix such as `/` does not hide them);
/// 3. prefixes, the longer first. Between the other prefixes and `/`, that is last: the regular
///    expressions of gRPC routes. A method of any service is one, and a service that a route names
///    comes before it.
///
/// Rules that are equal in this are in the order of: those with a method, the number of header
/// fields, the number of query parameters, the name of the route, the order in which they came.
///
/// [`Precedence::First`] is the order in which the rules came, whatever their patterns are.
///
/// The time of [`Self::find`] depends on the lengths of the texts, and hardly on the number of
/// rules.
pub struct RouteTable<T> {
    precedence: Precedence,
    tree: Arc<Node<T>>,
    /// Regular expressions; with [`Precedence::First`] all rules.
    expressions: Slot<T>,
    /// Regular expressions of gRPC routes.
    late_expressions: Slot<T>,
    /// The prefix `/`.
    any: Slot<T>,
    rules: usize,
    /// All rules, if they are few, and have nothing but prefixes: the longer first.
    few: Option<FewPrefixes<T>>,
}

type FewPrefixes<T> = Arc<[(Box<str>, Arc<Entry<T>>)]>;

/// Prefixes that are searched one after another.
const FEW: usize = 8;

/// The part of a table that has a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Exact(String),
    Prefix(String),
    Expressions,
    LateExpressions,
    Any,
}

impl<T> RouteTable<T> {
    /// An empty table.
    pub fn empty(precedence: Precedence) -> Self {
        Self {
            precedence,
            tree: Arc::default(),
            expressions: None,
            late_expressions: None,
            any: None,
            rules: 0,
            few: None,
        }
    }

    /// A table of these rules. Those of one route come in the order of its document.
    ///
    /// # Errors
    /// A pattern is wrong or too large, a path is not absolute, or regular expressions have too
    /// little in common: a request would read a text more than 32 times.
    pub fn new(precedence: Precedence, entries: impl IntoIterator<Item = Entry<T>>) -> Result<Self, BadPattern> {
        let mut table = Self::empty(precedence);
        let mut checked = HashSet::new();
        let check = |entry: Entry<T>| check(&entry, &mut checked).map(|()| entry);
        let entries = entries.into_iter().map(check).collect::<Result<Vec<_>, _>>()?;
        for (place, entries) in table.by_place(entries) {
            table.put(&place, entries, MAX_AUTOMATA);
            table.check_automata(&place)?;
        }
        table.find_few();
        Ok(table)
    }

    /// The values of rules that are too much for a table, each with the reason. Patterns are
    /// checked.
    pub(crate) fn excess(precedence: Precedence, entries: impl IntoIterator<Item = Entry<T>>) -> BTreeMap<T, String>
    where
        T: Copy + Ord,
    {
        let mut found = BTreeMap::new();
        for (place, entries) in Self::empty(precedence).by_place(entries) {
            let Some(group) = Self::group(precedence, &place, entries, MAX_AUTOMATA * 2) else { continue };
            found.extend(group.excess().into_iter().map(|value| (value, reason(&group))));
        }
        found
    }

    fn by_place(&self, entries: impl IntoIterator<Item = Entry<T>>) -> HashMap<Place, Vec<Arc<Entry<T>>>> {
        let mut places: HashMap<Place, Vec<Arc<Entry<T>>>> = HashMap::new();
        for entry in entries {
            places.entry(self.place(entry.kind, &entry.pattern)).or_default().push(Arc::new(entry));
        }
        places
    }

    /// Adds a rule after those that are equal. Only rules of the same path are looked at, if it is
    /// an exact path or a prefix. To add many others, make another table.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn insert(&mut self, entry: Entry<T>) -> Result<(), BadPattern> {
        check(&entry, &mut HashSet::new())?;
        let place = self.place(entry.kind, &entry.pattern);
        let before = self.slot(&place).clone();
        let mut entries = before.as_ref().map(|group| group.entries().to_vec()).unwrap_or_default();
        entries.push(Arc::new(entry));
        self.put(&place, entries, MAX_AUTOMATA);
        if let Err(bad) = self.check_automata(&place) {
            self.rules -= 1;
            *self.slot(&place) = before;
            self.prune(&place);
            return Err(bad);
        }
        self.find_few();
        Ok(())
    }

    /// Removes the rules with the path of `pattern` whose value `is_removed` accepts.
    pub fn remove(&mut self, kind: HttpRouteKind, pattern: &RouteMatch, is_removed: impl Fn(&T) -> bool) {
        let place = self.place(kind, pattern);
        let Some(group) = self.slot(&place).clone() else { return self.prune(&place) };
        let is_left = |entry: &&Arc<Entry<T>>| entry.pattern.path != pattern.path || !is_removed(&entry.value);
        let entries: Vec<_> = group.entries().iter().filter(is_left).cloned().collect();
        if entries.len() < group.entries().len() {
            self.put(&place, entries, usize::MAX);
        }
        self.prune(&place);
        self.find_few();
    }

    /// Whether it has no rule.
    pub fn is_empty(&self) -> bool {
        self.rules == 0
    }

    /// One of the rules.
    pub fn any_entry(&self) -> Option<&Entry<T>> {
        let groups = self.any.iter().chain(&self.expressions).chain(&self.late_expressions);
        let group = groups.map(|group| &**group).next().or_else(|| self.tree.first());
        group?.entries().first().map(|entry| &**entry)
    }

    /// All rules: those of one path in their order.
    pub fn entries(&self) -> impl Iterator<Item = Arc<Entry<T>>> {
        let mut groups = Vec::new();
        self.tree.slots(&mut groups);
        let others = self.expressions.iter().chain(&self.late_expressions).chain(&self.any);
        groups.extend(others.cloned());
        groups.into_iter().flat_map(|group| group.entries().to_vec())
    }

    /// The first rule that matches and whose value `admits` accepts.
    pub fn find(&self, request: &RequestParts<'_>, mut admits: impl FnMut(&T) -> bool) -> Option<&Entry<T>> {
        if let Some(few) = &self.few {
            let mut below = few.iter().filter(|(prefix, _)| prefix.is_empty() || is_below(request.path, prefix));
            return below.find(|(_, entry)| admits(&entry.value)).map(|(_, entry)| &**entry);
        }
        let admits = &mut admits;
        self.below(&self.tree, request.path, request, admits)
            .or_else(|| self.late_expressions.as_ref()?.find(request, admits))
            .or_else(|| self.any.as_ref()?.find(request, admits))
    }

    /// The first rule that does not come after the prefixes below a node. `rest` is the part of the
    /// path below the node.
    fn below<'t>(
        &'t self,
        node: &'t Node<T>,
        rest: &str,
        request: &RequestParts<'_>,
        admits: &mut impl FnMut(&T) -> bool,
    ) -> Option<&'t Entry<T>> {
        match node.child(rest) {
            Some((child, rest)) => {
                self.below(child, rest, request, admits).or_else(|| child.prefix.as_ref()?.find(request, admits))
            }
            None => {
                let exact = if rest.is_empty() { node.exact.as_ref() } else { None };
                exact
                    .and_then(|group| group.find(request, admits))
                    .or_else(|| self.expressions.as_ref()?.find(request, admits))
            }
        }
    }

    fn place(&self, kind: HttpRouteKind, pattern: &RouteMatch) -> Place {
        match (self.precedence, &pattern.path) {
            (Precedence::First, _) => Place::Expressions,
            (Precedence::MostSpecific, PathPattern::Exact(path)) => Place::Exact(path.clone()),
            (Precedence::MostSpecific, PathPattern::Prefix(path)) if path.is_empty() => Place::Any,
            (Precedence::MostSpecific, PathPattern::Prefix(path)) => Place::Prefix(path.clone()),
            (Precedence::MostSpecific, PathPattern::Regex(_)) if kind == HttpRouteKind::Grpc => Place::LateExpressions,
            (Precedence::MostSpecific, PathPattern::Regex(_) | PathPattern::Literal(_)) => Place::Expressions,
        }
    }

    fn slot(&mut self, place: &Place) -> &mut Slot<T> {
        match place {
            Place::Exact(path) => &mut Arc::make_mut(&mut self.tree).at(path).exact,
            Place::Prefix(path) => &mut Arc::make_mut(&mut self.tree).at(path).prefix,
            Place::Expressions => &mut self.expressions,
            Place::LateExpressions => &mut self.late_expressions,
            Place::Any => &mut self.any,
        }
    }

    /// The rules of one place; `None`: there are none.
    fn group(precedence: Precedence, place: &Place, mut entries: Vec<Arc<Entry<T>>>, most: usize) -> Option<Group<T>> {
        if precedence == Precedence::MostSpecific {
            entries.sort_by_cached_key(|entry| order(entry));
        }
        let paths = match place {
            Place::Expressions | Place::LateExpressions => GroupPaths::Own,
            _ => GroupPaths::Same,
        };
        (!entries.is_empty()).then(|| Group::new(entries, paths, most))
    }

    fn put(&mut self, place: &Place, entries: Vec<Arc<Entry<T>>>, most: usize) {
        let count = entries.len();
        let group = Self::group(self.precedence, place, entries, most).map(Arc::new);
        let before = std::mem::replace(self.slot(place), group);
        self.rules = self.rules + count - before.map_or(0, |group| group.entries().len());
    }

    /// Refuses expressions that have too few states in common. The route is the last one that has
    /// any.
    fn check_automata(&mut self, place: &Place) -> Result<(), BadPattern> {
        let Some(group) = self.slot(place).as_ref().filter(|group| group.automata() > MAX_AUTOMATA) else {
            return Ok(());
        };
        let last = group.entries().iter().rfind(|entry| has_regex(&entry.pattern));
        Err(BadPattern { route: last.map(|entry| entry.route.clone()).unwrap_or_default(), reason: reason(group) })
    }

    fn find_few(&mut self) {
        self.few = None;
        if self.rules > FEW || self.precedence == Precedence::First {
            return;
        }
        let prefix = |entry: Arc<Entry<T>>| match &entry.pattern {
            RouteMatch { path: PathPattern::Prefix(prefix), method, headers, query } => {
                let plain = method.is_empty() && headers.is_empty() && query.is_empty();
                plain.then(|| (prefix.as_str().into(), entry.clone()))
            }
            _ => None,
        };
        let few: Option<Vec<(Box<str>, _)>> = self.entries().map(prefix).collect();
        self.few = few.map(|mut few| {
            few.sort_by_key(|(prefix, _)| Reverse(prefix.len()));
            few.into()
        });
    }

    fn prune(&mut self, place: &Place) {
        if let Place::Exact(path) | Place::Prefix(path) = place {
            Arc::make_mut(&mut self.tree).prune(path);
        }
    }
}

/// Why rules are too much for a group.
fn reason<T>(group: &Group<T>) -> String {
    format!(
        "the regular expressions of the {} rules beside this one need more than {MAX_AUTOMATA} automata: use fewer \
         that have `.*` in the middle",
        group.entries().len(),
    )
}

/// The order of rules of one path, or of several regular expressions.
fn order<T>(entry: &Entry<T>) -> impl Ord + use<T> {
    let Entry { route, pattern, .. } = entry;
    let length = match &pattern.path {
        PathPattern::Exact(path)
        | PathPattern::Prefix(path)
        | PathPattern::Literal(path)
        | PathPattern::Regex(path) => path.len(),
    };
    let headers = Reverse(header_conditions(pattern).len());
    let parameters = Reverse(parameter_conditions(pattern).len());
    (Reverse(length), pattern.method.is_empty(), headers, parameters, route.clone())
}

fn has_regex(pattern: &RouteMatch) -> bool {
    let mut fields = pattern.headers.iter().chain(&pattern.query);
    matches!(pattern.path, PathPattern::Regex(_)) || fields.any(|field| matches!(field.value, ValuePattern::Regex(_)))
}

/// Checks a path of a route. The message names the mistake.
///
/// # Errors
/// It is too long or not absolute, ends with a slash as a prefix, or [`check_regex`] refuses it.
pub fn check_path(path: &PathPattern) -> Result<(), String> {
    let text = match path {
        PathPattern::Regex(text) => return check_regex(text),
        PathPattern::Prefix(path) if path.is_empty() => return Ok(()),
        PathPattern::Exact(text) | PathPattern::Prefix(text) | PathPattern::Literal(text) => text,
    };
    let is_prefix = matches!(path, PathPattern::Prefix(_));
    if text.len() > MAX_LENGTH {
        return Err(format!("a path of {} bytes: expected at most {MAX_LENGTH}", text.len()));
    }
    if !text.starts_with('/') || (is_prefix && text.ends_with('/')) {
        return Err(format!("`{}` is not a path of a route", text.escape_debug()));
    }
    Ok(())
}

fn check<T>(entry: &Entry<T>, checked: &mut HashSet<String>) -> Result<(), BadPattern> {
    let bad = |reason: String| BadPattern { route: entry.route.clone(), reason };
    let RouteMatch { path, headers, query, .. } = &entry.pattern;
    let mut once = |text: &str, check: &dyn Fn() -> Result<(), String>| {
        if checked.contains(text) {
            return Ok(());
        }
        check().map_err(bad)?;
        checked.insert(text.to_owned());
        Ok(())
    };
    match path {
        PathPattern::Regex(text) => once(text, &|| check_path(path))?,
        _ => check_path(path).map_err(bad)?,
    }
    for field in headers.iter().chain(query) {
        if let ValuePattern::Regex(text) = &field.value {
            once(text, &|| check_regex(text))?;
        }
    }
    for field in headers {
        HeaderName::try_from(&field.name)
            .map_err(|_| bad(format!("`{}` is not a header's name", field.name.escape_debug())))?;
    }
    Ok(())
}

impl<T> Default for RouteTable<T> {
    fn default() -> Self {
        Self::empty(Precedence::MostSpecific)
    }
}

impl<T> Clone for RouteTable<T> {
    fn clone(&self) -> Self {
        Self {
            precedence: self.precedence,
            tree: self.tree.clone(),
            expressions: self.expressions.clone(),
            late_expressions: self.late_expressions.clone(),
            any: self.any.clone(),
            rules: self.rules,
            few: self.few.clone(),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for RouteTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries()).finish()
    }
}

#[cfg(test)]
mod tests;
