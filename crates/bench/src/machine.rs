//! The machine of a measurement.

use serde_json::{Value, json};
use std::fs;

/// This machine, in words and for the report.
pub(crate) fn describe() -> Value {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    json!({
        "cpu": field("model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": first_line("/proc/sys/kernel/osrelease"),
        "virtualised": field("flags").split(' ').any(|flag| flag == "hypervisor"),
        "kvm": kvm(),
        "load": first_line("/proc/loadavg"),
    })
}

/// Which of the kernel's KVM implementations is there. Inside a virtual machine the first two mean
/// nested virtualisation.
fn kvm() -> &'static str {
    let known = [("kvm_intel", "intel"), ("kvm_amd", "amd"), ("kvm_pvm", "pvm (no hardware virtualisation)")];
    let found = known.into_iter().find(|(module, _)| fs::exists(format!("/sys/module/{module}")).unwrap_or(false));
    found.map_or("none", |(_, name)| name)
}

fn first_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
