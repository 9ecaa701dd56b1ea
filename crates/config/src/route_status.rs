//! The status of Gateways and routes: conditions with the types and reasons of the Gateway API.

use crate::timestamp::Timestamp;
use leno_model::HttpRouteKind;
use serde::{Serialize, Serializer};

/// The controller that writes conditions, as `controllerName` of a GatewayClass names it.
pub const CONTROLLER: &str = "leno.dev/gateway";

/// The status of all Gateways and routes, each sorted by namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouteReport {
    /// Gateways of the class of this mesh.
    pub gateways: Vec<GatewayStatus>,
    /// Routes.
    pub routes: Vec<RouteStatus>,
    /// Policies of the Gateway API.
    pub policies: Vec<PolicyStatus>,
    /// Faults that had not ended when the documents were compiled, sorted by namespace and name.
    pub faults: Vec<FaultStatus>,
}

/// A fault of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FaultStatus {
    /// Namespace of the policy, and of its routes.
    pub namespace: String,
    /// Name of the policy.
    pub policy: String,
    /// `<policy>/faults/<name>`.
    pub name: String,
    /// Its routes and rules, as the document writes them.
    pub routes: Vec<String>,
    /// When it ends.
    pub until: Timestamp,
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// Its type, for example `Accepted`.
    #[serde(rename = "type")]
    pub name: &'static str,
    /// Whether it holds: `True` or `False`.
    #[serde(serialize_with = "in_words")]
    pub status: bool,
    /// The reason, one word for programs.
    pub reason: &'static str,
    /// The reason in a sentence; empty: there is no more to say.
    pub message: String,
}

/// The status of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GatewayStatus {
    /// Namespace of the document.
    pub namespace: String,
    /// Name of the document.
    pub name: String,
    /// `Accepted`, `Programmed` and `ResolvedRefs`.
    pub conditions: Vec<Condition>,
    /// Its listeners, in the order of the document.
    pub listeners: Vec<ListenerStatus>,
}

/// The status of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerStatus {
    /// Its name in the Gateway.
    pub name: String,
    /// Port.
    pub port: u16,
    /// Protocol, as the document writes it.
    pub protocol: String,
    /// The hosts that it serves; `None`: all.
    pub hostname: Option<String>,
    /// The kinds of routes that it takes.
    pub supported_kinds: Vec<&'static str>,
    /// Accepted routes.
    pub attached_routes: usize,
    /// `Accepted`, `Conflicted`, `ResolvedRefs`, `Programmed` and, of overlapping listeners with
    /// TLS, `OverlappingTLSConfig`.
    pub conditions: Vec<Condition>,
}

/// The status of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteStatus {
    /// Namespace of the document.
    pub namespace: String,
    /// Name of the document.
    pub name: String,
    /// Kind of the document.
    pub kind: &'static str,
    /// Hosts, as the document writes them; empty: those of the listeners.
    pub hostnames: Vec<String>,
    /// Each of its parents, in the order of the document. Those of other implementations are left
    /// out.
    pub parents: Vec<ParentStatus>,
}

/// The status of a route at one of its parents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    /// The parent.
    pub parent_ref: ParentName,
    /// [`CONTROLLER`].
    pub controller_name: &'static str,
    /// `Accepted`, `ResolvedRefs` and, if only some rules are in force, `PartiallyInvalid`.
    pub conditions: Vec<Condition>,
}

/// The status of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyStatus {
    /// Namespace of the document.
    pub namespace: String,
    /// Name of the document.
    pub name: String,
    /// Kind of the document.
    pub kind: &'static str,
    /// The name that back ends have to prove.
    pub hostname: String,
    /// The Gateways from which requests reach a target of it, or the targets that none reaches.
    pub ancestors: Vec<AncestorStatus>,
}

/// The status of a policy for the requests of one Gateway, or of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AncestorStatus {
    /// The Gateway or the target.
    pub ancestor_ref: ParentName,
    /// [`CONTROLLER`].
    pub controller_name: &'static str,
    /// `Accepted` and `ResolvedRefs`.
    pub conditions: Vec<Condition>,
}

/// A parent, as the document names it, with the defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentName {
    /// API group; empty: that of Service.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Name of a listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// Port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl Condition {
    /// A condition that holds, for the reason of this name.
    pub(crate) fn holds(name: &'static str, reason: &'static str) -> Self {
        Self { name, status: true, reason, message: String::new() }
    }

    /// A condition that does not hold.
    pub(crate) fn fails(name: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { name, status: false, reason, message: message.into() }
    }
}

impl FaultStatus {
    /// Whether it is in force at this moment.
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        now < self.until
    }

    /// Whether it is for a rule of this route, or for all of its rules.
    pub fn is_for(&self, namespace: &str, route: &str) -> bool {
        let name = |target: &str| target.split_once('/').map_or(target == route, |(name, _)| name == route);
        self.namespace == namespace && self.routes.iter().any(|target| name(target))
    }
}

impl RouteStatus {
    /// Whether a parent accepts it.
    pub fn is_accepted(&self) -> bool {
        self.parents.iter().any(ParentStatus::is_accepted)
    }
}

impl ParentStatus {
    /// Whether the parent accepts the route.
    pub fn is_accepted(&self) -> bool {
        self.conditions.iter().any(|condition| condition.name == "Accepted" && condition.status)
    }
}

impl ListenerStatus {
    /// Adds that a condition does not hold, for this reason.
    pub fn fail(&mut self, name: &'static str, reason: &'static str, message: String) {
        match self.conditions.iter_mut().find(|condition| condition.name == name) {
            Some(condition) if condition.status => *condition = Condition::fails(name, reason, message),
            Some(condition) => condition.message = format!("{}; {message}", condition.message),
            None => self.conditions.push(Condition::fails(name, reason, message)),
        }
    }

    /// Whether the gateway serves it.
    pub fn is_programmed(&self) -> bool {
        self.conditions.iter().any(|condition| condition.name == "Programmed" && condition.status)
    }
}

/// The kind of a route, as documents write it.
pub(crate) fn kind_name(kind: HttpRouteKind) -> &'static str {
    match kind {
        HttpRouteKind::Http => "HTTPRoute",
        HttpRouteKind::Grpc => "GRPCRoute",
    }
}

fn in_words<S: Serializer>(status: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *status { "True" } else { "False" })
}
