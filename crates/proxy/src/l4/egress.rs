//! Connects to external services for TCP connections.

use super::Stop;
use crate::pipeline::worker::Worker;
use crate::state::egress::EgressTarget;
use leno_runtime::keepalive;
use std::net::{IpAddr, SocketAddr};
use tokio::net::TcpStream;

/// Limit on the addresses tried for one connection.
const MOST_TRIED: usize = 4;

/// Connects to `host`, which is one of its names or addresses. Returns the address as well.
pub(super) async fn connect(
    worker: &Worker,
    external: &EgressTarget,
    host: &str,
    port: u16,
) -> Result<(TcpStream, IpAddr), Stop> {
    let refused = &external.egress.tls.refused;
    if !refused.is_empty() {
        return Err(Stop::Refused(refused.clone()));
    }
    let node = &worker.node;
    let addresses = external.addresses(&node.resolver, &node.machines, host).await;
    let addresses = addresses.map_err(|failure| Stop::Failed(failure.to_string()))?;
    let limit = external.egress.connect_timeout;
    let mut failed = String::new();
    for ip in addresses.into_iter().take(MOST_TRIED) {
        let address = SocketAddr::new(ip, port);
        if node.machines.is_gateway(address) {
            failed = format!("the gateway of this node is at {address}");
            continue;
        }
        match tokio::time::timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Small messages must not wait for acknowledgements. If it cannot be set, the
                // connection is already gone.
                let _ = stream.set_nodelay(true);
                let silence = worker.snapshot().mesh.limits.upstream.tcp_keep_alive();
                let _ = keepalive::enable(&stream, address, silence);
                return Ok((stream, ip));
            }
            Ok(Err(error)) => failed = format!("no connection to {address}: {error}"),
            Err(_) => failed = format!("no connection to {address} within {limit:?}"),
        }
    }
    Err(Stop::Failed(failed))
}
