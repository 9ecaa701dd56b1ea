//! Peers: selections by labels, namespaces, entities and addresses.

use crate::report::Report;
use crate::walk;
use leno_config::Node;
use leno_config::Scope;
use leno_config::check;
use leno_config::document::{FunctionSelector, LabelExpression, LabelOperator, Source};

/// Label that Cilium gives each endpoint, and label that Kubernetes gives each namespace.
const NAMESPACE_LABELS: [&str; 2] =
    ["io.kubernetes.pod.namespace", "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name"];
const METADATA_NAME: &str = "kubernetes.io/metadata.name";

/// The selector as a condition on the caller.
pub(super) fn source(selector: &FunctionSelector) -> Source {
    let namespaces = if selector.namespaces.is_empty() { vec!["*".to_owned()] } else { selector.namespaces.clone() };
    Source {
        namespaces: Some(namespaces),
        not_namespaces: selector.not_namespaces.clone(),
        labels: (!selector.labels.is_empty()).then(|| selector.labels.clone()),
        label_expressions: (!selector.expressions.is_empty()).then(|| selector.expressions.clone()),
        ..Source::default()
    }
}

/// External requests: they have no identity of the mesh.
pub(super) fn external() -> Source {
    Source { not_identities: vec!["*".to_owned()], ..Source::default() }
}

/// Any function.
pub(super) fn any_function() -> Source {
    Source { identities: Some(vec!["*".to_owned()]), ..Source::default() }
}

/// The subject of one condition of a selector.
enum About<'a> {
    Label(&'a str),
    Namespace,
}

/// `matchLabels` and `matchExpressions`. `own`: the namespace of selectors that name none; `None`:
/// any.
pub(super) fn selector(report: &Report<'_>, scope: &Scope<'_>, own: Option<&str>) -> Option<FunctionSelector> {
    let mut selector = FunctionSelector::default();
    let mut named = false;
    let mut good = true;
    for field in walk::fields(scope) {
        let place = scope.field(field);
        match field {
            "matchLabels" => {
                for key in walk::fields(&place) {
                    let label = place.field(key);
                    let (Some(about), Some(value)) = (about(report, &label, key), walk::text(&label)) else {
                        good = false;
                        continue;
                    };
                    match about {
                        About::Namespace => (named, selector.namespaces) = (true, vec![value.to_owned()]),
                        About::Label(key) => drop(selector.labels.insert(key.to_owned(), value.to_owned())),
                    }
                }
            }
            "matchExpressions" if walk::is_list(&place) => {
                for index in 0..walk::length(&place) {
                    good &= expression(report, &place.element(index), &mut selector, &mut named).is_some();
                }
            }
            "matchExpressions" => good = false,
            _ => {
                report.refused(&place, "the field is not known");
                good = false;
            }
        }
    }
    if let (false, Some(own)) = (named, own) {
        selector.namespaces = vec![own.to_owned()];
    }
    good.then_some(selector)
}

fn expression(report: &Report<'_>, scope: &Scope<'_>, selector: &mut FunctionSelector, named: &mut bool) -> Option<()> {
    let (key, operator) = (scope.field("key"), scope.field("operator"));
    let about = about(report, &key, walk::text(&key)?)?;
    let values: Vec<String> = match scope.has("values") {
        true => walk::texts(&scope.field("values")).into_iter().map(ToOwned::to_owned).collect(),
        false => Vec::new(),
    };
    let operator = match walk::text(&operator)? {
        "In" if !values.is_empty() => LabelOperator::In,
        "NotIn" if !values.is_empty() => LabelOperator::NotIn,
        "Exists" => LabelOperator::Exists,
        "DoesNotExist" => LabelOperator::DoesNotExist,
        _ => {
            report.refused(&operator, "expected In or NotIn with values, Exists, or DoesNotExist");
            return None;
        }
    };
    match (about, operator) {
        (About::Label(key), operator) => {
            selector.expressions.push(LabelExpression { key: key.to_owned(), operator, values });
        }
        (About::Namespace, LabelOperator::In) => (*named, selector.namespaces) = (true, values),
        (About::Namespace, LabelOperator::NotIn) => {
            *named = true;
            selector.not_namespaces.extend(values);
        }
        (About::Namespace, LabelOperator::Exists) => *named = true,
        (About::Namespace, LabelOperator::DoesNotExist) => {
            report.refused(&operator_scope(scope), "every function is in a namespace");
            return None;
        }
    }
    Some(())
}

fn operator_scope<'s>(scope: &'s Scope<'_>) -> Scope<'s> {
    scope.field("operator")
}

/// A label's key without the source that Cilium writes before it.
fn about<'k>(report: &Report<'_>, scope: &Scope<'_>, key: &'k str) -> Option<About<'k>> {
    let bare = match key.split_once(':') {
        None => key,
        Some(("k8s" | "any", bare)) => bare,
        Some(_) => {
            report.refused(scope, "the mesh knows no labels of that source");
            return None;
        }
    };
    if NAMESPACE_LABELS.contains(&bare) {
        return Some(About::Namespace);
    }
    if bare.starts_with("io.cilium.k8s.") {
        report.refused(scope, "namespaces have no labels in the mesh, and functions no service account");
        return None;
    }
    Some(About::Label(bare))
}

/// `namespaceSelector` of Kubernetes: the namespaces that it names.
pub(super) fn namespaces(report: &Report<'_>, scope: &Scope<'_>) -> Option<FunctionSelector> {
    let mut selector = selector(report, scope, None)?;
    let labels = std::mem::take(&mut selector.labels);
    let expressions = std::mem::take(&mut selector.expressions);
    for (key, value) in labels {
        if key != METADATA_NAME {
            report.refused(scope, "namespaces have no labels in the mesh but kubernetes.io/metadata.name");
            return None;
        }
        selector.namespaces = vec![value];
    }
    for LabelExpression { key, operator, values } in expressions {
        match operator {
            LabelOperator::In if key == METADATA_NAME && selector.namespaces.is_empty() => selector.namespaces = values,
            LabelOperator::NotIn if key == METADATA_NAME => selector.not_namespaces.extend(values),
            LabelOperator::Exists if key == METADATA_NAME => {}
            _ => {
                report.refused(scope, "namespaces have no labels in the mesh but kubernetes.io/metadata.name");
                return None;
            }
        }
    }
    Some(selector)
}

/// A block of addresses without some blocks in it. Addresses only distinguish external requests;
/// functions are known by their identity.
pub(super) fn block(report: &Report<'_>, scope: &Scope<'_>) -> Option<Source> {
    let place = scope.field("cidr");
    let cidr = if scope.node().is_some_and(Node::is_scalar) { walk::text(scope)? } else { walk::text(&place)? };
    let except: Vec<String> = match scope.has("except") {
        true => walk::texts(&scope.field("except")).into_iter().map(ToOwned::to_owned).collect(),
        false => Vec::new(),
    };
    for field in walk::fields(scope) {
        if !["cidr", "except"].contains(&field) {
            report.refused(&scope.field(field), "the field is not known");
            return None;
        }
    }
    let before = scope.problem_count();
    check::cidr(&place, cidr);
    except.iter().for_each(|block| {
        check::cidr(&scope.field("except"), block);
    });
    if scope.problem_count() > before {
        return None;
    }
    report.approximated(scope, "requests from outside, by the address that the connection comes from");
    Some(Source { addresses: Some(vec![cidr.to_owned()]), not_addresses: except, ..external() })
}
