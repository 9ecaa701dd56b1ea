//! `leno check`: everything that `leno up` would refuse, found without starting anything.

use anyhow::Result;
use leno_config::Problem;
use std::path::Path;
use std::process::ExitCode;

/// Prints what the documents define, or every problem in them.
pub fn run(path: &Path) -> Result<ExitCode> {
    match leno_config::load(path) {
        Ok(snapshot) => {
            println!("{}: {} functions, all fine", path.display(), snapshot.functions().len());
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) => {
            report(&problems);
            Ok(ExitCode::from(2))
        }
    }
}

/// One line for each problem, on standard error.
pub fn report(problems: &[Problem]) {
    for problem in problems {
        eprintln!("{problem}");
    }
    match problems.len() {
        1 => eprintln!("leno: 1 problem"),
        count => eprintln!("leno: {count} problems"),
    }
}
