use super::*;
use crate::snapshot::Snapshot;
use proptest::prelude::*;

fn read(text: &str) -> Vec<Document> {
    Document::read(Path::new("a.yaml"), text).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn problem(text: &str) -> String {
    let problems = Document::read(Path::new("a.yaml"), text).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].to_string()
}

fn policy(spec: &str) -> String {
    format!("apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: p, namespace: a}}\nspec: {spec}\n")
}

const TWO: &str = "# first\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: one, namespace: a}\nspec:\n  \
                   command: [\"true\"]\n--- # second\n# a comment\napiVersion: leno.dev/v1alpha1\nkind: Function\n\
                   metadata: {name: two}\nspec: {command: [\"true\"]}\n...\n---\n";

#[test]
fn each_document_keeps_its_own_text() {
    let documents = read(TWO);
    let names: Vec<String> = documents.iter().map(|document| document.id().to_string()).collect();
    assert_eq!(names, ["Function a/one", "Function default/two"]);
    assert!(documents[0].text().starts_with("# first\n") && documents[0].text().ends_with("[\"true\"]\n"));
    assert!(documents[1].text().starts_with("# a comment\n"), "{}", documents[1].text());
    for document in &documents {
        let again = Document::restore(document.id(), document.text()).unwrap();
        assert_eq!((again.id(), again.text()), (document.id(), document.text()));
    }
    let other = DocumentId { name: "three".to_owned(), ..documents[0].id().clone() };
    assert!(Document::restore(&other, documents[0].text()).is_err());
    assert!(Document::restore(documents[0].id(), TWO).is_err());
}

#[test]
fn a_document_may_begin_on_the_line_of_its_separator() {
    let text =
        "--- {apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {name: one}, spec: {command: [\"true\"]}}\n";
    let documents = read(&format!("{text}{}", text.replace("one", "two")));
    assert_eq!(documents.len(), 2);
    assert_eq!(documents[0].text(), text);
}

#[test]
fn json_is_a_document_too() {
    let text = r#"{"apiVersion": "leno.dev/v1alpha1", "kind": "Function", "metadata": {"name": "one"}, "spec": {"command": ["true"], "port": 8080}}"#;
    assert_eq!(read(text)[0].text(), text);
}

#[test]
fn what_is_there_twice_or_has_no_name_is_refused() {
    let one = "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: one}\nspec: {command: [\"true\"]}\n";
    assert!(problem(&format!("{one}---\n{one}")).contains("Function default/one is there twice"));
    assert!(problem(&one.replace("one", "a/b")).contains("`a/b` cannot be a name"));
    let foreign = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nspec: {}\n";
    assert!(problem(foreign).contains("has no name"));
    assert!(problem("kind: Nothing\n").contains("there is no kind"));
    assert!(problem("a: [").contains("not valid YAML"));
}

#[test]
fn documents_of_requests_have_no_file_read_and_no_folder() {
    let problems = |text: &str| match Snapshot::of_documents(&read(text)) {
        Ok(_) => String::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    };
    let function = |spec: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: f, namespace: a}}\nspec: {{{spec}}}\n"
        )
    };
    assert_eq!(problems(&function("command: [\"true\"]")), "");
    assert_eq!(problems(&function("command: [\"true\"], workingDirectory: /srv")), "");
    assert!(problems(&function("command: [\"true\"], workingDirectory: app")).contains("expected an absolute path"));
    let component = problems(&function("wasm: {path: /etc/passwd}"));
    assert!(component.contains("reads no files"), "{component}");
    let issuer = "{functions: [f], authentication: {issuers: [{issuer: \"https://i\", audiences: [a], jwks: {file: /etc/passwd}}]}}";
    let keys = problems(&format!("{}---\n{}", function("command: [\"true\"]"), policy(issuer)));
    assert!(keys.contains("reads no files"), "{keys}");
    assert!(!format!("{component}{keys}").contains("root:"), "nothing of the file is told");
}

#[test]
fn a_chain_reaches_its_own_namespace() {
    let text = "apiVersion: leno.dev/v1alpha1\nkind: Chain\nmetadata: {name: c, namespace: a}\nspec: {entry: f, functions: [{name: f}]}\n";
    let documents = read(text);
    assert_eq!(documents[0].id().to_string(), "Chain a/c");
    assert_eq!(documents[0].reach(), Reach::Namespaces(["a".to_owned()].into()));
    assert_eq!(Document::restore(documents[0].id(), text).unwrap().text(), text);
}

#[test]
fn a_policy_reaches_what_it_names() {
    let reach = |spec: &str| read(&policy(spec))[0].reach();
    let namespaces = |names: &[&str]| Reach::Namespaces(names.iter().map(|&name| name.to_owned()).collect());
    assert_eq!(reach("{functions: [f]}"), namespaces(&["a"]));
    assert_eq!(reach("{functions: [f, b/g]}"), namespaces(&["a", "b"]));
    assert_eq!(reach("{selector: {}}"), namespaces(&["a"]));
    assert_eq!(reach("{selector: {}, namespaces: [b]}"), namespaces(&["a", "b"]));
    assert_eq!(reach("{selector: {}, namespaces: [\"*\"]}"), Reach::Mesh);
    let mesh = "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\n";
    assert_eq!(read(mesh)[0].reach(), Reach::Mesh);
    let wide = "apiVersion: cilium.io/v2\nkind: CiliumClusterwideNetworkPolicy\nmetadata: {name: w}\nspec: {}\n";
    assert_eq!(read(wide)[0].reach(), Reach::Mesh);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_can_be_restored(
        parts in prop::collection::vec("(---|\\.\\.\\.|# a|\\{\\}|\\|)?[ \r]?", 0..8),
        names in prop::collection::vec("[a-c]{1,2}", 0..4),
    ) {
        let mut text = String::new();
        for (index, part) in parts.iter().enumerate() {
            text.push_str(part);
            text.push('\n');
            if let Some(name) = names.get(index) {
                text.push_str(&format!("apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}}}\nspec: {{command: [a]}}\n"));
            }
        }
        for document in Document::read(Path::new("a.yaml"), &text).unwrap_or_default() {
            let again = Document::restore(document.id(), document.text()).unwrap();
            prop_assert_eq!(again.text(), document.text());
        }
    }
}
