//! `leno upgrade` of `leno up`, with its control plane.

use super::application;
use super::clients::Clients;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use leno_testkit::process::{is_running, terminate_pid};
use leno_testkit::{curl, eventually};
use serde_json::Value;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

/// A mesh whose first process is replaced by others. Dropping it ends them.
pub(crate) struct UpgradedMesh {
    pub mesh: Mesh,
    pub pid: Option<u32>,
}

impl UpgradedMesh {
    fn gateway(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.mesh.ports.gateway).into()
    }

    pub(crate) fn upgrade(&mut self) -> u32 {
        let output = self.mesh.leno(&["upgrade"]);
        assert!(output.status.success(), "{output:?}\n{}", self.mesh.output().join("\n"));
        let text = String::from_utf8(output.stdout).unwrap();
        let pid = text.split(' ').nth(1).and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("{text}"));
        assert!(is_running(pid) && self.pid != Some(pid), "{text}");
        self.pid = Some(pid);
        pid
    }

    /// The reason why it refuses an upgrade.
    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.mesh.leno(&[&["upgrade"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn rows(&self, listing: &str) -> Vec<Value> {
        let listed = self.mesh.leno(&["get", listing, "--json"]);
        assert!(listed.status.success(), "{listed:?}");
        serde_json::from_slice(&listed.stdout).unwrap()
    }

    fn job(&self) -> Value {
        self.rows("jobs").into_iter().find(|row| row["job"] == "test/report").unwrap_or_default()
    }

    fn revisions(&self) -> Vec<Value> {
        let rows = self.rows("revisions").into_iter().filter(|row| row["function"] == "test/front");
        rows.map(|row| row["revision"].clone()).collect()
    }
}

impl Drop for UpgradedMesh {
    fn drop(&mut self) {
        self.pid.into_iter().for_each(terminate_pid);
    }
}

fn job(file: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {{name: report, namespace: test}}\nspec:\n  command: [/bin/sh, -c, \
         \"echo run >> {file}\"]\n"
    )
}

#[test]
fn no_request_fails_while_a_whole_mesh_is_upgraded_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, store) = (path("runs"), path("control.redb"));
    let runs = || fs::read_to_string(&file).unwrap_or_default().lines().count();
    let documents = |more: &str| application(more) + &job(&file);
    let mut mesh = Mesh::start(&application(""));
    mesh.restart(&["--store", &store]);
    let mut mesh = UpgradedMesh { mesh, pid: None };
    // A second revision of the function, and a job that has ended.
    mesh.mesh.write(&documents("  env: {EDITION: two}\n"));
    eventually("the end of the job", || (mesh.job()["state"] == "succeeded").then_some(()));
    eventually("the second revision", || (mesh.revisions().len() == 2).then_some(()));
    let before = mesh.revisions();

    let clients = Clients::start(mesh.gateway());
    let mut processes: Vec<u32> = (0..3).map(|_| mesh.upgrade()).collect();
    assert!(mesh.mesh.wait().success());
    clients.stop();
    // The revisions and the outcome of the job are those of the first process.
    assert_eq!(mesh.revisions(), before);
    assert_eq!((mesh.job()["state"].as_str(), runs()), (Some("succeeded"), 1));
    let last = processes.pop().unwrap();
    for pid in processes {
        eventually("the processes in between to end", || (!is_running(pid)).then_some(()));
    }
    // The last process applies changes of the documents, and runs jobs.
    let late = echo_function("late", "  expose: [{hosts: [late.example], path: /}]\n  scale: {min: 1, max: 1}")
        + &policy("late", "late", ALLOW_ALL);
    mesh.mesh.write(&(documents("  env: {EDITION: two}\n") + &late));
    let url = format!("http://{}/", mesh.gateway());
    eventually("the new function", || (curl(&url, &["--header", "host: late.example"]).status == 200).then_some(()));
    assert!(mesh.mesh.leno(&["rerun", "job", "test/report"]).status.success());
    eventually("the second run", || (mesh.job()["attempt"] == 2 && mesh.job()["state"] == "succeeded").then_some(()));
    assert_eq!(runs(), 2);
    // It has the store of the first one.
    terminate_pid(last);
    mesh.pid = None;
    mesh.mesh.start_again(&["--store", &store]);
    assert_eq!((mesh.job()["attempt"].as_u64(), mesh.job()["state"].as_str()), (Some(2), Some("succeeded")));
    assert_eq!((mesh.revisions(), runs()), (before, 2));
}

#[test]
fn a_store_that_the_new_process_cannot_use_is_an_alert_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let [store, aside] = ["control.redb", "aside"].map(|name| folder.path().join(name));
    let with_store = ["--store", store.to_str().unwrap()];
    let mut mesh = Mesh::start(&application(""));
    mesh.restart(&with_store);
    let mut mesh = UpgradedMesh { mesh, pid: None };
    mesh.mesh.write(&application("  env: {EDITION: two}\n"));
    eventually("the second revision", || (mesh.revisions().len() == 2).then_some(()));
    // The path of the store leads to a folder while the new process begins.
    fs::rename(&store, &aside).unwrap();
    fs::create_dir(&store).unwrap();
    let pid = mesh.upgrade();
    let alert = |mesh: &UpgradedMesh| mesh.rows("alerts").into_iter().find(|row| row["kind"] == "store");
    let told = eventually("the alert", || alert(&mesh));
    let text = told["text"].as_str().unwrap();
    assert!(text.contains(with_store[1]) && text.contains("in memory only"), "{told}");
    // What changes meanwhile is stored later.
    mesh.mesh.write(&application("  env: {EDITION: three}\n"));
    eventually("the third revision", || (mesh.revisions().len() == 3).then_some(()));
    let before = mesh.revisions();
    fs::remove_dir(&store).unwrap();
    fs::rename(&aside, &store).unwrap();
    eventually("the end of the alert", || alert(&mesh).is_none().then_some(()));
    terminate_pid(pid);
    mesh.pid = None;
    mesh.mesh.start_again(&with_store);
    assert_eq!(mesh.revisions(), before);
}

#[test]
fn a_whole_mesh_goes_on_if_the_new_process_cannot_take_over() {
    let folder = tempfile::tempdir().unwrap();
    let end = folder.path().join("end");
    let waits = format!("while ! [ -e {} ]; do sleep 0.1; done", end.display());
    let job = job(&folder.path().join("runs").display().to_string()).replace("echo run", &format!("{waits}; echo run"));
    let mut mesh = UpgradedMesh { mesh: Mesh::start(&(application("") + &job)), pid: None };
    let clients = Clients::start(mesh.gateway());
    eventually("the job to run", || (mesh.job()["state"] == "running").then_some(()));
    let refusal = mesh.refusal(&[]);
    assert!(refusal.contains("the job test/report is running"), "{refusal}");
    fs::write(&end, "").unwrap();
    eventually("the end of the job", || (mesh.job()["state"] == "succeeded").then_some(()));
    let refusal = mesh.refusal(&["--binary", "/bin/false"]);
    assert!(refusal.contains("the node goes on as it is") && refusal.contains("exit status: 1"), "{refusal}");
    // The new process reads the documents, and would refuse them.
    mesh.mesh.write("kind: Nonsense");
    mesh.mesh.line("what was in force goes on");
    let refusal = mesh.refusal(&[]);
    assert!(refusal.contains("exit status: 2"), "{refusal}");
    mesh.mesh.write(&(application("") + &job));
    mesh.upgrade();
    assert!(mesh.mesh.wait().success());
    clients.stop();
}
