//! The objects of a large cluster: functions in a ring, each of which the next five may call.

use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Functions that a policy admits as callers.
pub(super) const CALLERS: usize = 5;
/// Functions of a namespace.
const NAMESPACE: usize = 100;

/// Kinds of objects, by their paths.
pub(super) const NAMESPACES: &str = "/api/v1/namespaces";
pub(super) const SYSTEM: &str = "leno-system";

#[derive(Clone, Copy, Debug)]
pub(super) struct World {
    pub nodes: usize,
    pub functions: usize,
    /// Pods of each function.
    pub replicas: usize,
}

impl World {
    pub(super) fn pods(self) -> usize {
        self.functions * self.replicas
    }

    /// All names are of one length, so that their configurations are.
    fn function(function: usize) -> String {
        format!("service-{function:05}")
    }

    fn namespace(function: usize) -> String {
        format!("shop-{:03}", function / NAMESPACE)
    }

    pub(super) fn node(node: usize) -> String {
        format!("fake{}", node + 1)
    }

    /// The nodes of a function's pods, spread over all.
    pub(super) fn hosts(self, function: usize) -> impl Iterator<Item = usize> {
        let step = (self.nodes / self.replicas).max(1);
        (0..self.replicas).map(move |replica| (function + replica * step) % self.nodes)
    }

    /// The functions on a node.
    pub(super) fn functions_on(self, node: usize) -> usize {
        (0..self.functions).filter(|function| self.hosts(*function).any(|host| host == node)).count()
    }

    /// The pods on a node.
    pub(super) fn pods_on(self, node: usize) -> usize {
        (0..self.functions).flat_map(|function| self.hosts(function)).filter(|host| *host == node).count()
    }

    /// Functions that may call this one.
    pub(super) fn callers(self, function: usize) -> impl Iterator<Item = usize> {
        (1..=CALLERS).map(move |further| (function + further) % self.functions)
    }

    /// The nodes with pods that may call a function.
    pub(super) fn calling_nodes(self, function: usize) -> BTreeSet<usize> {
        self.callers(function).flat_map(|caller| self.hosts(caller)).collect()
    }

    /// Namespaces, service accounts and policies: each object with the path of its kind.
    pub(super) fn without_pods(self) -> impl Iterator<Item = (String, Value)> {
        let count = self.functions.div_ceil(NAMESPACE);
        let namespaces = (0..count).map(|number| {
            let metadata = json!({"name": Self::namespace(number * NAMESPACE), "labels": {"leno.dev/mesh": "enabled"}});
            (NAMESPACES.to_owned(), json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
        });
        namespaces.chain((0..self.functions).flat_map(move |function| {
            let (namespace, name) = (Self::namespace(function), Self::function(function));
            let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
            [
                (format!("{NAMESPACES}/{namespace}/serviceaccounts"), account),
                (Self::policies(function), self.policy(function)),
            ]
        }))
    }

    fn policies(function: usize) -> String {
        format!("/apis/leno.dev/v1alpha1/namespaces/{}/policies", Self::namespace(function))
    }

    fn policy(self, function: usize) -> Value {
        let name = Self::function(function);
        let spec = json!({"functions": [name], "authorization": self.authorization(function, "/secrets")});
        json!({"apiVersion": "leno.dev/v1alpha1", "kind": "Policy", "metadata": {"name": name}, "spec": spec})
    }

    /// The path of a function's policy, and a change by which it refuses another path.
    pub(super) fn change_policy(self, function: usize, refused: &str) -> (String, Value) {
        let path = format!("{}/{}", Self::policies(function), Self::function(function));
        (path, json!({"spec": {"authorization": self.authorization(function, refused)}}))
    }

    fn authorization(self, function: usize, refused: &str) -> Value {
        let caller = |caller: usize| format!("{}/{}", Self::namespace(caller), Self::function(caller));
        let callers: Vec<String> = self.callers(function).map(caller).collect();
        json!({"rules": [
            {"name": "callers", "from": [{"identities": callers}], "to": [{"methods": ["GET", "POST"], "paths": ["/api/*"]}]},
            {"name": "no-secrets", "action": "deny", "to": [{"paths": [refused]}]},
        ]})
    }

    /// All pods, each with the path of its kind.
    pub(super) fn all_pods(self) -> impl Iterator<Item = (String, Value)> {
        (0..self.functions).flat_map(move |function| {
            self.hosts(function).enumerate().map(move |(replica, node)| Self::pod(function, node, &replica.to_string()))
        })
    }

    /// A pod of a function on a node, as a Deployment makes it.
    pub(super) fn pod(function: usize, node: usize, suffix: &str) -> (String, Value) {
        let (namespace, name) = (Self::namespace(function), Self::function(function));
        let labels = json!({"app": name, "leno.dev/function": name, "pod-template-hash": "6d4cf56db6"});
        let metadata = json!({"name": format!("{name}-6d4cf56db6-{suffix}"), "namespace": namespace, "labels": labels});
        let container = json!({
            "name": "main",
            "image": "none",
            "ports": [{"name": "http", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}},
        });
        let spec = json!({"serviceAccountName": name, "nodeName": Self::node(node), "containers": [container]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        (format!("{NAMESPACES}/{namespace}/pods"), pod)
    }

    /// The path of such a pod.
    pub(super) fn pod_path(function: usize, suffix: &str) -> String {
        let (namespace, name) = (Self::namespace(function), Self::function(function));
        format!("{NAMESPACES}/{namespace}/pods/{name}-6d4cf56db6-{suffix}")
    }

    /// The pod of the agent of a node.
    pub(super) fn agent(node: usize) -> (String, Value) {
        let spec = json!({
            "serviceAccountName": "leno-agent",
            "nodeName": Self::node(node),
            "hostNetwork": true,
            "containers": [{"name": "agent", "image": "none"}],
        });
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": Self::agent_name(node)}, "spec": spec});
        (format!("{NAMESPACES}/{SYSTEM}/pods"), pod)
    }

    pub(super) fn agent_name(node: usize) -> String {
        format!("leno-agent-{node:03}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_spread_evenly_over_nodes() {
        let world = World { nodes: 100, functions: 1000, replicas: 10 };
        for node in 0..world.nodes {
            assert_eq!((world.pods_on(node), world.functions_on(node)), (100, 100));
        }
        assert_eq!(world.all_pods().count(), world.pods());
        assert_eq!(world.calling_nodes(0).len(), 50);
        assert!(world.hosts(0).all(|host| !world.calling_nodes(0).contains(&host)));
    }
}
