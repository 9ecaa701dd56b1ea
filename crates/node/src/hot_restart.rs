//! Hot restart: one process of a node takes over from another, without a refused connection.
//!
//! The *parent* starts the *child* and sends it, on a Unix socket, its listening sockets and the
//! configuration that the control plane has delivered. The child loads the configuration, has its
//! identities certified, starts as many instances as the parent has ready, and reports that it is
//! ready. Then the parent transfers the node: from that moment, the child has the node's stream and
//! accepts connections, and the parent drains. Until then the parent is the node, even if the child
//! fails.
//!
//! ```text
//! parent                               child
//!     sockets, Start, Warm…  ─────────▶   engines, identity, settings of the mesh
//!     updates, as they come  ─────────▶   in force, certified, instances started
//!                            ◀─────────   Ready
//!     counters, Transfer     ─────────▶   stream, accept
//!                            ◀─────────   Serving
//!     drain               ◀─────────   updates, as they are in force
//!     end
//! ```
//! If the child withdraws a permission, it ends for exchanges of the parent too. If the child ends
//! first, the parent permits none of its open exchanges any more.
//!
//! Each process informs the other of its instances that have a credential, because either may
//! accept such an instance's connection. The counters of rate limits move to the child; the parent
//! asks the child from then on.

mod child;
mod counting;
mod parent;
mod protocol;

pub(crate) use child::ChildNode;
pub(crate) use child::HotRestart;
pub use child::{Parent, ParentError, TakeoverError};
pub(crate) use counting::{ChildCounters, SOCKET};
pub use parent::{ChildLink, OfferError, StateCheck};
pub(crate) use parent::{ParentNode, offer};
pub(crate) use protocol::{Start, UPDATES, VERSION, begin};
