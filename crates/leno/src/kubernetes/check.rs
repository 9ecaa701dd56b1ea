//! `leno check --kubernetes`: the requirements of Leno in a cluster, before and after `leno install`.

use super::chart::{DEFINITIONS, NAMESPACE};
use super::kubectl::Cluster;
use super::nodes;
use crate::doctor::{Finding, State, print};
use crate::output::Format;
use crate::progress::Progress;
use anyhow::Result;
use serde_json::Value;
use std::process::ExitCode;

/// The kinds of objects that an installation creates.
const CREATED: [(&str, Option<&str>); 7] = [
    ("namespaces", None),
    ("customresourcedefinitions", None),
    ("clusterroles", None),
    ("clusterrolebindings", None),
    ("roles", Some(NAMESPACE)),
    ("deployments.apps", Some(NAMESPACE)),
    ("daemonsets.apps", Some(NAMESPACE)),
];

/// Prints the findings. Ends with 1 if Leno cannot work.
pub(crate) fn run(cluster: &Cluster, format: Format) -> Result<ExitCode> {
    let findings = {
        let _progress = Progress::of("asks the cluster");
        findings(cluster)?
    };
    print(&findings, format);
    let has_failed = findings.iter().any(|finding| finding.state == State::Failed);
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn findings(cluster: &Cluster) -> Result<Vec<Finding>> {
    // Without an answer of the API server, nothing else can be checked.
    let mut findings = vec![match cluster.check_version() {
        Ok(release) => Finding::ok("Kubernetes", release),
        Err(error) => {
            let fix = "check the context (`kubectl config current-context`), or update the cluster";
            return Ok(vec![Finding::failed("Kubernetes", format!("{error:#}"), fix)]);
        }
    }];
    let get = |what: &[&str]| cluster.json(&[&["get"], what, &["--output=json"]].concat());
    let listed = get(&["nodes"])?;
    let all = listed["items"].as_array().cloned().unwrap_or_default();
    let installed = in_namespace(cluster, "daemonset/leno-cni");
    findings.extend(nodes::findings(&all, installed.as_ref()));
    findings.push(clock(cluster)?);
    findings.extend(networks(cluster));
    let agents = in_namespace(cluster, "daemonset/leno-agent");
    match &agents {
        None => {
            findings.push(rights(cluster));
            findings.push(Finding::ok("Leno", "not installed"));
        }
        Some(agents) => {
            findings.extend(parts(cluster, agents, installed.as_ref()));
            findings.push(definitions(&get(&["customresourcedefinitions"])?));
        }
    }
    findings.push(labels(&[get(&["namespaces"])?, get(&["pods", "--all-namespaces", "--selector=leno.dev/mesh"])?]));
    Ok(findings)
}

fn in_namespace(cluster: &Cluster, name: &str) -> Option<Value> {
    cluster.json(&["get", name, "--namespace", NAMESPACE, "--output=json"]).ok()
}

/// The rights of this user, who is to install Leno.
fn rights(cluster: &Cluster) -> Finding {
    let cannot = |(kind, namespace): &(&str, Option<&str>)| {
        let mut arguments = vec!["auth", "can-i", "create", kind, "--quiet"];
        arguments.extend(namespace.iter().flat_map(|namespace| ["--namespace", namespace]));
        cluster.run(&arguments, "").is_err()
    };
    let missing: Vec<&str> = CREATED.iter().filter(|it| cannot(it)).map(|(kind, _)| *kind).collect();
    match missing.is_empty() {
        true => Finding::ok("rights", "you may create all objects of Leno"),
        false => Finding::failed(
            "rights",
            format!("you may not create {}", missing.join(", ")),
            "install as a user with the ClusterRole cluster-admin",
        ),
    }
}

/// The clocks of nodes, by the Leases that their kubelets renew, beside the one of the API server.
fn clock(cluster: &Cluster) -> Result<Finding> {
    let now = ["create", "configmap", "leno-clock", "--namespace=default", "--dry-run=server", "--output=json"];
    let Ok(now) = cluster.json(&now) else {
        let fix = "check with a user who may create ConfigMaps in the namespace default";
        return Ok(Finding::limited("clocks", "not compared: the API server does not tell its time", fix));
    };
    let leases = cluster.json(&["get", "leases", "--namespace=kube-node-lease", "--output=json"])?;
    Ok(nodes::clocks(&now["metadata"]["creationTimestamp"], leases["items"].as_array().map_or(&[], Vec::as_slice)))
}

/// Networks whose settings can go past the agent, or remove the CNI plug-in.
fn networks(cluster: &Cluster) -> Vec<Finding> {
    let configuration = ["get", "configmap/cilium-config", "--namespace=kube-system", "--output=json"];
    cluster.json(&configuration).map(|found| cilium(&found["data"])).unwrap_or_default()
}

fn cilium(data: &Value) -> Vec<Finding> {
    let is = |name: &str, value: &str| data[name].as_str().is_some_and(|found| found == value);
    let exclusive = match is("cni-exclusive", "false") {
        true => Finding::ok("Cilium, other CNI plug-ins", "permitted"),
        false => Finding::failed(
            "Cilium, other CNI plug-ins",
            "cni.exclusive is on: Cilium removes Leno's plug-in from nodes",
            "helm upgrade cilium … --reuse-values --set cni.exclusive=false",
        ),
    };
    // It replaces the addresses of Services in pods' sockets.
    let has_sockets = is("kube-proxy-replacement", "true") || is("bpf-lb-sock", "true");
    let sockets = match has_sockets && !is("bpf-lb-sock-hostns-only", "true") {
        false => Finding::ok("Cilium, Services", "pods' calls keep the addresses of Services"),
        true => Finding::failed(
            "Cilium, Services",
            "socketLB replaces the addresses of Services before the agent sees them",
            "helm upgrade cilium … --reuse-values --set socketLB.hostNamespaceOnly=true",
        ),
    };
    vec![exclusive, sockets]
}

/// The parts of an installed Leno.
fn parts(cluster: &Cluster, agents: &Value, plugin: Option<&Value>) -> Vec<Finding> {
    let mut findings = Vec::new();
    match in_namespace(cluster, "deployment/leno-controller") {
        Some(controllers) => {
            let (ready, all) =
                (number(&controllers["status"]["readyReplicas"]), number(&controllers["spec"]["replicas"]));
            findings.push(part(cluster, "controllers", "leno-controller", (ready, all)));
        }
        None => {
            findings.push(Finding::failed("controllers", "the Deployment leno-controller is missing", "leno install"))
        }
    }
    let of = |set: &Value| (number(&set["status"]["numberReady"]), number(&set["status"]["desiredNumberScheduled"]));
    findings.push(part(cluster, "agents", "leno-agent", of(agents)));
    findings.push(match plugin {
        Some(plugin) => part(cluster, "CNI plug-in", "leno-cni", of(plugin)),
        None => Finding::limited(
            "CNI plug-in",
            "not installed: a new pod runs some milliseconds before it is captured",
            "leno install --set cni.enabled=true",
        ),
    });
    findings
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn part(cluster: &Cluster, check: &str, name: &str, (ready, all): (u64, u64)) -> Finding {
    if all == 0 {
        let fix = format!("check the node selector: kubectl describe daemonset/{name} -n {NAMESPACE}");
        return Finding::failed(check, "no pod is to run", fix);
    }
    if ready >= all {
        return Finding::ok(check, format!("{ready} of {all} ready"));
    }
    // Programs that cannot start say why in their last line.
    let selector = format!("app.kubernetes.io/name={name}");
    let pods = cluster.json(&["get", "pods", "--namespace", NAMESPACE, "--selector", &selector, "--output=json"]);
    let pods = pods.unwrap_or_default();
    let is_ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
    };
    let pod = pods["items"].as_array().into_iter().flatten().find(|pod| !is_ready(pod));
    let found = match pod {
        None => format!("{ready} of {all} ready"),
        Some(pod) => {
            let (pod_name, node) = (&pod["metadata"]["name"], &pod["spec"]["nodeName"]);
            let log = ["logs", "--namespace", NAMESPACE, pod_name.as_str().unwrap_or_default(), "--tail=1"];
            let state = &pod["status"]["containerStatuses"][0]["state"];
            let waiting = state["waiting"]["message"].as_str().or(state["waiting"]["reason"].as_str());
            let said = cluster.run(&log, "").ok().map(|it| it.trim().to_owned()).filter(|it| !it.is_empty());
            let reason = said.or(waiting.map(str::to_owned)).unwrap_or_else(|| "no log yet".to_owned());
            format!("{ready} of {all} ready; on {}: {reason}", node.as_str().unwrap_or("no node yet"))
        }
    };
    Finding::failed(check, found, format!("kubectl describe pods -n {NAMESPACE} -l app.kubernetes.io/name={name}"))
}

/// Whether the cluster has the definitions of this release.
fn definitions(all: &Value) -> Finding {
    let mut differing = Vec::new();
    for (name, text) in DEFINITIONS {
        let wanted: Value = serde_saphyr::from_str(text).unwrap_or_default();
        let found = all["items"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|it| it["metadata"]["name"] == wanted["metadata"]["name"]);
        let schema = |definition: &Value| definition["spec"]["versions"][0]["schema"].clone();
        match found {
            None => differing.push(format!("{name} is missing")),
            Some(found) if !is_same(&schema(found), &schema(&wanted)) => {
                differing.push(format!("{name} is of another release"))
            }
            Some(_) => {}
        }
    }
    match differing.is_empty() {
        true => Finding::ok("definitions", "of this release"),
        false => Finding::failed("definitions", differing.join(", "), "leno install, or helm upgrade, of this release"),
    }
}

/// The API server writes 1024.0 as 1024.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |(name, value): (&String, &Value)| other.get(name).is_some_and(|it| is_same(value, it));
            one.len() == other.len() && one.iter().all(same)
        }
        _ => one == other,
    }
}

/// Labels of Leno on namespaces and pods that have no effect.
fn labels(lists: &[Value]) -> Finding {
    let (mut enrolled, mut wrong) = (0, Vec::new());
    for object in lists.iter().flat_map(|list| list["items"].as_array().into_iter().flatten()) {
        let labels = &object["metadata"]["labels"];
        let (mesh, mode) = (&labels["leno.dev/mesh"], &labels["leno.dev/mode"]);
        enrolled += usize::from(mesh == "enabled" && object["kind"] == "Namespace");
        let is_wrong = |value: &Value, known: [&str; 2]| value.as_str().is_some_and(|it| !known.contains(&it));
        if is_wrong(mesh, ["enabled", "disabled"]) || is_wrong(mode, ["enforced", "permissive"]) {
            let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
            wrong.push(format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap_or_default()));
        }
    }
    match wrong.is_empty() {
        true => Finding::ok("labels", format!("{enrolled} namespaces are enrolled")),
        false => Finding::limited(
            "labels",
            format!("without effect on {}", wrong.join(", ")),
            "leno.dev/mesh is enabled or disabled, leno.dev/mode is enforced or permissive",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_of_cilium_that_go_past_the_agent_are_failures() {
        let states = |data: Value| cilium(&data).iter().map(|it| it.state).collect::<Vec<_>>();
        assert_eq!(states(json!({})), [State::Failed, State::Ok]);
        assert_eq!(
            states(json!({"cni-exclusive": "false", "kube-proxy-replacement": "true"})),
            [State::Ok, State::Failed]
        );
        let all = json!({"cni-exclusive": "false", "bpf-lb-sock": "true", "bpf-lb-sock-hostns-only": "true"});
        assert_eq!(states(all), [State::Ok, State::Ok]);
    }

    #[test]
    fn definitions_of_other_releases_are_failures() {
        let mut items: Vec<Value> = DEFINITIONS.iter().map(|(_, text)| serde_saphyr::from_str(text).unwrap()).collect();
        assert_eq!(definitions(&json!({"items": items})).state, State::Ok);
        let written = items[0].to_string().replace(":2,", ":2.0,");
        items[0] = serde_json::from_str(&written).unwrap();
        assert_eq!(definitions(&json!({"items": items})).state, State::Ok);
        items[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = json!({});
        let missing = items.pop().unwrap()["spec"]["names"]["plural"].as_str().unwrap().to_owned();
        let found = definitions(&json!({"items": items}));
        assert!(found.found.contains(&format!("{missing} is missing")), "{}", found.found);
        assert!(found.found.contains("is of another release"), "{}", found.found);
    }

    #[test]
    fn labels_without_effect_are_named() {
        let object =
            |kind: &str, name: &str, labels: Value| json!({"kind": kind, "metadata": {"name": name, "labels": labels}});
        let namespaces = json!({"items": [
            object("Namespace", "shop", json!({"leno.dev/mesh": "enabled", "leno.dev/mode": "enforced"})),
            object("Namespace", "bank", json!({"leno.dev/mesh": "true"})),
            object("Namespace", "blog", json!({"leno.dev/mode": "strict"})),
        ]});
        let found = labels(&[namespaces]);
        assert_eq!((found.state, &*found.found), (State::Limited, "without effect on namespace/bank, namespace/blog"));
        assert_eq!(labels(&[json!({"items": []})]).found, "0 namespaces are enrolled");
    }
}
