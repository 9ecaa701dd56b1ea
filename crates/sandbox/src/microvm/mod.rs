//! The engine that isolates by hardware: every run has a separate virtual machine, entered in
//! unprivileged mode with all registers and all memory as the program's initialisation left them.
//! Needs `/dev/kvm`.
//!
#![allow(unsafe_code)]

mod elf;
#[path = "../../../../guest/src/layout.rs"]
#[allow(dead_code, missing_docs)]
mod layout;
mod memory;
mod shell;
mod snapshot;
mod system;

pub(crate) use shell::{FinishedShell, Shell};
pub(crate) use snapshot::Snapshot;

use crate::error::{EngineError, LoadError};
use crate::fault::Fault;
use elf::Guest;
use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, KVM_SYNC_X86_VALID_FIELDS};
use kvm_ioctls::{Cap, Kvm};
use memory::Memory;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The image that this crate was built with.
pub(crate) const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/leno-guest.elf"));

/// A program that takes longer than this to build is refused.
const INIT_DEADLINE: Duration = Duration::from_secs(2);

/// A program that takes longer than this for its first run is refused.
const TRIAL_DEADLINE: Duration = Duration::from_secs(2);

/// The engine.
pub(crate) struct Microvm {
    machine: Arc<Machine>,
    /// The shell that initialises programs.
    loader: Mutex<Option<Shell>>,
}

/// The state that all shells of an engine share.
pub(crate) struct Machine {
    kvm: Kvm,
    guest: Guest,
    constants: Memory,
    cpuid: CpuId,
    /// Whether guests can use vector registers wider than XMM; known after the first run.
    wide: OnceLock<bool>,
}

impl Microvm {
    /// Opens `device` and runs the guest once.
    pub(crate) fn open(device: &Path, image: &[u8]) -> Result<Self, EngineError> {
        let unavailable = |error| EngineError::Device { device: device.to_owned(), error };
        let path = CString::new(device.as_os_str().as_bytes()).map_err(|error| unavailable(error.into()))?;
        let kvm = Kvm::new_with_path(path).map_err(|error| unavailable(error.into()))?;
        if kvm.get_api_version() != 12 {
            return Err(unavailable(io::Error::other("it does not speak KVM's API version 12")));
        }
        if kvm.check_extension_int(Cap::SyncRegs) as u32 & KVM_SYNC_X86_VALID_FIELDS != KVM_SYNC_X86_VALID_FIELDS {
            return Err(EngineError::Missing("setting registers through the shared area (KVM_CAP_SYNC_REGS)"));
        }
        for (capability, name) in [
            (Cap::ReadonlyMem, "read-only guest memory (KVM_CAP_READONLY_MEM)"),
            (Cap::ImmediateExit, "leaving a guest at once (KVM_CAP_IMMEDIATE_EXIT)"),
        ] {
            if !kvm.check_extension(capability) {
                return Err(EngineError::Missing(name));
            }
        }
        let guest = elf::parse(image).map_err(EngineError::Guest)?;
        let mut constants = Memory::new(layout::SHELL as usize).map_err(EngineError::Host)?;
        system::build(constants.bytes_mut(), &guest);
        let cpuid = cpuid(&kvm).map_err(unavailable)?;
        let machine = Arc::new(Machine { kvm, guest, constants, cpuid, wide: OnceLock::new() });
        let wide = Shell::new(&machine, false).and_then(Shell::wide).map_err(EngineError::Host)?;
        machine.wide.get_or_init(|| wide);
        let loader = Shell::new(&machine, true).map_err(EngineError::Host)?;
        Ok(Self { machine, loader: Mutex::new(Some(loader)) })
    }

    pub(crate) fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// Initialises a program, and runs it once on the input that `trial` writes.
    pub(crate) fn load(
        &self,
        program: &[u8],
        trial: impl FnOnce(&mut [u8]) -> Result<usize, Fault>,
    ) -> Result<Snapshot, LoadError> {
        if program.len() > layout::BLOB_SIZE as usize {
            return Err(LoadError::TooLarge { bytes: program.len(), limit: layout::BLOB_SIZE as usize });
        }
        let mut loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        let shell = match loader.take() {
            Some(shell) => shell,
            None => Shell::new(&self.machine, true).map_err(EngineError::Host)?,
        };
        let spent = shell.init(program, INIT_DEADLINE);
        let result = match spent.output() {
            Ok(_) => Snapshot::take(&spent).ok_or(LoadError::OutOfMemory),
            Err(Fault::Refused(reason)) => Err(LoadError::Refused(reason)),
            Err(Fault::OutOfMemory) => Err(LoadError::OutOfMemory),
            Err(fault) => Err(LoadError::Fault(fault)),
        };
        let shell = spent.reset();
        let (shell, result) = match (shell, result) {
            (Some(shell), Ok(snapshot)) => match shell.run(&snapshot, TRIAL_DEADLINE, trial) {
                Ok(spent) => {
                    let fault = spent.output().err();
                    (spent.reset(), fault.map_or(Ok(snapshot), |fault| Err(LoadError::Trial(fault))))
                }
                Err((shell, fault)) => (shell, Err(LoadError::Trial(fault))),
            },
            unchanged => unchanged,
        };
        *loader = shell;
        result
    }
}

impl Machine {
    /// A new, clean shell in which the guest has run.
    pub(crate) fn shell(self: &Arc<Self>) -> Result<Shell, EngineError> {
        Shell::new(self, false).map_err(EngineError::Host)
    }
}

/// The features of the processor that a guest sees: only those that it needs.
fn cpuid(kvm: &Kvm) -> io::Result<CpuId> {
    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    cpuid.retain(|entry| matches!(entry.function, 0 | 1 | 0x8000_0000 | 0x8000_0001 | 0x8000_0008));
    for entry in cpuid.as_mut_slice() {
        if entry.function == 1 {
            entry.ecx &= !(1 << 26 | 1 << 27 | 1 << 28 | 1 << 30); // XSAVE, OSXSAVE, AVX, RDRAND
        }
    }
    Ok(cpuid)
}
