//! Captures the TCP connections of pods that run on a machine, in both directions, without changing
//! the pods.
//!
//! The agent opens two listeners in the pod's network for each address family. The kernel gives
//! them the connections that programs of the pod open, and those that arrive from outside. The
//! agent connects on by a [`PodDialer`]. See `pods.bpf.c` of `leno-ebpf` for the way of a packet.
//!
//! Everything is pinned in a BPF file system. An agent that starts adopts it, and takes over from an
//! agent that still runs. The earlier agent still has the connections that arrived before, and accepts
//! them before it closes its listeners. While there is no agent, a permissive pod
//! goes on as if it had never been captured, and new connections of an enforced pod are dropped.
//!
//! Not captured: connections to the pod's own addresses, to link-local IPv6 addresses, and of
//! sockets that are bound to an interface (`SO_BINDTODEVICE`). The latter two, and all but TCP, are
//! dropped where the pod is enforced.
#![forbid(unsafe_code)]

mod capture;
mod dialer;
mod error;
mod interfaces;
mod listeners;
mod network;
mod pod;
mod processes;
mod release;
mod requirements;
mod routes;
mod settings;
mod visitors;

pub use capture::{Capture, CaptureOptions};
pub use dialer::{BoundSocket, PodDialer};
pub use error::CaptureError;
pub use leno_ebpf::{DatagramPeer, DropReason, Guard, KnownCaller};
pub use listeners::PodListeners;
pub use network::PodNetwork;
pub use pod::{CapturedPod, PodCapture};
