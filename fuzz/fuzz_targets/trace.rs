//! A parsed trace context is written, and parsed again, as the same. A callee sees the span of this
//! hop and no other, for any header fields.
#![no_main]

use leno_policy::input::Header;
use leno_policy::outcome::HeaderEdit;
use leno_policy::spec::Tracing;
use leno_policy::trace;
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 8] =
    ["traceparent", "tracestate", "b3", "x-b3-traceid", "x-b3-spanid", "x-b3-sampled", "x_b3_traceid", "x-other"];

fuzz_target!(|fields: Vec<(u8, &[u8])>| {
    for context in fields.iter().filter_map(|(_, value)| trace::parse(value)) {
        assert_eq!(trace::parse(trace::format(context).as_bytes()), Some(context));
    }
    let headers = fields.iter().map(|(name, value)| Header { name: NAMES[usize::from(*name) % NAMES.len()], value });
    let tracing = Tracing { name: String::new(), enabled: true, sampling_per_10k: 1, accept_b3: true };
    let (plan, edits) = trace::plan(&tracing, || headers.clone(), [1, 2, 3, 4], None).expect("tracing is on");
    assert_eq!(edits[0], HeaderEdit::Set("traceparent".to_owned(), trace::format(plan.context)));
    assert_eq!(trace::parse(trace::format(plan.context).as_bytes()), Some(plan.context));
    for header in headers {
        let edited = edits.iter().any(|edit| match edit {
            HeaderEdit::Set(name, _) | HeaderEdit::Remove(name) => name == header.name,
            HeaderEdit::Append(..) => false,
        });
        assert_eq!(edited, header.name != "x-other", "{}", header.name);
    }
});
