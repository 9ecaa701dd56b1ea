//! Connections to every address and port of a network arrive at one listener.

crate::skeleton!("/intercept.skel.rs");

use crate::Error;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags};
use skeleton::InterceptSkelBuilder;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Redirects all TCP connections of a network, except those to its loopback addresses, to one
/// listener. It ends when this is dropped, also by the end of the process.
#[derive(Debug)]
pub struct Interception {
    _link: Link,
}

impl Interception {
    /// Starts the redirection in the network namespace `network`. `listener` is a listening TCP
    /// socket of that namespace.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn begin(network: BorrowedFd<'_>, listener: BorrowedFd<'_>) -> Result<Self, Error> {
        let mut place = MaybeUninit::uninit();
        let skeleton = InterceptSkelBuilder::default().open(&mut place)?.load()?;
        let socket = u64::try_from(listener.as_raw_fd()).unwrap_or(u64::MAX);
        skeleton.maps.listener.update(&0_u32.to_ne_bytes(), &socket.to_ne_bytes(), MapFlags::ANY)?;
        // The link keeps the program alive, and the program its map.
        let link = skeleton.progs.intercept.attach_netns(network.as_raw_fd())?;
        Ok(Self { _link: link })
    }
}
