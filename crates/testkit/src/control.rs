//! A `leno control` for one test.

use crate::{Process, eventually, leno_program};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// `Function a/stock`
pub const FUNCTION: &str = "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: stock, namespace: a}\nspec: \
                                   {command: [\"true\"]}\n";

pub fn function(name: &str, namespace: &str) -> String {
    FUNCTION.replace("name: stock, namespace: a", &format!("name: {name}, namespace: {namespace}"))
}

pub fn policy(name: &str, namespace: &str, function: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: \
         {{functions: [{function}], authorization: {{rules: [{{name: all, action: allow}}]}}}}\n"
    )
}

/// The standard output of a command.
pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A control plane and its folder.
pub struct Control {
    folder: TempDir,
    arguments: Vec<String>,
    api: u16,
    nodes: SocketAddr,
    /// The file of the first token.
    token: PathBuf,
    process: Process,
}

impl Control {
    /// Starts a control plane and waits until it leads.
    pub fn start(folder: TempDir, arguments: &[&str]) -> Self {
        Self::start_serving(folder, arguments, Ipv4Addr::LOCALHOST)
    }

    /// Starts a control plane that serves nodes at this address, and waits until it leads.
    pub fn start_serving(folder: TempDir, arguments: &[&str], nodes: Ipv4Addr) -> Self {
        let token = folder.path().join("data/admin.token");
        let control = Self::spawn(folder, arguments, token, nodes);
        control.eventually("it to lead", |control| control.ready().as_deref() == Some("leads\n"));
        control
    }

    /// Starts a control plane that follows another.
    pub fn start_following(leader: &Self, arguments: &[&str]) -> Self {
        let std::net::IpAddr::V4(nodes) = leader.nodes.ip() else { panic!("an IPv4 address") };
        let control = Self::spawn(tempfile::tempdir().unwrap(), arguments, leader.token.clone(), nodes);
        let expected = format!("follows {}\n", leader.url());
        control.eventually("it to follow", |control| control.ready().as_ref() == Some(&expected));
        // The API redirects commands to the leader, so they trust both certificates.
        let [own, other] = [&control, leader].map(|control| fs::read_to_string(control.path("data/api.pem")).unwrap());
        fs::write(control.path("data/api.pem.both"), format!("{own}{other}")).unwrap();
        control
    }

    fn spawn(folder: TempDir, arguments: &[&str], token: PathBuf, nodes: Ipv4Addr) -> Self {
        let listeners = [Ipv4Addr::LOCALHOST, nodes].map(|address| TcpListener::bind((address, 0)).unwrap());
        let [api, nodes] = [&listeners[0], &listeners[1]].map(|listener| listener.local_addr().unwrap());
        let api = api.port();
        drop(listeners);
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let process = run(folder.path(), api, nodes, &arguments);
        Self { folder, arguments, api, nodes, token, process }
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Replaces the arguments for the next start.
    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    }

    /// Starts it again after its end, with the same files.
    pub fn start_again(&mut self) {
        self.start_again_unready();
        self.eventually("it to lead again", |control| control.ready().as_deref() == Some("leads\n"));
    }

    /// The same, if another one leads now.
    pub fn start_again_following(&mut self) {
        self.process = run(self.folder.path(), self.api, self.nodes, &self.arguments);
        self.eventually("it to follow", |control| control.ready().is_some_and(|text| text.starts_with("follows")));
    }

    pub fn pause(&self) {
        self.process.pause();
    }

    pub fn resume(&self) {
        self.process.resume();
    }

    /// The same, if the stored documents are not in force.
    pub fn start_again_unready(&mut self) {
        self.process = run(self.folder.path(), self.api, self.nodes, &self.arguments);
        self.eventually("it to lead again", |control| control.ready().is_some_and(|text| text.starts_with("leads")));
    }

    /// Polls until a condition holds.
    pub fn eventually(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        eventually(what, || holds(self));
    }

    /// Its output so far.
    pub fn output(&self) -> String {
        self.process.output()
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.api)
    }

    /// The address at which it serves nodes.
    pub fn nodes(&self) -> String {
        self.nodes.to_string()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// The first token.
    pub fn token(&self) -> String {
        fs::read_to_string(&self.token).unwrap().trim().to_owned()
    }

    /// Runs a `leno` command in its folder.
    pub fn leno(&self, arguments: &[&str]) -> Output {
        self.leno_with(arguments, "")
    }

    /// The same, with this input.
    pub fn leno_with(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.begin(arguments);
        let mut stdin = command.stdin.take().unwrap();
        // A command that takes no input may have ended.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        command.wait_with_output().unwrap()
    }

    /// Starts a `leno` command in its folder.
    pub fn begin(&self, arguments: &[&str]) -> Child {
        let both = self.path("data/api.pem.both");
        Command::new(leno_program())
            .args(arguments)
            .current_dir(self.folder.path())
            .env("LENO_SERVER", self.url())
            .env("LENO_TOKEN_FILE", &self.token)
            .env("LENO_CA", if both.exists() { both } else { self.path("data/api.pem") })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Applies documents, which must succeed.
    pub fn apply(&self, documents: &str) -> Output {
        let applied = self.leno_with(&["apply", "-f", "-"], documents);
        assert!(applied.status.success(), "{applied:?}\n{}", self.output());
        applied
    }

    /// The rows of `leno get documents`.
    pub fn documents(&self) -> Vec<Value> {
        let listed = self.leno(&["get", "documents", "--json"]);
        assert!(listed.status.success(), "{listed:?}");
        serde_json::from_slice(&listed.stdout).unwrap()
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        self.get_as(&self.token(), path)
    }

    /// The same; `None`: the control plane does not answer.
    pub fn try_get(&self, path: &str) -> Option<(u16, Value)> {
        self.curl(&self.token(), path, &[], "")
    }

    pub fn get_as(&self, token: &str, path: &str) -> (u16, Value) {
        self.curl(token, path, &[], "").expect("curl got no answer")
    }

    pub fn post(&self, token: &str, path: &str, body: &Value) -> (u16, Value) {
        self.try_post(token, path, body).expect("curl got no answer")
    }

    pub fn try_post(&self, token: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        self.curl(
            token,
            path,
            &["--header", "content-type: application/json", "--data-binary", "@-"],
            &body.to_string(),
        )
    }

    /// Whether it leads. One that follows answers reads as the leader does.
    pub fn leads(&self) -> bool {
        self.ready().is_some_and(|ready| ready.starts_with("leads"))
    }

    pub fn ready(&self) -> Option<String> {
        let output = Command::new("curl")
            .args(["--silent", "--max-time", "10", "--noproxy", "*", "--cacert"])
            .arg(self.path("data/api.pem"))
            .arg(format!("{}/readyz", self.url()))
            .output()
            .expect("curl is installed (make setup)");
        String::from_utf8(output.stdout).ok()
    }

    fn curl(&self, token: &str, path: &str, arguments: &[&str], body: &str) -> Option<(u16, Value)> {
        let mut curl = Command::new("curl")
            .args(["--silent", "--max-time", "60", "--noproxy", "*", "--write-out", "\n%{http_code}", "--cacert"])
            .arg(self.path("data/api.pem"))
            .args(["--header", &format!("authorization: Bearer {token}")])
            .args(arguments)
            .arg(format!("{}{path}", self.url()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("curl is installed (make setup)");
        let mut stdin = curl.stdin.take().unwrap();
        // The server may refuse a body before it has received all of it.
        let _ = stdin.write_all(body.as_bytes());
        drop(stdin);
        let output = String::from_utf8(curl.wait_with_output().unwrap().stdout).unwrap();
        let (body, status) = output.rsplit_once('\n')?;
        let status = status.parse().ok().filter(|status| *status > 0)?;
        Some((status, serde_json::from_str(body).unwrap_or(Value::String(body.to_owned()))))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // It has no instances that need time.
        if self.process.exit_status().is_none() {
            self.process.kill();
        }
    }
}

fn run(folder: &Path, api: u16, nodes: SocketAddr, arguments: &[String]) -> Process {
    // This build, or another release (`scripts/adjacent-release.sh`).
    let program = std::env::var_os("LENO_TEST_CONTROL").map_or_else(leno_program, PathBuf::from);
    let mut control = Command::new(program);
    control
        .args(["control", "--data", "data", "--audit", "audit.jsonl"])
        .args(["--api", &format!("127.0.0.1:{api}"), "--listen", &nodes.to_string()])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    Process::spawn(&mut control).unwrap()
}
