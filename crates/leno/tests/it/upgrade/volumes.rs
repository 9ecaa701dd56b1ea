//! Volumes on the disk of one of several nodes.

use super::*;
use leno_testkit::control::text;
use leno_testkit::mesh::intruder;
use std::path::PathBuf;

/// The volumes of a node, whose mounts are the machine's. They end with this.
struct Mounts(PathBuf);

impl Drop for Mounts {
    fn drop(&mut self) {
        for namespace in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            for volume in fs::read_dir(namespace.path()).into_iter().flatten().flatten() {
                let _ = Command::new("umount").arg("-q").arg(volume.path().join("fs")).status();
            }
        }
    }
}

#[test]
fn a_volume_stays_with_its_node_through_an_upgrade_and_a_loss() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let control = control_with(Ipv4Addr::LOCALHOST, &MESH.replace("isolation: process", "isolation: strict"));
    let gateway = Node::join(&control, "edge", &["--only-gateway"]);
    let mut one = RestartedNode::of(Node::join(&control, "one", &[]));
    let _two = Node::join(&control, "two", &[]);
    let _mounts = Mounts(one.node.folder.path().join("state/volumes"));
    let keeper = format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: keeper, namespace: test}}\nspec:\n  command: [\"{}\"]\n  \
         workingDirectory: {}\n  expose: [{{hosts: [\"*\"], path: /}}]\n  volumes: [{{name: data, path: /data, size: 16Mi, node: one}}]\n",
        intruder().display(),
        folder.path().display()
    );
    control.apply(&(keeper.clone() + &policy("open", "keeper", ALLOW_ALL)));
    let body = |path: &str| gateway.get(path).filter(|answer| answer.status == 200).map(|answer| answer.body);
    let written = eventually("an instance that writes", || body("/write/~data~file"));
    assert!(written.starts_with("done"), "{written}");
    eventually("the report", || (nodes_of(&control, "test/keeper") == ["one"]).then_some(()));

    // The instance of the new process waits for the end of the old one, and the upgrade does not.
    let process = one.upgrade();
    one.wait();
    let kept = || body("/read/~data~file").filter(|text| text.starts_with("done: intruder")).map(drop);
    eventually("the volume after the upgrade", kept);

    // Without the node, the function does not run, least of all with an empty volume.
    kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
    one.pid = None;
    eventually("the loss of the node", || nodes_of(&control, "test/keeper").is_empty().then_some(()));
    eventually("the gateway to hear of the loss", || {
        let status = status(gateway.get("/list/~data"));
        assert_ne!(status, Some(200));
        (status == Some(503)).then_some(())
    });
    // The listing, the events and the answer to a change name the node.
    let away = "its volumes are on node one, which is away";
    let listed = |what: &str| text(&control.leno(&["get", what, "--json"]));
    eventually("the reason", || listed("functions").contains(away).then_some(()));
    eventually("the event", || listed("events").contains(away).then_some(()));
    let waited = control.leno_with(&["apply", "-f", "-", "--wait", "--timeout", "1s"], &keeper);
    let told = String::from_utf8(waited.stderr).unwrap();
    assert!(told.contains(&format!("test/keeper unplaced: {away}")), "{told}");
    one.node.start_again();
    eventually("the volume after the return of the node", kept);
    eventually("its event", || listed("events").contains("it has its nodes again: one").then_some(()));
}
