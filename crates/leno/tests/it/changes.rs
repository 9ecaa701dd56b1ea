//! Who changed which documents, with the differences: real processes.

use leno_testkit::cluster::{Node, control};
use leno_testkit::control::{Control, function, text};
use leno_testkit::eventually;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use serde_json::{Value, json};

fn token(control: &Control, role: &str, namespace: &str) -> String {
    let made = control.leno(&["token", "create", "--role", role, "--namespace", namespace]);
    text(&made).trim().to_owned()
}

fn history(control: &Control, token: &str, query: &str) -> Vec<Value> {
    let (status, page) = control.get_as(token, &format!("/v1/history{query}"));
    assert_eq!(status, 200, "{page}");
    page["rows"].as_array().unwrap().clone()
}

fn apply(control: &Control, token: &str, documents: &str) -> Value {
    let (status, answer) =
        control.post(token, "/v1/changes", &json!({ "apply": [{ "name": "x.yaml", "text": documents }] }));
    assert_eq!(status, 200, "{answer}");
    answer
}

fn delete(control: &Control, token: &str, name: &str) {
    let delete = json!({ "delete": [{ "kind": "Function", "namespace": "a", "name": name }] });
    let (status, answer) = control.post(token, "/v1/changes", &delete);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn a_control_plane_keeps_differences_for_readers_of_the_namespace() {
    let control = control();
    let [editor, reader, other] =
        [("editor", "a"), ("reader", "a"), ("reader", "b")].map(|(role, namespace)| token(&control, role, namespace));
    apply(&control, &editor, &function("shop", "a"));
    apply(&control, &editor, &function("stays", "a"));
    let both = format!("{}---\n{}", function("shop", "a").replace("true", "false"), function("den", "b"));
    let revision = apply(&control, &control.token(), &both)["revision"].clone();
    delete(&control, &editor, "shop");

    let rows = history(&control, &reader, "");
    let changed = |row: &Value| ["what", "action"].map(|field| row["changes"][0][field].as_str().unwrap().to_owned());
    let actions: Vec<_> = rows.iter().map(|row| changed(row).join(" ")).collect();
    let expected = ["shop deleted", "shop changed", "stays created", "shop created"];
    assert_eq!(actions, expected.map(|change| format!("Function a/{change}")));
    let diff = rows[1]["changes"][0]["diff"].as_str().unwrap();
    assert!(diff.contains("\n-") && diff.contains("\n+") && diff.contains("false"), "{diff}");
    assert_eq!(rows[1]["revision"], revision);
    assert!(rows[3]["by"].as_str().unwrap().starts_with("token "), "{rows:?}");
    // The second change was of both namespaces, and each reader sees one document of it.
    assert!(
        rows.iter().all(|row| row["changes"].as_array().unwrap().len() == 1 && row.get("from").is_none()),
        "{rows:?}"
    );
    let rows = history(&control, &other, "");
    assert_eq!((rows.len(), &rows[0]["changes"][0]["what"]), (1, &"Function b/den".into()), "{rows:?}");
    assert!(!rows[0].to_string().contains("shop"), "{rows:?}");
    assert_eq!(history(&control, &other, "?namespace=a").len(), 0);
    assert_eq!(history(&control, &control.token(), "?namespace=b").len(), 1);
    // The Mesh document has no namespace.
    assert_eq!(history(&control, &control.token(), "?namespace=&limit=1")[0]["changes"][0]["what"], "Mesh test");

    let table = text(&control.leno(&["get", "changes", "-n", "b"]));
    assert!(table.contains("Function b/den created") && table.lines().count() == 2, "{table}");
    let told = text(&control.leno(&["describe", "change", &revision.to_string()]));
    assert!(
        told.contains("Function a/shop changed\n--- Function a/shop") && told.contains("Function b/den created"),
        "{told}"
    );
    assert!(!control.leno(&["describe", "change", "999999"]).status.success());
}

#[test]
fn the_history_of_a_namespace_ends_with_its_last_document() {
    let control = control();
    let [editor, all] = [token(&control, "editor", "a"), control.token()];
    apply(&control, &editor, &function("former", "a").replace("true", "private"));
    apply(&control, &editor, &function("other", "a"));
    apply(&control, &all, &function("den", "b"));
    delete(&control, &editor, "former");
    let rows = history(&control, &editor, "");
    assert_eq!(rows.len(), 3, "one document is left: {rows:?}");
    assert!(json!(rows).to_string().contains("private"), "{rows:?}");
    delete(&control, &editor, "other");
    assert_eq!(history(&control, &editor, ""), [json!(null); 0]);

    // The next holder of the name sees later changes.
    let next = token(&control, "editor", "a");
    apply(&control, &next, &function("shop", "a"));
    let rows = history(&control, &next, "");
    assert_eq!((rows.len(), &rows[0]["changes"][0]["what"]), (1, &"Function a/shop".into()), "{rows:?}");
    assert!(rows[0]["changes"][0]["diff"].is_string(), "{rows:?}");
    // The texts are gone for all; the audit log has the changes.
    let rows = history(&control, &all, "?namespace=a");
    assert_eq!(rows.len(), 5, "{rows:?}");
    assert!(!json!(rows).to_string().contains("private"), "{rows:?}");
    assert!(history(&control, &all, "?namespace=b")[0]["changes"][0]["diff"].is_string(), "others keep theirs");
}

#[test]
fn any_change_of_the_audit_log_is_found_by_its_revision() {
    let control = control();
    let [editor, other] = [token(&control, "editor", "a"), token(&control, "reader", "b")];
    let first = apply(&control, &editor, &function("shop", "a"))["revision"].clone();
    // More than one listing, and one read of the store, have.
    for number in 0..101 {
        apply(&control, &editor, &function("shop", "a").replace("true", &number.to_string()));
    }
    let rows = history(&control, &editor, "?limit=1000");
    assert_eq!(rows.len(), 100);
    assert!(rows.iter().all(|row| row["revision"] != first), "{rows:?}");
    // All of them, page by page.
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let (_, page) = control.get_as(&editor, &format!("/v1/history?limit=40{after}"));
        all.extend(page["rows"].as_array().unwrap().iter().map(|row| row["revision"].as_u64().unwrap()));
        let Some(next) = page["after"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert!(all.len() == 102 && all.is_sorted_by(|one, other| one > other), "{all:?}");
    assert_eq!(all.last(), first.as_u64().as_ref());
    assert_eq!(control.get_as(&editor, "/v1/history?after=x/y").0, 400);
    let rows = history(&control, &editor, &format!("?revision={first}"));
    assert_eq!((rows.len(), &rows[0]["changes"][0]["action"]), (1, &"created".into()), "{rows:?}");
    assert_eq!(history(&control, &other, &format!("?revision={first}")), [json!(null); 0]);
    let told = text(&control.leno(&["describe", "change", &first.to_string()]));
    assert!(told.contains("Function a/shop created\n--- Function a/shop"), "{told}");
    for bad in ["999999", "latest"] {
        assert!(!control.leno(&["describe", "change", bad]).status.success());
    }
}

#[test]
fn no_difference_of_a_secret_is_kept_and_namespaces_have_their_bytes() {
    let control = control();
    let editor = token(&control, "editor", "a");
    let secret = "apiVersion: leno.dev/v1alpha1\nkind: StoredSecret\nmetadata: {name: db, namespace: a}\nspec: {stringData: {password: hunter2}}\n";
    apply(&control, &editor, secret);
    let rows = history(&control, &editor, "");
    assert_eq!(
        (&rows[0]["changes"][0]["what"], &rows[0]["changes"][0]["diff"]),
        (&"StoredSecret a/db".into(), &Value::Null)
    );
    apply(&control, &control.token(), &function("kept", "b"));
    // Each change has almost as much as the difference of a document may have.
    for number in 0..24 {
        let comment = format!("# {number}{}\n", "x".repeat(15_000));
        apply(
            &control,
            &editor,
            &format!("{comment}{}", function("shop", "a").replace("true", &format!("/bin/{number}"))),
        );
    }
    let rows = history(&control, &editor, "?limit=100");
    let with_diff = rows.iter().filter(|row| row["changes"][0]["diff"].is_string()).count();
    assert_eq!(rows.len(), 25, "the audit log has all changes");
    assert!((10..24).contains(&with_diff), "{with_diff} differences");
    assert!(rows[0]["changes"][0]["diff"].is_string(), "the latest");
    assert!(
        history(&control, &control.token(), "?namespace=b")[0]["changes"][0]["diff"].is_string(),
        "others keep theirs"
    );
}

#[test]
fn a_change_has_the_verdicts_of_its_dry_run() {
    let control = control();
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let _node = Node::join(&control, "one", &[]);
    let echo = echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]\n  scale: {min: 1}");
    control.apply(&(echo + &policy("own", "echo", ALLOW_ALL)));
    eventually("an answer", || gateway.get("/hello").filter(|answer| answer.status == 200));
    let narrow = policy("own", "echo", "  authorization: {rules: [{name: none, to: [{paths: [/other]}]}]}");
    let denied = eventually("a replay of the request", || {
        let tried = control.leno_with(&["apply", "--dry-run", "-o", "json", "-f", "-"], &narrow);
        let answer: Value = serde_json::from_slice(&tried.stdout).unwrap_or_else(|error| panic!("{error}: {tried:?}"));
        let functions = answer["replay"]["functions"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let denied: u64 = functions.iter().filter_map(|function| function["newlyDenied"].as_u64()).sum();
        (denied > 0).then_some(denied)
    });
    assert!(control.leno_with(&["apply", "-f", "-"], &narrow).status.success());
    let rows = history(&control, &control.token(), "?namespace=test&limit=1");
    assert_eq!(rows[0]["verdicts"]["newly_denied"], denied, "{rows:?}");
}

#[test]
fn changes_of_files_are_told_since_the_start() {
    let echo = |command: &str| echo_function("echo", command);
    let mut mesh = Mesh::start(&echo("  callees: []"));
    assert_eq!(mesh.admin("/changes").json(), json!([]));
    mesh.write(&(echo("  callees: [other]")));
    mesh.line("the change is refused");
    assert_eq!(mesh.admin("/changes").json(), json!([]), "what is refused is no change");
    mesh.write(&(echo("  callees: []\n  concurrency: 3") + &policy("open", "echo", ALLOW_ALL)));
    mesh.wait_for("the change", |mesh| mesh.admin("/changes").json().as_array().is_some_and(|rows| !rows.is_empty()));
    let change = &mesh.admin("/changes").json()[0];
    assert_eq!((&change["revision"], &change["by"]), (&1.into(), &"files".into()), "{change}");
    let diff = change["changes"][0]["diff"].as_str().unwrap();
    assert!(diff.contains("+  concurrency: 3"), "{diff}");
    assert_eq!(
        (&change["changes"][1]["what"], &change["changes"][1]["action"]),
        (&"Policy test/open".into(), &"created".into())
    );
    assert!(text(&mesh.leno(&["get", "changes"])).contains("Function test/echo changed,Policy test/open created"));
    assert!(text(&mesh.leno(&["describe", "change", "1"])).contains("+  concurrency: 3"));
}
