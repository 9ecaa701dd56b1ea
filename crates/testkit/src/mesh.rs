//! A whole mesh for a test: `leno up` as a child process.

use crate::{Admin, Answer, Process, TIMEOUT, curl, eventually, free_port};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;
use tempfile::TempDir;

/// A running `leno up`.
pub struct Mesh {
    pub folder: TempDir,
    pub ports: Ports,
    process: Process,
}

/// The addresses of its listeners.
#[derive(Clone, Copy)]
pub struct Ports {
    pub gateway: u16,
    pub outbound: u16,
    pub inbound: u16,
    pub control: u16,
}

impl Ports {
    /// Takes free ports.
    fn free() -> Self {
        Self { gateway: free_port(), outbound: free_port(), inbound: free_port(), control: free_port() }
    }

    fn mesh_document(self, extra: &str) -> String {
        // Most programs of the tests are in a folder of this account, which other accounts may not
        // be able to enter. `jails.rs` tests the effects of jails.
        let accounts =
            if extra.contains("instances:") { "" } else { "  instances: {isolation: process, accounts: node}\n" };
        let Self { gateway, outbound, inbound, control } = self;
        let admin = SOCKET;
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: test}}\nspec:\n  trustDomain: test.example\n  \
             gateway: {{http: \"127.0.0.1:{gateway}\"}}\n  listeners: {{outbound: \"127.0.0.1:{outbound}\", inbound: \
             \"127.0.0.1:{inbound}\", admin: \"unix:{admin}\", control: \"127.0.0.1:{control}\"}}\n  accessLog: \
             {{format: json, file: access.log}}\n{accounts}{extra}"
        )
    }
}

/// The `leno` of this build.
pub fn leno_program() -> PathBuf {
    program("leno")
}

/// A program of this build.
pub fn program(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let folder = this.parent().unwrap();
    // Cargo puts tests into a folder beside the programs.
    if folder.ends_with("deps") { folder.with_file_name(name) } else { folder.join(name) }
}

/// An example of the crate `leno`.
pub fn example(name: &str) -> PathBuf {
    program("examples").join(name)
}

/// The echo function of `examples/echo`.
pub fn echo() -> PathBuf {
    example("echo")
}

/// The intruder of the example application.
pub fn intruder() -> PathBuf {
    example("intruder")
}

/// Makes a working directory that every account can enter, and next to it a file that only this
/// account can read.
pub fn public_folder(folder: &Path) {
    fs::create_dir(folder.join("public")).unwrap();
    fs::write(folder.join("public/readme"), "for everybody\n").unwrap();
    fs::write(folder.join("secret"), "for the node\n").unwrap();
    fs::set_permissions(folder.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
}

/// A function document that runs the echo function.
pub fn echo_function(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  command: \
         [\"{}\"]\n{spec}\n",
        echo().display()
    )
}

/// Whether the kernel makes channels for chains here. If not, prints that.
pub fn kernel_makes_channels() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let makes = rustix::process::geteuid().is_root() && version >= (6, 13);
    if !makes {
        eprintln!(
            "SKIPPED: calls of chains go through the kernel as root on Linux 6.13 and later; this is {}",
            release.trim()
        );
    }
    makes
}

/// A policy document.
pub fn policy(name: &str, function: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  functions: \
         [{function}]\n{spec}\n"
    )
}

/// The admin listener, in the folder of the documents.
const SOCKET: &str = "admin.sock";

/// Allows all requests.
pub const ALLOW_ALL: &str = "  authorization: {rules: [{name: everything, action: allow}]}";

impl Mesh {
    /// Starts a mesh with these documents and waits until it is ready.
    pub fn start(documents: &str) -> Self {
        Self::start_with("", documents)
    }

    /// The same, with further fields of the mesh document's `spec`.
    pub fn start_with(mesh: &str, documents: &str) -> Self {
        Self::start_with_command(Command::new(leno_program()), mesh, documents, |_| ())
    }

    /// The same, with this limit on file descriptors, in the syntax of `ulimit`.
    pub fn start_with_descriptors(ulimit: &str, mesh: &str, documents: &str) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit {ulimit} && exec \"$0\" \"$@\"")]).arg(leno_program());
        Self::start_with_command(shell, mesh, documents, |_| ())
    }

    /// The same as [`Mesh::start`], where the parent process has left this descriptor open.
    pub fn start_inheriting(documents: &str, open: OwnedFd) -> Self {
        // A shell copies its input to a descriptor that programs inherit.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec 7<&0 \"$@\" </dev/null", "sh"]).arg(leno_program());
        Self::launch(shell, open.into(), "", documents, |_| ())
    }

    /// The same with this program instead of `leno`, and in a prepared folder.
    pub fn start_with_command(leno: Command, mesh: &str, documents: &str, prepare: impl FnOnce(&Path)) -> Self {
        Self::launch(leno, Stdio::null(), mesh, documents, prepare)
    }

    fn launch(leno: Command, input: Stdio, mesh: &str, documents: &str, prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ports = Ports::free();
        fs::write(folder.path().join("mesh.yaml"), ports.mesh_document(mesh)).unwrap();
        fs::write(folder.path().join("app.yaml"), documents).unwrap();
        prepare(folder.path());
        let process = Process::spawn(up(leno, folder.path()).stdin(input)).unwrap();
        let mut mesh = Self { folder, ports, process };
        mesh.wait_until_ready();
        mesh
    }

    /// The process ID of the node.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Ends it, and starts it again with these arguments.
    pub fn restart(&mut self, arguments: &[&str]) {
        self.terminate();
        self.wait();
        self.start_again(arguments);
    }

    /// Starts it again after its end, with these arguments.
    pub fn start_again(&mut self, arguments: &[&str]) {
        let mut leno = up(Command::new(leno_program()), self.folder.path());
        self.process = Process::spawn(leno.args(arguments).stdin(Stdio::null())).unwrap();
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let admin = self.listener();
        self.process.wait_until("the node is ready", |_| admin.is_ready());
    }

    /// The lines of its output so far.
    pub fn output(&self) -> Vec<String> {
        self.process.lines()
    }

    /// Polls until a condition holds.
    pub fn wait_for(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        eventually(what, || holds(self));
    }

    /// Polls until a line of the output contains this text, and returns that line. The test may
    /// read a line some time after the event.
    pub fn line(&self, text: &str) -> String {
        eventually(&format!("the line {text:?}"), || self.output().into_iter().find(|line| line.contains(text)))
    }

    /// Replaces the application's documents, atomically, as editors do.
    pub fn write(&self, documents: &str) {
        self.replace("app.yaml", documents);
    }

    /// The same with the mesh document: `extra` follows the addresses that the test chose.
    pub fn write_mesh(&self, extra: &str) {
        self.replace("mesh.yaml", &self.ports.mesh_document(extra));
    }

    fn replace(&self, file: &str, text: &str) {
        let new = self.folder.path().join(".new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.folder.path().join(file)).unwrap();
    }

    /// A GET through the gateway.
    pub fn get(&self, path: &str) -> Answer {
        self.curl(path, &[])
    }

    /// A request through the gateway with further arguments for curl.
    pub fn curl(&self, path: &str, arguments: &[&str]) -> Answer {
        curl(&format!("http://127.0.0.1:{}{path}", self.ports.gateway), arguments)
    }

    /// A GET of the admin listener.
    pub fn admin(&self, path: &str) -> Answer {
        self.listener().get(path).unwrap_or_else(|| panic!("no answer from {}", self.socket().display()))
    }

    fn listener(&self) -> Admin {
        Admin::Socket(self.socket())
    }

    /// The socket of the admin listener.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    /// `/metrics`, as soon as it contains all of these: the node counts an exchange after it has
    /// sent the response.
    pub fn metrics(&self, expected: &[&str]) -> String {
        eventually(&format!("metrics with {expected:?}"), || {
            let text = self.admin("/metrics").body;
            expected.iter().all(|expected| text.contains(expected)).then_some(text)
        })
    }

    /// The output of `leno explain` about a request, as soon as the node has a record of it.
    pub fn explain(&self, request_id: &str) -> String {
        eventually(&format!("the explanation of {request_id}"), || {
            let output = self.leno(&["explain", request_id]);
            output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
        })
    }

    /// Instances of a function, as `leno get instances --json` lists them.
    pub fn instances(&self, function: &str) -> Vec<Value> {
        let listed = self.leno(&["get", "instances", "--json"]);
        assert!(listed.status.success(), "{listed:?}");
        let rows: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
        rows.into_iter().filter(|row| row["function"] == function).collect()
    }

    /// Runs a `leno` command against this mesh.
    pub fn leno(&self, arguments: &[&str]) -> Output {
        Command::new(leno_program())
            .args(arguments)
            .env("LENO_ADMIN", format!("unix:{}", self.socket().display()))
            .output()
            .unwrap()
    }

    /// Lines of the access log with this value of a field, once there are `count` of them.
    pub fn log_lines(&mut self, field: &str, value: &str, count: usize) -> Vec<Value> {
        let path = self.folder.path().join("access.log");
        let mut lines = Vec::new();
        self.wait_for("lines in the access log", |_| {
            lines = fs::read_to_string(&path)
                .unwrap_or_default()
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .filter(|line| line[field] == value)
                .collect();
            lines.len() >= count
        });
        lines
    }

    /// Sends SIGTERM, without waiting.
    pub fn terminate(&self) {
        self.process.terminate();
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits for its end. Returns the status.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
            eprintln!("--- access log:\n{log}");
        }
    }
}

/// The command `leno up` for the documents in a folder, which is also its working directory.
pub fn up(mut leno: Command, folder: &Path) -> Command {
    leno.arg("up").arg(folder).current_dir(folder);
    leno
}

/// The status of the first response of an HTTP server that may not listen yet. The client tries
/// without a pause.
pub fn first_answer(server: SocketAddr) -> JoinHandle<u16> {
    let ask = move || -> Option<u16> {
        let mut stream = TcpStream::connect(server).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: first.example\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    };
    std::thread::spawn(move || {
        let begin = Instant::now();
        loop {
            if let Some(status) = ask() {
                return status;
            }
            assert!(begin.elapsed() < TIMEOUT, "{server} never answered");
            std::thread::yield_now();
        }
    })
}
