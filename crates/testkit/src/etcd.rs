//! An etcd process.

use crate::{Process, eventually, free_port};
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// An etcd of one member, which a test can end, pause and start again. Dropping it ends it.
pub struct EtcdServer {
    folder: TempDir,
    client: u16,
    peer: u16,
    process: Option<Process>,
}

impl EtcdServer {
    /// Starts an etcd on free ports and waits until it answers.
    pub fn start() -> Self {
        let [client, peer] = [(); 2].map(|()| free_port());
        let mut server = Self { folder: tempfile::tempdir().unwrap(), client, peer, process: None };
        server.run();
        server
    }

    /// Starts the process again, with the same data.
    pub fn run(&mut self) {
        let (client, peer) = (self.address(), format!("http://127.0.0.1:{}", self.peer));
        let data = self.folder.path().join("data");
        let mut etcd = Command::new("etcd");
        etcd.args(["--name", "one", "--log-level", "error", "--data-dir"])
            .arg(data)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdin(Stdio::null());
        self.process = Some(Process::spawn(&mut etcd).expect("etcd is installed (make setup)"));
        eventually("etcd to answer", || self.health().is_ok_and(|answer| answer.contains("\"health\":\"true\"")));
    }

    fn health(&self) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.client))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        io::read_to_string(stream)
    }

    /// The URL for clients.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.client)
    }

    /// The folder of its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops the process. It keeps its connections, and does not answer.
    pub fn pause(&self) {
        self.process.as_ref().expect("etcd runs").pause();
    }

    /// Continues a paused process.
    pub fn resume(&self) {
        self.process.as_ref().expect("etcd runs").resume();
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}
