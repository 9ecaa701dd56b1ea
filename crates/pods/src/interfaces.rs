//! Interfaces that a pod gets after its capture.

use crate::error::{CaptureError, Explain};
use crate::network::PodNetwork;
use crate::routes::Routes;
use leno_ebpf::{Network, Pods};
use leno_model::PodUid;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::task::spawn_blocking;

/// `RTMGRP_LINK`: the kernel tells of interfaces that come, change and go.
const LINKS: u32 = 1;
/// Pause between two looks at the interfaces, and after a failure. Programs of a pod may cause as many
/// messages as they like.
const PAUSE: Duration = Duration::from_millis(100);
const AGAIN: Duration = Duration::from_secs(5);
/// Bytes of a message that are read. It says nothing that the list of interfaces does not.
const ENOUGH: usize = 64;

/// The interfaces of a captured pod.
#[derive(Debug)]
pub struct PodInterfaces {
    kernel: Socket,
    pods: Arc<Pods>,
    uid: PodUid,
    network: PodNetwork,
    cookie: Network,
    /// That of the agent's listeners in the network.
    generation: u8,
    /// Those that are captured; `None`: the pod was released.
    captured: Mutex<Option<BTreeSet<u32>>>,
}

/// A socket on which the kernel tells of the interfaces in the network of the calling thread.
pub(crate) fn messages() -> Result<Socket, CaptureError> {
    let open = || {
        let mut kernel = Socket::new(NETLINK_ROUTE)?;
        kernel.bind(&SocketAddr::new(0, LINKS))?;
        kernel.set_non_blocking(true)?;
        Ok(kernel)
    };
    open().explain("a netlink socket for interfaces")
}

impl PodInterfaces {
    /// `kernel`: from before the interfaces were listed.
    pub(crate) fn new(
        kernel: Socket,
        pods: Arc<Pods>,
        (uid, network): (PodUid, PodNetwork),
        (cookie, generation): (Network, u8),
        captured: BTreeSet<u32>,
    ) -> Self {
        Self { kernel, pods, uid, network, cookie, generation, captured: Mutex::new(Some(captured)) }
    }

    /// Captures the interfaces that the pod gets, until it is released. `fail` gets the errors, after
    /// which it goes on.
    ///
    /// # Errors
    /// The runtime cannot wait for the kernel's messages.
    pub async fn follow(self: Arc<Self>, fail: impl Fn(CaptureError)) -> io::Result<()> {
        #[expect(deprecated, reason = "the socket is owned by this, and stays open; `register` is unsafe")]
        let kernel = AsyncFd::new(self.clone())?;
        loop {
            let mut ready = kernel.readable().await?;
            while let Ok(Ok(_)) = ready.try_io(|one| one.get_ref().kernel.recv(&mut &mut [0_u8; ENOUGH][..], 0)) {}
            let look = self.clone();
            match spawn_blocking(move || look.capture()).await.map_err(io::Error::other)? {
                Ok(true) => tokio::time::sleep(PAUSE).await,
                Ok(false) => return Ok(()),
                Err(error) => {
                    fail(error);
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    /// Captures those that are not. Returns whether the pod is still this agent's.
    fn capture(&self) -> Result<bool, CaptureError> {
        let mut captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = &mut *captured else { return Ok(false) };
        let state = self.pods.state(self.cookie)?;
        if state.is_none_or(|state| state.generation != self.generation) {
            return Ok(false);
        }
        *known = self.capture_new(known, state.is_some_and(|state| state.enforced))?;
        Ok(true)
    }

    /// Has the kernel know the programs for packets of an enforced pod at all interfaces.
    pub(crate) fn enforce(&self) -> Result<(), CaptureError> {
        let mut captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        if captured.is_some() {
            *captured = Some(self.capture_new(&BTreeSet::new(), true)?);
        }
        Ok(())
    }

    /// Captures the interfaces that are not known. Returns all.
    fn capture_new(&self, known: &BTreeSet<u32>, enforced: bool) -> Result<BTreeSet<u32>, CaptureError> {
        self.network.run(|| {
            let routes = Routes::open()?;
            let found: BTreeSet<u32> = routes.interfaces()?.into_iter().collect();
            let new: Vec<u32> = found.difference(known).copied().collect();
            if !new.is_empty() {
                self.pods.add_addresses(self.cookie, &routes.addresses()?)?;
                self.pods.attach(self.uid.as_str(), self.cookie, self.network.descriptor(), &new, enforced)?;
            }
            Ok(found)
        })
    }

    /// The pod is released, and none of its interfaces captured any more.
    pub(crate) fn end(&self) {
        *self.captured.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl std::os::fd::AsRawFd for PodInterfaces {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.kernel.as_raw_fd()
    }
}
