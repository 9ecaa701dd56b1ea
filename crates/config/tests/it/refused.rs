//! Problems and warnings of documents: the comments of every file of `tests/refused` list its
//! problems, and those of `tests/warned` its warnings.
//!
//! `#! field: fragment` at the end of a line: a problem of that field is reported in that line, and
//! its text contains the fragment. There must be no other problem.

use leno_config::{Problem, load_text};
use std::fs;
use std::path::{Path, PathBuf};

struct Expectation {
    line: u32,
    field: String,
    fragment: String,
}

fn expected(text: &str) -> Vec<Expectation> {
    let mut expected = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for marker in line.split("#! ").skip(1) {
            let (field, fragment) =
                marker.split_once(": ").unwrap_or_else(|| panic!("line {number}: no `: ` in `{marker}`"));
            expected.push(Expectation { line: number, field: field.to_owned(), fragment: fragment.trim().to_owned() });
        }
    }
    expected
}

fn meets(problem: &Problem, expected: &Expectation) -> bool {
    let field = if problem.field.is_empty() { "document" } else { &problem.field };
    let text = format!("{}; {}", problem.message, problem.fix);
    problem.line == expected.line && field == expected.field && text.contains(&expected.fragment)
}

/// Compares the problems of each file of a folder with its comments.
fn compare(folder: &str, find: impl Fn(&Path, &str) -> Vec<Problem>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut failures = Vec::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "yaml")) {
        let text = fs::read_to_string(file).unwrap();
        let mut problems = find(file, &text);
        for expected in expected(&text) {
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

#[test]
fn every_problem_is_reported_where_it_is() {
    compare("refused", |file, text| {
        assert!(!expected(text).is_empty(), "{} expects nothing", file.display());
        load_text(file, text).err().unwrap_or_else(|| panic!("{}: accepted", file.display()))
    });
}

#[test]
fn every_doubt_is_reported_where_it_is() {
    compare("warned", |file, text| {
        let snapshot = load_text(file, text);
        snapshot.unwrap_or_else(|problems| panic!("{problems:?}")).warnings().to_vec()
    });
}

#[test]
fn the_example_has_only_the_warning_that_its_demonstration_needs() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/orders/mesh");
    let documents = ["mesh", "functions", "policies"].map(|name| {
        let text = fs::read_to_string(examples.join(name).with_extension("yaml")).unwrap();
        // The demo writes the key set when it starts.
        text.replace(
            "jwks: {file: jwks.json}",
            "jwks: {inline: {keys: [{kty: OKP, crv: Ed25519, x: 11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo}]}}",
        )
    });
    let snapshot = load_text(&examples.join("all.yaml"), &documents.join("\n---\n"));
    let snapshot = snapshot.unwrap_or_else(|problems| panic!("{problems:?}"));
    // The demonstration shows that the gateway's clients are refused there.
    let [Problem { field, message, .. }] = snapshot.warnings() else { panic!("{:?}", snapshot.warnings()) };
    assert!(field == "spec.expose[0]" && message.contains("internal.orders.example"), "{message}");
}

#[test]
fn so_many_rules_that_comparing_them_would_take_long_are_compared_in_part() {
    let rules: String =
        (0..5000).map(|number| format!("    - {{name: r{number}, to: [{{paths: [/{number}]}}]}}\n")).collect();
    let text = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: a}}\nspec: {{command: [a], expose: [{{hosts: [\"*\"], path: /}}]}}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: p}}\nspec:\n  functions: [a]\n  authorization:\n    rules:\n{rules}"
    );
    let snapshot = load_text(Path::new("a.yaml"), &text).unwrap();
    let reported: Vec<&str> = snapshot.warnings().iter().map(|warning| warning.message.as_str()).collect();
    assert!(matches!(reported[..], [only] if only.contains("too many rules")), "{reported:?}");
}
