//! The engines give the same results, and name the cause when they cannot run.

use crate::support::{AMPLE, empty, engines, load, request};
use leno_policy::engine::EngineKind;
use leno_policy::outcome::Output;
use leno_sandbox::{Engine, EngineError, Image, LoadError, Pool, RunError};
use std::path::Path;

#[test]
fn one_program_says_the_same_on_every_engine() {
    let mut pool = Pool::new();
    let [microvm, wasm, inline] = engines().map(|engine| {
        let image = load(&engine, &empty("orders/a"));
        assert_eq!(image.kind(), engine.kind());
        let judged: Vec<_> =
            (0..5).map(|count| pool.run(&image, &request("/a", &vec![("x", "y"); count]), AMPLE).unwrap()).collect();
        judged
    });
    assert_eq!(microvm, inline);
    assert_eq!(wasm, inline);
}

#[test]
fn an_encoded_input_gets_the_same_output() {
    let mut pool = Pool::new();
    let constant = Image::constant(empty("orders/a")).unwrap();
    let images = engines().map(|engine| load(&engine, &empty("orders/a"))).into_iter().chain([constant]);
    for image in images {
        for request in [request("/a", &[]), request("/a//b", &[("x", "y")]), request("/..", &[])] {
            let encoded = postcard::to_stdvec(&request).unwrap();
            let output = pool.run(&image, &request, AMPLE).unwrap();
            assert!(matches!(output, Output::Decided(_)), "{output:?}");
            assert_eq!(pool.run_encoded(&image, &encoded, AMPLE).unwrap(), output, "{:?}", image.kind());
        }
        for broken in [&[][..], &[0xff; 100]] {
            let output = pool.run_encoded(&image, broken, AMPLE).unwrap();
            assert!(matches!(output, Output::Unreadable(_)), "{:?}: {output:?}", image.kind());
        }
    }
}

#[test]
fn the_probe_chooses_micro_vms_where_a_guest_runs() {
    let (engine, reason) = Engine::probe().unwrap();
    assert!(reason.is_none(), "{}", reason.unwrap());
    assert_eq!(engine.kind(), EngineKind::Microvm);
}

#[test]
fn the_probe_falls_back_and_says_why() {
    for (device, expected) in [("/dev/no-such-device", "No such file"), ("/dev/null", "API version")] {
        let (engine, reason) = Engine::probe_on(Path::new(device)).unwrap();
        assert_eq!(engine.kind(), EngineKind::Wasm);
        let reason = reason.unwrap().to_string();
        assert!(reason.contains(device) && reason.contains(expected), "{reason}");
    }
}

#[test]
fn what_is_no_program_is_refused() {
    for engine in engines() {
        for blob in [&[][..], &[0xff; 200]] {
            let error = engine.load(blob).unwrap_err();
            assert!(matches!(error, LoadError::Refused(_)), "{:?}: {error}", engine.kind());
        }
        load(&engine, &empty("orders/a"));
    }
}

#[test]
fn a_program_or_input_that_does_not_fit_is_refused() {
    for engine in engines().into_iter().filter(|engine| engine.kind() != EngineKind::Inline) {
        let error = engine.load(&vec![0; 2 << 20]).unwrap_err();
        assert!(matches!(error, LoadError::TooLarge { .. }), "{error}");
        let image = load(&engine, &empty("orders/a"));
        let mut pool = Pool::new();
        let long = "x".repeat(70_000);
        let error = pool.run(&image, &request("/", &[("a", &long)]), AMPLE).unwrap_err();
        assert!(matches!(error, RunError::InputTooLarge), "{error}");
        let error = pool.run_encoded(&image, long.as_bytes(), AMPLE).unwrap_err();
        assert!(matches!(error, RunError::InputTooLarge), "{error}");
        let used = pool.take(&image).unwrap().run(long.as_bytes(), AMPLE);
        assert!(used.output().unwrap_err().to_string().contains("70000 bytes"));
        pool.give_back(used.reset());
        pool.run(&image, &request("/", &[]), AMPLE).unwrap();
    }
}

#[test]
fn a_pool_lends_up_to_its_cap() {
    for engine in engines() {
        let image = load(&engine, &empty("orders/a"));
        let mut pool = Pool::with_cap(2);
        let (first, second) = (pool.take(&image).unwrap(), pool.take(&image).unwrap());
        assert!(matches!(pool.take(&image), Err(EngineError::Exhausted(2))));
        drop(first);
        let third = pool.take(&image).unwrap();
        let used = second.run(&[], AMPLE);
        assert!(pool.take(&image).is_err());
        pool.give_back(used.reset());
        pool.take(&image).unwrap();
        drop(third);
    }
}

#[test]
fn an_image_outlives_its_engine_and_a_pool_serves_several_engines() {
    let mut pool = Pool::new();
    let images: Vec<_> =
        engines().into_iter().chain(engines()).map(|engine| load(&engine, &empty("orders/a"))).collect();
    for image in images.iter().cycle().take(20) {
        pool.run(image, &request("/", &[]), AMPLE).unwrap();
    }
}
