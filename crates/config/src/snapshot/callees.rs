//! The callees of a function, as its callee rules restrict them.

use super::{CalleeRules, Function, Snapshot};
use crate::document::CalleeSelector;
use leno_model::{Callee, FunctionId, Run, SpiffeId};
use leno_policy::spec;

impl Snapshot {
    pub(super) fn callees<'a>(
        &'a self,
        function: &'a Function,
    ) -> impl Iterator<Item = (&'a FunctionId, &'a Function)> {
        let callees = function.callees.iter().filter_map(|id| self.functions.get_key_value(id));
        callees.filter(|(id, callee)| self.may_call(function, id, callee))
    }

    fn callee_rules<'a>(&'a self, function: &'a Function) -> impl Iterator<Item = &'a CalleeRules> {
        self.applied(function).filter_map(|policy| policy.callee_rules.as_ref())
    }

    /// Whether the function's translated policies let it call a callee in some way.
    fn may_call(&self, function: &Function, id: &FunctionId, callee: &Function) -> bool {
        let denied = self.callee_rules(function).any(|rules| selects(&rules.deny, id, callee));
        let mut rules = self.callee_rules(function).flat_map(|rules| &rules.allow);
        let narrowed = self.callee_rules(function).any(|rules| rules.default_deny);
        !denied && (!narrowed || rules.any(|rule| selects(&rule.to, id, callee)))
    }

    /// A callee. Of its ports that do not serve HTTP, it has only those to which the function's
    /// translated policies allow connections.
    pub(super) fn narrowed(
        &self,
        id: &FunctionId,
        function: &Function,
        callee: &FunctionId,
        known: &Function,
    ) -> Callee {
        let routes = self.routes.for_calls(id, callee).map(|scoped| scoped.route.clone()).collect();
        let mut callee = Callee { routes, ..self.callee(id, callee) };
        let narrowed = self.callee_rules(function).any(|rules| rules.default_deny);
        if narrowed && !is_external(known) {
            let rules = || self.callee_rules(function).flat_map(|rules| &rules.allow);
            let allows = |port: u16, (operation, when): &(spec::Operation, Vec<spec::Condition>)| {
                let spec::Operation { methods, hosts, ports, paths } = operation;
                let http = !(methods.is_empty() && hosts.is_empty() && paths.is_empty() && when.is_empty());
                !http && (ports.any.is_empty() || ports.any.contains(&port))
            };
            callee.ports.retain(|port| {
                rules()
                    .filter(|rule| selects(&rule.to, &callee.id, known))
                    .any(|rule| rule.calls.is_empty() || rule.calls.iter().any(|call| allows(port.number, call)))
            });
        }
        callee
    }

    /// Rules for calls to the callees, if translated policies restrict them.
    pub(super) fn calls(&self, id: &FunctionId, function: &Function) -> Vec<spec::AuthorizationRule> {
        let narrowed = self.callee_rules(function).any(|rules| rules.default_deny);
        let rules = || self.callee_rules(function).flat_map(|rules| &rules.allow);
        if !narrowed || rules().all(|rule| rule.calls.is_empty()) {
            return Vec::new();
        }
        let unrestricted = vec![(spec::Operation::default(), Vec::new())];
        let inside = self.callees(function).filter(|(_, known)| !is_external(known));
        let hosts = inside.flat_map(|(callee, _)| self.callee(id, callee).hosts).map(spec::StringMatch::Exact);
        // All callees except functions.
        let external = spec::Matches { any: Vec::new(), none: hosts.collect() };
        let mut compiled = Vec::new();
        for rule in rules() {
            let selected = |external| {
                let chosen = self
                    .callees(function)
                    .filter(move |(callee, known)| is_external(known) == external && selects(&rule.to, callee, known));
                chosen.map(|(callee, _)| callee)
            };
            if selected(true).next().is_some() {
                // The policies of functions decide how they may be called.
                let to = vec![spec::Operation { hosts: external.clone(), ..spec::Operation::default() }];
                compiled.push(allowing(rule.name.clone(), to, Vec::new()));
            }
            let hosts: Vec<_> = selected(false).flat_map(|callee| self.callee(id, callee).hosts).collect();
            if hosts.is_empty() {
                continue;
            }
            for (operation, when) in if rule.calls.is_empty() { &unrestricted } else { &rule.calls } {
                let to_callees = spec::Operation {
                    hosts: spec::Matches {
                        any: hosts.iter().cloned().map(spec::StringMatch::Exact).collect(),
                        none: Vec::new(),
                    },
                    ..operation.clone()
                };
                compiled.push(allowing(rule.name.clone(), vec![to_callees], when.clone()));
            }
        }
        compiled
    }

    fn callee(&self, caller: &FunctionId, id: &FunctionId) -> Callee {
        let FunctionId { namespace, name } = id;
        let mut hosts = vec![
            format!("{name}.{namespace}"),
            format!("{name}.{namespace}.svc"),
            format!("{name}.{namespace}.svc.cluster.local"),
        ];
        if caller.namespace == *namespace {
            hosts.insert(0, name.clone());
        }
        let run = self.functions.get(id).map(|function| &function.run);
        let ports = run.map(Run::other_ports).unwrap_or_default();
        let mut addresses = Vec::new();
        let own = || SpiffeId::of_function(&self.mesh.trust_domain, id);
        if let Some(Run::Egress(egress)) = run {
            (hosts, addresses) = (egress.hosts.clone(), egress.addresses.clone());
        }
        Callee {
            id: id.clone(),
            identity: run.map_or_else(own, |run| run.identity(&self.mesh.trust_domain, id)),
            hosts,
            ports,
            addresses,
            routes: Default::default(),
        }
    }
}

fn is_external(function: &Function) -> bool {
    matches!(function.run, Run::Egress(_))
}

/// Whether the selector matches a callee.
fn selects(selector: &CalleeSelector, id: &FunctionId, callee: &Function) -> bool {
    match callee.run {
        Run::Egress(_) => selector.externals.contains(id),
        _ => selector.functions.iter().any(|functions| functions.holds(&id.namespace, &callee.labels)),
    }
}

fn allowing(name: String, to: Vec<spec::Operation>, when: Vec<spec::Condition>) -> spec::AuthorizationRule {
    spec::AuthorizationRule { name, action: spec::Action::Allow, from: Vec::new(), to, when, audit: false }
}
