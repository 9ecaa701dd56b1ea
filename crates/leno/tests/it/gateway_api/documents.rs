//! Cases without a request: errors and warnings of `leno check`, and conditions.

use super::table::{self, Case, GATEWAY, GatewayPorts, Group};
use leno_config::{AncestorStatus, Condition, GatewayStatus, PolicyStatus, RouteReport, RouteStatus};
use std::collections::BTreeMap;
use std::path::Path;

const MESH: &str = "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: test}\nspec:\n  trustDomain: test.example\n  gateway: \
                    {http: \"127.0.0.1:8080\", ports: [9100-9109]}\n";
const PORTS: GatewayPorts = GatewayPorts { http: 8080, https: 8443 };

/// How errors, warnings and conditions differ from the expected ones.
pub(crate) fn differences(group: &Group, case: &Case) -> Vec<String> {
    let own = if case.routes.is_empty() && case.documents.is_empty() {
        group.documents()
    } else {
        table::routes("case", &case.routes) + &case.documents
    };
    let gateway = if own.contains("kind: Gateway\n") && own.contains("name: gate,") { "" } else { GATEWAY };
    let mesh = group.mesh.as_deref().unwrap_or_default();
    let text = format!("{MESH}{mesh}{gateway}{}{own}", table::functions(&[]));
    let mut found = Vec::new();
    match leno_config::load_text(Path::new("app.yaml"), &PORTS.fill(&text)) {
        Err(problems) => {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            if case.refused.is_empty() {
                found.push(format!("refused: {}", problems.join("\n")));
            }
            let missing = case.refused.iter().filter(|part| !problems.iter().any(|problem| problem.contains(*part)));
            found.extend(missing.map(|part| format!("no error contains {part:?}: {}", problems.join("\n"))));
            found.extend(problems.iter().filter(|problem| !problem.starts_with("app.yaml:")).cloned());
        }
        Ok(_) if !case.refused.is_empty() => found.push("no error".to_owned()),
        Ok(snapshot) => {
            let warnings: Vec<String> = snapshot.warnings().iter().map(ToString::to_string).collect();
            let missing = case.warned.iter().filter(|part| !warnings.iter().any(|warning| warning.contains(*part)));
            found.extend(missing.map(|part| format!("no warning contains {part:?}: {}", warnings.join("\n"))));
            found.extend(statuses(&case.status, &conditions(snapshot.route_report())));
        }
    }
    found
}

/// What there is to say of each object: conditions, and other fields of its status, with messages.
fn conditions(report: &RouteReport) -> BTreeMap<String, Vec<(String, String)>> {
    let mut all = BTreeMap::new();
    let of = |condition: &Condition| {
        let Condition { name, status, reason, message } = condition;
        (format!("{name}={} {reason}", if *status { "True" } else { "False" }), message.clone())
    };
    let field = |text: String| (text, String::new());
    for GatewayStatus { namespace, name, conditions, listeners } in &report.gateways {
        all.insert(format!("Gateway {namespace}/{name}"), conditions.iter().map(of).collect());
        for listener in listeners {
            let attached = field(format!("attachedRoutes={}", listener.attached_routes));
            let kinds = field(format!("supportedKinds={}", listener.supported_kinds.join(",")));
            let texts = listener.conditions.iter().map(of).chain([attached, kinds]);
            all.insert(format!("Listener {namespace}/{name}/{}", listener.name), texts.collect());
        }
    }
    for PolicyStatus { namespace, name, kind, ancestors, .. } in &report.policies {
        for AncestorStatus { ancestor_ref, conditions, .. } in ancestors {
            let ancestor =
                field(format!("ancestor={} {}/{}", ancestor_ref.kind, ancestor_ref.namespace, ancestor_ref.name));
            let texts: &mut Vec<(String, String)> = all.entry(format!("{kind} {namespace}/{name}")).or_default();
            texts.extend(conditions.iter().map(of).chain([ancestor]));
        }
    }
    for RouteStatus { namespace, name, kind, parents, .. } in &report.routes {
        let controllers = parents.iter().map(|parent| field(format!("controllerName={}", parent.controller_name)));
        let conditions = parents.iter().flat_map(|parent| &parent.conditions).map(of);
        all.insert(format!("{kind} {namespace}/{name}"), conditions.chain(controllers).collect());
    }
    all
}

/// How conditions differ from the expected ones.
fn statuses(expected: &BTreeMap<String, Vec<String>>, actual: &BTreeMap<String, Vec<(String, String)>>) -> Vec<String> {
    let mut found = Vec::new();
    for (object, texts) in expected {
        let Some(said) = actual.get(object) else {
            found.push(format!("there is no {object}: {:?}", actual.keys()));
            continue;
        };
        for text in texts {
            let holds = match (text.strip_prefix('!'), text.split_once(": ")) {
                (Some(name), _) => !said.iter().any(|(text, _)| text.starts_with(&format!("{name}="))),
                (None, Some((text, part))) => {
                    said.iter().any(|(found, message)| found == text && message.contains(part))
                }
                (None, None) => said.iter().any(|(found, _)| found == text),
            };
            if !holds {
                found.push(format!("{object} has not {text:?}: {said:?}"));
            }
        }
    }
    found
}
