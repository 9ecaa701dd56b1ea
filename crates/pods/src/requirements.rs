//! The needs of the capture: features of the kernel, file systems and capabilities.

use crate::error::CaptureError;
use rustix::fs::statfs;
use std::path::Path;

/// A version of Linux.
type Version = (u32, u32);

/// `ingress_ifindex` for programs that choose listeners.
const CAPTURE: Version = (5, 17);
/// tcx.
const ENFORCE: Version = (6, 6);

const CAPABILITIES: [(u32, &str); 4] =
    [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];

/// Checks all of it. Returns why pods cannot be enforced, if they cannot.
pub(crate) fn check(group: &Path, pins: &Path) -> Result<Option<String>, CaptureError> {
    let missing = |missing: String, cure| Err(CaptureError::Missing { missing, cure });
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let version = version(&release);
    if version.is_some_and(|version| version < CAPTURE) {
        return missing(format!("this is Linux {release}"), "Linux 5.17 or later is needed");
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(capability) = missing_capability(&status) {
        return missing(format!("this process has no {capability}"), "add it to the container's securityContext");
    }
    if kind(group) != Some(CGROUP2) {
        let missing_group = format!("{} is not a folder of a cgroup2 file system", group.display());
        return missing(missing_group, "mount one, or name its root");
    }
    // The folder may be made later, in a file system that exists.
    let existing = pins.ancestors().find(|folder| folder.exists()).unwrap_or(pins);
    if kind(existing) != Some(BPF) {
        let missing_pins = format!("{} is not in a BPF file system", pins.display());
        return missing(missing_pins, "mount one with `mount -t bpf bpf /sys/fs/bpf`");
    }
    Ok(unenforceable(&release))
}

/// Why a kernel cannot enforce that all traffic of a pod passes the agent.
fn unenforceable(release: &str) -> Option<String> {
    let is_old = version(release).is_some_and(|version| version < ENFORCE);
    is_old.then(|| {
        format!(
            "its kernel is Linux {release}, which has no tcx programs; update it to Linux 6.6 or later, or keep \
             enforced pods from this node"
        )
    })
}

const CGROUP2: i64 = 0x6367_7270;
const BPF: i64 = 0xcafe_4a11;

fn kind(folder: &Path) -> Option<i64> {
    #[allow(clippy::useless_conversion, reason = "its type depends on the machine's architecture")]
    statfs(folder).ok().and_then(|found| i64::try_from(found.f_type).ok())
}

fn version(release: &str) -> Option<Version> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn missing_capability(status: &str) -> Option<&'static str> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    CAPABILITIES.iter().find(|(number, _)| effective & (1 << number) == 0).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_distributions_are_read() {
        for (release, expected) in [
            ("6.18.44-fc", Some((6, 18))),
            ("5.17.0", Some((5, 17))),
            ("5.4-gke", Some((5, 4))),
            ("6.6+", Some((6, 6))),
            ("next", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
        assert!((5, 4) < CAPTURE && (6, 18) > ENFORCE);
    }

    #[test]
    fn an_old_kernel_is_named_with_the_remedy() {
        let reason = unenforceable("6.1.0-44-amd64").unwrap();
        assert!(reason.contains("Linux 6.1.0-44-amd64") && reason.contains("Linux 6.6 or later"), "{reason}");
        assert_eq!(unenforceable("6.6.0"), None);
        assert_eq!(unenforceable("next"), None);
    }

    #[test]
    fn the_first_missing_capability_is_named() {
        assert_eq!(missing_capability("Name:\tx\nCapEff:\t000001ffffffffff\n"), None);
        assert_eq!(missing_capability("CapEff:\t0000007fffffffff\n"), Some("CAP_BPF"));
        assert_eq!(missing_capability("CapEff:\t0000000000000000\n"), Some("CAP_NET_ADMIN"));
    }

    #[test]
    fn other_file_systems_are_refused_by_name() {
        let error = check(Path::new("/proc"), Path::new("/proc/leno")).unwrap_err().to_string();
        if rustix::process::geteuid().is_root() {
            assert_eq!(
                error,
                "capture of pods: /proc is not a folder of a cgroup2 file system; mount one, or name its root"
            );
        }
    }
}
