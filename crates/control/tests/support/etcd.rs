//! A real etcd, which can be stopped, paused and started again with what it has.

#[allow(clippy::duplicate_mod, reason = "some test binaries have it in `mesh` too")]
#[path = "../../../leno/tests/mesh/ports.rs"]
mod ports;

use leno_control::{Etcd, EtcdOptions, StoreError};
use ports::free_port;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An etcd process of one member.
pub(crate) struct Server {
    folder: TempDir,
    client: u16,
    peer: u16,
    process: Option<Child>,
}

impl Server {
    /// Starts one on free ports and waits until it answers.
    pub(crate) fn start() -> Self {
        let [client, peer] = [(); 2].map(|()| free_port());
        let mut server = Self { folder: tempfile::tempdir().unwrap(), client, peer, process: None };
        server.run();
        server
    }

    /// Starts the process again, with what it has.
    pub(crate) fn run(&mut self) {
        let (client, peer) = (self.address(), format!("http://127.0.0.1:{}", self.peer));
        let data = self.folder.path().join("data");
        let process = Command::new("etcd")
            .args(["--name", "one", "--log-level", "error", "--data-dir"])
            .arg(data)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd is installed (make setup)");
        self.process = Some(process);
        self.eventually("etcd to answer", |server| server.connect("probe").is_ok());
    }

    /// Polls until something holds.
    pub(crate) fn eventually(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            assert!(begin.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.client)
    }

    /// A store with keys of its own in this etcd.
    pub(crate) fn connect(&self, prefix: &str) -> Result<Etcd, StoreError> {
        Etcd::connect(EtcdOptions {
            endpoints: vec![self.address()],
            prefix: format!("/{prefix}"),
            lease: Duration::from_secs(2),
            ..EtcdOptions::default()
        })
    }

    /// Ends the process at once.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops or continues the process: it keeps its connections, and does not answer.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
