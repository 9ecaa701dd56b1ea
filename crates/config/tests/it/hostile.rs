//! Texts and files that no user writes by hand.

use leno_config::{Problem, jwks, load, load_text};
use proptest::prelude::*;
use std::fs;
use std::path::Path;

fn problems(text: &str) -> Vec<Problem> {
    load_text(Path::new("hostile.yaml"), text).expect_err("accepted")
}

const ORDERS: &str = include_str!("../documents/orders.yaml");

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_without_panic(text in any::<String>()) {
        let _ = load_text(Path::new("any.yaml"), &text);
    }

    #[test]
    fn any_yaml_like_text_is_read_without_panic(text in "([a-c]|[-:?{}\\[\\],&*!|>'\"%@`#~0]|\n|  |kind|: )*") {
        let _ = load_text(Path::new("any.yaml"), &text);
    }

    #[test]
    fn any_key_set_is_read_without_panic(json in any::<Vec<u8>>()) {
        let _ = jwks::parse(&json);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// A valid document with a few bytes replaced: problems, or a snapshot whose function
    /// configurations compile; problems name an existing line.
    #[test]
    fn any_damage_is_survived(start in 0..ORDERS.len(), length in 0..40usize, put in "[a-z{}:*,\\[\\]\"' \n0-9/%-]{0,12}") {
        let end = (start + length).min(ORDERS.len());
        prop_assume!(ORDERS.is_char_boundary(start) && ORDERS.is_char_boundary(end));
        let text = [&ORDERS[..start], &put, &ORDERS[end..]].concat();
        match load_text(Path::new("/app/damaged.yaml"), &text) {
            Ok(snapshot) => {
                for id in snapshot.functions() {
                    prop_assert!(snapshot.function_config(id).is_some());
                }
            }
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                let lines = text.lines().count() + 1;
                for problem in problems {
                    prop_assert!(problem.line as usize <= lines, "{problem}");
                }
            }
        }
    }
}

#[test]
fn aliases_cannot_multiply() {
    let mut text = "a: &a [x, x, x, x, x, x, x, x]\n".to_owned();
    for pair in "abcdefghij".as_bytes().windows(2) {
        let (before, name) = (char::from(pair[0]), char::from(pair[1]));
        text += &format!(
            "{name}: &{name} [*{before}, *{before}, *{before}, *{before}, *{before}, *{before}, *{before}, *{before}]\n"
        );
    }
    assert_eq!(problems(&text)[0].message, "aliases are not accepted");
}

#[test]
fn nesting_is_bounded() {
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")] {
        let text = format!("a: {}x{}", open.repeat(100_000), close.repeat(100_000));
        assert!(!problems(&text).is_empty());
    }
    let block: String = (0..200).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    assert!(problems(&block)[0].message.starts_with("not valid YAML"));
}

#[test]
fn mappings_are_bounded() {
    let text: String = (0..2_000).map(|n| format!("k{n}: v\n")).collect();
    assert_eq!(problems(&text)[0].message, "a mapping of more than 1024 fields");
}

#[test]
fn files_that_cannot_be_documents_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let message = |path: &Path| load(path).expect_err("accepted")[0].message.clone();

    assert!(message(&path("missing.yaml")).starts_with("cannot be read"));
    assert_eq!(message(folder.path()), "there are no *.yaml or *.yml files in this folder");

    fs::write(path("empty.yaml"), "# nothing yet\n---\n").unwrap();
    assert_eq!(message(&path("empty.yaml")), "there is no document");

    fs::write(path("latin1.yaml"), b"kind: Caf\xe9\n").unwrap();
    assert_eq!(message(&path("latin1.yaml")), "not UTF-8 text (after 9 bytes)");

    fs::File::create(path("huge.yaml")).unwrap().set_len(17 << 20).unwrap();
    assert_eq!(message(&path("huge.yaml")), "too large");
}

#[test]
fn a_folder_is_read_in_the_order_of_names_and_all_its_problems_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let function = |name: &str, rest: &str| {
        format!(
            "{{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {{name: {name}}}, spec: {{command: [a]{rest}}}}}"
        )
    };
    write("b.yml", &function("b", ", callees: [a]"));
    write("a.yaml", &function("a", ", callees: [b]"));
    write(".hidden.yaml", "kind: Nothing");
    write("notes.txt", "kind: Nothing");
    let snapshot = load(folder.path()).unwrap();
    assert_eq!(snapshot.functions().map(ToString::to_string).collect::<Vec<_>>(), ["default/a", "default/b"]);

    write("b.yml", &function("b", ", callees: [c], port: 0"));
    write("a.yaml", &function("a", ", callees: [c]"));
    let problems = load(folder.path()).expect_err("accepted");
    let reported: Vec<(String, &str)> = problems
        .iter()
        .map(|problem| (problem.file.file_name().unwrap().to_string_lossy().into_owned(), problem.field.as_str()))
        .collect();
    let expected = [("a.yaml", "spec.callees[0]"), ("b.yml", "spec.callees[0]"), ("b.yml", "spec.port")];
    assert_eq!(reported, expected.map(|(file, field)| (file.to_owned(), field)));
}

#[test]
fn problems_read_like_a_compilers() {
    let text =
        "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: a}\nspec:\n  command: [a]\n  port: 70000\n";
    assert_eq!(problems(text)[0].to_string(), "hostile.yaml:6:9 spec.port: 70000 is out of range; expected 0 to 65535");
}
