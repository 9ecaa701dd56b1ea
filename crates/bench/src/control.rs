//! `leno-bench control`: the cost of the control plane with many functions on many nodes. The nodes
//! are simulated: each speaks the real protocol over a separate socket and accepts all updates, but
//! has no sidecars and starts nothing. The control plane is a separate process on a separate core.

mod agents;
pub(crate) mod plane;
mod world;

use self::agents::Agents;
use self::plane::Plane;
use self::world::{CALLEES, World};
use crate::affinity::Cores;
use crate::arguments::Output;
use crate::cpu::{Memory, Usage};
use crate::machine;
use crate::report::Report;
use crate::sample::Sample;
use anyhow::ensure;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Functions of the worlds, the last of which is measured in all respects.
const WORLDS: [usize; 3] = [100, 1000, 10_000];
/// Requests that wait for a function, for which two instances are right.
const TWO_INSTANCES: u32 = 200;
/// Placements a second at which the control plane's processor time is measured.
const RATE: u32 = 2500;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: Output,
}

struct Counts {
    cold_starts: usize,
    policy_changes: usize,
    placements: usize,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let machine = machine::describe();
    println!("machine: {machine}");
    let cores = Cores::take()?;
    let counts = match arguments.output.quick {
        true => Counts { cold_starts: 10, policy_changes: 200, placements: 2000 },
        false => Counts { cold_starts: 50, policy_changes: 2000, placements: 5000 },
    };
    let folder = tempfile::Builder::new().prefix("leno-bench-").tempdir()?;
    // This thread blocks on the control plane's answers. The nodes live on another.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut report = Report::default();
    for functions in WORLDS {
        runtime.block_on(measure(cores, folder.path(), functions, &counts, &mut report))?;
    }
    let conditions = json!({"worlds": WORLDS, "callees": CALLEES, "placements_per_second": RATE});
    arguments.output.write(report, machine, json!({ "conditions": conditions }))
}

async fn measure(
    cores: Cores,
    folder: &Path,
    functions: usize,
    counts: &Counts,
    report: &mut Report,
) -> anyhow::Result<()> {
    let world = World { functions, nodes: if functions < 10_000 { 10 } else { 100 }, scheduled: false };
    let mut plane = Plane::start(cores, folder, world, false)?;
    let agents = Agents::join(&plane, world).await?;
    agents.hold_configurations(world.placements()).await?;
    plane.settle()?;
    cold_starts(&mut plane, &agents, world, counts, report).await?;
    if functions != WORLDS[WORLDS.len() - 1] {
        return Ok(());
    }
    policy_changes(&mut plane, world, counts, report)?;
    drop(plane);
    restart(cores, folder, world, &agents, report)?;
    drop(agents);
    scheduled(cores, folder, World { scheduled: true, ..world }, counts, report).await
}

/// A function comes to a node that never had it: measures the node's updates.
async fn cold_starts(
    plane: &mut Plane,
    agents: &Agents,
    world: World,
    counts: &Counts,
    report: &mut Report,
) -> anyhow::Result<()> {
    let functions = world.functions;
    let (mut bytes, mut messages, mut acks, mut warm, mut elsewhere) = (0, 0, 0, 0, 0);
    for run in 0..counts.cold_starts {
        // Functions from all over the world, each once.
        let function = run * functions / counts.cold_starts;
        plane.tell(&format!("only {}", world.new_node()), "placed")?;
        agents.new_node_holds(&BTreeSet::new()).await?;
        plane.settle()?;
        let (before, received) = (plane.counters(world.new_node())?, agents.new_node_received());
        plane.tell(&format!("only {} {function}", world.new_node()), "placed")?;
        agents.new_node_holds(&world.needed(function)).await?;
        plane.settle()?;
        let after = plane.counters(world.new_node())?;
        bytes += agents.new_node_received() - received;
        messages += after.messages - before.messages;
        acks += after.acks - before.acks;

        // An instance of it starts there: counts the messages to that node and to the others.
        let everywhere = plane.counters_of_all()?;
        agents.start_instance(function);
        plane.wait_for_reports(world.new_node(), after.reports + 2)?;
        plane.settle()?;
        warm += plane.counters(world.new_node())?.messages - after.messages;
        elsewhere += plane.counters_of_all()?.messages - everywhere.messages;
        agents.stop_instance(function);
        plane.wait_for_reports(world.new_node(), after.reports + 3)?;
    }
    ensure!(messages == acks, "{messages} messages and {acks} answers");
    let each = |total: u64| total as f64 / counts.cold_starts as f64;
    report.show(&format!("config_bytes_per_cold_start_{functions}"), each(bytes));
    if functions == WORLDS[WORLDS.len() - 1] {
        report.show("messages_per_cold_start", each(messages));
        report.show("messages_per_cold_start_warm", each(warm));
        report.show("messages_to_other_nodes_per_instance_started", each(elsewhere));
    }
    Ok(())
}

/// A policy changes: until the last node that hosts its function has acknowledged.
fn policy_changes(plane: &mut Plane, world: World, counts: &Counts, report: &mut Report) -> anyhow::Result<()> {
    let mut times = Vec::new();
    let before = plane.counters_of_all()?;
    for change in 0..counts.policy_changes {
        times.push(plane.change_policy(change % world.shared(), change)?);
    }
    let after = plane.counters_of_all()?;
    let sample = Sample::new(times);
    report.show("apply_to_enforced_p50_ms", sample.micros(0.5) / 1000.0);
    report.show("apply_to_enforced_p99_ms", sample.micros(0.99) / 1000.0);
    let (bytes, messages) = (after.bytes - before.bytes, after.messages - before.messages);
    report.show("nodes_per_policy_change", messages as f64 / counts.policy_changes as f64);
    report.show("bytes_per_policy_change", bytes as f64 / messages as f64);
    Ok(())
}

/// Functions get more requests than their node has capacity for, so that the scheduler places them on
/// further nodes, which never saw them: as fast as it goes, and at a fixed rate.
async fn scheduled(
    cores: Cores,
    folder: &Path,
    world: World,
    counts: &Counts,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut plane = Plane::start(cores, folder, world, false)?;
    let agents = Agents::join(&plane, world).await?;
    agents.offer();
    plane.publish()?;
    agents.hold_configurations(world.functions as u64).await?;
    plane.settle()?;
    let homes: Vec<_> = agents.homes().into_iter().collect();
    for (part, rate) in homes.chunks(counts.placements).zip([None, Some(RATE)]) {
        let (held, used) = (agents.configurations(), Usage::of(&[plane.pid()])?);
        let begin = Instant::now();
        for (number, (function, home)) in part.iter().enumerate() {
            let due = rate.map_or(Duration::ZERO, |rate| Duration::from_secs(number as u64) / rate);
            // A timer is a millisecond late, so reports that are due meanwhile follow at once.
            if let Some(left) = due.checked_sub(begin.elapsed()) {
                tokio::time::sleep(left).await;
            }
            agents::report_waiting(home, function, TWO_INSTANCES);
        }
        agents.hold_configurations(held + part.len() as u64).await?;
        plane.settle()?;
        let (elapsed, count) = (begin.elapsed(), part.len() as f64);
        let cpu = (Usage::of(&[plane.pid()])? - used).cpu;
        let reached = count / elapsed.as_secs_f64();
        match rate {
            None => {
                report.show("cold_starts_per_second", reached);
                report.show("control_cpu_us_per_cold_start", cpu.as_secs_f64() * 1e6 / count);
            }
            Some(rate) if reached >= 0.95 * f64::from(rate) => {
                report.show("control_cpu_cores_at_2500", cpu.as_secs_f64() / elapsed.as_secs_f64());
            }
            Some(_) => {
                println!("control_cpu_cores_at_2500 is missing: only {reached:.0} placements a second were reached");
            }
        }
    }
    Ok(())
}

/// A new process with the stored definitions, until all nodes have resumed: they reconnect by
/// themselves, and have missed nothing.
fn restart(cores: Cores, folder: &Path, world: World, agents: &Agents, report: &mut Report) -> anyhow::Result<()> {
    let held = agents.configurations();
    let begin = Instant::now();
    let mut plane = Plane::start(cores, folder, world, true)?;
    let started = begin.elapsed();
    plane.tell("connected", "connected")?;
    plane.settle()?;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
    report.show(&format!("restart_to_serving_ms_{}", world.functions), milliseconds(begin.elapsed()));
    report.show(&format!("restart_to_listening_ms_{}", world.functions), milliseconds(started));
    report.show(&format!("restart_bytes_{}", world.functions), plane.counters_of_all()?.bytes as f64);
    ensure!(agents.configurations() == held, "nodes got configurations again that they had");
    // This process never had documents, only the stored configuration.
    let memory = Memory::of(&[plane.pid()])?;
    report.show(&format!("control_memory_mib_{}", world.functions), memory.rss as f64 / 1024.0);
    Ok(())
}
