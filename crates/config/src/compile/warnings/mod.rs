//! Warnings about valid documents that are very likely wrong: rules that decide nothing, and functions
//! without callers. They are reported and never refused.

mod alternatives;
mod chain;
mod covers;
mod effect;
mod kept;
mod machine;
mod reach;
mod routes;

pub use effect::rules_without_effect;

use super::cache::Results;
use super::routes::PlacedRoute;
use super::{Documents, TypedDocument, fields};
use crate::document;
use crate::nearest::nearest;
use crate::problem::{Origin, Problem, Scope};
use crate::snapshot::{Function, Policy, Routes};
use leno_model::{EgressPort, EgressProtocol, MeshConfig, PersistentVolume, Run, SpiffeId, TrustDomain};
use leno_model::{FunctionId, revision};
use leno_policy::spec::{Action, AuthorizationRule, ConditionKey, LabelMatch, StringMatch};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Limit on compared values of rules, in all: some tenths of a second. If a mesh exceeds it, a
/// warning says that the search is incomplete.
const MOST_COMPARED: u64 = 10_000_000;

/// A mesh that has no problems.
struct Mesh<'a> {
    documents: &'a Documents,
    trust_domain: &'a TrustDomain,
    /// The ports of the gateway's listeners.
    gateway_ports: Vec<u16>,
    functions: &'a BTreeMap<FunctionId, Function>,
    policies: &'a [Arc<Policy>],
    /// The paths of each host of the gateway, with their functions, in order.
    exposed: BTreeMap<&'a str, Vec<(&'a str, &'a FunctionId)>>,
    /// The functions to which routes of the gateway lead.
    routed: &'a BTreeSet<FunctionId>,
    /// The functions to which routes for calls lead.
    call_targets: BTreeSet<&'a FunctionId>,
    /// The functions of each policy, by its index.
    of_policy: Vec<Vec<(&'a FunctionId, &'a Function)>>,
    /// The callers of each function, besides itself.
    callers: BTreeMap<&'a FunctionId, Vec<&'a FunctionId>>,
    /// The number of values that may still be compared.
    budget: Cell<u64>,
    found: RefCell<Vec<Problem>>,
    /// Warnings that name functions of another namespace, with that namespace.
    across: RefCell<Vec<(String, Problem)>>,
}

/// Looks for all such cases, and adds them to the warnings of the compilation. The result is
/// ordered by file and line. The second list has the warnings about documents of requests that name
/// functions of another namespace, each with that namespace.
pub(super) fn find(
    config: &MeshConfig,
    documents: &Documents,
    (policies, cache): (&[Arc<Policy>], &mut Results),
    functions: &BTreeMap<FunctionId, Function>,
    [names, jobs, externals]: [&BTreeMap<FunctionId, usize>; 3],
    (routes, compiled): (&Routes, &[PlacedRoute]),
    doubts: Vec<Problem>,
) -> (Vec<Problem>, Vec<(String, Problem)>) {
    let mut of_policy = vec![Vec::new(); policies.len()];
    let mut callers: BTreeMap<&FunctionId, Vec<&FunctionId>> = BTreeMap::new();
    let mut exposed: BTreeMap<&str, Vec<(&str, &FunctionId)>> = BTreeMap::new();
    for (id, function) in functions {
        function.policies.iter().for_each(|index| of_policy[*index].push((id, function)));
        for callee in function.callees.iter().filter(|callee| *callee != id) {
            callers.entry(callee).or_default().push(id);
        }
        for expose in &function.expose {
            for host in &expose.hosts {
                exposed.entry(host).or_default().push((&expose.path, id));
            }
        }
    }
    exposed.values_mut().for_each(|paths| paths.sort_unstable());
    let listeners = machine::listeners(config);
    let https = config.gateway_https.as_ref().map(|https| https.listen);
    let gateway_ports = config.gateway_http.iter().chain(&https).map(SocketAddr::port).collect();
    let (budget, found) = (Cell::new(MOST_COMPARED), RefCell::new(doubts));
    let trust_domain = &config.trust_domain;
    let mesh = Mesh {
        documents,
        trust_domain,
        gateway_ports,
        functions,
        policies,
        exposed,
        routed: &routes.routed,
        call_targets: routes.calls.values().flatten().flat_map(|scoped| scoped.route.route.targets()).collect(),
        of_policy,
        callers,
        budget,
        found,
        across: RefCell::default(),
    };
    for (index, placed) in documents.policies.iter().enumerate().take_while(|_| !documents.effort.is_over()) {
        mesh.kept(index, placed, cache);
    }
    for (id, index) in names.iter().take_while(|_| !documents.effort.is_over()) {
        mesh.function(id, &documents.functions[*index]);
    }
    for (id, index) in jobs.iter().take_while(|_| !documents.effort.is_over()) {
        let placed = &documents.jobs[*index];
        mesh.callees(id, &placed.scope(&mesh.found), &placed.document.spec.callees);
        mesh.files(id, &placed.scope(&mesh.found));
    }
    for (id, index) in externals {
        mesh.external(id, &documents.externals[*index]);
    }
    mesh.fixed_ports(&listeners, names);
    mesh.quotas();
    for placed in &documents.chains {
        mesh.chain(placed);
    }
    mesh.routes(routes, compiled);
    if let (0, Some(placed)) = (mesh.budget.get(), documents.policies.last()) {
        let root = placed.scope(&mesh.found);
        root.problem("there are too many rules to compare all of them: some that decide nothing may not be told", "");
    }
    let mut found = mesh.found.into_inner();
    found.sort();
    found.dedup();
    (found, mesh.across.into_inner())
}

impl<'a> Mesh<'a> {
    fn policy(&self, index: usize, placed: &TypedDocument<document::Policy>) {
        let root = placed.scope(&self.found);
        let spec = root.field("spec");
        self.audited(&spec, index, &placed.document.spec);
        self.alternatives(&spec, &placed.document.spec);
        self.tries(&spec, index);
        self.counters(&spec, index, &placed.document.spec);
        let section = spec.field("authorization");
        let rules = section.field("rules");
        for (number, rule) in self.policies[index].authorization.iter().enumerate() {
            let scope = rules.element(number);
            let before = self.found.borrow().len();
            self.shadowed(&scope, index, number, rule);
            self.unauthenticated(&scope, index, rule);
            self.callers(&scope, index, rule);
            if self.found.borrow().len() == before && !self.documents.kubernetes {
                self.unreachable(&scope, index, rule);
            }
        }
    }

    /// Reports a time-out of one try that no request lives to see.
    fn tries(&self, spec: &Scope<'_>, index: usize) {
        let Some(retry) = self.policies[index].retry.as_ref().filter(|retry| retry.per_try_timeout_ms > 0) else {
            return;
        };
        let per_try = Duration::from_millis(retry.per_try_timeout_ms);
        let ends_first = |function: &Function| !function.timeout.is_zero() && function.timeout <= per_try;
        let functions = &self.of_policy[index];
        if let Some((id, function)) = functions.first().filter(|_| functions.iter().all(|(_, it)| ends_first(it))) {
            let whole = function.timeout;
            let message = format!("it never ends a try: all of a request of `{id}` takes at most {whole:?}");
            spec.field("retry")
                .field("perTryTimeout")
                .problem(message, "make it shorter, or `timeouts.request` of the function longer");
        }
    }

    /// Reports sections that are audited and not enforced.
    fn audited(&self, spec: &Scope<'_>, index: usize, document: &document::PolicySpec) {
        let policy = &self.policies[index];
        let fix =
            "what it would decide is told in the access log, by `leno explain` and in `leno_policy_decisions_total`";
        if policy.audit {
            let in_force = [
                ("authentication", document.authentication.is_some()),
                ("sidecar", document.sidecar.is_some()),
                ("circuitBreaker", document.circuit_breaker.is_some()),
                ("extensions", !document.extensions.is_empty()),
            ];
            let in_force: Vec<_> = in_force.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
            let rest = match in_force.as_slice() {
                [] => String::new(),
                sections => format!(" (its other sections are: {})", sections.join(", ")),
            };
            let place = if spec.has("mode") { spec.field("mode") } else { *spec };
            let authorizers =
                if policy.authorizers.is_empty() { "" } else { ", and what its authorizers refuse enters" };
            let message = format!(
                "`{}/{}` is audited: its rules and rate limits are not in force{authorizers}{rest}",
                policy.namespace, policy.name
            );
            return place.problem(message, fix);
        }
        let rules = spec.field("authorization");
        let rules = rules.field("rules");
        for (number, rule) in policy.authorization.iter().enumerate().filter(|(_, rule)| rule.audit) {
            rules.element(number).field("mode").problem(format!("`{}` is audited: it is not in force", rule.name), fix);
        }
        let limits = spec.field("rateLimits");
        for (number, limit) in document.rate_limits.iter().enumerate() {
            if limit.mode == document::Mode::Audit {
                let message = "the limit is audited: it refuses nobody";
                limits.element(number).field("mode").problem(message, fix);
            }
        }
    }

    fn identity_of(&self, id: &FunctionId) -> SpiffeId {
        let own = || SpiffeId::of_function(self.trust_domain, id);
        self.functions.get(id).map_or_else(own, |function| function.run.identity(self.trust_domain, id))
    }

    fn rules<'s>(&'s self, function: &'s Function) -> impl Iterator<Item = &'s AuthorizationRule> {
        function.policies.iter().flat_map(|index| &self.policies[*index].authorization)
    }

    fn authenticates(&self, function: &Function) -> bool {
        function.policies.iter().any(|index| !self.policies[*index].authentication.is_empty())
    }

    /// Whether one rule matches wherever another does, as far as the budget allows to decide.
    fn covers(&self, wide: &AuthorizationRule, narrow: &AuthorizationRule) -> bool {
        let left = self.budget.get().saturating_sub(covers::cost(wide, narrow));
        self.budget.set(left);
        left > 0 && covers::rule(wide, narrow)
    }

    /// A rule that decides nothing: an earlier rule of its policy is as wide, or deny rules come
    /// before it for all requests that it matches.
    fn shadowed(&self, scope: &Scope<'_>, index: usize, number: usize, rule: &AuthorizationRule) {
        if self.budget.get() == 0 {
            return;
        }
        let earlier = &self.policies[index].authorization[..number];
        if let Some(wider) = earlier
            .iter()
            .find(|other| other.action == rule.action && other.audit == rule.audit && self.covers(other, rule))
        {
            let what = if rule.action == Action::Allow { "allows" } else { "refuses" };
            let message =
                format!("`{}` decides nothing: whatever it {what}, `{}` {what} before it", rule.name, wider.name);
            return scope.problem(message, "remove it, or narrow the other one");
        }
        if rule.action == Action::Deny {
            return;
        }
        let functions = &self.of_policy[index];
        let Some(first) = functions.first().and_then(|(_, function)| self.denied(function, rule, None)) else { return };
        if functions[1..].iter().all(|(_, function)| self.denied(function, rule, None).is_some()) {
            let message = format!(
                "`{}` allows nothing: `{}` refuses all of it, and deny rules come first",
                rule.name, first.name
            );
            scope.problem(message, "narrow the deny rule, or remove this one");
        }
    }

    /// Rules about users at functions that check no tokens. An allow rule is reported only if none
    /// of its functions checks tokens, because a shared policy may apply to others too. A deny rule
    /// is reported if one of its functions checks none.
    fn unauthenticated(&self, scope: &Scope<'_>, index: usize, rule: &AuthorizationRule) {
        let of_tokens = |key: &ConditionKey| matches!(key, ConditionKey::Claim(_) | ConditionKey::Audience);
        if rule.from.iter().all(|source| source.request_principals.is_empty())
            && !rule.when.iter().any(|condition| of_tokens(&condition.key))
        {
            return;
        }
        let functions = &self.of_policy[index];
        let without: Vec<&FunctionId> =
            functions.iter().filter(|(_, function)| !self.authenticates(function)).map(|(id, _)| *id).collect();
        if without.is_empty() || (rule.action == Action::Allow && without.len() < functions.len()) {
            return;
        }
        let fix = "add an `authentication` section to a policy of the function";
        let message = format!(
            "`{}` is about users, and no policy of {} looks for tokens: nobody is known there",
            rule.name,
            some(without.into_iter())
        );
        let from = scope.field("from");
        for (number, source) in rule.from.iter().enumerate() {
            let principals = &source.request_principals;
            if !principals.is_empty() {
                let written = if principals.any.is_empty() { "notRequestPrincipals" } else { "requestPrincipals" };
                from.element(number).field(written).problem(&message, fix);
            }
        }
        let when = scope.field("when");
        for (number, condition) in rule.when.iter().enumerate() {
            let element = when.element(number);
            match condition.key {
                ConditionKey::Claim(_) => element.field("claim").problem(&message, fix),
                ConditionKey::Audience => element.field("audience").problem(&message, fix),
                ConditionKey::Header(_) | ConditionKey::Query(_) => {}
            }
        }
    }

    /// Reports limits by a claim where no user is known, so that all requests share one counter.
    fn counters(&self, spec: &Scope<'_>, index: usize, document: &document::PolicySpec) {
        if self.of_policy[index].iter().any(|(_, function)| self.authenticates(function)) {
            return;
        }
        for (number, limit) in document.rate_limits.iter().enumerate() {
            let is_claim = |part: &document::KeyPart| matches!(part, document::KeyPart::Claim(_));
            let Some(position) = limit.key.iter().position(is_claim) else { continue };
            let message = "no policy of its functions looks for tokens: all requests share one counter";
            let key = spec.field("rateLimits").element(number).field("key").element(position).here();
            let fix = "add an `authentication` section to a policy of the function".to_owned();
            self.found.borrow_mut().push(Problem { message: message.to_owned(), fix, ..key });
        }
    }

    /// Reports quotas of files for a namespace that has no documents, if another one has nearly its
    /// name.
    fn quotas(&self) {
        let documents = self.documents;
        let functions = documents.functions.iter().map(|placed| &*placed.document.metadata.namespace);
        let jobs = documents.jobs.iter().map(|placed| &*placed.document.metadata.namespace);
        let used: BTreeSet<&str> = functions.chain(jobs).collect();
        let used: Vec<&str> = used.into_iter().collect();
        for placed in documents.namespace_quotas.iter().filter(|placed| placed.origin == Origin::File) {
            let name = &placed.document.metadata.name;
            let near = nearest(name, &used).filter(|near| near != name);
            if let Some(near) = near.filter(|_| !used.contains(&&**name)) {
                let fix = format!("did you mean `{near}`?");
                let root = placed.scope(&self.found);
                root.field("metadata").field("name").problem(format!("nothing is in the namespace `{name}`"), fix);
            }
        }
    }

    /// Callers that cannot call, and identities that no function has.
    fn callers(&self, scope: &Scope<'_>, index: usize, rule: &AuthorizationRule) {
        let from = scope.field("from");
        // Pods call without lists of callees.
        let lists_callees = !self.documents.kubernetes;
        if rule.action == Action::Allow && rule.from.len() > 1 && lists_callees {
            self.sources(&from, index, rule);
        }
        for (number, source) in rule.from.iter().enumerate() {
            let element = from.element(number);
            for (field, list) in [("identities", &source.identities.any), ("notIdentities", &source.identities.none)] {
                let field = element.field(field);
                for (position, identity) in list.iter().enumerate() {
                    self.identity(&field.element(position), identity);
                }
            }
            // A request may come from a tenant, who must not learn labels and calls of other
            // namespaces.
            let looks_elsewhere = element.origin() == Origin::Request && !source.namespaces.is_empty();
            if let Some(labelled) = source.labels.as_ref().filter(|_| !looks_elsewhere) {
                self.labelled(&element, index, rule.action, labelled);
            }
            let identities = element.field("identities");
            for (position, identity) in source.identities.any.iter().enumerate() {
                if rule.action == Action::Allow && lists_callees {
                    self.caller(&identities.element(position), index, identity);
                }
            }
        }
    }

    /// Labels that no function carries, or no caller.
    fn labelled(&self, element: &Scope<'_>, index: usize, action: Action, labelled: &LabelMatch) {
        let written = if element.has("labels") { "labels" } else { "labelExpressions" };
        let scope = element.field(written);
        if labelled.identities.is_empty() {
            let message = format!("no function or job there has {}", labelled.selector);
            return scope.problem(
                message,
                "labels are looked up in the policy's namespace, or in those that `namespaces` matches",
            );
        }
        let functions = &self.of_policy[index];
        let calls = |(callee, _): &(&FunctionId, &Function)| {
            let callers = self.callers.get(callee).map_or(&[][..], Vec::as_slice);
            callers
                .iter()
                .any(|caller| labelled.identities.binary_search(&self.identity_of(caller).to_string()).is_ok())
        };
        if action == Action::Allow && !self.documents.kubernetes && !functions.iter().any(calls) {
            let callees = some(functions.iter().map(|(id, _)| *id));
            let message = format!("no function with {} calls {callees}", labelled.selector);
            scope.problem(message, "add it to the `callees` of one: without that its calls are refused there");
        }
    }

    fn identity(&self, scope: &Scope<'_>, identity: &StringMatch) {
        let (StringMatch::Exact(text) | StringMatch::Prefix(text)) = identity else { return };
        let Some((domain, _)) = text.strip_prefix("spiffe://").and_then(|rest| rest.split_once('/')) else { return };
        if domain != self.trust_domain.as_str() {
            let fix =
                format!("the mesh's trust domain is `{}` (`trustDomain` of the Mesh document)", self.trust_domain);
            scope.problem(format!("nobody here has the identity `{}`", text.escape_debug()), fix);
        }
    }

    fn caller(&self, scope: &Scope<'_>, index: usize, identity: &StringMatch) {
        let StringMatch::Exact(text) = identity else { return };
        let own = || text.strip_prefix("spiffe://")?.strip_prefix(self.trust_domain.as_str())?.strip_prefix("/ns/");
        let id = own().and_then(|rest| rest.replacen("/sa/", "/", 1).parse::<FunctionId>().ok());
        let Some((caller, function)) = id.and_then(|id| self.functions.get_key_value(&id)) else { return };
        let functions = &self.of_policy[index];
        if scope.origin() == Origin::Request && caller.namespace != self.policies[index].namespace {
            return;
        }
        if self.identity_of(caller).as_str() == text
            && functions.iter().all(|(callee, _)| !function.callees.contains(callee))
        {
            let message = format!("`{caller}` does not call {}", some(functions.iter().map(|(id, _)| *id)));
            let fix = format!("add it to the `callees` of `{caller}`: without that its calls are refused there");
            scope.problem(message, fix);
        }
    }

    /// A function that receives no requests.
    fn function(&self, id: &'a FunctionId, placed: &TypedDocument<document::Function>) {
        let Some(function) = self.functions.get(id) else { return };
        if let Run::Pods(_) = function.run {
            return;
        }
        let root = placed.scope(&self.found);
        self.callees(id, &root, &placed.document.spec.callees);
        self.files(id, &root);
        self.revisions(id, function, &root);
        let metadata = root.field("metadata");
        let scope = metadata.field("name");
        self.volumes(id, function, &root.field("spec"));
        let callers = self.callers.get(id).map_or(&[][..], Vec::as_slice);
        if callers.is_empty() && function.expose.is_empty() && !self.routed.contains(id) {
            // A function that runs without requests may do other work.
            if function.scale.min == 0 {
                let fix =
                    "add it to the `callees` of a function, `expose` it, or keep it running with `scale: {min: 1}`";
                scope.problem(format!("nobody can call `{id}`: no function names it, and it is not exposed"), fix);
            }
            return;
        }
        self.refused(id, function, &root);
        self.unasked(id, function, &scope);
        let spec = root.field("spec");
        self.connections(id, function, &spec.field("ports"));
    }

    /// Revisions that only a mesh with the function's history knows.
    fn revisions(&self, id: &FunctionId, function: &Function, root: &Scope<'_>) {
        let spec = root.field("spec");
        let list = spec.field("traffic");
        for (index, target) in function.plan.traffic.iter().enumerate().filter(|(_, target)| target.revision != 0) {
            let name = revision::name(id, target.revision);
            let message =
                format!("only a mesh that keeps `{name}` knows it: a fresh start gives its share to the latest");
            let fix = "declare it by name: add `revisions: [{name: stable}]` to the `spec`, with the fields of that revision, and write `stable` here";
            list.element(index).field("revision").problem(message, fix);
        }
    }

    /// Volumes that another function has too, although one instance may have them at a time.
    fn volumes(&self, id: &FunctionId, function: &Function, spec: &Scope<'_>) {
        for volume in volumes_of(function) {
            let has = |(other, function): &(&FunctionId, &Function)| {
                let same = |own: &&PersistentVolume| own.name == volume.name;
                let sole = |own: &PersistentVolume| !own.shared || !volume.shared;
                *other != id && other.namespace == id.namespace && volumes_of(function).find(same).is_some_and(sole)
            };
            if let Some((other, _)) = self.functions.iter().find(has) {
                let message =
                    format!("`{other}` has the volume `{}` too, and one of the two waits for the other", volume.name);
                spec.field("volumes").problem(message, "write `access: shared` in both, or give each its own name");
            }
        }
    }

    /// Connections without requests, about which no authorizer is asked.
    fn unasked(&self, id: &FunctionId, function: &Function, scope: &Scope<'_>) {
        let other = |protocol| matches!(protocol, EgressProtocol::Tcp | EgressProtocol::Tls);
        let port = match &function.run {
            Run::Command(command) => command.ports.first().map(|port| port.number),
            Run::Egress(egress) => egress.ports.iter().find(|port| other(port.protocol)).map(|port| port.number),
            _ => None,
        };
        let authorizers = function.policies.iter().flat_map(|index| &self.policies[*index].authorizers);
        if let (Some(port), Some(authorizer)) = (port, authorizers.map(|authorizer| &authorizer.config.name).next()) {
            let message = format!("connections to port {port} of `{id}` have no requests: `{authorizer}` is not asked");
            scope.problem(message, "have a rule of `authorization` deny them, with `to: [{ports: [N]}]`");
        }
    }

    fn external(&self, id: &'a FunctionId, placed: &TypedDocument<document::External>) {
        let Some(function) = self.functions.get(id) else { return };
        let Run::Egress(egress) = &function.run else { return };
        let root = placed.scope(&self.found);
        let (metadata, spec) = (root.field("metadata"), root.field("spec"));
        let name = metadata.field("name");
        if self.callers.contains_key(id) || self.routed.contains(id) {
            self.refused(id, function, &root);
            self.connections(id, function, &spec.field("ports"));
        } else {
            let fix = "add it to the `callees` of a function";
            name.problem(format!("nobody can call `{id}`: no function names it"), fix);
        }
        self.unasked(id, function, &name);
        self.files(id, &root);
        if !egress.credentials.is_empty() && egress.hosts.iter().any(|host| host.starts_with('*')) {
            let message =
                "functions choose to which of the names below `*` a secret goes, and who has such a name gets it";
            spec.field("credentials").problem(message, "name the hosts, unless all names there are of one hand");
        }
        let is_http = |port: &EgressPort| matches!(port.protocol, EgressProtocol::Http | EgressProtocol::Https);
        if !egress.ports.iter().any(is_http) {
            let of_requests = |policy: &&Policy| !policy.rate_limits.is_empty() || policy.retry.is_some();
            let mut policies = function.policies.iter().map(|index| &*self.policies[*index]);
            if let Some(policy) = policies.find(of_requests) {
                let message = format!(
                    "rate limits and retries of `{}` are about requests, and `{id}` has no port with `http` or `https`",
                    policy.name
                );
                spec.field("ports").problem(message, "use `circuitBreaker: {maxConnections: N}`");
            }
        }
    }
}

/// The volumes on disk of a function's revisions.
fn volumes_of(function: &Function) -> impl Iterator<Item = &PersistentVolume> {
    let commands = function.runs().filter_map(|(_, run, _)| match run {
        Run::Command(command) => Some(command),
        Run::External(_) | Run::Wasm(_) | Run::Job(_) | Run::Egress(_) | Run::Pods(_) => None,
    });
    commands.flat_map(|command| &command.persistent)
}

/// `a`, `b` or `c`; of more than three, the first three.
fn some<'a>(ids: impl Iterator<Item = &'a FunctionId>) -> String {
    let names: Vec<String> = ids.map(|id| format!("`{id}`")).collect();
    match names.len() {
        0..=3 => names.join(" or "),
        count => format!("{} or {} others", names[..3].join(", "), count - 3),
    }
}
