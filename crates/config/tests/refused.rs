//! What comes out of bad documents: every file of `tests/refused` says in its own comments which problems it has.
//!
//! `#! field: fragment` at the end of a line: a problem of that field is reported in that line, and its text contains the fragment. There must be
//! no other problem.

use leno_config::{Problem, load_text};
use std::fs;
use std::path::{Path, PathBuf};

struct Expected {
    line: u32,
    field: String,
    fragment: String,
}

fn expected(text: &str) -> Vec<Expected> {
    let mut expected = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for marker in line.split("#! ").skip(1) {
            let (field, fragment) =
                marker.split_once(": ").unwrap_or_else(|| panic!("line {number}: no `: ` in `{marker}`"));
            expected.push(Expected { line: number, field: field.to_owned(), fragment: fragment.trim().to_owned() });
        }
    }
    expected
}

fn meets(problem: &Problem, expected: &Expected) -> bool {
    let field = if problem.field.is_empty() { "document" } else { &problem.field };
    let text = format!("{}; {}", problem.message, problem.fix);
    problem.line == expected.line && field == expected.field && text.contains(&expected.fragment)
}

#[test]
fn every_problem_is_reported_where_it_is() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refused");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut failures = Vec::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "yaml")) {
        let text = fs::read_to_string(file).unwrap();
        let expected = expected(&text);
        assert!(!expected.is_empty(), "{} expects nothing", file.display());
        let Err(mut problems) = load_text(file, &text) else {
            failures.push(format!("{}: accepted", file.display()));
            continue;
        };
        for expected in expected {
            match problems.iter().position(|problem| meets(problem, &expected)) {
                Some(index) => drop(problems.remove(index)),
                None => failures.push(format!(
                    "{}:{}: not reported: {}: {}",
                    file.display(),
                    expected.line,
                    expected.field,
                    expected.fragment
                )),
            }
        }
        failures.extend(problems.iter().map(|problem| format!("not expected: {problem}")));
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
