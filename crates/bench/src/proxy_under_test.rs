//! The processes that are measured: the real programs, configured from the same list of policies.

pub(crate) mod control;
pub(crate) mod envoy;
pub(crate) mod leno;

use crate::affinity::Cores;
use crate::{metrics, processes};
use anyhow::{Context, bail, ensure};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest that a process may take to start.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Processes that stand between load and upstream. They are ended when this is dropped.
pub(crate) struct Proxy {
    children: Vec<Child>,
}

/// Where the programs are.
pub(crate) struct Programs {
    pub envoy: Option<PathBuf>,
    pub leno: PathBuf,
}

impl Proxy {
    /// An Envoy with one worker thread, on the proxies' core, for each of these configuration files.
    pub(crate) fn envoys(program: &Path, cores: Cores, configurations: &[PathBuf]) -> anyhow::Result<Self> {
        let mut proxy = Self { children: Vec::new() };
        for path in configurations {
            let log = File::create(path.with_extension("out"))?;
            let mut command = Command::new(program);
            command
                .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warn", "--config-path"])
                .arg(path);
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            proxy.children.push(cores.spawn_proxy(&mut command)?);
        }
        Ok(proxy)
    }

    /// `leno up` with one worker thread, on the proxies' core, on the documents in this folder. Returns when it is ready.
    pub(crate) fn leno(program: &Path, cores: Cores, folder: &Path, admin: SocketAddr) -> anyhow::Result<Self> {
        let log = File::create(folder.with_extension("out"))?;
        let mut command = Command::new(program);
        command.arg("up").arg(folder).args(["--workers", "1"]).current_dir(folder);
        // The load uses an instance's credential, and programs may be where only this account can reach them.
        command.env("LENO_ANY_CALLER", "true").env("LENO_NODE_ACCOUNT", "true");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut proxy = Self { children: vec![cores.spawn_proxy(&mut command)?] };
        let begin = Instant::now();
        while !is_ready(admin) {
            proxy
                .ensure_running()
                .with_context(|| fs::read_to_string(folder.with_extension("out")).unwrap_or_default())?;
            ensure!(begin.elapsed() < TIMEOUT, "leno is not ready after {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(proxy)
    }

    /// The processes whose CPU time and memory are the proxy's.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// An error if a process has ended.
    pub(crate) fn ensure_running(&mut self) -> anyhow::Result<()> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait()? {
                bail!("the proxy (process {}) ended with {status}", child.id());
            }
        }
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for child in &mut self.children {
            processes::end(child);
        }
    }
}

/// This program as a node (`leno-bench node`), on the proxies' core, steered by lines.
pub(crate) struct Helper {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Returns when it says that it is ready.
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
        let mut child = cores.spawn_proxy(&mut command)?;
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
        processes::end(&mut self.child);
    }
}

fn is_ready(admin: SocketAddr) -> bool {
    metrics::get(admin, "/readyz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

impl Programs {
    /// Envoy where `scripts/envoy.sh` puts it, unless told; `leno` beside this program, unless told.
    pub(crate) fn find(envoy: Option<&Path>, leno: Option<&Path>) -> anyhow::Result<Self> {
        let envoy = match envoy {
            Some(path) => Some(path.to_owned()),
            None => install_envoy(),
        };
        // They are started in folders of their own.
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

    /// As Envoy says it.
    pub(crate) fn envoy_version(&self) -> Option<String> {
        let output = Command::new(self.envoy.as_ref()?).arg("--version").output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).split_whitespace().last()?.to_owned())
    }
}

/// `None`: it cannot be had, and the script said why.
fn install_envoy() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/envoy.sh")).stderr(Stdio::inherit()).output().ok()?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    (output.status.success() && path.is_file()).then_some(path)
}
