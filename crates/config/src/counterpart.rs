//! Kinds of other systems, and what takes their place here. `leno check` shows a row where it finds
//! such a document, and `docs/coming-from.md` has the whole table.

use crate::problem::{Problem, Scope};
use crate::yaml::Node;
use std::cell::RefCell;
use std::path::Path;

/// A kind of another system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counterpart {
    /// The system.
    pub system: &'static str,
    /// The end of the group in `apiVersion`: of `serving.knative.dev/v1`, `knative.dev`. Empty: any.
    group: &'static str,
    /// `kind` of the document.
    pub kind: &'static str,
    /// What takes its place.
    pub here: &'static str,
}

const KUBERNETES: &str = "Kubernetes";
const GATEWAY: &str = "Gateway API";
const ISTIO: &str = "Istio";
const LINKERD: &str = "Linkerd";
const KNATIVE: &str = "Knative";
const CONSUL: &str = "Consul";
const CILIUM: &str = "Cilium";

const fn row(system: &'static str, group: &'static str, kind: &'static str, here: &'static str) -> Counterpart {
    Counterpart { system, group, kind, here }
}

/// All rows. Of two of the same kind, the first whose group fits counts.
const COUNTERPARTS: &[Counterpart] = &[
    row(KUBERNETES, "apps", "Deployment", "a `Function` with `image`, `command`, `env`, `resources` and `scale`"),
    row(KUBERNETES, "apps", "StatefulSet", "a `Function` with `volumes` and `scale: {min: 1, max: 1}`"),
    row(KUBERNETES, "apps", "DaemonSet", "nothing: the control plane chooses the nodes of a `Function`"),
    row(KUBERNETES, "apps", "ReplicaSet", "a `Function`; `scale` has the number of instances"),
    row(KUBERNETES, "", "Pod", "a `Function` with `image` and `command`"),
    row(KUBERNETES, "batch", "Job", "a `Job` with `apiVersion: leno.dev/v1alpha1`"),
    row(KUBERNETES, "batch", "CronJob", "a `Job`, which a scheduler such as cron applies again"),
    row(
        KUBERNETES,
        "v1",
        "Service",
        "nothing: a function is called by its name, `http://stock/`, by those that list it in `callees`",
    ),
    row(
        KUBERNETES,
        "networking.k8s.io",
        "Ingress",
        "`expose: [{hosts: [...], path: /}]` of the `Function`, and `gateway` of the `Mesh` document",
    ),
    row(KUBERNETES, "", "IngressClass", "`gateway` of the `Mesh` document"),
    row(
        KUBERNETES,
        "",
        "ConfigMap",
        "`env` of the `Function`, or a file below its `workingDirectory` or `readOnlyPaths`",
    ),
    row(KUBERNETES, "v1", "Secret", "a `StoredSecret`, with the same `data` and `stringData` in `spec`"),
    row(
        KUBERNETES,
        "",
        "ServiceAccount",
        "nothing: each function has the identity `spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/NAME`",
    ),
    row(
        KUBERNETES,
        "",
        "Namespace",
        "itself, with `apiVersion: v1`, for its labels; `metadata.namespace` makes one, and `NamespaceQuota` bounds it",
    ),
    row(KUBERNETES, "", "ResourceQuota", "a `NamespaceQuota`"),
    row(KUBERNETES, "", "LimitRange", "a `NamespaceQuota`"),
    row(KUBERNETES, "", "HorizontalPodAutoscaler", "`scale: {min: 1, max: 10, target: ...}` of the `Function`"),
    row(KUBERNETES, "", "PodDisruptionBudget", "nothing: instances are drained before they end"),
    row(KUBERNETES, "", "PersistentVolumeClaim", "`volumes` of the `Function`"),
    row(KUBERNETES, "", "Role", "tokens of the control plane, each for its namespaces"),
    row(KUBERNETES, "", "RoleBinding", "tokens of the control plane, each for its namespaces"),
    row(KUBERNETES, "", "List", "its `items`, each as a document after `---`"),
    row(GATEWAY, "gateway.networking.k8s.io", "UDPRoute", "nothing: the mesh carries TCP, TLS, HTTP and gRPC"),
    row(GATEWAY, "gateway.networking.k8s.io", "ListenerSet", "`listeners` of a `Gateway`"),
    row(GATEWAY, "gateway.networking.x-k8s.io", "XBackendTrafficPolicy", "`retry` of a `Policy` or of an `HTTPRoute`"),
    row(GATEWAY, "gateway.networking.x-k8s.io", "XMesh", "the `Mesh` document"),
    row(
        ISTIO,
        "istio.io",
        "AuthorizationPolicy",
        "a `Policy` with `authorization: {rules: [...]}`; `CUSTOM` is `externalAuthorization`",
    ),
    row(ISTIO, "istio.io", "RequestAuthentication", "a `Policy` with `authentication: {issuers: [...]}`"),
    row(ISTIO, "istio.io", "PeerAuthentication", "nothing: mutual TLS is always on between functions"),
    row(
        ISTIO,
        "istio.io",
        "VirtualService",
        "`expose`, `traffic` and `timeouts` of the `Function`, and `retry` of a `Policy`",
    ),
    row(
        ISTIO,
        "istio.io",
        "DestinationRule",
        "a `Policy` with `circuitBreaker`; subsets are `revisions` of the `Function`",
    ),
    row(ISTIO, "istio.io", "Gateway", "`gateway` of the `Mesh` document, and `expose` of the `Function`"),
    row(ISTIO, "istio.io", "ServiceEntry", "an `External` with `hosts` and `ports`, which callers list in `callees`"),
    row(ISTIO, "istio.io", "WorkloadEntry", "a `Function` with `external: {addresses: [...]}`"),
    row(ISTIO, "istio.io", "WorkloadGroup", "a `Function` with `external: {addresses: [...]}`"),
    row(ISTIO, "istio.io", "Sidecar", "`callees` of the `Function`: it can reach nothing else"),
    row(ISTIO, "istio.io", "EnvoyFilter", "nothing; `extensions` of a `Policy` take WebAssembly filters of proxies"),
    row(ISTIO, "istio.io", "WasmPlugin", "a `Policy` with `extensions`"),
    row(ISTIO, "istio.io", "Telemetry", "a `Policy` with `tracing` and `accessLog`"),
    row(ISTIO, "istio.io", "ProxyConfig", "a `Policy` with `sidecar`"),
    row(ISTIO, "istio.io", "IstioOperator", "the `Mesh` document"),
    row(LINKERD, "linkerd.io", "Server", "nothing: a `Policy` names functions, and `to: [{ports: [...]}]` ports"),
    row(LINKERD, "linkerd.io", "ServerAuthorization", "a `Policy` with `authorization: {rules: [...]}`"),
    row(LINKERD, "linkerd.io", "AuthorizationPolicy", "a `Policy` with `authorization: {rules: [...]}`"),
    row(LINKERD, "linkerd.io", "MeshTLSAuthentication", "`from: [{identities: [...]}]` of a rule"),
    row(LINKERD, "linkerd.io", "NetworkAuthentication", "`from: [{addresses: [...]}]` of a rule"),
    row(LINKERD, "linkerd.io", "HTTPRoute", "`to: [{methods: [...], paths: [...]}]` of a rule"),
    row(LINKERD, "linkerd.io", "HTTPLocalRateLimitPolicy", "a `Policy` with `rateLimits`"),
    row(LINKERD, "linkerd.io", "EgressNetwork", "an `External`"),
    row(LINKERD, "linkerd.io", "ServiceProfile", "a `Policy` with `retry`, and `timeouts` of the `Function`"),
    row("SMI", "smi-spec.io", "TrafficSplit", "`revisions` of the `Function`, and their `traffic`"),
    row("SMI", "smi-spec.io", "TrafficTarget", "a `Policy` with `authorization: {rules: [...]}`"),
    row("SMI", "smi-spec.io", "HTTPRouteGroup", "`to: [{methods: [...], paths: [...]}]` of a rule"),
    row(KNATIVE, "knative.dev", "Service", "a `Function` with `image`, `env`, `concurrency`, `scale` and `traffic`"),
    row(KNATIVE, "knative.dev", "Configuration", "a `Function`"),
    row(
        KNATIVE,
        "knative.dev",
        "Revision",
        "an element of `revisions` of the `Function`; without them, each change makes one",
    ),
    row(KNATIVE, "knative.dev", "Route", "`traffic` and `expose` of the `Function`"),
    row(KNATIVE, "knative.dev", "DomainMapping", "`expose: [{hosts: [...]}]` of the `Function`"),
    row(KNATIVE, "knative.dev", "Broker", "nothing: the mesh carries calls and no events"),
    row(KNATIVE, "knative.dev", "Trigger", "nothing: the mesh carries calls and no events"),
    row(
        CONSUL,
        "consul.hashicorp.com",
        "ServiceIntentions",
        "a `Policy` with `authorization: {rules: [...]}`, and `callees` of the caller",
    ),
    row(CONSUL, "consul.hashicorp.com", "ServiceDefaults", "`protocol` and `timeouts` of the `Function`"),
    row(CONSUL, "consul.hashicorp.com", "ServiceRouter", "`expose` of the `Function`, and `retry` of a `Policy`"),
    row(CONSUL, "consul.hashicorp.com", "ServiceSplitter", "`traffic` of the `Function`"),
    row(
        CONSUL,
        "consul.hashicorp.com",
        "ServiceResolver",
        "`traffic` of the `Function`; its redirects have no counterpart",
    ),
    row(
        CONSUL,
        "consul.hashicorp.com",
        "IngressGateway",
        "`gateway` of the `Mesh` document, and `expose` of the `Function`",
    ),
    row(CONSUL, "consul.hashicorp.com", "TerminatingGateway", "an `External`, and egress nodes"),
    row(CONSUL, "consul.hashicorp.com", "ProxyDefaults", "the `Mesh` document, and `sidecar` of a `Policy`"),
    row(CONSUL, "consul.hashicorp.com", "JWTProvider", "a `Policy` with `authentication: {issuers: [...]}`"),
    row(CILIUM, "cilium.io", "CiliumEnvoyConfig", "nothing; a `Policy` has rules, limits and retries"),
    row("KEDA", "keda.sh", "ScaledObject", "`scale` of the `Function`"),
    row("KEDA", "keda.sh", "HTTPScaledObject", "`scale` of the `Function`"),
    row("Kuma", "kuma.io", "MeshTrafficPermission", "a `Policy` with `authorization: {rules: [...]}`"),
    row("Kuma", "kuma.io", "MeshHTTPRoute", "`expose` and `traffic` of the `Function`"),
    row("Kuma", "kuma.io", "MeshRetry", "a `Policy` with `retry`"),
    row("Kuma", "kuma.io", "MeshCircuitBreaker", "a `Policy` with `circuitBreaker`"),
    row("Kuma", "kuma.io", "MeshRateLimit", "a `Policy` with `rateLimits`"),
    row("Flagger", "flagger.app", "Canary", "`rollout` of the `Function`"),
    row("Argo Rollouts", "argoproj.io", "Rollout", "`rollout` of the `Function`"),
    row("Kustomize", "kustomize.config.k8s.io", "Kustomization", "nothing: `leno` reads all documents of a folder"),
];

/// The row of a document of another system. `own`: kinds of the mesh, which count only with a group
/// of another system.
pub(crate) fn of(document: &Node, own: &[&str]) -> Option<&'static Counterpart> {
    let kind = document.get("kind")?.text()?;
    let version = document.get("apiVersion").and_then(Node::text).unwrap_or_default();
    let group = version.split('/').next().unwrap_or_default();
    let fits = |row: &&&Counterpart| {
        let below = group.strip_suffix(row.group).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        row.group.is_empty() || below
    };
    let of_kind = || COUNTERPARTS.iter().filter(|row| row.kind == kind);
    let own = own.contains(&kind);
    of_kind().find(|row| fits(&row)).or_else(|| of_kind().next().filter(|_| !own))
}

/// Objects of Kubernetes, by group and kind, that stand beside documents of the Gateway API and that
/// folders may hold. Those that restrict something are not among them: a folder with one is refused.
const SKIPPED: [(&str, &str); 13] = [
    ("", "ConfigMap"),
    ("", "PersistentVolumeClaim"),
    ("", "Pod"),
    ("", "Secret"),
    ("", "Service"),
    ("", "ServiceAccount"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("autoscaling", "HorizontalPodAutoscaler"),
    ("networking.k8s.io", "IngressClass"),
    ("policy", "PodDisruptionBudget"),
];

/// The warning of a document in a file that the mesh does not read; `None`: it reads the document, or
/// refuses it.
pub(crate) fn skipped(file: &Path, document: &Node) -> Option<Problem> {
    let kind = document.get("kind")?.text()?;
    let version = document.get("apiVersion")?.text()?;
    let group = version.split_once('/').map_or("", |(group, _)| group);
    SKIPPED.iter().find(|object| **object == (group, kind))?;
    let Counterpart { system, here, .. } = of(document, &[])?;
    let none = RefCell::default();
    let place = Scope::root(file, document, &none).field("kind").here();
    let message = format!("this `{kind}` of {system} is not read");
    Some(Problem { message, fix: format!("its counterpart: {here}"), ..place })
}

/// Whether a document without a `kind` looks like a file of Docker Compose.
pub(crate) fn is_compose(document: &Node) -> bool {
    document.get("services").is_some() && document.get("spec").is_none()
}

/// The table of the documentation.
#[cfg(test)]
fn table() -> String {
    let mut text = "| system | kind | here |\n|---|---|---|\n".to_owned();
    for Counterpart { system, kind, here, .. } in COUNTERPARTS {
        text.push_str(&format!("| {system} | `{kind}` | {here} |\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    const BEGIN: &str = "<!-- Generated from crates/config/src/counterpart.rs; `make reference` writes it anew. -->\n";

    /// `LENO_BLESS=1` writes the table anew.
    #[test]
    fn the_reference_page_has_the_table() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/coming-from.md");
        let text = fs::read_to_string(&file).unwrap();
        let (before, rest) = text.split_once(BEGIN).expect("the place of the table");
        let after = rest.split_once("\n\n").map_or("", |(_, after)| after);
        let end = if after.is_empty() { String::new() } else { format!("\n{after}") };
        let wanted = format!("{before}{BEGIN}{}{end}", table());
        if std::env::var_os("LENO_BLESS").is_some() {
            fs::write(&file, &wanted).unwrap();
        }
        assert!(fs::read_to_string(&file).unwrap() == wanted, "docs/coming-from.md is stale; run: make reference");
    }

    #[test]
    fn each_kind_is_found_by_its_group() {
        let found = |text: &str| {
            let node = crate::yaml::documents(text).remove(0).unwrap();
            of(&node, &["Job", "Policy", "Gateway"]).map(|row| row.system)
        };
        for (text, system) in [
            ("{apiVersion: apps/v1, kind: Deployment}", Some("Kubernetes")),
            ("{apiVersion: v1, kind: Service}", Some("Kubernetes")),
            ("{apiVersion: serving.knative.dev/v1, kind: Service}", Some("Knative")),
            ("{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy}", Some("Istio")),
            ("{apiVersion: policy.linkerd.io/v1alpha1, kind: AuthorizationPolicy}", Some("Linkerd")),
            ("{apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet}", Some("Gateway API")),
            ("{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway}", None),
            ("{apiVersion: networking.istio.io/v1beta1, kind: Gateway}", Some("Istio")),
            ("{apiVersion: policy.linkerd.io/v1beta3, kind: HTTPRoute}", Some("Linkerd")),
            ("{kind: Deployment}", Some("Kubernetes")),
            ("{apiVersion: batch/v1, kind: Job}", Some("Kubernetes")),
            ("{apiVersion: leno.dev/v1alpha1, kind: Job}", None),
            ("{kind: Job}", None),
            ("{apiVersion: v1, kind: Policy}", None),
        ] {
            assert_eq!(found(text), system, "{text}");
        }
    }
}
