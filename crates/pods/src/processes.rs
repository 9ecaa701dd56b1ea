//! The processes of pods, by which the networks of running pods are found.

use crate::error::{CaptureError, Explain};
use crate::network::PodNetwork;
use leno_model::PodUid;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The oldest process of each pod: the one that holds the network for the others. Many pods are often
/// looked for at once, so one look at all processes serves all of them.
#[derive(Debug, Default)]
pub(crate) struct PodProcesses(Mutex<ProcessTable>);

#[derive(Debug, Default)]
struct ProcessTable {
    processes: HashMap<PodUid, u32>,
    /// When the last look at all processes began.
    since: Option<Instant>,
}

impl PodProcesses {
    /// The network of a pod that runs.
    pub(crate) fn network(&self, uid: &PodUid) -> Result<PodNetwork, CaptureError> {
        let asked = Instant::now();
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The process may have ended, and its number may be another one's.
        let is_there = |process: &u32| groups(*process).and_then(|groups| pod_of(&groups)).as_ref() == Some(uid);
        let known = |table: &ProcessTable| table.processes.get(uid).copied().filter(is_there);
        let process = match known(&table) {
            Some(process) => Some(process),
            // Another thread has looked while this one waited for the lock.
            None if table.since.is_some_and(|since| since >= asked) => None,
            None => {
                let since = Some(Instant::now());
                *table = ProcessTable { processes: look()?, since };
                known(&table)
            }
        };
        let process = process.ok_or_else(|| CaptureError::NoProcess(uid.clone()))?;
        drop(table);
        PodNetwork::at(Path::new(&format!("/proc/{process}/ns/net")))
    }
}

/// The oldest process of each pod of the machine.
fn look() -> Result<HashMap<PodUid, u32>, CaptureError> {
    let mut oldest: HashMap<PodUid, (u64, u32)> = HashMap::new();
    for entry in fs::read_dir("/proc").explain("/proc")? {
        let Ok(entry) = entry else { continue };
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process may end at any time.
        let Some(uid) = groups(process).and_then(|groups| pod_of(&groups)) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some(started) = start_time(&stat) else { continue };
        let known = oldest.entry(uid).or_insert((started, process));
        *known = (*known).min((started, process));
    }
    Ok(oldest.into_iter().map(|(uid, (_, process))| (uid, process)).collect())
}

fn groups(process: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{process}/cgroup")).ok()
}

/// The pod of control groups, as `/proc/PID/cgroup` lists them. Container runtimes name the pod's
/// group `podUID`, or by systemd `kubepods-…-podUID.slice` with `_` in place of `-`.
fn pod_of(groups: &str) -> Option<PodUid> {
    let uid = |part: &str| match part.strip_suffix(".slice") {
        None => part.strip_prefix("pod")?.parse().ok(),
        Some(slice) => {
            let (class, uid) = slice.rsplit_once("pod")?;
            (class.is_empty() || class.ends_with('-')).then(|| uid.replace('_', "-").parse().ok())?
        }
    };
    groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).flat_map(|path| path.split('/')).find_map(uid)
}

/// When a process was started, in clock ticks after the machine was: the 22nd field of
/// `/proc/PID/stat`. The second is a name in parentheses, which may contain anything.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6f0e6d1c-2a54-4c2b-9c43-0a3f5d0f7b11";

    #[test]
    fn pods_are_known_by_the_groups_of_all_runtimes() {
        let uid: PodUid = UID.parse().unwrap();
        let under = UID.replace('-', "_");
        for groups in [
            // containerd, cgroupfs driver, v1 and v2.
            format!("12:memory:/kubepods/burstable/pod{UID}/4fd1\n1:name=systemd:/kubepods/burstable/pod{UID}/4fd1\n"),
            format!("0::/kubepods/besteffort/pod{UID}/4fd1\n"),
            format!("0::/kubepods/pod{UID}/4fd1\n"),
            // containerd and CRI-O, systemd driver.
            format!("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-4f.scope\n"),
            format!("0::/kubepods.slice/kubepods-pod{under}.slice/crio-4fd1.scope/container\n"),
            format!("3:cpu:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{under}.slice:cri-containerd:4f\n")
                .replace(".slice:cri", ".slice/cri"),
            // From within a control group namespace.
            format!("0::/../../kubepods/pod{UID}/4fd1\n"),
        ] {
            assert_eq!(pod_of(&groups).as_ref(), Some(&uid), "{groups}");
        }
    }

    #[test]
    fn other_groups_are_not_a_pods() {
        let uid: PodUid = UID.parse().unwrap();
        let under = UID.replace('-', "_");
        for groups in [
            "0::/init.scope\n".to_owned(),
            String::new(),
            format!("0::/kubepods/pod{UID}0/4fd1\n"),
            format!("0::/kubepods/burstable/xpod{UID}\n"),
            format!("0::/kubepods.slice/kubepods-pod{under}x.slice/crio-1.scope\n"),
            format!("0::/kubepods.slice/evilpod{under}.slice/crio-1.scope\n"),
            format!("pod{UID}"),
        ] {
            assert_ne!(pod_of(&groups).as_ref(), Some(&uid), "{groups}");
        }
    }

    #[test]
    fn names_of_processes_hide_no_start_time() {
        let fields = (3..=52).map(|number| if number == 22 { "4711".to_owned() } else { "1".to_owned() });
        let fields = fields.collect::<Vec<_>>().join(" ");
        assert_eq!(start_time(&format!("7 (a) S) 1 (x) {fields}")), Some(4711));
        assert_eq!(start_time("7 (a)"), None);
    }
}
