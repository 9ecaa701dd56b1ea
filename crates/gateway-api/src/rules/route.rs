//! Parts that all routes have, and `TLSRoute` and `TCPRoute`.

use super::distinct;
use crate::document_value::quoted;
use crate::fault::{Faults, Path};
use crate::resource::{
    BackendObjectReference, BackendRef, CookieLifetimeType, GRPCBackendRef, HTTPBackendRef, NAME, ParentReference,
    SessionPersistence, SessionPersistenceType, TCPRouteSpec, TLSRouteSpec,
};
use std::net::IpAddr;

pub(super) fn check_tls(spec: &TLSRouteSpec, at: &Path<'_>, faults: &mut Faults) {
    check_parents(&spec.parent_refs, at, faults);
    let hostnames = at.field("hostnames");
    for (index, hostname) in spec.hostnames.iter().enumerate() {
        // The schema has checked the rest: a name, perhaps after `*.`.
        if hostname.parse::<IpAddr>().is_ok() || !NAME.matches(hostname.trim_start_matches("*.")) {
            let message = format!("{} is no host that TLS can name", quoted(hostname));
            faults.add(
                &hostnames.element(index),
                message,
                "expected a host such as `shop.example` or `*.shop.example`",
            );
        }
    }
    let rules = at.field("rules");
    check_names(spec.rules.iter().map(|rule| rule.name.as_deref()), &rules, faults);
    for (index, rule) in spec.rules.iter().enumerate() {
        check_backends(&rule.backend_refs, &rules.element(index), faults);
    }
}

pub(super) fn check_tcp(spec: &TCPRouteSpec, at: &Path<'_>, faults: &mut Faults) {
    check_parents(&spec.parent_refs, at, faults);
    let rules = at.field("rules");
    check_names(spec.rules.iter().map(|rule| rule.name.as_deref()), &rules, faults);
    for (index, rule) in spec.rules.iter().enumerate() {
        check_backends(&rule.backend_refs, &rules.element(index), faults);
    }
}

/// Several references to one parent have to name different parts of it.
pub(super) fn check_parents(parents: &[ParentReference], at: &Path<'_>, faults: &mut Faults) {
    let path = at.field("parentRefs");
    fn parent(of: &ParentReference) -> (&str, &str, &str, Option<&str>) {
        (&of.group, &of.kind, &of.name, of.namespace.as_deref())
    }
    for (index, reference) in parents.iter().enumerate() {
        let earlier = parents[..index].iter().position(|other| parent(other) == parent(reference));
        let Some(first) = earlier else { continue };
        let other = &parents[first];
        if other.section_name.is_some() != reference.section_name.is_some()
            || other.port.is_some() != reference.port.is_some()
        {
            let message = format!("element {first} refers to the same parent, with other fields");
            faults.add(&path.element(index), message, "write `sectionName` or `port` in both");
        }
    }
    let part = |of: &ParentReference| {
        let names = [Some(&of.group), Some(&of.kind), Some(&of.name), of.namespace.as_ref(), of.section_name.as_ref()];
        Some((names.map(Option::<&String>::cloned), of.port))
    };
    distinct(parents.iter().map(part), &path, "", "a reference to the same part of the parent is there twice", faults);
}

pub(super) fn check_names<'n>(names: impl Iterator<Item = Option<&'n str>>, rules: &Path<'_>, faults: &mut Faults) {
    distinct(names, rules, "name", "a rule of this name is there twice", faults);
}

/// A reference to something that requests can go to.
pub(super) trait Reference {
    /// Group, kind, and whether there is a port.
    fn target(&self) -> (&str, &str, bool);
}

macro_rules! references {
    ($($type:ty),*) => {$(
        impl Reference for $type {
            fn target(&self) -> (&str, &str, bool) {
                (&self.group, &self.kind, self.port.is_some())
            }
        }
    )*};
}
references!(BackendRef, BackendObjectReference, HTTPBackendRef, GRPCBackendRef);

/// A Service has several ports.
pub(super) fn check_backend(reference: &impl Reference, at: &Path<'_>, faults: &mut Faults) {
    if let ("", "Service", false) = reference.target() {
        let fix = "add `port`, or write `group: leno.dev, kind: Function`, which needs none";
        faults.add(at, "a reference to a Service needs a port", fix);
    }
}

/// The back ends of a rule.
pub(super) fn check_backends(references: &[impl Reference], rule: &Path<'_>, faults: &mut Faults) {
    let path = rule.field("backendRefs");
    for (index, reference) in references.iter().enumerate() {
        check_backend(reference, &path.element(index), faults);
    }
}

pub(super) fn check_session(session: Option<&SessionPersistence>, rule: &Path<'_>, faults: &mut Faults) {
    let Some(SessionPersistence { cookie_config: Some(cookie), absolute_timeout, r#type, .. }) = session else {
        return;
    };
    let path = rule.field("sessionPersistence");
    if *r#type != SessionPersistenceType::Cookie {
        faults.add(
            &path.field("cookieConfig"),
            "sessions of another type have no cookie",
            "write `type: Cookie`, or remove it",
        );
    }
    if cookie.lifetime_type == CookieLifetimeType::Permanent && absolute_timeout.is_none() {
        faults.add(&path, "a permanent cookie needs an end", "add `absoluteTimeout`");
    }
}

/// The CRD's bound on the matches of all rules of a route together.
pub(super) fn check_matches(counts: impl Iterator<Item = usize>, rules: &Path<'_>, faults: &mut Faults) {
    let count: usize = counts.sum();
    if count > 128 {
        faults.add(rules, format!("{count} matches in all rules"), "expected at most 128: divide the route");
    }
}
