use super::{Pods, Side, listener_key, octets};
use crate::{Error, Network};
use libbpf_rs::{MapCore, MapFlags};
use std::net::SocketAddr;
use std::sync::Arc;

/// The longest UID of a pod, in bytes.
const UID: usize = 64;
/// Where the UID is in `struct caller` of the eBPF program, after its network, generation and length.
const UID_AT: usize = 16;

/// Has all agents of this node know the pod of a connection that this one opens. It ends when this is
/// dropped, or with the process.
#[derive(Debug)]
pub struct KnownCaller {
    pods: Arc<Pods>,
    key: [u8; 20],
}

impl Drop for KnownCaller {
    fn drop(&mut self) {
        // It fails if the pod was released meanwhile.
        let _ = self.pods.callers.delete(&self.key);
    }
}

impl Pods {
    /// Has all agents of this node know that the pod opens a connection with this local address.
    /// `generation`: that of this agent's listeners in the pod's network.
    ///
    /// # Errors
    /// The kernel has no memory, or too many connections of pods are open.
    pub fn add_caller(
        self: &Arc<Self>,
        local: SocketAddr,
        (pod, network): (&str, Network),
        generation: u8,
    ) -> Result<KnownCaller, Error> {
        let (key, mut value) = (caller_key(local), [0; UID_AT + UID]);
        value[..8].copy_from_slice(&network.0.to_ne_bytes());
        value[8] = generation;
        let uid = pod.as_bytes().get(..pod.len().min(UID)).unwrap_or_default();
        value[9] = u8::try_from(uid.len()).unwrap_or_default();
        value[UID_AT..UID_AT + uid.len()].copy_from_slice(uid);
        self.callers.update(&key, &value, MapFlags::ANY)?;
        Ok(KnownCaller { pods: self.clone(), key })
    }

    /// The UID of the pod that has opened a connection, which comes from this address. `None`: no
    /// agent of this node has opened it for a pod, or that agent has ended.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn caller(&self, client: SocketAddr) -> Result<Option<String>, Error> {
        let Some(value) = self.callers.lookup(&caller_key(client), MapFlags::ANY)? else { return Ok(None) };
        Ok(if self.has_agent(&value, is_ipv6(client))? { uid(&value) } else { None })
    }

    /// Removes the connections of agents that have ended without closing them.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn forget_callers(&self) -> Result<(), Error> {
        for key in self.callers.keys().collect::<Vec<_>>() {
            let Some(value) = self.callers.lookup(&key, MapFlags::ANY)? else { continue };
            if !self.has_agent(&value, key.get(..12) != Some(&octets([0, 0, 0, 0].into())[..12]))? {
                // It fails if its agent has removed it meanwhile.
                let _ = self.callers.delete(&key);
            }
        }
        Ok(())
    }

    /// Whether the agent that has entered a caller still runs: the kernel forgets listeners that are
    /// closed.
    fn has_agent(&self, caller: &[u8], is_ipv6: bool) -> Result<bool, Error> {
        let (Some(network), Some(generation)) = (caller.first_chunk(), caller.get(8)) else { return Ok(false) };
        let key = listener_key(Network(u64::from_ne_bytes(*network)), *generation, Side::Out, is_ipv6);
        Ok(self.listeners.lookup(&key, MapFlags::ANY)?.is_some())
    }
}

fn is_ipv6(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_ipv6()
}

/// `struct caller_key` of the eBPF program.
fn caller_key(address: SocketAddr) -> [u8; 20] {
    let mut key = [0; 20];
    key[..16].copy_from_slice(&octets(address.ip().to_canonical()));
    key[16..].copy_from_slice(&u32::from(address.port()).to_ne_bytes());
    key
}

fn uid(caller: &[u8]) -> Option<String> {
    let length = usize::from(*caller.get(9)?);
    String::from_utf8(caller.get(UID_AT..UID_AT + length)?.to_vec()).ok()
}
