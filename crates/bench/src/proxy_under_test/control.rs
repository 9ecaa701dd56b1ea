//! `leno control`, and a node that has joined it.

use super::Proxy;
use super::leno::{HOSTILE_NAMESPACE, Listeners};
use crate::affinity::Cores;
use crate::metrics;
use anyhow::{Context, ensure};
use leno_testkit::{Process, free_addresses};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The API of a running `leno control`.
pub(crate) struct Api {
    program: PathBuf,
    /// Of its files.
    data: PathBuf,
    pub address: SocketAddr,
}

impl Api {
    /// The certificate that proves its address.
    pub(crate) fn ca(&self) -> PathBuf {
        self.data.join("api.pem")
    }

    /// Makes a token that may change documents of the hostile tenants' namespace, and of no other.
    pub(crate) fn hostile_token(&self) -> anyhow::Result<String> {
        self.leno(&["token", "create", "--role", "editor", "--namespace", HOSTILE_NAMESPACE])
    }

    /// Runs a `leno` command with the first token. Returns its output.
    fn leno(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let done = Command::new(&self.program)
            .args(arguments)
            .env("LENO_SERVER", format!("https://{}", self.address))
            .env("LENO_TOKEN_FILE", self.data.join("admin.token"))
            .env("LENO_CA", self.ca())
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("{} cannot be started", self.program.display()))?;
        ensure!(done.status.success(), "leno {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        Ok(String::from_utf8(done.stdout)?.trim().to_owned())
    }
}

impl Proxy {
    /// `leno control`, and a `leno node` with one worker thread that has joined it and is a
    /// gateway; both on the proxies' core. Returns when the node is ready for these documents.
    pub(crate) fn leno_with_control(
        program: &Path,
        cores: Cores,
        folder: &Path,
        listeners: Listeners,
        (mesh, documents): (&str, &str),
    ) -> anyhow::Result<(Self, Api)> {
        let [address] = free_addresses();
        let api = Api { program: program.to_owned(), data: folder.join("data"), address };
        let applied = folder.join("documents.yaml").display().to_string();
        fs::write(folder.join("mesh.yaml"), mesh)?;
        fs::write(&applied, documents)?;
        let start = |arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).current_dir(folder).stdin(Stdio::null()).env("LENO_NODE_ACCOUNT", "true");
            cores.spawn_proxy(&mut command, Process::spawn)
        };
        let (api_at, nodes_at) = (address.to_string(), listeners.control.to_string());
        let mut control =
            start(&["control", "--data", "data", "--mesh", "mesh.yaml", "--api", &api_at, "--listen", &nodes_at])?;
        control.wait_until("documents are applied", |_| api.leno(&["apply", "-f", &applied]).is_ok());
        fs::write(folder.join("join"), api.leno(&["token", "join", "--node", "bench", "--gateway"])?)?;
        let node = ["node", "--control", &nodes_at, "--join", "join", "--name", "bench", "--state", "state"];
        let mut node = start(&[&node[..], &["--gateway", "--workers", "1"]].concat())?;
        let admin = metrics::admin(listeners.admin);
        node.wait_until("the node is ready", |_| admin.is_ready());
        Ok((Self { processes: vec![control, node] }, api))
    }
}
