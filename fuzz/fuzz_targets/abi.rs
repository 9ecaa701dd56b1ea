//! A program and its input, both as bytes: for any bytes there is an answer. A refused request is
//! not edited. A decision is the same at every time in its window, and the same if the program gets
//! only the declared parts of the request.
#![no_main]

use leno_policy::abi;
use leno_policy::input::RequestInput;
use leno_policy::outcome::{MAX_OUTPUT, Output, Verdict};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: (&[u8], &[u8])| {
    let (program, input) = bytes;
    let Ok(program) = abi::init(program) else { return };
    let mut area = vec![0; MAX_OUTPUT];
    let length = abi::run(&program, input, &mut area);
    let output: Output = postcard::from_bytes(&area[..length]).expect("an output");
    let Ok(mut input) = postcard::from_bytes::<RequestInput<'_>>(input) else { return };
    let whole = program.judge(&input);
    assert!(output == whole || matches!(output, Output::Unreadable(_)), "it is too long for the area");
    input.headers.retain(|header| program.needs().gives(header.name));
    input.peer.address = input.peer.address.filter(|_| program.needs().address);
    assert_eq!(program.judge(&input), whole);
    let Output::Decided(decision) = &whole else { return };
    if let Verdict::Deny(denial) = &decision.verdict {
        assert!(decision.request_edits.is_empty() && decision.path.is_none() && decision.target.is_none());
        // Limits can count failures of authentication.
        assert!(decision.takes.is_empty() || denial.status == 401);
    }
    if input.now_ms == u64::MAX {
        return; // No window has this time in it.
    }
    assert!(decision.window.contains(input.now_ms));
    for now_ms in [decision.window.from_ms, decision.window.until_ms - 1] {
        assert_eq!(program.judge(&RequestInput { now_ms, ..input.clone() }), whole);
    }
});
