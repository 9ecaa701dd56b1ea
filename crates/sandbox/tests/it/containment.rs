//! A sidecar that was taken over can only fail, and harms no other.

use crate::support::misbehaving::{self, order};
use crate::support::{AMPLE, empty, load, request};
use leno_sandbox::{Access, Engine, Fault, Image, OutputError, Pool, RunError};
use std::time::Duration;

/// The deadline of a loop. Any sound run on a busy machine is shorter; if it is not, it is run with
/// more time.
const SHORT: Duration = Duration::from_millis(5);

struct Prisoner {
    image: Image,
    pool: Pool,
    sound: leno_policy::outcome::Output,
}

impl Prisoner {
    fn new(engine: &Engine) -> Self {
        let image = load(engine, &empty("orders/a"));
        let mut pool = Pool::new();
        let sound = pool.run(&image, &request("/a", &[("x", "y")]), AMPLE).unwrap();
        Self { image, pool, sound }
    }

    /// Gives an order, expects a fault, and that the next request is served normally.
    fn fault(&mut self, name: &str, argument: &[u8], deadline: Duration) -> Fault {
        let fault = order(&mut self.pool, &self.image, name, argument, deadline).expect_err(name);
        self.serves(name);
        fault
    }

    fn serves(&mut self, after: &str) {
        let output = self.pool.run(&self.image, &request("/a", &[("x", "y")]), AMPLE);
        assert_eq!(output.unwrap_or_else(|error| panic!("after {after}: {error}")), self.sound, "after {after}");
    }
}

fn memory(fault: &Fault) -> Option<(u64, Access)> {
    match fault {
        Fault::Memory { address, access, .. } => Some((*address, *access)),
        _ => None,
    }
}

#[test]
fn a_micro_vm_executes_nothing_that_it_may_not() {
    let mut prisoner = Prisoner::new(&misbehaving::microvm());
    let forbidden = [
        "undefined",
        "halt",
        "read-control",
        "write-control",
        "write-model-specific",
        "load-descriptors",
        "disable-interrupts",
        "interrupt",
        "breakpoint",
        "single-step",
        "system-enter",
        "port-out",
        "port-neighbour",
        "port-fault",
    ];
    for name in forbidden {
        let fault = prisoner.fault(name, b"", AMPLE);
        assert!(matches!(fault, Fault::Instruction { at, .. } if at != 0), "{name}: {fault}");
    }
    // These instructions are disabled, but kernels that run guests without hardware virtualisation
    // do not always obey that. The tests of residue check the data that such an instruction leaves.
    for name in ["wide-vectors", "wider-vectors", "tiles", "extended-state", "segment-base", "protection-keys", "clock"]
    {
        let result = order(&mut prisoner.pool, &prisoner.image, name, b"", AMPLE);
        assert!(matches!(result, Ok(_) | Err(Fault::Instruction { .. })), "{name}: {result:?}");
        println!("{name}: {result:?}");
        prisoner.serves(name);
    }
    // This instruction is undefined, too; some hosts of nested guests run it nevertheless, and it
    // ends at address 0, where nothing is ever mapped.
    let fault = prisoner.fault("system-call", b"", AMPLE);
    assert!(matches!(fault, Fault::Instruction { .. } | Fault::Memory { at: 0, address: 0, .. }), "{fault}");
}

#[test]
fn a_micro_vm_leaves_only_as_it_should() {
    let mut prisoner = Prisoner::new(&misbehaving::microvm());
    for name in ["port-in", "port-narrow", "status"] {
        let fault = prisoner.fault(name, b"", AMPLE);
        assert!(matches!(fault, Fault::Escape(_)), "{name}: {fault}");
    }
    // Depending on how many writes the kernel reports at once, this is an invalid exit or one with
    // an invalid word.
    let fault = prisoner.fault("port-many", b"", AMPLE);
    assert!(matches!(fault, Fault::Escape(_) | Fault::BadLength { .. }), "{fault}");
    // A call to the hypervisor is either undefined, or returns without effect; it never reaches
    // this process.
    for name in ["hypercall-intel", "hypercall-amd"] {
        let result = order(&mut prisoner.pool, &prisoner.image, name, b"", AMPLE);
        assert!(matches!(result, Ok(_) | Err(_)), "{result:?}");
        prisoner.serves(name);
    }
}

#[test]
fn a_micro_vm_reaches_no_memory_that_is_not_its_own() {
    let mut prisoner = Prisoner::new(&misbehaving::microvm());
    // Unmapped memory, page tables, descriptors, fault stubs, between the areas, the processor's
    // own stack, past the heap, the encoded program, past everything.
    let unreachable = [
        "0",
        "1000",
        "2000",
        "3000",
        "5000",
        "6000",
        "1ff000",
        "210000",
        "228000",
        "240ff8",
        "270000",
        "400000",
        "40000000",
        "7fffffff0000",
    ];
    for address in unreachable {
        let expected = u64::from_str_radix(address, 16).unwrap();
        for (name, access) in [("read", Access::Read), ("write", Access::Write), ("execute", Access::Execute)] {
            let fault = prisoner.fault(name, address.as_bytes(), AMPLE);
            assert_eq!(memory(&fault), Some((expected, access)), "{name} {address}: {fault}");
        }
    }
    // The program's code, constants and input.
    for (name, argument) in [("write-code", ""), ("write-constant", ""), ("write", "40000"), ("write", "200000")] {
        let fault = prisoner.fault(name, argument.as_bytes(), AMPLE);
        assert_eq!(memory(&fault).map(|(_, access)| access), Some(Access::Write), "{name} {argument}: {fault}");
    }
    // Input, output, stack, variables, heap.
    for (name, argument) in [
        ("execute", "200000"),
        ("execute", "220000"),
        ("execute-stack", ""),
        ("execute", "280000"),
        ("execute", "300000"),
    ] {
        let fault = prisoner.fault(name, argument.as_bytes(), AMPLE);
        assert_eq!(memory(&fault).map(|(_, access)| access), Some(Access::Execute), "{name} {argument}: {fault}");
    }
    // A non-canonical address.
    let fault = prisoner.fault("write", b"8000000000000000", AMPLE);
    assert!(matches!(fault, Fault::Instruction { .. }), "{fault}");
    // A heap ends where its program's does: the next byte is unreachable, although other programs
    // have it mapped.
    let fault = prisoner.fault("write", b"3ffff8", AMPLE);
    assert_eq!(memory(&fault), Some((0x3f_fff8, Access::Write)));
}

#[test]
fn a_micro_vm_without_a_stack_is_reported_like_any_other() {
    let mut prisoner = Prisoner::new(&misbehaving::microvm());
    assert_eq!(memory(&prisoner.fault("bad-stack", b"", AMPLE)), Some((8, Access::Write)));
    assert!(matches!(prisoner.fault("lost", b"", AMPLE), Fault::Instruction { .. }));
}

#[test]
fn a_wasm_instance_reaches_no_memory_that_is_not_its_own() {
    let mut prisoner = Prisoner::new(&misbehaving::wasm());
    for address in ["200000", "10000000", "7fffffff", "fffffff0", "ffffffff"] {
        for name in ["read", "write"] {
            let fault = prisoner.fault(name, address.as_bytes(), AMPLE);
            assert!(memory(&fault).is_some(), "{name} {address}: {fault}");
        }
    }
    for index in ["0", "ffff", "7fffffff"] {
        let fault = prisoner.fault("execute", index.as_bytes(), AMPLE);
        assert!(matches!(fault, Fault::Trap(_)), "{index}: {fault}");
    }
    assert!(matches!(prisoner.fault("undefined", b"", AMPLE), Fault::Instruction { .. }));
    assert!(matches!(prisoner.fault("grow", b"1000", AMPLE), Fault::Panicked(_)));
}

#[test]
fn what_is_the_same_on_both_engines() {
    for engine in [misbehaving::microvm(), misbehaving::wasm()] {
        let kind = engine.kind();
        let mut prisoner = Prisoner::new(&engine);
        assert_eq!(prisoner.fault("spin", b"", SHORT), Fault::Deadline, "{kind}");
        assert_eq!(prisoner.fault("spin-writing", b"", SHORT), Fault::Deadline, "{kind}");
        assert_eq!(prisoner.fault("spin", b"", Duration::ZERO), Fault::Deadline, "{kind}");
        assert_eq!(prisoner.fault("exhaust-heap", b"", AMPLE), Fault::OutOfMemory, "{kind}");
        assert!(matches!(prisoner.fault("divide", b"", AMPLE), Fault::Arithmetic { .. }), "{kind}");
        let fault = prisoner.fault("panic", b"", AMPLE);
        assert!(fault.to_string().starts_with("panicked at src/misbehave.rs:"), "{kind}: {fault}");
        let fault = prisoner.fault("recurse", b"", AMPLE);
        assert!(matches!(fault, Fault::StackOverflow | Fault::Memory { .. }), "{kind}: {fault}");
        for name in ["long-output", "huge-output"] {
            assert!(
                matches!(prisoner.fault(name, b"", AMPLE), Fault::BadLength { limit: 32_768, .. }),
                "{kind}: {name}"
            );
        }
    }
    let mut prisoner = Prisoner::new(&misbehaving::microvm());
    assert_eq!(prisoner.fault("recurse", b"", AMPLE), Fault::StackOverflow);
}

#[test]
fn an_output_that_is_none_is_refused() {
    for engine in [misbehaving::microvm(), misbehaving::wasm()] {
        let mut prisoner = Prisoner::new(&engine);
        assert_eq!(order(&mut prisoner.pool, &prisoner.image, "empty-output", b"", AMPLE).unwrap(), b"");
        assert_eq!(order(&mut prisoner.pool, &prisoner.image, "full-output", b"", AMPLE).unwrap(), vec![0xff; 32_768]);
        prisoner.serves("odd outputs");
        // Inputs of `Pool::run`, which the proxy uses, cannot be orders, so this checks the raw
        // output of the order `say`. `Pool::run` decodes such an output, and the tests of the
        // decoder cover every kind of false output.
        let lie = [1, 0xff, 0xff, 0xff, 0xff, 0x0f];
        let said = order(&mut prisoner.pool, &prisoner.image, "say", &lie, AMPLE).unwrap();
        assert_eq!(said, lie);
        prisoner.serves("a lie");
    }
    // Malformed output is an error of the run, as the type shows too.
    let error = RunError::from(OutputError::Excess(1));
    assert_eq!(error.to_string(), "the sidecar's output is invalid: 1 bytes follow its end");
}

#[test]
fn a_run_that_needs_more_heap_gets_it() {
    for engine in [misbehaving::microvm(), misbehaving::wasm()] {
        let mut prisoner = Prisoner::new(&engine);
        for size in [1_000u64, 40_000, 200_000, 900_000] {
            let output =
                order(&mut prisoner.pool, &prisoner.image, "use-heap", size.to_string().as_bytes(), AMPLE).unwrap();
            assert_eq!(output, (size * 7).to_le_bytes(), "{size} bytes on {}", engine.kind());
            prisoner.serves("using heap");
        }
        assert_eq!(prisoner.fault("use-heap", b"3000000", AMPLE), Fault::OutOfMemory);
    }
}
