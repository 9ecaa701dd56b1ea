//! The chains of `examples/boutique` behind `leno up`: with sidecars that judge paths, and with
//! direct channels, where the kernel judges which function calls which.

use leno_testkit::Answer;
use leno_testkit::mesh::{Mesh, kernel_makes_channels};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = "workingDirectory: ../../../../target/release";
const ORDER: &str = "email=a@shop.example&street=Way&city=Town&country=Land&zip_code=1234&card_number=4111-1111-1111-1111&card_month=1&card_year=2039&card_code=123";

/// The folder with the programs of this workspace.
fn programs() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.parent().and_then(Path::parent).unwrap().to_owned();
    assert!(folder.join("boutique").is_file(), "`cargo build --release -p boutique` makes the functions of this test");
    folder
}

/// All documents. Direct chains leave out the fields that the kernel does not evaluate: paths, and
/// how many calls an instance has at a time.
fn documents(direct: bool) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/boutique/mesh");
    let mut all = String::new();
    for chain in ["shop", "motion", "parking"] {
        for name in ["chain", "functions", "policies"] {
            let text = fs::read_to_string(folder.join(chain).join(name).with_extension("yaml")).unwrap();
            let mut text = text.replace(FOLDER, &format!("workingDirectory: {}", programs().display()));
            if direct {
                text = text.replace("  concurrency: 32\n", "");
                let is_path = |line: &&str| !line.starts_with("      to: [{methods: [POST], paths: [/boutique.v1.");
                text = text.lines().filter(is_path).flat_map(|line| [line, "\n"]).collect();
                if name == "chain" {
                    text = text.replacen("spec:\n", "spec:\n  direct: true\n", 1);
                }
            }
            all += "---\n";
            all += &text;
        }
    }
    all
}

/// The same with two functions in other languages; `None`, with a log line: this machine lacks the
/// compilers or interpreters that they need.
fn in_other_languages(documents: &str, folder: &Path) -> Option<String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let library = std::env::current_exe().unwrap();
    let library = library.ancestors().find(|folder| folder.join("libleno.so").exists())?.display().to_string();
    let (c, persist) = (sources.join("examples/boutique/languages/persist.c"), folder.join("persist"));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Werror", "-o"]).arg(&persist).arg(c).arg("-I").arg(sources.join("sdk/c/include"));
    let built = cc.arg(format!("-L{library}")).arg("-lleno").status().is_ok_and(|status| status.success());
    let is_there = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !built || !is_there {
        return None;
    }
    let is = |function: &str| {
        format!("command: [\"./boutique\", {function}]\n  workingDirectory: {}\n", programs().display())
    };
    let env = "  env: {BOUTIQUE_TRANSPORT: chain}\n";
    let script = sources.join("examples/boutique/languages/actuator.py");
    let python = format!(
        "command: [python3, \"-B\", \"{}\"]\n  env: {{PYTHONPATH: \"{}\", LENO_LIBRARY: \"{library}/libleno.so\"}}\n",
        script.display(),
        sources.join("sdk/python").display()
    );
    let c = format!("command: [\"{}\"]\n  env: {{LD_LIBRARY_PATH: \"{library}\"}}\n", persist.display());
    let mut changed = documents.to_owned();
    for (function, other) in [("actuator", python), ("persist", c)] {
        let before = is(function) + env;
        assert!(changed.contains(&before), "no `{before}` in the documents");
        changed = changed.replace(&before, &other);
    }
    Some(changed)
}

/// A user buys two things, the sensor detects motion, and a car comes. Returns the responses.
fn visit(mesh: &Mesh, user: &str) -> Vec<(u16, String)> {
    let cookie = format!("cookie: user={user}; currency=EUR");
    let shop = |path: &str, form: Option<&str>| {
        let data = form.map(|form| ["--data", form]);
        let more: Vec<&str> = data.iter().flatten().copied().collect();
        mesh.curl(path, &[&["--header", "host: shop.example", "--header", &cookie], &more[..]].concat())
    };
    let other = |host: &str, more: &[&str]| mesh.curl("/1/", &[&["--header", host], more].concat());
    let answers: [Answer; 9] = [
        shop("/", None),
        shop("/product/tea-kettle", None),
        shop("/cart", Some("product_id=tea-kettle&quantity=2")),
        shop("/cart", Some("product_id=desk-light&quantity=1")),
        shop("/cart", None),
        shop("/setCurrency", Some("currency_code=JPY")),
        other("host: motion.example", &[]),
        // A known car, and a new one, which the application stores.
        other("host: parking.example", &["--data-binary", "a picture"]),
        other("host: parking.example", &["--data-binary", "picture 16"]),
    ];
    let order = shop("/cart/checkout", Some(ORDER));
    assert_eq!(order.status, 200, "{}", order.body);
    answers.into_iter().map(|answer| (answer.status, answer.body)).collect()
}

/// The sum of a metric over all chains.
fn sum(mesh: &Mesh, name: &str) -> u64 {
    let text = mesh.admin("/metrics").body;
    let of =
        |line: &str| line.strip_prefix(name)?.starts_with('{').then(|| line.rsplit(' ').next()?.parse::<u64>().ok())?;
    text.lines().filter_map(of).sum()
}

/// Starts the mesh, and returns the responses to a visit after all instances are ready, and all
/// channels if the chain is direct.
fn second_visit(documents: &str, direct: bool) -> Vec<(u16, String)> {
    let spec = "  instances: {isolation: process, accounts: node}\n";
    let leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    let mesh = Mesh::start_with_command(leno, spec, documents, |_| {});
    let first = visit(&mesh, "one");
    let statuses: Vec<u16> = first.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 200, 302, 302, 200, 302, 200, 200, 200], "{first:#?}");
    let second = visit(&mesh, "two");
    assert!(sum(&mesh, "leno_chain_handed_over_total") > 0);
    assert_eq!(sum(&mesh, "leno_chain_violations_total"), 0);
    let calls = sum(&mesh, "leno_chain_channel_calls_total");
    if direct {
        assert!(calls > 20, "{calls} calls went through the kernel: {}", mesh.admin("/chains").body);
        assert_eq!(sum(&mesh, "leno_chain_channel_violations_total"), 0);
    } else {
        assert_eq!(calls, 0);
    }
    second
}

#[test]
fn a_visit_is_the_same_whoever_judges_and_in_any_language() {
    let folder = tempfile::tempdir().unwrap();
    let judged = second_visit(&documents(false), false);
    let mut others = Vec::new();
    match in_other_languages(&documents(false), folder.path()) {
        Some(documents) => others.push(("other languages", second_visit(&documents, false))),
        None => eprintln!(
            "SKIPPED: functions in C and Python take `cc`, `python3`, and libleno.so of `cargo build --release -p leno-sdk-c`"
        ),
    }
    if kernel_makes_channels() {
        others.push(("direct", second_visit(&documents(true), true)));
        if let Some(documents) = in_other_languages(&documents(true), folder.path()) {
            others.push(("other languages, direct", second_visit(&documents, true)));
        }
    }
    for (name, other) in others {
        for (number, (one, other)) in judged.iter().zip(&other).enumerate() {
            assert_eq!(one, other, "{name}: request {number}");
        }
    }
}
