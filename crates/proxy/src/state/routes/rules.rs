//! Rules of routes, which documents define, and the tables that find the rule of a request.

use super::faults::Faults;
use leno_model::{Backend, FunctionId, HttpRoute, HttpRouteKind, PathPattern, Precedence, RouteMatch, RouteRule};
use leno_routing::{BadPattern, Entry, RequestParts, RouteTable};
use std::sync::Arc;
use std::time::Duration;

/// A rule of a route.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The route: `namespace/name`.
    pub route: Arc<str>,
    kind: HttpRouteKind,
    /// The rule's name, or else its index.
    pub name: Arc<str>,
    /// Its route is ordered: requests get neither the time limit nor the retries of policies.
    pub is_ordered: bool,
    /// Matches, filters and back ends.
    pub spec: RouteRule,
    /// The faults of its requests; `None`: it has none.
    pub faults: Option<Faults>,
    /// The matches and the back ends, in words.
    patterns: Box<[Arc<str>]>,
    backends: Box<[Arc<str>]>,
}

/// A rule, and which of its matches a request meets.
#[derive(Clone, Debug)]
pub(crate) struct MatchedRule {
    pub rule: Arc<Rule>,
    index: usize,
}

/// The rules for the requests of one host, or for the calls to one function.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// The rules of routes that are ordered. They come before the others.
    ordered: Option<RouteTable<MatchedRule>>,
    specific: Option<RouteTable<MatchedRule>>,
    /// The namespaces of the routes.
    pub namespaces: Vec<Box<str>>,
}

/// The rules of a route, in their order.
pub(crate) fn rules(route: &HttpRoute) -> Vec<Arc<Rule>> {
    let name: Arc<str> = route.name.as_str().into();
    let rule = |(index, spec): (usize, &RouteRule)| {
        let label = if spec.name.is_empty() { index.to_string() } else { spec.name.clone() };
        Arc::new(Rule {
            route: name.clone(),
            kind: route.kind,
            name: label.into(),
            is_ordered: route.precedence == Precedence::First,
            spec: spec.clone(),
            faults: Faults::new(&name, &spec.faults),
            patterns: spec.matches.iter().map(|pattern| pattern.to_string().into()).collect(),
            backends: spec.backends.iter().map(|backend| backend.target.to_string().into()).collect(),
        })
    };
    route.rules.iter().enumerate().map(rule).collect()
}

impl Rule {
    /// The namespace of the route.
    pub(crate) fn namespace(&self) -> &str {
        self.route.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// A back end in words.
    pub(crate) fn backend_name(&self, index: usize) -> Option<&Arc<str>> {
        self.backends.get(index)
    }

    /// Whether requests can go to this function.
    pub(crate) fn leads_to(&self, function: &FunctionId) -> bool {
        let goes = |backend: &Backend| backend.weight > 0 && backend.target.function() == Some(function);
        self.spec.backends.iter().any(goes)
    }

    /// The longest time that a request may take by this rule; `None`: that of the policies;
    /// [`Duration::MAX`]: any.
    pub(crate) fn longest(&self) -> Option<Duration> {
        let limit = |limit: Duration| if limit.is_zero() { Duration::MAX } else { limit };
        let timeouts = self.spec.timeouts;
        timeouts.request.map(limit).or((self.is_ordered).then_some(Duration::MAX))
    }
}

impl MatchedRule {
    /// The match that the request meets.
    pub(crate) fn pattern(&self) -> &RouteMatch {
        &self.rule.spec.matches[self.index]
    }

    /// The same in words.
    pub(crate) fn words(&self) -> &Arc<str> {
        &self.rule.patterns[self.index]
    }

    /// Whether the rule comes before a function that is exposed at this prefix. Of two equal ones
    /// the rule does: its document says more.
    pub(crate) fn comes_before(&self, exposed: &PathPattern) -> bool {
        let PathPattern::Prefix(prefix) = exposed else { return true };
        match &self.pattern().path {
            PathPattern::Prefix(path) => path.len() >= prefix.len(),
            // As in `RouteTable`.
            PathPattern::Regex(_) => self.rule.kind == HttpRouteKind::Http || prefix.is_empty(),
            PathPattern::Exact(_) | PathPattern::Literal(_) => true,
        }
    }

    /// Whether both are the same rule.
    pub(crate) fn is_same_rule(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rule, &other.rule)
    }
}

impl Rules {
    /// The table of these rules.
    pub(crate) fn new<'r>(rules: impl IntoIterator<Item = &'r Arc<Rule>>) -> Result<Self, BadPattern> {
        let (ordered, specific): (Vec<_>, Vec<_>) = rules.into_iter().partition(|rule| rule.is_ordered);
        let mut namespaces: Vec<Box<str>> =
            ordered.iter().chain(&specific).map(|rule| rule.namespace().into()).collect();
        namespaces.sort();
        namespaces.dedup();
        let (ordered, specific) = (table(Precedence::First, &ordered)?, table(Precedence::MostSpecific, &specific)?);
        Ok(Self { ordered, specific, namespaces })
    }

    /// The rule of an ordered route for this request.
    pub(crate) fn ordered(
        &self,
        request: &RequestParts<'_>,
        admits: impl FnMut(&MatchedRule) -> bool,
    ) -> Option<&MatchedRule> {
        Some(&self.ordered.as_ref()?.find(request, admits)?.value)
    }

    /// The rule of any other route for this request.
    pub(crate) fn specific(
        &self,
        request: &RequestParts<'_>,
        admits: impl FnMut(&MatchedRule) -> bool,
    ) -> Option<&MatchedRule> {
        Some(&self.specific.as_ref()?.find(request, admits)?.value)
    }

    /// The rule for this request.
    pub(crate) fn find(&self, request: &RequestParts<'_>) -> Option<&MatchedRule> {
        self.ordered(request, |_| true).or_else(|| self.specific(request, |_| true))
    }
}

fn table(precedence: Precedence, rules: &[&Arc<Rule>]) -> Result<Option<RouteTable<MatchedRule>>, BadPattern> {
    let entries = rules.iter().flat_map(|rule| {
        let entry = move |(index, pattern): (usize, &RouteMatch)| Entry {
            route: rule.route.to_string(),
            kind: rule.kind,
            pattern: pattern.clone(),
            value: MatchedRule { rule: (*rule).clone(), index },
        };
        rule.spec.matches.iter().enumerate().map(entry)
    });
    if rules.is_empty() { Ok(None) } else { RouteTable::new(precedence, entries).map(Some) }
}
