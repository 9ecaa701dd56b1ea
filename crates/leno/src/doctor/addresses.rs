//! Listeners of the Mesh document: whether a node could bind them.

use super::Finding;
use leno_model::{AdminListener, MeshConfig};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

/// Tries to bind each listener for a moment.
pub(super) fn findings(mesh: &MeshConfig) -> Vec<Finding> {
    let admin = match mesh.admin {
        AdminListener::Address(address, _) => Some(address),
        AdminListener::Socket(_) | AdminListener::Usual => None,
    };
    let listeners = [
        ("gateway.http", mesh.gateway_http),
        ("gateway.https", mesh.gateway_https.as_ref().map(|tls| tls.listen)),
        ("listeners.outbound", Some(mesh.outbound)),
        ("listeners.inbound", Some(mesh.inbound)),
        ("listeners.admin", admin),
    ];
    let listeners = listeners.into_iter().filter_map(|(field, address)| Some((field, address?)));
    listeners.map(|(field, address)| finding(field, address)).collect()
}

fn finding(field: &str, address: SocketAddr) -> Finding {
    let check = format!("spec.{field}");
    let fix = match TcpListener::bind(address).map_err(|error| (error.kind(), error)) {
        Ok(_) => return Finding::ok(check, format!("{address} is free")),
        Err((ErrorKind::AddrInUse, error)) => {
            let fix = format!(
                "end the process that listens there (ss -ltnp 'sport = :{}'), or choose another port",
                address.port()
            );
            (error, fix)
        }
        Err((ErrorKind::AddrNotAvailable, error)) => {
            (error, "choose an address of this machine (ip address), or 0.0.0.0".to_owned())
        }
        Err((ErrorKind::PermissionDenied, error)) => {
            let fix = format!("start as root, or sysctl net.ipv4.ip_unprivileged_port_start={}", address.port());
            (error, fix)
        }
        Err((_, error)) => (error, "choose another address".to_owned()),
    };
    Finding::failed(check, format!("{address}: {}", fix.0), fix.1)
}
