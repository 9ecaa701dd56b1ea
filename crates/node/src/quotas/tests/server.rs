//! A redis-server.

use super::{TIMEOUT, settings};
use leno_model::RedisQuotas;
use leno_testkit::free_port;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A redis-server.
pub(super) struct Server {
    pub(super) port: u16,
    pub(super) folder: TempDir,
    pub(super) arguments: Vec<String>,
    pub(super) process: Child,
}

impl Server {
    pub(super) fn start(arguments: &[&str]) -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let process = spawn(port, folder.path(), &arguments);
        Self { port, folder, arguments, process }
    }

    pub(super) fn settings(&self) -> RedisQuotas {
        settings(self.port)
    }

    pub(super) fn cli(&self, command: &[&str]) -> String {
        let output = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(command).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    pub(super) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), signal).unwrap();
    }

    pub(super) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(super) fn start_again(&mut self) {
        self.process = spawn(self.port, self.folder.path(), &self.arguments);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(port: u16, folder: &Path, arguments: &[String]) -> Child {
    let process = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string(), "--dir"])
        .arg(folder)
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed (make setup)");
    let began = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < TIMEOUT, "redis-server does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    process
}
