//! Folders that the program of a function or a job can write to.

use super::{EXPOSE, attempt, intruder_function, start};
use leno_testkit::mesh::{Mesh, public_folder};
use serde_json::Value;
use std::process::Command;

#[test]
fn a_command_writes_to_its_volumes_and_nowhere_else() {
    let volumes = "  volumes: [{path: /var/lib/app, size: 1Mi}]\n";
    let mesh = start("auto", &intruder_function("").replace(EXPOSE, &format!("{volumes}{EXPOSE}")));
    let written = attempt(&mesh, "write", &["/var/lib/app/file"]);
    assert!(written.starts_with("done"), "{written}");
    assert!(attempt(&mesh, "write", &["/var/lib/file"]).starts_with("refused"));
    assert_eq!(mesh.instances("test/intruder")[0]["isolation"], "strict");
}

#[test]
fn a_job_writes_to_its_volumes() {
    let job = "---\napiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {name: report, namespace: test}\nspec:\n  \
               command: [sh, -c, \"echo sum > /srv/out/report && cat /srv/out/report && touch /srv/other || echo closed\"]\n  \
               workingDirectory: public\n  volumes: [{path: /srv/out}]\n";
    let mesh = start("strict", &(intruder_function("") + job));
    mesh.line("sum");
    mesh.line("closed");
}

/// The volumes of a test. Their mounts are the machine's, so they end with this.
struct State(tempfile::TempDir);

impl State {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for namespace in std::fs::read_dir(self.0.path().join("volumes")).into_iter().flatten().flatten() {
            for volume in std::fs::read_dir(namespace.path()).into_iter().flatten().flatten() {
                let _ = Command::new("umount").arg("-q").arg(volume.path().join("fs")).status();
            }
        }
    }
}

fn volumes(mesh: &Mesh) -> Vec<Value> {
    let listed = mesh.leno(&["get", "volumes", "--json"]);
    assert!(listed.status.success(), "{listed:?}");
    serde_json::from_slice(&listed.stdout).unwrap()
}

fn text(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_volume_on_disk_outlives_instances_revisions_restarts_and_the_function() {
    let state = State::new();
    let documents = |version: u8| {
        let volumes =
            format!("  env: {{VERSION: \"{version}\"}}\n  volumes: [{{name: data, path: /data, size: 16Mi}}]\n");
        intruder_function("").replace(EXPOSE, &format!("{volumes}{EXPOSE}"))
    };
    let leno = || {
        let mut leno = Command::new(env!("CARGO_BIN_EXE_leno"));
        leno.env("LENO_STATE", state.path());
        leno
    };
    let settings = super::instances("auto");
    let mut mesh = Mesh::start_with_command(leno(), &settings, &documents(1), public_folder);
    mesh.wait_for("an instance, without any request", |mesh| !mesh.instances("test/intruder").is_empty());
    let written = attempt(&mesh, "write", &["/data/file"]);
    assert!(written.starts_with("done"), "{written}");

    let is_root = rustix::process::geteuid().is_root();
    let listed = &volumes(&mesh)[0];
    assert_eq!((&listed["volume"], &listed["in_use"]), (&"test/data".into(), &true.into()), "{listed}");
    assert_eq!(listed["bounded"], is_root, "{listed}");
    let refused = mesh.leno(&["delete-volume", "test/data"]);
    assert!(!refused.status.success() && text(&refused).contains("is in use"), "{refused:?}");

    // The old instance ends before the new one starts: both cannot have the volume.
    mesh.write(&documents(2));
    mesh.wait_for("the next revision", |mesh| {
        let instances = mesh.instances("test/intruder");
        assert!(instances.iter().filter(|row| row["state"] == "ready").count() <= 1, "{instances:?}");
        instances.iter().any(|row| row["state"] == "ready" && row["instance"].as_str().unwrap().contains("-00002/"))
    });
    assert!(attempt(&mesh, "read", &["/data/file"]).starts_with("done: intruder"));

    mesh.restart(&["--state", state.path()]);
    assert!(attempt(&mesh, "read", &["/data/file"]).starts_with("done: intruder"));

    mesh.write(&intruder_function(""));
    mesh.wait_for("the end of the instance", |mesh| volumes(mesh).iter().all(|volume| volume["in_use"] == false));
    let deleted = mesh.leno(&["delete-volume", "test/data"]);
    assert!(deleted.status.success(), "{deleted:?}");
    assert!(volumes(&mesh).is_empty());
    let unknown = mesh.leno(&["delete-volume", "test/data"]);
    assert!(text(&unknown).contains("there is no volume `test/data` on this node"), "{unknown:?}");
}
