//! A Redis server for the tests.

use leno_testkit::{eventually, free_port};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A redis-server that writes each change to disk.
pub(crate) struct Redis {
    pub(crate) port: u16,
    folder: tempfile::TempDir,
    process: Child,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
        let process = run(port, folder.path());
        Self { port, folder, process }
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn start_again(&mut self) {
        self.process = run(self.port, self.folder.path());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(port: u16, folder: &Path) -> Child {
    let process = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always", "--port", &port.to_string()])
        .arg("--dir")
        .arg(folder)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed (make setup)");
    eventually("redis-server to listen", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    process
}
