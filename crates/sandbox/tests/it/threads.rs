//! Many workers at once: runs, faults and deadlines of one do not affect the others.

use crate::support::misbehaving::{self, order};
use crate::support::{AMPLE, empty, load, request};
use leno_policy::outcome::Output;
use leno_sandbox::{Fault, Image, Pool};
use std::time::Duration;

const WORKERS: usize = 16;
const ROUNDS: usize = 40;

#[test]
fn workers_do_not_disturb_each_other() {
    for engine in [misbehaving::microvm(), misbehaving::wasm()] {
        let images: Vec<Image> = (0..4).map(|index| load(&engine, &empty(&format!("orders/{index}")))).collect();
        let mut pool = Pool::new();
        let expected: Vec<Output> =
            images.iter().map(|image| pool.run(image, &request("/a", &[]), AMPLE).unwrap()).collect();
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (images, expected) = (&images, &expected);
                scope.spawn(move || {
                    let mut pool = Pool::new();
                    for round in 0..ROUNDS {
                        if round % 2 == 0 {
                            // As an idle worker does, while the others run.
                            pool.tidy();
                        }
                        let which = (worker + round) % images.len();
                        let image = &images[which];
                        match (worker + round) % 8 {
                            0 => {
                                let fault = order(&mut pool, image, "spin", b"", Duration::from_millis(2));
                                assert_eq!(fault, Err(Fault::Deadline));
                            }
                            1 => {
                                let fault = order(&mut pool, image, "undefined", b"", AMPLE);
                                assert!(matches!(fault, Err(Fault::Instruction { .. })), "{fault:?}");
                            }
                            2 => {
                                let said = format!("{worker} in round {round}");
                                let output = order(&mut pool, image, "say", said.as_bytes(), AMPLE);
                                assert_eq!(output, Ok(said.into_bytes()));
                            }
                            _ => {
                                assert_eq!(pool.run(image, &request("/a", &[]), AMPLE).unwrap(), expected[which]);
                            }
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn programs_are_loaded_while_others_run() {
    for engine in [misbehaving::microvm(), misbehaving::wasm()] {
        std::thread::scope(|scope| {
            for worker in 0..8 {
                let engine = &engine;
                scope.spawn(move || {
                    let mut pool = Pool::new();
                    for round in 0..20 {
                        let image = load(engine, &empty(&format!("orders/{worker}-{round}")));
                        pool.run(&image, &request("/a", &[]), AMPLE).unwrap();
                    }
                });
            }
        });
    }
}
