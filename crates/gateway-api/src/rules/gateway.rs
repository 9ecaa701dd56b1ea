//! `Gateway`.

use super::distinct;
use crate::document_value::quoted;
use crate::fault::{Faults, Path};
use crate::pattern::LABEL_KEY;
use crate::resource::{
    AllowedListeners, GatewaySpec, GatewaySpecAddress, HOSTNAME, LabelSelector, Listener, ListenerTLSConfig,
    TLSModeType,
};
use std::net::IpAddr;

pub(super) fn check(spec: &GatewaySpec, at: &Path<'_>, faults: &mut Faults) {
    let listeners = at.field("listeners");
    for (index, listener) in spec.listeners.iter().enumerate() {
        check_listener(listener, &listeners.element(index), faults);
    }
    let socket = |listener: &Listener| Some((listener.port, listener.protocol.clone(), listener.hostname.clone()));
    let message = "a listener with the same port, protocol and hostname is there twice";
    distinct(spec.listeners.iter().map(socket), &listeners, "", message, faults);

    let addresses = at.field("addresses");
    for (index, address) in spec.addresses.iter().enumerate() {
        check_address(address, &addresses.element(index), faults);
    }
    let known = |address: &GatewaySpecAddress| match &address.value {
        Some(value) if matches!(&*address.r#type, "IPAddress" | "Hostname") => {
            Some((address.r#type.clone(), value.clone()))
        }
        _ => None,
    };
    distinct(spec.addresses.iter().map(known), &addresses, "value", "the same address is there twice", faults);

    if let Some(infrastructure) = &spec.infrastructure {
        let path = at.field("infrastructure");
        for (field, texts) in [("labels", &infrastructure.labels), ("annotations", &infrastructure.annotations)] {
            let path = path.field(field);
            for key in texts.keys().filter(|key| !is_key(key)) {
                let message = format!("{} cannot be a key here", quoted(key));
                faults.add(&path.field(key), message, format!("expected {}", LABEL_KEY.words));
            }
        }
    }
    if let Some(AllowedListeners { namespaces }) = &spec.allowed_listeners
        && let Some(selector) = &namespaces.selector
    {
        let path = at.field("allowedListeners");
        let path = path.field("namespaces");
        check_selector(selector, &path.field("selector"), faults);
    }
}

fn check_listener(listener: &Listener, at: &Path<'_>, faults: &mut Faults) {
    let protocol = &*listener.protocol;
    match (protocol, &listener.tls) {
        ("HTTP" | "TCP" | "UDP", Some(_)) => {
            let fix = "remove `tls`, or write `protocol: HTTPS` or `TLS`";
            faults.add(&at.field("tls"), format!("a listener for {protocol} has no TLS"), fix);
        }
        ("HTTPS", Some(ListenerTLSConfig { mode: TLSModeType::Passthrough, .. })) => {
            let fix = "write `mode: Terminate`, or `protocol: TLS`";
            faults.add(&at.field("tls").field("mode"), "a listener for HTTPS ends TLS itself", fix);
        }
        ("TLS", None) => {
            faults.add(at, "a listener for TLS needs `tls`", "add `tls: {mode: Terminate}` or `{mode: Passthrough}`");
        }
        _ => {}
    }
    if matches!(protocol, "TCP" | "UDP") && listener.hostname.is_some() {
        let message = format!("connections of {protocol} name no host");
        faults.add(&at.field("hostname"), message, "remove it");
    }
    if let Some(tls) = &listener.tls
        && tls.mode == TLSModeType::Terminate
        && tls.certificate_refs.is_empty()
        && tls.options.is_empty()
    {
        let fix = "add `options: {leno.dev/certificates: mesh}` for those of the Mesh document, or `certificateRefs`";
        faults.add(&at.field("tls"), "there are no certificates", fix);
    }
    if let Some(selector) = &listener.allowed_routes.namespaces.selector {
        let path = at.field("allowedRoutes");
        let path = path.field("namespaces");
        check_selector(selector, &path.field("selector"), faults);
    }
}

/// An address may be left to the implementation.
fn check_address(address: &GatewaySpecAddress, at: &Path<'_>, faults: &mut Faults) {
    let Some(value) = &address.value else { return };
    let path = at.field("value");
    match &*address.r#type {
        "IPAddress" if value.parse::<IpAddr>().is_err() => {
            faults.add(
                &path,
                format!("{} is no IP address", quoted(value)),
                "write one such as 192.0.2.1 or 2001:db8::1",
            );
        }
        "Hostname" if !value.is_empty() && !HOSTNAME.matches(value) => {
            faults.add(&path, format!("{} is no host", quoted(value)), format!("expected {}", HOSTNAME.words));
        }
        _ => {}
    }
}

/// API servers accept any operator. One that is not known would select other namespaces than meant.
fn check_selector(selector: &LabelSelector, at: &Path<'_>, faults: &mut Faults) {
    const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];
    let path = at.field("matchExpressions");
    for (index, expression) in selector.match_expressions.iter().enumerate() {
        let path = path.element(index);
        let operator = &*expression.operator;
        match (operator, expression.values.is_empty()) {
            ("In" | "NotIn", true) => {
                faults.add(&path.field("values"), format!("`{operator}` needs values"), "write at least one");
            }
            ("Exists" | "DoesNotExist", false) => {
                faults.add(&path.field("values"), format!("`{operator}` has no values"), "remove them");
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            _ => {
                let message = format!("{} is no operator", quoted(operator));
                faults.wrong_name(&path.field("operator"), message, operator, OPERATORS);
            }
        }
    }
}

fn is_key(key: &str) -> bool {
    LABEL_KEY.matches(key) && key.split('/').next().is_none_or(|domain| domain.len() < 253)
}
