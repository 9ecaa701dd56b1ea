//! Processes that are measured, and what they have started.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

/// The longest that a process may take to end: a node drains, and gives its instances their time, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Processes that a process has started, and that still are.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let texts = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    texts
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// A process and its descendants. A jail's program is below the jail's first process, which is below the jailer.
pub(crate) fn tree(pid: u32) -> Vec<u32> {
    [vec![pid], descendants(pid)].concat()
}

/// The same, and what those have started.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    children(pid).into_iter().flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

/// Whether a process is there and has not ended.
pub(crate) fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

/// Asks a process to end, and makes it end if it does not; the instances that it then leaves behind are ended too.
pub(crate) fn end(child: &mut Child) {
    let root = child.id();
    let mut instances = children(root);
    if let Some(pid) = Pid::from_raw(root as i32) {
        // It fails if the process is gone, which is what is wanted.
        let _ = kill_process(pid, Signal::TERM);
    }
    let begin = Instant::now();
    while begin.elapsed() < TIMEOUT && child.try_wait().ok().flatten().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Some may have been started since.
    instances.extend(children(root));
    let _ = child.kill();
    let _ = child.wait();
    for instance in instances.into_iter().filter(|instance| is_running(*instance)) {
        // Each of them is the leader of a group.
        if let Some(group) = Pid::from_raw(instance as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn who_ends_leaves_no_instance_behind() {
        // It ends at SIGTERM, and its child, which leads a group, does not.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' & wait"]);
        let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let instance: u32 = line.trim().parse().unwrap();
        assert!(is_running(instance) && children(child.id()).contains(&instance));
        end(&mut child);
        let begin = Instant::now();
        while is_running(instance) {
            assert!(begin.elapsed() < TIMEOUT, "the instance was left behind");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
