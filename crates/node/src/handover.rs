//! One process of a node takes over from another, without a refused connection.
//!
//! The *predecessor* starts the *successor* and sends it, on a Unix socket, its listening sockets and what the control plane has delivered. The
//! successor loads that, has its identities certified, starts as many instances as the predecessor has ready, and says that it is ready. Then the
//! predecessor hands over: from that moment, the successor has the node's stream and accepts connections, and the predecessor drains. Until then the
//! predecessor is the node, whatever becomes of the successor.
//!
//! ```text
//! predecessor                          successor
//!     sockets, Start, Ready… ─────────▶   engines, identity, settings of the mesh
//!     updates, as they come  ─────────▶   in force, certified, instances started
//!                            ◀─────────   Ready
//!     counters, HandOver     ─────────▶   stream, accept
//!                            ◀─────────   Serving
//!     drain               ◀─────────   updates, as they are in force
//!     end
//! ```
//! A permission that the successor withdraws ends for exchanges of the predecessor too. If the successor ends first, the predecessor permits none of its open exchanges any more.
//!
//! Both tell each other of their instances that have a credential, because either may accept such an instance's connection. The counters of rate limits
//! go with the hand-over; the predecessor asks the successor from then on.

mod counting;
mod predecessor;
mod successor;
mod wire;

pub(crate) use counting::{Asking, SOCKET};
pub use predecessor::Relay;
pub(crate) use predecessor::{Outgoing, offer};
pub(crate) use successor::Incoming;
pub(crate) use successor::Succession;
pub use successor::{NoPredecessor, Predecessor};
pub(crate) use wire::{Start, UPDATES, VERSION, begin};
