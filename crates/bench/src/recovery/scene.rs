//! The mesh that fails: processes, their networks, and what can be done to them.

use crate::pipeline::greeter;
use crate::processes;
use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Where control planes and etcd are.
const HUB: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const GATEWAY_PORT: u16 = 8080;
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A lease of two seconds instead of ten: that is how long a dead leader is waited for.
const LEASE: &str = "2";
pub(crate) const FUNCTION: &str = "bench/front";

/// A process with its folder, started from there.
pub(crate) struct Process {
    child: Option<Child>,
    command: Vec<String>,
    folder: PathBuf,
    log: &'static str,
}

/// The network of a node.
pub(crate) struct Network {
    link: String,
    /// A process that does nothing, whose network it is.
    holder: Child,
    address: Ipv4Addr,
}

pub(crate) struct Scene {
    pub etcd: Process,
    pub controls: Vec<Process>,
    pub nodes: Vec<Process>,
    /// Of the nodes, and of the gateway last.
    pub networks: Vec<Network>,
    /// How long it took until changes were taken again after a leader had died.
    pub changes_again: Vec<Duration>,
    _gateway: Process,
    leno: PathBuf,
    changes: u32,
    folder: TempDir,
}

impl Process {
    fn start(folder: &Path, log: &'static str, command: Vec<String>) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut process = Self { child: None, command, folder: folder.to_owned(), log };
        process.start_again()?;
        Ok(process)
    }

    fn start_again(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.folder.join(self.log))?;
        let child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("`{}` cannot be started", self.command[0]))?;
        self.child = Some(child);
        Ok(())
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills what it has started.
    pub(crate) fn kill_children(&self) -> anyhow::Result<()> {
        let child = self.child.as_ref().context("it does not run")?;
        let children = processes::children(child.id());
        ensure!(!children.is_empty(), "it has no instances");
        for pid in children.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
            kill_process(pid, Signal::KILL)?;
        }
        Ok(())
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.join(self.log)).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            processes::end(child);
        }
    }
}

impl Network {
    fn make(number: u8) -> anyhow::Result<Self> {
        let holder = Command::new("unshare").args(["--net", "sleep", "infinity"]).spawn().context("unshare")?;
        let (link, address) = (format!("node{number}"), Ipv4Addr::new(10, 77, 0, 10 + number));
        let network = Self { link, holder, address };
        let own = fs::read_link("/proc/thread-self/ns/net")?;
        wait("a network", || {
            let of_it = format!("/proc/{}/ns/net", network.holder.id());
            Ok(fs::read_link(of_it).ok().filter(|other| *other != own).map(drop))
        })?;
        ip(&format!("link add {} type veth peer name eth0 netns {}", network.link, network.holder.id()))?;
        ip(&format!("link set {} master hub up", network.link))?;
        network.run("ip link set lo up")?;
        network.run(&format!("ip addr add {address}/24 dev eth0"))?;
        network.run("ip link set eth0 up")?;
        Ok(network)
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub(crate) fn cut(&self) -> anyhow::Result<()> {
        ip(&format!("link set {} down", self.link))
    }

    pub(crate) fn mend(&self) -> anyhow::Result<()> {
        ip(&format!("link set {} up", self.link))
    }

    pub(crate) fn without_control_planes(&self) -> anyhow::Result<()> {
        self.run(&format!("ip route add blackhole {HUB}/32"))
    }

    pub(crate) fn with_control_planes(&self) -> anyhow::Result<()> {
        self.run(&format!("ip route del blackhole {HUB}/32"))
    }

    fn run(&self, command: &str) -> anyhow::Result<()> {
        let done = Command::new(&self.enter()[0]).args(&self.enter()[1..]).args(command.split(' ')).status()?;
        ensure!(done.success(), "`{command}` failed");
        Ok(())
    }

    /// What a command in this network begins with.
    fn enter(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.holder.id())]
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Scene {
    /// Four nodes that the scheduler chooses from, and one function.
    pub(crate) fn set(leno: &Path) -> anyhow::Result<Self> {
        let mut scene = Self::begin(leno, 4, &[], &["--only-gateway"])?;
        let front = document("expose: [{hosts: [\"*\"], path: /}], scale: {min: 1, max: 4}", "");
        scene.apply(&front?)?;
        scene.settle()?;
        Ok(scene)
    }

    /// The processes. `node`: arguments of the nodes; `token`: of the gateway's join token.
    pub(crate) fn begin(leno: &Path, nodes: u8, node: &[&str], token: &[&str]) -> anyhow::Result<Self> {
        ip("link set lo up")?;
        // The second scene of a run finds it there.
        let _ = ip("link add hub type bridge");
        let _ = ip(&format!("addr add {HUB}/24 dev hub"));
        ip("link set hub up")?;
        let folder = tempfile::Builder::new().prefix("leno-bench-recovery-").tempdir()?;
        let path = folder.path();
        // Whom functions run as must be able to come here.
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        fs::write(path.join("mesh.yaml"), MESH)?;
        fs::write(path.join("passphrase"), "correct horse battery\n")?;
        let etcd = Process::start(&path.join("etcd"), "etcd.log", words(ETCD))?;
        let mut scene = Self {
            etcd,
            controls: Vec::new(),
            nodes: Vec::new(),
            networks: Vec::new(),
            changes_again: Vec::new(),
            _gateway: Process { child: None, command: Vec::new(), folder: path.to_owned(), log: "none" },
            leno: leno.to_owned(),
            changes: 0,
            folder,
        };
        let path = scene.folder.path().to_owned();
        wait("etcd to answer", || Ok(std::net::TcpStream::connect("127.0.0.1:2379").ok().map(drop)))?;
        for number in 0..2 {
            let command = scene.control_command(number);
            scene.controls.push(Process::start(&path.join(format!("control-{number}")), "control.log", command)?);
            wait("a control plane to be ready", || Ok(scene.ready(number).then_some(())))?;
        }
        for number in 0..=nodes {
            scene.networks.push(Network::make(number)?);
        }
        for number in 0..nodes {
            let started = scene.join(number, "node", &["--gateway"], node)?;
            scene.nodes.push(started);
        }
        scene._gateway = scene.join(nodes, "gateway", token, &[])?;
        Ok(scene)
    }

    fn control_command(&self, number: usize) -> Vec<String> {
        let (listen, api) = (15010 + number, 15443 + number);
        let mut command = vec![self.leno.display().to_string(), "control".to_owned()];
        command.extend(words(&format!(
            "--data data --etcd http://127.0.0.1:2379 --etcd-lease {LEASE} --mesh ../mesh.yaml --ca ../ca.pem --ca-passphrase \
             ../passphrase --first-token ../admin.token --api 127.0.0.1:{api} --listen {HUB}:{listen}"
        )));
        command
    }

    fn join(&self, number: u8, kind: &str, token: &[&str], more: &[&str]) -> anyhow::Result<Process> {
        let (network, name) = (&self.networks[usize::from(number)], format!("{kind}-{number}"));
        let folder = self.folder.path().join(&name);
        fs::create_dir_all(&folder)?;
        let made = self.leno(self.leader()?, &[&["token", "join", "--node", &name], token].concat())?;
        ensure!(made.status.success(), "no join token: {}", String::from_utf8_lossy(&made.stderr));
        fs::write(folder.join("token"), made.stdout)?;
        let mut command: Vec<String> = network.enter().into();
        command.extend([self.leno.display().to_string(), kind.to_owned()]);
        let address = network.address;
        command.extend(words(&format!(
            "--control {HUB}:15010 --control {HUB}:15011 --join token --name {name} --state state --inbound {address}:15006 --outbound \
             127.0.0.1:15001 --admin unix:{}/admin.sock --gateway-http {address}:{GATEWAY_PORT}",
            folder.display()
        )));
        command.extend(more.iter().map(|&argument| argument.to_owned()));
        if kind == "node" {
            command.push("--gateway".to_owned());
        }
        let node = Process::start(&folder, "node.log", command)?;
        wait("a node to be ready", || Ok(node.said().contains(" ready").then_some(()))).with_context(|| node.said())?;
        Ok(node)
    }

    /// Where requests go.
    pub(crate) fn gateway(&self) -> SocketAddr {
        self.gateway_of(self.networks.len() - 1)
    }

    pub(crate) fn gateway_of(&self, number: usize) -> SocketAddr {
        SocketAddr::from((self.networks[number].address(), GATEWAY_PORT))
    }

    /// The number of the control plane that leads.
    pub(crate) fn leader(&self) -> anyhow::Result<usize> {
        wait("a control plane to lead", || {
            Ok((0..self.controls.len()).find(|number| self.status(*number).is_some_and(|(status, _)| status == 200)))
        })
    }

    /// The number of a node that has a ready instance.
    pub(crate) fn host(&self) -> anyhow::Result<usize> {
        let leader = self.leader()?;
        wait("a host", || {
            let Some((200, status)) = self.status(leader) else { return Ok(None) };
            let host = ready(&status).into_iter().next();
            Ok(host.and_then(|host| host.strip_prefix("node-")?.parse().ok()))
        })
    }

    /// Waits until everything is connected and the function is ready.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        let all = self.networks.len();
        wait("everything to be well", || {
            let statuses = (0..self.controls.len()).filter_map(|number| self.status(number));
            let mut leading = statuses.filter(|(code, _)| *code == 200).map(|(_, status)| status);
            Ok(leading.find(|status| connected(status) == all && !ready(status).is_empty()).map(drop))
        })?;
        let begin = Instant::now();
        while !(0..self.controls.len()).all(|number| self.ready(number)) {
            ensure!(begin.elapsed() < TIMEOUT, "a control plane does not become ready");
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    pub(crate) fn start_etcd(&mut self) -> anyhow::Result<()> {
        self.etcd.start_again()
    }

    pub(crate) fn start_control(&mut self, number: usize) -> anyhow::Result<()> {
        self.controls[number].start_again()
    }

    pub(crate) fn start_node(&mut self, number: usize) -> anyhow::Result<()> {
        // Its token was used. It has a certificate.
        let command = &mut self.nodes[number].command;
        if let Some(join) = command.iter().position(|word| word == "--join") {
            command.drain(join..join + 2);
        }
        self.nodes[number].start_again()
    }

    /// Has a change taken by this control plane, as soon as it takes any.
    pub(crate) fn change(&mut self, number: usize) -> anyhow::Result<()> {
        self.changes += 1;
        let text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: late-{}, namespace: bench}}\nspec: {{command: [\"true\"], \
             scale: {{min: 0, max: 1}}}}\n",
            self.changes
        );
        let file = self.folder.path().join("change.yaml");
        fs::write(&file, text)?;
        let file = file.display().to_string();
        wait("a change to be taken", || Ok(self.leno(number, &["apply", "-f", &file])?.status.success().then_some(())))
    }

    pub(crate) fn apply(&mut self, text: &str) -> anyhow::Result<()> {
        let file = self.folder.path().join("documents.yaml");
        fs::write(&file, text)?;
        let applied = self.leno(self.leader()?, &["apply", "-f", &file.display().to_string()])?;
        ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
        Ok(())
    }

    fn leno(&self, control: usize, arguments: &[&str]) -> anyhow::Result<std::process::Output> {
        let path = self.folder.path();
        let command = Command::new(&self.leno)
            .args(arguments)
            .env("LENO_SERVER", format!("https://127.0.0.1:{}", 15443 + control))
            .env("LENO_TOKEN_FILE", path.join("admin.token"))
            .env("LENO_CA", path.join(format!("control-{control}/data/api.pem")))
            .stdin(Stdio::null())
            .output();
        command.context("leno")
    }

    /// What a control plane says of the mesh, with the status code; `None`: there was no answer.
    pub(crate) fn status(&self, control: usize) -> Option<(u16, Value)> {
        let token = fs::read_to_string(self.folder.path().join("admin.token")).ok()?;
        let header = format!("authorization: Bearer {}", token.trim());
        let output = self.curl(control, "/v1/status", &["--write-out", "\n%{http_code}", "--header", &header])?;
        let (body, code) = output.rsplit_once('\n')?;
        Some((code.parse().ok()?, serde_json::from_str(body).unwrap_or(Value::Null)))
    }

    /// Whether a control plane leads or follows.
    fn ready(&self, control: usize) -> bool {
        let said = self.curl(control, "/readyz", &[]).unwrap_or_default();
        said.starts_with("leads") || said.starts_with("follows")
    }

    fn curl(&self, control: usize, path: &str, arguments: &[&str]) -> Option<String> {
        let ca = self.folder.path().join(format!("control-{control}/data/api.pem"));
        let output = Command::new("curl")
            .args(["--silent", "--max-time", "5", "--noproxy", "*", "--cacert"])
            .arg(ca)
            .args(arguments)
            .arg(format!("https://127.0.0.1:{}{path}", 15443 + control))
            .output()
            .ok()?;
        String::from_utf8(output.stdout).ok()
    }
}

const ETCD: &str = "etcd --name one --log-level error --data-dir data --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls \
                    http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls \
                    http://127.0.0.1:2380 --initial-cluster one=http://127.0.0.1:2380";

const MESH: &str = "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: bench}\nspec:\n  trustDomain: bench.example\n  accessLog: \
                    {format: json, file: /dev/null}\n  mtls: {svidLifetime: 60s}\n  instances: {isolation: process, accounts: node}\n";

/// A function, and a policy that allows everything besides what is said.
pub(crate) fn document(function: &str, policy: &str) -> anyhow::Result<String> {
    let program = std::env::current_exe()?;
    Ok(format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: front, namespace: bench}}\nspec: {{command: [\"{}\", {}], \
         {function}}}\n---\napiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: open, namespace: bench}}\nspec:\n  functions: \
         [front]\n  authorization: {{rules: [{{name: everything, action: allow}}]}}\n{policy}",
        program.display(),
        greeter::SUBCOMMAND,
    ))
}

/// The nodes that have a ready instance, one name for each instance.
pub(crate) fn ready(status: &Value) -> Vec<String> {
    let all = status["functions"].as_array().into_iter().flatten();
    let instances =
        all.filter(|one| one["function"] == FUNCTION).filter_map(|one| one["instances"].as_array()).flatten();
    let ready = instances.filter(|instance| instance["state"] == "ready");
    ready.filter_map(|instance| instance["node"].as_str().map(str::to_owned)).collect()
}

fn connected(status: &Value) -> usize {
    let nodes = status["nodes"].as_array().into_iter().flatten();
    nodes.filter(|node| node["connected"] == Value::Bool(true)).count()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let done = Command::new("ip").args(arguments.split(' ')).stderr(Stdio::null()).status().context("ip")?;
    ensure!(done.success(), "`ip {arguments}` failed");
    Ok(())
}

/// Polls until something is there.
pub(crate) fn wait<T>(what: &str, mut there: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let begin = Instant::now();
    loop {
        if let Some(found) = there()? {
            return Ok(found);
        }
        ensure!(begin.elapsed() < TIMEOUT, "waited in vain for {what}");
        sleep(POLL_INTERVAL);
    }
}
