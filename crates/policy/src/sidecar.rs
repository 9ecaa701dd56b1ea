//! Policy 2: which ports and protocols a sidecar serves, and which header fields it edits.

use crate::input::RequestInput;
use crate::outcome::{Denial, HeaderEdit, PolicyKind};
use crate::spec::{HeaderRule, Protocol, Sidecar};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Whether it serves every port and protocol, and edits no request.
pub(crate) fn is_unrestricted(sidecar: &Sidecar) -> bool {
    let Sidecar { name: _, ports, protocols, request_headers, response_headers: _, judge_each_request: _ } = sidecar;
    ports.is_empty() && protocols.is_empty() && request_headers.is_empty()
}

/// Refuses ports and protocols that are not served.
pub(crate) fn check(sidecar: &Sidecar, input: &RequestInput<'_>) -> Result<(), Denial> {
    check_port(sidecar, input.port)?;
    if !sidecar.protocols.is_empty() && !sidecar.protocols.contains(&input.protocol) {
        let served: Vec<&str> = sidecar.protocols.iter().copied().map(words).collect();
        return Err(refused(
            sidecar,
            format!("protocols: {} is none of [{}]", words(input.protocol), served.join(", ")),
        ));
    }
    Ok(())
}

/// Refuses ports that are not served.
pub(crate) fn check_port(sidecar: &Sidecar, port: u16) -> Result<(), Denial> {
    if sidecar.ports.is_empty() || sidecar.ports.contains(&port) {
        return Ok(());
    }
    Err(refused(sidecar, format!("ports: {port} is none of {:?}", sidecar.ports)))
}

/// Edits to every forwarded request.
pub(crate) fn request_edits(sidecar: &Sidecar, edits: &mut Vec<HeaderEdit>) {
    edits.extend(sidecar.request_headers.iter().map(edit));
}

/// Edits to a response, by its status.
pub fn response_edits(sidecar: &Sidecar, status: u16) -> Vec<HeaderEdit> {
    let applies =
        |ranges: &[(u16, u16)]| ranges.is_empty() || ranges.iter().any(|(low, high)| (*low..=*high).contains(&status));
    sidecar
        .response_headers
        .iter()
        .filter(|rule| applies(&rule.statuses))
        .flat_map(|rule| rule.edits.iter().map(edit))
        .collect()
}

fn edit(rule: &HeaderRule) -> HeaderEdit {
    match rule {
        HeaderRule::Set(name, value) => HeaderEdit::Set(name.clone(), value.clone()),
        HeaderRule::Append(name, value) => HeaderEdit::Append(name.clone(), value.clone()),
        HeaderRule::Remove(name) => HeaderEdit::Remove(name.clone()),
    }
}

fn words(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 => "http1",
        Protocol::Http2 => "http2",
        Protocol::Grpc => "grpc",
        Protocol::WebSocket => "websocket",
    }
}

fn refused(sidecar: &Sidecar, clause: String) -> Denial {
    Denial {
        status: 403,
        policy: PolicyKind::Sidecar,
        rule: sidecar.name.to_string(),
        default: false,
        clause,
        headers: Vec::new(),
    }
}
