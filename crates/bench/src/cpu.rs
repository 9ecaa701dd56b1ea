//! What processes used, as the kernel counts it.

use anyhow::Context;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use std::collections::HashMap;
use std::fs;
use std::ops::Sub;
use std::time::Duration;

/// The kernel's unit in `/proc/PID/stat` (`USER_HZ`, part of its interface).
const TICK: Duration = Duration::from_millis(10);

/// What some processes, with all their threads, used since they began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// Time on a core, in user mode and in the kernel, to the nanosecond. The kernel charges its
    /// work on a socket to the process that it interrupted.
    pub cpu: Duration,
    /// Of it in user mode, to 10 ms.
    pub user: Duration,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Times they were made to wait.
    pub involuntary: u64,
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            user: self.user.saturating_sub(earlier.user),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

impl Usage {
    /// Of these processes, together, with the threads that ended in the meantime; only their
    /// switches are missing.
    pub(crate) fn of(pids: &[u32]) -> anyhow::Result<Self> {
        let mut sum = Self::default();
        for pid in pids {
            sum.cpu += on_cpu(*pid).with_context(|| format!("process {pid} is gone"))?;
            let threads =
                fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))?;
            for thread in threads {
                let path = thread?.path();
                // A thread may end between the listing and the reading.
                let Ok(status) = fs::read_to_string(path.join("status")) else { continue };
                let (voluntary, involuntary) = switches(&status).context("status has another form here")?;
                sum.voluntary += voluntary;
                sum.involuntary += involuntary;
            }
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            sum.user += TICK * times(&stat).context("stat has another form here")?.user as u32;
        }
        Ok(sum)
    }
}

/// Resident memory in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Every page that is mapped.
    pub rss: u64,
    /// Pages shared with others count by the share.
    pub pss: u64,
    /// Pages that no file has.
    pub anonymous: u64,
}

impl Memory {
    /// Of these processes, together.
    pub(crate) fn of(pids: &[u32]) -> anyhow::Result<Self> {
        let mut sum = Self::default();
        for pid in pids {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let kib = |name| kib(&text, name).context("smaps_rollup has another form here");
            sum.rss += kib("Rss:")?;
            sum.pss += kib("Pss:")?;
            sum.anonymous += kib("Anonymous:")?;
        }
        Ok(sum)
    }
}

/// The usage of all processes, to find those that disturbed a measurement.
pub(crate) struct AllProcesses {
    processes: HashMap<u32, u64>,
    /// Ticks that found a core at work, of all cores.
    busy: u64,
    /// Time that the hypervisor gave to other machines, in ticks.
    stolen: u64,
}

impl AllProcesses {
    pub(crate) fn now() -> anyhow::Result<Self> {
        let mut processes = HashMap::new();
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let Some(times) = times(&stat) else { continue };
            processes.insert(pid, times.user + times.system + times.children);
        }
        let (busy, stolen) = cores(&fs::read_to_string("/proc/stat")?).context("/proc/stat has another form here")?;
        Ok(Self { processes, busy, stolen })
    }

    /// CPU time since `earlier` that went to processes that are not in `ours`, and to other
    /// machines of the same host.
    ///
    /// Counted in two ways, of which the smaller holds: process by process, where one that ended
    /// shows in its parent, with all that it ever used; and by the ticks that found a core busy,
    /// less what `ours` used, where short work between ticks does not show.
    pub(crate) fn others_since(&self, earlier: &Self, ours: &[u32]) -> Duration {
        let since = |pid: &u32, used: &u64| used.saturating_sub(earlier.processes.get(pid).copied().unwrap_or(0));
        let (mut mine, mut others) = (0, 0);
        for (pid, used) in &self.processes {
            *(if ours.contains(pid) { &mut mine } else { &mut others }) += since(pid, used);
        }
        let by_ticks = self.busy.saturating_sub(earlier.busy).saturating_sub(mine);
        TICK * (others.min(by_ticks) + self.stolen.saturating_sub(earlier.stolen)) as u32
    }
}

struct Times {
    user: u64,
    system: u64,
    /// Of children that ended and were waited for.
    children: u64,
}

/// From `/proc/PID/stat`, in ticks.
fn times(stat: &str) -> Option<Times> {
    // The name may have spaces and parentheses in it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    let mut next = || fields.next().flatten();
    Some(Times { user: next()?, system: next()?, children: next()? + next()? })
}

/// By the process's own clock, to the nanosecond.
fn on_cpu(pid: u32) -> anyhow::Result<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.try_into()?))?;
    Ok(clock.now()?.into())
}

/// From `/proc/PID/status`: voluntary, involuntary.
fn switches(status: &str) -> Option<(u64, u64)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((field("voluntary_ctxt_switches:")?, field("nonvoluntary_ctxt_switches:")?))
}

fn kib(rollup: &str, name: &str) -> Option<u64> {
    rollup.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse().ok())
}

/// From `/proc/stat`, in ticks, of all cores: busy, stolen.
fn cores(stat: &str) -> Option<(u64, u64)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let fields: Vec<u64> = fields.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    // user, nice, system; then idle and waiting; then interrupts of two kinds; then stolen.
    let [user, nice, system, _, _, hard, soft, stolen, ..] = fields[..] else { return None };
    Some((user + nice + system + hard + soft, stolen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_understood() {
        let stat = "123 (a) (b c) S 1 2 3 0 -1 4194560 10 0 0 0 17 4 2 1 20 0 5 0 100 0 0";
        let found = times(stat).unwrap();
        assert_eq!((found.user, found.system, found.children), (17, 4, 3));
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(switches(status), Some((12, 3)));
        let rollup = "00400000-7fff ---p 00000000 00:00 0 [rollup]\nRss:  5120 kB\nPss:\t 77 kB\nPss_Dirty: 9 kB\n";
        assert_eq!((kib(rollup, "Rss:"), kib(rollup, "Pss:")), (Some(5120), Some(77)));
        assert_eq!(cores("cpu  1 2 3 4 5 6 7 34 0 0\ncpu0 1"), Some((1 + 2 + 3 + 6 + 7, 34)));
    }

    #[test]
    fn threads_that_ended_count() {
        let pids = [std::process::id()];
        let before = Usage::of(&pids).unwrap().cpu;
        let used = std::thread::spawn(|| {
            let begin = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime) - begin;
            while Duration::try_from(used()).unwrap() < Duration::from_millis(5) {}
            Duration::try_from(used()).unwrap()
        });
        let used = used.join().unwrap();
        assert!(Usage::of(&pids).unwrap().cpu - before >= used);
    }

    #[test]
    fn this_process_has_used_something() {
        let pids = [std::process::id()];
        assert!(Usage::of(&pids).unwrap().cpu > Duration::ZERO);
        assert!(Memory::of(&pids).unwrap().rss >= Memory::of(&pids).unwrap().pss / 2);
        assert!(Usage::of(&[u32::MAX]).is_err());
    }

    #[test]
    fn only_others_disturb() {
        let everybody = |processes: &[(u32, u64)], busy, stolen| AllProcesses {
            processes: processes.iter().copied().collect(),
            busy,
            stolen,
        };
        let earlier = everybody(&[(1, 100), (2, 50)], 1000, 5);
        let later = everybody(&[(1, 110), (2, 90), (3, 7)], 1060, 6);
        assert_eq!(later.others_since(&earlier, &[2]), TICK * (10 + 7 + 1));
        assert_eq!(later.others_since(&later, &[2]), Duration::ZERO);
        // A process that began long ago ended, and its parent has all of it now; the cores were not
        // that busy.
        let reaped = everybody(&[(1, 4000), (2, 90)], 1050, 5);
        assert_eq!(reaped.others_since(&earlier, &[2]), TICK * 10);
    }
}
