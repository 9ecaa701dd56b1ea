//! The status of objects, written by the controller that leads.

mod conditions;
mod peers;
mod programming;
mod writer;

pub use conditions::{ACCEPTED, PROGRAMMED, status_of};
pub use peers::Peers;
pub use programming::{NodeProgress, PeerReport, Programming};
pub use writer::{StatusWriter, WriteCounts};
