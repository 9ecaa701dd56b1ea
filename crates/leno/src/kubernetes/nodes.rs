//! Nodes of a cluster: their kernels, clocks, and the folders of their distribution.

use crate::doctor::Finding;
use jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeMap;

/// The oldest kernel that captures pods, and that can enforce policies.
const CAPTURES: (u64, u64) = (5, 17);
const ENFORCES: (u64, u64) = (6, 6);
/// The seconds after which a kubelet that runs has renewed its Lease, and how far clocks may differ.
const RENEWAL: i64 = 45;
const SKEW: i64 = 5;

/// A distribution whose nodes have their own folders for the network.
struct Distribution {
    name: &'static str,
    /// Whether a node is of it.
    matches: fn(&Value) -> bool,
    configurations: &'static str,
    programs: &'static str,
    /// Another value of the chart that it needs.
    value: Option<&'static str>,
}

const DISTRIBUTIONS: [Distribution; 3] = [
    Distribution {
        name: "k3s",
        matches: |node| node["status"]["nodeInfo"]["kubeletVersion"].as_str().is_some_and(|it| it.contains("+k3s")),
        configurations: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
        programs: "/var/lib/rancher/k3s/data/cni",
        value: None,
    },
    Distribution {
        name: "MicroK8s",
        matches: |node| has_label(node, "microk8s.io/"),
        configurations: "/var/snap/microk8s/current/args/cni-network",
        programs: "/var/snap/microk8s/current/opt/cni/bin",
        value: None,
    },
    Distribution {
        name: "GKE",
        matches: |node| has_label(node, "cloud.google.com/gke-"),
        configurations: "/etc/cni/net.d",
        programs: "/home/kubernetes/bin",
        value: Some("resourceQuota=true"),
    },
];
const USUAL: [&str; 2] = ["/etc/cni/net.d", "/opt/cni/bin"];

fn has_label(node: &Value, prefix: &str) -> bool {
    node["metadata"]["labels"].as_object().is_some_and(|labels| labels.keys().any(|name| name.starts_with(prefix)))
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// The findings about all nodes. `plugin`: the DaemonSet of the CNI plug-in, if it is installed.
pub(crate) fn findings(nodes: &[Value], plugin: Option<&Value>) -> Vec<Finding> {
    let is_linux = |node: &&Value| node["status"]["nodeInfo"]["operatingSystem"] == "linux";
    let (nodes, others): (Vec<&Value>, Vec<&Value>) = nodes.iter().partition(is_linux);
    let mut findings = vec![kernels(&nodes)];
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(|node| name(node)).collect();
        let fix = "keep pods that are to be captured on nodes with Linux";
        findings.push(Finding::limited("other systems", format!("no agent runs on {}", names.join(", ")), fix));
    }
    findings.push(folders(&nodes, plugin));
    if nodes.iter().any(|node| has_label(node, "node.openshift.io/")) {
        let fix = "give the accounts leno-agent and leno-cni the SecurityContextConstraint privileged";
        findings.push(Finding::limited("OpenShift", "pods with host paths need a constraint; it was not tried", fix));
    }
    findings
}

fn kernels(nodes: &[&Value]) -> Finding {
    let mut lists: BTreeMap<bool, Vec<String>> = BTreeMap::new();
    let mut found = Vec::new();
    for node in nodes {
        let release = node["status"]["nodeInfo"]["kernelVersion"].as_str().unwrap_or_default();
        let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map_while(|it| it.parse::<u64>().ok());
        let version = numbers.next().zip(numbers.next()).unwrap_or_default();
        if version < ENFORCES {
            lists.entry(version >= CAPTURES).or_default().push(format!("{} ({release})", name(node)));
        }
        if !found.contains(&release) {
            found.push(release);
        }
    }
    let fix = "update the kernels of these nodes, or keep agents from them with agent.nodeSelector";
    match (lists.get(&false), lists.get(&true)) {
        (Some(old), _) => {
            Finding::failed("kernels", format!("Linux 5.17 captures pods; older: {}", old.join(", ")), fix)
        }
        (None, Some(old)) => Finding::limited(
            "kernels",
            format!("enforced pods are refused on {}: they need Linux 6.6", old.join(", ")),
            fix,
        ),
        (None, None) => Finding::ok("kernels", format!("Linux {} on {} nodes", found.join(", "), nodes.len())),
    }
}

/// Whether the plug-in goes where container runtimes look.
fn folders(nodes: &[&Value], plugin: Option<&Value>) -> Finding {
    let found = DISTRIBUTIONS.iter().find(|it| nodes.iter().any(|node| (it.matches)(node)));
    let (name, wanted) = match found {
        Some(it) => (it.name, [it.configurations, it.programs]),
        None => ("no distribution with its own folders", USUAL),
    };
    let mut values = format!("--set cni.configurationFolder={} --set cni.programFolder={}", wanted[0], wanted[1]);
    if let Some(value) = found.and_then(|it| it.value) {
        values.push_str(&format!(" --set {value}"));
    }
    let Some(plugin) = plugin else {
        return match wanted == USUAL {
            true => Finding::ok("CNI folders", format!("{name}: the chart's own values fit")),
            false => {
                Finding::limited("CNI folders", format!("{name} has other folders"), format!("leno install {values}"))
            }
        };
    };
    let volumes = plugin["spec"]["template"]["spec"]["volumes"].as_array();
    let used: Vec<&str> = volumes.into_iter().flatten().filter_map(|it| it["hostPath"]["path"].as_str()).collect();
    match wanted.iter().all(|folder| used.contains(folder)) {
        true => Finding::ok("CNI folders", format!("{name}: {}", wanted.join(" and "))),
        false => Finding::failed(
            "CNI folders",
            format!("{name}: the plug-in is in {}, and not in {}", used.join(" and "), wanted.join(" and ")),
            format!("leno install {values}"),
        ),
    }
}

/// Compares the clocks of nodes with that of the API server. Each kubelet renews a Lease by its clock.
pub(crate) fn clocks(now: &Value, leases: &[Value]) -> Finding {
    let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let Some(now) = time(now) else {
        return Finding::limited("clocks", "the API server does not tell its time", "compare the clocks by hand");
    };
    let mut wrong = Vec::new();
    for lease in leases {
        let Some(renewed) = time(&lease["spec"]["renewTime"]) else { continue };
        let age = now.duration_since(renewed).as_secs();
        if age < -SKEW {
            wrong.push(format!("{} is {} s ahead", name(lease), -age));
        } else if age > RENEWAL {
            wrong.push(format!("{} is behind, or has not answered for {age} s", name(lease)));
        }
    }
    match wrong.is_empty() {
        true => Finding::ok("clocks", format!("those of {} nodes agree with the API server's", leases.len())),
        false => Finding::limited(
            "clocks",
            format!("{}: certificates are refused where clocks differ", wrong.join(", ")),
            "enable a time service on these nodes: systemd-timesyncd or chrony",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;
    use serde_json::json;

    fn node(name: &str, kernel: &str, kubelet: &str, labels: Value) -> Value {
        let info = json!({"kernelVersion": kernel, "kubeletVersion": kubelet, "operatingSystem": "linux"});
        json!({"metadata": {"name": name, "labels": labels}, "status": {"nodeInfo": info}})
    }

    #[test]
    fn old_kernels_are_named() {
        let state = |kernels: &[&str]| {
            let nodes: Vec<Value> = kernels.iter().map(|it| node(it, it, "v1.37.0", json!({}))).collect();
            let found = kernels_of(&nodes);
            (found.state, found.found)
        };
        fn kernels_of(nodes: &[Value]) -> Finding {
            kernels(&nodes.iter().collect::<Vec<_>>())
        }
        assert_eq!(state(&["6.6.0", "6.18.2-cloud-amd64", "7.0"]).0, State::Ok);
        let (found, text) = state(&["6.6.0", "6.1.0-18-amd64"]);
        assert!(found == State::Limited && text.contains("6.1.0-18-amd64") && !text.contains("6.6.0 "), "{text}");
        let (found, text) = state(&["5.10.0", "6.1.0"]);
        assert!(found == State::Failed && text.contains("5.10.0") && !text.contains("6.1.0"), "{text}");
    }

    #[test]
    fn distributions_have_their_folders() {
        let plugin = |folders: [&str; 2]| {
            let volumes = folders.map(|path| json!({"hostPath": {"path": path}}));
            json!({"spec": {"template": {"spec": {"volumes": volumes}}}})
        };
        let k3s = [node("a", "6.6.0", "v1.33.1+k3s1", json!({}))];
        let gke = [node("a", "6.6.0", "v1.33.1-gke.1", json!({"cloud.google.com/gke-nodepool": "x"}))];
        let plain = [node("a", "6.6.0", "v1.37.0", json!({}))];
        let find = |nodes: &[Value], plugin: Option<Value>| folders(&nodes.iter().collect::<Vec<_>>(), plugin.as_ref());
        assert_eq!(find(&plain, None).state, State::Ok);
        assert_eq!(find(&plain, Some(plugin(USUAL))).state, State::Ok);
        assert_eq!(find(&k3s, Some(plugin(USUAL))).state, State::Failed);
        assert!(find(&k3s, None).fix.unwrap().contains("/var/lib/rancher/k3s/data/cni"));
        assert!(find(&gke, None).fix.unwrap().contains("resourceQuota=true"));
        assert_eq!(find(&gke, Some(plugin(["/etc/cni/net.d", "/home/kubernetes/bin"]))).state, State::Ok);
    }

    #[test]
    fn clocks_that_differ_are_named() {
        let lease = |name: &str, time: &str| json!({"metadata": {"name": name}, "spec": {"renewTime": time}});
        let now = json!("2026-11-28T12:00:00Z");
        let found = |leases: &[Value]| clocks(&now, leases);
        assert_eq!(found(&[lease("a", "2026-11-28T11:59:55.123456Z")]).state, State::Ok);
        let wrong = found(&[lease("b", "2026-11-28T12:02:00.000000Z"), lease("c", "2026-11-28T11:50:00.000000Z")]);
        assert!(wrong.found.contains("b is 120 s ahead") && wrong.found.contains("c is behind"), "{}", wrong.found);
    }
}
