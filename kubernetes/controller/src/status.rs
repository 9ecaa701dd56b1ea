//! The status of objects, written by the controller that leads.

mod capture_reporter;
mod captures;
mod conditions;
mod events;
mod peers;
mod programming;
mod writer;

pub(crate) use capture_reporter::CaptureReporter;
pub use captures::Captures;
pub use conditions::{AUTHORITY, CAPTURED, PROGRAMMED, status_of};
pub(crate) use events::EventWriter;
pub use peers::Peers;
pub use programming::{NodeProgress, PeerReport, Programming};
pub use writer::{StatusWriter, WriteCounts};
