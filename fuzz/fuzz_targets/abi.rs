//! A program and its input, both as bytes: for any bytes there is an answer, and a refused request
//! is not edited.
#![no_main]

use leno_policy::abi;
use leno_policy::outcome::{MAX_OUTPUT, Outcome, Output, Verdict};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: (&[u8], &[u8])| {
    let (program, input) = bytes;
    let Ok(program) = abi::init(program) else { return };
    let mut area = vec![0; MAX_OUTPUT];
    let length = abi::run(&program, input, &mut area);
    let output: Output = postcard::from_bytes(&area[..length]).expect("an output");
    if let Output::Request(Outcome::Decided(decision)) = output
        && matches!(decision.verdict, Verdict::Deny(_))
    {
        assert!(decision.takes.is_empty() && decision.request_edits.is_empty() && decision.path.is_none());
    }
});
