//! The processes that are measured: the real programs, configured from the same list of policies.

pub(crate) mod control;
pub(crate) mod envoy;
pub(crate) mod leno;

use crate::affinity::Cores;
use crate::metrics;
use anyhow::{Context, ensure};
use leno_testkit::process::terminate;
use leno_testkit::{Process, mesh};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Processes that stand between load and upstream. They are ended when this is dropped.
pub(crate) struct Proxy {
    processes: Vec<Process>,
}

/// Where the programs are.
pub(crate) struct Programs {
    pub envoy: Option<PathBuf>,
    pub leno: PathBuf,
}

impl Proxy {
    /// An Envoy with one worker thread, on the proxies' core, for each of these configuration
    /// files.
    pub(crate) fn envoys(program: &Path, cores: Cores, configurations: &[PathBuf]) -> anyhow::Result<Self> {
        let mut proxy = Self { processes: Vec::new() };
        for path in configurations {
            let mut command = Command::new(program);
            command
                .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warn", "--config-path"])
                .arg(path);
            command.stdin(Stdio::null());
            proxy.processes.push(cores.spawn_proxy(&mut command, Process::spawn)?);
        }
        Ok(proxy)
    }

    /// `leno up` with one worker thread, on the proxies' core, on the documents in this folder.
    /// Returns when it is ready.
    pub(crate) fn leno(program: &Path, cores: Cores, folder: &Path, admin: SocketAddr) -> anyhow::Result<Self> {
        let mut proxy = Self::spawn_leno(program, cores, folder)?;
        let admin = metrics::admin(admin);
        for process in &mut proxy.processes {
            process.wait_until("the node is ready", |_| admin.is_ready());
        }
        Ok(proxy)
    }

    /// The same, without waiting until it is ready.
    pub(crate) fn spawn_leno(program: &Path, cores: Cores, folder: &Path) -> anyhow::Result<Self> {
        let mut command = mesh::up(Command::new(program), folder);
        command.args(["--workers", "1"]).stdin(Stdio::null());
        // The load uses an instance's credential, and programs may be where only this account can
        // reach them.
        command.env("LENO_ANY_CALLER", "true").env("LENO_NODE_ACCOUNT", "true");
        Ok(Self { processes: vec![cores.spawn_proxy(&mut command, Process::spawn)?] })
    }

    /// The processes whose CPU time and memory are the proxy's.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
    }

    /// Panics with the output of a process that has ended.
    pub(crate) fn ensure_running(&mut self) {
        for process in &mut self.processes {
            process.ensure_running();
        }
    }

    /// The output of the processes.
    pub(crate) fn output(&self) -> String {
        self.processes.iter().map(Process::output).collect()
    }
}

/// This program as a node (`leno-bench node`), on the proxies' core, steered by lines.
pub(crate) struct Helper {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Returns when the process reports that it is ready.
    pub(crate) fn start(cores: Cores, arguments: &[&str]) -> anyhow::Result<Self> {
        Self::start_under(cores, &[], arguments)
    }

    /// The same, run by another program with these arguments, which becomes the process.
    pub(crate) fn start_under(cores: Cores, wrapper: &[String], arguments: &[&str]) -> anyhow::Result<Self> {
        let this = std::env::current_exe()?;
        let mut command = match wrapper.split_first() {
            Some((program, options)) => {
                let mut command = Command::new(program);
                command.args(options).arg(this);
                command
            }
            None => Command::new(this),
        };
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = cores.spawn_proxy(&mut command, Command::spawn)?;
        let output = BufReader::new(child.stdout.take().context("it has an output")?);
        let mut helper = Self { child, output };
        helper.hear("ready")?;
        Ok(helper)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line.
    pub(crate) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        let input = self.child.stdin.as_mut().context("it has an input")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// Waits for a line.
    pub(crate) fn hear(&mut self, expected: &str) -> anyhow::Result<()> {
        let line = self.hear_line()?;
        ensure!(line == expected, "the node says `{line}` instead of `{expected}`");
        Ok(())
    }

    /// Waits for whatever line comes.
    pub(crate) fn hear_line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Sends a line and waits for its answer.
    pub(crate) fn tell(&mut self, line: &str, expected: &str) -> anyhow::Result<()> {
        self.say(line)?;
        self.hear(expected)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        terminate(&mut self.child);
    }
}

impl Programs {
    /// Without a path: Envoy where `scripts/envoy.sh` puts it, and `leno` beside this program.
    pub(crate) fn find(envoy: Option<&Path>, leno: Option<&Path>) -> anyhow::Result<Self> {
        let envoy = match envoy {
            Some(path) => Some(path.to_owned()),
            None => install_envoy(),
        };
        // The programs start in other working directories.
        let envoy =
            envoy.map(|path| path.canonicalize().with_context(|| format!("no {}", path.display()))).transpose()?;
        Ok(Self { envoy, leno: Self::find_leno(leno)? })
    }

    /// Leno's program alone.
    pub(crate) fn find_leno(leno: Option<&Path>) -> anyhow::Result<PathBuf> {
        let leno = match leno {
            Some(path) => path.to_owned(),
            None => std::env::current_exe()?.with_file_name("leno"),
        };
        ensure!(
            leno.is_file(),
            "there is no {}: `cargo build --profile dist -p leno` makes target/dist/leno",
            leno.display()
        );
        Ok(leno.canonicalize()?)
    }

    /// Envoy's report of its version.
    pub(crate) fn envoy_version(&self) -> Option<String> {
        let output = Command::new(self.envoy.as_ref()?).arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).split_whitespace().last()?.to_owned())
    }
}

/// `None`: it cannot be installed. The script has written the reason.
fn install_envoy() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/envoy.sh")).stderr(Stdio::inherit()).output().ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    (output.status.success() && path.is_file()).then_some(path)
}
