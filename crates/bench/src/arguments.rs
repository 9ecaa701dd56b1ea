//! Arguments that the subcommands share.

use crate::html::Page;
use crate::proxy_under_test::Programs;
use crate::report::Report;
use serde_json::Value;
use std::path::PathBuf;

/// Of a subcommand without any of its own.
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
    /// Where to write a report with plots: one page that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Few and short repeats, three minutes at most (`neighbours`: four): for a look, not for a figure.
    #[arg(long)]
    pub quick: bool,
}

impl Output {
    /// Writes what is wanted: the page with its conditions, the figures with all that lies behind them. `details` has `conditions`.
    pub(crate) fn write(
        &self,
        report: Report,
        mut page: Page,
        machine: Value,
        mut details: Value,
    ) -> anyhow::Result<()> {
        details["quick"] = self.quick.into();
        if let Some(path) = &self.html {
            page.conditions(&machine, &details["conditions"]);
            page.write(path)?;
        }
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
