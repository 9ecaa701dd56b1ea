//! Problems of policies: the comments of `tests/refused/policies.yaml` list them.
//!
//! `#! field: fragment` at the end of a line: a problem of that field is reported in that line, and
//! its text contains the fragment. There must be no other problem.

use std::fs;
use std::path::Path;

#[test]
fn every_problem_is_reported_where_it_is() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refused/policies.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let mut problems = leno_translate::load_text(&file, &text).unwrap_err();
    for (number, line) in (1..).zip(text.lines()) {
        for marker in line.split("#! ").skip(1) {
            let (field, fragment) = marker.split_once(": ").unwrap_or_else(|| panic!("line {number}: no `: `"));
            let meets = problems.iter().position(|problem| {
                let place = if problem.field.is_empty() { "document" } else { &problem.field };
                let text = format!("{}; {}", problem.message, problem.fix);
                problem.line == number && place == field && text.contains(fragment.trim())
            });
            problems.remove(meets.unwrap_or_else(|| panic!("line {number}: not reported: {marker}: {problems:#?}")));
        }
    }
    assert!(problems.is_empty(), "not expected: {problems:#?}");
}
