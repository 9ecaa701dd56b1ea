//! A Redis server for the tests.

use crate::{Process, eventually, free_port};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// A redis-server that writes each change to disk.
pub struct Redis {
    pub port: u16,
    folder: tempfile::TempDir,
    process: Process,
}

impl Redis {
    pub fn start() -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
        let process = run(port, folder.path());
        Self { port, folder, process }
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    pub fn start_again(&mut self) {
        self.process = run(self.port, self.folder.path());
    }
}

fn run(port: u16, folder: &Path) -> Process {
    let mut redis = Command::new("redis-server");
    redis
        .args(["--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always", "--port", &port.to_string()])
        .arg("--dir")
        .arg(folder)
        .stdin(Stdio::null());
    let process = Process::spawn(&mut redis).expect("redis-server is installed (make setup)");
    eventually("redis-server to listen", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    process
}
