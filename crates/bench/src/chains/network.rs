//! Counters of the kernel's network stack. They cover the whole machine, so it should do nothing
//! else.

use anyhow::Context;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Counts since the machine, or a network namespace, began.
pub(super) struct Network {
    interrupts: u64,
    /// Times that a core turned to packets that had come, from other machines or from this one.
    receptions: u64,
    /// TCP segments that have come, in each network namespace of the processes.
    segments: BTreeMap<PathBuf, u64>,
}

/// The difference of two counts.
pub(super) struct NetworkActivity {
    pub interrupts: u64,
    pub receptions: u64,
    /// Each was sent and received on this machine, so it went through TCP and IP twice.
    pub segments: u64,
}

impl Network {
    /// Counts now. A jail has a separate network.
    pub(super) fn of(pids: &[u32]) -> anyhow::Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| path.to_owned());
        let mut segments = BTreeMap::new();
        for pid in pids.iter().copied().chain([std::process::id()]) {
            let namespace = fs::read_link(format!("/proc/{pid}/ns/net"))?;
            let counts = read(&format!("/proc/{pid}/net/snmp"))?;
            segments.insert(namespace, received_segments(&counts).context("snmp has another form here")?);
        }
        let interrupts = sum(&read("/proc/stat")?, "intr ", 1).context("stat has another form here")?;
        let receptions =
            sum(&read("/proc/softirqs")?, "NET_RX:", usize::MAX).context("softirqs has another form here")?;
        Ok(Self { interrupts, receptions, segments })
    }

    /// The difference since an earlier count, in the namespaces that existed then.
    pub(super) fn since(&self, before: &Self) -> NetworkActivity {
        let of_one =
            |(name, then): (&PathBuf, &u64)| self.segments.get(name).map_or(0, |now| now.saturating_sub(*then));
        NetworkActivity {
            interrupts: self.interrupts.saturating_sub(before.interrupts),
            receptions: self.receptions.saturating_sub(before.receptions),
            segments: before.segments.iter().map(of_one).sum(),
        }
    }
}

/// The sum of the first numbers in the line that begins like this.
fn sum(text: &str, begin: &str, first: usize) -> Option<u64> {
    let numbers = text.lines().find_map(|line| line.trim_start().strip_prefix(begin))?;
    numbers.split_whitespace().take(first).map(|number| number.parse::<u64>().ok()).sum()
}

/// The file has a line of names and one of values for each protocol.
fn received_segments(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|name| name == "InSegs")?;
    values.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_forms_are_read() {
        let snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoMin InSegs OutSegs\nTcp: 200 17 19\n";
        assert_eq!([received_segments(snmp), received_segments("Tcp: InSegs\n")], [Some(17), None]);
        assert_eq!(sum("cpu 1\nintr 30 1 2\n", "intr ", 1), Some(30));
        assert_eq!(sum("   CPU0 CPU1\n NET_RX:  4  5\n", "NET_RX:", usize::MAX), Some(9));
        assert_eq!(sum("intr x\n", "intr ", 1), None);
    }

    #[test]
    fn this_machine_counts() {
        let before = Network::of(&[std::process::id()]).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        drop(std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let done = Network::of(&[std::process::id()]).unwrap().since(&before);
        assert!(done.segments >= 3, "{}", done.segments);
    }
}
