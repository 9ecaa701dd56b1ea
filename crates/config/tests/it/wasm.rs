//! Functions that are components.

use leno_config::{load_text, module_hash};
use leno_model::FunctionConfig;
use leno_model::{ModuleUrl, Run};
use std::fs;
use std::time::Duration;

/// The shortest component: a magic number, a version and a layer.
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

fn function(spec: &str) -> String {
    format!("apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: a}}\nspec:\n{spec}\n")
}

fn config(snapshot: &leno_config::Snapshot) -> FunctionConfig {
    snapshot.function_config(&"default/a".parse().unwrap()).unwrap()
}

#[test]
fn a_component_is_read_and_named_by_its_hash() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.wasm"), COMPONENT).unwrap();
    let spec = "  wasm: {path: a.wasm, memory: 2Mi}\n  env: {A: b}\n  secrets: [{name: S, from: secret, as: env}]\n  timeouts: {grace: 1s}";
    let snapshot = load_text(&folder.path().join("app.yaml"), &function(spec)).unwrap();
    let config = config(&snapshot);
    let Run::Wasm(wasm) = &config.run else { panic!("no component") };
    let hash = module_hash(COMPONENT);
    assert_eq!((wasm.module, wasm.memory, &wasm.url), (hash, 2 << 20, &None));
    assert_eq!((wasm.env["A"].as_str(), wasm.grace), ("b", Duration::from_secs(1)));
    assert_eq!(wasm.secrets[0].from, folder.path().join("secret").into());
    assert_eq!(config.modules().collect::<Vec<_>>(), [(hash, None)]);
    assert_eq!(snapshot.modules()[&hash].as_ref(), COMPONENT);
    assert!(snapshot.inputs().contains(&folder.path().join("a.wasm")));
}

#[test]
fn a_component_that_is_fetched_needs_only_its_hash() {
    let folder = tempfile::tempdir().unwrap();
    let hash = module_hash(COMPONENT);
    let text = function(&format!("  wasm: {{url: \"https://host/a.wasm\", sha256: \"{hash}\"}}"));
    let snapshot = load_text(&folder.path().join("app.yaml"), &text).unwrap();
    let url = ModuleUrl { url: "https://host/a.wasm".to_owned(), ca_file: None, ca: String::new() };
    assert_eq!(config(&snapshot).modules().collect::<Vec<_>>(), [(hash, Some(&url))]);
    assert!(snapshot.modules().is_empty());
}

#[test]
fn a_plain_module_is_no_component_and_the_hash_must_be_right() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.wasm"), b"\0asm\x01\0\0\0").unwrap();
    let problems = load_text(&folder.path().join("app.yaml"), &function("  wasm: {path: a.wasm}")).unwrap_err();
    assert!(problems[0].to_string().contains("is a plain module; make a component of it"), "{}", problems[0]);
    fs::write(folder.path().join("a.wasm"), COMPONENT).unwrap();
    let other = module_hash(b"");
    let text = function(&format!("  wasm: {{path: a.wasm, sha256: \"{other}\"}}"));
    let problems = load_text(&folder.path().join("app.yaml"), &text).unwrap_err();
    assert!(problems[0].to_string().contains("has another SHA-256"), "{}", problems[0]);
}
