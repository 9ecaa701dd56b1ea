//! `leno import`: documents of the mesh from compose files and manifests of Kubernetes.

use crate::progress::Progress;
use crate::screen::shown;
use crate::table;
use anyhow::{Context, Result, ensure};
use leno_translate::{Import, Note, Outcome, Surroundings, compose, manifests, variables};
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Largest file that is read.
const MAX_FILE: u64 = 4 << 20;

/// The folder of a compose file, and the environment.
struct Folder {
    path: PathBuf,
    /// The variables of `.env`.
    variables: HashMap<String, String>,
}

impl Surroundings for Folder {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().or_else(|| self.variables.get(name).cloned())
    }

    fn read(&self, path: &str) -> Result<String, String> {
        read(&self.path.join(path)).map_err(|error| format!("{error:#}"))
    }
}

fn read(path: &Path) -> Result<String> {
    let size = fs::metadata(path)?.len();
    ensure!(size <= MAX_FILE, "it has {size} bytes; expected at most {MAX_FILE}");
    Ok(fs::read_to_string(path)?)
}

/// Writes the documents to `output`, or to standard output, and a report of what has no exact
/// counterpart to standard error.
pub(crate) fn run(file: &Path, output: Option<&Path>, namespace: Option<&str>) -> Result<ExitCode> {
    let text = read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let path = file.parent().unwrap_or(Path::new(".")).to_owned();
    let translates = Progress::of(format!("translates {}", file.display()));
    let imported = if text.lines().any(|line| line.starts_with("services:")) {
        let variables = read(&path.join(".env")).map(|text| variables(&text).collect()).unwrap_or_default();
        compose(file, &text, namespace, &Folder { path, variables })
    } else {
        manifests(file, &text, namespace)
    };
    drop(translates);
    let Import { documents, notes } = match imported {
        Ok(import) => import,
        Err(problems) => {
            crate::problems::report(&problems);
            return Ok(ExitCode::from(2));
        }
    };
    match output.filter(|output| *output != Path::new("-")) {
        None => print!("{documents}"),
        Some(output) => {
            let made = OpenOptions::new().write(true).create_new(true).open(output);
            let mut made = made.with_context(|| format!("{} cannot be made", output.display()))?;
            made.write_all(documents.as_bytes())?;
        }
    }
    report(&notes);
    Ok(ExitCode::SUCCESS)
}

/// The notes as a table, on standard error: standard output may have the documents.
fn report(notes: &[Note]) {
    let heading = ["PLACE", "FIELD", "", "NOTE"].map(str::to_owned).to_vec();
    let row = |note: &Note| {
        let Note { place, field, outcome, text, .. } = note;
        [place, field, outcome.words(), text].map(|cell| shown(cell).into_owned()).to_vec()
    };
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(notes.iter().map(row)).collect();
    table::lines(&rows).iter().for_each(|line| eprintln!("{line}"));
    let count = |wanted: Outcome| notes.iter().filter(|note| note.outcome == wanted).count();
    let (adapted, dropped, to_do) = (count(Outcome::Adapted), count(Outcome::Dropped), count(Outcome::ToDo));
    eprintln!("leno: {adapted} adapted, {dropped} dropped, {to_do} to do; next: `leno check`");
}
