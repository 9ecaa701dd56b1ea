//! Engines: the ways to isolate a sidecar.

use crate::error::{EngineError, LoadError};
use crate::fault::Fault;
use crate::image::{Body, Image};
use crate::inline;
use crate::microvm::{self, Microvm};
use crate::wasm::{self, Wasm};
use leno_policy::engine::EngineKind;
use leno_policy::input::{Header, Peer, RequestInput};
use leno_policy::spec::Protocol;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

/// The device by which the kernel offers virtual machines.
const KVM: &str = "/dev/kvm";

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

    /// WebAssembly instances of the built-in image.
    pub fn wasm() -> Result<Self, EngineError> {
        Wasm::open().map(|engine| Self(Inner::Wasm(Arc::new(engine))))
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

    /// The kind of this engine.
    pub fn kind(&self) -> EngineKind {
        match &self.0 {
            Inner::Microvm(_) => EngineKind::Microvm,
            Inner::Wasm(_) => EngineKind::Wasm,
            Inner::Inline => EngineKind::Inline,
        }
    }

    /// Builds a program once, in a sandbox, and runs it once. So a program that cannot run is found
    /// here, and its pages and compiled code are in place when the first request comes. `program`
    /// is a [`leno_policy::spec::ProgramSpec`] in postcard encoding. The image can be run in any
    /// pool, any number of times.
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

/// Writes the request of a program's first run. The program's answer to it is ignored.
fn trial(area: &mut [u8]) -> Result<usize, Fault> {
    let input = RequestInput {
        now_ms: 0,
        peer: Peer { identity: None, address: Some(Ipv4Addr::LOCALHOST.into()) },
        target: "",
        port: 80,
        protocol: Protocol::Http1,
        method: "GET",
        authority: "localhost",
        path: "/",
        headers: vec![Header { name: "host", value: b"localhost" }],
        verified: None,
    };
    let written = postcard::to_slice(&input, area).map(|bytes| bytes.len());
    written.map_err(|error| Fault::Host(error.to_string()))
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Engine").field(&self.kind()).finish()
    }
}
