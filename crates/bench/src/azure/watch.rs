//! Samples the machine and the processes of a scenario once a second while it is measured.

use super::sidecar;
use crate::cpu::{AllProcesses, Memory, Usage};
use crate::metrics;
use leno_testkit::process::children;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(1);
/// Looking at memory takes long where there are many sidecars, so that it may take only such a part
/// of the time.
const MEMORY_SHARE: u32 = 50;
/// The same of asking for metrics, which takes time of the core that serves requests.
const METRICS_SHARE: u32 = 500;
/// The kernel's unit of CPU time in `/proc` (`USER_HZ`, part of its interface), in seconds.
const TICK: f64 = 0.01;

/// When to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampling {
    EverySecond,
    /// Once, when all is over: each look takes some time of the core that sends the load.
    AtTheEnd,
}

/// The processes to watch.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// Starts the instances.
    pub root: u32,
    /// Instances are sidecars with functions behind them.
    pub sidecars: bool,
    /// The admin address of the node.
    pub admin: Option<SocketAddr>,
    /// Where the configurations of sidecars are.
    pub folder: PathBuf,
    pub sampling: Sampling,
    pub ours: OwnProcesses,
}

/// The processes of all scenarios that are measured at the same time. They do not count as a
/// disturbance.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnProcesses(Arc<Mutex<BTreeSet<u32>>>);

impl OwnProcesses {
    fn extend(&self, pids: impl IntoIterator<Item = u32>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(pids);
    }

    fn all(&self) -> Vec<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

/// The state at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Snapshot {
    /// Seconds since the beginning.
    pub at: f64,
    /// What part of each core of the machine was at work since the last look.
    pub cores: Vec<f64>,
    /// Cores that the layer and its proxies used, sidecars included.
    pub mesh: f64,
    /// Cores that the functions used.
    pub functions: f64,
    /// MiB (PSS) of the layer and its proxies, sidecars included, without the functions.
    pub memory_mib: Option<f64>,
    /// Instances there are.
    pub instances: usize,
    /// `None`: not sampled this time, or this scenario has no configuration.
    pub configuration: Option<Configuration>,
}

/// The configuration that sidecars have received since their start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Configuration {
    /// Of the messages, before framing; or of the files.
    pub bytes: u64,
    /// From the control plane to the node, by its own count; or files of sidecars.
    pub messages: u64,
    /// Reports of the node to the control plane.
    pub reports: u64,
}

/// All snapshots, and the totals.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ScenarioUsage {
    #[serde(rename = "looks")]
    pub snapshots: Vec<Snapshot>,
    /// CPU seconds of the layer and its proxies. The time between a process's last sample and its
    /// end is missing.
    pub mesh_s: f64,
    pub functions_s: f64,
    /// Instances that were there and are no more.
    pub ended: usize,
    /// Per cent of one core that went to processes which have nothing to do with this.
    pub others_percent: f64,
    /// Why there are fewer snapshots than there should be.
    #[serde(rename = "trouble")]
    pub error: Option<String>,
}

/// Samples until `stop` is set. If something cannot be read, it is missing, and `error` has the
/// reason.
pub(super) fn watch(subject: &Subject, stop: &AtomicBool) -> ScenarioUsage {
    let mut watched = ScenarioUsage::default();
    if let Err(error) = watch_into(subject, stop, &mut watched) {
        watched.error = Some(format!("{error:#}"));
    }
    watched
}

fn watch_into(subject: &Subject, stop: &AtomicBool, watched: &mut ScenarioUsage) -> anyhow::Result<()> {
    let begin = Instant::now();
    let before = AllProcesses::now()?;
    let mut instances = BTreeSet::<u32>::new();
    let mut cores = cores()?;
    let root = Usage::of(&[subject.root])?;
    let (mut root_s, mut tally) = (0.0, Tally::default());
    tally.look(subject);
    // Usage from before the measurement does not count.
    (tally.sidecars, tally.functions) = (0.0, 0.0);
    let (mut last, mut next_memory, mut next_metrics) = (begin, begin, begin);
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        wait((subject.sampling == Sampling::EverySecond).then(|| begin + PERIOD * turn), stop);
        let now = Instant::now();
        let seconds = now.duration_since(last).as_secs_f64().max(1e-3);
        last = now;
        let (mesh_s, functions_s) = (root_s + tally.sidecars, tally.functions);
        let processes = tally.look(subject);
        root_s = (Usage::of(&[subject.root])? - root).cpu.as_secs_f64();
        let cores_now = self::cores()?;
        let mut memory_mib = None;
        // Once at the end in any case.
        if now >= next_memory || stop.load(Ordering::Relaxed) {
            memory_mib = Some(memory(subject.root, &processes.sidecars));
            next_memory = now + now.elapsed() * MEMORY_SHARE;
        }
        let mut configuration = None;
        let asked = Instant::now();
        if asked >= next_metrics || stop.load(Ordering::Relaxed) {
            configuration = self::configuration(subject);
            next_metrics = asked + asked.elapsed() * METRICS_SHARE;
        }
        watched.snapshots.push(Snapshot {
            at: begin.elapsed().as_secs_f64(),
            cores: cores_now.iter().zip(&cores).map(|(now, before)| (now - before) / seconds).collect(),
            mesh: (root_s + tally.sidecars - mesh_s) / seconds,
            functions: (tally.functions - functions_s) / seconds,
            memory_mib,
            instances: if subject.sidecars { processes.sidecars.len() } else { processes.functions.len() },
            configuration,
        });
        cores = cores_now;
        instances.extend(if subject.sidecars { &processes.sidecars } else { &processes.functions });
        watched.ended = instances.len() - watched.snapshots.last().map_or(0, |snapshot| snapshot.instances);
        subject.ours.extend(processes.sidecars.into_iter().chain(processes.functions));
    }
    (watched.mesh_s, watched.functions_s) = (root_s + tally.sidecars, tally.functions);
    // Helpers and the watched processes are children of this process.
    subject.ours.extend(children(std::process::id()).into_iter().chain([std::process::id(), subject.root]));
    let others = AllProcesses::now()?.others_since(&before, &subject.ours.all());
    watched.others_percent = others.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0;
    Ok(())
}

/// Waits until a time, or until `stop` is set; in small steps, so that stopping takes no second.
fn wait(until: Option<Instant>, stop: &AtomicBool) {
    const STEP: Duration = Duration::from_millis(100);
    while !stop.load(Ordering::Relaxed) {
        let left = until.map_or(STEP, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(STEP));
    }
}

/// CPU time of processes that come and go.
#[derive(Default)]
struct Tally {
    seen: HashMap<u32, f64>,
    /// Seconds so far.
    sidecars: f64,
    functions: f64,
}

#[derive(Default)]
struct Processes {
    sidecars: Vec<u32>,
    functions: Vec<u32>,
}

impl Tally {
    fn look(&mut self, subject: &Subject) -> Processes {
        let mut processes = Processes::default();
        let instances = children(subject.root);
        if subject.sidecars {
            processes.functions = instances.iter().flat_map(|instance| children(*instance)).collect();
            processes.sidecars = instances;
        } else {
            processes.functions = instances;
        }
        self.sidecars += self.used(&processes.sidecars);
        self.functions += self.used(&processes.functions);
        processes
    }

    /// Since the last look at them; of those never seen, since they began.
    fn used(&mut self, pids: &[u32]) -> f64 {
        let mut used = 0.0;
        for pid in pids {
            let Some(now) = cpu_seconds(*pid) else { continue };
            used += now - self.seen.insert(*pid, now).unwrap_or(0.0);
        }
        used
    }
}

fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have spaces and parentheses in it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 * TICK)
}

/// Processes that end while they are looked at count nothing.
fn memory(root: u32, sidecars: &[u32]) -> f64 {
    let all = sidecars.iter().chain([&root]);
    all.filter_map(|pid| Memory::of(&[*pid]).ok()).map(|memory| memory.pss as f64 / 1024.0).sum()
}

/// Seconds that each core was at work.
fn cores() -> anyhow::Result<Vec<f64>> {
    Ok(fs::read_to_string("/proc/stat")?.lines().filter_map(busy).map(|ticks| ticks as f64 * TICK).collect())
}

/// Ticks at work, from a line of `/proc/stat` about one core.
fn busy(line: &str) -> Option<u64> {
    let (core, fields) = line.strip_prefix("cpu")?.split_once(' ')?;
    core.parse::<u32>().ok()?;
    let fields: Vec<u64> = fields.split_ascii_whitespace().filter_map(|field| field.parse().ok()).collect();
    // user, nice, system; then idle and waiting; then interrupts of two kinds.
    let [user, nice, system, _, _, hard, soft, ..] = fields[..] else { return None };
    Some(user + nice + system + hard + soft)
}

fn configuration(subject: &Subject) -> Option<Configuration> {
    match subject.admin {
        Some(admin) => counted(&metrics::get(admin)?),
        None if subject.sidecars => {
            let (messages, bytes) = sidecar::configured(&subject.folder);
            Some(Configuration { bytes, messages, reports: 0 })
        }
        None => None,
    }
}

/// The control plane's own count.
fn counted(text: &str) -> Option<Configuration> {
    let count = |name: &str| metrics::sum(text, &format!("leno_control_{name}_total"), "");
    Some(Configuration { bytes: count("bytes")?, messages: count("messages")?, reports: count("reports")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_systems_texts_are_understood() {
        assert_eq!(busy("cpu1 100 20 30 4000 50 6 7 8 0 0"), Some(163));
        assert_eq!(busy("cpu  100 20 30 4000 50 6 7 8 0 0"), None);
        assert_eq!(busy("intr 5"), None);
        let text = "leno_control_messages_total{node=\"a\"} 5\nleno_control_bytes_total{node=\"a\"} 101\nleno_control_reports_total{node=\"a\"} 32\n";
        assert_eq!(counted(text), Some(Configuration { bytes: 101, messages: 5, reports: 32 }));
        assert_eq!(counted(""), None);
    }

    #[test]
    fn children_are_found_and_their_time_is_counted_once() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        let mut tally = Tally::default();
        let own = [std::process::id()];
        let first = tally.used(&own);
        assert!(tally.used(&own) <= first.max(1.0));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(tally.used(&[child.id()]), 0.0);
    }
}
