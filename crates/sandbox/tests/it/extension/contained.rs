//! After any fault of a module, the next request is served normally.

use super::*;
use leno_sandbox::Fault;
use leno_sandbox::extension::MOST_INSTANCES;

fn served(plugin: &Plugin, shared: &Arc<SharedData>, after: &str) {
    let outcome = ask(plugin, shared, request("/a?b=c", &[("x-other", "1")]));
    assert_eq!(outcome, Ok(Outcome::Continue(vec![set("x-seen", "/a?b=c")])), "after {after}");
}

#[test]
fn whatever_a_module_does_ends_its_own_run() {
    let shared = Arc::default();
    let ample = plugin("", AMPLE);
    assert!(ample.is_copied(), "instances of this module begin with a copy");
    served(&ample, &shared, "nothing");
    for (letter, expected) in [
        ("a", "executed an undefined instruction"),
        ("c", "ran out of memory"),
        ("d", "overflowed its stack"),
        ("e", "accessed memory that is not its own"),
        ("f", "256 bytes at 0xfffffff0 are outside its memory"),
        ("g", "are outside its memory"),
        ("j", "more header fields than a message has"),
        ("k", "editing `:path`: the request line and the status are not for modules"),
        ("l", "paused the request, and nothing here would resume it"),
        ("m", "returned 77, which is no action"),
        ("n", "`proxy_http_call` is not implemented here: a module has no network"),
        ("o", "modules see heads, not bodies"),
        ("p", "at 0x7ffffff0 are outside its memory"),
        ("q", "ran out of memory"),
        ("r", "a call from within its own allocator"),
        ("v", "panicked at stop here"),
        ("x", "8 bytes at 0xfffffff0 are outside its memory"),
    ] {
        let failure = order(&ample, &shared, letter).expect_err(letter).to_string();
        assert!(failure.contains(expected), "{letter}: {failure}");
        served(&ample, &shared, letter);
    }
    // For these faults the ABI has an error status, which the call returns to the module. This
    // module returns it as its action.
    for (letter, status) in [("h", 3), ("i", 3), ("s", 8)] {
        assert_eq!(order(&ample, &shared, letter), Err(Failure::Action(status)), "{letter}");
        served(&ample, &shared, letter);
    }
}

#[test]
fn a_module_that_does_not_end_is_ended() {
    let shared = Arc::default();
    let (short, ample) = (plugin("", SHORT), plugin("", AMPLE));
    for letter in ["b", "w", "y"] {
        assert_eq!(order(&short, &shared, letter), Err(Failure::Fault(Fault::Deadline)), "{letter}");
        served(&ample, &shared, letter);
    }
}

#[test]
fn instances_that_wait_for_responses_are_bounded_and_come_back() {
    let shared = Arc::default();
    // The engine is not shared with other tests, which need instances too.
    let module = Extensions::new().unwrap().compile(&wat::parse_str(include_str!("prisoner.wat")).unwrap()).unwrap();
    let plugin =
        Plugin::start(&module, Settings::new("test/echo", "p/extensions/x", Vec::new(), MEMORY, AMPLE)).unwrap();
    let mut waiting = Vec::new();
    let crowded = loop {
        match Run::start(&plugin, given(&shared), plugin.deadline()) {
            Ok(run) => waiting.push(run),
            Err(failure) => break failure,
        }
    };
    assert_eq!((crowded, waiting.len()), (Failure::Crowded, MOST_INSTANCES as usize));
    waiting.pop();
    served(&plugin, &shared, "one came back");
}

#[test]
fn a_start_that_depends_on_chance_is_made_anew_for_every_request() {
    let shared = Arc::default();
    let plugin = plugin("random", AMPLE);
    assert!(!plugin.is_copied());
    for _ in 0..3 {
        served(&plugin, &shared, "a start");
    }
}
