//! Which callers reach a function, and which of them its rules admit. Only certain results count: a
//! rule that this module does not report may admit nothing all the same.

use super::{Mesh, covers, effect, some};
use crate::problem::{MAX_PROBLEMS, Origin, Problem, Scope};
use crate::snapshot::Function;
use leno_model::{EgressPort, EgressProtocol, Expose, FunctionId, Run};
use leno_policy::matching;
use leno_policy::spec::{Action, AuthorizationRule, Matches, Operation, PathMatch, Segment, Source, StringMatch};

/// A possible origin of requests to a function.
#[derive(Clone, Copy)]
pub(super) enum Caller<'a> {
    /// A client of the gateway, which has no identity, at one of the function's exposed places.
    Gateway(&'a Expose),
    /// A client of the gateway whom a route leads to the function, at any host and path.
    Route,
    /// A function or job that lists the function among its callees.
    Function(&'a FunctionId),
}

/// The reason for which a rule matches no request of a caller.
#[derive(Clone, Copy)]
pub(super) enum Mismatch<'a> {
    /// It is about users, and the function's policies authenticate none.
    User,
    /// Its `from` does not select the caller.
    Source,
    /// The caller's requests have other hosts, paths or ports.
    Route,
    /// No call by gRPC has one of its methods.
    Method,
    /// This rule denies all that it allows.
    Denied(&'a AuthorizationRule),
}

/// A function, its rules and the place of a rule that comes close to admitting a caller.
struct Nearest<'a> {
    mismatch: Mismatch<'a>,
    rule: &'a AuthorizationRule,
    /// `file:line`.
    place: String,
}

impl<'m> Mesh<'m> {
    /// The callers of a function.
    pub(super) fn reaching<'s>(
        &'s self,
        id: &'m FunctionId,
        function: &'s Function,
    ) -> impl Iterator<Item = Caller<'s>> {
        let itself = function.callees.contains(id).then_some(Caller::Function(id));
        let callers = self.callers.get(id).into_iter().flatten().map(|caller| Caller::Function(caller));
        let routed = self.routed.contains(id).then_some(Caller::Route);
        callers.chain(itself).chain(routed).chain(function.expose.iter().map(Caller::Gateway))
    }

    /// Whether requests that no rule allows enter: by audits, or by the permissive mode of pods.
    fn admits_by_default(&self, function: &Function) -> bool {
        let allows = |rule: &AuthorizationRule| rule.action == Action::Allow && !rule.audit;
        self.audits_default(function) || function.has_permissive_pods() && !self.rules(function).any(allows)
    }

    fn audits_default(&self, function: &Function) -> bool {
        let mut authorizing =
            function.policies.iter().map(|index| &self.policies[*index]).filter(|one| one.authorizes).peekable();
        authorizing.peek().is_some() && authorizing.all(|policy| policy.audit)
    }

    /// Whether some rule may admit a caller, as far as the budget allows to decide.
    pub(super) fn admits(&self, id: &FunctionId, function: &Function, caller: Caller<'_>) -> bool {
        let mut allowing = self.rules(function).filter(|rule| rule.action == Action::Allow && !rule.audit);
        self.admits_by_default(function) || allowing.any(|rule| self.mismatch(rule, id, function, caller).is_none())
    }

    /// Why a rule matches no request of the caller to the function; `None`: it may match one.
    pub(super) fn mismatch<'s>(
        &'s self,
        rule: &AuthorizationRule,
        id: &FunctionId,
        function: &'s Function,
        caller: Caller<'_>,
    ) -> Option<Mismatch<'s>> {
        if !self.spend(1) {
            return None;
        }
        let reaches = |operation: &Operation| self.reaches(operation, id, function, caller);
        let grpc = function.protocol == leno_model::AppProtocol::Grpc;
        let posts = |operation: &Operation| holds(&operation.methods, "POST");
        match rule {
            _ if effect::is_about_users(rule) && !self.authenticates(function) => Some(Mismatch::User),
            AuthorizationRule { from, .. } if !any(from, |source| self.selects(source, caller)) => {
                Some(Mismatch::Source)
            }
            AuthorizationRule { to, .. } if !any(to, reaches) => Some(Mismatch::Route),
            AuthorizationRule { to, .. } if grpc && !any(to, posts) => Some(Mismatch::Method),
            AuthorizationRule { action: Action::Deny, .. } => None,
            _ => self.denied(function, rule, Some(caller)).map(Mismatch::Denied),
        }
    }

    /// The deny rule that refuses every request that an allow rule allows: to anybody, or to this
    /// caller.
    pub(super) fn denied<'s>(
        &'s self,
        function: &'s Function,
        rule: &AuthorizationRule,
        caller: Option<Caller<'_>>,
    ) -> Option<&'s AuthorizationRule> {
        let rules = function.policies.iter().map(|index| self.policies[*index].authorization.len() as u64).sum();
        if !self.spend(rules) {
            return None;
        }
        let names = |other: &AuthorizationRule, caller| other.from.iter().any(|source| self.names(source, caller));
        self.rules(function).filter(|other| other.action == Action::Deny && !other.audit).find(|other| {
            let names = caller.is_some_and(|caller| names(other, caller));
            self.spend(covers::cost(other, rule))
                && (covers::rule(other, rule) || (names && covers::requests(other, rule)))
        })
    }

    /// Whether a source may match requests of the caller.
    fn selects(&self, source: &Source, caller: Caller<'_>) -> bool {
        let Caller::Function(caller) = caller else {
            return source.identities.any.is_empty() && source.namespaces.any.is_empty() && source.labels.is_none();
        };
        let identity = self.identity_of(caller).to_string();
        holds(&source.identities, &identity)
            && source.labels.as_ref().is_none_or(|known| known.identities.binary_search(&identity).is_ok())
            && holds(&source.namespaces, &caller.namespace)
    }

    /// Whether a source matches all requests of the caller.
    fn names(&self, source: &Source, caller: Caller<'_>) -> bool {
        source.addresses.is_empty() && source.request_principals.is_empty() && self.selects(source, caller)
    }

    /// Whether requests of the caller may have one of the operation's hosts, paths and ports.
    fn reaches(&self, operation: &Operation, id: &FunctionId, function: &Function, caller: Caller<'_>) -> bool {
        match caller {
            Caller::Gateway(expose) => {
                let ports = &self.gateway_ports;
                let listens = |port: &u16| *port == 0 || holds_port(&operation.ports, *port);
                (ports.is_empty() || ports.iter().any(listens))
                    && expose.hosts.iter().any(|host| {
                        let taken = self.taken(id, host, &expose.path);
                        let leads = |path: &PathMatch| {
                            is_below(&expose.path, path) && !taken.iter().any(|longer| is_within(longer, path))
                        };
                        may_be(host, &operation.hosts) && any(&operation.paths.any, leads)
                    })
            }
            Caller::Route => true,
            // A route does not change the host, unless it says so.
            Caller::Function(_) if matches!(function.run, Run::Egress(_)) || self.call_targets.contains(id) => true,
            Caller::Function(caller) => {
                let FunctionId { namespace, name } = id;
                let own = (caller.namespace == *namespace).then(|| name.clone());
                let suffixes = ["", ".svc", ".svc.cluster.local"];
                let mut names = suffixes.map(|suffix| format!("{name}.{namespace}{suffix}")).into_iter().chain(own);
                operation.hosts.is_empty() || names.any(|name| holds(&operation.hosts, &name))
            }
        }
    }

    /// Paths below this one that the gateway routes to other functions at the same host.
    fn taken(&self, id: &FunctionId, host: &str, path: &str) -> Vec<&'m str> {
        let there = self.exposed.get(host).map_or(&[][..], Vec::as_slice);
        let first = there.partition_point(|(other, _)| *other <= path);
        let longer = there[first..].iter().take_while(|(other, _)| other.starts_with(path) && self.spend(1));
        longer.filter(|(other, owner)| *owner != id && below(path, other)).map(|(other, _)| *other).collect()
    }

    /// Reports a function whose rules admit none of its callers, or no client of the gateway.
    pub(super) fn refused(&self, id: &'m FunctionId, function: &Function, root: &Scope<'_>) {
        if self.audits_default(function) {
            return;
        }
        let metadata = root.field("metadata");
        let scope = metadata.field("name");
        let allows = |rule: &&AuthorizationRule| rule.action == Action::Allow && !rule.audit;
        if self.rules(function).any(|rule| allows(&rule)) {
            if !self.reaching(id, function).any(|caller| self.admits(id, function, caller)) {
                let fix = "see which of its callers, and whether the gateway, the rules name; deny rules come first";
                let message = format!("every request to `{id}` is refused: no rule allows anybody who can call it");
                return scope.problem(message, fix);
            }
            let spec = root.field("spec");
            return self.refused_at_the_gateway(id, function, &spec.field("expose"));
        }
        let audited = self.rules(function).any(|rule| rule.action == Action::Allow);
        let (what, fix) = match audited {
            true => {
                ("no rule that is in force allows any", "audit all policies that authorize, or none that allows".into())
            }
            false => ("no rule allows any", format!("add a policy with {}", self.example(id, function))),
        };
        scope.problem(format!("every request to `{id}` is refused: {what}"), fix);
    }

    /// The sections of a policy that admits the function's callers.
    fn example(&self, id: &FunctionId, function: &Function) -> String {
        let callers = self.callers.get(id).map_or(&[][..], Vec::as_slice);
        // A request may come from a tenant, who must not learn the names of other namespaces.
        let is_own = |caller: &&&FunctionId| function.origin == Origin::File || caller.namespace == id.namespace;
        let names: Vec<String> =
            callers.iter().filter(is_own).take(3).map(|caller| short(caller, &id.namespace)).collect();
        let from = match function.expose.is_empty() && !self.routed.contains(id) && !names.is_empty() {
            true => format!("from: [{{identities: [{}]}}]", names.join(", ")),
            false => "to: [{methods: [GET]}]".to_owned(),
        };
        format!("`functions: [{}]` and `authorization: {{rules: [{{{from}}}]}}`", id.name)
    }

    fn refused_at_the_gateway(&self, id: &'m FunctionId, function: &Function, list: &Scope<'_>) {
        for (index, expose) in function.expose.iter().enumerate() {
            let caller = Caller::Gateway(expose);
            if self.admits(id, function, caller) {
                continue;
            }
            let Some(Nearest { mismatch, rule, place }) = self.nearest(id, function, caller) else { continue };
            let at = || shown(expose);
            let (why, fix) = match mismatch {
                Mismatch::Source => (
                    "clients of the gateway have no identity, and all its rules want one".to_owned(),
                    "add a rule without `identities`, `namespaces` and `labels`, or remove `expose`".to_owned(),
                ),
                _ => (Self::why(mismatch, &format!("`{}`", rule.name), id), format!("see `{}` ({place})", rule.name)),
            };
            list.element(index).problem(format!("every request to {} is refused: {why}", at()), fix);
        }
    }

    /// Reports listed callees whose rules never admit the caller.
    pub(super) fn callees(&self, id: &'m FunctionId, root: &Scope<'_>, written: &[String]) {
        let Some(function) = self.functions.get(id) else { return };
        let (metadata, spec) = (root.field("metadata"), root.field("spec"));
        let list = spec.field("callees");
        for callee in &function.callees {
            let Some((callee, called)) = self.functions.get_key_value(callee) else { continue };
            if self.admits(callee, called, Caller::Function(id)) {
                continue;
            }
            if !self.reaching(callee, called).any(|caller| self.admits(callee, called, caller)) {
                // The callee has a warning about all its callers.
                continue;
            }
            let position =
                written.iter().position(|name| super::fields::parsed(&id.namespace, name).as_ref() == Some(callee));
            let scope = position.map_or(metadata.field("name"), |index| list.element(index));
            let what = if position.is_some() { "calls" } else { "questions to the authorizer" };
            let refused = format!("{what} of `{id}` to `{callee}` are refused with 403");
            let own = short(id, &callee.namespace);
            let nearest = self.nearest(callee, called, Caller::Function(id));
            let (message, fix) = match nearest {
                None => {
                    let fix = format!("have the owner of `{callee}` add a rule with `from: [{{identities: [{own}]}}]`");
                    (format!("{refused}: no rule of `{callee}` admits them"), fix)
                }
                Some(Nearest { mismatch: Mismatch::Source, rule, place }) => {
                    let fix = format!(
                        "add `{{identities: [{own}]}}` to `from` of `{}` ({place}), or remove the callee",
                        rule.name
                    );
                    (format!("{refused}: no rule of `{callee}` names the caller"), fix)
                }
                Some(Nearest { mismatch, rule, place }) => (
                    format!("{refused}: {}", Self::why(mismatch, &format!("`{}`", rule.name), callee)),
                    format!("see `{}` ({place})", rule.name),
                ),
            };
            // A tenant must not learn the functions of other namespaces, or the callers that they
            // admit.
            match root.origin() == Origin::Request && callee.namespace != id.namespace {
                true if self.across.borrow().len() < MAX_PROBLEMS => {
                    let warning = Problem { message, fix, ..scope.here() };
                    self.across.borrow_mut().push((callee.namespace.clone(), warning));
                }
                true => {}
                false => scope.problem(message, fix),
            }
        }
    }

    /// The rule that comes nearest to admitting a caller that none admits.
    fn nearest<'s>(&'s self, id: &FunctionId, function: &'s Function, caller: Caller<'_>) -> Option<Nearest<'s>> {
        let rank = |mismatch: &Mismatch<'_>| match mismatch {
            Mismatch::Denied(_) => 0,
            Mismatch::Method => 1,
            Mismatch::Route => 2,
            Mismatch::Source => 3,
            Mismatch::User => 4,
        };
        let mut nearest: Option<(usize, usize, Mismatch<'s>)> = None;
        for index in &function.policies {
            for (number, rule) in self.policies[*index].authorization.iter().enumerate() {
                if rule.action == Action::Deny || rule.audit {
                    continue;
                }
                let mismatch = self.mismatch(rule, id, function, caller)?;
                if nearest.as_ref().is_none_or(|(.., other)| rank(&mismatch) < rank(other)) {
                    nearest = Some((*index, number, mismatch));
                }
            }
        }
        let (index, number, mismatch) = nearest?;
        let root = self.documents.policies[index].scope(&self.found);
        let spec = root.field("spec");
        let section = spec.field("authorization");
        let rules = section.field("rules");
        let place = rules.element(number).line();
        Some(Nearest { mismatch, rule: &self.policies[index].authorization[number], place })
    }

    /// The reason in words; `subject`: the rule.
    fn why(mismatch: Mismatch<'_>, subject: &str, id: &FunctionId) -> String {
        match mismatch {
            Mismatch::User => format!("{subject} is about users, and no policy of `{id}` authenticates any"),
            Mismatch::Source => format!("{subject} names nobody who can call `{id}`"),
            Mismatch::Route => format!("no requests to `{id}` have the hosts, paths or ports of {subject}"),
            Mismatch::Method => format!("calls by gRPC are POST, and {subject} wants other methods"),
            Mismatch::Denied(deny) => format!("`{}` denies all that {subject} allows", deny.name),
        }
    }

    /// Reports a rule that matches no request that can reach the policy's functions. `element`: the
    /// place of the rule.
    pub(super) fn unreachable(&self, element: &Scope<'_>, index: usize, rule: &AuthorizationRule) {
        let functions = &self.of_policy[index];
        let mut last = None;
        for (id, function) in functions {
            let mut callers = self.reaching(id, function).peekable();
            // A function without callers has its own warning.
            if callers.peek().is_none() {
                return;
            }
            for caller in callers {
                match self.mismatch(rule, id, function, caller) {
                    Some(mismatch) => last = Some((mismatch, *id, *function)),
                    None => return,
                }
            }
        }
        let Some((mismatch, id, function)) = last else { return };
        let fix = match mismatch {
            // A deny rule may be there in case that a caller is added.
            Mismatch::Source | Mismatch::User if rule.action == Action::Deny => return,
            // The rules about users have their own warning.
            Mismatch::User => return,
            Mismatch::Source => {
                let names = some(functions.iter().map(|(id, _)| *id));
                format!(
                    "name a function that lists {names} among its `callees`; clients of the gateway have no identity"
                )
            }
            Mismatch::Route => self.ways(id, function),
            Mismatch::Method => "add `POST` to its `methods`".to_owned(),
            Mismatch::Denied(_) => "narrow the deny rule, or remove this one".to_owned(),
        };
        let why = Self::why(mismatch, if matches!(mismatch, Mismatch::Route) { "the rule" } else { "it" }, id);
        element.problem(format!("`{}` can never match: {why}", rule.name), fix);
    }

    /// The hosts and paths at which a function is reached, in words.
    fn ways(&self, id: &FunctionId, function: &Function) -> String {
        let mut ways: Vec<String> = function.expose.iter().take(3).map(shown).collect();
        if !self.gateway_ports.is_empty() && !ways.is_empty() {
            let ports: Vec<String> = self.gateway_ports.iter().map(ToString::to_string).collect();
            ways.push(format!("port {}", ports.join(" or ")));
        }
        let exposed =
            if ways.is_empty() { String::new() } else { format!("the gateway offers it at {}", ways.join(", ")) };
        let FunctionId { namespace, name } = id;
        let called = format!("functions call it `{name}.{namespace}` (`{name}` in its namespace)");
        match (self.callers.contains_key(id), exposed.is_empty()) {
            (true, true) => called,
            (true, false) => format!("{exposed}; {called}"),
            (false, _) => exposed,
        }
    }

    /// Reports elements of `from` that select no caller, in a rule that has others.
    pub(super) fn sources(&self, from: &Scope<'_>, index: usize, rule: &AuthorizationRule) {
        let functions = &self.of_policy[index];
        for (number, source) in rule.from.iter().enumerate() {
            // Single identities and labels have their own warnings.
            let single = |identity: &StringMatch| matches!(identity, StringMatch::Exact(_));
            let is_reported = source.labels.is_some() || source.identities.any.iter().any(single);
            let wants_one = !source.identities.any.is_empty() || !source.namespaces.any.is_empty();
            // A request may come from a tenant, who must not learn of calls of other namespaces.
            if is_reported || !wants_one || from.origin() == Origin::Request {
                continue;
            }
            let selects = |(id, function): &(&'m FunctionId, &'m Function)| {
                self.reaching(id, function).any(|caller| self.selects(source, caller))
            };
            if self.spend(functions.len() as u64) && !functions.iter().any(selects) {
                let names = some(functions.iter().map(|(id, _)| *id));
                let message = format!("no function that this selects calls {names}");
                let fix = format!("have one list {names} among its `callees`, or correct the names here");
                from.element(number).problem(message, fix);
            }
        }
    }

    /// Reports ports for other protocols than HTTP to which no rule admits a connection.
    pub(super) fn connections(&self, id: &'m FunctionId, function: &Function, list: &Scope<'_>) {
        if self.audits_default(function) || !self.callers.contains_key(id) {
            return;
        }
        let http = |port: &EgressPort| matches!(port.protocol, EgressProtocol::Http | EgressProtocol::Https);
        let ports: Vec<(usize, u16)> = match &function.run {
            Run::Egress(egress) => {
                let ports = egress.ports.iter().enumerate().filter(|(_, port)| !http(port));
                ports.map(|(index, port)| (index, port.number)).collect()
            }
            run => run.other_ports().iter().map(|port| port.number).enumerate().collect(),
        };
        for (index, number) in ports {
            let callers = || self.callers.get(id).into_iter().flatten().map(|caller| Caller::Function(caller));
            let admits = |rule: &AuthorizationRule| {
                rule.action == Action::Allow
                    && !rule.audit
                    && rule.when.iter().all(|condition| condition.values.any.is_empty())
                    && any(&rule.to, |operation| is_connection(operation, number))
                    && callers().any(|caller| {
                        any(&rule.from, |source| {
                            source.request_principals.any.is_empty() && self.selects(source, caller)
                        })
                    })
            };
            if self.spend(1) && !self.rules(function).any(admits) {
                let message = format!("every connection to port {number} of `{id}` is refused: no rule admits one");
                let fix = format!(
                    "add a rule with `to: [{{ports: [{number}]}}]`: a connection has a caller and a port, and no method, host, path, header or user"
                );
                list.element(index).problem(message, fix);
            }
        }
    }

    /// Takes from the budget; `false`: it is used up.
    fn spend(&self, cost: u64) -> bool {
        self.budget.set(self.budget.get().saturating_sub(cost));
        self.budget.get() > 0
    }
}

/// `stock` in its own namespace, else `shop/stock`.
fn short(id: &FunctionId, namespace: &str) -> String {
    if id.namespace == namespace { id.name.clone() } else { id.to_string() }
}

/// `shop.example/orders`
fn shown(expose: &Expose) -> String {
    let host = expose.hosts.first().map_or("*", String::as_str);
    format!("`{host}{}`", expose.path)
}

/// Whether one of the alternatives does; an empty list stands for everything.
fn any<T>(alternatives: &[T], meets: impl FnMut(&T) -> bool) -> bool {
    alternatives.is_empty() || alternatives.iter().any(meets)
}

fn holds(matches: &Matches<StringMatch>, value: &str) -> bool {
    let meets = |matcher: &StringMatch| matching::text(matcher, value);
    any(&matches.any, meets) && !matches.none.iter().any(meets)
}

fn holds_port(matches: &Matches<u16>, port: u16) -> bool {
    any(&matches.any, |other| *other == port) && !matches.none.contains(&port)
}

fn is_connection(operation: &Operation, port: u16) -> bool {
    let Operation { methods, hosts, ports, paths } = operation;
    methods.any.is_empty() && hosts.any.is_empty() && paths.any.is_empty() && holds_port(ports, port)
}

/// Whether a host that the gateway routes by this pattern may match.
fn may_be(pattern: &str, hosts: &Matches<StringMatch>) -> bool {
    let Some(end) = pattern.strip_prefix('*') else { return holds(hosts, pattern) };
    any(&hosts.any, |host| match host {
        StringMatch::Exact(host) => host.ends_with(end),
        _ => true,
    })
}

/// Whether a path is below a prefix of whole segments, or the prefix itself.
fn below(prefix: &str, path: &str) -> bool {
    let rest = if prefix == "/" { Some(path) } else { path.strip_prefix(prefix) };
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether one of the paths that match is below the prefix.
fn is_below(prefix: &str, path: &PathMatch) -> bool {
    match path {
        PathMatch::Text(StringMatch::Exact(path)) => below(prefix, path),
        PathMatch::Text(StringMatch::Prefix(start)) => {
            below(prefix, start) || format!("{prefix}/").starts_with(start.as_str())
        }
        PathMatch::Template(_) if prefix == "/" => true,
        PathMatch::Template(segments) => {
            let mut segments = segments.iter();
            for part in prefix.split('/').skip(1) {
                match segments.next() {
                    Some(Segment::Rest) => return true,
                    Some(Segment::One(_)) => {}
                    Some(Segment::Literal(text)) if text == part => {}
                    Some(Segment::Literal(_)) | None => return false,
                }
            }
            true
        }
        PathMatch::Text(_) | PathMatch::WithQuery(_) => true,
    }
}

/// Whether all of the paths that match are below the prefix.
fn is_within(prefix: &str, path: &PathMatch) -> bool {
    match path {
        PathMatch::Text(StringMatch::Exact(path)) => below(prefix, path),
        PathMatch::Text(StringMatch::Prefix(start)) => start.starts_with(&format!("{prefix}/")),
        PathMatch::Template(segments) => {
            let mut segments = segments.iter();
            prefix
                .split('/')
                .skip(1)
                .all(|part| matches!(segments.next(), Some(Segment::Literal(text)) if text == part))
        }
        PathMatch::Text(_) | PathMatch::WithQuery(_) => false,
    }
}
