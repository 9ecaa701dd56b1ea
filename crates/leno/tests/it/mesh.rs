//! A whole mesh for a test: `leno up` as a child process, driven by curl.

use leno_testkit::{TIMEOUT, eventually, free_port};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A running `leno up`.
pub(crate) struct Mesh {
    pub folder: tempfile::TempDir,
    pub ports: Ports,
    child: Child,
    output: Arc<Mutex<Vec<String>>>,
}

/// The addresses of its listeners.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    pub gateway: u16,
    pub outbound: u16,
    pub inbound: u16,
    pub control: u16,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Ports {
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

/// A program of the folder `examples`.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().and_then(Path::parent).unwrap().join("examples").join(name)
}

/// The echo function of `examples/echo`.
pub(crate) fn echo() -> PathBuf {
    example("echo")
}

/// The intruder of the example application.
pub(crate) fn intruder() -> PathBuf {
    example("intruder")
}

/// Makes a working directory that every account can enter, and next to it a file that only this
/// account can read.
pub(crate) fn public_folder(folder: &Path) {
    fs::create_dir(folder.join("public")).unwrap();
    fs::write(folder.join("public/readme"), "for everybody\n").unwrap();
    fs::write(folder.join("secret"), "for the node\n").unwrap();
    fs::set_permissions(folder.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
}

/// A function document that runs the echo function.
pub(crate) fn echo_function(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  command: \
         [\"{}\"]\n{spec}\n",
        echo().display()
    )
}

/// Whether the kernel makes channels for chains here. If not, prints that.
pub(crate) fn kernel_makes_channels() -> bool {
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
pub(crate) fn policy(name: &str, function: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  functions: \
         [{function}]\n{spec}\n"
    )
}

/// The admin listener, in the folder of the documents.
const SOCKET: &str = "admin.sock";

/// Allows all requests.
pub(crate) const ALLOW_ALL: &str = "  authorization: {rules: [{name: everything, action: allow}]}";

impl Mesh {
    /// Starts a mesh with these documents and waits until it is ready.
    pub(crate) fn start(documents: &str) -> Self {
        Self::start_with("", documents)
    }

    /// The same, with further fields of the mesh document's `spec`.
    pub(crate) fn start_with(mesh: &str, documents: &str) -> Self {
        Self::launch(Command::new(env!("CARGO_BIN_EXE_leno")), mesh, documents)
    }

    /// The same, with this limit on file descriptors, in the syntax of `ulimit`.
    pub(crate) fn start_with_descriptors(ulimit: &str, mesh: &str, documents: &str) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit {ulimit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_leno")]);
        Self::launch(shell, mesh, documents)
    }

    fn launch(leno: Command, mesh: &str, documents: &str) -> Self {
        Self::start_with_command(leno, mesh, documents, |_| ())
    }

    /// The same with this program instead of `leno`, and in a prepared folder.
    pub(crate) fn start_with_command(leno: Command, mesh: &str, documents: &str, prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ports = Ports::free();
        fs::write(folder.path().join("mesh.yaml"), ports.mesh_document(mesh)).unwrap();
        fs::write(folder.path().join("app.yaml"), documents).unwrap();
        prepare(folder.path());
        let (child, output) = launch(leno, folder.path(), &[]);
        let mut mesh = Self { folder, ports, child, output };
        mesh.wait_until_ready();
        mesh
    }

    /// The same as [`Mesh::start`], where the parent process has left this descriptor open.
    pub(crate) fn start_inheriting(documents: &str, open: OwnedFd) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ports = Ports::free();
        fs::write(folder.path().join("mesh.yaml"), ports.mesh_document("")).unwrap();
        fs::write(folder.path().join("app.yaml"), documents).unwrap();
        // A shell copies its input to a descriptor that programs inherit.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec 7<&0 \"$@\" </dev/null", "sh"]).arg(env!("CARGO_BIN_EXE_leno")).stdin(open);
        let (child, output) = spawn(shell, folder.path(), &[]);
        let mut mesh = Self { folder, ports, child, output };
        mesh.wait_until_ready();
        mesh
    }

    /// The process ID of the node.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it, and starts it again with these arguments.
    pub(crate) fn restart(&mut self, arguments: &[&str]) {
        self.terminate();
        self.wait();
        (self.child, self.output) = launch(Command::new(env!("CARGO_BIN_EXE_leno")), self.folder.path(), arguments);
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        self.wait_for("the mesh to be ready", |mesh| {
            if let Some(status) = mesh.child.try_wait().unwrap() {
                panic!("leno up ended early with {status}:\n{}", mesh.output().join("\n"));
            }
            mesh.try_admin("/readyz").is_some_and(|answer| answer.status == 200)
        });
    }

    /// Its output so far.
    pub(crate) fn output(&self) -> Vec<String> {
        self.output.lock().unwrap().clone()
    }

    /// Polls until a condition holds.
    pub(crate) fn wait_for(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        eventually(what, || holds(self));
    }

    /// Polls until a line of the output contains this text, and returns that line. The test may
    /// read a line some time after the event.
    pub(crate) fn line(&self, text: &str) -> String {
        eventually(&format!("the line {text:?}"), || self.output().into_iter().find(|line| line.contains(text)))
    }

    /// Replaces the application's documents, atomically, as editors do.
    pub(crate) fn write(&self, documents: &str) {
        self.replace("app.yaml", documents);
    }

    /// The same with the mesh document: `extra` follows the addresses that the test chose.
    pub(crate) fn write_mesh(&self, extra: &str) {
        self.replace("mesh.yaml", &self.ports.mesh_document(extra));
    }

    fn replace(&self, file: &str, text: &str) {
        let new = self.folder.path().join(".new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.folder.path().join(file)).unwrap();
    }

    /// A GET through the gateway.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.curl(path, &[])
    }

    /// A request through the gateway with further arguments for curl.
    pub(crate) fn curl(&self, path: &str, arguments: &[&str]) -> Answer {
        curl(&format!("http://127.0.0.1:{}{path}", self.ports.gateway), arguments)
    }

    /// A GET of the admin listener.
    pub(crate) fn admin(&self, path: &str) -> Answer {
        self.try_admin(path).unwrap_or_else(|| panic!("curl got no answer from {}", self.socket().display()))
    }

    /// The admin listener.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join(SOCKET)
    }

    /// `/metrics`, as soon as it contains all of these: the node counts an exchange after it has
    /// sent the response.
    pub(crate) fn metrics(&self, expected: &[&str]) -> String {
        eventually(&format!("metrics with {expected:?}"), || {
            let text = self.admin("/metrics").body;
            expected.iter().all(|expected| text.contains(expected)).then_some(text)
        })
    }

    /// The output of `leno explain` about a request, as soon as the node has a record of it.
    pub(crate) fn explain(&self, request_id: &str) -> String {
        eventually(&format!("the explanation of {request_id}"), || {
            let output = self.leno(&["explain", request_id]);
            output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
        })
    }

    fn try_admin(&self, path: &str) -> Option<Answer> {
        try_curl(&format!("http://admin{path}"), &["--unix-socket", self.socket().to_str().unwrap()])
    }

    /// Instances of a function, as `leno get instances --json` lists them.
    pub(crate) fn instances(&self, function: &str) -> Vec<Value> {
        let listed = self.leno(&["get", "instances", "--json"]);
        assert!(listed.status.success(), "{listed:?}");
        let rows: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
        rows.into_iter().filter(|row| row["function"] == function).collect()
    }

    /// Runs a `leno` command against this mesh.
    pub(crate) fn leno(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_leno"))
            .args(arguments)
            .env("LENO_ADMIN", format!("unix:{}", self.socket().display()))
            .output()
            .unwrap()
    }

    /// Lines of the access log with this value of a field, once there are `count` of them.
    pub(crate) fn log_lines(&mut self, field: &str, value: &str, count: usize) -> Vec<Value> {
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
    pub(crate) fn terminate(&self) {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end. Returns the status.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        self.wait_for("leno up to end", |mesh| {
            status = mesh.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(15) && self.child.try_wait().ok().flatten().is_none() {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- leno up wrote:\n{}", self.output().join("\n"));
            let log = fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
            eprintln!("--- access log:\n{log}");
        }
    }
}

/// `leno up` of a folder, and the lines that it writes.
fn launch(mut leno: Command, folder: &Path, arguments: &[&str]) -> (Child, Arc<Mutex<Vec<String>>>) {
    leno.stdin(Stdio::null());
    spawn(leno, folder, arguments)
}

fn spawn(mut leno: Command, folder: &Path, arguments: &[&str]) -> (Child, Arc<Mutex<Vec<String>>>) {
    let mut child = leno
        .arg("up")
        .arg(folder)
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = Arc::new(Mutex::new(Vec::new()));
    for stream in [
        Box::new(child.stdout.take().unwrap()) as Box<dyn std::io::Read + Send>,
        Box::new(child.stderr.take().unwrap()),
    ] {
        let output = Arc::clone(&output);
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                output.lock().unwrap().push(line);
            }
        });
    }
    (child, output)
}

/// The status of the first response of an HTTP server that may not listen yet. The client tries
/// without a pause.
pub(crate) fn first_answer(server: SocketAddr) -> JoinHandle<u16> {
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

/// One request by curl.
pub(crate) fn curl(url: &str, arguments: &[&str]) -> Answer {
    try_curl(url, arguments).unwrap_or_else(|| panic!("curl got no answer from {url}"))
}

/// The same; `None`: there was no response.
pub(crate) fn try_curl(url: &str, arguments: &[&str]) -> Option<Answer> {
    let output = Command::new("curl")
        .args(["--silent", "--include", "--max-time", "40", "--path-as-is", "--noproxy", "*"])
        .args(arguments)
        .arg(url)
        .output()
        .expect("curl is installed (make setup)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut rest = text.as_str();
    // Interim responses (100 Continue) come first.
    loop {
        let (head, body) = rest.split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n");
        let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        if status < 200 {
            rest = body;
            continue;
        }
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        return Some(Answer { status, headers, body: body.to_owned() });
    }
}
