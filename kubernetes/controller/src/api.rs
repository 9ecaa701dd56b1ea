//! The API server of a Kubernetes cluster: its objects, watches of them, and reviews of tokens.

mod backoff;
pub mod object;
mod watch;
mod wire;

pub use object::{BrokenObject, Change, Kind, Metadata, Object, ObjectKey};
pub use watch::{ApiServer, Watch, WatchCounts};
