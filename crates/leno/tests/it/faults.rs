//! Three nodes, a gateway, two control planes and an etcd. The test cuts off, slows down, stops and
//! restarts each of them while requests go on.

use leno_testkit::cluster::load::Load;
use leno_testkit::cluster::network::{HUB, Hub, NodeNetwork};
use leno_testkit::cluster::wire::Wire;
use leno_testkit::cluster::{MESH, Node, documents, nodes_of};
use leno_testkit::control::Control;
use leno_testkit::mesh::echo_function;
use leno_testkit::{EtcdServer, eventually};
use serde_json::Value;
use std::fs;
use std::time::Duration;
use tempfile::TempDir;

const NODES: [&str; 3] = ["one", "two", "three"];

/// All components that can fail, each in a separate network.
struct Scene {
    etcd: EtcdServer,
    /// The connections of the control planes to etcd.
    wires: [Wire; 2],
    controls: [Control; 2],
    gateway: Node,
    nodes: [Node; 3],
    /// The networks of the nodes.
    networks: Vec<NodeNetwork>,
    /// Kept, because a control plane that begins to lead reads the authority's file again.
    _folder: TempDir,
    applied: u32,
}

impl Scene {
    fn set() -> Self {
        let hub = Hub::enter();
        let etcd = EtcdServer::start();
        let wires = [(); 2].map(|()| Wire::to(etcd.address().trim_start_matches("http://").parse().unwrap()));
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (mesh, ca, passphrase) = (path("mesh.yaml"), path("ca.pem"), path("passphrase"));
        fs::write(&mesh, MESH).unwrap();
        fs::write(&passphrase, "correct horse battery").unwrap();
        let urls = [wires[0].url(), wires[1].url()];
        let arguments = |index: usize| {
            let url: &str = &urls[index];
            ["--etcd", url, "--etcd-lease", "2", "--mesh", &*mesh, "--ca", &*ca, "--ca-passphrase", &*passphrase]
        };
        let first = Control::start_serving(tempfile::tempdir().unwrap(), &arguments(0), HUB);
        let second = Control::start_following(&first, &arguments(1));
        let other = second.nodes();
        let networks: Vec<NodeNetwork> = (1..=4).map(|number| hub.place(number)).collect();
        let more = ["--control", &*other];
        let gateway = Node::join_at(&networks[0].place, &first, "edge", &["--only-gateway"], &more);
        let join = |index: usize| Node::join_at(&networks[1 + index].place, &first, NODES[index], &[], &more);
        let nodes = [join(0), join(1), join(2)];
        let controls = [first, second];
        let scene = Self { etcd, wires, controls, gateway, nodes, networks, _folder: folder, applied: 0 };
        scene.controls[0].apply(&documents());
        eventually("an answer", || scene.gateway.get("/").filter(|answer| answer.status == 200));
        scene
    }

    /// The leader, once a control plane leads and all nodes are connected to it.
    fn leader(&self) -> usize {
        eventually("all nodes to be with one control plane", || {
            self.controls.iter().position(|control| {
                if !control.leads() {
                    return false;
                }
                let Some((200, listed)) = control.try_get("/v1/status") else { return false };
                connected(&listed) == 4
            })
        })
    }

    /// The node that hosts the function of the load.
    fn host(&self) -> usize {
        let leader = &self.controls[self.leader()];
        let host = eventually("the report", || nodes_of(leader, "test/front").into_iter().next());
        NODES.iter().position(|name| *name == host).unwrap()
    }

    /// Expects that a new definition arrives everywhere.
    fn changes_are_taken(&mut self) {
        self.applied += 1;
        let (leader, name) = (self.leader(), format!("late-{}", self.applied));
        let function = echo_function(&name, "  scale: {min: 0, max: 1}");
        eventually("changes to be taken", || {
            self.controls[leader].leno_with(&["apply", "-f", "-"], &function).status.success().then_some(())
        });
    }

    /// Expects that no request fails while this happens.
    fn nobody_notices(&mut self, what: &str, happens: impl FnOnce(&mut Self)) {
        let load = Load::start(&self.gateway);
        happens(self);
        self.changes_are_taken();
        assert!(load.stop() > 0, "{what}: there was no load");
        eprintln!("{what}: no request failed");
    }
}

/// The number of connected nodes, by a control plane's status.
fn connected(status: &Value) -> usize {
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().filter(|node| node["connected"] == Value::Bool(true)).count()
}

#[test]
fn requests_go_on_whatever_fails_behind_them() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root may make network namespaces");
        return;
    }
    let mut scene = Scene::set();

    scene.nobody_notices("the leader is cut off from etcd", |scene| {
        let leader = scene.leader();
        scene.wires[leader].hold();
        eventually("the other one to lead", || (scene.leader() != leader).then_some(()));
        scene.changes_are_taken();
        scene.wires[leader].mend();
    });
    scene.nobody_notices("etcd is slow", |scene| {
        scene.wires.iter().for_each(|wire| wire.slow(Duration::from_millis(100)));
        scene.changes_are_taken();
        scene.wires.iter().for_each(Wire::mend);
    });
    scene.nobody_notices("etcd hangs", |scene| {
        let losses = |scene: &Scene| -> usize {
            scene.controls.iter().map(|control| control.output().matches("the lease is lost").count()).sum()
        };
        let before = losses(scene);
        scene.etcd.pause();
        // Longer than the lease.
        eventually("the lease to be lost", || (losses(scene) > before).then_some(()));
        scene.etcd.resume();
    });
    scene.nobody_notices("the leader hangs", |scene| {
        let leader = scene.leader();
        scene.controls[leader].pause();
        eventually("the other one to lead", || scene.controls[1 - leader].leads().then_some(()));
        scene.controls[1 - leader].eventually("changes to be taken", |control| {
            control.leno_with(&["apply", "-f", "-"], &echo_function("meanwhile", "")).status.success()
        });
        scene.controls[leader].resume();
    });
    scene.nobody_notices("the leader is killed and comes back", |scene| {
        let leader = scene.leader();
        scene.controls[leader].kill();
        eventually("the other one to lead", || scene.controls[1 - leader].leads().then_some(()));
        scene.controls[leader].start_again_following();
    });
    scene.nobody_notices("all nodes are cut off from the control planes", |scene| {
        let leader = scene.leader();
        // The load comes from the network of the control planes, so the gateway stays connected to
        // them.
        scene.networks[1..].iter().for_each(|network| network.without(HUB));
        let leader = &scene.controls[leader];
        eventually("them to be missed", || leader.try_get("/v1/status").filter(|(_, listed)| connected(listed) == 1));
        scene.networks[1..].iter().for_each(|network| network.again_with(HUB));
    });
    let host = scene.host();
    scene.nobody_notices("the host's link is slow", |scene| {
        scene.networks[1 + host].slow();
        scene.changes_are_taken();
        scene.networks[1 + host].fast();
    });
    scene.nobody_notices("another node is killed and comes back", |scene| {
        let other = (scene.host() + 1) % 3;
        scene.nodes[other].kill();
        scene.nodes[other].start_again();
    });
    // Requests fail while the host itself is cut off, until another node hosts the function.
    let host = scene.host();
    scene.networks[1 + host].cut();
    eventually("an answer from another node", || scene.gateway.get("/").filter(|answer| answer.status == 200));
    scene.networks[1 + host].mend();
    scene.nobody_notices("the host is back", |scene| {
        scene.leader();
    });
    let host = scene.host();
    scene.nodes[host].pause();
    eventually("an answer from another node", || scene.gateway.get("/").filter(|answer| answer.status == 200));
    scene.nodes[host].resume();
    scene.nobody_notices("the host that hung is back", |scene| {
        scene.leader();
    });
}
