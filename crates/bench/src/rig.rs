//! Everything around the proxies: a folder, ports, the upstream, the sinks, and the load.

use crate::affinity::Cores;
use crate::cpu::{AllProcesses, Memory, Usage};
use crate::load::{Outcome, Plan};
use crate::material::Material;
use crate::proxy_under_test::Programs;
use anyhow::{Context, ensure};
use leno_testkit::free_addresses;
use leno_testkit::process::{descendants, terminate};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Lives as long as a measurement; everything that it started ends with it.
pub(crate) struct Rig {
    pub cores: Cores,
    pub programs: Programs,
    pub material: Material,
    pub upstream: SocketAddr,
    /// The same upstream, by HTTP/2 without TLS.
    pub upstream_http2: SocketAddr,
    pub otlp: SocketAddr,
    pub limits: SocketAddr,
    helpers: Vec<Child>,
    /// Processes that make noise on purpose; they do not count as a disturbance.
    noise: RefCell<Vec<u32>>,
    folder: tempfile::TempDir,
}

/// The load's outcome in one run, and the proxy's usage meanwhile.
pub(crate) struct Observation {
    pub outcome: Outcome,
    pub usage: Usage,
    /// At the end of the run.
    pub memory: Memory,
    /// CPU time that went to processes that have nothing to do with the measurement.
    pub others: Duration,
}

impl Rig {
    pub(crate) fn set_up(programs: Programs) -> anyhow::Result<Self> {
        let cores = Cores::take()?;
        let folder = tempfile::Builder::new().prefix("leno-bench-").tempdir()?;
        let material = Material::make(folder.path())?;
        let [upstream, upstream_http2, otlp, limits] = free_addresses();
        let mut rig = Self {
            cores,
            programs,
            material,
            upstream,
            upstream_http2,
            otlp,
            limits,
            helpers: Vec::new(),
            noise: RefCell::default(),
            folder,
        };
        rig.help(&["upstream", "--listen", &upstream.to_string(), "--http2", &upstream_http2.to_string()])?;
        rig.help(&["sinks", "--otlp", &otlp.to_string(), "--limits", &limits.to_string()])?;
        Ok(rig)
    }

    /// Where configurations and logs of proxies go.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts this program with other arguments, on the load's core, and waits until it reports
    /// that it is ready.
    fn help(&mut self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{arguments:?} cannot be started"))?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("it has an output")?;
        self.helpers.push(child);
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line == "ready\n", "{arguments:?} did not start");
        Ok(())
    }

    /// Lowers the priority of this rig's helpers, except for the upstream.
    pub(crate) fn lower_priority_of_helpers(&self) -> anyhow::Result<()> {
        for helper in self.helpers.iter().skip(1) {
            let status = Command::new("chrt").args(["--idle", "--pid", "0", &helper.id().to_string()]).status();
            ensure!(status.context("there is no chrt")?.success(), "a helper's priority cannot be lowered");
        }
        Ok(())
    }

    /// Starts one more upstream for traffic that only makes noise, of the lowest priority, with so
    /// many interim responses before each answer.
    pub(crate) fn another_upstream(&self, interim: usize) -> anyhow::Result<(SocketAddr, Noise)> {
        let [address] = free_addresses();
        let arguments = ["upstream", "--listen", &address.to_string(), "--interim", &interim.to_string()];
        Ok((address, self.start_noise(&arguments, "ready")?))
    }

    /// Starts a process of the lowest priority that is two registries and obeys lines.
    pub(crate) fn slow_registries(&self) -> anyhow::Result<([SocketAddr; 2], Noise)> {
        let [first] = free_addresses();
        let addresses = [first, SocketAddr::from(([127, 0, 0, 2], first.port()))];
        let [one, other] = addresses.map(|address| address.to_string());
        Ok((addresses, self.start_noise(&["slow-registry", "--listen", &one, "--listen", &other], "ready")?))
    }

    /// Starts a load of the lowest priority beside the measured one, and waits until it counts its
    /// answers. Dropping the result ends it.
    pub(crate) fn make_noise(&self, plan: &Plan) -> anyhow::Result<Noise> {
        let mut noise = self.spawn_noise(&["load"])?;
        let mut input = noise.child.stdin.take().context("the load has an input")?;
        input.write_all(serde_json::to_string(plan)?.as_bytes())?;
        drop(input);
        wait_for(&mut noise.output, "begin")?;
        Ok(noise)
    }

    /// Starts this program with other arguments and the lowest priority, and waits for a word.
    fn start_noise(&self, arguments: &[&str], word: &str) -> anyhow::Result<Noise> {
        let mut noise = self.spawn_noise(arguments)?;
        wait_for(&mut noise.output, word).with_context(|| format!("{arguments:?}"))?;
        Ok(noise)
    }

    fn spawn_noise(&self, arguments: &[&str]) -> anyhow::Result<Noise> {
        let mut child = lowest_priority()?
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{arguments:?} cannot be started"))?;
        let output = BufReader::new(child.stdout.take().context("it has an output")?);
        self.noise.borrow_mut().push(child.id());
        Ok(Noise { child, output })
    }

    /// Runs the load, and looks at these processes when it begins and when it ends to count.
    pub(crate) fn observe(&self, plan: &Plan, proxy: &[u32]) -> anyhow::Result<Observation> {
        let (mut child, mut output) = start_load(plan)?;
        let mut watch = || {
            wait_for(&mut output, "begin")?;
            let (usage, everybody) = (Usage::of(proxy)?, AllProcesses::now()?);
            wait_for(&mut output, "end")?;
            let usage = Usage::of(proxy)? - usage;
            let mut ours: Vec<u32> = self.helpers.iter().map(Child::id).collect();
            ours.extend_from_slice(proxy);
            ours.extend_from_slice(&self.noise.borrow());
            ours.extend([child.id(), std::process::id()]);
            // Instances of a measured node.
            ours.extend(proxy.iter().flat_map(|pid| descendants(*pid)));
            let others = AllProcesses::now()?.others_since(&everybody, &ours);
            let memory = Memory::of(proxy)?;
            let mut line = String::new();
            output.read_line(&mut line)?;
            let outcome = serde_json::from_str(&line).context("the load said nothing of its outcome")?;
            Ok(Observation { outcome, usage, memory, others })
        };
        let observed = watch();
        if observed.is_err() {
            let _ = child.kill();
        }
        child.wait()?;
        observed
    }
}

/// A process beside the measured ones. Dropping it ends the process.
pub(crate) struct Noise {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Noise {
    /// Of a process that obeys lines: sends one and waits for its answer.
    pub(crate) fn tell(&mut self, line: &str) -> anyhow::Result<String> {
        writeln!(self.child.stdin.as_mut().context("it has an input")?, "{line}")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        ensure!(!answer.is_empty(), "no answer to `{line}`");
        Ok(answer.trim().to_owned())
    }

    /// For a load: waits for its end. Returns its outcome.
    pub(crate) fn outcome(mut self) -> anyhow::Result<Outcome> {
        wait_for(&mut self.output, "end")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).context("the noise said nothing of its outcome")
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        terminate(&mut self.child);
    }
}

/// This program under `SCHED_IDLE`: any other process that wakes up on its core runs at once.
/// Niceness is not enough, since the nicest processes still take their turns to the end.
fn lowest_priority() -> anyhow::Result<Command> {
    let mut command = Command::new("chrt");
    command.args(["--idle", "0"]).arg(std::env::current_exe()?);
    Ok(command)
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.helpers.iter_mut().for_each(terminate);
    }
}

/// Starts the load. Its output is the words `begin` and `end`, and the outcome.
pub(crate) fn start_load(plan: &Plan) -> anyhow::Result<(Child, BufReader<ChildStdout>)> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("load")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the load cannot be started")?;
    let mut input = child.stdin.take().context("the load has an input")?;
    input.write_all(serde_json::to_string(plan)?.as_bytes())?;
    let output = child.stdout.take().context("the load has an output")?;
    Ok((child, BufReader::new(output)))
}

/// Reads a line, which must be this word.
pub(crate) fn wait_for(output: &mut impl BufRead, word: &str) -> anyhow::Result<()> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(line.trim() == word, "the load ended before `{word}`");
    Ok(())
}
