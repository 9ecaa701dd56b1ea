//! No byte of one request can be found in another, neither in memory nor in registers, whether or
//! not the first succeeded, and for any program of the second.

use crate::support::misbehaving::{self, order};
use crate::support::{AMPLE, empty, load};
use leno_policy::engine::EngineKind;
use leno_policy::spec::Target;
use leno_sandbox::{Engine, Fault, Image, Pool};
use std::time::Duration;

/// The secret that must not be found again.
const MARKER: &[u8; 16] = b"secret-of-tenant";
const SHORT: Duration = Duration::from_millis(20);

/// The areas of a search.
const NAMES: [&str; 6] = ["input", "output", "stack", "variables", "heap", "registers"];

/// Programs from tiny to large, so that they have heaps of every size.
fn programs(engine: &Engine) -> Vec<Image> {
    let images: Vec<Image> = [0, 20_000, 50_000, 110_000, 250_000]
        .into_iter()
        .map(|size| {
            let mut spec = empty("orders/a");
            let callee = |index| Target {
                function: format!("orders/{index:0>1000}"),
                timeout_ms: 0,
                retry: None,
                breaker: None,
                as_received: false,
            };
            spec.targets.extend((0..size / 1000).map(callee));
            load(engine, &spec)
        })
        .collect();
    assert!(images.windows(2).all(|pair| pair[0].bytes() < pair[1].bytes()));
    images
}

fn search(pool: &mut Pool, image: &Image) -> [u32; 6] {
    let complement: Vec<u8> = MARKER.iter().map(|byte| !byte).collect();
    found(&order(pool, image, "search", &complement, AMPLE).unwrap())
}

fn found(output: &[u8]) -> [u32; 6] {
    std::array::from_fn(|area| u32::from_le_bytes(output[area * 4..area * 4 + 4].try_into().unwrap()))
}

#[test]
fn nothing_is_left_for_any_other_program() {
    for engine in [misbehaving::microvm(), misbehaving::wasm()] {
        let images = programs(&engine);
        let mut pool = Pool::new();
        for (first, polluter) in images.iter().enumerate() {
            for (second, searcher) in images.iter().enumerate() {
                for (name, deadline, expected) in [
                    ("pollute", AMPLE, None),
                    ("pollute-and-fault", AMPLE, Some("instruction")),
                    ("pollute-and-spin", SHORT, Some("deadline")),
                ] {
                    let outcome = order(&mut pool, polluter, name, MARKER, deadline);
                    match expected {
                        None => drop(outcome.unwrap()),
                        Some("deadline") => assert_eq!(outcome, Err(Fault::Deadline)),
                        Some(_) => assert!(matches!(outcome, Err(Fault::Instruction { .. })), "{outcome:?}"),
                    }
                    for area in search(&mut pool, searcher).into_iter().zip(NAMES) {
                        assert_eq!(
                            area.0,
                            0,
                            "{}: {name} by {first} was found by {second} in its {}",
                            engine.kind(),
                            area.1
                        );
                    }
                }
            }
        }
    }
}

/// Checks that the search of the test above can find the marker at all.
#[test]
fn a_search_finds_what_is_there() {
    for engine in [misbehaving::microvm(), misbehaving::wasm()] {
        let mut pool = Pool::new();
        for image in programs(&engine) {
            let areas = found(&order(&mut pool, &image, "pollute-and-search", MARKER, AMPLE).unwrap());
            // The input holds only the marker that is searched for, which does not count.
            let [input, output, stack, variables, heap, registers] = areas;
            assert!(stack > 100 && variables > 100 && heap > 1000, "{areas:?}");
            if engine.kind() == EngineKind::Microvm {
                assert!(input == 0 && output > 1000 && registers > 0, "{areas:?}");
            }
        }
    }
}

#[test]
fn segment_bases_leave_nothing() {
    let image = load(&misbehaving::microvm(), &empty("orders/a"));
    let mut pool = Pool::new();
    // Where the instruction is disabled it leaves nothing.
    let outcome = order(&mut pool, &image, "segment-base", b"", AMPLE);
    assert!(matches!(outcome, Ok(_) | Err(Fault::Instruction { .. })), "{outcome:?}");
    assert_eq!(search(&mut pool, &image), [0; 6]);
}

#[test]
fn inputs_and_outputs_leave_nothing_either() {
    for engine in [misbehaving::microvm(), misbehaving::wasm()] {
        let image = load(&engine, &empty("orders/a"));
        let mut pool = Pool::new();
        for length in [16, 4096, 30_000] {
            let text: Vec<u8> = MARKER.iter().copied().cycle().take(length).collect();
            assert_eq!(order(&mut pool, &image, "say", &text, AMPLE).unwrap(), text);
            assert_eq!(search(&mut pool, &image), [0; 6], "{length} bytes on {}", engine.kind());
        }
    }
}

#[test]
fn a_run_that_was_repeated_with_more_heap_leaves_nothing() {
    for engine in [misbehaving::microvm(), misbehaving::wasm()] {
        let images = programs(&engine);
        let mut pool = Pool::new();
        for image in &images {
            order(&mut pool, image, "use-heap", b"300000", AMPLE).unwrap();
            order(&mut pool, image, "pollute", MARKER, AMPLE).unwrap();
            order(&mut pool, &images[0], "use-heap", b"900000", AMPLE).unwrap();
            assert_eq!(search(&mut pool, &images[0]), [0; 6], "{}", engine.kind());
        }
    }
}
