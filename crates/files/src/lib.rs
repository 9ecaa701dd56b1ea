//! Opens files whose paths come from documents.
//!
//! The author of a document has fewer rights than the component that opens the path. So a path may
//! name a terminal, a FIFO, a kernel log, a file system that hangs, or another tenant's secret.
//! [`open`] opens regular files only, and only those that [`FileAccess`] admits. [`read`] also
//! bounds bytes and time. [`readers`] runs both on a few threads per namespace, because no flag
//! bounds the time of a call to a file system that hangs.

mod access;
mod host;
mod listed;
mod open;
pub mod readers;

pub use access::FileAccess;
pub use host::{HostAccess, HostFolder, Owner};
pub use open::{is_kernels, open, open_directory, open_in, open_log, read};

/// The size limit of files that decide about trust (certificates, keys, passwords).
pub const MAX_SMALL_FILE: u64 = 1 << 20;
