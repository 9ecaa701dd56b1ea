//! The addresses of the mesh's own machines. A connection to one of them from this machine bypasses
//! the firewall that external traffic has to pass there.
//!
//! The kernel reports which addresses belong to this machine (`rtnetlink(7)`), and its answers are
//! cached for a second. The control plane reports the addresses of other machines.

use arc_swap::ArcSwap;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer of the kernel is cached.
const HOLDS: Duration = Duration::from_secs(1);
/// Cached answers. They are all dropped at once.
const MOST: usize = 4096;

/// The set of the machines' addresses.
#[derive(Debug, Default)]
pub struct Machines {
    others: ArcSwap<HashSet<IpAddr>>,
    own: Mutex<HashMap<IpAddr, (Option<bool>, Instant)>>,
    /// The addresses of this node's gateway.
    gateway: ArcSwap<Vec<SocketAddr>>,
}

impl Machines {
    /// Replaces the addresses of other machines.
    pub fn set_others(&self, others: impl IntoIterator<Item = IpAddr>) {
        let others = others.into_iter().map(|address| address.to_canonical());
        self.others.store(others.filter(|address| !address.is_unspecified()).collect::<HashSet<_>>().into());
    }

    /// Replaces the addresses at which this node's gateway listens.
    pub(crate) fn set_gateway(&self, listeners: impl IntoIterator<Item = SocketAddr>) {
        self.gateway.store(Arc::new(listeners.into_iter().collect()));
    }

    /// Whether this node's gateway listens at an address. A request that is sent there could come
    /// back for ever.
    pub(crate) fn is_gateway(&self, address: SocketAddr) -> bool {
        let answers = |listener: &SocketAddr| {
            let is_there = |ip: IpAddr| listener.ip() == ip || listener.ip().is_unspecified() && self.have(ip);
            listener.port() == address.port() && is_there(address.ip().to_canonical())
        };
        self.gateway.load().iter().any(answers)
    }

    /// Whether this is an address of one of the mesh's machines. If the kernel does not say whether
    /// it is this machine's, it counts as one.
    pub fn have(&self, address: IpAddr) -> bool {
        self.others.load().contains(&address.to_canonical()) || self.own(address).unwrap_or(true)
    }

    /// Whether this is an address of this machine, as far as the kernel says.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.own(address).unwrap_or(false)
    }

    /// `None`: the kernel does not say.
    fn own(&self, address: IpAddr) -> Option<bool> {
        let (address, now) = (address.to_canonical(), Instant::now());
        let known = self.own.lock().unwrap_or_else(PoisonError::into_inner).get(&address).copied();
        if let Some((own, at)) = known
            && now.saturating_duration_since(at) < HOLDS
        {
            return own;
        }
        let own = is_own(address)
            .inspect_err(|error| {
                tracing::warn!(%address, %error, "the kernel does not say whether an address is this machine's");
            })
            .ok();
        let mut answers = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= MOST {
            answers.clear();
        }
        answers.insert(address, (own, now));
        own
    }
}

/// `RTM_GETROUTE`, `NLM_F_REQUEST`, `NLMSG_ERROR`, `RTM_NEWROUTE`, `RTA_DST` and `RTN_UNICAST`.
const GET_ROUTE: u16 = 26;
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
const NEW_ROUTE: u16 = 24;
const DESTINATION: u16 = 1;
const UNICAST: u8 = 1;
/// Sizes of `struct nlmsghdr` and `struct rtmsg`, and where the latter has the type of a route.
const HEADER: usize = 16;
const ROUTE: usize = 12;
const ROUTE_TYPE: usize = HEADER + 7;

/// Whether the kernel delivers packets for this address locally, or to all machines of a network.
/// Such packets do not reach one other machine.
fn is_own(address: IpAddr) -> io::Result<bool> {
    let (family, bytes) = match address {
        IpAddr::V4(address) => (AddressFamily::INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AddressFamily::INET6, address.octets().to_vec()),
    };
    // Without a protocol it is that of routes (`NETLINK_ROUTE`).
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&kernel, &question(family, &bytes), SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (length, _) = recv(&kernel, &mut answer[..], RecvFlags::empty())?;
    let answer = answer.get(..length).unwrap_or_default();
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes).ok_or_else(broken)?;
    match kind {
        NEW_ROUTE => answer.get(ROUTE_TYPE).map(|kind| *kind != UNICAST).ok_or_else(broken),
        ERROR => {
            let code = answer.get(HEADER..HEADER + 4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
            match Errno::from_raw_os_error(code.ok_or_else(broken)?.saturating_neg()) {
                // There is no route.
                Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS => Ok(false),
                error => Err(error.into()),
            }
        }
        _ => Err(broken()),
    }
}

fn question(family: AddressFamily, address: &[u8]) -> Vec<u8> {
    let attribute = 4 + address.len();
    let mut message = Vec::with_capacity(HEADER + ROUTE + attribute);
    message.extend(u32::try_from(HEADER + ROUTE + attribute).unwrap_or_default().to_ne_bytes());
    message.extend(GET_ROUTE.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    // Sequence number and port ID of the sender. They can be 0, because the socket is used for one
    // question only.
    message.extend([0; 8]);
    let bits = u8::try_from(address.len() * 8).unwrap_or_default();
    message.extend([u8::try_from(family.as_raw()).unwrap_or_default(), bits]);
    message.extend([0; ROUTE - 2]);
    message.extend(u16::try_from(attribute).unwrap_or_default().to_ne_bytes());
    message.extend(DESTINATION.to_ne_bytes());
    message.extend(address);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_which_addresses_are_this_machine_s() {
        let machines = Machines::default();
        for own in ["127.0.0.1", "127.9.8.7", "::ffff:127.0.0.1"] {
            assert!(machines.have(own.parse().unwrap()) && machines.is_own(own.parse().unwrap()), "{own}");
        }
        // No machine has a documentation address (RFC 5737, RFC 3849).
        for other in ["203.0.113.9", "2001:db8::9"] {
            assert!(!machines.have(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn the_control_plane_says_which_are_those_of_others() {
        let machines = Machines::default();
        let address = "203.0.113.9".parse().unwrap();
        assert!(!machines.have(address));
        machines.set_others(["::ffff:203.0.113.9".parse().unwrap(), "0.0.0.0".parse().unwrap()]);
        assert!(machines.have(address) && !machines.is_own(address));
        machines.set_others([]);
        assert!(!machines.have(address));
    }
}
