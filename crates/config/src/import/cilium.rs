//! `CiliumNetworkPolicy` and `CiliumClusterwideNetworkPolicy`.

use super::peers;
use super::ports::{self, Ports};
use super::report::Report;
use super::{Translated, http, walk};
use crate::document::{
    Action, AuthorizationRule, CalleeRule, CalleeRules, Condition, FunctionSelector, Mode, Operation, Source,
};
use crate::problem::Scope;
use crate::yaml::Node;

/// Who is meant where nobody is named, and how strictly.
#[derive(Clone, Copy)]
struct Context<'a, 'r> {
    report: &'a Report<'r>,
    /// The policy's namespace; `None`: it is for all.
    namespace: Option<&'a str>,
}

/// A way to call: an operation, and further conditions.
type Call = (Operation, Vec<Condition>);

pub(super) fn spec(report: &Report<'_>, scope: &Scope<'_>, namespace: Option<&str>) -> Option<Translated> {
    let context = Context { report, namespace };
    let selector_scope = scope.field("endpointSelector");
    if !scope.has("endpointSelector") {
        let what = if scope.has("nodeSelector") { scope.field("nodeSelector") } else { *scope };
        report.refused(&what, "only a policy with an endpointSelector is about functions");
        return None;
    }
    let selector = peers::selector(report, &selector_scope, namespace)?;
    if namespace.is_some_and(|own| selector.namespaces != [own]) {
        report.refused(&selector_scope, "a policy of a namespace selects in that namespace only");
        return None;
    }
    report.enforced(&selector_scope);

    let mut rules = Vec::new();
    let mut callee_rules: Option<CalleeRules> = None;
    let mut good = true;
    for field in walk::fields(scope) {
        let place = scope.field(field);
        let elements = || (0..walk::length(&place)).map(|index| (index, place.element(index)));
        match field {
            "endpointSelector" => {}
            "description" | "labels" | "log" => report.left_out(&place, "it is for people"),
            "enableDefaultDeny" => good &= default_deny(report, &place).is_some(),
            "ingress" | "ingressDeny" if walk::is_list(&place) => {
                let deny = field == "ingressDeny";
                for (index, element) in elements() {
                    let name = format!("{}-{index}", if deny { "ingress-deny" } else { "ingress" });
                    match context.ingress(&element, &name, deny) {
                        Some(more) => rules.extend(more),
                        None => good = false,
                    }
                }
            }
            "egress" | "egressDeny" if walk::is_list(&place) => {
                let callees = callee_rules.get_or_insert_default();
                for (index, element) in elements() {
                    let found = if field == "egress" {
                        context.egress(&element, format!("egress-{index}")).map(|rule| callees.allow.extend(rule))
                    } else {
                        context.egress_deny(&element).map(|denied| callees.deny.extend(denied))
                    };
                    good &= found.is_some();
                }
            }
            "ingress" | "ingressDeny" | "egress" | "egressDeny" => good = false,
            _ => {
                report.refused(&place, "the field is not known");
                good = false;
            }
        }
    }
    let says_no = |direction: &str| {
        scope.field("enableDefaultDeny").node().and_then(|node| node.get(direction)).and_then(Node::text)
            == Some("false")
    };
    if let Some(callees) = &mut callee_rules {
        callees.default_deny = !says_no("egress");
    }
    let rules = (scope.has("ingress") || scope.has("ingressDeny")).then_some(rules);
    good.then_some(Translated { selector, rules, callee_rules })
}

fn default_deny(report: &Report<'_>, scope: &Scope<'_>) -> Option<()> {
    for field in walk::fields(scope) {
        let place = scope.field(field);
        match (field, walk::text(&place)?) {
            ("ingress" | "egress", "true") => report.enforced(&place),
            ("ingress", "false") => {
                report.approximated(
                    &place,
                    "what no rule allows is refused all the same: the mesh allows nothing by itself",
                );
            }
            ("egress", "false") => {
                report.approximated(&place, "of the function's own `callees` all may be called, and nobody else");
            }
            _ => {
                report.refused(&place, "expected ingress and egress, true or false");
                return None;
            }
        }
    }
    Some(())
}

impl Context<'_, '_> {
    fn ingress(&self, scope: &Scope<'_>, name: &str, deny: bool) -> Option<Vec<AuthorizationRule>> {
        let report = self.report;
        if walk::fields(scope).is_empty() {
            report.enforced(scope);
            return Some(Vec::new());
        }
        let mut from: Option<Vec<Source>> = None;
        let mut calls: Option<Vec<Call>> = Some(vec![Call::default()]);
        let mut required = false;
        for field in walk::fields(scope) {
            let place = scope.field(field);
            match field {
                "fromEndpoints" | "fromEntities" | "fromCIDR" | "fromCIDRSet" => {
                    from.get_or_insert_default().extend(self.from(&place, field)?);
                }
                "toPorts" => calls = Some(self.calls(&place, deny)?),
                "icmps" => {
                    report.left_out(&place, "the mesh carries TCP only");
                    calls = None;
                }
                "authentication" => required = authentication(report, &place)?,
                _ => {
                    report.refused(&place, "the mesh has no such peers");
                    return None;
                }
            }
        }
        if required && !deny {
            let outside = |source: &Source| source.not_identities.iter().any(|name| name == "*");
            if from.iter().flatten().any(outside) {
                report.refused(&scope.field("authentication"), "requests from outside have no mutual authentication");
                return None;
            }
            from.get_or_insert_with(|| vec![peers::any_function()]);
        }
        let action = if deny { Action::Deny } else { Action::Allow };
        let from = match from {
            // Peers that the mesh does not have: the rule is about nobody.
            Some(from) if from.is_empty() => return Some(Vec::new()),
            // Anybody.
            Some(from) if from.contains(&Source::default()) => None,
            from => from,
        };
        Some(rules(name, action, from.as_deref(), calls.unwrap_or_default()))
    }

    fn from(&self, list: &Scope<'_>, field: &str) -> Option<Vec<Source>> {
        if !walk::is_list(list) {
            return None;
        }
        if walk::length(list) == 0 {
            self.report.enforced(list);
        }
        let mut sources = Vec::new();
        for index in 0..walk::length(list) {
            let element = list.element(index);
            match field {
                "fromEndpoints" => {
                    sources.push(peers::source(&peers::selector(self.report, &element, self.namespace)?));
                    self.report.enforced(&element);
                }
                "fromEntities" => sources.extend(entity(self.report, &element)?),
                _ => sources.push(peers::block(self.report, &element)?),
            }
        }
        Some(sources)
    }

    /// `toPorts`: the ways to call. For a rule that denies, ports only say that there is one: which port is asked for is up to the caller.
    fn calls(&self, list: &Scope<'_>, deny: bool) -> Option<Vec<Call>> {
        let mut calls = Vec::new();
        if !walk::is_list(list) {
            return None;
        }
        for index in 0..walk::length(list) {
            let scope = list.element(index);
            for field in walk::fields(&scope) {
                if !["ports", "rules"].contains(&field) {
                    self.report
                        .refused(&scope.field(field), "only `ports`, and `rules` with `http`, can be translated");
                    return None;
                }
            }
            let ports = ports::ports(self.report, &scope.field("ports"), "ANY")?;
            let rules = if scope.has("rules") { Some(self.http(&scope.field("rules"), deny)?) } else { None };
            let ports = match ports {
                Ports::None => continue,
                Ports::These(_) if deny => {
                    let how = "refused at whatever port: which one is asked for is up to the caller";
                    self.report.approximated(&scope.field("ports"), how);
                    None
                }
                Ports::These(ports) => Some(ports),
                Ports::Any => None,
            };
            for (operation, conditions) in rules.unwrap_or_else(|| vec![Call::default()]) {
                calls.push((Operation { ports: ports.clone(), ..operation }, conditions));
            }
        }
        Some(calls)
    }

    fn http(&self, scope: &Scope<'_>, deny: bool) -> Option<Vec<Call>> {
        let report = self.report;
        let mut calls = Vec::new();
        for field in walk::fields(scope) {
            let place = scope.field(field);
            let elements = || (0..walk::length(&place)).map(|index| place.element(index));
            match field {
                _ if deny => {
                    report.refused(&place, "a rule that denies looks at peers and ports only");
                    return None;
                }
                "http" if walk::is_list(&place) => {
                    for element in elements() {
                        calls.push(http::rule(report, &element)?);
                    }
                }
                "l7proto" if walk::text(&place)? == "grpc" => report.approximated(&place, "written as HTTP"),
                "l7" if scope.has("l7proto") && walk::is_list(&place) => {
                    for element in elements() {
                        calls.push(http::grpc(report, &element)?);
                    }
                }
                _ => {
                    report.refused(&place, "only rules for HTTP can be translated");
                    return None;
                }
            }
        }
        Some(calls)
    }

    fn egress(&self, scope: &Scope<'_>, name: String) -> Option<Option<CalleeRule>> {
        let report = self.report;
        let mut to: Option<Vec<FunctionSelector>> = None;
        let mut calls = Vec::new();
        let mut none = walk::fields(scope).is_empty();
        for field in walk::fields(scope) {
            let place = scope.field(field);
            match field {
                "toEndpoints" | "toEntities" | "toCIDR" | "toCIDRSet" | "toFQDNs" => {
                    to.get_or_insert_default().extend(self.to(&place, field)?);
                }
                "toPorts" if self.names_only(&place) => {
                    report.left_out(&place, "names are answered by the node, whatever policies say");
                    none = true;
                }
                "toPorts" => {
                    calls = self.calls(&place, false)?;
                    none |= calls.is_empty();
                    if calls.iter().any(|(operation, _)| operation.hosts.is_some()) {
                        report.refused(
                            &place,
                            "a function calls its callees by their own names: `host` says nothing here",
                        );
                        return None;
                    }
                }
                "icmps" => {
                    report.left_out(&place, "the mesh carries TCP only");
                    none = true;
                }
                "authentication" => drop(authentication(report, &place)?),
                _ => {
                    report.refused(&place, "the mesh has no such destinations");
                    return None;
                }
            }
        }
        if calls.iter().all(|(operation, conditions)| *operation == Operation::default() && conditions.is_empty()) {
            calls.clear();
        }
        let to = to.unwrap_or_else(|| vec![FunctionSelector::default()]);
        Some((!none && !to.is_empty()).then_some(CalleeRule { name, to, calls }))
    }

    /// Rules for a resolver: all ports are 53.
    fn names_only(&self, list: &Scope<'_>) -> bool {
        let is_53 = |node: &Node| node.get("port").and_then(Node::text) == Some("53") && node.get("endPort").is_none();
        let ports = |index| {
            let element = list.element(index);
            let ports = element.field("ports");
            walk::length(&ports) > 0
                && (0..walk::length(&ports)).all(|port| ports.element(port).node().is_some_and(is_53))
        };
        walk::length(list) > 0 && (0..walk::length(list)).all(ports)
    }

    fn to(&self, list: &Scope<'_>, field: &str) -> Option<Vec<FunctionSelector>> {
        if !walk::is_list(list) {
            return None;
        }
        let mut selectors = Vec::new();
        for index in 0..walk::length(list) {
            let element = list.element(index);
            match field {
                "toEndpoints" => {
                    selectors.push(peers::selector(self.report, &element, self.namespace)?);
                    self.report.approximated(&element, "of these, those that the function lists as `callees`");
                }
                "toEntities" => match walk::text(&element)? {
                    "all" | "cluster" => {
                        selectors.push(FunctionSelector::default());
                        self.report.approximated(&element, "the functions that the function lists as `callees`");
                    }
                    "world" => self.report.left_out(&element, EXTERNAL),
                    _ => self.report.left_out(&element, "functions call no such destinations"),
                },
                _ => self.report.left_out(&element, EXTERNAL),
            }
        }
        Some(selectors)
    }

    fn egress_deny(&self, scope: &Scope<'_>) -> Option<Vec<FunctionSelector>> {
        let mut denied: Option<Vec<FunctionSelector>> = None;
        for field in walk::fields(scope) {
            let place = scope.field(field);
            match field {
                "toEndpoints" | "toEntities" | "toCIDR" | "toCIDRSet" => {
                    denied.get_or_insert_default().extend(self.to(&place, field)?);
                }
                "toPorts" => {
                    self.report
                        .approximated(&place, "refused at whatever port: which one is asked for is up to the caller");
                }
                "icmps" => {
                    self.report.left_out(&place, "the mesh carries TCP only");
                    return Some(Vec::new());
                }
                _ => {
                    self.report.refused(&place, "the mesh has no such destinations");
                    return None;
                }
            }
        }
        let anybody = || if walk::fields(scope).is_empty() { Vec::new() } else { vec![FunctionSelector::default()] };
        Some(denied.unwrap_or_else(anybody))
    }
}

/// Why a destination outside of the mesh is left out.
pub(super) const EXTERNAL: &str =
    "functions call nobody outside of the mesh; a destination outside is a document of its own (kind: External)";

fn authentication(report: &Report<'_>, scope: &Scope<'_>) -> Option<bool> {
    let mode = scope.field("mode");
    match walk::text(&mode)? {
        "required" => report.enforced(&mode),
        "disabled" => report.approximated(&mode, "functions always authenticate each other"),
        _ => {
            report.refused(&mode, "expected required or disabled");
            return None;
        }
    }
    Some(walk::text(&mode)? == "required")
}

/// Whom an entity stands for; empty: nobody that calls in the mesh.
fn entity(report: &Report<'_>, scope: &Scope<'_>) -> Option<Vec<Source>> {
    match walk::text(scope)? {
        "all" => {
            report.enforced(scope);
            Some(vec![Source::default()])
        }
        "cluster" => {
            report.approximated(scope, "any function; nodes and others of the cluster call nobody");
            Some(vec![peers::any_function()])
        }
        "world" => {
            report.enforced(scope);
            Some(vec![peers::outside()])
        }
        "ingress" => {
            report.approximated(scope, "requests from outside come by the gateway");
            Some(vec![peers::outside()])
        }
        "host" | "remote-node" | "kube-apiserver" | "health" | "init" | "unmanaged" | "none" => {
            report.left_out(scope, "nobody in the mesh calls as that");
            Some(Vec::new())
        }
        _ => {
            report.refused(scope, "the entity is not known");
            None
        }
    }
}

/// One rule for each set of conditions: all operations with the same conditions are one rule.
pub(super) fn rules(name: &str, action: Action, from: Option<&[Source]>, calls: Vec<Call>) -> Vec<AuthorizationRule> {
    let mut groups: Vec<(Vec<Condition>, Vec<Operation>)> = Vec::new();
    for (operation, conditions) in calls {
        match groups.iter_mut().find(|(other, _)| *other == conditions) {
            Some((_, operations)) => operations.push(operation),
            None => groups.push((conditions, vec![operation])),
        }
    }
    let single = groups.len() == 1;
    let rule = |(index, (conditions, operations)): (usize, (Vec<Condition>, Vec<Operation>))| AuthorizationRule {
        name: Some(if single { name.to_owned() } else { format!("{name}-{index}") }),
        action,
        mode: Mode::Enforce,
        from: from.map(<[Source]>::to_vec),
        // An operation without fields is any request.
        to: (!operations.contains(&Operation::default())).then_some(operations),
        when: (!conditions.is_empty()).then_some(conditions),
    };
    groups.into_iter().enumerate().map(rule).collect()
}
