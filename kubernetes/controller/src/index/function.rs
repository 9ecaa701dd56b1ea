//! The function of a pod: its workload, as Leno names it.

use crate::api::Metadata;
use leno_model::FunctionId;
use leno_model::function_id::is_label;
use std::collections::BTreeMap;
use tracing::warn;

const FUNCTION: &str = "leno.dev/function";
/// Labels whose value ends the name of a ReplicaSet that a Deployment or a Rollout of Argo owns.
const HASHES: [&str; 2] = ["pod-template-hash", "rollouts-pod-template-hash"];
/// Digits that end the name of a CronJob's Job: minutes since 1970.
const MINUTES: usize = 8;

/// The function of a pod: of its label, or else of its workload, which the names of the pod's owner
/// tell without a watch of owners.
pub(crate) fn of_pod(pod: &Metadata) -> Option<FunctionId> {
    let owner = pod.owner_references.iter().find(|owner| owner.controller);
    let workload = match owner {
        Some(owner) if owner.kind == "ReplicaSet" => HASHES
            .iter()
            .filter_map(|label| pod.labels.get(*label))
            .find_map(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'))
            .unwrap_or(&owner.name),
        Some(owner) if owner.kind == "Job" => without_minutes(&owner.name),
        // The node owns the objects of static pods, and names them `NAME-NODE`.
        Some(owner) if owner.kind == "Node" => {
            pod.name.strip_suffix(owner.name.as_str()).and_then(|name| name.strip_suffix('-')).unwrap_or(&pod.name)
        }
        Some(owner) => &owner.name,
        None => &pod.name,
    };
    if let Some(name) = pod.labels.get(FUNCTION) {
        match FunctionId::new(&pod.namespace, name) {
            Ok(function) => return Some(function),
            Err(error) => warn!("Pod {}: label {FUNCTION} is not used: {error}", pod.key()),
        }
    }
    FunctionId::new(&pod.namespace, &label(workload)).ok()
}

/// Whether a label names the function, and not the pod's owner.
pub(crate) fn is_labelled(labels: &BTreeMap<String, String>) -> bool {
    labels.contains_key(FUNCTION)
}

fn without_minutes(job: &str) -> &str {
    match job.rsplit_once('-') {
        Some((name, digits))
            if !name.is_empty() && digits.len() == MINUTES && digits.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            name
        }
        _ => job,
    }
}

/// A name as a DNS label. Names of workloads may be longer, and may have dots: such a name is
/// shortened and gets a hash of the whole, so that two of them stay apart.
fn label(name: &str) -> String {
    if is_label(name) {
        return name.to_owned();
    }
    // FNV-1a: both replicas of the controller have to choose the same name, in any release.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let kept: String =
        name.chars().take(46).map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    match kept.trim_matches('-') {
        "" => format!("pod-{hash:016x}"),
        kept => format!("{kept}-{hash:016x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::object::Owner;

    fn pod(name: &str, owner: Option<(&str, &str)>, labels: &[(&str, &str)]) -> Metadata {
        Metadata {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            labels: labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            owner_references: owner
                .map(|(kind, name)| Owner { kind: kind.to_owned(), name: name.to_owned(), controller: true })
                .into_iter()
                .collect(),
            ..Metadata::default()
        }
    }

    #[test]
    fn a_function_is_named_as_its_workload() {
        let hash = ("pod-template-hash", "6d4cf56db6");
        let cases = [
            (pod("web-6d4cf56db6-abcde", Some(("ReplicaSet", "web-6d4cf56db6")), &[hash]), "web"),
            (pod("web-x", Some(("ReplicaSet", "web")), &[]), "web"),
            (pod("web-x", Some(("ReplicaSet", "web-77")), &[hash]), "web-77"),
            (pod("w", Some(("ReplicaSet", "web-1f")), &[("rollouts-pod-template-hash", "1f")]), "web"),
            (pod("report-28512345-x", Some(("Job", "report-28512345")), &[]), "report"),
            (pod("report-2-x", Some(("Job", "report-2")), &[]), "report-2"),
            (pod("28512345-x", Some(("Job", "28512345")), &[]), "28512345"),
            (pod("db-0", Some(("StatefulSet", "db")), &[]), "db"),
            (pod("log-abcde", Some(("DaemonSet", "log")), &[]), "log"),
            (pod("proxy-node-1", Some(("Node", "node-1")), &[]), "proxy"),
            (pod("once", None, &[]), "once"),
            (pod("db-0", Some(("StatefulSet", "db")), &[("leno.dev/function", "store")]), "store"),
            (pod("db-0", Some(("StatefulSet", "db")), &[("leno.dev/function", "Store_1")]), "db"),
        ];
        for (pod, name) in cases {
            assert_eq!(of_pod(&pod).unwrap().to_string(), format!("shop/{name}"), "{pod:?}");
        }
    }

    #[test]
    fn names_that_are_no_labels_become_different_labels() {
        let long = "a".repeat(70);
        let names = ["web.v1", "web-v1", "web.v1-", &long, &format!("{long}b"), "-", "é"];
        let labels: std::collections::BTreeSet<String> = names.iter().map(|name| label(name)).collect();
        assert_eq!(labels.len(), names.len());
        assert!(labels.iter().all(|label| is_label(label)), "{labels:?}");
    }
}
