//! Why there is no engine, or no program in one.

use crate::fault::Fault;
use std::io;
use std::path::PathBuf;

/// Why there is no engine, or no shell of it.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The device cannot be used.
    #[error("{} cannot be used: {error}{}", device.display(), hint(error))]
    Device {
        /// Which device.
        device: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The kernel's KVM is too old.
    #[error("this kernel's KVM lacks {0}")]
    Missing(&'static str),
    /// The image is not one.
    #[error("the guest image cannot be used: {0}")]
    Guest(&'static str),
    /// A virtual machine could not be made, or the guest does not run in it.
    #[error("no micro-VM can be started: {0}")]
    Host(io::Error),
    /// The module could not be compiled or started.
    #[error("the WebAssembly engine cannot be started: {0}")]
    Wasm(String),
    /// The kernel gives this thread no timer, and without a deadline nothing is run.
    #[error("no timer for the deadline: {0}")]
    Timer(io::Error),
    /// All sandboxes of the pool are in use.
    #[error("all {0} sandboxes of this worker are in use")]
    Exhausted(usize),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => " (no virtualisation here, or the kvm module is not loaded)",
        io::ErrorKind::PermissionDenied => " (the user must be in the device's group, usually `kvm`)",
        _ => "",
    }
}

/// Why a program cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is larger than any sensible one.
    #[error("the program has {bytes} bytes; at most {limit} fit")]
    TooLarge {
        /// Its encoded size.
        bytes: usize,
        /// What fits.
        limit: usize,
    },
    /// It is not a program.
    #[error("the program cannot be built: {0}")]
    Refused(String),
    /// Built, it leaves no memory for its runs.
    #[error("the program needs more memory than a sandbox has")]
    NoRoom,
    /// Building it went wrong.
    #[error("building the program {0}")]
    Fault(Fault),
    /// Built, it does not get through its first run.
    #[error("the program's first run: it {0}")]
    Trial(Fault),
    /// There is no sandbox to build it in.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
