use super::octets;
use crate::Network;
use std::net::IpAddr;

/// A block of addresses outside of a pod with which its programs may exchange datagrams (UDP).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramPeer {
    /// The first address of the block.
    pub address: IpAddr,
    /// The number of bits of the address that matter.
    pub prefix: u8,
    /// The port at the other end. `None`: any.
    pub port: Option<u16>,
}

impl DatagramPeer {
    /// `struct peer_key` of the eBPF program.
    pub(crate) fn key(&self, network: Network) -> [u8; 32] {
        const BEFORE: u32 = 3 * 32;
        const MAPPED: u32 = 96;
        let of_address = match self.address {
            IpAddr::V4(_) => MAPPED + u32::from(self.prefix.min(32)),
            IpAddr::V6(_) => u32::from(self.prefix.min(128)),
        };
        let mut key = [0; 32];
        key[..4].copy_from_slice(&(BEFORE + of_address).to_ne_bytes());
        key[4..12].copy_from_slice(&words(network));
        key[12..14].copy_from_slice(&self.port.unwrap_or(0).to_be_bytes());
        key[16..].copy_from_slice(&octets(self.address));
        key
    }

    pub(crate) fn is_of(key: &[u8], network: Network) -> bool {
        key.get(4..12) == Some(&words(network))
    }
}

/// The two halves of the number, the higher first.
fn words(network: Network) -> [u8; 8] {
    let mut words = [0; 8];
    words[..4].copy_from_slice(&((network.0 >> 32) as u32).to_ne_bytes());
    words[4..].copy_from_slice(&(network.0 as u32).to_ne_bytes());
    words
}
