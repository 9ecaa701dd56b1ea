//! `leno control`, and a node that has joined it.

use super::leno::{HOSTILE_NAMESPACE, Listeners};
use super::{Proxy, TIMEOUT, is_ready};
use crate::affinity::Cores;
use crate::ports::free_addresses;
use anyhow::{Context, ensure};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

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

    /// Runs a `leno` command with the first token; what it prints.
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
    /// `leno control`, and a `leno node` with one worker thread that has joined it and is a gateway; both on the proxies' core. Returns when the node is
    /// ready for these documents.
    pub(crate) fn leno_with_control(
        program: &Path,
        cores: Cores,
        folder: &Path,
        listeners: Listeners,
        (mesh, documents): (&str, &str),
    ) -> anyhow::Result<(Self, Api)> {
        let [address] = free_addresses()?;
        let api = Api { program: program.to_owned(), data: folder.join("data"), address };
        let applied = folder.join("documents.yaml").display().to_string();
        fs::write(folder.join("mesh.yaml"), mesh)?;
        fs::write(&applied, documents)?;
        let mut proxy = Self { children: Vec::new() };
        let (api_at, nodes_at) = (address.to_string(), listeners.control.to_string());
        let control = ["control", "--data", "data", "--mesh", "mesh.yaml", "--api", &api_at, "--listen", &nodes_at];
        proxy.start_leno(program, cores, (folder, "control"), &control)?;
        proxy.wait_for((folder, "control"), || api.leno(&["apply", "-f", &applied]).map(drop))?;
        fs::write(folder.join("join"), api.leno(&["token", "join", "--node", "bench", "--gateway"])?)?;
        let node = ["node", "--control", &nodes_at, "--join", "join", "--name", "bench", "--state", "state"];
        proxy.start_leno(program, cores, (folder, "node"), &[&node[..], &["--gateway", "--workers", "1"]].concat())?;
        proxy.wait_for((folder, "node"), || {
            ensure!(is_ready(listeners.admin), "the node is not ready");
            Ok(())
        })?;
        Ok((proxy, api))
    }

    /// Starts a `leno` command in this folder, which logs to a file of this name.
    fn start_leno(
        &mut self,
        program: &Path,
        cores: Cores,
        (folder, name): (&Path, &str),
        arguments: &[&str],
    ) -> anyhow::Result<()> {
        let log = File::create(folder.join(name).with_extension("out"))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env("LENO_NODE_ACCOUNT", "true");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.children.push(cores.spawn_proxy(&mut command)?);
        Ok(())
    }

    /// Tries until it succeeds.
    fn wait_for(
        &mut self,
        (folder, name): (&Path, &str),
        again: impl Fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let begin = Instant::now();
        let log = || fs::read_to_string(folder.join(name).with_extension("out")).unwrap_or_default();
        while let Err(error) = again() {
            self.ensure_running().with_context(log)?;
            ensure!(begin.elapsed() < TIMEOUT, "leno {name} is not ready after {TIMEOUT:?}: {error:#}\n{}", log());
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}
