use crate::dialer::PodDialer;
use crate::error::CaptureError;
use crate::interfaces::PodInterfaces;
use crate::listeners::PodListeners;
use crate::network::PodNetwork;
use crate::release::{leave, release, stop};
use crate::visitors::Visitors;
use leno_ebpf::{DatagramPeer, DropReason, Network, PodState, Pods};
use leno_model::PodUid;
use std::net::IpAddr;
use std::sync::Arc;

/// The most blocks of datagram peers that one pod may have.
const MAX_PEERS: usize = 1024;

/// A pod to capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCapture {
    /// Its UID.
    pub uid: PodUid,
    /// Its addresses, as the cluster knows them. The first of each family is the source of captured
    /// connections. Without any, those of its interfaces count.
    pub addresses: Vec<IpAddr>,
    /// Whether the kernel drops everything that does not pass the agent.
    pub enforced: bool,
}

/// A captured pod. If it is dropped without [`CapturedPod::release`], the pod has no agent until the
/// pod is enrolled again.
#[derive(Debug)]
pub struct CapturedPod {
    pods: Arc<Pods>,
    unenforceable: Option<Arc<str>>,
    uid: PodUid,
    network: PodNetwork,
    cookie: Network,
    /// That of these listeners.
    generation: u8,
    outbound: PodListeners,
    inbound: PodListeners,
    dialer: PodDialer,
    interfaces: Arc<PodInterfaces>,
}

impl CapturedPod {
    pub(crate) fn new(
        (visitors, pods): (Visitors, Arc<Pods>),
        unenforceable: Option<Arc<str>>,
        uid: PodUid,
        network: PodNetwork,
        (cookie, generation): (Network, u8),
        [outbound, inbound]: [PodListeners; 2],
        interfaces: PodInterfaces,
    ) -> Self {
        let named = (uid.clone(), network.clone());
        let dialer = PodDialer::new((visitors, pods.clone()), named, (cookie, generation));
        let interfaces = Arc::new(interfaces);
        Self { pods, unenforceable, uid, network, cookie, generation, outbound, inbound, dialer, interfaces }
    }

    /// The pod's UID.
    pub fn uid(&self) -> &PodUid {
        &self.uid
    }

    /// The listeners that get connections of the pod's programs.
    pub fn outbound(&self) -> &PodListeners {
        &self.outbound
    }

    /// The listeners that get connections to the pod.
    pub fn inbound(&self) -> &PodListeners {
        &self.inbound
    }

    /// Opens connections in the pod's network.
    pub fn dialer(&self) -> &PodDialer {
        &self.dialer
    }

    /// Its interfaces. Someone has to follow them.
    pub fn interfaces(&self) -> &Arc<PodInterfaces> {
        &self.interfaces
    }

    /// Sets whether the kernel drops everything that does not pass the agent. Connections that have
    /// not passed the agent end by that.
    ///
    /// # Errors
    /// This kernel cannot do it.
    pub fn set_enforced(&self, enforced: bool) -> Result<(), CaptureError> {
        if let (true, Some(reason)) = (enforced, &self.unenforceable) {
            return Err(CaptureError::NotEnforceable { uid: self.uid.clone(), reason: reason.to_string() });
        }
        if let Some(state) = self.pods.state(self.cookie)? {
            if enforced && !state.enforced {
                self.interfaces.enforce()?;
            }
            self.pods.set_state(self.cookie, PodState { enforced, ..state })?;
        }
        Ok(())
    }

    /// Sets the peers with which the pod's programs may exchange datagrams while it is enforced, such as
    /// the cluster's name server. A pod begins without any.
    ///
    /// # Errors
    /// There are too many.
    pub fn set_datagram_peers(&self, peers: &[DatagramPeer]) -> Result<(), CaptureError> {
        if peers.len() > MAX_PEERS {
            return Err(CaptureError::TooManyPeers { count: peers.len(), max: MAX_PEERS });
        }
        Ok(self.pods.set_peers(self.cookie, peers)?)
    }

    /// How many packets the kernel has dropped, by reason. Reasons without any are left out.
    pub fn dropped(&self) -> Vec<(DropReason, u64)> {
        let count = |reason| (reason, self.pods.dropped(self.cookie, reason).unwrap_or_default());
        DropReason::ALL.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
    }

    /// Whether another agent's listeners get the pod's connections now, or it is not captured any more.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn is_handed_over(&self) -> Result<bool, CaptureError> {
        let state = self.pods.state(self.cookie)?;
        Ok(state.is_none_or(|state| !state.captured || state.generation != self.generation))
    }

    /// Captures no further connections: they go their way without the agent. The listeners still
    /// have those that arrived before. It takes some milliseconds.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn stop(&self) -> Result<(), CaptureError> {
        stop(&self.pods, self.cookie)
    }

    /// Takes no further connections, because the agent ends. A permissive pod goes on without the agent,
    /// and new connections of an enforced one wait for the next agent. Connections that are open, or
    /// have arrived, go on. It takes some milliseconds.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn leave(&self) -> Result<(), CaptureError> {
        if self.is_handed_over()? {
            return Ok(());
        }
        leave(&self.pods, self.cookie)
    }

    /// Puts everything back as it was before the capture. Connections that are open through the
    /// agent end by this: so call [`CapturedPod::stop`] first and wait for their end.
    ///
    /// # Errors
    /// The kernel refuses a step. [`crate::Capture::release`] tries again.
    pub fn release(self) -> Result<(), CaptureError> {
        self.interfaces.end();
        release(&self.pods, &self.network, &self.uid)
    }
}
