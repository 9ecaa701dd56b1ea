use super::{Parent, TraceContext, parse, plan};
use crate::input::Header;
use crate::outcome::HeaderEdit;
use crate::spec::Tracing;
use crate::testing::header;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use proptest::prelude::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn context(sampled: bool) -> TraceContext {
    TraceContext { trace_id: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, span_id: 0xb7ad_6b71_6920_3331, sampled }
}

#[test]
fn valid_traceparents() {
    for (value, sampled) in [
        (format!("00-{TRACE}-{SPAN}-01"), true),
        (format!("00-{TRACE}-{SPAN}-00"), false),
        (format!("00-{TRACE}-{SPAN}-ff"), true),
        (format!("00-{TRACE}-{SPAN}-fe"), false),
        (format!(" 00-{TRACE}-{SPAN}-01\t"), true),
        (format!("cc-{TRACE}-{SPAN}-01"), true),
        (format!("01-{TRACE}-{SPAN}-00-what-the-future-holds"), false),
        (format!("fe-{TRACE}-{SPAN}-01-"), true),
    ] {
        assert_eq!(parse(value.as_bytes()), Some(context(sampled)), "{value}");
    }
}

#[test]
fn invalid_traceparents() {
    let zeros = "0".repeat(32);
    for value in [
        String::new(),
        "---".to_string(),
        format!("ff-{TRACE}-{SPAN}-01"),
        format!("0-{TRACE}-{SPAN}-01"),
        format!("000-{TRACE}-{SPAN}-01"),
        format!("0G-{TRACE}-{SPAN}-01"),
        format!("00-{zeros}-{SPAN}-01"),
        format!("00-{TRACE}-{}-01", &zeros[..16]),
        format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
        format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
        format!("00-{}-{SPAN}-01", &TRACE[1..]),
        format!("00-{TRACE}0-{SPAN}-01"),
        format!("00-{TRACE}-{SPAN}"),
        format!("00-{TRACE}-{SPAN}-"),
        format!("00-{TRACE}-{SPAN}-1"),
        format!("00-{TRACE}-{SPAN}-001"),
        format!("00-{TRACE}-{SPAN}-0A"),
        format!("00-{TRACE}-{SPAN}-01-more"),
        format!("00-{TRACE}-{SPAN}-01-"),
        format!("00-{TRACE}-{SPAN}-01."),
        format!("00_{TRACE}_{SPAN}_01"),
        format!("00-+{}-{SPAN}-01", &TRACE[1..]),
        format!("00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01"),
        format!("cc-{TRACE}-{SPAN}-01.more"),
        format!("cc-{TRACE}-{SPAN}-011"),
        format!("cc-{TRACE}-{SPAN}-0"),
        format!("00-{}é-{SPAN}-01", &TRACE[2..]),
    ] {
        assert_eq!(parse(value.as_bytes()), None, "{value}");
    }
    assert_eq!(parse(b"00-\xff"), None);
}

struct TraceEdits {
    context: TraceContext,
    parent: Option<u64>,
    edits: Vec<HeaderEdit>,
}

impl TraceEdits {
    fn state(&self) -> Option<&HeaderEdit> {
        self.edits
            .iter()
            .find(|edit| matches!(edit, HeaderEdit::Set(name, _) | HeaderEdit::Remove(name) if name == "tracestate"))
    }
}

fn traced(headers: &[(&str, &str)]) -> TraceEdits {
    traced_with(headers, |_| ())
}

/// The arguments of [`plan`] besides the header fields.
struct PlanInput<'a> {
    tracing: Tracing,
    random: [u64; 4],
    known: Option<Parent<'a>>,
}

fn traced_with(headers: &[(&str, &str)], change: impl FnOnce(&mut PlanInput<'_>)) -> TraceEdits {
    let tracing = Tracing { name: "t".to_string(), enabled: true, sampling_per_10k: 5_000, accept_b3: true };
    let mut given = PlanInput { tracing, random: [1, 2, 3, 5_000], known: None };
    change(&mut given);
    let headers = || headers.iter().map(|(name, value)| header(name, value));
    let (plan, edits) = plan(&given.tracing, headers, given.random, given.known).unwrap();
    assert_eq!(edits[0], HeaderEdit::Set("traceparent".to_string(), super::format(plan.context)));
    TraceEdits { context: plan.context, parent: plan.parent_span, edits }
}

const NEW_TRACE: u128 = (1 << 64) | 2;

#[test]
fn a_trace_goes_on_in_a_new_span() {
    for (flags, sampled) in [("01", true), ("00", false)] {
        let parent = format!("00-{TRACE}-{SPAN}-{flags}");
        let traced = traced(&[("traceparent", &parent)]);
        assert_eq!(traced.context, TraceContext { span_id: 3, ..context(sampled) });
        assert_eq!(traced.parent, Some(context(true).span_id));
    }
}

#[test]
fn a_trace_begins() {
    let valid = format!("00-{TRACE}-{SPAN}-01");
    let cases: [&[(&str, &str)]; 4] = [
        &[],
        &[("tracestate", "a=1")],
        &[("traceparent", "nonsense"), ("tracestate", "a=1")],
        &[("traceparent", &valid), ("traceparent", &valid), ("tracestate", "a=1")],
    ];
    for headers in cases {
        let traced = traced(headers);
        assert_eq!(
            (traced.context.trace_id, traced.context.span_id, traced.parent),
            (NEW_TRACE, 3, None),
            "{headers:?}"
        );
        assert!(!matches!(traced.state(), Some(HeaderEdit::Set(..))), "{headers:?}");
        let had_one = headers.iter().any(|(name, _)| *name == "tracestate");
        assert_eq!(traced.state().is_some(), had_one, "{headers:?}");
    }
}

#[test]
fn sampling_of_new_traces() {
    for (random, sampled) in [(0, true), (4_999, true), (5_000, false), (9_999, false), (10_000, true)] {
        let traced = traced_with(&[], |given| given.random[3] = random);
        assert_eq!(traced.context.sampled, sampled, "{random}");
    }
    for (share, sampled) in [(0, false), (10_000, true)] {
        for random in [0, 1, 9_999, u64::MAX] {
            let traced = traced_with(&[], |given| {
                given.tracing.sampling_per_10k = share;
                given.random[3] = random;
            });
            assert_eq!(traced.context.sampled, sampled, "{share} {random}");
        }
    }
}

#[test]
fn identifiers_are_never_zero() {
    let traced = traced_with(&[], |given| given.random = [0; 4]);
    assert_ne!((traced.context.trace_id, traced.context.span_id), (0, 0));
    assert!(traced.context.trace_id != 0 && traced.context.span_id != 0);
}

#[test]
fn what_the_runtime_knows_of_the_caller() {
    let known = TraceContext { trace_id: 7, span_id: 8, sampled: true };
    let parent = Parent { context: known, state: "a=1" };
    let none = traced_with(&[], |given| given.known = Some(parent));
    assert_eq!((none.context.trace_id, none.parent, none.context.sampled), (7, Some(8), true));
    assert!(none.edits.contains(&HeaderEdit::Set("tracestate".to_string(), "a=1".to_string())));
    let own = format!("00-{TRACE}-{SPAN}-00");
    let own = traced_with(&[("traceparent", &own)], |given| given.known = Some(parent));
    assert_eq!(
        (own.context.trace_id, own.context.sampled),
        (context(false).trace_id, false),
        "its own word counts more"
    );
}

#[test]
fn b3() {
    let known = Some(context(true).span_id);
    let (trace, short) = (context(true).trace_id, context(true).trace_id & u128::from(u64::MAX));
    let single = |rest: &str| vec![("b3".to_string(), format!("{TRACE}-{SPAN}{rest}"))];
    let several = |more: &[(&str, &str)]| {
        let ids = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)];
        ids.iter().chain(more).map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    let pair = |name: &str, value: &str| vec![(name.to_string(), value.to_string())];
    let cases = [
        (single("-1"), trace, known, true),
        (single("-0"), trace, known, false),
        (single("-d"), trace, known, true),
        (single(""), trace, known, false),
        (single("-1-05e3ac9a4f6e3b90"), trace, known, true),
        (pair("b3", &format!("{}-{SPAN}-1", &TRACE[16..])), short, known, true),
        (pair("b3", "1"), NEW_TRACE, None, true),
        (pair("b3", "d"), NEW_TRACE, None, true),
        (pair("b3", "0"), NEW_TRACE, None, false),
        (pair("b3", "nonsense"), NEW_TRACE, None, false),
        (pair("b3", &format!("{TRACE}-0000000000000000-1")), NEW_TRACE, None, false),
        (several(&[("x-b3-sampled", "1")]), trace, known, true),
        (several(&[("x-b3-sampled", "true")]), trace, known, true),
        (several(&[("x-b3-sampled", "0")]), trace, known, false),
        (several(&[("x-b3-flags", "1")]), trace, known, true),
        (several(&[("x-b3-flags", "1"), ("x-b3-sampled", "0")]), trace, known, true),
        (several(&[("x-b3-parentspanid", SPAN)]), trace, known, false),
        (pair("x-b3-sampled", "1"), NEW_TRACE, None, true),
        (pair("x-b3-traceid", TRACE), NEW_TRACE, None, false),
    ];
    for (headers, trace_id, parent, sampled) in &cases {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let found = traced(&headers);
        assert_eq!(
            (found.context.trace_id, found.parent, found.context.sampled),
            (*trace_id, *parent, *sampled),
            "{headers:?}"
        );
        for (name, _) in &headers {
            assert!(found.edits.contains(&HeaderEdit::Remove(name.to_string())), "{headers:?}");
        }
        let ignored = traced_with(&headers, |given| given.tracing.accept_b3 = false);
        assert_eq!(ignored.context.trace_id, NEW_TRACE, "{headers:?}");
    }
    let valid = format!("00-{}-{SPAN}-00", "1".repeat(32));
    let both = traced(&[("traceparent", &valid), ("b3", "1")]);
    assert!(both.context.trace_id == 0x1111_1111_1111_1111_1111_1111_1111_1111 && !both.context.sampled);
}

#[test]
fn no_field_that_a_function_may_take_for_b3_contradicts_the_span() {
    for name in ["x_b3_traceid", "x-b3_spanid", "x_b3-sampled", "x-b3-unknown"] {
        let found = traced(&[(name, TRACE)]);
        assert!(found.edits.contains(&HeaderEdit::Remove(name.to_string())), "{name}: {:?}", found.edits);
        assert_eq!((found.context.trace_id, found.parent), (NEW_TRACE, None), "{name}: it is not read");
    }
    for name in ["b3-x", "x-b33", "xb3", "x-b3", "tracestates", "é-b3-x"] {
        assert_eq!(traced(&[(name, TRACE)]).edits.len(), 1, "{name}");
    }
}

#[test]
fn tracestates() {
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let state = |values: &[&str]| {
        let mut headers = vec![("traceparent", parent.as_str())];
        headers.extend(values.iter().map(|value| ("tracestate", *value)));
        match traced(&headers).state() {
            Some(HeaderEdit::Set(_, state)) => Some(state.clone()),
            Some(HeaderEdit::Remove(_)) => None,
            other => panic!("{other:?}"),
        }
    };
    for (values, expected) in [
        (&["foo=1"][..], "foo=1"),
        (&["zoo=3,foo=1", "bar=2"], "zoo=3,foo=1,bar=2"),
        (&["foo=1,,\t, bar=2 ,"], "foo=1,bar=2"),
        (&["", "foo=1"], "foo=1"),
        (&["foo=a b  c"], "foo=a b  c"),
        (&["foo=  1"], "foo=  1"),
        (&["fw529a3039@dt=FfcS6Xo0,1a@foo=2"], "fw529a3039@dt=FfcS6Xo0,1a@foo=2"),
        (&["a_-*/9=1"], "a_-*/9=1"),
    ] {
        assert_eq!(state(values).as_deref(), Some(expected), "{values:?}");
    }
    for bad in [
        "Foo=1",
        "f o=1",
        "f.o=1",
        "=1",
        "foo",
        "foo=",
        "foo=a=b",
        "foo=\u{e9}",
        "foo=1,foo=2",
        "@a=1",
        "a@=1",
        "a@b@c=1",
        "_a=1",
        "foo=\u{7f}",
        "",
    ] {
        assert_eq!(state(&[bad]), None, "{bad}");
    }
    let members = |count: usize| (0..count).map(|index| format!("k{index}=1")).collect::<Vec<_>>().join(",");
    assert_eq!(state(&[&members(32)]), Some(members(32)));
    assert_eq!(state(&[&members(33)]), None);
    let (key, value) = ("k".repeat(256), "v".repeat(256));
    assert!(state(&[&format!("{key}={value}")]).is_some());
    assert_eq!(state(&[&format!("{key}k=1")]), None);
    assert_eq!(state(&[&format!("a={value}v")]), None);
    assert!(state(&[&format!("{}@{}=1", "t".repeat(241), "v".repeat(14))]).is_some());
    assert_eq!(state(&[&format!("{}@{}=1", "t".repeat(242), "v")]), None);
    assert_eq!(state(&[&format!("{}@{}=1", "t", "v".repeat(15))]), None);
}

#[test]
fn off_is_off() {
    let tracing = Tracing { name: String::new(), enabled: false, sampling_per_10k: 10_000, accept_b3: true };
    let headers = [header("traceparent", "nonsense"), header("b3", "1")];
    assert_eq!(plan(&tracing, || headers.iter().copied(), [1, 2, 3, 4], None), None);
}

proptest! {
    #[test]
    fn what_is_written_is_read(trace_id in 1u128.., span_id in 1u64.., sampled in any::<bool>()) {
        let context = TraceContext { trace_id, span_id, sampled };
        prop_assert_eq!(parse(super::format(context).as_bytes()), Some(context));
    }

    #[test]
    fn never_panics(
        traceparent in prop_oneof![prop::collection::vec(any::<u8>(), 0..64), "[-0-9a-f]{50,60}".prop_map(String::into_bytes)],
        tracestate in prop::collection::vec(any::<u8>(), 0..64),
        b3 in prop_oneof![prop::collection::vec(any::<u8>(), 0..64), "[-0-9a-fd]{0,60}".prop_map(String::into_bytes)],
    ) {
        let tracing = Tracing { name: String::new(), enabled: true, sampling_per_10k: 1, accept_b3: true };
        let headers = [
            Header { name: "traceparent", value: &traceparent },
            Header { name: "tracestate", value: &tracestate },
            Header { name: "b3", value: &b3 },
        ];
        let plan = plan(&tracing, || headers.iter().copied(), [0; 4], None);
        prop_assert!(plan.is_some_and(|(plan, _)| plan.context.trace_id != 0 && plan.context.span_id != 0));
    }
}
