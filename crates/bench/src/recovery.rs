//! `leno-bench recovery`: what requests feel when a part of a mesh fails or is replaced. Two control planes on an etcd, four nodes and a gateway, each a
//! process in a network of its own; constant load through the gateway; one failure after the other.
//!
//! Runs as root, with the packages `etcd-server`, `curl` and `iproute2`, in a network namespace that ends with it.

mod load;
mod quota;
mod scene;

use crate::machine;
use crate::proxy_under_test::Programs;
use crate::report::Report;
use crate::statistics::Figure;
use anyhow::{Context, ensure};
use load::{Load, Outcome};
use scene::Scene;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Load before a failure, and after everything is well again.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(3);
/// How long what is cut off or stopped stays so.
const OUTAGE: Duration = Duration::from_secs(10);
/// Functions' certificates last a minute, and are renewed when half of that is over.
const RENEWALS: Duration = Duration::from_secs(40);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to write the figures.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Each failure once: for a look, not for a figure.
    #[arg(long)]
    quick: bool,
    /// Leno's program; without it, the one beside this program.
    #[arg(long, value_name = "PROGRAM")]
    leno: Option<PathBuf>,
}

/// A row of the table: its name in the figures, and what happens to the mesh.
type Row = (&'static str, fn(&mut Scene) -> anyhow::Result<()>);

const ROWS: [Row; 8] = [
    ("leader_dies", leader_dies),
    ("control_planes_die", control_planes_die),
    ("etcd_down", etcd_down),
    ("instance_dies", instance_dies),
    ("node_dies", node_dies),
    ("node_cut_off", node_cut_off),
    ("nodes_without_control_plane", nodes_without_control_plane),
    ("certificates_renewed", certificates_renewed),
];

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "only root may make network namespaces");
    // No thread has been started yet, so all of them will be in it.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).context("a network namespace")?;
    let leno = Programs::find_leno(arguments.leno.as_deref())?;
    let repeats = if arguments.quick { 1 } else { 3 };
    let mut scene = Scene::set(&leno)?;
    let mut report = Report::default();
    println!(
        "{:<30} {:>9} {:>9} {:>16} {:>15}",
        "what fails", "requests", "failed", "longest gap, ms", "recovered, ms"
    );
    for (name, happens) in ROWS {
        let mut outcomes = Vec::new();
        for _ in 0..repeats {
            scene.settle()?;
            let load = Load::start(scene.gateway());
            sleep(BEFORE);
            let begin = Instant::now();
            happens(&mut scene).with_context(|| name.to_owned())?;
            scene.settle().with_context(|| name.to_owned())?;
            sleep(AFTER);
            outcomes.push(load.stop(begin));
        }
        tell(name, &outcomes, &mut report)?;
    }
    let changes: Vec<f64> = scene.changes_again.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    if let Some(changes) = Figure::of(changes, false) {
        println!("changes are taken again {:.0} ms after the leader died", changes.median);
        report.add_figure("changes_ms_leader_dies", changes);
    }
    drop(scene);
    quota::measure(&leno, arguments.quick, &mut report)?;
    match &arguments.json {
        Some(path) => report.write(machine::describe(), path),
        None => Ok(()),
    }
}

/// Adds a row to the table and to the figures. Failed requests are those of all repeats.
fn tell(name: &str, outcomes: &[Outcome], report: &mut Report) -> anyhow::Result<()> {
    let sum = |value: fn(&Outcome) -> usize| outcomes.iter().map(value).sum::<usize>();
    let figure = |value: fn(&Outcome) -> Duration| {
        let values = outcomes.iter().map(|outcome| value(outcome).as_secs_f64() * 1e3).collect();
        Figure::of(values, false).context("nothing was measured")
    };
    let (requests, failed) = (sum(|outcome| outcome.requests), sum(|outcome| outcome.failed));
    let (gap, recovered) = (figure(|outcome| outcome.longest_gap)?, figure(|outcome| outcome.recovered)?);
    println!("{name:<30} {requests:>9} {failed:>9} {:>16.0} {:>15.0}", gap.median, recovered.median);
    report.add(&format!("requests_{name}"), requests as f64);
    report.add(&format!("failed_requests_{name}"), failed as f64);
    report.add_figure(&format!("longest_gap_ms_{name}"), gap);
    report.add_figure(&format!("recovered_ms_{name}"), recovered);
    Ok(())
}

/// It is killed. How long nobody takes changes is noted as well.
fn leader_dies(scene: &mut Scene) -> anyhow::Result<()> {
    let (leader, begin) = (scene.leader()?, Instant::now());
    scene.controls[leader].kill();
    scene.change(1 - leader)?;
    scene.changes_again.push(begin.elapsed());
    scene.start_control(leader)
}

/// Both are killed, and started again.
fn control_planes_die(scene: &mut Scene) -> anyhow::Result<()> {
    scene.controls.iter_mut().for_each(scene::Process::kill);
    sleep(OUTAGE);
    scene.start_control(0)?;
    scene.start_control(1)
}

fn etcd_down(scene: &mut Scene) -> anyhow::Result<()> {
    scene.etcd.kill();
    sleep(OUTAGE);
    scene.start_etcd()
}

fn instance_dies(scene: &mut Scene) -> anyhow::Result<()> {
    let host = scene.host()?;
    scene.nodes[host].kill_children()
}

/// The node's process is killed, and its instances with it. The machine stays, and refuses connections.
fn node_dies(scene: &mut Scene) -> anyhow::Result<()> {
    let host = scene.host()?;
    scene.nodes[host].kill();
    sleep(AFTER);
    scene.start_node(host)
}

/// Nothing of the machine answers any more, as when it has lost its power.
fn node_cut_off(scene: &mut Scene) -> anyhow::Result<()> {
    let host = scene.host()?;
    scene.networks[host].cut()?;
    sleep(OUTAGE);
    scene.networks[host].mend()
}

fn nodes_without_control_plane(scene: &mut Scene) -> anyhow::Result<()> {
    // The load is where the control planes are, so the gateway stays with them.
    let nodes = &scene.networks[..scene.nodes.len()];
    nodes.iter().try_for_each(scene::Network::without_control_planes)?;
    sleep(OUTAGE);
    nodes.iter().try_for_each(scene::Network::with_control_planes)
}

fn certificates_renewed(_scene: &mut Scene) -> anyhow::Result<()> {
    sleep(RENEWALS);
    Ok(())
}
