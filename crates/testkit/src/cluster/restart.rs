//! Nodes that hot-restart.

use super::{Node, leno_of_nodes};
use crate::process::{is_running, terminate_pid};
use std::process::{Command, Output};

/// A node whose first process is replaced by others. Dropping it ends them.
pub struct RestartedNode {
    pub node: Node,
    /// The process that has the node, if it is not the first one.
    pub pid: Option<u32>,
}

impl RestartedNode {
    pub fn of(node: Node) -> Self {
        Self { node, pid: None }
    }

    pub fn upgrade_with(&self, arguments: &[&str]) -> Output {
        let admin = format!("unix:{}", self.node.folder.path().join("admin.sock").display());
        Command::new(leno_of_nodes()).arg("upgrade").args(arguments).env("LENO_ADMIN", admin).output().unwrap()
    }

    /// Upgrades the node. Returns the process that has it now.
    pub fn upgrade(&mut self) -> u32 {
        let output = self.upgrade_with(&[]);
        assert!(output.status.success(), "{output:?}\n{}", self.log());
        let text = String::from_utf8(output.stdout).unwrap();
        let pid = text.split(' ').nth(1).and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("{text}"));
        assert!(is_running(pid) && self.pid != Some(pid), "{text}");
        self.pid = Some(pid);
        pid
    }

    /// The reason why the node refuses an upgrade.
    pub fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.upgrade_with(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}\n{}", self.log());
        String::from_utf8(output.stderr).unwrap()
    }

    pub fn log(&self) -> String {
        self.node.process.output()
    }

    /// Waits for the end of the first process.
    pub fn wait(&mut self) {
        let ended = self.node.process.wait();
        assert!(ended.success(), "{ended}\n{}", self.log());
    }
}

impl Drop for RestartedNode {
    fn drop(&mut self) {
        self.pid.into_iter().for_each(terminate_pid);
    }
}
