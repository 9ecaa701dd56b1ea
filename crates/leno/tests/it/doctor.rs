//! `leno doctor`: the machine, listeners of documents, and certificates of a running node.

use leno_testkit::control::text;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use leno_testkit::{eventually, leno_program};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const NOBODY: u32 = 65534;

fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(leno_program());
    command.arg("doctor").args(arguments).env_remove("LENO_ADMIN").stdin(Stdio::null());
    command
}

/// A command about a machine without a running node.
fn without_node(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = doctor(arguments);
    command.args(["--admin", &format!("unix:{}", folder.join("none.sock").display())]);
    command
}

fn findings(output: &Output) -> Vec<Value> {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn finding<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    findings.iter().find(|row| row["check"] == check).unwrap_or_else(|| panic!("no {check} in {findings:?}"))
}

#[test]
fn every_requirement_is_checked_and_what_is_missing_comes_with_a_fix() {
    let folder = tempfile::tempdir().unwrap();
    let output = without_node(folder.path(), &["-o", "json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found = findings(&output);
    for check in
        ["sandbox engine", "system", "jails", "verdicts in the kernel", "limits of instances", "open files", "clock"]
    {
        finding(&found, check);
    }
    for row in &found {
        assert_eq!(row["state"] != "ok", row["fix"].is_string(), "{row}");
    }
    let has_kvm = Path::new("/dev/kvm").exists();
    assert_eq!(finding(&found, "sandbox engine")["state"], if has_kvm { "ok" } else { "limited" }, "{found:?}");
    let table = text(&without_node(folder.path(), &[]).output().unwrap());
    assert!(table.starts_with("CHECK ") && table.contains("\nsandbox engine"), "{table}");
    assert!(!table.contains('\x1b'), "no colours outside of terminals: {table}");
}

#[test]
fn another_account_is_shown_what_it_lacks() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to start a command as another account");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The other account may read neither the folder of the build nor this one.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("leno");
    fs::copy(leno_program(), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["doctor", "-o", "json", "--admin", "unix:/nonexistent.sock"]).uid(NOBODY).gid(NOBODY);
    let output = command.env("HOME", folder.path()).current_dir("/").output().unwrap();
    let found = findings(&output);
    for check in ["system", "verdicts in the kernel", "limits of instances", "sizes of volumes"] {
        assert_eq!(finding(&found, check)["state"], "limited", "{found:?}");
    }
    assert!(finding(&found, "system")["found"].as_str().unwrap().contains("not root"), "{found:?}");
}

#[test]
fn listeners_that_a_node_could_not_bind_are_failures_with_their_field() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let documents = |http: &str| {
        let mesh = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: mesh}}\nspec:\n  gateway: {{http: '{http}'}}\n  \
             listeners: {{inbound: '192.0.2.1:15006', outbound: '127.0.0.1:0'}}\n"
        );
        fs::write(folder.path().join("mesh.yaml"), mesh + "---\n" + &echo_function("echo", "")).unwrap();
    };
    documents(&taken.to_string());
    let path = folder.path().join("mesh.yaml");
    let output = without_node(folder.path(), &[path.to_str().unwrap(), "-o", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found = findings(&output);
    let gateway = finding(&found, "spec.gateway.http");
    assert_eq!(gateway["state"], "failed", "{gateway}");
    assert!(gateway["found"].as_str().unwrap().starts_with(&taken.to_string()), "{gateway}");
    assert!(gateway["fix"].as_str().unwrap().contains(&format!(":{}", taken.port())), "{gateway}");
    let inbound = finding(&found, "spec.listeners.inbound");
    assert_eq!(inbound["state"], "failed", "{inbound}");
    assert!(inbound["fix"].as_str().unwrap().contains("an address of this machine"), "{inbound}");
    assert_eq!(finding(&found, "spec.listeners.outbound")["state"], "ok");

    documents("not an address");
    let output = without_node(folder.path(), &[path.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("mesh.yaml:5"), "{output:?}");
}

#[test]
fn a_running_node_has_its_listeners_and_its_alerts_are_findings() {
    let mesh = Mesh::start(&(echo_function("echo", "") + &policy("open", "echo", ALLOW_ALL)));
    let admin = format!("unix:{}", mesh.socket().display());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("all.yaml"), echo_function("echo", "")).unwrap();
    let path = folder.path().join("all.yaml");
    let look = || doctor(&[path.to_str().unwrap(), "-o", "json", "--admin", &admin]).output().unwrap();
    let output = look();
    assert!(output.status.success(), "{output:?}");
    let found = findings(&output);
    assert!(finding(&found, "listeners")["found"].as_str().unwrap().contains(&admin), "{found:?}");
    assert_eq!(finding(&found, &format!("node at {admin}"))["found"], "no alerts");
    assert!(finding(&found, "jails")["found"].as_str().unwrap().starts_with("not tried"), "{found:?}");

    // An instance that cannot start.
    mesh.write(
        "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: echo, namespace: test}\nspec:\n  \
         command: [/bin/false]\n  scale: {min: 1}\n",
    );
    let failing =
        eventually("the alert", || findings(&look()).into_iter().find(|row| row["check"] == "failing test/echo"));
    assert!(failing["state"] != "ok" && failing["fix"].is_string(), "{failing}");
}
