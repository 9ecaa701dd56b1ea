//! System calls for each request, counted by `perf` where it is there and may: in runs of their own, because counting costs time.

use crate::load::{Pace, Plan};
use crate::rig::Rig;
use crate::trial::{Contender, HTTP1};
use std::process::{Command, Stdio};

const SECONDS: u64 = 1;

/// Of a contender in closed loop over HTTP/1.1; `None`: it cannot be counted here.
pub(crate) fn count(rig: &Rig, contender: &dyn Contender) -> Option<f64> {
    let pids: Vec<String> = contender.pids().iter().map(u32::to_string).collect();
    if pids.is_empty() {
        return None;
    }
    let measured_ms = SECONDS * 1000;
    let plan = Plan { warm_up_ms: 300, measured_ms, ..contender.plan(HTTP1, Pace::Closed) };
    // It begins a little before the load counts, and ends a little after: that is lost in the rounding.
    let perf = Command::new("perf")
        .args(["stat", "--field-separator", ",", "--event", "raw_syscalls:sys_enter", "--pid", &pids.join(",")])
        .args(["--delay", "300", "--", "sleep", &format!("{}", SECONDS as f64 + 0.3)])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let observed = rig.observe(&plan, &contender.pids());
    let output = perf.wait_with_output().ok()?;
    let calls: f64 =
        String::from_utf8_lossy(&output.stderr).lines().find_map(|line| line.split(',').next()?.parse().ok())?;
    Some(calls / observed.ok()?.outcome.answered() as f64)
}
