//! The capture of this machine's pods by the kernel.

use super::capture::{Capture, PodHandle};
use leno_model::{Pod, PodMode, PodUid};
use leno_pods::{CaptureError, CaptureOptions, CapturedPod, DatagramPeer, PodCapture, PodDialer};
use leno_proxy::Machines;
use leno_proxy::pods::{Binding, BoundSocket, Dial, PodNetwork};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

/// The file that names the resolvers of the cluster.
const RESOLVERS: &str = "/etc/resolv.conf";
/// The port of name servers.
const DNS: u16 = 53;

/// Captures the pods of this machine.
pub struct MachineCapture {
    capture: leno_pods::Capture,
    /// The name servers, which enforced pods reach by UDP.
    resolvers: Vec<DatagramPeer>,
}

impl MachineCapture {
    /// Puts the kernel's programs into force, and adopts the pods that an earlier process has
    /// captured.
    ///
    /// # Errors
    /// The machine lacks something, which the error names.
    pub fn start(options: CaptureOptions) -> Result<Self, CaptureError> {
        let capture = leno_pods::Capture::start(options)?;
        if let Some(reason) = capture.unenforceable() {
            tracing::warn!(reason, "enforced pods cannot be captured here");
        }
        let text = fs::read_to_string(RESOLVERS).unwrap_or_default();
        Ok(Self { capture, resolvers: resolvers(&text) })
    }
}

/// The name servers of a `resolv.conf`.
fn resolvers(text: &str) -> Vec<DatagramPeer> {
    let address = |line: &str| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok();
    let peer =
        |address: IpAddr| DatagramPeer { address, prefix: if address.is_ipv4() { 32 } else { 128 }, port: Some(DNS) };
    text.lines().filter_map(address).map(peer).collect()
}

impl Capture for MachineCapture {
    fn enrol(&self, pod: &Pod, network: Option<&Path>) -> io::Result<Arc<dyn PodHandle>> {
        let network = match network {
            Some(path) => leno_pods::PodNetwork::at(path),
            None => self.capture.network_of(&pod.uid),
        };
        let wanted = PodCapture {
            uid: pod.uid.clone(),
            addresses: pod.addresses.clone(),
            enforced: pod.mode == PodMode::Enforced,
        };
        let captured =
            network.and_then(|network| self.capture.enrol(network, &wanted)).map_err(|error| match error {
                CaptureError::NoProcess(_) => io::Error::new(ErrorKind::NotFound, error),
                error => io::Error::other(error),
            })?;
        captured.set_datagram_peers(&self.resolvers).map_err(io::Error::other)?;
        Ok(Arc::new(MachinePod(Mutex::new(Some(captured)))))
    }

    fn caller(&self, client: SocketAddr) -> Option<PodUid> {
        self.capture.caller(client).unwrap_or_else(|error| {
            tracing::warn!(%client, %error, "the kernel does not say which pod has opened a connection");
            None
        })
    }

    fn stop_others(&self, pods: &BTreeSet<PodUid>) {
        self.others(pods, |capture, network, _| capture.stop(network));
    }

    fn release_others(&self, pods: &BTreeSet<PodUid>) -> bool {
        self.others(pods, leno_pods::Capture::release)
    }
}

impl MachineCapture {
    /// Does something to each pod that an earlier process has captured, except these. Returns whether that
    /// succeeded for all of them.
    fn others(
        &self,
        pods: &BTreeSet<PodUid>,
        act: impl Fn(&leno_pods::Capture, &leno_pods::PodNetwork, &PodUid) -> Result<(), CaptureError>,
    ) -> bool {
        let captured = match self.capture.captured() {
            Ok(captured) => captured,
            Err(error) => {
                tracing::warn!(%error, "the pods of an earlier process are not known");
                return false;
            }
        };
        let mut all = true;
        for uid in captured.iter().filter(|uid| !pods.contains(*uid)) {
            let network = self.capture.network_of(uid);
            match network.and_then(|network| act(&self.capture, &network, uid)) {
                // Without a process, nothing is left of its network.
                Ok(()) | Err(CaptureError::NoProcess(_)) => {}
                Err(error) => {
                    tracing::warn!(pod = %uid, %error, "a pod that left the mesh is not released");
                    all = false;
                }
            }
        }
        all
    }
}

/// A pod of this machine; `None`: it was released.
struct MachinePod(Mutex<Option<CapturedPod>>);

impl MachinePod {
    fn with<T>(&self, act: impl FnOnce(&CapturedPod) -> io::Result<T>) -> io::Result<T> {
        let captured = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(captured.as_ref().ok_or(io::ErrorKind::NotConnected)?)
    }
}

impl PodHandle for MachinePod {
    fn listeners(&self) -> io::Result<(Vec<TcpListener>, Vec<TcpListener>)> {
        let clone = |listeners: &leno_pods::PodListeners| {
            listeners.iter().map(TcpListener::try_clone).collect::<io::Result<_>>()
        };
        self.with(|captured| Ok((clone(captured.outbound())?, clone(captured.inbound())?)))
    }

    fn network(&self, machines: &Arc<Machines>) -> io::Result<Arc<dyn PodNetwork>> {
        let machines = machines.clone();
        self.with(|captured| {
            let network: Arc<dyn PodNetwork> = Arc::new(MachineNetwork { dialer: captured.dialer().clone(), machines });
            Ok(network)
        })
    }

    fn follow_interfaces(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let interfaces = self.with(|captured| Ok((captured.uid().clone(), captured.interfaces().clone())));
        Box::pin(async move {
            let Ok((uid, interfaces)) = interfaces else { return };
            let warn = |error: &dyn fmt::Display| {
                tracing::warn!(pod = %uid, %error, "an interface that the pod got later is not captured");
            };
            if let Err(error) = interfaces.follow(|error| warn(&error)).await {
                warn(&error);
            }
        })
    }

    fn set(&self, pod: &Pod) -> io::Result<()> {
        self.with(|captured| captured.set_enforced(pod.mode == PodMode::Enforced).map_err(io::Error::other))
    }

    fn is_handed_over(&self) -> bool {
        self.with(|captured| captured.is_handed_over().map_err(io::Error::other)).unwrap_or(true)
    }

    fn refused(&self) -> Vec<(&'static str, u64)> {
        let counts = self.with(|captured| Ok(captured.dropped())).unwrap_or_default();
        counts.into_iter().map(|(reason, count)| (reason.name(), count)).collect()
    }

    fn stop(&self) -> io::Result<()> {
        self.with(|captured| captured.stop().map_err(io::Error::other))
    }

    fn leave(&self) -> io::Result<()> {
        self.with(|captured| captured.leave().map_err(io::Error::other))
    }

    fn release(&self) -> io::Result<()> {
        let captured = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        captured.map_or(Ok(()), |captured| captured.release().map_err(io::Error::other))
    }
}

/// The network of a pod of this machine.
struct MachineNetwork {
    dialer: PodDialer,
    machines: Arc<Machines>,
}

impl PodNetwork for MachineNetwork {
    fn bind_out(&self, destination: SocketAddr) -> Binding {
        let dialer = self.dialer.clone();
        Box::pin(async move {
            let leno_pods::BoundSocket { socket, local, destination, known } = dialer.bind_out(destination).await?;
            Ok(BoundSocket { local, dial: Box::pin(socket.connect(destination)), known: Box::new(known) })
        })
    }

    fn connect_in(&self, called: SocketAddr, client: SocketAddr) -> Dial {
        let dialer = self.dialer.clone();
        Box::pin(async move { dialer.connect_in(called, client).await })
    }

    fn is_of_node(&self, address: IpAddr) -> bool {
        self.machines.is_own(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_datagram_peers() {
        let text = "search a.b\nnameserver 10.96.0.10\n# nameserver 10.0.0.1\n nameserver fd00::a \noptions ndots:5\nnameserver x\n";
        let found: Vec<_> = resolvers(text).into_iter().map(|peer| (peer.address.to_string(), peer.prefix)).collect();
        assert_eq!(found, [("10.96.0.10".to_owned(), 32), ("fd00::a".to_owned(), 128)]);
    }
}
