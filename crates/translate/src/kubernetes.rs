//! `NetworkPolicy` of Kubernetes.

use crate::egress::{self, Destination, EgressRule, EgressRules};
use crate::peers;
use crate::ports::{self, PortRule, Ports};
use crate::report::Report;
use crate::{Translation, cilium, walk};
use leno_config::Scope;
use leno_config::document::{Action, AuthorizationRule, CalleeRule, CalleeRules, FunctionSelector, Operation, Source};

pub(super) fn spec(report: &Report<'_>, scope: &Scope<'_>, namespace: &str) -> Option<Translation> {
    let place = scope.field("podSelector");
    let selector = peers::selector(report, &place, Some(namespace))?;
    report.enforced(if scope.has("podSelector") { &place } else { scope });
    let mut types = vec!["Ingress"];
    if scope.has("policyTypes") {
        types = walk::texts(&scope.field("policyTypes"));
    } else if scope.has("egress") {
        types.push("Egress");
    }
    let mut rules = Vec::new();
    let mut egress = EgressRules::default();
    let mut callee_rules =
        types.contains(&"Egress").then(|| CalleeRules { default_deny: true, ..CalleeRules::default() });
    let mut good = true;
    for field in walk::fields(scope) {
        let place = scope.field(field);
        match field {
            "podSelector" => {}
            "policyTypes" => match types.iter().find(|name| !["Ingress", "Egress"].contains(*name)) {
                Some(_) => {
                    report.refused(&place, "expected Ingress and Egress");
                    good = false;
                }
                None if !types.contains(&"Ingress") => {
                    report.approximated(
                        &place,
                        "what no policy allows to enter is refused all the same: the mesh allows nothing by itself",
                    );
                }
                None => report.enforced(&place),
            },
            "ingress" | "egress" if !types.contains(&if field == "ingress" { "Ingress" } else { "Egress" }) => {
                report.left_out(&place, "policyTypes does not name the direction");
            }
            "ingress" if walk::is_list(&place) => {
                for index in 0..walk::length(&place) {
                    match ingress(report, &place.element(index), namespace, index) {
                        Some(more) => rules.extend(more),
                        None => good = false,
                    }
                }
            }
            "egress" if walk::is_list(&place) => {
                for index in 0..walk::length(&place) {
                    match (self::egress(report, &place.element(index), namespace, index), &mut callee_rules) {
                        (Some((rule, beyond)), Some(callees)) => {
                            callees.allow.extend(rule);
                            egress.allow.extend(beyond);
                        }
                        _ => good = false,
                    }
                }
            }
            "ingress" | "egress" => good = false,
            _ => {
                report.refused(&place, "the field is not known");
                good = false;
            }
        }
    }
    let rules = types.contains(&"Ingress").then_some(rules);
    good.then_some(Translation { selector, rules, callee_rules, egress })
}

fn ingress(report: &Report<'_>, scope: &Scope<'_>, namespace: &str, index: usize) -> Option<Vec<AuthorizationRule>> {
    known(report, scope, &["from", "ports"])?;
    let list = scope.field("from");
    let mut from = Vec::new();
    for index in 0..walk::length(&list) {
        let element = list.element(index);
        from.push(match peer(report, &element, namespace)? {
            Peer::Functions(selector) => {
                report.enforced(&element);
                peers::source(&selector)
            }
            Peer::Block => peers::block(report, &element.field("ipBlock"))?,
        });
    }
    let operation = match ports::ports(report, &scope.field("ports"), "TCP")? {
        Ports::Any => Operation::default(),
        Ports::These(ports) => Operation { ports: Some(ports), ..Operation::default() },
        Ports::None => return Some(Vec::new()),
    };
    if walk::fields(scope).is_empty() {
        report.enforced(scope);
    }
    // No peers at all: any caller.
    let from = (!from.is_empty()).then_some(from);
    let from: Option<&[Source]> = from.as_deref();
    Some(cilium::rules(&format!("ingress-{index}"), Action::Allow, from, vec![(operation, Vec::new())]))
}

fn egress(
    report: &Report<'_>,
    scope: &Scope<'_>,
    namespace: &str,
    index: usize,
) -> Option<(Option<CalleeRule>, Option<EgressRule>)> {
    known(report, scope, &["to", "ports"])?;
    let list = scope.field("to");
    let with_ports = walk::length(&scope.field("ports")) > 0;
    let (mut to, mut egress) = (Vec::new(), Vec::new());
    for index in 0..walk::length(&list) {
        let element = list.element(index);
        match peer(report, &element, namespace)? {
            Peer::Functions(selector) => {
                report.approximated(&element, "of these, those that the function lists as `callees`");
                to.push(selector);
            }
            Peer::Block => egress.extend(egress::block(report, &element.field("ipBlock"), with_ports)?),
        }
    }
    if walk::length(&list) == 0 {
        report.approximated(scope, egress::LISTED);
        to.push(FunctionSelector::default());
        egress.push(Destination::Anywhere(Vec::new()));
    }
    let ports = match ports::ports(report, &scope.field("ports"), "TCP")? {
        Ports::Any => None,
        Ports::These(ports) => Some(ports),
        Ports::None => return Some((None, None)),
    };
    let ports = vec![PortRule { ports, http: None }];
    Some(egress::callee_rules(&format!("egress-{index}"), to, egress, ports))
}

enum Peer {
    Functions(FunctionSelector),
    Block,
}

fn peer(report: &Report<'_>, scope: &Scope<'_>, namespace: &str) -> Option<Peer> {
    known(report, scope, &["podSelector", "namespaceSelector", "ipBlock"])?;
    let (pods, namespaces) = (scope.field("podSelector"), scope.field("namespaceSelector"));
    match (scope.has("podSelector"), scope.has("namespaceSelector"), scope.has("ipBlock")) {
        (false, false, true) => Some(Peer::Block),
        (true, false, false) => peers::selector(report, &pods, Some(namespace)).map(Peer::Functions),
        (false, true, false) => peers::namespaces(report, &namespaces).map(Peer::Functions),
        (true, true, false) => {
            let place = peers::namespaces(report, &namespaces)?;
            let selector = peers::selector(report, &pods, None)?;
            let FunctionSelector { namespaces, not_namespaces, .. } = place;
            Some(Peer::Functions(FunctionSelector { namespaces, not_namespaces, ..selector }))
        }
        _ => {
            report.refused(scope, "expected podSelector, namespaceSelector or both, or ipBlock alone");
            None
        }
    }
}

fn known(report: &Report<'_>, scope: &Scope<'_>, fields: &[&str]) -> Option<()> {
    let unknown = walk::fields(scope).into_iter().find(|field| !fields.contains(field));
    if let Some(field) = unknown {
        report.refused(&scope.field(field), "the field is not known");
    }
    unknown.is_none().then_some(())
}
