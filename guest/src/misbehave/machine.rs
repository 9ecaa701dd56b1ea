//! Misbehaviour of machine code.

use super::{AREAS, SCRATCH, address, count, fill};
use crate::heap;
use crate::layout::{self, EXIT_PORT};
use core::arch::asm;
use core::cell::UnsafeCell;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// General registers at the start of a run, except for those in which the host passes arguments. In
/// the order in which `_start` saves them.
#[repr(C, align(16))]
pub struct Registers(UnsafeCell<[u64; 11]>);

// SAFETY: a guest has one thread.
unsafe impl Sync for Registers {}

#[unsafe(no_mangle)]
static ENTRY_REGISTERS: Registers = Registers(UnsafeCell::new([0; 11]));

/// All other registers, in the form of `xsave` (Intel SDM volume 1, 13.4).
#[repr(C, align(64))]
struct Vectors(UnsafeCell<[u8; 12 * 1024]>);

// SAFETY: a guest has one thread.
unsafe impl Sync for Vectors {}

/// Their values at the start of a run, once `_start` has restored them.
static ENTRY_VECTORS: Vectors = Vectors(UnsafeCell::new([0; 12 * 1024]));
/// Their present values.
static VECTORS: Vectors = Vectors(UnsafeCell::new([0; 12 * 1024]));
/// Whether registers wider than XMM can be used.
static WIDE: AtomicBool = AtomicBool::new(false);

pub fn keep_vectors(wide: bool) {
    WIDE.store(wide, Relaxed);
    save_vectors(&ENTRY_VECTORS);
}

fn save_vectors(to: &Vectors) {
    // SAFETY: saves registers into memory of sufficient size and alignment.
    unsafe {
        if WIDE.load(Relaxed) {
            asm!("xsave64 [{}]", in(reg) to.0.get(), in("eax") u32::MAX, in("edx") u32::MAX);
        } else {
            asm!("fxsave64 [{}]", in(reg) to.0.get());
        }
    }
}

pub fn act(name: &[u8], argument: &[u8]) {
    let at = address(argument);
    // SAFETY: none of this is safe; the sandbox has to contain it.
    unsafe {
        match name {
            b"read" => drop(black_box((at as *const u64).read_volatile())),
            b"write" => (at as *mut u64).write_volatile(0xdead_beef),
            b"execute" => asm!("call {}", in(reg) at, clobber_abi("sysv64")),
            b"write-code" => (act as *const () as *mut u64).write_volatile(0),
            b"write-constant" => (c"constant".as_ptr() as *mut u64).write_volatile(0),
            b"execute-stack" => {
                let code = black_box([0xc3u8; 16]);
                asm!("call {}", in(reg) code.as_ptr(), clobber_abi("sysv64"));
            }
            b"undefined" => asm!("ud2"),
            b"halt" => asm!("hlt"),
            b"read-control" => asm!("mov rax, cr3", out("rax") _),
            b"write-control" => asm!("mov cr3, {}", in(reg) 0u64),
            b"write-model-specific" => asm!("wrmsr", in("ecx") 0xc000_0080u32, in("eax") 0, in("edx") 0),
            b"load-descriptors" => asm!("lgdt [{}]", in(reg) layout::INPUT),
            b"disable-interrupts" => asm!("cli"),
            b"clock" => asm!("rdtsc", out("eax") _, out("edx") _),
            b"port-out" => asm!("out dx, eax", in("dx") 0xcf8u16, in("eax") 1u32),
            b"port-in" => asm!("in eax, dx", in("dx") EXIT_PORT, out("eax") _),
            b"port-narrow" => asm!("out dx, al", in("dx") EXIT_PORT, in("al") 1u8),
            b"port-many" => {
                asm!("rep outsd", in("dx") EXIT_PORT, inout("rsi") layout::INPUT => _, inout("rcx") 4u64 => _)
            }
            b"port-neighbour" => asm!("out dx, eax", in("dx") EXIT_PORT + 1, in("eax") 1u32),
            b"port-fault" => asm!("out dx, al", in("dx") layout::FAULT_PORT, in("al") 6u8),
            b"status" => asm!("out dx, eax", in("dx") EXIT_PORT, in("eax") 0x7700_0001u32),
            b"hypercall-intel" => asm!("vmcall", inout("rax") 1u64 => _),
            b"hypercall-amd" => asm!("vmmcall", inout("rax") 1u64 => _),
            b"system-call" => asm!("syscall", out("rcx") _, out("r11") _),
            b"system-enter" => asm!("sysenter"),
            b"interrupt" => asm!("int 0x80"),
            b"breakpoint" => asm!("int3"),
            b"single-step" => asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq", "nop", "nop"),
            b"wide-vectors" => asm!("vpaddd ymm0, ymm1, ymm1"),
            b"wider-vectors" => asm!("vpaddd zmm0, zmm1, zmm1"),
            b"tiles" => asm!(".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0"), // tilerelease
            b"extended-state" => asm!("xgetbv", in("ecx") 0, out("eax") _, out("edx") _),
            b"protection-keys" => asm!("wrpkru", in("eax") 0x5555_5554u32 ^ 0x4000_0000, in("ecx") 0, in("edx") 0),
            b"segment-base" => asm!("wrfsbase {0}", "wrgsbase {0}", in(reg) 0x5ec2_e700_0000u64),
            b"bad-stack" => asm!("mov rsp, {}", "push rax", "ud2", in(reg) 0x10u64),
            b"lost" => asm!("mov rsp, {}", "ud2", in(reg) 0xdead_0000_0000_0000u64),
            _ => panic!("unknown order"),
        }
    }
}

pub fn fault() -> ! {
    // SAFETY: faults, and does not return.
    unsafe { asm!("ud2", options(noreturn)) }
}

pub fn divide() {
    // SAFETY: faults.
    unsafe { asm!("div {0:e}", in(reg) 0, inout("eax") 1 => _, inout("edx") 0 => _) };
}

pub fn pollute(marker: &[u8], output: &mut [u8]) {
    let output = output.as_mut_ptr() as usize;
    // SAFETY: only memory that nothing uses any more, and registers that are declared as changed. (The x87 registers need
    // not be: nothing here uses them.)
    unsafe {
        fill(output, output + layout::OUTPUT_SIZE as usize, marker);
        fill(layout::STACK as usize, stack_pointer() - 512, marker);
        fill(SCRATCH.0.get() as usize, SCRATCH.0.get() as usize + 4096, marker);
        fill(heap::top(), heap::limit(), marker);
        pollute_registers(marker);
        if WIDE.load(Relaxed) {
            pollute_wide_registers(marker);
        }
    }
}

/// # Safety
/// Nothing uses x87 registers, and nothing goes on that depends on the control words.
unsafe fn pollute_registers(marker: &[u8]) {
    let first = u64::from_le_bytes(*marker.first_chunk().unwrap());
    // SAFETY: by the contract of this function.
    unsafe {
        asm!(
            "fldpi", "fldln2",
            "movups xmm0, [{m}]", "movaps xmm1, xmm0", "movaps xmm2, xmm0", "movaps xmm3, xmm0", "movaps xmm4, xmm0",
            "movaps xmm5, xmm0", "movaps xmm6, xmm0", "movaps xmm7, xmm0", "movaps xmm8, xmm0", "movaps xmm9, xmm0",
            "movaps xmm10, xmm0", "movaps xmm11, xmm0", "movaps xmm12, xmm0", "movaps xmm13, xmm0", "movaps xmm14, xmm0",
            "movaps xmm15, xmm0",
            "movq mm0, {f}", "movq mm1, {f}", "movq mm2, {f}", "movq mm3, {f}", "movq mm4, {f}", "movq mm5, {f}",
            "movq mm6, {f}", "movq mm7, {f}",
            "fldcw [{c}]", "ldmxcsr [{x}]",
            "mov r8, {f}", "mov r9, {f}", "mov r10, {f}", "mov r11, {f}", "mov r12, {f}", "mov r13, {f}", "mov r14, {f}",
            "mov r15, {f}",
            m = in(reg) marker.as_ptr(), f = in(reg) first, c = in(reg) &0x0f7fu16, x = in(reg) &0x7f80u32,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
            out("xmm14") _, out("xmm15") _,
        );
    }
}

/// # Safety
/// Registers wider than XMM can be used.
unsafe fn pollute_wide_registers(marker: &[u8]) {
    let enabled: u32;
    // SAFETY: only registers that the compiler does not use in this image, and such as are enabled.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _);
        if enabled & 4 != 0 {
            asm!(
                "vbroadcastf128 ymm0, [{m}]", "vmovaps ymm1, ymm0", "vmovaps ymm2, ymm0", "vmovaps ymm3, ymm0",
                "vmovaps ymm4, ymm0", "vmovaps ymm5, ymm0", "vmovaps ymm6, ymm0", "vmovaps ymm7, ymm0", "vmovaps ymm8, ymm0",
                "vmovaps ymm9, ymm0", "vmovaps ymm10, ymm0", "vmovaps ymm11, ymm0", "vmovaps ymm12, ymm0",
                "vmovaps ymm13, ymm0", "vmovaps ymm14, ymm0", "vmovaps ymm15, ymm0",
                m = in(reg) marker.as_ptr(), clobber_abi("sysv64"),
            );
        }
        if enabled & 0xe0 == 0xe0 {
            asm!(
                "vbroadcastf32x4 zmm0, [{m}]", "vmovaps zmm7, zmm0", "vmovaps zmm8, zmm0", "vmovaps zmm15, zmm0",
                "vmovaps zmm16, zmm0", "vmovaps zmm17, zmm0", "vmovaps zmm23, zmm0", "vmovaps zmm24, zmm0",
                "vmovaps zmm30, zmm0", "vmovaps zmm31, zmm0",
                "kmovw k1, [{m}]", "kmovw k2, [{m}]", "kmovw k6, [{m}]", "kmovw k7, [{m}]",
                m = in(reg) marker.as_ptr(), clobber_abi("sysv64"),
            );
        }
    }
}

pub fn search(wanted: &[u8]) -> [u32; AREAS] {
    save_vectors(&VECTORS);
    let scratch = SCRATCH.0.get() as usize;
    let saved = [&ENTRY_VECTORS, &VECTORS].map(|vectors| vectors.0.get() as usize);
    // SAFETY: these areas are readable.
    let [input, output, stack, variables, heap, held] = unsafe {
        let area = |start: u64, size: u64| count(start as usize, (start + size) as usize, wanted);
        [
            area(layout::INPUT, layout::INPUT_SIZE),
            area(layout::OUTPUT, layout::OUTPUT_SIZE),
            area(layout::STACK, layout::STACK_SIZE),
            count(scratch, scratch + 4096, wanted),
            count(layout::HEAP as usize, heap::limit(), wanted),
            saved.into_iter().map(|start| count(start, start + 12 * 1024, wanted)).sum(),
        ]
    };
    // SAFETY: written at the start of the run, and by nothing since.
    let (general, vectors) = unsafe { (&*ENTRY_REGISTERS.0.get(), &*ENTRY_VECTORS.0.get()) };
    // General registers without arguments of the host are zero.
    let general = general.iter().filter(|register| **register != 0).count() as u32;
    // All others are as after power-on: the control words have their initial values, and all else
    // is zero.
    let mut expected = [0; 12 * 1024];
    expected[..2].copy_from_slice(&0x037fu16.to_le_bytes());
    expected[24..28].copy_from_slice(&0x1f80u32.to_le_bytes());
    expected[28..32].copy_from_slice(&vectors[28..32]);
    expected[512..520].copy_from_slice(&vectors[512..520]); // which parts are in use
    let other = vectors.iter().zip(expected).filter(|(found, expected)| **found != *expected).count() as u32;
    [input, output, stack, variables, heap, held + general + other + segment_bases()]
}

/// How many of the segments with their own base start at another address than zero. Found without
/// reading the base, which may be forbidden. (A base far off faults here, which is an answer too.)
fn segment_bases() -> u32 {
    static PROBE: u64 = 0x0123_4567_89ab_cdef;
    let (in_fs, in_gs): (u64, u64);
    // SAFETY: reads a constant of this image, unless a base is not zero.
    unsafe {
        asm!("mov {0}, fs:[{2}]", "mov {1}, gs:[{2}]", out(reg) in_fs, out(reg) in_gs, in(reg) &raw const PROBE);
    }
    u32::from(in_fs != PROBE) + u32::from(in_gs != PROBE)
}

fn stack_pointer() -> usize {
    let pointer;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}
