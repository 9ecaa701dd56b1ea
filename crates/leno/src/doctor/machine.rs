//! The requirements of a node on this machine.

use super::Finding;
use crate::jails;
use anyhow::Result;
use leno_ebpf::Mesh;
use leno_node::Engines;
use leno_supervisor::{no_sized_volumes, probe_limits};
use rustix::process::{Resource, getrlimit};
use std::process::Command;

/// Descriptors that a busy node needs: two for each connection, and some for each instance.
const DESCRIPTORS: u64 = 65_536;
const AS_ROOT: &str = "start the node as root (the service of the package does)";

/// Checks each requirement of a node. Nothing on the machine changes. A running node has the accounts
/// that a further jail would get, so none is made beside it.
pub(super) fn findings(is_running: bool) -> Result<Vec<Finding>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut findings = vec![engine(), kernel()];
    match is_running {
        true => findings
            .push(Finding::ok("jails", "not tried: a node runs here, and its log names each missing requirement")),
        false => findings.extend(runtime.block_on(of_jails())),
    }
    findings.extend([verdicts(), limits(), volumes(), descriptors(), clock()]);
    Ok(findings)
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let account = if rustix::process::geteuid().is_root() { "root" } else { "not root" };
    let found = format!("Linux {release}, {account}");
    match account {
        "root" => Finding::ok("system", found),
        _ => Finding::limited(
            "system",
            format!("{found}: all instances run under this account, and calls arrive at port 80 only"),
            AS_ROOT,
        ),
    }
}

fn engine() -> Finding {
    let engines = Engines::default();
    let described = engines.describe(None);
    // Without a choice of its documents, a node takes micro-VMs or says why not.
    let no_microvm = engines.choose(Some(leno_model::Engine::Microvm), None).err();
    match (described, no_microvm) {
        (Ok(engine), None) => Finding::ok("sandbox engine", engine),
        (Ok(engine), Some(_)) => Finding::limited(
            "sandbox engine",
            format!("{engine}; verdicts are the same"),
            "enable virtualization (nested, in a virtual machine), load kvm_intel or kvm_amd, and permit this account to open /dev/kvm (group kvm)",
        ),
        (Err(error), _) => Finding::failed("sandbox engine", error.to_string(), "set up KVM"),
    }
}

/// Jails, and features that show when one is made.
async fn of_jails() -> Vec<Finding> {
    let support = match jails::probe().await {
        Ok(support) => support,
        Err(error) => {
            let consequence = "instances run outside of jails with `isolation: auto`, and not at all with `strict`";
            let fix = "permit user namespaces to this account (Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0), use Linux 5.12 or newer, or start the node as root";
            return vec![Finding::limited("jails", format!("{error}: {consequence}"), fix)];
        }
    };
    let jails = match support.have_accounts {
        true => Finding::ok("jails", "each instance has its own, under its own account"),
        false => Finding::limited("jails", "each instance has its own, all under this account", AS_ROOT),
    };
    let calls = match support.interception {
        Ok(()) => Finding::ok("calls to every port", "intercepted in the kernel"),
        Err(reason) => Finding::limited(
            "calls to every port",
            format!("calls to ports other than 80 are refused: {reason}"),
            "start the node as root on Linux 5.9 or newer with eBPF",
        ),
    };
    let containers = match support.no_containers {
        None => {
            Finding::ok("containers", "functions with `image` can start, if the image store permits idmapped mounts")
        }
        Some(reason) => Finding::limited(
            "containers",
            format!("functions with `image` do not start: {reason}"),
            "start the node as root",
        ),
    };
    vec![jails, calls, containers]
}

fn verdicts() -> Finding {
    match Mesh::probe() {
        Ok(None) => Finding::ok("verdicts in the kernel", "programs load, and TCP connections are spliced"),
        Ok(Some(unspliced)) => Finding::limited(
            "verdicts in the kernel",
            format!("programs load, and TCP connections are not spliced: {unspliced}"),
            "use Linux 6.13 or newer",
        ),
        Err(error) => Finding::limited(
            "verdicts in the kernel",
            format!("the node judges all connections, with the same verdicts: {error}"),
            "start the node as root on Linux 5.15 or newer with eBPF and BTF",
        ),
    }
}

fn limits() -> Finding {
    match probe_limits() {
        Ok(version) => Finding::ok("limits of instances", format!("`resources` are in force, by cgroup v{version}")),
        Err(reason) => Finding::limited(
            "limits of instances",
            format!("`resources` are not in force for a node that starts here: {reason}"),
            "start the node as a service with Delegate=yes, or by `systemd-run --scope -p Delegate=yes leno …`",
        ),
    }
}

fn volumes() -> Finding {
    match no_sized_volumes() {
        None => Finding::ok("sizes of volumes", "in force"),
        Some(reason) => Finding::limited(
            "sizes of volumes",
            format!("volumes on disk are plain folders without a bound: {reason}"),
            "start the node as root, with the packages e2fsprogs and mount",
        ),
    }
}

fn descriptors() -> Finding {
    // A node raises its soft limit to the hard one.
    match getrlimit(Resource::Nofile).maximum {
        Some(most) if most < DESCRIPTORS => Finding::limited(
            "open files",
            format!("at most {most}: about {} connections at a time", most / 2),
            format!("ulimit -Hn {DESCRIPTORS}, or LimitNOFILE={DESCRIPTORS} in the service"),
        ),
        most => Finding::ok("open files", most.map_or("no limit".to_owned(), |most| format!("at most {most}"))),
    }
}

/// Tokens and certificates are valid by the clock.
fn clock() -> Finding {
    let fix = "enable a time service: systemd-timesyncd or chrony";
    let answer = Command::new("timedatectl").args(["show", "--property=NTPSynchronized", "--value"]).output();
    match answer.ok().filter(|answer| answer.status.success()).map(|answer| answer.stdout) {
        Some(state) if state.trim_ascii() == b"yes" => Finding::ok("clock", "synchronised"),
        Some(_) => Finding::limited(
            "clock",
            "not synchronised: with a wrong clock, valid tokens and certificates are refused, and expired ones accepted",
            fix,
        ),
        None => Finding::limited("clock", "`timedatectl` does not answer, so its state is not known", fix),
    }
}
