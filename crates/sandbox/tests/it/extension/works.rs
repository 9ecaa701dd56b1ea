//! The abilities of modules.

use super::*;
use leno_sandbox::extension::Response;

#[test]
fn a_module_answers_by_itself() {
    let shared = Arc::default();
    let Ok(Outcome::Local(local)) = order(&plugin("", AMPLE), &shared, "u") else { panic!("an answer") };
    assert_eq!((local.status, &local.body[..], &*local.details), (418, &b"stop here"[..], "stop here"));
}

#[test]
fn an_instance_is_kept_for_its_response_and_for_no_other() {
    let shared = Arc::default();
    let plugin = plugin("", AMPLE);
    for _ in 0..3 {
        let mut run = Run::start(&plugin, given(&shared), plugin.deadline()).unwrap();
        run.request(request("/", &[])).unwrap();
        let response = Response { status: 200, fields: Headers::default(), bodiless: true };
        // The instance has seen one request: its own.
        assert_eq!(run.response(response), Ok(Outcome::Continue(vec![append("x-count", "1")])));
        run.end().unwrap();
    }
}

#[test]
fn shared_data_outlives_requests_and_is_one_functions_own() {
    let (one, other) = (Arc::default(), Arc::default());
    let plugin = plugin("", AMPLE);
    for count in ["1", "2", "3"] {
        assert_eq!(order(&plugin, &one, "t"), Ok(Outcome::Continue(vec![append("x-count", count)])));
    }
    assert_eq!(order(&plugin, &other, "t"), Ok(Outcome::Continue(vec![append("x-count", "1")])));
    assert_eq!((one.len(), other.len()), (1, 1));
}
