//! The part of a guest that no guest can change or even read: page tables, descriptor tables, fault
//! stubs. Built once into read-only memory that all shells share (formats: Intel SDM volume 3,
//! chapters 4, 6 and 8).

use super::elf::Guest;
use super::layout::{self, PAGE};
use kvm_bindings::{kvm_segment, kvm_sregs};

/// How much heap a program's page tables map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HeapClass {
    K64,
    K128,
    K256,
    K512,
    M1,
}

impl HeapClass {
    pub(super) const ALL: [Self; 5] = [Self::K64, Self::K128, Self::K256, Self::K512, Self::M1];
    /// The largest class.
    pub(super) const MAX: Self = Self::M1;

    /// Bytes of heap.
    pub(super) fn size(self) -> u64 {
        layout::HEAP_SIZE >> (Self::MAX as u64 - self as u64)
    }

    /// The smallest class with at least this much heap.
    pub(super) fn holding(bytes: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.size() >= bytes)
    }
}

/// The memory that a guest can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// For runs: input, output, stack, variables, and a heap of this class.
    Run(HeapClass),
    /// For initialisation: the largest heap, and the blob.
    Init,
}

impl View {
    /// Root of the page tables of this view.
    pub(super) fn root(self) -> u64 {
        let index = match self {
            Self::Run(class) => class as u64,
            Self::Init => HeapClass::ALL.len() as u64,
        };
        VIEWS + index * VIEW_SIZE
    }

    /// End of the mapped heap.
    pub(super) fn heap_end(self) -> u64 {
        layout::HEAP
            + match self {
                Self::Run(class) => class.size(),
                Self::Init => layout::HEAP_SIZE,
            }
    }
}

/// Page table of the first 2 MiB, the same in all views.
const LOW: u64 = layout::SYSTEM;
const GDT: u64 = LOW + PAGE;
const IDT: u64 = GDT + PAGE;
const TSS: u64 = IDT + PAGE;
const STUBS: u64 = TSS + PAGE;
const VIEWS: u64 = STUBS + PAGE;
/// Root, second and third level, and the tables of the shell's 2 MiB and the blob's.
const VIEW_SIZE: u64 = 5 * PAGE;
const SYSTEM_END: u64 = VIEWS + 6 * VIEW_SIZE;
const _: () = assert!(SYSTEM_END <= layout::IMAGE);

const STUB_SIZE: u64 = 16;
/// Vectors that the processor itself raises; all others share the last stub.
const STUB_COUNT: u64 = 33;

// Selectors: null, kernel code, kernel data, user data, user code, task state.
const USER_DATA: u16 = 0x1b;
const USER_CODE: u16 = 0x23;
const TASK: u16 = 0x28;
const GDT_LIMIT: u16 = 0x37;

const TSS_SIZE: u64 = 0x68;
/// Ports up to 0x2f, and the byte of ones that must end the bitmap.
const TSS_LIMIT: u64 = TSS_SIZE + 6;

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
/// The accessed bit is set in advance, because the processor could not set it in read-only memory.
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const NO_EXECUTE: u64 = 1 << 63;

const READ_ONLY: u64 = PRESENT | ACCESSED | USER | NO_EXECUTE;
const READ_WRITE: u64 = READ_ONLY | WRITE | DIRTY;
const CODE: u64 = PRESENT | ACCESSED | USER;
const TABLE: u64 = PRESENT | ACCESSED | USER | WRITE;

/// Fills `memory`, which the guest sees from address 0, with the system part and the image's code and constants.
pub(super) fn build(memory: &mut [u8], guest: &Guest) {
    let mut writer = Writer(memory);
    for segment in [&guest.text, &guest.rodata] {
        writer.bytes(segment.address, &segment.bytes);
    }
    writer.map(LOW, GDT..STUBS, PRESENT | ACCESSED | NO_EXECUTE);
    writer.map(LOW, STUBS..STUBS + PAGE, PRESENT | ACCESSED);
    writer.map(LOW, guest.text.pages(), CODE);
    writer.map(LOW, guest.rodata.pages(), READ_ONLY);
    for class in HeapClass::ALL {
        writer.view(View::Run(class), guest);
    }
    writer.view(View::Init, guest);
    writer.descriptors();
}

struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn bytes(&mut self, at: u64, bytes: &[u8]) {
        self.0[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn word(&mut self, at: u64, value: u64) {
        self.bytes(at, &value.to_le_bytes());
    }

    /// Maps pages one to one in the last-level table that covers them.
    fn map(&mut self, table: u64, pages: std::ops::Range<u64>, flags: u64) {
        for page in pages.step_by(PAGE as usize) {
            self.word(table + (page / PAGE % 512) * 8, page | flags);
        }
    }

    fn view(&mut self, view: View, guest: &Guest) {
        let root = view.root();
        let [second, third, shell, blob] = [1, 2, 3, 4].map(|index| root + index * PAGE);
        self.word(root, second | TABLE);
        self.word(second, third | TABLE);
        self.word(third, LOW | TABLE);
        self.word(third + 8, shell | TABLE);
        self.map(shell, layout::INPUT..layout::INPUT + layout::INPUT_SIZE, READ_ONLY);
        self.map(shell, layout::OUTPUT..layout::OUTPUT + layout::OUTPUT_SIZE, READ_WRITE);
        self.map(shell, layout::FAULT_STACK..layout::FAULT_STACK + PAGE, READ_WRITE & !USER);
        self.map(shell, layout::STACK..layout::STACK + layout::STACK_SIZE, READ_WRITE);
        self.map(shell, guest.data.pages(), READ_WRITE);
        self.map(shell, layout::HEAP..view.heap_end(), READ_WRITE);
        if view == View::Init {
            self.word(third + 16, blob | TABLE);
            self.map(blob, layout::BLOB..layout::BLOB + layout::BLOB_SIZE, READ_ONLY);
        }
    }

    fn descriptors(&mut self) {
        let entries = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x00cf_f300_0000_ffff, 0x00af_fb00_0000_ffff];
        for (index, entry) in entries.into_iter().enumerate() {
            self.word(GDT + index as u64 * 8, entry);
        }
        self.word(GDT + u64::from(TASK), 0x0000_8b00_0000_0000 | TSS << 16 | TSS_LIMIT);
        // The stack for the kernel and for all faults (the first of the interrupt stacks).
        self.word(TSS + 4, layout::FAULT_STACK + PAGE);
        self.word(TSS + 0x24, layout::FAULT_STACK + PAGE);
        // The I/O permission bitmap: a zero bit permits the port. Only the four ports of the exit
        // are permitted.
        self.bytes(TSS + 0x66, &(TSS_SIZE as u16).to_le_bytes());
        let mut permissions = [0xff; 7];
        for port in layout::EXIT_PORT..layout::EXIT_PORT + 4 {
            permissions[usize::from(port / 8)] &= !(1 << (port % 8));
        }
        self.bytes(TSS + TSS_SIZE, &permissions);
        for vector in 0..256 {
            let stub = STUBS + vector.min(STUB_COUNT - 1) * STUB_SIZE;
            // Present interrupt gate for the kernel only (`int n` is a protection fault), on the first interrupt stack.
            self.word(IDT + vector * 16, (stub & 0xffff) | 8 << 16 | 1 << 32 | 0x8e << 40 | (stub >> 16) << 48);
            self.word(IDT + vector * 16 + 8, 0);
        }
        for vector in 0..STUB_COUNT {
            // mov al, vector; out FAULT_PORT, al; hlt; jmp back to hlt
            let code = [0xb0, vector as u8, 0xe6, layout::FAULT_PORT as u8, 0xf4, 0xeb, 0xfd];
            self.bytes(STUBS + vector * STUB_SIZE, &code);
        }
    }
}

/// Control and segment registers for unprivileged 64-bit code. `CR3` is set for each run.
///
/// These features are not enabled, so that a guest cannot use them: vector registers wider than XMM
/// (`CR4.OSXSAVE`), `FS` and `GS` base (`CR4.FSGSBASE`), protection keys (`CR4.PKE`), `syscall`
/// (`EFER.SCE`). `CR4.TSD` disables reading the clock. This limits the guest and leaves less state
/// to restore; nothing relies on it, because kernels that run guests without hardware
/// virtualisation obey only some of these bits.
pub(super) fn registers(reset: kvm_sregs) -> kvm_sregs {
    const CR0: u64 = 0x8001_0033; // PG, WP, NE, ET, MP, PE
    const CR4: u64 = 0x624; // OSXMMEXCPT, OSFXSR, PAE, TSD
    const EFER: u64 = 0xd00; // NXE, LMA, LME
    let mut registers = reset;
    registers.cr0 = CR0;
    registers.cr4 = CR4;
    registers.efer = EFER;
    registers.cs = segment(USER_CODE, 0xb, true);
    let data = segment(USER_DATA, 0x3, false);
    [registers.ds, registers.es, registers.fs, registers.gs, registers.ss] = [data; 5];
    registers.tr = kvm_segment {
        base: TSS,
        limit: TSS_LIMIT as u32,
        selector: TASK,
        type_: 0xb,
        present: 1,
        ..kvm_segment::default()
    };
    registers.gdt.base = GDT;
    registers.gdt.limit = GDT_LIMIT;
    registers.idt.base = IDT;
    registers.idt.limit = 0xfff;
    registers
}

fn segment(selector: u16, kind: u8, code: bool) -> kvm_segment {
    kvm_segment {
        limit: u32::MAX,
        selector,
        type_: kind,
        present: 1,
        dpl: 3,
        db: u8::from(!code),
        s: 1,
        l: u8::from(code),
        g: 1,
        ..kvm_segment::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The pages that the processor would find: page -> flags, for all pages that unprivileged code
    /// can reach.
    fn reachable(memory: &[u8], view: View) -> BTreeMap<u64, u64> {
        let word = |at: u64| u64::from_le_bytes(memory[at as usize..at as usize + 8].try_into().unwrap());
        let entries = |table: u64| {
            (0..512).map(move |index| (index, word(table + index * 8))).filter(|(_, entry)| entry & PRESENT != 0)
        };
        let address = |entry: u64| entry & 0x000f_ffff_ffff_f000;
        let mut pages = BTreeMap::new();
        for (first, root) in entries(view.root()) {
            for (second, directory) in entries(address(root)) {
                for (third, table) in entries(address(directory)) {
                    for (fourth, entry) in entries(address(table)) {
                        let page = ((first << 27) | (second << 18) | (third << 9) | fourth) * PAGE;
                        assert_eq!(address(entry), page, "mapped one to one");
                        if entry & USER != 0 {
                            pages.insert(page, entry);
                        }
                    }
                }
            }
        }
        pages
    }

    fn built() -> (Vec<u8>, Guest) {
        let guest = super::super::elf::parse(crate::microvm::GUEST).unwrap();
        let mut memory = vec![0; layout::IMAGE_END as usize];
        build(&mut memory, &guest);
        (memory, guest)
    }

    #[test]
    fn no_page_is_both_writable_and_executable_and_no_system_page_is_reachable() {
        let (memory, _) = built();
        for view in HeapClass::ALL.map(View::Run).into_iter().chain([View::Init]) {
            for (page, flags) in reachable(&memory, view) {
                assert!(flags & WRITE == 0 || flags & NO_EXECUTE != 0, "{page:#x} in {view:?}");
                assert!(page >= layout::IMAGE, "{page:#x} in {view:?}");
                assert!(page < layout::BLOB || view == View::Init, "{page:#x} in {view:?}");
            }
        }
    }

    #[test]
    fn what_a_run_can_write_is_what_a_reset_clears() {
        let (memory, guest) = built();
        for class in HeapClass::ALL {
            let written: Vec<u64> = reachable(&memory, View::Run(class))
                .into_iter()
                .filter(|(_, flags)| flags & WRITE != 0)
                .map(|(page, _)| page)
                .collect();
            let cleared: Vec<u64> = super::super::shell::writable(&guest, View::Run(class))
                .into_iter()
                .flat_map(|range| range.step_by(PAGE as usize))
                .collect();
            assert_eq!(written, cleared, "{class:?}");
        }
    }

    #[test]
    fn classes_double() {
        assert_eq!(HeapClass::ALL.map(HeapClass::size), [64, 128, 256, 512, 1024].map(|kib| kib * 1024));
        assert_eq!(HeapClass::holding(0x1_0001), Some(HeapClass::K128));
        assert_eq!(HeapClass::holding(layout::HEAP_SIZE + 1), None);
    }
}
