//! The namespace that owns a host of the gateway.
//!
//! Within a namespace, functions share a host by its paths. Namespaces share no host: the clients
//! of a host send their cookies and tokens to every path of it, and a wildcard gets all hosts below
//! it that have no function.

use super::TypedDocument;
use crate::document;
use crate::namespace::Namespaces;
use crate::problem::{Origin, Problem, Scope};
use leno_model::FunctionId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Hosts that the operator assigns to namespaces.
#[derive(Default)]
pub(super) struct Grants<'a> {
    /// By [`key`].
    given: BTreeMap<String, Domain<&'a str>>,
    /// Namespaces that may have no other hosts.
    listed: BTreeSet<&'a str>,
}

/// The entries of a host and of the wildcard below it.
struct Domain<T> {
    exact: Option<T>,
    wildcard: Option<T>,
}

/// A namespace's first claim to a host.
struct Claim<'a> {
    namespace: &'a str,
    line: String,
    /// The operator has given the host to the namespace.
    given: bool,
}

/// The namespaces that have hosts, by the first documents that name these.
pub(super) struct Claims<'a> {
    grants: Grants<'a>,
    /// By [`key`].
    claimed: BTreeMap<String, Domain<Claim<'a>>>,
}

/// Why a namespace may not have a host.
pub(super) enum Refusal {
    /// The operator has assigned hosts otherwise.
    Unassigned(&'static str),
    /// Another namespace has it, by the document in this line.
    Taken(String),
}

impl<T> Default for Domain<T> {
    fn default() -> Self {
        Self { exact: None, wildcard: None }
    }
}

impl<T> Domain<T> {
    fn slot(&mut self, wildcard: bool) -> &mut Option<T> {
        if wildcard { &mut self.wildcard } else { &mut self.exact }
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        self.exact.iter().chain(&self.wildcard)
    }
}

/// The labels of a host from its last to its first, each with a dot, and whether it is a wildcard.
/// Hosts below another one start with its labels.
fn key(host: &str) -> (String, bool) {
    let (body, wildcard) = match host.strip_prefix('*') {
        Some(rest) => (rest.trim_start_matches('.'), true),
        None => (host, false),
    };
    let labels = body.rsplit('.').filter(|label| !label.is_empty());
    (labels.flat_map(|label| [label, "."]).collect(), wildcard)
}

/// The entries that cover a host, the narrowest first: its own, and those of the wildcards at its name and above.
fn covering<'s, T>(
    domains: &'s BTreeMap<String, Domain<T>>,
    key: &'s str,
    wildcard: bool,
) -> impl Iterator<Item = &'s T> {
    let itself = domains.get(key).filter(|_| !wildcard).and_then(|domain| domain.exact.as_ref());
    let ends = key.rmatch_indices('.').map(|(dot, _)| dot + 1).chain([0]);
    let wildcards = ends.filter_map(move |end| domains.get(&key[..end])?.wildcard.as_ref());
    itself.into_iter().chain(wildcards)
}

/// The entries below a wildcard.
fn covered<'s, T>(domains: &'s BTreeMap<String, Domain<T>>, key: &'s str) -> impl Iterator<Item = &'s T> {
    let below = domains
        .range::<str, _>((Bound::Included(key), Bound::Unbounded))
        .take_while(move |(below, _)| below.starts_with(key));
    below.flat_map(|(_, domain)| domain.all())
}

impl<'a> Grants<'a> {
    /// Assigns these hosts to a namespace, which may have no others. Returns the hosts that are
    /// assigned to another namespace already.
    fn give<'h>(&mut self, namespace: &'a str, hosts: &'h [String]) -> Vec<&'h String> {
        self.listed.insert(namespace);
        let mut taken = Vec::new();
        for host in hosts {
            let (key, wildcard) = key(host);
            match self.given.entry(key).or_default().slot(wildcard) {
                Some(other) if *other != namespace => taken.push(host),
                slot => *slot = Some(namespace),
            }
        }
        taken
    }

    /// Whether a host is assigned to this namespace; or why the namespace cannot have it.
    fn check(&self, namespace: &str, host: &str) -> Result<bool, &'static str> {
        let (key, wildcard) = key(host);
        match covering(&self.given, &key, wildcard).next() {
            Some(owner) if *owner == namespace => Ok(true),
            Some(_) => Err("the operator has given it to another namespace"),
            None if self.listed.contains(namespace) => Err("it is not among the `hosts` of the namespace's quota"),
            None if wildcard && covered(&self.given, &key).next().is_some() => {
                Err("the operator has given a host that it covers to another namespace")
            }
            None => Ok(false),
        }
    }
}

/// The hosts of quotas. Reports those that are assigned to another namespace already.
pub(super) fn grants<'a>(
    documents: &'a [Arc<TypedDocument<document::NamespaceQuota>>],
    namespaces: &Namespaces,
    problems: &RefCell<Vec<Problem>>,
) -> Grants<'a> {
    let mut grants = Grants::default();
    for placed in documents {
        let name = &placed.document.metadata.name;
        let Some(hosts) = namespaces.given.get(name).and_then(|quota| quota.hosts.as_deref()) else { continue };
        for host in grants.give(name, hosts) {
            let root = placed.scope(problems);
            let spec = root.field("spec");
            let message = format!("`{}` is among the hosts of another namespace", host.escape_debug());
            spec.field("hosts").problem(message, "name it in one quota");
        }
    }
    grants
}

impl<'a> Claims<'a> {
    /// Hosts that no document has yet.
    pub(super) fn new(grants: Grants<'a>) -> Self {
        Self { grants, claimed: BTreeMap::new() }
    }

    /// Claims a host for a namespace.
    ///
    /// # Errors
    /// The namespace may not have it.
    pub(super) fn claim(&mut self, namespace: &'a str, host: &str, line: impl Fn() -> String) -> Result<(), Refusal> {
        self.claim_with(namespace, host, line, true)
    }

    /// The same for the host of a route, which the namespace of its Gateway or its own may have.
    pub(super) fn claim_for_route(
        &mut self,
        [gateway, route]: [&'a str; 2],
        host: &str,
        line: impl Fn() -> String,
    ) -> Result<(), Refusal> {
        self.claim(gateway, host, &line).or_else(|_| self.claim(route, host, &line))
    }

    /// The same for the host of a listener. Those below a wildcard may be another namespace's.
    pub(super) fn claim_for_listener(
        &mut self,
        namespace: &'a str,
        host: &str,
        line: impl Fn() -> String,
    ) -> Result<(), Refusal> {
        self.claim_with(namespace, host, line, false)
    }

    fn claim_with(
        &mut self,
        namespace: &'a str,
        host: &str,
        line: impl Fn() -> String,
        all_below: bool,
    ) -> Result<(), Refusal> {
        let given = self.grants.check(namespace, host).map_err(Refusal::Unassigned)?;
        let (key, wildcard) = key(host);
        let own = self.claimed.get_mut(&key).and_then(|domain| domain.slot(wildcard).as_ref());
        if own.is_some_and(|claim| claim.namespace == namespace) {
            return Ok(());
        }
        let below = (wildcard && all_below).then(|| covered(&self.claimed, &key)).into_iter().flatten();
        let conflicts = |other: &&Claim<'a>| other.namespace != namespace && !(other.given && given);
        if let Some(other) = covering(&self.claimed, &key, wildcard).chain(below).find(conflicts) {
            return Err(Refusal::Taken(other.line.clone()));
        }
        let claim = Claim { namespace, line: line(), given };
        *self.claimed.entry(key).or_default().slot(wildcard) = Some(claim);
        Ok(())
    }
}

impl Refusal {
    /// Reports it at the place that names the host.
    pub(super) fn report(self, place: &Scope<'_>, host: &str) {
        const FIX: &str =
            "name another host, or have the operator name it in the `hosts` of the namespace's NamespaceQuota";
        let host = host.escape_debug();
        let message = match self {
            Self::Unassigned(reason) => format!("`{host}` is not for this namespace: {reason}"),
            // A request may come from a tenant, who must not learn which namespace has the host.
            Self::Taken(line) => {
                let line = if place.origin() == Origin::File { format!(" ({line})") } else { String::new() };
                format!("`{host}` is taken: another namespace has it, or a host that overlaps it{line}")
            }
        };
        place.problem(message, FIX);
    }
}

/// Reports hosts of other namespaces, and hosts and paths that functions of one namespace claim
/// twice. Of two claims the later one is reported, in the order of the documents.
pub(super) fn belong<'a>(
    functions: &[Arc<TypedDocument<document::Function>>],
    names: &'a BTreeMap<FunctionId, usize>,
    claims: &mut Claims<'a>,
    problems: &RefCell<Vec<Problem>>,
) {
    let mut order: Vec<_> = names.iter().collect();
    order.sort_by_key(|(_, index)| **index);
    let mut seen: BTreeMap<(String, &str), (&FunctionId, String)> = BTreeMap::new();
    for (id, index) in order {
        let placed = &functions[*index];
        let root = placed.scope(problems);
        let spec = root.field("spec");
        let list = spec.field("expose");
        for (position, expose) in placed.document.spec.expose.iter().enumerate() {
            let scope = list.element(position);
            let hosts = scope.field("hosts");
            let path = expose.path.trim_end_matches('/');
            for (index, written) in expose.hosts.iter().enumerate() {
                // Text that is not a host is reported when it is compiled.
                let Some(host) = crate::host::pattern(written) else { continue };
                let element = hosts.element(index);
                let place = if scope.has("hosts") { &element } else { &scope };
                if let Err(refusal) = claims.claim(&id.namespace, &host, || place.line()) {
                    refusal.report(place, &host);
                    continue;
                }
                match seen.get(&(host.clone(), path)) {
                    Some((other, line)) => {
                        let message =
                            format!("`{other}` is offered at host `{written}`, path `{}` too ({line})", expose.path);
                        scope.problem(message, "give one of them another host or path");
                    }
                    None => drop(seen.insert((host, path), (id, scope.line()))),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_below_each_other_have_keys_below_each_other() {
        assert_eq!(key("a.example"), ("example.a.".to_owned(), false));
        assert_eq!(key("*.a.example"), ("example.a.".to_owned(), true));
        assert_eq!(key("*"), (String::new(), true));
        assert!(!key("b-example").0.starts_with(&key("example").0));
    }

    #[test]
    fn the_narrowest_grant_decides() {
        let mut grants = Grants::default();
        let hosts = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(grants.give("shop", &hosts(&["*.example", "shop.test"])).is_empty());
        assert!(grants.give("blog", &hosts(&["blog.example"])).is_empty());
        assert_eq!(grants.give("thief", &hosts(&["own.test", "shop.test"])), ["shop.test"]);
        for (namespace, host, given) in [
            ("shop", "*.example", Some(true)),
            ("shop", "a.b.example", Some(true)),
            ("shop", "blog.example", None),
            ("shop", "other.test", None),
            ("blog", "blog.example", Some(true)),
            ("blog", "a.example", None),
            ("free", "blog.example", None),
            ("free", "other.test", Some(false)),
            ("free", "*.test", None),
            ("free", "*", None),
        ] {
            assert_eq!(grants.check(namespace, host).ok(), given, "{namespace} {host}");
        }
    }
}
