//! `leno-bench kubernetes`: Leno in a Kubernetes cluster, as root. The controller beside 10,000 pods
//! on 100 fake nodes with 100 simulated agents; then two real nodes with real pods.

mod agents;
mod api;
mod caller;
mod cluster;
mod image;
mod objects;
mod pods;
mod scale;
mod starts;
mod world;

use crate::arguments::Output;
use crate::machine;
use crate::report::Report;
use anyhow::Context;
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: Output,
    /// The folder of the cluster's programs, which `make kubernetes-programs` builds.
    #[arg(long, value_name = "FOLDER", default_value = "target/kubernetes")]
    programs: PathBuf,
    /// The folder with `leno` and `leno-controller`; without it, that of this program.
    #[arg(long, value_name = "FOLDER")]
    leno: Option<PathBuf>,
    /// The CNI plug-in; without it, `leno-cni` in the folder of `leno`.
    #[arg(long, value_name = "PROGRAM")]
    cni: Option<PathBuf>,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Fake nodes.
    Scale,
    /// Real nodes.
    Pods,
}

/// The programs and files of all parts.
struct Setting {
    quick: bool,
    /// The cluster's programs.
    programs: PathBuf,
    leno: PathBuf,
    controller: PathBuf,
    cni: PathBuf,
    /// For files.
    folder: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let machine = machine::describe();
    println!("machine: {machine}");
    let folder = tempfile::Builder::new().prefix("leno-bench-").tempdir()?;
    let beside = match &arguments.leno {
        Some(folder) => folder.clone(),
        None => std::env::current_exe()?.parent().context("this program has a folder")?.to_owned(),
    };
    let setting = Setting {
        quick: arguments.output.quick,
        programs: present(&arguments.programs)?,
        leno: present(&beside.join("leno"))?,
        controller: present(&beside.join("leno-controller"))?,
        cni: present(&arguments.cni.clone().unwrap_or_else(|| beside.join("leno-cni")))?,
        folder: folder.path().to_owned(),
    };
    let is_chosen = |part| arguments.only.is_empty() || arguments.only.contains(&part);
    let (mut report, mut conditions) = (Report::default(), json!({}));
    if is_chosen(Part::Scale) {
        conditions["scale"] = scale::measure(&setting, &mut report)?;
    }
    if is_chosen(Part::Pods) {
        conditions["pods"] = pods::measure(&setting, &mut report)?;
    }
    arguments.output.write(report, machine, json!({ "conditions": conditions }))
}

fn present(path: &Path) -> anyhow::Result<PathBuf> {
    path.canonicalize().with_context(|| format!("there is no {}", path.display()))
}

/// The folder with the definitions of Leno's kinds.
fn definitions() -> String {
    format!("{}/../../kubernetes/chart/definitions", env!("CARGO_MANIFEST_DIR"))
}
