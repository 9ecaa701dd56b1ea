//! What Leno does in the kernel, with eBPF. The programs are in C, in `*.bpf.c`.
//!
//! [`Interception`] makes all TCP connections of a room's network arrive at one listener, whatever their address and port. It needs Linux 5.9.
//!
//! [`Mesh`] tells the kernel which functions may connect to which. It refuses connections where they would begin, and connects those between two rooms
//! so directly that their bytes pass neither through TCP nor through the node. It needs cgroup v2 and Linux 5.15; the latter 6.13.
//!
//! Both need the rights to load such programs. Where something is missing, the node judges and carries every
//! connection itself.

mod intercept;
mod mesh;
mod option;
mod queue;
mod refusals;
mod splice;

use std::sync::OnceLock;

pub use intercept::Interception;
pub use mesh::{Mesh, Network, Rule, Transport, Verdict};
pub use refusals::{Refusal, Refusals};
pub use splice::{Expected, Splice};

/// Has what libbpf says go to `say`, instead of to standard error. What it cannot do, it also returns.
pub fn log_to(say: fn(&str)) {
    static SAY: OnceLock<fn(&str)> = OnceLock::new();
    if SAY.set(say).is_ok() {
        let told = |_, text: String| {
            if let Some(say) = SAY.get() {
                say(text.trim_end());
            }
        };
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, told)));
    }
}

/// What the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("eBPF: {0}")]
pub struct Error(#[from] libbpf_rs::Error);

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self(error.into())
    }
}
