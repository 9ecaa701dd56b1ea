use super::{init, run, without_time};
use crate::input::{Header, RequestInput};
use crate::outcome::Output;
use crate::spec::{Counts, KeyId, KeyPart, ProgramSpec, QuotaAlgorithm, RateLimit, Sidecar, TokenSource, Tracing};
use crate::testing::{self, request};
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

fn nine() -> ProgramSpec {
    let mut issuer = testing::issuer();
    issuer.required = false;
    issuer.sources = vec![testing::bearer(), TokenSource::Query("t".to_string()), TokenSource::Cookie("c".to_string())];
    issuer.claims_to_headers = vec![(vec!["sub".to_string()], "x-user".to_string())];
    let algorithm = QuotaAlgorithm::TokenBucket { requests: 10, period_ms: 1_000, burst: 20 };
    let key = vec![KeyPart::Header("x-team".to_string()), KeyPart::Path, KeyPart::Claim(vec!["sub".to_string()])];
    ProgramSpec {
        sidecar: Sidecar { name: "s".to_string(), ports: vec![80, 443], ..Sidecar::default() },
        authentication: vec![issuer],
        rate_limits: vec![RateLimit {
            name: "r".to_string(),
            counts: Counts::Requests,
            only: None,
            from: vec![],
            except: vec![],
            audit: false,
            key,
            algorithm,
        }],
        tracing: Tracing { name: "t".to_string(), enabled: true, sampling_per_10k: 100, accept_b3: true },
        ..testing::inbound()
    }
}

fn encoded(input: &RequestInput<'_>) -> Vec<u8> {
    postcard::to_allocvec(input).unwrap()
}

fn run_to_output(spec: &ProgramSpec, input: &[u8], area: usize) -> Output {
    let program = init(&postcard::to_allocvec(spec).unwrap()).unwrap();
    let mut output = vec![0xaa; area];
    let length = run(&program, input, &mut output);
    postcard::from_bytes(&output[..length]).unwrap()
}

#[test]
fn a_request_is_judged() {
    assert!(matches!(run_to_output(&testing::inbound(), &encoded(&request()), 4096), Output::Decided(_)));
}

#[test]
fn what_does_not_fit_is_said() {
    let input = encoded(&request());
    let mut spec = testing::inbound();
    spec.authorization[0].name = "n".repeat(100);
    let output = run_to_output(&spec, &input, 60);
    assert_eq!(output, Output::Unreadable("the outcome is larger than the output area".to_string()));
    let program = init(&postcard::to_allocvec(&testing::inbound()).unwrap()).unwrap();
    assert_eq!(run(&program, &input, &mut []), 0);
}

#[test]
fn bad_blobs_and_inputs() {
    let blob = postcard::to_allocvec(&nine()).unwrap();
    for length in 0..blob.len() {
        assert!(init(&blob[..length]).is_err(), "{length}");
    }
    assert!(init(&[0xff; 64]).unwrap_err().to_string().starts_with("the program cannot be decoded"));
    let input = encoded(&request());
    for length in 0..input.len() {
        assert!(
            matches!(run_to_output(&testing::inbound(), &input[..length], 4096), Output::Unreadable(_)),
            "{length}"
        );
    }
}

#[test]
fn nothing_is_left_of_an_input_that_is_shorter_than_a_time() {
    for length in 0..=8 {
        assert!(without_time(&[0; 8][..length]).is_empty(), "{length}");
    }
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "Bearer [A-Za-z0-9_.-]{0,60}".prop_map(String::into_bytes),
        "(t=|c=|a=|; |[a-z.]){0,12}".prop_map(String::into_bytes),
        "00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]".prop_map(String::into_bytes),
    ]
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "authorization",
        "cookie",
        "traceparent",
        "tracestate",
        "b3",
        "x-b3-traceid",
        "x-team",
        "x",
    ])
}

proptest! {
    #[test]
    fn random_inputs_never_panic(input in prop::collection::vec(any::<u8>(), 0..512)) {
        run_to_output(&nine(), &input, 32 * 1024);
    }

    #[test]
    fn spoiled_inputs_never_panic(index in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut input = encoded(&RequestInput { headers: vec![testing::header("authorization", "Bearer a.b.c")], ..request() });
        let index = index.index(input.len());
        input[index] = byte;
        run_to_output(&nine(), &input, 32 * 1024);
    }

    #[test]
    fn spoiled_blobs_never_panic(index in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut blob = postcard::to_allocvec(&nine()).unwrap();
        let index = index.index(blob.len());
        blob[index] = byte;
        if let Ok(program) = init(&blob) {
            let mut output = vec![0; 32 * 1024];
            run(&program, &encoded(&request()), &mut output);
        }
    }

    #[test]
    fn inputs_that_differ_only_in_time_are_equal_without_it(
        one in any::<u64>(),
        other in any::<u64>(),
        path in "/[a-z]{0,5}",
        verified in prop::option::of(any::<[u8; 32]>()),
    ) {
        let input = RequestInput { path: &path, verified: verified.map(KeyId), ..request() };
        let at = |now_ms| encoded(&RequestInput { now_ms, ..input.clone() });
        let (first, second) = (at(one), at(other));
        prop_assert_eq!(without_time(&first), without_time(&second));
        prop_assert_eq!(first == second, one == other);
        let longer = [&path, "x"].concat();
        let different = encoded(&RequestInput { path: &longer, ..input.clone() });
        prop_assert!(without_time(&different) != without_time(&first));
    }

    #[test]
    fn strange_requests_never_panic(
        path in prop_oneof![any::<String>(), "/[a-z%2e/.;?&=t]{0,30}"],
        authority in prop_oneof![any::<String>(), r"[a-z.:\[\]0-9]{0,20}"],
        method in any::<String>(),
        headers in prop::collection::vec((name(), value()), 0..8),
    ) {
        let headers = headers.iter().map(|(name, value)| Header { name, value }).collect();
        let input = RequestInput { path: &path, authority: &authority, method: &method, headers, ..request() };
        let output = run_to_output(&nine(), &encoded(&input), 32 * 1024);
        prop_assert!(matches!(output, Output::Decided(_) | Output::Unverified(_)), "{output:?}");
    }
}
