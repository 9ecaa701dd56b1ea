//! A Kubernetes cluster for a measurement: `kubernetes/cluster` with the programs that
//! `make kubernetes-programs` builds.

use super::api::Api;
use anyhow::{Context, anyhow, bail, ensure};
use leno_testkit::{Process, eventually};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tokio::signal::unix::{SignalKind, signal};

/// A running cluster. It is removed when this is dropped.
pub(super) struct Cluster {
    programs: PathBuf,
    folder: PathBuf,
    /// `kubectl proxy`, which is in the control plane's network.
    proxy: Option<Process>,
}

impl Cluster {
    /// Starts one in `folder`, with these options of `cluster up`.
    pub(super) fn start(programs: &Path, folder: &Path, options: &[&str]) -> anyhow::Result<Self> {
        let mut cluster = Self { programs: programs.to_owned(), folder: folder.to_owned(), proxy: None };
        let prefix = format!("leno-bench-{}", std::process::id());
        let prefix = ["up", "--prefix", &prefix];
        println!("starting the cluster in {}", folder.display());
        cluster.run(&[&prefix[..], options].concat())?;
        let kubectl = cluster.programs.join("kubectl");
        let socket = cluster.socket();
        let mut command = cluster.command(&["run"]);
        command.arg(kubectl).arg("proxy").arg(format!("--unix-socket={}", socket.display()));
        let mut proxy = Process::spawn(command.stdin(Stdio::null()))?;
        eventually("kubectl proxy", || socket.exists() || proxy.ensure_running());
        cluster.proxy = Some(proxy);
        Ok(cluster)
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("proxy.sock")
    }

    /// The folder, which has the files of each node.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn api(&self) -> Api {
        Api::new(&self.socket())
    }

    /// The program `cluster` with these arguments.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("cluster"));
        command.arg("--directory").arg(&self.folder).args(arguments);
        command
    }

    /// Runs it, and returns its output.
    pub(super) fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(arguments).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("{}: no cluster", self.programs.display()))?;
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "cluster {}: {}\n{text}{errors}", arguments.join(" "), output.status);
        Ok(text.into_owned())
    }

    /// Waits until the pods of a part of Leno run.
    pub(super) fn rollout(&self, name: &str) -> anyhow::Result<()> {
        self.run(&["kubectl", "rollout", "status", "-n", "leno-system", name, "--timeout=120s"]).map(drop)
    }

    /// Starts a process in the control plane's network.
    pub(super) fn spawn(&self, program: &Path, arguments: &[&str], kubeconfig: &Path) -> anyhow::Result<Process> {
        // `cluster run` has the administrator's configuration in the place of another one.
        let mut command = self.command(&["run", "env"]);
        command.arg(format!("KUBECONFIG={}", kubeconfig.display())).arg(program).args(arguments);
        Ok(Process::spawn(command.stdin(Stdio::null()))?)
    }

    /// Runs a job in the control plane's network, from which the API server, nodes and pods can be
    /// reached: on a thread, with a runtime whose threads are in that network too. A signal ends the
    /// job, so that the cluster is removed.
    pub(super) fn block_on<T: Send>(&self, job: impl AsyncFnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        let proxy = self.proxy.as_ref().context("the cluster runs")?.pid();
        let network = File::open(format!("/proc/{proxy}/ns/net"))?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
                runtime.block_on(async {
                    let (mut terminate, mut interrupt) =
                        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
                    tokio::select! {
                        done = job() => done,
                        _ = terminate.recv() => bail!("terminated"),
                        _ = interrupt.recv() => bail!("interrupted"),
                    }
                })
            });
            thread.join().map_err(|_| anyhow!("the measurement has panicked"))?
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.proxy.take());
        if let Err(error) = self.run(&["down"]) {
            eprintln!("{error:#}");
        }
    }
}
