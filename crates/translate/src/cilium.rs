//! `CiliumNetworkPolicy` and `CiliumClusterwideNetworkPolicy`.

use crate::egress::{self, Destination, EgressRule, EgressRules};
use crate::peers;
use crate::ports::{self, Call, PortRule, Ports};
use crate::report::Report;
use crate::{Translation, http, walk};
use leno_config::Node;
use leno_config::Scope;
use leno_config::document::{
    Action, AuthorizationRule, CalleeRule, CalleeRules, Condition, FunctionSelector, Mode, Operation, Source,
};

/// The report, and the namespace of selectors that name none.
#[derive(Clone, Copy)]
struct Context<'a, 'r> {
    report: &'a Report<'r>,
    /// The policy's namespace; `None`: it applies to all.
    namespace: Option<&'a str>,
}

/// Possible callees: functions, and external destinations.
#[derive(Default)]
struct Callees {
    functions: Vec<FunctionSelector>,
    egress: Vec<Destination>,
}

pub(super) fn spec(report: &Report<'_>, scope: &Scope<'_>, namespace: Option<&str>) -> Option<Translation> {
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
    let mut egress = EgressRules::default();
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
                        context.egress(&element, &format!("egress-{index}")).map(|(rule, beyond)| {
                            callees.allow.extend(rule);
                            egress.allow.extend(beyond);
                        })
                    } else {
                        context.egress_deny(&element).map(|denied| {
                            callees.deny.functions.extend(denied.functions);
                            egress.deny.extend(denied.egress);
                        })
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
    good.then_some(Translation { selector, rules, callee_rules, egress })
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
                "toPorts" => calls = Some(self.ports(&place, deny)?.iter().flat_map(PortRule::calls).collect()),
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
            let egress = |source: &Source| source.not_identities.iter().any(|name| name == "*");
            if from.iter().flatten().any(egress) {
                report.refused(&scope.field("authentication"), "requests from outside have no mutual authentication");
                return None;
            }
            from.get_or_insert_with(|| vec![peers::any_function()]);
        }
        let action = if deny { Action::Deny } else { Action::Allow };
        let from = match from {
            // The mesh has no such peers: the rule matches no caller.
            Some(from) if from.is_empty() => return Some(Vec::new()),
            // Any caller.
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

    /// `toPorts`. A deny rule ignores the ports' numbers: the caller chooses which port it asks
    /// for.
    fn ports(&self, list: &Scope<'_>, deny: bool) -> Option<Vec<PortRule>> {
        let mut rules = Vec::new();
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
            let http = if scope.has("rules") { Some(self.http(&scope.field("rules"), deny)?) } else { None };
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
            rules.push(PortRule { ports, http });
        }
        Some(rules)
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

    /// Rules about functions, and about external destinations.
    fn egress(&self, scope: &Scope<'_>, name: &str) -> Option<(Option<CalleeRule>, Option<EgressRule>)> {
        let report = self.report;
        let mut to: Option<Callees> = None;
        let mut ports = Vec::new();
        let mut none = walk::fields(scope).is_empty();
        let mut required = false;
        for field in walk::fields(scope) {
            let place = scope.field(field);
            match field {
                "toEndpoints" | "toEntities" | "toCIDR" | "toCIDRSet" | "toFQDNs" => {
                    let found = self.to(&place, field, scope.has("toPorts"))?;
                    let to = to.get_or_insert_default();
                    to.functions.extend(found.functions);
                    to.egress.extend(found.egress);
                }
                "toPorts" if self.names_only(&place) => {
                    report.left_out(&place, "names are answered by the node, whatever policies say");
                    none = true;
                }
                "toPorts" => {
                    ports = self.ports(&place, false)?;
                    none |= ports.iter().all(|rule| rule.calls().next().is_none());
                    if ports.iter().flat_map(PortRule::calls).any(|(operation, _)| operation.hosts.is_some()) {
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
                "authentication" => required = authentication(report, &place)?,
                _ => {
                    report.refused(&place, "the mesh has no such destinations");
                    return None;
                }
            }
        }
        // If no peer is named, the rule is about all of them.
        let unrestricted = || Callees {
            functions: vec![FunctionSelector::default()],
            egress: vec![Destination::Anywhere(Vec::new())],
        };
        let Callees { functions, egress } = to.unwrap_or_else(unrestricted);
        if required && egress.iter().any(|destination| *destination != Destination::Anywhere(Vec::new())) {
            report.refused(&scope.field("authentication"), "what is outside of the mesh has no mutual authentication");
            return None;
        }
        let egress = if required { Vec::new() } else { egress };
        Some(if none { (None, None) } else { egress::callee_rules(name, functions, egress, ports) })
    }

    /// Whether the rules are for a resolver: all ports are 53.
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

    fn to(&self, list: &Scope<'_>, field: &str, with_ports: bool) -> Option<Callees> {
        if !walk::is_list(list) {
            return None;
        }
        let mut callees = Callees::default();
        for index in 0..walk::length(list) {
            let element = list.element(index);
            match field {
                "toEndpoints" => {
                    callees.functions.push(peers::selector(self.report, &element, self.namespace)?);
                    self.report.approximated(&element, "of these, those that the function lists as `callees`");
                }
                "toEntities" => self.entity_called(&element, with_ports, &mut callees)?,
                "toFQDNs" => callees.egress.extend(egress::names(self.report, &element, with_ports)?),
                _ => callees.egress.extend(egress::block(self.report, &element, with_ports)?),
            }
        }
        Some(callees)
    }

    fn entity_called(&self, scope: &Scope<'_>, with_ports: bool, callees: &mut Callees) -> Option<()> {
        let report = self.report;
        match walk::text(scope)? {
            "all" => {
                callees.functions.push(FunctionSelector::default());
                callees.egress.push(Destination::Anywhere(Vec::new()));
                report.approximated(scope, egress::LISTED);
            }
            "cluster" => {
                callees.functions.push(FunctionSelector::default());
                report.approximated(scope, "the functions that the function lists as `callees`");
            }
            "world" | "world-ipv4" => {
                callees.egress.push(Destination::Anywhere(egress::world()));
                report.approximated(scope, egress::world_note(with_ports));
            }
            _ => report.left_out(scope, "functions call no such destinations"),
        }
        Some(())
    }

    fn egress_deny(&self, scope: &Scope<'_>) -> Option<Callees> {
        let mut denied: Option<Callees> = None;
        for field in walk::fields(scope) {
            let place = scope.field(field);
            match field {
                "toEndpoints" | "toEntities" | "toCIDR" | "toCIDRSet" => {
                    self.denied(&place, field, denied.get_or_insert_default())?
                }
                "toPorts" => {
                    self.report
                        .approximated(&place, "refused at whatever port: which one is asked for is up to the caller");
                }
                "icmps" => {
                    self.report.left_out(&place, "the mesh carries TCP only");
                    return Some(Callees::default());
                }
                _ => {
                    self.report.refused(&place, "the mesh has no such destinations");
                    return None;
                }
            }
        }
        let everybody = || Callees {
            functions: vec![FunctionSelector::default()],
            egress: vec![Destination::Anywhere(Vec::new())],
        };
        let unrestricted = || if walk::fields(scope).is_empty() { Callees::default() } else { everybody() };
        Some(denied.unwrap_or_else(unrestricted))
    }

    fn denied(&self, list: &Scope<'_>, field: &str, denied: &mut Callees) -> Option<()> {
        if !walk::is_list(list) {
            return None;
        }
        for index in 0..walk::length(list) {
            let element = list.element(index);
            match field {
                "toEndpoints" => {
                    denied.functions.push(peers::selector(self.report, &element, self.namespace)?);
                    self.report.approximated(&element, "of these, those that the function lists as `callees`");
                }
                "toEntities" => match walk::text(&element)? {
                    entity @ ("all" | "cluster") => {
                        denied.functions.push(FunctionSelector::default());
                        denied.egress.extend((entity == "all").then(|| Destination::Anywhere(Vec::new())));
                        self.report.approximated(&element, "whom the function lists as `callees`");
                    }
                    "world" | "world-ipv4" | "world-ipv6" => {
                        denied.egress.push(Destination::Anywhere(Vec::new()));
                        self.report.approximated(&element, "whatever is outside of the mesh, by name or address");
                    }
                    _ => self.report.left_out(&element, "functions call no such destinations"),
                },
                _ => denied.egress.push(egress::denied_block(self.report, &element)?),
            }
        }
        Some(())
    }
}

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

/// The sources that an entity stands for; empty: none that calls in the mesh.
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
            Some(vec![peers::external()])
        }
        "ingress" => {
            report.approximated(scope, "requests from outside come by the gateway");
            Some(vec![peers::external()])
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
        // An operation without fields matches any request.
        to: (!operations.contains(&Operation::default())).then_some(operations),
        when: (!conditions.is_empty()).then_some(conditions),
    };
    groups.into_iter().enumerate().map(rule).collect()
}
