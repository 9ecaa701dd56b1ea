//! Engines: the ways to isolate a sidecar.

use crate::fault::Fault;
use crate::image::{Body, Image};
use crate::inline;
use crate::microvm::{self, Microvm};
use crate::wasm::{self, Wasm};
use leno_policy::input::{Header, Input, Peer, RequestInput, TargetLoad};
use leno_policy::spec::Protocol;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Where the kernel offers virtual machines.
const KVM: &str = "/dev/kvm";

/// A way to isolate a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// A virtual machine under KVM: isolated by hardware.
    Microvm,
    /// A WebAssembly instance: isolated by its compiler.
    Wasm,
    /// A function call: not isolated. For tests and as the floor in benchmarks; configuration cannot select it.
    Inline,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Microvm => "microvm",
            Self::Wasm => "wasm",
            Self::Inline => "inline",
        })
    }
}

/// A name that is no engine's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an engine; expected `microvm`, `wasm` or `inline`")]
pub struct UnknownEngine(String);

impl FromStr for EngineKind {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        match name {
            "microvm" => Ok(Self::Microvm),
            "wasm" => Ok(Self::Wasm),
            "inline" => Ok(Self::Inline),
            _ => Err(UnknownEngine(name.to_owned())),
        }
    }
}

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

/// An engine of this process. Cloning is cheap.
#[derive(Clone)]
pub struct Engine(Inner);

#[derive(Clone)]
enum Inner {
    Microvm(Arc<Microvm>),
    Wasm(Arc<Wasm>),
    Inline,
}

impl Engine {
    /// Micro-VMs, if a guest really runs on `/dev/kvm`.
    pub fn microvm() -> Result<Self, EngineError> {
        Self::microvm_on(Path::new(KVM), microvm::GUEST)
    }

    /// Micro-VMs on another device, or with another image; for tests.
    #[doc(hidden)]
    pub fn microvm_on(device: &Path, image: &[u8]) -> Result<Self, EngineError> {
        Microvm::open(device, image).map(|engine| Self(Inner::Microvm(Arc::new(engine))))
    }

    /// WebAssembly instances. Compiles the built-in module, which takes some hundred milliseconds.
    pub fn wasm() -> Result<Self, EngineError> {
        Self::wasm_with(wasm::GUEST)
    }

    /// WebAssembly instances of another image; for tests.
    #[doc(hidden)]
    pub fn wasm_with(image: &[u8]) -> Result<Self, EngineError> {
        Wasm::compile(image).map(|engine| Self(Inner::Wasm(Arc::new(engine))))
    }

    /// Function calls, without isolation.
    pub fn inline() -> Self {
        Self(Inner::Inline)
    }

    /// The strongest engine that works here: micro-VMs, or WebAssembly and the reason why not micro-VMs.
    pub fn probe() -> Result<(Self, Option<EngineError>), EngineError> {
        Self::probe_on(Path::new(KVM))
    }

    /// As [`Engine::probe`], with another device; for tests.
    #[doc(hidden)]
    pub fn probe_on(device: &Path) -> Result<(Self, Option<EngineError>), EngineError> {
        match Self::microvm_on(device, microvm::GUEST) {
            Ok(engine) => Ok((engine, None)),
            Err(reason) => Ok((Self::wasm()?, Some(reason))),
        }
    }

    /// Which one it is.
    pub fn kind(&self) -> EngineKind {
        match &self.0 {
            Inner::Microvm(_) => EngineKind::Microvm,
            Inner::Wasm(_) => EngineKind::Wasm,
            Inner::Inline => EngineKind::Inline,
        }
    }

    /// Builds a program once, in a sandbox, and runs it once, so that a program that cannot run is found here, and what it needs is
    /// in place when the first request comes. `program` is a [`leno_policy::spec::ProgramSpec`] in postcard encoding. The image
    /// can be run in any pool, any number of times.
    pub fn load(&self, program: &[u8]) -> Result<Image, LoadError> {
        let body = match &self.0 {
            Inner::Microvm(engine) => Body::Microvm(Arc::clone(engine.machine()), engine.load(program, trial)?),
            Inner::Wasm(engine) => {
                let snapshot = engine.load(program)?;
                wasm::try_out(engine, &snapshot, trial)?;
                Body::Wasm(Arc::clone(engine), snapshot)
            }
            Inner::Inline => Body::Inline(Box::new(inline::load(program)?), program.len()),
        };
        Ok(Image::new(body))
    }
}

/// Writes the request of a program's first run. What the program says to it is of no interest.
fn trial(area: &mut [u8]) -> Result<usize, Fault> {
    let input = Input::Request(RequestInput {
        now_ms: 0,
        random: [0; 4],
        peer: Peer { identity: None, address: Ipv4Addr::LOCALHOST.into() },
        target: "",
        port: 80,
        protocol: Protocol::Http1,
        scheme: "http",
        method: "GET",
        authority: "localhost",
        path: "/",
        headers: vec![Header { name: "host", value: b"localhost" }],
        verified: None,
        quotas: Vec::new(),
        load: TargetLoad::default(),
        parent: None,
    });
    let written = postcard::to_slice(&input, area).map(|bytes| bytes.len());
    written.map_err(|error| Fault::Host(error.to_string()))
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Engine").field(&self.kind()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for kind in [EngineKind::Microvm, EngineKind::Wasm, EngineKind::Inline] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!(
            "docker".parse::<EngineKind>().unwrap_err().to_string(),
            "`docker` is not an engine; expected `microvm`, `wasm` or `inline`"
        );
    }
}
