//! Nodes that hot-restart.

use super::{Node, leno_of_nodes};
use leno_testkit::{TIMEOUT, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A node whose first process is replaced by others. They end when this is dropped.
pub(crate) struct RestartedNode {
    pub(crate) node: Node,
    /// The process that has the node, if it is not the first one.
    pub(crate) pid: Option<u32>,
}

impl RestartedNode {
    pub(crate) fn of(node: Node) -> Self {
        Self { node, pid: None }
    }

    pub(crate) fn upgrade_with(&self, arguments: &[&str]) -> Output {
        let admin = format!("unix:{}", self.node.folder.path().join("admin.sock").display());
        Command::new(leno_of_nodes()).arg("upgrade").args(arguments).env("LENO_ADMIN", admin).output().unwrap()
    }

    /// Upgrades the node. Returns the process that has it now.
    pub(crate) fn upgrade(&mut self) -> u32 {
        let output = self.upgrade_with(&[]);
        assert!(output.status.success(), "{output:?}\n{}", self.log());
        let text = String::from_utf8(output.stdout).unwrap();
        let pid = text.split(' ').nth(1).and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("{text}"));
        assert!(is_running(pid) && self.pid != Some(pid), "{text}");
        self.pid = Some(pid);
        pid
    }

    /// The reason why the node refuses an upgrade.
    pub(crate) fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.upgrade_with(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}\n{}", self.log());
        String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn log(&self) -> String {
        self.node.output.lock().unwrap().join("\n")
    }

    /// Waits for the end of the first process.
    pub(crate) fn wait(&mut self) {
        let ended = eventually("the first process to end", || self.node.process.try_wait().unwrap());
        assert!(ended.success(), "{ended}\n{}", self.log());
    }
}

impl Drop for RestartedNode {
    fn drop(&mut self) {
        let Some(pid) = self.pid else { return };
        let process = Pid::from_raw(pid as i32).unwrap();
        let _ = kill_process(process, Signal::TERM);
        let begin = Instant::now();
        while is_running(pid) && begin.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = kill_process(process, Signal::KILL);
    }
}

/// Whether the process exists and has not ended.
pub(crate) fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
