//! Arguments that the subcommands share.

use crate::proxy_under_test::Programs;
use crate::report::Report;
use serde_json::Value;
use std::path::PathBuf;

/// The arguments of a subcommand that has no others.
#[derive(clap::Args)]
pub(crate) struct Plain {
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub programs: ProgramPaths,
}

/// Where figures go, and how carefully they are taken.
#[derive(clap::Args)]
pub(crate) struct Output {
    /// Where to write the figures.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Few and short repeats, three minutes at most (`neighbours`: four): for a look, not for a
    /// figure.
    #[arg(long)]
    pub quick: bool,
}

impl Output {
    /// Writes the figures and the single runs behind them, if a file is given. `details` has
    /// `conditions`.
    pub(crate) fn write(&self, report: Report, machine: Value, mut details: Value) -> anyhow::Result<()> {
        details["quick"] = self.quick.into();
        match &self.json {
            Some(path) => report.write_with(machine, details, path),
            None => Ok(()),
        }
    }
}

/// Where the programs are.
#[derive(clap::Args)]
pub(crate) struct ProgramPaths {
    /// Envoy's program; without it, the one that scripts/envoy.sh installs.
    #[arg(long, value_name = "PROGRAM")]
    envoy: Option<PathBuf>,
    /// Leno's program; without it, the one beside this program.
    #[arg(long, value_name = "PROGRAM")]
    leno: Option<PathBuf>,
}

impl ProgramPaths {
    pub(crate) fn find(&self) -> anyhow::Result<Programs> {
        Programs::find(self.envoy.as_deref(), self.leno.as_deref())
    }
}
