//! Instances of the functions of a test's mesh.

use crate::names::id;
use leno_model::FunctionId;
use leno_proxy::instances::{Acquire, Connect, InstanceProof, Instances, Lease, Unavailable, Unproven};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Instances at fixed addresses, taken in turn.
#[derive(Default)]
pub(crate) struct FixedInstances {
    addresses: Mutex<HashMap<FunctionId, Vec<SocketAddr>>>,
    turn: AtomicUsize,
    /// Leases in use.
    pub leased: Arc<AtomicUsize>,
    /// The number of requests for an instance.
    pub asked: AtomicUsize,
    /// Addresses without capacity for another request.
    pub busy: Mutex<Vec<SocketAddr>>,
    /// The process that listens in place of the instances.
    pub stranger: Mutex<Option<String>>,
    /// The addresses to avoid in the latest request for an instance.
    avoided: Mutex<Vec<SocketAddr>>,
    /// The functions have left this node.
    pub have_left: AtomicBool,
}

/// Counts one lease until it is dropped. The text describes the process that was found at the
/// instance's address.
struct LeaseCount(Arc<AtomicUsize>, Option<String>);

impl InstanceProof for LeaseCount {
    fn connect(&self, address: SocketAddr) -> Connect<'_> {
        Box::pin(async move {
            let stream = tokio::net::TcpStream::connect(address).await?;
            self.1.clone().map_or(Ok(stream), |stranger| Err(Unproven(stranger).into()))
        })
    }

    fn connect_to<'a>(&'a self, port: u16, _: Option<&'a dyn leno_proxy::kernel::Kernel>) -> Connect<'a> {
        Box::pin(async move { Ok(tokio::net::TcpStream::connect(("127.0.0.1", port)).await?) })
    }
}

impl FixedInstances {
    pub(crate) fn new(addresses: HashMap<FunctionId, Vec<SocketAddr>>) -> Self {
        Self { addresses: Mutex::new(addresses), ..Self::default() }
    }

    pub(crate) fn set(&self, name: &str, addresses: &[SocketAddr]) {
        self.addresses.lock().unwrap().insert(id(name), addresses.to_vec());
    }

    /// Whether the latest request for an instance avoids this address.
    pub(crate) fn asked_without(&self, address: SocketAddr) -> bool {
        self.avoided.lock().unwrap().contains(&address)
    }
}

impl Drop for LeaseCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Instances for FixedInstances {
    fn try_acquire(&self, function: &FunctionId, _: u32, avoid: &[SocketAddr]) -> Option<Lease> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        *self.avoided.lock().unwrap() = avoid.to_vec();
        let addresses = self.addresses.lock().unwrap();
        let all = addresses.get(function)?;
        let others: Vec<_> = all.iter().filter(|address| !avoid.contains(address)).collect();
        let some: Vec<_> = if others.is_empty() { all.iter().collect() } else { others };
        let busy = self.busy.lock().unwrap();
        let some: Vec<_> = some.into_iter().filter(|address| !busy.contains(address)).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let address = **some.get(turn % some.len().max(1))?;
        self.leased.fetch_add(1, Ordering::Relaxed);
        let guard = Box::new(LeaseCount(self.leased.clone(), self.stranger.lock().unwrap().clone()));
        Some(Lease { address, instance: Some(format!("{}-1", function.name).into()), guard })
    }

    fn acquire<'a>(
        &'a self,
        function: &'a FunctionId,
        revision: u32,
        avoid: &'a [SocketAddr],
        _: Option<tokio::time::Instant>,
    ) -> Acquire<'a> {
        Box::pin(async move {
            // Instances that are "starting" appear when the test sets their addresses.
            for _ in 0..1000 {
                if self.have_left.load(Ordering::Relaxed) {
                    return Err(Unavailable::Unknown);
                }
                if let Some(lease) = self.try_acquire(function, revision, avoid) {
                    return Ok(lease);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(Unavailable::Timeout(Duration::from_secs(5)))
        })
    }

    fn count(&self, function: &FunctionId) -> u32 {
        self.addresses.lock().unwrap().get(function).map_or(0, |addresses| addresses.len() as u32)
    }

    fn may_start(&self, _: &FunctionId) -> bool {
        !self.have_left.load(Ordering::Relaxed)
    }
}
