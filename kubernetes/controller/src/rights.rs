//! The rights that the controller needs, each with the calls that need it.
//!
//! `kubernetes/chart/templates/rbac.yaml` grants them and no others: a test compares both.

/// A right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// Where it holds.
    pub scope: Scope,
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The kinds, as paths name them.
    pub resources: &'static [&'static str],
    /// The names of the objects; none: all.
    pub names: &'static [&'static str],
    /// The verbs.
    pub verbs: &'static [&'static str],
    /// The calls that need it.
    pub reason: &'static str,
}

/// Where a right holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In the whole cluster.
    Cluster,
    /// In the controller's namespace.
    Namespace,
}

/// All rights of the controller.
pub const RIGHTS: &[Right] = &[
    Right {
        scope: Scope::Cluster,
        group: "",
        resources: &["namespaces", "nodes", "pods"],
        names: &[],
        verbs: &["list", "watch"],
        reason: "it learns which pods are in the mesh, and on which nodes",
    },
    Right {
        scope: Scope::Cluster,
        group: "",
        resources: &["services"],
        names: &[],
        verbs: &["list", "watch"],
        reason: "it learns which Services there are",
    },
    Right {
        scope: Scope::Cluster,
        group: "discovery.k8s.io",
        resources: &["endpointslices"],
        names: &[],
        verbs: &["list", "watch"],
        reason: "it learns which pods are behind a Service",
    },
    Right {
        scope: Scope::Cluster,
        group: "",
        resources: &["nodes"],
        names: &[],
        verbs: &["get"],
        reason: "an agent joins only if its node exists",
    },
    Right {
        scope: Scope::Cluster,
        group: "leno.dev",
        resources: &["externals", "meshes", "namespacequotas", "policies"],
        names: &[],
        verbs: &["list", "watch"],
        reason: "it puts documents into force",
    },
    Right {
        scope: Scope::Cluster,
        group: "leno.dev",
        resources: &["externals/status", "meshes/status", "namespacequotas/status", "policies/status"],
        names: &[],
        verbs: &["patch"],
        reason: "it reports what became of each document",
    },
    Right {
        scope: Scope::Cluster,
        group: "apiextensions.k8s.io",
        resources: &["customresourcedefinitions"],
        names: &["externals.leno.dev", "meshes.leno.dev", "namespacequotas.leno.dev", "policies.leno.dev"],
        verbs: &["get", "list", "watch"],
        reason: "it waits for kinds that are not defined yet",
    },
    Right {
        scope: Scope::Cluster,
        group: "authentication.k8s.io",
        resources: &["tokenreviews"],
        names: &[],
        verbs: &["create"],
        reason: "an agent joins with its service account token",
    },
    Right {
        scope: Scope::Cluster,
        group: "",
        resources: &["events"],
        names: &[],
        verbs: &["create"],
        reason: "an Event on a pod says why it is not captured",
    },
    Right {
        scope: Scope::Namespace,
        group: "coordination.k8s.io",
        resources: &["leases"],
        names: &[],
        verbs: &["create"],
        reason: "the first controller makes the Lease of the one that leads",
    },
    Right {
        scope: Scope::Namespace,
        group: "coordination.k8s.io",
        resources: &["leases"],
        names: &["leno-controller"],
        verbs: &["get", "update"],
        reason: "one controller leads",
    },
    Right {
        scope: Scope::Namespace,
        group: "",
        resources: &["secrets"],
        names: &[],
        verbs: &["create"],
        reason: "the controller that leads makes the authority if there is none",
    },
    Right {
        scope: Scope::Namespace,
        group: "",
        resources: &["secrets"],
        names: &["leno-ca"],
        verbs: &["get"],
        reason: "it signs certificates with the authority's key",
    },
    Right {
        scope: Scope::Namespace,
        group: "",
        resources: &["configmaps"],
        names: &[],
        verbs: &["create"],
        reason: "server-side apply makes both ConfigMaps",
    },
    Right {
        scope: Scope::Namespace,
        group: "",
        resources: &["configmaps"],
        names: &["leno-ca"],
        verbs: &["get", "patch"],
        reason: "agents read the roots of the mesh from it, and so does a controller that begins",
    },
    Right {
        scope: Scope::Namespace,
        group: "",
        resources: &["configmaps"],
        names: &["leno-controller-nodes"],
        verbs: &["get", "patch"],
        reason: "controllers exchange the progress of their nodes",
    },
];
