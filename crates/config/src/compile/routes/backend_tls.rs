//! BackendTLSPolicy documents: how nodes begin TLS with the services of External documents.

use super::backends::LENO;
use crate::compile::{Context, TypedDocument};
use crate::host;
use crate::problem::Scope;
use crate::route_status::{AncestorStatus, CONTROLLER, Condition, ParentName, PolicyStatus};
use crate::snapshot::Function;
use leno_gateway_api::{
    BackendTLSPolicy, BackendTLSPolicySpec, BackendTLSPolicyValidation, GROUP, LocalObjectReference,
    LocalPolicyTargetReferenceWithSectionName, Resource, SubjectAltName, SubjectAltNameType,
};
use leno_model::egress::{EgressProtocol, EgressTls};
use leno_model::{CertificateName, FunctionId, Run, SecretBytes, SecretSource, StoredKey};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The key of a StoredSecret that holds authorities.
const AUTHORITIES: &str = "ca.crt";
/// The beginning of a certificate in PEM.
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
/// Most ancestors in a status.
const MOST_ANCESTORS: usize = 16;

/// The policies in force, by back end, and the status of all.
#[derive(Default)]
pub(in crate::compile) struct BackendTls {
    /// The back ends that have a policy, and why requests to them fail; `None`: they do not.
    targets: BTreeMap<FunctionId, Option<String>>,
    policies: Vec<CheckedPolicy>,
}

/// A policy and the conditions of each of its targets.
struct CheckedPolicy {
    namespace: String,
    name: String,
    hostname: String,
    targets: Vec<CheckedTarget>,
}

struct CheckedTarget {
    reference: ParentName,
    /// `None`: there is nothing of this name.
    id: Option<FunctionId>,
    conditions: [Condition; 2],
}

/// The settings of a policy, and the condition `ResolvedRefs`.
struct Settings {
    /// An error: the condition `Accepted`.
    tls: Result<EgressTls, Condition>,
    resolved: Condition,
}

impl BackendTls {
    /// Why requests to a back end fail, if it has a policy that cannot be followed.
    pub(super) fn refusal(&self, id: &FunctionId) -> Option<&str> {
        self.targets.get(id)?.as_deref()
    }

    /// Whether a back end has a policy.
    pub(super) fn has(&self, id: &FunctionId) -> bool {
        self.targets.contains_key(id)
    }

    /// Applies the settings to a target, and returns it with the condition `Accepted`.
    fn apply(
        &mut self,
        namespace: &str,
        reference: &LocalPolicyTargetReferenceWithSectionName,
        settings: &Settings,
        functions: &mut BTreeMap<FunctionId, Function>,
    ) -> (Option<FunctionId>, Condition) {
        let LocalPolicyTargetReferenceWithSectionName { group, kind, name, section_name } = reference;
        let refused = |reason, message: String| Condition::fails("Accepted", reason, message);
        let shown = format!("{}/{}", namespace.escape_debug(), name.escape_debug());
        let is_of_kind = |run: &Run| match (&**group, &**kind) {
            ("", "Service") => !matches!(run, Run::Job(_)),
            (LENO, "Function") => !matches!(run, Run::Job(_) | Run::Egress(_)),
            (LENO, "External") => matches!(run, Run::Egress(_)),
            _ => false,
        };
        let id = FunctionId::new(namespace, name).ok();
        let found = id.and_then(|id| Some((id.clone(), functions.get_mut(&id)?)));
        let Some((id, function)) = found.filter(|(_, function)| is_of_kind(&function.run)) else {
            let message = format!("there is no `{}` of the name `{shown}`", kind.escape_debug());
            return (None, refused("TargetNotFound", message));
        };
        if self.targets.contains_key(&id) {
            let message = format!("another policy of `{shown}` comes first by its name");
            return (Some(id), refused("Conflicted", message));
        }
        let is_http = |protocol| matches!(protocol, EgressProtocol::Http | EgressProtocol::Https);
        let accepted = match (&function.run, section_name) {
            (Run::Egress(egress), _) if !egress.ports.iter().any(|port| is_http(port.protocol)) => {
                refused("Invalid", format!("`{shown}` has no port at which the node could begin TLS"))
            }
            (Run::Egress(_), Some(section)) => {
                let message =
                    format!("ports of `{shown}` have no names: remove `sectionName: {}`", section.escape_debug());
                refused("TargetNotFound", message)
            }
            (Run::Egress(_), None) => match &settings.tls {
                Ok(_) => Condition::holds("Accepted", "Accepted"),
                Err(condition) => condition.clone(),
            },
            _ => refused("Invalid", format!("`{shown}` is a function, with which nodes speak mutual TLS of the mesh")),
        };
        let refusal =
            (!accepted.status).then(|| format!("its BackendTLSPolicy cannot be followed: {}", accepted.message));
        if let Run::Egress(egress) = &mut function.run {
            // Without TLS, nothing is sent, whether the policy can be followed or not.
            for port in egress.ports.iter_mut().filter(|port| is_http(port.protocol)) {
                port.protocol = EgressProtocol::Https;
            }
            let certificate = egress.tls.certificate.take();
            let tls = settings.tls.clone().unwrap_or_default();
            egress.tls = EgressTls { certificate, refused: refusal.clone().unwrap_or_default(), ..tls };
        }
        self.targets.insert(id.clone(), refusal);
        (Some(id), accepted)
    }

    /// The status of all policies. `gateways`: those from which requests reach each back end.
    pub(super) fn statuses(self, gateways: &BTreeMap<FunctionId, BTreeSet<(String, String)>>) -> Vec<PolicyStatus> {
        let status = |policy: CheckedPolicy| {
            let mut ancestors: Vec<AncestorStatus> = Vec::new();
            for CheckedTarget { reference, id, conditions } in policy.targets {
                let of_gateway = |(namespace, name): &(String, String)| ParentName {
                    group: GROUP.to_owned(),
                    kind: "Gateway".to_owned(),
                    namespace: namespace.clone(),
                    name: name.clone(),
                    section_name: None,
                    port: None,
                };
                let gateways = id.as_ref().and_then(|id| gateways.get(id));
                let mut of_target: Vec<ParentName> = gateways.into_iter().flatten().map(of_gateway).collect();
                if of_target.is_empty() {
                    of_target.push(reference);
                }
                for ancestor_ref in of_target {
                    let conditions = conditions.to_vec();
                    match ancestors.iter_mut().find(|other| other.ancestor_ref == ancestor_ref) {
                        // Of several targets behind one Gateway, the one with a fault counts.
                        Some(other) if other.conditions.iter().all(|condition| condition.status) => {
                            other.conditions = conditions;
                        }
                        Some(_) => {}
                        None => {
                            ancestors.push(AncestorStatus { ancestor_ref, controller_name: CONTROLLER, conditions })
                        }
                    }
                }
            }
            ancestors.truncate(MOST_ANCESTORS);
            let CheckedPolicy { namespace, name, hostname, .. } = policy;
            PolicyStatus { namespace, name, kind: "BackendTLSPolicy", hostname, ancestors }
        };
        self.policies.into_iter().map(status).collect()
    }
}

/// Checks all policies, and applies them to External documents. Of several for one target, the first
/// by name holds, even if it cannot be followed: requests then fail.
pub(in crate::compile) fn backend_tls(
    context: &Context<'_>,
    documents: &[Arc<TypedDocument<Resource>>],
    functions: &mut BTreeMap<FunctionId, Function>,
) -> BackendTls {
    let mut written: Vec<(&TypedDocument<Resource>, &BackendTLSPolicy)> = documents
        .iter()
        .filter_map(|placed| match &placed.document {
            Resource::BackendTLSPolicy(policy) => Some((&**placed, policy)),
            _ => None,
        })
        .collect();
    written.sort_by_key(|(_, policy)| (&policy.metadata.namespace, &policy.metadata.name));
    let mut found = BackendTls::default();
    for (placed, policy) in written.into_iter().take_while(|_| !context.effort.is_over()) {
        let BackendTLSPolicy { metadata, spec } = policy;
        let none = RefCell::default();
        let root = placed.scope(&none);
        let scope = root.field("spec");
        let settings = settings(context, &scope, &metadata.namespace, spec);
        let list = scope.field("targetRefs");
        let mut targets = Vec::new();
        for (index, reference) in spec.target_refs.iter().enumerate() {
            let place = list.element(index);
            let (id, accepted) = found.apply(&metadata.namespace, reference, &settings, functions);
            // A fault of the settings is reported where it is written.
            if !accepted.status && settings.tls.is_ok() {
                place.doubt(context.doubts, format!("the policy is not in force here: {}", accepted.message), "");
            }
            let LocalPolicyTargetReferenceWithSectionName { group, kind, name, section_name } = reference.clone();
            let reference =
                ParentName { group, kind, namespace: metadata.namespace.clone(), name, section_name, port: None };
            targets.push(CheckedTarget { reference, id, conditions: [accepted, settings.resolved.clone()] });
        }
        found.policies.push(CheckedPolicy {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            hostname: spec.validation.hostname.clone(),
            targets,
        });
    }
    found
}

/// Compiles the settings of a policy. Reports their faults as doubts.
fn settings(context: &Context<'_>, scope: &Scope<'_>, namespace: &str, spec: &BackendTLSPolicySpec) -> Settings {
    let BackendTLSPolicyValidation { ca_certificate_refs, hostname, subject_alt_names, well_known_ca_certificates } =
        &spec.validation;
    let validation = scope.field("validation");
    let (roots, resolved) =
        authorities(context, &validation.field("caCertificateRefs"), namespace, ca_certificate_refs);
    let fault = |place: &Scope<'_>, reason, message: String, fix: &str| {
        place.doubt(context.doubts, format!("requests to the targets of the policy fail: {message}"), fix);
        Condition::fails("Accepted", reason, message)
    };
    let tls = || {
        if let Some(option) = spec.options.keys().next() {
            let message = format!("there is no TLS option `{}`", option.escape_debug());
            return Err(fault(&scope.field("options"), "Invalid", message, "remove it"));
        }
        if let Some(other) = well_known_ca_certificates.as_deref().filter(|name| *name != "System") {
            let message = format!("there are no well-known authorities `{}`", other.escape_debug());
            return Err(fault(&validation.field("wellKnownCACertificates"), "Invalid", message, "expected `System`"));
        }
        if well_known_ca_certificates.is_none() && roots.is_empty() {
            // Each reference was reported.
            return Err(Condition::fails("Accepted", "NoValidCACertificate", resolved.message.clone()));
        }
        let server_name = host::normal(hostname).filter(|name| name.parse::<IpAddr>().is_err());
        let Some(server_name) = server_name else {
            let message = format!("`{}` is not the name of a host", hostname.escape_debug());
            return Err(fault(
                &validation.field("hostname"),
                "Invalid",
                message,
                "expected a name, such as api.example.com",
            ));
        };
        let list = validation.field("subjectAltNames");
        let mut names = Vec::new();
        for (index, written) in subject_alt_names.iter().enumerate() {
            names.push(certificate_name(written).ok_or_else(|| {
                let message = format!(
                    "`{}` cannot be in a certificate",
                    written.hostname.as_deref().unwrap_or_default().escape_debug()
                );
                fault(&list.element(index), "Invalid", message, "expected a name or a URI")
            })?);
        }
        let mut roots = roots.iter().cloned();
        Ok(EgressTls {
            ca_file: roots.next(),
            further_roots: roots.collect(),
            server_name: Some(server_name),
            names,
            ..EgressTls::default()
        })
    };
    Settings { tls: tls(), resolved }
}

fn certificate_name(written: &SubjectAltName) -> Option<CertificateName> {
    match written.r#type {
        SubjectAltNameType::Hostname => host::pattern(written.hostname.as_deref()?).map(CertificateName::Host),
        SubjectAltNameType::URI => written.uri.clone().map(CertificateName::Uri),
    }
}

/// The sources of authorities that can be used, and the condition `ResolvedRefs`.
fn authorities(
    context: &Context<'_>,
    list: &Scope<'_>,
    namespace: &str,
    references: &[LocalObjectReference],
) -> (Vec<SecretSource>, Condition) {
    let (mut sources, mut resolved) = (Vec::new(), Condition::holds("ResolvedRefs", "ResolvedRefs"));
    for (index, reference) in references.iter().enumerate() {
        match authority(context, &list.element(index), namespace, reference) {
            Ok(source) => sources.push(source),
            Err((reason, message, fix)) => {
                let warning = format!("the policy trusts no authority by this reference: {message}");
                list.element(index).doubt(context.doubts, warning, fix);
                if resolved.status {
                    resolved = Condition::fails("ResolvedRefs", reason, message);
                }
            }
        }
    }
    (sources, resolved)
}

/// The source of authorities: a StoredSecret of the policy's namespace. Documents for Kubernetes
/// name a ConfigMap or a Secret, whose place it takes.
fn authority(
    context: &Context<'_>,
    place: &Scope<'_>,
    namespace: &str,
    LocalObjectReference { group, kind, name }: &LocalObjectReference,
) -> Result<SecretSource, (&'static str, String, String)> {
    if !matches!((&**group, &**kind), ("", "ConfigMap" | "Secret") | (LENO, "StoredSecret")) {
        let group = if group.is_empty() { String::new() } else { format!("{}/", group.escape_debug()) };
        let message = format!("`{group}{}` cannot hold authorities", kind.escape_debug());
        let fix = "expected a `StoredSecret` of the group `leno.dev`, or a `ConfigMap` or `Secret` in its place";
        return Err(("InvalidKind", message, fix.to_owned()));
    }
    let shown = format!("{namespace}/{}", name.escape_debug());
    let source = SecretSource::Stored(StoredKey { secret: name.clone(), key: AUTHORITIES.to_owned() });
    let invalid = |message: String, fix: String| Err(("InvalidCACertificateRef", message, fix));
    let Some(found) = context.secrets.get(namespace, name) else {
        if context.incomplete {
            return Ok(source);
        }
        if context.unknown_secrets {
            let message = format!("whether the control plane has a StoredSecret `{shown}` is not known");
            place.doubt(context.doubts, message, "store it first, or name the control plane with --server");
            return Ok(source);
        }
        let fix = format!("add one with the key `{AUTHORITIES}`, for example with `leno create-secret {shown}`");
        return invalid(format!("there is no StoredSecret `{shown}`"), fix);
    };
    if !found.keys.contains_key(AUTHORITIES) {
        let message = format!("the StoredSecret `{shown}` has no key `{AUTHORITIES}`");
        return invalid(message, "write the authorities into this key, as PEM".to_owned());
    }
    let is_pem = |value: &SecretBytes| String::from_utf8_lossy(value.expose()).contains(BEGIN);
    if found.values.get(AUTHORITIES).is_some_and(|value| !is_pem(value)) {
        let message = format!("the key `{AUTHORITIES}` of the StoredSecret `{shown}` has no certificate");
        return invalid(message, format!("expected PEM: `{BEGIN}`"));
    }
    Ok(source)
}
