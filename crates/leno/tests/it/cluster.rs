//! A mesh of several processes: a control plane, nodes that joined it, and a gateway.

pub(crate) mod load;
pub(crate) mod network;
pub(crate) mod redis;
pub(crate) mod restart;
pub(crate) mod wire;

use crate::control::{Control, text};
use crate::mesh::{ALLOW_ALL, Answer, echo_function, policy, try_curl};
use leno_testkit::{TIMEOUT, eventually, free_port};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const MESH: &str = "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: test}\nspec:\n  trustDomain: test.example\n  \
                    accessLog: {format: json, file: /dev/null}\n  instances: {isolation: process, accounts: node}\n";

pub(crate) fn control() -> Control {
    control_at(Ipv4Addr::LOCALHOST)
}

pub(crate) fn control_at(address: Ipv4Addr) -> Control {
    control_of(address, "")
}

/// A control plane whose Mesh document has these further fields.
pub(crate) fn control_of(address: Ipv4Addr, fields: &str) -> Control {
    control_with(address, &format!("{MESH}{fields}"))
}

/// A control plane with this Mesh document.
pub(crate) fn control_with(address: Ipv4Addr, mesh: &str) -> Control {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mesh.yaml"), mesh).unwrap();
    fs::write(folder.path().join("passphrase"), "correct horse battery\n").unwrap();
    let arguments = ["--mesh", "mesh.yaml", "--ca", "ca.pem", "--ca-passphrase", "passphrase"];
    Control::start_serving(folder, &arguments, address)
}

/// The program of nodes and gateways: this build, or another release
/// (`scripts/adjacent-release.sh`).
pub(crate) fn leno_of_nodes() -> String {
    std::env::var("LENO_TEST_NODES").unwrap_or_else(|_| env!("CARGO_BIN_EXE_leno").to_owned())
}

/// The network in which a node runs.
pub(crate) struct Place {
    pub(crate) address: Ipv4Addr,
    /// The program of the node, after the wrapper that runs it in this place, if there is one.
    pub(crate) command: Vec<String>,
}

impl Place {
    /// The network of the test.
    pub(crate) fn here() -> Self {
        Self { address: Ipv4Addr::LOCALHOST, command: vec![leno_of_nodes()] }
    }
}

/// A running `leno node` or `leno gateway`.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) folder: TempDir,
    pub(crate) arguments: Vec<String>,
    /// The same as [`Place::command`].
    pub(crate) command: Vec<String>,
    pub(crate) gateway: SocketAddr,
    pub(crate) process: Child,
    pub(crate) output: Arc<Mutex<Vec<String>>>,
}

impl Node {
    /// Makes a join token, starts the node with it, and waits until it is ready.
    pub(crate) fn join(control: &Control, name: &str, token: &[&str]) -> Self {
        Self::join_at(&Place::here(), control, name, token, &[])
    }

    /// The same in another network, with more arguments.
    pub(crate) fn join_at(place: &Place, control: &Control, name: &str, token: &[&str], more: &[&str]) -> Self {
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
        if is_gateway {
            arguments.extend(["--gateway-http".to_owned(), gateway.to_string()]);
        }
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let (process, output) = spawn(&folder, command, &arguments);
        let (name, command) = (name.to_owned(), command.clone());
        let mut node = Self { name, folder, arguments, command, gateway, process, output };
        node.wait_for("to be ready", |node| node.has_said(" ready"));
        node
    }

    /// Starts it again after its end, with the same files, but without the token.
    pub(crate) fn start_again(&mut self) {
        self.start_again_unready();
        self.wait_for("to be ready again", |node| node.has_said(" ready"));
    }

    /// The same, but does not wait until the node is ready.
    pub(crate) fn start_again_unready(&mut self) {
        if let Some(join) = self.arguments.iter().position(|argument| argument == "--join") {
            fs::remove_file(self.folder.path().join("token")).unwrap();
            self.arguments.drain(join..join + 2);
        }
        (self.process, self.output) = spawn(&self.folder, &self.command, &self.arguments);
    }

    pub(crate) fn has_said(&self, text: &str) -> bool {
        self.output.lock().unwrap().iter().any(|line| line.contains(text))
    }

    /// Polls until a condition holds. The node must not end before.
    pub(crate) fn wait_for(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        eventually(&format!("{} {what}", self.name), || {
            holds(self) || {
                let ended = self.process.try_wait().unwrap();
                assert!(ended.is_none(), "{} ended ({ended:?}), not {what}", self.name);
                false
            }
        });
    }

    pub(crate) fn get(&self, path: &str) -> Option<Answer> {
        try_curl(&format!("http://{}{path}", self.gateway), &["--max-time", "20"])
    }

    /// Runs a `leno` command against this node.
    pub(crate) fn leno(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_leno"))
            .args(arguments)
            .env("LENO_ADMIN", format!("unix:{}", self.folder.path().join("admin.sock").display()))
            .output()
            .unwrap()
    }

    /// Stops or continues the process. A stopped process keeps its connections, and does not
    /// answer.
    pub(crate) fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            let pid = rustix::process::Pid::from_child(&self.process);
            // Its instances end with it.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let begin = Instant::now();
            while self.process.try_wait().unwrap().is_none() && begin.elapsed() < TIMEOUT {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = self.process.kill();
        }
        if std::thread::panicking() {
            eprintln!("--- {} wrote:\n{}", self.name, self.output.lock().unwrap().join("\n"));
        }
    }
}

pub(crate) fn spawn(folder: &TempDir, command: &[String], arguments: &[String]) -> (Child, Arc<Mutex<Vec<String>>>) {
    let mut process = Command::new(&command[0])
        .args(&command[1..])
        .args(arguments)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = Arc::new(Mutex::new(Vec::new()));
    let (stderr, lines) = (process.stderr.take().unwrap(), output.clone());
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            lines.lock().unwrap().push(line);
        }
    });
    (process, output)
}

pub(crate) fn status(answer: Option<Answer>) -> Option<u16> {
    answer.map(|answer| answer.status)
}

/// The nodes that have ready instances of a function.
pub(crate) fn nodes_of(control: &Control, function: &str) -> Vec<String> {
    let (_, status) = control.get("/v1/status");
    let functions = status["functions"].as_array().cloned().unwrap_or_default();
    let of = functions.into_iter().find(|one| one["function"] == function);
    let instances = of.and_then(|one| one["instances"].as_array().cloned()).unwrap_or_default();
    let ready = instances.iter().filter(|instance| instance["state"] == "ready");
    ready.map(|instance| instance["node"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn documents() -> String {
    let expose = "  expose: [{hosts: [\"*\"], path: /}]\n  callees: [back]\n  scale: {min: 0, max: 4}";
    let front = echo_function("front", expose);
    let back = echo_function("back", "  scale: {min: 0, max: 4}");
    let rules = "  authorization: {rules: [{name: front, action: allow, from: [{namespaces: [test]}]}]}";
    format!("{front}{back}{}{}", policy("open", "front", ALLOW_ALL), policy("inner", "back", rules))
}
