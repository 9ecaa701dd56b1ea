//! Blocks of the documentation, word for word, on machines that are sets of namespaces.

mod operations;
mod routes;

use leno_testkit::documentation::{Block, commands, repository};
use leno_testkit::{Process, eventually, leno_program};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// The block of this page that starts with this line.
fn whole_block(page: &str, first: &str) -> Block {
    let found =
        commands().0.into_iter().find(|Block { page: of, lines, .. }| of == page && lines[0].starts_with(first));
    found.unwrap_or_else(|| panic!("{page} has a block that starts with {first}"))
}

/// Its lines.
fn block(page: &str, first: &str) -> Vec<String> {
    whole_block(page, first).lines
}

/// All of it, as one script.
fn script(page: &str, first: &str) -> String {
    whole_block(page, first).script
}

/// A set of namespaces: network, host name, and layers over folders of the system, so that commands change
/// nothing of the machine of the test.
struct Machine {
    holder: Process,
    folder: TempDir,
}

impl Machine {
    fn start(name: &str) -> Self {
        const LAYERS: &str = "set -e; mount -t tmpfs layers $0/layers; hostname $1; ip link set lo up
            for folder in etc usr/bin var/cache var/lib run; do
                mkdir -p $0/layers/$folder/upper $0/layers/$folder/work
                mount -t overlay layers -o lowerdir=/$folder,upperdir=$0/layers/$folder/upper,workdir=$0/layers/$folder/work /$folder
            done
            rm -rf /run/leno /var/lib/leno /etc/leno; install -m 0755 $2 /usr/bin/leno; echo started; exec sleep infinity";
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("layers")).unwrap();
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--net", "--mount", "--uts", "sh", "-c", LAYERS])
            .arg(folder.path())
            .arg(name)
            .arg(leno_program());
        let mut holder = Process::spawn(&mut unshare).unwrap();
        holder.wait_until("its namespaces", |holder| holder.output().contains("started"));
        Self { holder, folder }
    }

    fn command(&self, line: &str, directory: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.pid().to_string(), "--net", "--mount", "--uts", "sh", "-c"]);
        command.arg(format!("cd {} && {line}", directory.display())).stdin(Stdio::null());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LENO_")) {
            command.env_remove(name);
        }
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", self.folder.path());
        command
    }

    /// The output of a command that succeeds.
    fn run(&self, line: &str, directory: &Path) -> String {
        let Output { status, stdout, stderr } = self.command(line, directory).output().unwrap();
        let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(status.success(), "{line}: {status}\n{stdout}{stderr}");
        stdout
    }

    /// Puts a script in the place of a program.
    fn replace(&self, program: &str, script: &str) {
        let path = self.folder.path().join(program);
        fs::write(&path, script).unwrap();
        self.run(&format!("install -m 0755 {} /usr/bin/{program}", path.display()), self.folder.path());
    }

    /// Starts a command that goes on, and waits until it says this.
    fn begin(&self, line: &str, directory: &Path, says: &str) -> Process {
        let mut process = Process::spawn(&mut self.command(&format!("exec {line}"), directory)).unwrap();
        process.wait_until(says, |process| process.output().contains(says));
        process
    }
}

/// `leno upgrade` leaves processes without a parent in the test.
impl Drop for Machine {
    fn drop(&mut self) {
        let host = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/uts")).ok();
        let (own, holder) = (host(self.holder.pid()), self.holder.pid());
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        for pid in all.filter(|&pid: &u32| pid != holder && own.is_some() && host(pid) == own) {
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
        }
    }
}

/// A copy of `examples/shop`, where a user has it who is in the folder of the repository.
fn shop() -> TempDir {
    example("shop")
}

/// A copy of an example.
fn example(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    leno_testkit::mesh::public_folder(folder.path());
    let copied = Command::new("sh")
        .args(["-c", "mkdir examples && cp -r $0/examples/$1 examples"])
        .arg(repository())
        .arg(name)
        .current_dir(folder.path())
        .status();
    assert!(copied.unwrap().success());
    folder
}

fn request_id(head: &str) -> &str {
    head.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap_or_else(|| panic!("{head}")).trim()
}

#[test]
fn start_in_ten_minutes() {
    let (machine, folder) = (Machine::start("start"), shop());
    let run = |line: &str| machine.run(line, folder.path());
    let lines = block("docs/start.md", "leno check");
    assert!(run(&lines[0]).ends_with("2 functions, all fine\n"));
    let up = machine.begin(&lines[1], folder.path(), "ready: 2 functions");
    assert!(up.output().contains("INFO gateway   http://127.0.0.1:8080"), "{}", up.output());

    let lines = block("docs/start.md", "curl -i http");
    let answer = run(&lines[0]);
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("ratelimit-remaining: 99"), "{answer}");
    assert!(answer.ends_with("in stock: 7\n"), "{answer}");

    let lines = block("docs/start.md", "leno observe");
    let flows = run(&lines[0]);
    for rule in ["[shop/authorization/read-only]", "[demo/shop/callees]", "[stock/authorization/shop]"] {
        assert!(flows.contains(rule), "{flows}");
    }

    let lines = block("docs/start.md", "curl -i -X");
    let answer = run(&lines[0]);
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden"), "{answer}");
    let printed = lines[1].rsplit(' ').next().unwrap();
    let explained = run(&lines[1].replace(printed, request_id(&answer)));
    assert!(explained.contains("denied: no rule allows it; nearest is shop/authorization/read-only"), "{explained}");
    assert!(explained.contains(r#"to.methods: "POST" matches none of ["GET"]"#), "{explained}");

    run(r"sed -i 's/methods: \[GET\], paths/methods: [GET, POST], paths/' examples/shop/shop.yaml");
    eventually("the change to be in force", || run(&lines[0]).starts_with("HTTP/1.1 501"));
    assert!(run("leno logs demo/shop").contains("501"));
}

#[test]
fn the_first_example_of_the_readme() {
    let (machine, folder) = (Machine::start("readme"), shop());
    let run = |line: &str| machine.run(line, folder.path());
    let lines = block("README.md", "leno check");
    let [check, up, get, observe, explain, logs, dashboard] = &*lines else { panic!("{lines:?}") };
    run(check);
    let _up = machine.begin(up.split('#').next().unwrap(), folder.path(), "ready: 2 functions");
    assert!(run(get).contains("shop"));
    let mut observe = machine.begin(observe, folder.path(), "");
    let mut answer = String::new();
    // Flows from before it has connected are not shown.
    observe.wait_until("a flow", |observe| {
        answer = run("curl -si http://127.0.0.1:8080/items/3");
        observe.output().contains("[stock/authorization/shop]")
    });
    assert!(run(&explain.replace("REQUEST-ID", request_id(&answer))).contains("shop/authorization/read-only"));
    machine.begin(logs, folder.path(), "GET /items/3");
    machine.begin(dashboard, folder.path(), "/?token=");
}

#[test]
fn many_nodes() {
    let machines = ["control", "node", "gateway"].map(Machine::start);
    let [control, node, gateway] = &machines;
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| control.run(line, folder.path());
    run("ip link add net type bridge && ip addr add 10.0.0.1/24 dev net && ip link set net up");
    for (machine, address) in [(node, 2), (gateway, 3)] {
        let pid = machine.holder.pid();
        run(&format!(
            "ip link add n{address} type veth peer name eth0 netns /proc/{pid}/ns/net && ip link set n{address} master net up"
        ));
        machine.run(&format!("ip addr add 10.0.0.{address}/24 dev eth0 && ip link set eth0 up"), folder.path());
    }
    fs::write(
        folder.path().join("mesh.yaml"),
        "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\nspec: {trustDomain: test.example}\n",
    )
    .unwrap();
    fs::create_dir(folder.path().join("FOLDER")).unwrap();
    fs::write(
        folder.path().join("FOLDER/files.yaml"),
        "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: files, namespace: demo}\nspec: {command: \
         [python3, -m, http.server, --bind, 127.0.0.1, $(PORT)], expose: [{hosts: ['*'], path: /}]}\n---\napiVersion: \
         leno.dev/v1alpha1\nkind: Policy\nmetadata: {name: files, namespace: demo}\nspec: {functions: [files], \
         authorization: {rules: [{name: read, to: [{methods: [GET]}]}]}}\n",
    )
    .unwrap();

    let mut servers = Vec::new();
    for line in block("docs/nodes.md", "mkdir") {
        let (machine, says) = match line.split_whitespace().nth(1) {
            Some("control") => (control, "this control plane leads"),
            Some("node") => (node, " ready"),
            Some("gateway") => (gateway, " ready"),
            _ => {
                let output = run(&line);
                if line.starts_with("leno get nodes") {
                    assert!(output.contains("node ") && output.contains("gateway "), "{output}");
                }
                continue;
            }
        };
        servers.push(machine.begin(&line, folder.path(), says));
    }
    eventually("an answer through the gateway", || {
        run("curl -s -o answer -w '%{http_code}' http://10.0.0.3/ || true") == "200"
    });
    fs::copy(leno_program(), folder.path().join("leno-new")).unwrap();
    for (machine, page) in [(node, "docs/nodes.md"), (gateway, "docs/operations/upgrade.md")] {
        for line in block(page, "cp leno-new") {
            machine.run(&line, folder.path());
        }
    }
    eventually("an answer after the upgrades", || {
        run("curl -s -o answer -w '%{http_code}' http://10.0.0.3/ || true") == "200"
    });
    while let Some(server) = servers.pop() {
        drop(server); // nodes before their control plane
    }
}

#[test]
fn the_admin_listener() {
    let (machine, folder) = (Machine::start("admin"), shop());
    let run = |line: &str| machine.run(line, folder.path());
    let _up = machine.begin("leno up examples/shop", folder.path(), "ready: 2 functions");
    let allowed = run("curl -si http://127.0.0.1:8080/items/3");
    run("curl -s -X POST http://127.0.0.1:8080/items/3");
    for line in block("docs/admin.md", "leno get instances") {
        let line = line.split('#').next().unwrap().trim();
        match line {
            "leno explain 4bf92f35" => {
                assert!(run(&line.replace("4bf92f35", &request_id(&allowed)[..8])).contains("allowed"));
            }
            // The example has no traces.
            "leno explain 4bf92f3577b34da6a3ce929d0e0e4736" => {
                let told = machine.command(line, folder.path()).output().unwrap();
                let reason = String::from_utf8_lossy(&told.stderr).into_owned();
                assert!(!told.status.success() && reason.contains("does not remember request"), "{reason}");
            }
            "leno explain --last --verdict deny" => assert!(run(line).contains("denied")),
            "leno logs demo/shop --follow" => drop(machine.begin(line, folder.path(), "GET /items/3")),
            "leno observe --verdict deny" => {
                let mut denied = machine.begin(line, folder.path(), "");
                denied.wait_until("a flow", |denied| {
                    run("curl -s -X POST http://127.0.0.1:8080/items/3");
                    denied.output().contains("POST")
                });
            }
            // It needs a terminal.
            "leno top" => {}
            _ if line.starts_with("curl") => assert!(run(line).contains("istio_requests")),
            _ => assert!(run(line).contains("shop"), "{line}"),
        }
    }
}
