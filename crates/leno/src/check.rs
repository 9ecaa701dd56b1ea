//! `leno check`: everything that `leno up` would refuse, found without starting anything.

use crate::images;
use crate::screen::shown;
use crate::table;
use anyhow::Result;
use leno_config::{ImportRow, Problem, Snapshot};
use leno_proxy::extension;
use leno_proxy::modules::Modules;
use std::path::Path;
use std::process::ExitCode;

/// Prints what the documents define, or every problem in them. `strict`: what is very likely not meant is a failure too.
pub(crate) fn run(path: &Path, strict: bool) -> Result<ExitCode> {
    match load(path, &Modules::default()) {
        Ok(snapshot) => {
            let warnings = snapshot.warnings();
            println!("{}: {}", path.display(), snapshot.read());
            print_imports(&snapshot);
            let rest = match warnings.len() {
                0 => "all fine".to_owned(),
                count => counted(count, "warning"),
            };
            println!("{}: {}, {rest}", path.display(), snapshot.summary());
            for warning in warnings {
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

/// What became of each field of policies of other projects.
fn print_imports(snapshot: &Snapshot) {
    if snapshot.imports().is_empty() {
        return;
    }
    let heading = ["PLACE", "POLICY", "FIELD", "STANDING", "NOTE"].map(str::to_owned).to_vec();
    let row = |row: &ImportRow| {
        let ImportRow { place, policy, field, standing, note } = row;
        [place, policy, field, standing.words(), note].map(|cell| shown(cell).into_owned()).to_vec()
    };
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(snapshot.imports().iter().map(row)).collect();
    table::print(&rows);
}

/// Loads documents, and finds out whether the modules that they name can be run. What is compiled for that stays in `modules`.
pub(crate) fn load(path: &Path, modules: &Modules) -> Result<Snapshot, Vec<Problem>> {
    let snapshot = leno_config::load(path)?;
    let problems = compile(&snapshot, modules);
    if problems.is_empty() { Ok(snapshot) } else { Err(problems) }
}

/// What is wrong with the modules of extensions, with components, and with the names of images. Nothing that has an address is fetched for this.
pub(crate) fn compile(snapshot: &Snapshot, modules: &Modules) -> Vec<Problem> {
    let mut problems = Vec::new();
    for extension in snapshot.extensions() {
        let spec = &extension.spec;
        let Some(bytes) = snapshot.modules().get(&spec.module) else { continue };
        let checked = modules.add(spec.module, bytes).and_then(|()| extension::check(modules, spec));
        if let Err(message) = checked {
            problems.push(Problem { message, ..extension.place.clone() });
        }
    }
    for (component, place) in snapshot.components() {
        let Some(bytes) = snapshot.modules().get(&component.module) else { continue };
        if let Err(message) = modules.add(component.module, bytes) {
            problems.push(Problem { message, ..place.clone() });
        }
    }
    problems.extend(images::check(snapshot));
    problems
}

/// One line for each problem, on standard error.
pub(crate) fn report(problems: &[Problem]) {
    for problem in problems {
        eprintln!("{}", shown(&problem.to_string()));
    }
    eprintln!("leno: {}", counted(problems.len(), "problem"));
}

/// `1 problem`, `2 problems`
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
