//! Routes that are very likely wrong: rules that get no requests, or whose requests get errors,
//! redirects that lead nowhere or in a circle, and calls that a caller may not make.

use super::Mesh;
use crate::compile::routes::{PlacedRoute, includes};
use crate::problem::{Origin, Problem};
use crate::snapshot::{Routes, ScopedRoute};
use leno_model::{
    AttachedRoute, BackendTarget, Egress, FieldMatch, FunctionId, HttpRoute, HttpRouteKind, PathChange, PathPattern,
    Redirect, RouteFilter, RouteMatch, RouteRule, Run,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most redirects that are followed from one rule.
const MOST_STEPS: usize = 16;

/// The name of a route, and whether it is a GRPCRoute.
type RouteKey<'a> = (&'a str, bool);
/// A caller and its callee.
type Call<'a> = (&'a FunctionId, &'a FunctionId);
/// A rule, and the route that has it.
type RuleOf<'a> = (&'a PlacedRoute, usize);

/// The rules at each host of the gateway, for requests with or without TLS.
#[derive(Default)]
struct Hosts<'a> {
    rules: BTreeMap<(&'a str, bool), Vec<(RuleOf<'a>, &'a RouteMatch)>>,
    exposed: BTreeMap<&'a str, Vec<&'a str>>,
}

/// A place to which a request or a redirect leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Location {
    tls: bool,
    host: String,
    path: String,
}

/// The part of the gateway at a location.
enum Destination<'a> {
    Rule(RuleOf<'a>, &'a RouteMatch),
    /// A function, or a rule with a regular expression: this search does not tell.
    Other,
    /// The gateway has the host, and nothing at this path.
    Nothing,
    /// The gateway does not have the host.
    Elsewhere,
}

impl<'a> Mesh<'a> {
    pub(super) fn routes(&self, routes: &'a Routes, compiled: &'a [PlacedRoute]) {
        for placed in compiled.iter().filter(|placed| placed.in_force) {
            for (rule, place) in placed.route.rules.iter().zip(&placed.rules) {
                self.rule(rule, place);
            }
        }
        let by_name: HashMap<RouteKey<'_>, &PlacedRoute> =
            compiled.iter().map(|placed| (key(&placed.route), placed)).collect();
        self.same_at_gateways(routes, &by_name);
        self.same_of_calls(routes, &by_name);
        self.redirects(&self.hosts(routes, &by_name));
        self.callees_of_routes(routes, &by_name);
        self.hosts_of_externals(routes, &by_name);
    }

    fn warn(&self, place: &Problem, message: String, fix: &str) {
        self.found.borrow_mut().push(Problem { message, fix: fix.to_owned(), ..place.clone() });
    }

    /// A rule whose requests get errors.
    fn rule(&self, rule: &RouteRule, place: &Problem) {
        let redirects = rule.filters.iter().any(|filter| matches!(filter, RouteFilter::Redirect(_)));
        if rule.backends.is_empty() && !redirects {
            self.warn(place, "the rule leads nowhere: its requests get status 500".to_owned(), "add `backendRefs`");
        }
        if !rule.backends.is_empty() && rule.backends.iter().all(|backend| backend.weight == 0) {
            let message = "all weights are 0: requests of the rule get status 500";
            self.warn(place, message.to_owned(), "give a back end a weight above 0");
        }
        let replaces = |filter: &RouteFilter| match filter {
            RouteFilter::Rewrite(rewrite) => matches!(rewrite.path, Some(PathChange::Prefix(_))),
            _ => false,
        };
        let by_rule = rule.filters.iter().any(replaces);
        for backend in &rule.backends {
            let Some(id) = backend.target.function() else { continue };
            let as_received = self.functions.get(id).is_some_and(|function| function.as_received);
            if as_received && (by_rule || backend.filters.iter().any(replaces)) {
                let message = format!("`{id}` gets paths as they come, where no prefix can be replaced");
                self.warn(place, message, "use `ReplaceFullPath`, or remove `paths` of the function");
            }
        }
    }

    /// Two rules with the same match at one host of a listener: the second one does not get it.
    fn same_at_gateways(&self, routes: &'a Routes, by_name: &HashMap<RouteKey<'_>, &'a PlacedRoute>) {
        let mut seen: HashMap<(&str, &str, &RouteMatch), RuleOf<'_>> = HashMap::new();
        let mut reported = BTreeSet::new();
        for attached in &routes.gateway.routes {
            let Some(&placed) = by_name.get(&key(&attached.route)) else { continue };
            for attachment in &attached.attachments {
                for host in &attachment.hosts {
                    let of_rule = |(at, rule): (usize, &'a RouteRule)| rule.matches.iter().map(move |it| (at, it));
                    for (at, pattern) in placed.route.rules.iter().enumerate().flat_map(of_rule) {
                        let (place, first) = (&placed.rules[at], seen.get(&(&*attachment.listener, &**host, pattern)));
                        let path = match &pattern.path {
                            PathPattern::Prefix(path) if *pattern == plain(path) => Some(&**path),
                            _ => None,
                        };
                        let exposed = self.exposed.get(&**host).into_iter().flatten();
                        let exposed = exposed.filter(|(other, _)| Some(other.trim_end_matches('/')) == path);
                        if let Some((_, id)) = exposed.into_iter().next()
                            && reported.insert((key(&placed.route), at))
                        {
                            let message = format!("`{id}` is exposed at {host}{} too", shown(&pattern.path));
                            self.warn(place, message, "remove `expose` of the function, or the match");
                        }
                        match first {
                            Some(first) => self.same(*first, (placed, at), &mut reported, host),
                            None => {
                                seen.insert((&attachment.listener, host, pattern), (placed, at));
                            }
                        }
                    }
                }
            }
        }
    }

    /// The same for calls.
    fn same_of_calls(&self, routes: &'a Routes, by_name: &HashMap<RouteKey<'_>, &'a PlacedRoute>) {
        let mut reported = BTreeSet::new();
        for (callee, scoped) in &routes.calls {
            let mut seen: HashMap<(Option<&str>, Option<u16>, &RouteMatch), RuleOf<'_>> = HashMap::new();
            let name = format!("calls of `{callee}`");
            for ScopedRoute { consumers, route: call } in scoped {
                let Some(&placed) = by_name.get(&key(&call.route)) else { continue };
                for (at, rule) in placed.route.rules.iter().enumerate() {
                    for pattern in &rule.matches {
                        match seen.get(&(consumers.as_deref(), call.port, pattern)) {
                            Some(first) => self.same(*first, (placed, at), &mut reported, &name),
                            None => {
                                seen.insert((consumers.as_deref(), call.port, pattern), (placed, at));
                            }
                        }
                    }
                }
            }
        }
    }

    fn same(
        &self,
        (first, before): RuleOf<'a>,
        (placed, at): RuleOf<'a>,
        reported: &mut BTreeSet<(RouteKey<'a>, usize)>,
        of: &str,
    ) {
        if !reported.insert((key(&placed.route), at)) {
            return;
        }
        let same_rule = std::ptr::eq(first, placed) && before == at;
        let other = match (same_rule, std::ptr::eq(first, placed)) {
            (true, _) => "the rule has it twice".to_owned(),
            (false, true) => format!("rule {before} has the same, and comes first"),
            (false, false) => format!("`{}` has the same, and comes first", first.route.name),
        };
        let message = format!("a match of the rule gets no requests of {of}: {other}");
        self.warn(&placed.rules[at], message, "remove one of the two, or narrow the first one");
    }

    fn hosts(&self, routes: &'a Routes, by_name: &HashMap<RouteKey<'_>, &'a PlacedRoute>) -> Hosts<'a> {
        let tls: HashMap<&str, bool> =
            routes.gateway.listeners.iter().map(|listener| (&*listener.name, listener.tls)).collect();
        let mut hosts = Hosts::default();
        for attached in &routes.gateway.routes {
            let Some(&placed) = by_name.get(&key(&attached.route)) else { continue };
            for attachment in &attached.attachments {
                let tls = tls.get(&*attachment.listener).copied().unwrap_or_default();
                for host in &attachment.hosts {
                    let entries = hosts.rules.entry((host, tls)).or_default();
                    for (at, rule) in placed.route.rules.iter().enumerate() {
                        entries.extend(rule.matches.iter().map(|pattern| ((placed, at), pattern)));
                    }
                }
            }
        }
        for (host, paths) in &self.exposed {
            hosts.exposed.entry(host).or_default().extend(paths.iter().map(|(path, _)| path.trim_end_matches('/')));
        }
        hosts
    }

    /// Redirects to paths where nothing is, and redirects that come back.
    fn redirects(&self, hosts: &Hosts<'a>) {
        let mut reported = BTreeSet::new();
        for ((host, tls), entries) in &hosts.rules {
            for &((placed, at), pattern) in entries {
                let rule = &placed.route.rules[at];
                let Some(redirect) = redirect_of(rule) else { continue };
                let left = self.budget.get().saturating_sub(entries.len() as u64);
                self.budget.set(left);
                if left == 0 || !reported.insert((key(&placed.route), at)) {
                    continue;
                }
                let Some(path) = sample(&pattern.path) else { continue };
                let start = Location { tls: *tls, host: host.replacen('*', "a", 1), path };
                if let Some((message, fix)) = hosts.follow(redirect, pattern, start) {
                    self.warn(&placed.rules[at], message, fix);
                }
            }
        }
    }

    /// Rules whose requests reach an External with a host that it does not have.
    fn hosts_of_externals(&self, routes: &'a Routes, by_name: &HashMap<RouteKey<'_>, &'a PlacedRoute>) {
        let mut hosts: BTreeMap<RouteKey<'_>, BTreeSet<&str>> = BTreeMap::new();
        for AttachedRoute { route, attachments } in &routes.gateway.routes {
            let all = attachments.iter().flat_map(|attachment| attachment.hosts.iter().map(String::as_str));
            hosts.entry(key(route)).or_default().extend(all);
        }
        // Those of calls are the names of the callee.
        let mut callees: BTreeMap<RouteKey<'_>, BTreeSet<&FunctionId>> = BTreeMap::new();
        for (callee, scoped) in &routes.calls {
            for call in scoped {
                callees.entry(key(&call.route.route)).or_default().insert(callee);
            }
        }
        let none = BTreeSet::new();
        for placed in by_name.values() {
            let (of_gateways, of_calls) =
                (hosts.get(&key(&placed.route)).unwrap_or(&none), callees.get(&key(&placed.route)));
            for (rule, place) in placed.route.rules.iter().zip(&placed.rules) {
                for backend in &rule.backends {
                    let BackendTarget::External(id, _) = &backend.target else { continue };
                    let Some(Run::Egress(egress)) = self.functions.get(id).map(|function| &function.run) else {
                        continue;
                    };
                    let mut rewrites = rule.filters.iter().chain(&backend.filters).filter_map(|filter| match filter {
                        RouteFilter::Rewrite(rewrite) => rewrite.host.as_deref(),
                        _ => None,
                    });
                    let kept = of_gateways.iter().copied().find(|host| !has_host(egress, host));
                    let called = of_calls.into_iter().flatten().any(|callee| *callee != id);
                    let wrong = match rewrites.next_back() {
                        Some(host) => (!has_host(egress, host)).then(|| format!("with the host `{host}`")),
                        None => kept
                            .map(|host| format!("with their own host (`{host}`)"))
                            .or_else(|| called.then(|| "with the name of the function that was called".to_owned())),
                    };
                    let Some(wrong) = wrong else { continue };
                    let message =
                        format!("requests for `{id}` leave {wrong}, which it does not have: they get status 421");
                    let fix = match egress.hosts.iter().find(|host| !host.starts_with('*')) {
                        Some(host) => format!("add a filter `URLRewrite` with `hostname: {host}`"),
                        None => "add a filter `URLRewrite` with one of its hosts as `hostname`".to_owned(),
                    };
                    self.warn(place, message, &fix);
                }
            }
        }
    }

    /// Back ends of routes for calls that a caller may not call.
    fn callees_of_routes(&self, routes: &'a Routes, by_name: &HashMap<RouteKey<'_>, &'a PlacedRoute>) {
        let mut found: BTreeMap<(RouteKey<'_>, &FunctionId), Vec<Call<'_>>> = BTreeMap::new();
        for (caller, function) in self.functions {
            for callee in &function.callees {
                for scoped in routes.for_calls(caller, callee) {
                    let missing = scoped.route.route.targets().filter(|target| !function.callees.contains(target));
                    for target in missing {
                        let callers = found.entry((key(&scoped.route.route), target)).or_default();
                        if !callers.contains(&(caller, callee)) {
                            callers.push((caller, callee));
                        }
                    }
                }
            }
        }
        for ((route, target), callers) in found {
            let (Some(placed), Some((caller, callee))) = (by_name.get(&route), callers.first()) else { continue };
            let has = |rule: &RouteRule| rule.backends.iter().any(|it| it.target.function() == Some(target));
            let at = placed.route.rules.iter().position(has).unwrap_or_default();
            let more = callers.len() - 1;
            let others = if more == 0 { String::new() } else { format!(" (and {more} others)") };
            let problem = Problem {
                message: format!(
                    "`{caller}`{others} calls `{callee}`, and `{target}` is not among its callees: requests that this rule sends there are refused"
                ),
                fix: format!("add `{target}` to the `callees` of `{caller}`"),
                ..placed.rules[at].clone()
            };
            let own = placed.route.name.starts_with(&format!("{}/", caller.namespace));
            match placed.origin == Origin::Request && !own {
                true => self.across.borrow_mut().push((caller.namespace.clone(), problem)),
                false => self.found.borrow_mut().push(problem),
            }
        }
    }
}

impl<'a> Hosts<'a> {
    /// The fault of a redirect of requests that this match has found.
    fn follow(
        &self,
        redirect: &'a Redirect,
        pattern: &'a RouteMatch,
        start: Location,
    ) -> Option<(String, &'static str)> {
        const LOOP: &str = "redirect to another host or path";
        let (mut redirect, mut matched, mut at) = (redirect, pattern, start.clone());
        let mut seen = BTreeSet::from([start.clone()]);
        for step in 0..MOST_STEPS {
            let next = location(redirect, &matched.path, &at)?;
            let shown = format!("{}://{}{}", if next.tls { "https" } else { "http" }, next.host, next.path);
            if !seen.insert(next.clone()) {
                let message = format!(
                    "the redirect of {}{} comes back to {shown}: clients end with an error",
                    start.host, start.path
                );
                return Some((message, LOOP));
            }
            match self.find(&next, pattern) {
                Destination::Rule((placed, rule), its_match) => {
                    redirect = redirect_of(&placed.route.rules[rule])?;
                    matched = its_match;
                }
                Destination::Nothing if step == 0 => {
                    let message =
                        format!("the redirect leads to {shown}, where the gateway has nothing: clients get status 404");
                    return Some((message, "add a rule for that path, or redirect to another one"));
                }
                Destination::Nothing | Destination::Other | Destination::Elsewhere => return None,
            }
            at = next;
        }
        Some((format!("the redirect of {}{} leads to {MOST_STEPS} others", start.host, start.path), LOOP))
    }

    /// The rule for a request that has the header fields and parameters of a match.
    fn find(&self, location: &Location, conditions: &RouteMatch) -> Destination<'a> {
        let patterns = self.rules.keys().filter(|(_, tls)| *tls == location.tls).map(|(host, _)| *host);
        let mut hosts: Vec<&str> =
            patterns.chain(self.exposed.keys().copied()).filter(|host| includes(host, &location.host)).collect();
        if hosts.is_empty() {
            return Destination::Elsewhere;
        }
        hosts.sort_by_key(|host| (host.starts_with('*'), std::cmp::Reverse(host.len())));
        hosts.dedup();
        for host in hosts {
            if self.exposed.get(host).is_some_and(|paths| paths.iter().any(|path| is_below(&location.path, path))) {
                return Destination::Other;
            }
            let entries = self.rules.get(&(host, location.tls)).map_or(&[][..], Vec::as_slice);
            let fits = |pattern: &&RouteMatch| {
                let has = |own: &[FieldMatch], others: &[FieldMatch]| own.iter().all(|field| others.contains(field));
                (pattern.method.is_empty() || pattern.method == conditions.method)
                    && has(&pattern.headers, &conditions.headers)
                    && has(&pattern.query, &conditions.query)
            };
            let matching =
                entries.iter().filter(|(_, pattern)| fits(pattern) && may_match(&pattern.path, &location.path));
            // The first of those that are equal wins.
            let best = matching.min_by_key(|(_, pattern)| rank(pattern));
            match best {
                Some((_, RouteMatch { path: PathPattern::Regex(_), .. })) => return Destination::Other,
                Some(&(rule, pattern)) => return Destination::Rule(rule, pattern),
                None => {}
            }
        }
        Destination::Nothing
    }
}

/// Whether an External has all hosts of a pattern.
fn has_host(egress: &Egress, pattern: &str) -> bool {
    let bare = pattern.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(pattern);
    match bare.parse() {
        Ok(address) => egress.has_address(address, &|_| false),
        Err(_) if pattern.starts_with('*') => egress.hosts.iter().any(|host| host == pattern),
        Err(_) => egress.has_host(pattern),
    }
}

fn key(route: &HttpRoute) -> RouteKey<'_> {
    (&route.name, route.kind == HttpRouteKind::Grpc)
}

/// A match of all requests at or below a path.
fn plain(path: &str) -> RouteMatch {
    let path = PathPattern::Prefix(path.to_owned());
    RouteMatch { path, method: String::new(), headers: Vec::new(), query: Vec::new() }
}

fn redirect_of(rule: &RouteRule) -> Option<&Redirect> {
    rule.filters.iter().find_map(|filter| match filter {
        RouteFilter::Redirect(redirect) => Some(redirect),
        _ => None,
    })
}

/// A path that a pattern matches; `None`: this search finds none.
fn sample(pattern: &PathPattern) -> Option<String> {
    match pattern {
        PathPattern::Exact(path) | PathPattern::Literal(path) => Some(path.clone()),
        PathPattern::Prefix(path) if path.is_empty() => Some("/".to_owned()),
        PathPattern::Prefix(path) => Some(path.clone()),
        PathPattern::Regex(_) => None,
    }
}

fn shown(pattern: &PathPattern) -> Cow<'_, str> {
    match pattern {
        PathPattern::Prefix(path) if path.is_empty() => Cow::Borrowed("/"),
        PathPattern::Exact(path)
        | PathPattern::Literal(path)
        | PathPattern::Prefix(path)
        | PathPattern::Regex(path) => Cow::Borrowed(path),
    }
}

fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn may_match(pattern: &PathPattern, path: &str) -> bool {
    match pattern {
        PathPattern::Exact(exact) => exact == path,
        PathPattern::Prefix(prefix) => is_below(path, prefix),
        PathPattern::Literal(begin) => path.starts_with(&**begin),
        PathPattern::Regex(_) => true,
    }
}

/// The order of matches (`leno_routing::RouteTable`): the smallest comes first.
fn rank(pattern: &RouteMatch) -> impl Ord + use<> {
    let path = match &pattern.path {
        PathPattern::Exact(_) => (0, 0),
        PathPattern::Regex(text) | PathPattern::Literal(text) => (1, text.len()),
        PathPattern::Prefix(text) => (2, text.len()),
    };
    let fields = (std::cmp::Reverse(pattern.headers.len()), std::cmp::Reverse(pattern.query.len()));
    (path.0, std::cmp::Reverse(path.1), pattern.method.is_empty(), fields)
}

/// Where a redirect of a request leads; `None`: this search does not tell.
fn location(redirect: &Redirect, pattern: &PathPattern, from: &Location) -> Option<Location> {
    let tls = redirect.scheme.as_ref().map_or(from.tls, |scheme| scheme == "https");
    let host = redirect.host.clone().unwrap_or_else(|| from.host.clone());
    let path = match &redirect.path {
        None => from.path.clone(),
        Some(change) => leno_routing::rewritten_path(change, pattern, &from.path).ok()?,
    };
    Some(Location { tls, host, path })
}
