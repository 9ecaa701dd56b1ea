//! StoredSecret documents and those that name them.

use leno_config::{Document, DocumentId, Snapshot, load_text};
use leno_model::{FunctionConfig, Run, SecretSource};
use std::collections::BTreeMap;
use std::path::Path;

const API: &str = "apiVersion: leno.dev/v1alpha1\n";

fn secret(spec: &str) -> String {
    format!("---\n{API}kind: StoredSecret\nmetadata: {{name: db, namespace: shop}}\nspec: {spec}\n")
}

fn function(namespace: &str, from: &str) -> String {
    format!(
        "---\n{API}kind: Function\nmetadata: {{name: cart, namespace: {namespace}}}\n\
         spec: {{command: [\"/bin/true\"], secrets: [{{name: A, from: {from}}}]}}\n"
    )
}

fn problems(text: &str) -> Vec<String> {
    load_text(Path::new("x.yaml"), text).err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

fn config(snapshot: &Snapshot, name: &str) -> FunctionConfig {
    snapshot.function_config(&name.parse().unwrap()).unwrap()
}

#[test]
fn documents_name_files_and_stored_secrets() {
    let text = [
        secret("{stringData: {user: shop, password: \"007\", flag: true, ca.pem: A, tls.crt: B, tls.key: C}, data: {bin: \"AP8B\\nAA==\"}}"),
        function("shop", "{secret: db, key: bin}"),
        function("other", "/etc/token"),
        format!(
            "---\n{API}kind: Job\nmetadata: {{name: import, namespace: shop}}\n\
             spec: {{command: [\"/bin/true\"], secrets: [{{name: A, from: {{secret: db, key: user}}, as: env}}]}}\n"
        ),
        format!(
            "---\n{API}kind: External\nmetadata: {{name: api, namespace: shop}}\n\
             spec:\n  hosts: [api.example.com]\n  ports: [{{port: 443, protocol: https}}]\n  \
             tls: {{caFile: {{secret: db, key: ca.pem}}, certificate: {{secret: db, key: tls.crt}}, key: {{secret: db, key: tls.key}}}}\n  \
             credentials: [{{username: shop, from: {{secret: db, key: password}}}}]\n"
        ),
    ]
    .concat();
    let snapshot = load_text(Path::new("x.yaml"), &text).unwrap_or_else(|problems| panic!("{problems:?}"));
    let keys = |name: &str| config(&snapshot, name).stored_keys().into_iter().map(|key| key.key).collect::<Vec<_>>();
    assert_eq!(keys("shop/cart"), ["bin"]);
    assert_eq!(keys("shop/import"), ["user"]);
    assert_eq!(keys("shop/api"), ["ca.pem", "password", "tls.crt", "tls.key"]);
    let Run::Command(command) = config(&snapshot, "other/cart").run else { panic!() };
    assert_eq!(command.secrets[0].from, SecretSource::File("/etc/token".into()));
    let values = snapshot.secrets().values();
    let value = |key: &str| {
        let found = values["shop"].iter().find(|(stored, _)| stored.key == key).unwrap().1;
        found.expose().to_vec()
    };
    assert_eq!(value("bin"), [0, 255, 1, 0]);
    assert_eq!((value("password"), value("flag")), (b"007".to_vec(), b"true".to_vec()), "texts, as written");
    let users: Vec<String> =
        snapshot.secret_users()[&("shop".to_owned(), "db".to_owned())].iter().map(ToString::to_string).collect();
    assert_eq!(users, ["shop/api", "shop/cart", "shop/import"]);
    assert!(!format!("{snapshot:?}").contains("007"), "nothing prints values");
}

#[test]
fn what_is_missing_is_named_with_its_field_and_without_other_namespaces() {
    let there = secret("{stringData: {password: swordfish}}");
    for (from, namespace, expected) in [
        (
            "{secret: dbb, key: password}",
            "shop",
            "from.secret: there is no StoredSecret `dbb` in the namespace `shop`; did you mean `db`?",
        ),
        (
            "{secret: db, key: passwort}",
            "shop",
            "from.key: the StoredSecret `db` has no key `passwort`; did you mean `password`?",
        ),
        ("{secret: db, key: password}", "blog", "there is no StoredSecret `db` in the namespace `blog`; add one"),
        ("{secret: db}", "shop", "the field `key` is missing"),
        ("{secret: db, key: a, namespace: blog}", "shop", "namespace"),
        ("[db]", "shop", "expected a file, or {secret: NAME, key: KEY} of a StoredSecret"),
    ] {
        let found = problems(&format!("{there}{}", function(namespace, from)));
        assert!(found.len() == 1 && found[0].contains(expected), "{from}: {found:?}");
        assert!(namespace == "shop" || !found[0].contains("shop"), "{found:?}");
    }
}

#[test]
fn values_that_cannot_be_stored_are_refused_and_not_repeated() {
    let large = "swordfish".repeat(8 << 10);
    let many: String = (0..9).map(|key| format!("k{key}: {}, ", "swordfish".repeat(7 << 10))).collect();
    for (spec, expected) in [
        ("{}".to_owned(), "it has no value"),
        ("{stringData: swordfish}".to_owned(), "another form"),
        ("{stringData: {a: [swordfish]}}".to_owned(), "spec.stringData.a"),
        ("{stringdata: {a: swordfish}}".to_owned(), "did you mean `stringData`?"),
        ("swordfish".to_owned(), "another form"),
        ("{data: {a: swordfish}}".to_owned(), "spec.data.a: the value is not base64"),
        ("{data: {a: AAAA}, stringData: {a: swordfish}}".to_owned(), "is in `stringData` too"),
        ("{stringData: {\"a b\": swordfish}}".to_owned(), "cannot be a key"),
        (format!("{{stringData: {{a: {large}}}}}"), "has 73728 bytes; expected at most 65536"),
        (format!("{{stringData: {{{many}}}}}"), "expected at most 524288"),
        ("{redacted: {a: {bytes: 9, changed: 1}}}".to_owned(), "spec.redacted: this document was shown"),
    ] {
        let found = problems(&secret(&spec));
        let shown = expected;
        assert!(found.iter().any(|problem| problem.contains(shown)), "{expected}: {found:?}");
        assert!(!found.iter().any(|problem| problem.contains("swordfish")), "{found:?}");
    }
    let twice = format!("{0}{0}", secret("{stringData: {a: b}}"));
    assert!(problems(&twice)[0].contains("there is a StoredSecret `shop/db` too"), "{:?}", problems(&twice));
}

#[test]
fn bounds_of_a_namespace_name_the_document() {
    let quota = |fields: &str| format!("---\n{API}kind: NamespaceQuota\nmetadata: {{name: shop}}\nspec: {fields}\n");
    let values = secret(&format!("{{stringData: {{a: {}, b: c}}}}", "x".repeat(2000)));
    assert_eq!(problems(&format!("{}{values}", quota("{secrets: 2}"))), [""; 0]);
    for (fields, bound) in [("{secrets: 1}", "2 of `secrets`"), ("{secretBytes: 1Ki}", "2001 of `secretBytes`")] {
        let found = problems(&format!("{}{values}", quota(fields)));
        assert!(found.len() == 1 && found[0].contains(bound) && found[0].starts_with("x.yaml:"), "{found:?}");
    }
}

#[test]
fn a_stored_document_stands_for_its_values() {
    let text = secret("{stringData: {a: swordfish}}")
        .replace("namespace: shop}", "namespace: shop, labels: {\"a.b/c\": \"1\"}}");
    let document = Document::read(Path::new("x.yaml"), &text).unwrap().remove(0);
    let found = document.secret_values().unwrap().unwrap();
    assert_eq!(&**found.values["a"], b"swordfish");
    let summary = leno_config::KeySummary { bytes: 9, changed: 1_900_000_000 };
    let id: DocumentId = document.id().clone();
    let stored = Document::redacted(&id, found.labels, &BTreeMap::from([("a".to_owned(), summary)])).unwrap();
    assert_eq!(stored.redacted_keys().unwrap()["a"], summary);
    assert!(!stored.text().contains("swordfish") && stored.text().contains("\"a.b/c\": \"1\""), "{}", stored.text());
    assert!(stored.secret_values().is_err(), "it cannot be applied");
    let snapshot = Snapshot::of_documents([&stored]).unwrap();
    assert_eq!(snapshot.secrets().get("shop", "db").unwrap().keys["a"], summary);
    assert!(snapshot.secrets().values()["shop"].is_empty());
}
