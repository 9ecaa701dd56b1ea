//! A shell: one micro-VM with one vCPU, not specific to a program, reused. A [`Shell`] is clean,
//! that is, all memory that a guest can reach and that is not shared and read-only is zero. Running
//! one makes it a [`FinishedShell`], and only [`FinishedShell::reset`] makes that a shell again.

use super::elf::Guest;
use super::layout::{self, PAGE, status, task};
use super::memory::Memory;
use super::snapshot::Snapshot;
use super::system::{HeapClass, View};
use super::{Machine, system};
use crate::deadline::Deadline;
use crate::fault::{Access, Fault};
use kvm_bindings::{kvm_regs, kvm_sregs, kvm_userspace_memory_region};
use kvm_ioctls::{SyncReg, VcpuExit, VcpuFd, VmFd};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The memory that a run can write, except the page that only the processor writes on a fault.
pub(super) fn writable(guest: &Guest, view: View) -> [Range<u64>; 4] {
    [
        layout::OUTPUT..layout::OUTPUT + layout::OUTPUT_SIZE,
        layout::STACK..layout::STACK + layout::STACK_SIZE,
        guest.data.pages(),
        layout::HEAP..view.heap_end(),
    ]
}

/// A clean shell.
pub(crate) struct Shell(Box<Vm>);

/// A shell after a run.
pub(crate) struct FinishedShell {
    vm: Box<Vm>,
    /// Length of the output, or why there is none.
    outcome: Result<usize, Fault>,
}

struct Vm {
    // The order of the fields matters: a vCPU must be dropped before its VM, and that before the
    // memory.
    vcpu: VcpuFd,
    _vm: VmFd,
    memory: Memory,
    blob: Option<Memory>,
    machine: Arc<Machine>,
    sregs: kvm_sregs,
    view: View,
    /// Bytes of the input area (or blob) that may not be zero.
    written: usize,
    /// False after an exit from which the vCPU may not be entered again.
    usable: bool,
}

impl Shell {
    /// Makes a shell and faults in all of its memory. With `blob`, it can initialise programs.
    pub(super) fn new(machine: &Arc<Machine>, blob: bool) -> io::Result<Self> {
        let vm = machine.kvm.create_vm()?;
        let memory = Memory::new((layout::SHELL_END - layout::SHELL) as usize)?;
        let blob = if blob { Some(Memory::new(layout::BLOB_SIZE as usize)?) } else { None };
        let shared = machine.constants.address();
        let mut slots = vec![
            (0, layout::SHELL, shared, kvm_bindings::KVM_MEM_READONLY),
            (layout::SHELL, layout::SHELL_END - layout::SHELL, memory.address(), 0),
        ];
        if let Some(blob) = &blob {
            slots.push((layout::BLOB, layout::BLOB_SIZE, blob.address(), kvm_bindings::KVM_MEM_READONLY));
        }
        for (slot, (guest_phys_addr, memory_size, userspace_addr, flags)) in (0..).zip(slots) {
            let region = kvm_userspace_memory_region { slot, flags, guest_phys_addr, memory_size, userspace_addr };
            // SAFETY: each block of host memory is as long as the slot and outlives the VM: `memory` and `blob` are dropped
            // after it, and `constants` lives in the machine, which the shell holds. The slots do not overlap.
            unsafe { vm.set_user_memory_region(region) }?;
        }
        let vcpu = vm.create_vcpu(0)?;
        vcpu.set_cpuid2(&machine.cpuid)?;
        let sregs = system::registers(vcpu.get_sregs()?);
        let view = View::Run(HeapClass::K128);
        let machine = Arc::clone(machine);
        let vm = Box::new(Vm { vcpu, _vm: vm, memory, blob, machine, sregs, view, written: 0, usable: true });
        let touched = vm.enter(task::TOUCH, view, 0, Duration::from_secs(10));
        match touched.outcome {
            Ok(_) => touched.reset().ok_or_else(|| io::Error::other("a new shell cannot be entered again")),
            Err(fault) => Err(io::Error::other(format!("the guest does not run: {fault}"))),
        }
    }

    /// Whether guests can use vector registers wider than XMM here, although they are disabled in the guest's control
    /// registers. Kernels that run guests without hardware virtualisation (PVM) do not always obey those.
    pub(super) fn wide(self) -> io::Result<bool> {
        match self.0.enter(task::WIDE, View::Run(HeapClass::K64), 0, Duration::from_secs(10)).outcome {
            Ok(_) => Ok(true),
            Err(Fault::Instruction { .. }) => Ok(false),
            Err(fault) => Err(io::Error::other(format!("the guest does not run: {fault}"))),
        }
    }

    pub(crate) fn machine(&self) -> &Arc<Machine> {
        &self.0.machine
    }

    /// Whether the last run had the same page tables; changing them takes time.
    pub(crate) fn suits(&self, snapshot: &Snapshot) -> bool {
        self.0.view == View::Run(snapshot.class)
    }

    /// Runs the program of `snapshot` once. `write` puts the input into its area and returns the length.
    pub(crate) fn run<E>(
        self,
        snapshot: &Snapshot,
        deadline: Duration,
        write: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<FinishedShell, (Option<Shell>, E)> {
        let mut vm = self.0;
        vm.written = layout::INPUT_SIZE as usize;
        match write(vm.area(layout::INPUT, layout::INPUT_SIZE)) {
            Ok(length) => {
                vm.written = length.min(layout::INPUT_SIZE as usize);
                Ok(vm.run(snapshot, deadline))
            }
            Err(error) => Err((FinishedShell { vm, outcome: Ok(0) }.reset(), error)),
        }
    }

    /// Builds the program that `blob` encodes; its memory can be read from the result.
    pub(super) fn init(self, blob: &[u8], deadline: Duration) -> FinishedShell {
        let mut vm = self.0;
        let Some(area) = vm.blob.as_mut().and_then(|memory| memory.bytes_mut().get_mut(..blob.len())) else {
            return FinishedShell { vm, outcome: Err(Fault::Host("the program does not fit".into())) };
        };
        area.copy_from_slice(blob);
        vm.written = blob.len();
        let machine = Arc::clone(&vm.machine);
        let initial = &machine.guest.data;
        vm.area(initial.address, initial.bytes.len() as u64).copy_from_slice(&initial.bytes);
        vm.enter(task::INIT, View::Init, blob.len(), deadline)
    }
}

impl FinishedShell {
    /// The output of a run, or the fault, if there is no output.
    pub(crate) fn output(&self) -> Result<&[u8], Fault> {
        let length = self.outcome.clone()?;
        Ok(&self.vm.memory.bytes()[offset(layout::OUTPUT)..][..length])
    }

    /// Memory of the guest, from `start` on.
    pub(super) fn memory(&self, start: u64, length: u64) -> &[u8] {
        &self.vm.memory.bytes()[offset(start)..][..length as usize]
    }

    /// Makes it clean, or drops it if it cannot be entered again.
    pub(crate) fn reset(self) -> Option<Shell> {
        let mut vm = self.vm;
        if !vm.usable {
            tracing::warn!("a micro-VM that cannot be entered again is thrown away");
            return None;
        }
        vm.clear();
        Some(Shell(vm))
    }
}

impl Vm {
    fn area(&mut self, start: u64, length: u64) -> &mut [u8] {
        &mut self.memory.bytes_mut()[offset(start)..][..length as usize]
    }

    /// Runs with as much heap as the program usually needs, and again with the largest if that was
    /// not enough. A program is a pure function, so the second run makes no difference to its
    /// result.
    fn run(self: Box<Self>, snapshot: &Snapshot, deadline: Duration) -> FinishedShell {
        let started = Instant::now();
        let usual = View::Run(snapshot.class);
        let largest = View::Run(HeapClass::MAX);
        let first = self.run_in(usual, snapshot, deadline);
        if usual == largest || first.outcome != Err(Fault::OutOfMemory) {
            return first;
        }
        let mut vm = first.vm;
        vm.clear_writable();
        vm.run_in(largest, snapshot, deadline.saturating_sub(started.elapsed()))
    }

    fn run_in(mut self: Box<Self>, view: View, snapshot: &Snapshot, deadline: Duration) -> FinishedShell {
        self.area(layout::DATA, snapshot.data.len() as u64).copy_from_slice(&snapshot.data);
        self.area(layout::HEAP, snapshot.heap.len() as u64).copy_from_slice(&snapshot.heap);
        let length = self.written;
        self.enter(task::RUN, view, length, deadline)
    }

    /// Enters the guest with every register as in a new machine.
    fn enter(mut self: Box<Self>, task: u64, view: View, length: usize, deadline: Duration) -> FinishedShell {
        self.view = view;
        self.sregs.cr3 = view.root();
        let shared = self.vcpu.sync_regs_mut();
        shared.regs = kvm_regs {
            rip: self.machine.guest.entry,
            rsp: layout::STACK + layout::STACK_SIZE,
            rflags: 2,
            rdi: task,
            rsi: length as u64,
            rdx: view.heap_end(),
            rcx: self.machine.wide.get().copied().unwrap_or(false).into(),
            ..kvm_regs::default()
        };
        shared.sregs = self.sregs;
        shared.events = Default::default();
        self.vcpu.set_sync_dirty_reg(SyncReg::Register);
        self.vcpu.set_sync_dirty_reg(SyncReg::SystemRegister);
        self.vcpu.set_sync_dirty_reg(SyncReg::VcpuEvents);
        let outcome = self.go(deadline).and_then(|word| self.outcome(word));
        FinishedShell { vm: self, outcome }
    }

    /// Runs until the guest exits; returns the word that it wrote to the exit port.
    fn go(&mut self, deadline: Duration) -> Result<u32, Fault> {
        let deadline = match Deadline::for_vcpu(self.vcpu.get_kvm_run(), deadline) {
            Ok(deadline) => deadline,
            Err(error) => return Err(Fault::Host(format!("no timer for the deadline: {error}"))),
        };
        self.usable = false;
        loop {
            match self.vcpu.run() {
                Ok(VcpuExit::IoOut(layout::EXIT_PORT, &[a, b, c, d])) => {
                    self.usable = true;
                    return Ok(u32::from_le_bytes([a, b, c, d]));
                }
                Ok(VcpuExit::IoOut(layout::FAULT_PORT, &[vector])) => {
                    drop(deadline);
                    let fault = self.explain(vector);
                    self.usable = true;
                    return Err(fault);
                }
                Ok(exit) => return Err(Fault::Escape(format!("{exit:?}").chars().take(100).collect())),
                Err(error) if error.errno() == libc::EINTR => {
                    if deadline.passed() {
                        self.usable = true;
                        return Err(Fault::Deadline);
                    }
                    // A signal of this process other than the timers'; the registers are the
                    // guest's own by now.
                }
                Err(error) => return Err(Fault::Host(format!("KVM_RUN: {error}"))),
            }
        }
    }

    /// Decodes the guest's report of its result. Nothing in it is trusted.
    fn outcome(&self, word: u32) -> Result<usize, Fault> {
        let length = (word & 0xff_ffff) as usize;
        if length > layout::OUTPUT_SIZE as usize {
            return Err(Fault::BadLength { length, limit: layout::OUTPUT_SIZE as usize });
        }
        let text = || {
            let bytes = &self.memory.bytes()[offset(layout::OUTPUT)..][..length];
            crate::fault::printable(bytes)
        };
        match (word >> 24) as u8 {
            status::DONE => Ok(length),
            status::REFUSED => Err(Fault::Refused(text())),
            status::PANICKED => Err(Fault::Panicked(text())),
            status::OUT_OF_MEMORY => Err(Fault::OutOfMemory),
            other => Err(Fault::Escape(format!("left with the unknown status {other}"))),
        }
    }

    /// Describes the fault that the stub of `vector` reported.
    fn explain(&self, vector: u8) -> Fault {
        // The frame that the processor pushed: error code (some vectors), instruction pointer, and more.
        let word = |below: u64| {
            let at = offset(layout::FAULT_STACK + PAGE - below);
            self.memory.bytes()[at..at + 8].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        let (at, error) = (word(40), word(48));
        let instruction = |what| Fault::Instruction { at, what };
        match vector {
            0 => Fault::Arithmetic { at },
            6 => instruction("an undefined or disabled instruction"),
            13 => instruction("a privileged instruction or a forbidden port"),
            14 => {
                let address = self.vcpu.get_sregs().map(|sregs| sregs.cr2).unwrap_or(0);
                let below_stack = layout::STACK - layout::STACK_SIZE..layout::STACK;
                if below_stack.contains(&address) {
                    return Fault::StackOverflow;
                }
                let access = match error {
                    error if error & 0x10 != 0 => Access::Execute,
                    error if error & 0x2 != 0 => Access::Write,
                    _ => Access::Read,
                };
                Fault::Memory { at, address, access }
            }
            _ => instruction("an exception"),
        }
    }

    fn clear(&mut self) {
        let written = std::mem::take(&mut self.written) as u64;
        if self.view == View::Init {
            if let Some(blob) = &mut self.blob {
                blob.bytes_mut()[..written as usize].fill(0);
            }
        } else {
            self.area(layout::INPUT, written).fill(0);
        }
        self.area(layout::FAULT_STACK, PAGE).fill(0);
        self.clear_writable();
    }

    fn clear_writable(&mut self) {
        let machine = Arc::clone(&self.machine);
        for range in writable(&machine.guest, self.view) {
            self.area(range.start, range.end - range.start).fill(0);
        }
    }
}

fn offset(address: u64) -> usize {
    (address - layout::SHELL) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::microvm::{GUEST, Microvm};
    use std::convert::Infallible;
    use std::path::Path;

    #[test]
    fn a_shell_that_was_reset_holds_nothing() {
        let engine = Microvm::open(Path::new("/dev/kvm"), GUEST).expect("this test needs micro-VMs");
        let mut shell = engine.machine().shell().unwrap();
        for class in HeapClass::ALL {
            let heap = vec![0xee; class.size() as usize - 4096].into_boxed_slice();
            let snapshot = Snapshot { data: vec![0xee; 64].into(), heap, class };
            // A program that consists of noise: the guest finds a wild pointer and may fault or
            // not. The test is about the data that it leaves.
            let spent = shell
                .run(&snapshot, Duration::from_secs(10), |area| {
                    area.fill(0xdd);
                    Ok::<_, Infallible>(area.len())
                })
                .unwrap_or_else(|(_, never)| match never {});
            assert!(spent.vm.memory.bytes().iter().any(|byte| *byte != 0));
            shell = spent.reset().unwrap();
            assert!(shell.0.memory.bytes().iter().all(|byte| *byte == 0), "{class:?}");
        }
    }

    #[test]
    fn so_does_one_whose_input_could_not_be_written() {
        let engine = Microvm::open(Path::new("/dev/kvm"), GUEST).expect("this test needs micro-VMs");
        let snapshot = Snapshot { data: Box::default(), heap: Box::default(), class: HeapClass::K64 };
        let shell = engine.machine().shell().unwrap();
        let Err((Some(shell), ())) = shell.run(&snapshot, Duration::from_secs(10), |area| {
            area.fill(1);
            Err(())
        }) else {
            panic!("the error is lost")
        };
        assert!(shell.0.memory.bytes().iter().all(|byte| *byte == 0));
    }
}
