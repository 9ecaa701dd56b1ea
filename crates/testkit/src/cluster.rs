//! A mesh of several processes: a control plane, nodes that joined it, and a gateway.

pub mod load;
pub mod network;
pub mod redis;
pub mod restart;
pub mod wire;

use crate::control::{Control, text};
use crate::mesh::{ALLOW_ALL, echo_function, policy};
use crate::{Answer, Process, eventually, free_port, leno_program, try_curl};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

pub const MESH: &str = "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: test}\nspec:\n  trustDomain: test.example\n  \
                    accessLog: {format: json, file: /dev/null}\n  instances: {isolation: process, accounts: node}\n";

pub fn control() -> Control {
    control_at(Ipv4Addr::LOCALHOST)
}

pub fn control_at(address: Ipv4Addr) -> Control {
    control_of(address, "")
}

/// A control plane whose Mesh document has these further fields.
pub fn control_of(address: Ipv4Addr, fields: &str) -> Control {
    control_with(address, &format!("{MESH}{fields}"))
}

/// A control plane with this Mesh document.
pub fn control_with(address: Ipv4Addr, mesh: &str) -> Control {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mesh.yaml"), mesh).unwrap();
    fs::write(folder.path().join("passphrase"), "correct horse battery\n").unwrap();
    let arguments = ["--mesh", "mesh.yaml", "--ca", "ca.pem", "--ca-passphrase", "passphrase"];
    Control::start_serving(folder, &arguments, address)
}

/// The program of nodes and gateways: this build, or another release
/// (`scripts/adjacent-release.sh`).
pub fn leno_of_nodes() -> String {
    std::env::var("LENO_TEST_NODES").unwrap_or_else(|_| leno_program().display().to_string())
}

/// The network in which a node runs.
pub struct Place {
    pub address: Ipv4Addr,
    /// The program of the node, after the wrapper that runs it in this place, if there is one.
    pub command: Vec<String>,
}

impl Place {
    /// The network of the test.
    pub fn here() -> Self {
        Self { address: Ipv4Addr::LOCALHOST, command: vec![leno_of_nodes()] }
    }
}

/// A running `leno node` or `leno gateway`.
pub struct Node {
    pub name: String,
    pub folder: TempDir,
    pub arguments: Vec<String>,
    /// The same as [`Place::command`].
    pub command: Vec<String>,
    pub gateway: SocketAddr,
    pub process: Process,
}

impl Node {
    /// Makes a join token, starts the node with it, and waits until it is ready.
    pub fn join(control: &Control, name: &str, token: &[&str]) -> Self {
        Self::join_at(&Place::here(), control, name, token, &[])
    }

    /// The same in another network, with more arguments.
    pub fn join_at(place: &Place, control: &Control, name: &str, token: &[&str], more: &[&str]) -> Self {
        let made = control.leno(&[&["token", "join", "--node", name], token].concat());
        assert!(made.status.success(), "{made:?}");
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), text(&made)).unwrap();
        let Place { address, command } = place;
        let [inbound, outbound, gateway] = [(); 3].map(|()| free_port());
        let gateway = SocketAddr::from((*address, gateway));
        let is_gateway = token.contains(&"--only-gateway");
        let mut arguments = vec![if is_gateway { "gateway" } else { "node" }.to_owned()];
        let options = [
            ("--control", control.nodes()),
            ("--join", "token".to_owned()),
            ("--name", name.to_owned()),
            ("--state", "state".to_owned()),
            ("--inbound", format!("{address}:{inbound}")),
            ("--outbound", format!("127.0.0.1:{outbound}")),
            ("--admin", format!("unix:{}", folder.path().join("admin.sock").display())),
        ];
        arguments.extend(options.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
        let given = more.iter().position(|argument| *argument == "--gateway-http");
        let gateway = given.map_or(gateway, |option| more[option + 1].parse().unwrap());
        if is_gateway && given.is_none() {
            arguments.extend(["--gateway-http".to_owned(), gateway.to_string()]);
        }
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let process = spawn(folder.path(), command, &arguments);
        let (name, command) = (name.to_owned(), command.clone());
        let mut node = Self { name, folder, arguments, command, gateway, process };
        node.wait_for("to be ready", |node| node.has_said(" ready"));
        node
    }

    /// Starts it again after its end, with the same files, but without the token.
    pub fn start_again(&mut self) {
        self.start_again_unready();
        self.wait_for("to be ready again", |node| node.has_said(" ready"));
    }

    /// The same, but does not wait until the node is ready.
    pub fn start_again_unready(&mut self) {
        if let Some(join) = self.arguments.iter().position(|argument| argument == "--join") {
            fs::remove_file(self.folder.path().join("token")).unwrap();
            self.arguments.drain(join..join + 2);
        }
        self.process = spawn(self.folder.path(), &self.command, &self.arguments);
    }

    pub fn has_said(&self, text: &str) -> bool {
        self.process.output().contains(text)
    }

    /// Polls until a condition holds. The node must not end before.
    pub fn wait_for(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        eventually(&format!("{} {what}", self.name), || holds(self) || self.process.ensure_running());
    }

    pub fn get(&self, path: &str) -> Option<Answer> {
        try_curl(&format!("http://{}{path}", self.gateway), &["--max-time", "20"])
    }

    /// Runs a `leno` command against this node.
    pub fn leno(&self, arguments: &[&str]) -> Output {
        Command::new(leno_program())
            .args(arguments)
            .env("LENO_ADMIN", format!("unix:{}", self.folder.path().join("admin.sock").display()))
            .output()
            .unwrap()
    }

    pub fn pause(&self) {
        self.process.pause();
    }

    pub fn resume(&self) {
        self.process.resume();
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// Starts a command with arguments in a folder.
pub fn spawn(folder: &Path, command: &[String], arguments: &[String]) -> Process {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]).args(arguments).current_dir(folder).stdin(Stdio::null());
    Process::spawn(&mut process).unwrap()
}

pub fn status(answer: Option<Answer>) -> Option<u16> {
    answer.map(|answer| answer.status)
}

/// The nodes that have ready instances of a function.
pub fn nodes_of(control: &Control, function: &str) -> Vec<String> {
    let (_, status) = control.get("/v1/status");
    let functions = status["functions"].as_array().cloned().unwrap_or_default();
    let of = functions.into_iter().find(|one| one["function"] == function);
    let instances = of.and_then(|one| one["instances"].as_array().cloned()).unwrap_or_default();
    let ready = instances.iter().filter(|instance| instance["state"] == "ready");
    ready.map(|instance| instance["node"].as_str().unwrap().to_owned()).collect()
}

pub fn documents() -> String {
    let expose = "  expose: [{hosts: [\"*\"], path: /}]\n  callees: [back]\n  scale: {min: 0, max: 4}";
    let front = echo_function("front", expose);
    let back = echo_function("back", "  scale: {min: 0, max: 4}");
    let rules = "  authorization: {rules: [{name: front, action: allow, from: [{namespaces: [test]}]}]}";
    format!("{front}{back}{}{}", policy("open", "front", ALLOW_ALL), policy("inner", "back", rules))
}
