//! Leno on Kubernetes: `leno install`, `leno uninstall`, and `leno check --kubernetes`.

mod chart;
mod check;
mod install;
mod kubectl;
mod nodes;
mod template;
mod uninstall;
mod values;

pub(crate) use install::Arguments as InstallArguments;
pub(crate) use kubectl::Cluster;
pub(crate) use uninstall::Arguments as UninstallArguments;

use crate::output::Format;
use anyhow::Result;
use std::process::ExitCode;

/// `leno install`.
pub(crate) fn install(arguments: &InstallArguments) -> Result<ExitCode> {
    install::run(arguments)
}

/// `leno uninstall`.
pub(crate) fn uninstall(arguments: &UninstallArguments) -> Result<ExitCode> {
    uninstall::run(arguments)
}

/// `leno check --kubernetes`.
pub(crate) fn check(cluster: &Cluster, format: Format) -> Result<ExitCode> {
    check::run(cluster, format)
}
