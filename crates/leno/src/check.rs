//! `leno check`: finds all problems that `leno up` would refuse, without starting anything.

use crate::component_cache;
use crate::kubernetes::{self, Cluster};
use crate::output::Format;
use crate::problems::{counted, report};
use crate::programs;
use crate::progress::Progress;
use crate::remote::{self, SelfContained, Server};
use crate::screen::shown;
use crate::table;
use anyhow::Result;
use leno_config::{Effort, Problem, Snapshot, TranslationRow};
use leno_intake::Intake;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Documents, or a cluster.
#[derive(clap::Args)]
pub(crate) struct Subject {
    /// A YAML file, or a folder of them.
    #[arg(required_unless_present_any = ["file", "kubernetes"], conflicts_with = "kubernetes")]
    path: Option<PathBuf>,
    /// The same, as in other commands.
    #[arg(short, long, value_name = "PATH", conflicts_with_all = ["path", "kubernetes"])]
    file: Option<PathBuf>,
    /// Check a Kubernetes cluster, before or after `leno install`: kernels, clocks, the network's
    /// settings, your rights, and the parts of Leno; each with the fix. Ends with 1 if Leno cannot work.
    #[arg(long)]
    kubernetes: bool,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    format: Format,
}

/// Prints the definitions of the documents, every problem in them, or the findings about a cluster.
/// `strict`: warnings are a failure too.
pub(crate) fn run(subject: &Subject, strict: bool, reader: Reader, server: &Server) -> Result<ExitCode> {
    match (subject.kubernetes, subject.path.as_deref().or(subject.file.as_deref())) {
        (false, Some(path)) => documents(path, strict, reader, server),
        _ => kubernetes::check(&subject.cluster, subject.format),
    }
}

/// The process that the documents are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Reader {
    /// `leno up` on this machine, which reads files.
    Up,
    /// A control plane that gets them from `leno apply`, and has no other documents. If one is named
    /// (--server, or a context), it is asked which stored secrets it has.
    Control,
}

fn documents(path: &Path, strict: bool, reader: Reader, server: &Server) -> Result<ExitCode> {
    let intake = Intake::new(Arc::new(component_cache::modules()));
    let checks = Progress::of(format!("checks {}", path.display()));
    let checked = match reader {
        Reader::Up => intake.check(path, &Effort::unbounded()).map(|snapshot| (snapshot.read(), snapshot)),
        Reader::Control => SelfContained::of_path(path).and_then(|documents| {
            documents.print_inlined();
            let read = format!("read {} for a control plane", counted(documents.files.len(), "file"));
            let stored = remote::stored_secrets(server).unwrap_or_else(|error| {
                eprintln!(
                    "warning: the stored secrets of the control plane are not known: {}",
                    shown(&format!("{error:#}"))
                );
                None
            });
            Ok((read, leno_api::control::check(&intake, &documents.files, stored)?))
        }),
    };
    drop(checks);
    match checked {
        Ok((read, snapshot)) => {
            let across = snapshot.warnings_across().iter().map(|(_, warning)| warning);
            let mut warnings: Vec<Problem> = snapshot.warnings().iter().chain(across).cloned().collect();
            if reader == Reader::Up {
                warnings.extend(programs::doubts(&snapshot));
            }
            warnings.sort();
            println!("{}: {read}", path.display());
            print_imports(&snapshot);
            let rest = match warnings.len() {
                0 => "all fine".to_owned(),
                count => counted(count, "warning"),
            };
            println!("{}: {}, {rest}", path.display(), snapshot.summary());
            for warning in &warnings {
                eprintln!("warning: {}", shown(&warning.to_string()));
            }
            Ok(if strict && !warnings.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS })
        }
        Err(problems) => {
            report(&problems);
            Ok(ExitCode::from(2))
        }
    }
}

/// Prints how each field of policies of other projects was translated.
fn print_imports(snapshot: &Snapshot) {
    if snapshot.translations().is_empty() {
        return;
    }
    let heading = ["PLACE", "POLICY", "FIELD", "STANDING", "NOTE"].map(str::to_owned).to_vec();
    let row = |row: &TranslationRow| {
        let TranslationRow { place, policy, field, standing, note } = row;
        [place, policy, field, standing.words(), note].map(|cell| shown(cell).into_owned()).to_vec()
    };
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(snapshot.translations().iter().map(row)).collect();
    table::print(&rows);
}
