//! Extensions: which functions get them, and their modules.

use leno_config::{Snapshot, load_text, module_hash};
use leno_model::ModuleUrl;
use leno_model::{FunctionConfig, ModuleHash};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The shortest module: a magic number and a version.
const MODULE: &[u8] = b"\0asm\x01\0\0\0";

fn policy(name: &str, extensions: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: {name}}}\nspec:\n  functions: [a]\n  extensions:\n{extensions}\n"
    )
}

fn load(folder: &Path, policies: &str) -> Result<Snapshot, Vec<leno_config::Problem>> {
    let functions = "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: a}\nspec: {command: [a]}\n---\n\
                     apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: b}\nspec: {command: [b]}\n";
    load_text(&folder.join("app.yaml"), &format!("{functions}{policies}"))
}

fn config(snapshot: &Snapshot, id: &str) -> FunctionConfig {
    snapshot.function_config(&id.parse().unwrap()).unwrap()
}

#[test]
fn extensions_add_up_by_the_policies_names_and_modules_are_kept_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.wasm"), MODULE).unwrap();
    let hash = module_hash(MODULE);
    let policies = policy(
        "q",
        &format!("  - {{name: last, path: m.wasm, sha256: {hash}, phase: both, failMode: open}}"),
    ) + &policy(
        "p",
        "  - {name: first, path: m.wasm, configuration: \"{}\", deadline: 1ms, memory: 128Ki}\n  - {name: out, path: m.wasm, direction: outbound, phase: response}",
    );
    let snapshot = load(folder.path(), &policies).unwrap();
    assert_eq!(snapshot.modules().keys().collect::<Vec<_>>(), [&hash]);
    assert_eq!(&*snapshot.modules()[&hash], MODULE);
    let places: Vec<_> =
        snapshot.extensions().map(|extension| (extension.place.line, &*extension.place.field)).collect();
    assert_eq!(places.len(), 3);
    assert!(places.iter().all(|(line, field)| *line > 0 && field.starts_with("spec.extensions[")), "{places:?}");
    assert!(snapshot.inputs().contains(&folder.path().join("m.wasm")), "a changed module is a changed configuration");
    let a = config(&snapshot, "default/a");
    let names: Vec<_> = a.inbound_extensions.iter().map(|extension| &*extension.name).collect();
    assert_eq!(names, ["p/extensions/first", "q/extensions/last"]);
    let [first, last] = &a.inbound_extensions[..] else { panic!("two") };
    assert_eq!((first.request, first.response, first.fail_open), (true, false, false));
    assert_eq!((first.deadline, first.memory), (Duration::from_millis(1), 128 << 10));
    assert_eq!((&first.configuration[..], first.module), (&b"{}"[..], hash));
    assert_eq!((last.request, last.response, last.fail_open), (true, true, true));
    assert_eq!((last.deadline, last.memory), (Duration::from_millis(5), 8 << 20));
    let [out] = &a.outbound_extensions[..] else { panic!("one") };
    assert_eq!((&*out.name, out.request, out.response), ("p/extensions/out", false, true));
    let b = config(&snapshot, "default/b");
    assert!(b.inbound_extensions.is_empty() && b.outbound_extensions.is_empty());
}

#[test]
fn a_module_with_an_address_is_not_read_here() {
    let folder = tempfile::tempdir().unwrap();
    let hash = module_hash(MODULE);
    let url = "https://modules.example/m.wasm";
    let snapshot =
        load(folder.path(), &policy("p", &format!("  - {{name: x, url: \"{url}\", sha256: {hash}}}"))).unwrap();
    assert!(snapshot.modules().is_empty());
    let extension = &config(&snapshot, "default/a").inbound_extensions[0];
    let fetched = |ca: &str| Some(ModuleUrl { url: url.into(), ca_file: None, ca: ca.to_owned() });
    assert_eq!((extension.module, &extension.url), (hash, &fetched("")));
    let pem = "-----BEGIN CERTIFICATE-----";
    let own = policy("p", &format!("  - {{name: x, url: \"{url}\", sha256: {hash}, ca: \"{pem}\"}}"));
    let snapshot = load(folder.path(), &own).unwrap();
    assert_eq!(config(&snapshot, "default/a").inbound_extensions[0].url, fetched(pem));
}

#[test]
fn a_file_that_is_another_module_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.wasm"), MODULE).unwrap();
    let other = module_hash(b"another");
    let problems =
        load(folder.path(), &policy("p", &format!("  - {{name: x, path: m.wasm, sha256: {other}}}"))).unwrap_err();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(problem.field, "spec.extensions[0].sha256");
    assert!(problem.fix.contains(&module_hash(MODULE).to_string()), "{problem}");
}

#[test]
fn a_hash_is_read_as_it_is_written() {
    let hash = module_hash(MODULE);
    assert_eq!(hash.to_string().parse(), Ok(hash));
    assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
    for bad in
        ["", "00", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"é".repeat(32), &format!("+{}", "0".repeat(63))]
    {
        assert!(bad.parse::<ModuleHash>().is_err(), "{bad}");
    }
}
