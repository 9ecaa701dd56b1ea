//! Blocks about a whole machine: packages, systemd, priorities. Programs that a test must not run
//! are replaced by scripts that do as much of the same as the test needs, and say how they were
//! called.

use super::{Machine, block, script};
use leno_testkit::documentation::repository;
use leno_testkit::eventually;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, leno_program, policy};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What systemd does with a unit of the packages: `systemctl enable|disable --now UNIT`.
const SYSTEMCTL: &str = r#"#!/bin/sh
unit=$UNITS/$3.service
case "$1 $2" in
"enable --now")
    while IFS= read -r line; do case $line in [A-Z]*) export "$line" ;; esac; done < "$(sed -n 's/^EnvironmentFile=//p' "$unit")"
    eval "set -- $(sed -n 's/^ExecStart=//p' "$unit")"
    setsid "$@" > /run/unit.log 2>&1 &
    echo $! > /run/unit.pid ;;
"disable --now")
    kill "$(cat /run/unit.pid)"
    while kill -0 "$(cat /run/unit.pid)" 2> /run/none; do sleep 0.1; done ;;
*) exit 1 ;;
esac
"#;

#[test]
fn an_installation_from_source() {
    let machine = Machine::start("source");
    let folder = tempfile::tempdir().unwrap();
    let mut copy = Command::new("cp");
    copy.args(["-r", "Makefile", "scripts"]).arg(folder.path()).current_dir(repository());
    assert!(copy.status().unwrap().success());
    machine.run("rm /usr/bin/leno; mkdir -p /run/wasm32 && touch /run/wasm32/libcore-0.rlib", folder.path());
    machine
        .replace("rustc", "#!/bin/sh\ncase $1 in --version) echo rustc 1.95.0 ;; --print) echo /run/wasm32 ;; esac\n");
    let cargo = format!(
        "#!/bin/sh\necho \"$@\" > cargo.called\nmkdir -p target/dist && cp {} target/dist/leno\n",
        leno_program().display()
    );
    machine.replace("cargo", &cargo);
    machine.replace("apt-get", "#!/bin/sh\necho \"$@\" >> apt-get.called\n");
    let output = machine.run(&script("docs/operations/install.md", "make setup"), folder.path());
    assert!(output.contains(&format!("leno {}", env!("CARGO_PKG_VERSION"))), "{output}");
    let called = fs::read_to_string(folder.path().join("cargo.called")).unwrap();
    assert_eq!(called.trim(), "build --profile dist --locked -p leno");
    machine.run("test -x /usr/bin/leno", folder.path());
}

#[test]
fn a_node_as_a_service_until_it_is_uninstalled() {
    let machine = Machine::start("service");
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| machine.run(line, folder.path());
    run("ip addr add 10.0.0.1/32 dev lo && ip addr add 10.0.0.2/32 dev lo");
    let packaging = repository().join("packaging");
    run(&format!("mkdir -p /etc/leno && cp {}/*.env /etc/leno", packaging.display()));
    let units = format!("#!/bin/sh\nUNITS={}/systemd\n", packaging.display());
    machine.replace("systemctl", &SYSTEMCTL.replacen("#!/bin/sh\n", &units, 1));
    machine.replace("apt-get", "#!/bin/sh\n[ \"$*\" = 'purge leno' ] && rm /usr/bin/leno\n");
    fs::write(
        folder.path().join("mesh.yaml"),
        "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\nspec: {trustDomain: test.example}\n",
    )
    .unwrap();
    let control = "leno control --listen 10.0.0.1:15010 --api 10.0.0.1:15443 --mesh mesh.yaml";
    let _control = machine.begin(control, folder.path(), "admin.token");
    run(
        "leno context add mesh --server https://10.0.0.1:15443 --token-file /var/lib/leno/admin.token --ca /var/lib/leno/api.pem",
    );
    run("leno token join --address 10.0.0.2 > /etc/leno/node.token");

    run(&script("docs/operations/install.md", "cat"));
    eventually("the node to join", || run("leno get nodes").contains("service "));

    // A volume on disk, which the machine may not be able to make.
    run(
        "mkdir -p /var/lib/leno/node/volumes/demo/data/fs && mount -t tmpfs volume /var/lib/leno/node/volumes/demo/data/fs",
    );
    for line in block("docs/operations/uninstall.md", "leno nodes") {
        run(&line.replace("NAME", "service"));
    }
    run("test ! -e /var/lib/leno/node && test ! -e /run/leno && test ! -e /usr/bin/leno");
    let ended = run("cat /run/unit.log");
    assert!(ended.contains("ready"), "{ended}");
}

#[test]
fn a_measurement_with_a_higher_priority() {
    let machine = Machine::start("priority");
    let folder = tempfile::tempdir().unwrap();
    machine.replace("sudo", "#!/bin/sh\nexec \"$@\"\n");
    let bench = "mkdir -p target/dist && printf '#!/bin/sh\\necho $* at $(nice), $(cat /proc/self/autogroup)\\n' > target/dist/leno-bench";
    machine.run(&format!("{bench} && chmod +x target/dist/leno-bench"), folder.path());
    fs::write(folder.path().join("block.sh"), script("docs/benchmarks.md", "sudo sh")).unwrap();
    // The priority is that of a session, and must not become this test's.
    let output = machine.run("setsid --wait sh block.sh", folder.path());
    assert!(output.starts_with("hop at -15, "), "{output}");
    if Path::new("/proc/self/autogroup").exists() {
        assert!(output.contains("nice -15"), "{output}");
    }
}

#[test]
fn a_change_by_curl() {
    let machine = Machine::start("changes");
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| machine.run(line, folder.path());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write(
        "mesh.yaml",
        "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\nspec: {trustDomain: test.example}\n",
    );
    let function = |name: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: demo}}\nspec: {{command: [sleep, inf]}}\n"
        )
    };
    write("old.yaml", &function("old"));
    let _control = machine.begin("leno control --mesh mesh.yaml --data .", folder.path(), "admin.token");
    run("leno context add mesh --server https://127.0.0.1:15443 --token-file $PWD/admin.token --ca $PWD/api.pem");
    run("leno apply -f old.yaml");
    let [line] = &*block("docs/control.md", "curl --cacert") else { panic!("the block has one command") };
    let text = serde_json::to_string(&function("shop")).unwrap();
    let answer = run(&format!("TOKEN=$(cat admin.token); {}", line.replace("\"…\"", &text)));
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert!(answer["error"].is_null(), "{answer}");
    assert!(answer.to_string().contains("old") && answer.to_string().contains("shop"), "{answer}");
    assert!(run("leno get documents").contains("old"), "it was only tried");
}

/// The first block of this language on a page that contains a text.
fn source(page: &str, language: &str, contains: &str) -> String {
    let page = fs::read_to_string(repository().join(page)).unwrap();
    let fence = format!("```{language}\n");
    let mut blocks = page.split(&fence).skip(1).filter_map(|rest| rest.split("```").next());
    blocks.find(|block| block.contains(contains)).unwrap().to_owned()
}

#[test]
fn a_module_of_ones_own() {
    let libraries =
        Command::new("rustc").args(["--print", "target-libdir", "--target", "wasm32-unknown-unknown"]).output();
    let libraries = libraries.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    if !libraries.is_ok_and(|folder| folder.is_dir()) {
        let _ = writeln!(
            std::io::stderr(),
            "\n*** SKIPPED: this Rust has no standard library for wasm32-unknown-unknown ***\n"
        );
        return;
    }
    // Not a temporary folder: its dependencies are compiled once.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("module");
    let example = repository().join("examples/extensions/rust");
    fs::create_dir_all(folder.join("src")).unwrap();
    for file in ["Cargo.toml", "Cargo.lock"] {
        fs::copy(example.join(file), folder.join(file)).unwrap();
    }
    fs::write(folder.join("src/lib.rs"), source("docs/extensions.md", "rust", "x-tenant")).unwrap();
    let mut built = Command::new("sh");
    built.args(["-ec", &script("docs/extensions.md", "cargo build")]).current_dir(&folder);
    // Settings of an outer cargo are not meant for this one.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        built.env_remove(variable);
    }
    assert!(built.env("CARGO_TARGET_DIR", folder.join("target")).status().unwrap().success());
    let module = folder.join("target/wasm32-unknown-unknown/release/tenant.wasm");

    let extension = "  sidecar: {deadline: 100ms}\n  extensions: [{name: tenant, path: tenant.wasm, phase: request}]\n";
    let documents = echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]")
        + &policy("echo-in", "echo", &format!("{extension}{ALLOW_ALL}"));
    let mesh = Mesh::start_with_command(Command::new(leno_program()), "", &documents, |folder| {
        fs::copy(&module, folder.join("tenant.wasm")).unwrap();
    });
    assert_eq!(mesh.curl("/", &["--header", "x-tenant: acme"]).status, 200);
    let refused = mesh.get("/");
    assert_eq!((refused.status, &*refused.body), (403, "x-tenant is missing\n"));
}
