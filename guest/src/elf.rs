//! The image for a micro-VM: no operating system, one thread, unprivileged mode, leaves by one port write.
//!
//! The host sets all registers, so the machine is entered at `_start` for every run as if it had just been made:
//! `rdi` is the task, `rsi` the length of the input (or of the blob), `rdx` the end of the heap, and `rcx` whether wide
//! vector registers can be used.
#![cfg(target_arch = "x86_64")]
#![no_std]
#![no_main]

extern crate alloc;

mod bytes;
mod heap;
#[allow(dead_code)] // the host uses the rest
mod layout;
mod machine;
#[cfg(feature = "misbehave")]
mod misbehave;
mod program;

use layout::{BLOB, INPUT, OUTPUT, OUTPUT_SIZE, status, task};

/// For the tests' image: keeps the registers' values at the start of a run.
#[cfg(feature = "misbehave")]
macro_rules! keep_registers {
    () => {
        "mov [rip + ENTRY_REGISTERS], rax; mov [rip + ENTRY_REGISTERS + 8], rbx; mov [rip + ENTRY_REGISTERS + 16], rbp
         mov [rip + ENTRY_REGISTERS + 24], r8; mov [rip + ENTRY_REGISTERS + 32], r9; mov [rip + ENTRY_REGISTERS + 40], r10
         mov [rip + ENTRY_REGISTERS + 48], r11; mov [rip + ENTRY_REGISTERS + 56], r12; mov [rip + ENTRY_REGISTERS + 64], r13
         mov [rip + ENTRY_REGISTERS + 72], r14; mov [rip + ENTRY_REGISTERS + 80], r15"
    };
}
#[cfg(not(feature = "misbehave"))]
macro_rules! keep_registers {
    () => {
        ""
    };
}

// No data of an earlier run may be left in vector registers. Where the host has seen that wide ones
// can be used (`rcx`), `xrstor` initialises all that exist; on other machines they cannot be read,
// and `fxrstor` sets the rest. It does not change the last instruction and data pointers on some
// processors; `fninit` does.
core::arch::global_asm!(
    r#"
    .section .text._start,"ax"
    .globl _start
_start:
    "#,
    keep_registers!(),
    r#"
    fninit
    test ecx, ecx
    jnz .Lwide
    fxrstor64 [rip + vectors]
    jmp .Lrestored
.Lwide:
    mov r8, rdx
    mov eax, -1
    mov edx, -1
    xrstor64 [rip + vectors]
    mov rdx, r8
.Lrestored:
    xor ebp, ebp
    call {main}
    ud2
    .section .rodata.vectors,"a"
    .balign 64
vectors:
    .short 0x037f
    .fill 22, 1, 0
    .long 0x1f80
    .fill 4068, 1, 0
    .text
    "#,
    main = sym main,
);

extern "C" fn main(what: u64, length: usize, heap_end: usize, _wide: u64) -> ! {
    #[cfg(feature = "misbehave")]
    misbehave::keep_vectors(_wide != 0);
    heap::bound(layout::HEAP as usize, heap_end);
    // SAFETY: the host maps the output area for the guest alone.
    let output = unsafe { core::slice::from_raw_parts_mut(OUTPUT as *mut u8, OUTPUT_SIZE as usize) };
    let (status, length) = match what {
        task::RUN => {
            // SAFETY: the host maps the input area, and `length` is at most its size.
            let input = unsafe { core::slice::from_raw_parts(INPUT as *const u8, length) };
            (status::DONE, program::run(input, output))
        }
        task::INIT => {
            // SAFETY: the host maps the blob for this task, and `length` is at most its size.
            let blob = unsafe { core::slice::from_raw_parts(BLOB as *const u8, length) };
            match program::init(blob) {
                Ok(()) => (status::DONE, 0),
                Err(reason) => {
                    let length = reason.len().min(output.len());
                    output[..length].copy_from_slice(&reason.as_bytes()[..length]);
                    (status::REFUSED, length)
                }
            }
        }
        task::WIDE => {
            machine::use_wide_state();
            (status::DONE, 0)
        }
        _ => {
            machine::touch(heap_end as u64);
            (status::DONE, 0)
        }
    };
    machine::exit(status, length)
}

/// The image does not unwind, but the precompiled standard library refers to this function.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    machine::exit(status::PANICKED, 0)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    // SAFETY: as in `main`, whose borrow ends with the panic.
    let output = unsafe { core::slice::from_raw_parts_mut(OUTPUT as *mut u8, 256) };
    let length = program::describe(info, output);
    machine::exit(status::PANICKED, length)
}
