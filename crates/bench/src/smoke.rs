//! `leno-bench smoke`: in under two minutes, whether the hot path has become slower. For CI:
//! instructions, which are the same on any machine but for a library's choice of vector code, and
//! ratios within one run, wide enough that a slow or busy machine does not fail them.

use crate::arguments::ProgramPaths;
use crate::contenders::Running;
use crate::instructions;
use crate::load::Pace;
use crate::policies::Policies;
use crate::rig::Rig;
use crate::statistics::Trials;
use crate::syscalls::{self, Calls};
use crate::trial::{self, HTTP1, Lengths, SPARSE};
use anyhow::ensure;
use std::time::Duration;

/// The CPU time of a request through the first, divided by that through the second: at most this.
/// About half above the ratios of the slower of two machines (0.32, 0.59, 0.72 and 1.90; the other
/// one had 0.23, 0.36, 0.51 and 2.26), because machines differ; to be lowered as the hot path becomes
/// faster.
const LIMITS: [(&str, &str, f64); 4] = [
    ("leno_nine_wasm", "envoy_nine", 0.48),
    ("leno_nine_microvm", "envoy_nine", 0.88),
    ("leno_none", "envoy_none", 1.08),
    ("leno_nine_wasm", "leno_none", 3.20),
];
const REPEATS: usize = 5;
/// Instructions of the node per request: at most so many, a twentieth above the counts of
/// 2026-11-27 (106,300, 115,900, 179,500, 235,400 and, as the last one, 248,900) with the release
/// profile, which checks arithmetic. Counts differ by less than 1 % from run to run.
/// `instructions_none_http2` is 165,800 where `kube` in the same build switches on features of shared
/// crates, and 151,700 without (decision 41).
const INSTRUCTIONS: [(&str, f64); 6] = [
    ("instructions_none", 112_500.0),
    ("instructions_rules", 121_700.0),
    ("instructions_nine", 188_500.0),
    ("instructions_nine_each", 247_200.0),
    ("instructions_none_http2", 174_100.0),
    ("instructions_nine_http2", 261_400.0),
];
/// System calls of a node with 50 functions for each of 20 requests a second, and those of them
/// that set a timer: at most so many. 12.5 and 0.68 were counted on a machine that was busy with
/// other builds, 10.4 and 0.18 before that on an idle one; about one of them is a sign of life
/// between node and control plane, every second.
const SPARSE_CALLS: Calls = Calls { all: 13.5, timers: 0.9 };

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    programs: ProgramPaths,
    /// Only counts of instructions and system calls, which do not depend on the machine's speed.
    #[arg(long)]
    counts: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let rig = Rig::set_up(arguments.programs.find()?)?;
    let mut slower = too_many_instructions(&rig)?;
    if !few_calls_when_sparse(&rig)? {
        slower.push("sparse");
    }
    if !arguments.counts {
        slower.extend(too_much_time(&rig)?);
    }
    ensure!(slower.is_empty(), "the hot path costs more than it did: {}", slower.join(", "));
    Ok(())
}

/// Those whose ratio is above its limit.
fn too_much_time(rig: &Rig) -> anyhow::Result<Vec<&'static str>> {
    let mut contenders = vec![
        Running::leno(rig, "leno_none", "wasm", Policies::NONE)?,
        Running::leno(rig, "leno_nine_wasm", "wasm", Policies::NINE)?,
    ];
    match std::fs::exists("/dev/kvm").unwrap_or(false) {
        true => contenders.push(Running::leno(rig, "leno_nine_microvm", "microvm", Policies::NINE)?),
        false => println!("SKIPPED: the microvm engine; there is no /dev/kvm"),
    }
    match rig.programs.envoy {
        Some(_) => {
            contenders.push(Running::envoy(rig, "envoy_none", Policies::NONE)?);
            contenders.push(Running::envoy(rig, "envoy_nine", Policies::NINE)?);
        }
        None => {
            println!("SKIPPED: everything against Envoy, which cannot be had here; only Leno against itself is checked")
        }
    }
    let ms = Duration::from_millis;
    let lengths = Lengths { warm_up: ms(200), closed: ms(800), open: ms(0), retakes: 0 };
    let mut trials = Trials::default();
    for repeat in 0..REPEATS {
        for contender in &contenders {
            trials.0.push(trial::run(rig, contender, HTTP1, Pace::Closed, repeat, lengths)?);
        }
    }
    let mut slower = Vec::new();
    for (ours, theirs, limit) in LIMITS {
        let which = [ours, theirs].map(|name| (name, HTTP1.name, "closed"));
        let Some(ratio) = trials.combined(which, |[ours, theirs]| ours.cpu_us / theirs.cpu_us) else { continue };
        // The least of the repeats: other work on the machine only adds.
        let verdict = if ratio.least <= limit { "ok" } else { "TOO SLOW" };
        println!(
            "{ours} / {theirs}: {:.2} ({:.2} to {:.2}), at most {limit:.2}: {verdict}",
            ratio.median, ratio.least, ratio.most
        );
        if ratio.least > limit {
            slower.push(ours);
        }
    }
    Ok(slower)
}

/// Whether a request now and then costs as few system calls as it did.
fn few_calls_when_sparse(rig: &Rig) -> anyhow::Result<bool> {
    let node = Running::leno_with_many(rig, "leno_many_wasm", "wasm", Policies::NINE, 50)?;
    let Some(Calls { all, timers }) = syscalls::count(rig, &node, SPARSE, Pace::Open(SPARSE.rate)) else {
        println!("SKIPPED: counting system calls; there is no perf, or it may not count here");
        return Ok(true);
    };
    let Calls { all: most, timers: most_timers } = SPARSE_CALLS;
    let few = all <= most && timers <= most_timers;
    let verdict = if few { "ok" } else { "TOO MANY" };
    println!(
        "system calls a request, 20 a second: {all:.1}, at most {most:.1}; timers set: {timers:.2}, at most {most_timers:.2}: {verdict}"
    );
    Ok(few)
}

/// Those that are above their limit.
fn too_many_instructions(rig: &Rig) -> anyhow::Result<Vec<&'static str>> {
    if !instructions::valgrind_is_there() {
        println!("SKIPPED: counting instructions; there is no valgrind (`apt-get install valgrind`)");
        return Ok(Vec::new());
    }
    let mut above = Vec::new();
    for ((name, count), (_, limit)) in instructions::count(rig, None)?.into_iter().zip(INSTRUCTIONS) {
        let verdict = if count <= limit { "ok" } else { "TOO MANY" };
        println!("{name}: {count:.0}, at most {limit:.0}: {verdict}");
        if count > limit {
            above.push(name);
        }
    }
    Ok(above)
}
