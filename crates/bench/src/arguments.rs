//! Arguments that the subcommands share.

use crate::proxy_under_test::Programs;
use std::path::PathBuf;

/// Of a subcommand without any of its own.
#[derive(clap::Args)]
pub struct Plain {
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub programs: Where,
}

/// Where figures go, and how carefully they are taken.
#[derive(clap::Args)]
pub struct Output {
    /// Where to write the figures.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where to write a report with plots: one page that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Few and short repeats, three minutes at most: for a look, not for a figure.
    #[arg(long)]
    pub quick: bool,
}

/// Where the programs are.
#[derive(clap::Args)]
pub struct Where {
    /// Envoy's program; without it, the one that scripts/envoy.sh installs.
    #[arg(long, value_name = "PROGRAM")]
    envoy: Option<PathBuf>,
    /// Leno's program; without it, the one beside this program.
    #[arg(long, value_name = "PROGRAM")]
    leno: Option<PathBuf>,
}

impl Where {
    pub fn find(&self) -> anyhow::Result<Programs> {
        Programs::find(self.envoy.as_deref(), self.leno.as_deref())
    }
}
