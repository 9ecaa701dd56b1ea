//! System calls for each request, counted by `perf` where it is installed and permitted; in
//! separate runs, because counting costs time.

use crate::load::{Pace, Plan};
use crate::rig::Rig;
use crate::trial::{Contender, SPARSE, Traffic};
use std::process::{Command, Stdio};
use std::time::Duration;

/// All of them, and of those the ones that set a timer of the kernel.
const EVENTS: [&str; 3] =
    ["raw_syscalls:sys_enter", "syscalls:sys_enter_timerfd_settime", "syscalls:sys_enter_timer_settime"];

/// For each request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Calls {
    pub all: f64,
    /// Of them, those that set a timer.
    pub timers: f64,
}

/// Of a contender; `None`: it cannot be counted here.
pub(crate) fn count(rig: &Rig, contender: &dyn Contender, traffic: Traffic, pace: Pace) -> Option<Calls> {
    let pids: Vec<String> = contender.pids().iter().map(u32::to_string).collect();
    if pids.is_empty() {
        return None;
    }
    // Sparse traffic needs a while to call every function, and to call it often enough.
    let (warm_up, measured) = if traffic == SPARSE { (3000, 5000) } else { (300, 1000) };
    let plan = Plan { warm_up_ms: warm_up, measured_ms: measured, ..contender.plan(traffic, pace) };
    // It begins a little before the load counts, and ends a little after: that is lost in the
    // rounding.
    let perf = Command::new("perf")
        .args(["stat", "--field-separator", ",", "--event", &EVENTS.join(","), "--pid", &pids.join(",")])
        .args(["--delay", &warm_up.to_string(), "--", "sleep"])
        .arg(Duration::from_millis(warm_up + measured).as_secs_f64().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let observed = rig.observe(&plan, &contender.pids());
    let output = perf.wait_with_output().ok()?;
    let [all, timerfds, timers] = counts(&String::from_utf8_lossy(&output.stderr))?;
    let requests = observed.ok()?.outcome.answered() as f64;
    Some(Calls { all: all / requests, timers: (timerfds + timers) / requests })
}

/// A line of `perf stat` for each of [`EVENTS`].
fn counts(report: &str) -> Option<[f64; 3]> {
    let of = |event: &str| {
        let mut fields = report.lines().find(|line| line.contains(event))?.split(',');
        fields.next()?.parse::<f64>().ok()
    };
    let [all, timerfds, timers] = EVENTS.map(of);
    Some([all?, timerfds?, timers?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfs_report_is_understood() {
        let report = "Events disabled\n29,,raw_syscalls:sys_enter,712614,100.00,,\n3,,syscalls:sys_enter_timerfd_settime,1,1,,\n\
                      0,,syscalls:sys_enter_timer_settime,712614,100.00,,\n";
        assert_eq!(counts(report), Some([29.0, 3.0, 0.0]));
        assert_eq!(counts("<not supported>,,raw_syscalls:sys_enter,0,100.00,,\n"), None);
    }
}
