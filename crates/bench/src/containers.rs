//! `leno-bench containers`: functions that are container images. It compares cold starts with the
//! bare runtime, and warm requests with those to a process.
//!
//! Runs as root, with the package `crun`.

mod bare;
pub(crate) mod greeter;
mod node;
pub(crate) mod stages;

use crate::arguments::ProgramPaths;
use crate::machine;
use crate::report::Report;
use crate::rig::Rig;
use crate::statistics::Figure;
use anyhow::{Context, ensure};
use leno_oci::layout::{Builder, Layer};
use node::{Form, first_requests, warm_requests};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tag of the image in its layout.
const TAG: &str = "bench";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to write the figures.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A part of the rounds: for a look, not for a figure.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    programs: ProgramPaths,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "containers need a node that runs as root");
    let (starts, repeats) = if arguments.quick { (20, 3) } else { (100, 7) };
    let folder = tempfile::Builder::new().prefix("leno-bench-containers-").tempdir()?;
    let layout = folder.path().join("image");
    image(&layout)?;
    let mut report = Report::default();
    stages::measure(folder.path(), &layout, starts, &mut report)?;
    let bare = bare::starts(folder.path(), &layout, starts)?;
    // From here on this process is bound to a core.
    let rig = Rig::set_up(arguments.programs.find()?)?;
    let median = |form| Ok::<_, anyhow::Error>(first_requests(&rig, form, starts)?.micros(0.5) / 1000.0);
    let (cold, process) = (median(Form::Container(&layout))?, median(Form::Process)?);
    report.add("container_cold_p50_ms", cold);
    report.add("process_cold_p50_ms", process);
    let bare = Figure::of(bare, false).context("nothing was measured")?;
    report.add("container_vs_runtime", cold / bare.median);
    report.add_figure("runtime_start_ms", bare);
    warm_requests(&rig, &layout, repeats, arguments.quick, &mut report)?;
    for (name, value) in report.all() {
        println!("{name}: {value}");
    }
    match &arguments.json {
        Some(path) => report.write(machine::describe(), path),
        None => Ok(()),
    }
}

/// Writes an image of this program, with the libraries that it needs, which listens at `$PORT`.
fn image(layout: &Path) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    let listed = Command::new("ldd").arg(&program).output().context("there is no ldd")?;
    let listed = String::from_utf8(listed.stdout)?;
    let libraries = listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let base = libraries.fold(Layer::new(), |layer, path| layer.file(path, PathBuf::from(path), 0o755));
    Builder::new()
        .layer(base)
        .layer(Layer::new().file("bin/function", program, 0o755))
        .entrypoint(&["/bin/function", greeter::SUBCOMMAND])
        .user("1000:1000")
        .write(layout, TAG)?;
    Ok(())
}
