//! Several workloads behind one Service, and canary Ingresses: revisions of one function.

use crate::deployment::{Manifests, annotation, is_canary, kind, name, namespace, selects};
use crate::workload::{Notes, Workload, at, elements, label};
use leno_config::{Mark, Node};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Fields that are merged key by key, as the function's and a revision's are.
const MERGED: [&str; 2] = ["env", "timeouts"];
/// Fields of the function, of which a revision has none.
const OF_THE_FUNCTION: &str = "revisionHistory";
/// Most revisions of a function.
const MOST: usize = 16;
/// Labels with a version.
const VERSION_LABELS: [&str; 2] = ["version", "app.kubernetes.io/version"];

/// A workload that becomes a revision.
struct Version {
    workload: Workload,
    share: u64,
    headers: Map<String, Value>,
}

impl Manifests<'_> {
    /// Makes one function of workloads that share requests.
    pub(super) fn versions(&self, workloads: &mut Vec<Workload>, notes: &mut Notes<'_>) {
        for ingress in self.documents.iter().filter(|manifest| kind(manifest) == "Ingress" && is_canary(manifest)) {
            self.canary(ingress, workloads, notes);
        }
        for service in self.documents.iter().filter(|manifest| kind(manifest) == "Service") {
            let selected = self.selected_names(service, workloads);
            if selected.len() < 2 {
                continue;
            }
            let path = format!("Service {}", name(service));
            if selected.len() > MOST {
                let text =
                    format!("it selects {} workloads, and a function has at most {MOST} revisions", selected.len());
                notes.manual_step(service.mark, &path, text);
                continue;
            }
            let versions = take(workloads, &selected).into_iter().map(|workload| {
                let replicas = workload.spec.get("scale").and_then(|scale| scale["min"].as_u64());
                Version { share: replicas.unwrap_or(1), workload, headers: Map::new() }
            });
            let function = merged(&label(name(service)), versions.collect(), (service.mark, &path), notes);
            workloads.push(function);
        }
    }

    /// A canary Ingress, and the one for the same host and path.
    fn canary(&self, ingress: &Node, workloads: &mut Vec<Workload>, notes: &mut Notes<'_>) {
        let path = format!("Ingress {}", name(ingress));
        let others = || self.documents.iter().filter(|other| kind(other) == "Ingress" && !is_canary(other));
        let routes = self.routes(ingress);
        let same = |(host, prefix, service): &(String, String, String)| {
            let mut stable = others().flat_map(|other| self.routes(other));
            let (_, _, stable) = stable.find(|(other, path, _)| (other, path) == (host, prefix))?;
            Some((stable, service.clone()))
        };
        let pair = routes.iter().find_map(same).and_then(|(stable, canary)| {
            let of = |wanted: &str| {
                let service = self.documents.iter().find(|other| kind(other) == "Service" && name(other) == wanted)?;
                <[String; 1]>::try_from(self.selected_names(service, workloads)).ok()
            };
            Some((of(&stable)?, of(&canary)?)).filter(|(stable, canary)| stable != canary)
        });
        let Some(([stable], [canary])) = pair else {
            let text = "it is a share of the requests to another Ingress, whose workload is not in this file: see \
                        `revisions` and `traffic` of a Function";
            return notes.manual_step(ingress.mark, &path, text);
        };
        let weight = annotation(ingress, "-weight").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0).min(100);
        let mut headers = Map::new();
        if let Some(header) = annotation(ingress, "-by-header") {
            let value = annotation(ingress, "-by-header-value").unwrap_or("always");
            headers.insert(header.to_ascii_lowercase(), value.into());
        }
        if annotation(ingress, "-by-cookie").is_some() || annotation(ingress, "-by-header-pattern").is_some() {
            notes.dropped(ingress.mark, &path, "a revision is chosen by shares, tags and whole values of headers");
        }
        let shares = [(100 - weight, Map::new()), (weight, headers)];
        let both = take(workloads, &[stable.clone(), canary]);
        let labels = both.first().map(|workload| workload.labels.clone()).unwrap_or_default();
        let versions = both.into_iter().zip(shares);
        let versions = versions.map(|(workload, (share, headers))| Version { workload, share, headers });
        let mut function = merged(&stable, versions.collect(), (ingress.mark, &path), notes);
        // Its Service goes on to select it.
        function.labels = labels;
        workloads.push(function);
    }

    /// Hosts, path prefixes and services.
    fn routes(&self, ingress: &Node) -> Vec<(String, String, String)> {
        let rules = at(ingress, &["spec", "rules"]).map(elements).unwrap_or_default();
        let of_rule = |rule: &Node| -> Vec<(String, String, String)> {
            let text = |node: &Node, path: &[&str], other: &str| {
                at(node, path).and_then(Node::text).unwrap_or(other).to_owned()
            };
            let host = text(rule, &["host"], "*");
            let paths = at(rule, &["http", "paths"]).map(elements).unwrap_or_default();
            let service = ["backend", "service", "name"];
            paths.iter().map(|to| (host.clone(), text(to, &["path"], "/"), text(to, &service, ""))).collect()
        };
        rules.iter().flat_map(of_rule).collect()
    }

    /// The names of the functions that a Service selects in its namespace.
    fn selected_names(&self, service: &Node, workloads: &[Workload]) -> Vec<String> {
        let own = self.namespace.unwrap_or(namespace(service));
        let is_one = |one: &&Workload| !one.is_job && one.namespace == own && selects(service, one);
        workloads.iter().filter(is_one).map(|one| one.name.clone()).collect()
    }
}

/// Takes the workloads of these names out, in this order.
fn take(workloads: &mut Vec<Workload>, names: &[String]) -> Vec<Workload> {
    let at = |workloads: &[Workload], name: &String| workloads.iter().position(|one| !one.is_job && one.name == *name);
    names.iter().filter_map(|name| at(workloads, name).map(|index| workloads.remove(index))).collect()
}

/// One function of several workloads.
fn merged(name: &str, mut versions: Vec<Version>, (mark, field): (Mark, &str), notes: &mut Notes<'_>) -> Workload {
    let names = names(name, &versions);
    let percents = percents(&versions.iter().map(|version| version.share).collect::<Vec<_>>());
    let Some(first) = versions.first() else { return Workload::new(name, "", mark, field.to_owned()) };
    let mut function = Workload::new(name, &first.workload.namespace, mark, field.to_owned());
    function.labels = first.workload.labels.clone();
    function.spec = first.workload.spec.clone();
    for Version { workload, .. } in &mut versions {
        function.labels.retain(|label, value| workload.labels.get(label) == Some(value));
        retain_common(&mut function.spec, &workload.spec);
        function.tcp.append(&mut workload.tcp);
        let history = workload.spec.remove(OF_THE_FUNCTION).and_then(|count| count.as_u64());
        let before = function.spec.get(OF_THE_FUNCTION).and_then(Value::as_u64);
        if let Some(count) = history.max(before) {
            function.set(OF_THE_FUNCTION, count);
        }
    }
    let mut traffic = Vec::new();
    let mut shares = Vec::new();
    for ((version, revision), percent) in versions.into_iter().zip(names).zip(percents) {
        let mut fields = version.workload.spec;
        remove_common(&mut fields, &function.spec);
        if percent > 0 || !version.headers.is_empty() {
            let mut target = json!({ "revision": revision, "percent": percent });
            if !version.headers.is_empty() {
                target["headers"] = version.headers.into();
            }
            traffic.push(target);
        }
        shares.push(format!("{revision} {percent} % ({})", version.workload.field));
        function.revisions.push((revision, fields));
    }
    function.traffic = traffic;
    notes.adapted(mark, field, format!("one function `{name}` with the revisions {}", shares.join(", ")));
    function
}

/// Keeps the fields that both have, of some of them the keys.
fn retain_common(fields: &mut Map<String, Value>, other: &Map<String, Value>) {
    fields.retain(|name, value| match (value, other.get(name)) {
        _ if name == OF_THE_FUNCTION => true,
        (Value::Object(keys), Some(Value::Object(others))) if MERGED.contains(&&**name) => {
            keys.retain(|key, value| others.get(key) == Some(value));
            !keys.is_empty()
        }
        (value, other) => other == Some(value),
    });
}

/// Removes the fields that the function has.
fn remove_common(fields: &mut Map<String, Value>, function: &Map<String, Value>) {
    fields.retain(|name, value| match (value, function.get(name)) {
        (Value::Object(keys), Some(Value::Object(common))) if MERGED.contains(&&**name) => {
            keys.retain(|key, _| !common.contains_key(key));
            !keys.is_empty()
        }
        (_, common) => common.is_none(),
    });
}

/// Names of revisions: by the version label, else by the workload's name without that of the function.
fn names(function: &str, versions: &[Version]) -> Vec<String> {
    let all_differ = |names: &[String]| names.iter().collect::<BTreeSet<_>>().len() == names.len();
    let by_label = VERSION_LABELS.iter().find_map(|wanted| {
        let label = |version: &Version| Some(revision_name(version.workload.labels.get(*wanted)?.as_str()?));
        let names: Vec<String> = versions.iter().map(label).collect::<Option<_>>()?;
        Some(names).filter(|names| all_differ(names) && !names.iter().any(String::is_empty))
    });
    by_label.unwrap_or_else(|| {
        let rest = |name: &str| name.strip_prefix(function).map(|rest| rest.trim_start_matches('-').to_owned());
        let name = |version: &Version| match rest(&version.workload.name) {
            Some(rest) if rest.is_empty() => "stable".to_owned(),
            rest => revision_name(&rest.unwrap_or_else(|| version.workload.name.clone())),
        };
        let names: Vec<String> = versions.iter().map(name).collect();
        let own = || versions.iter().map(|version| revision_name(&version.workload.name)).collect();
        if all_differ(&names) { names } else { own() }
    })
}

/// A DNS label that is no number and not `latest`.
fn revision_name(text: &str) -> String {
    let name = label(text);
    match name.as_str() {
        "latest" => "newest".to_owned(),
        name if name.starts_with(|first: char| first.is_ascii_digit()) => label(&format!("v{name}")),
        _ => name,
    }
}

/// Shares as percentages, which add up to 100.
fn percents(shares: &[u64]) -> Vec<u64> {
    let sum: u64 = shares.iter().sum();
    if sum == 0 {
        return shares.iter().enumerate().map(|(index, _)| if index == 0 { 100 } else { 0 }).collect();
    }
    let mut percents: Vec<u64> = shares.iter().map(|share| share * 100 / sum).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(shares[index] * 100 % sum));
    let left = 100 - percents.iter().sum::<u64>();
    order.iter().take(usize::try_from(left).unwrap_or(0)).for_each(|&index| percents[index] += 1);
    percents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_add_up_and_names_are_those_of_revisions() {
        for (shares, expected) in [
            (&[9, 1][..], &[90, 10][..]),
            (&[1, 1, 1], &[34, 33, 33]),
            (&[2, 1, 0], &[67, 33, 0]),
            (&[0, 0], &[100, 0]),
            (&[1, 999], &[0, 100]),
        ] {
            assert_eq!(percents(shares), expected, "{shares:?}");
        }
        for (text, expected) in [("v2", "v2"), ("2", "v2"), ("1.4.0", "v1-4-0"), ("latest", "newest"), ("Blue", "blue")]
        {
            assert_eq!(revision_name(text), expected);
        }
    }
}
