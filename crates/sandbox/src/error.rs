//! Errors of engines, and of loading a program into one.

use crate::fault::Fault;
use std::io;
use std::path::PathBuf;

/// Why there is no engine, or no shell of it.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The device cannot be used.
    #[error("{} cannot be used: {error}{}", device.display(), hint(error))]
    Device {
        /// The device.
        device: PathBuf,
        /// The error of the kernel.
        error: io::Error,
    },
    /// The kernel's KVM is too old.
    #[error("this kernel's KVM lacks {0}")]
    Missing(&'static str),
    /// The guest image is invalid.
    #[error("the guest image cannot be used: {0}")]
    Guest(&'static str),
    /// A virtual machine could not be made, or the guest does not run in it.
    #[error("no micro-VM can be started: {0}")]
    Host(io::Error),
    /// The module could not be compiled or started.
    #[error("the WebAssembly engine cannot be started: {0}")]
    Wasm(String),
    /// The kernel gives this thread no timer; nothing runs without a deadline.
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
    /// It is larger than the limit.
    #[error("the program has {bytes} bytes; at most {limit} fit")]
    TooLarge {
        /// Its encoded size.
        bytes: usize,
        /// The limit of the size.
        limit: usize,
    },
    /// It is not the encoding of a program.
    #[error("the program cannot be built: {0}")]
    Refused(String),
    /// After it was built, it leaves no memory for its runs.
    #[error("the program needs more memory than a sandbox has")]
    OutOfMemory,
    /// Building it failed.
    #[error("building the program {0}")]
    Fault(Fault),
    /// It was built, but failed in its first run.
    #[error("the program's first run: it {0}")]
    Trial(Fault),
    /// There is no sandbox to build it in.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
