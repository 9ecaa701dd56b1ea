//! Engines whose guest obeys orders to misbehave, built for the tests; see
//! `guest/src/misbehave.rs`.

#[path = "../../../build/guest.rs"]
mod guest;

use guest::Form;
use leno_sandbox::{Engine, Fault, FinishedRun, Image, Pool};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// The micro-VM engine.
pub(crate) fn microvm() -> Engine {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| build(Form::Elf));
    Engine::microvm_on(Path::new("/dev/kvm"), image).expect("these tests need micro-VMs")
}

/// The WebAssembly engine.
pub(crate) fn wasm() -> Engine {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    Engine::wasm_with(IMAGE.get_or_init(|| build(Form::Wasm))).unwrap()
}

fn build(form: Form) -> Vec<u8> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("misbehaving");
    let file = guest::build(form, &repository, &target, &["misbehave"]).unwrap_or_else(|message| panic!("{message}"));
    std::fs::read(file).unwrap()
}

/// Runs one order, and returns its output or fault.
pub(crate) fn order(
    pool: &mut Pool,
    image: &Image,
    order: &str,
    argument: &[u8],
    deadline: Duration,
) -> Result<Vec<u8>, Fault> {
    let used = start(pool, image, order, argument, deadline);
    let result = used.output().map(<[u8]>::to_vec);
    pool.give_back(used.reset());
    result
}

/// Runs one order.
pub(crate) fn start(pool: &mut Pool, image: &Image, order: &str, argument: &[u8], deadline: Duration) -> FinishedRun {
    let input = [format!("misbehave:{order}:").as_bytes(), argument].concat();
    pool.take(image).unwrap().run(&input, deadline)
}
