//! A trace in the format of the Azure Functions trace of 2019, as InVitro samples it:
//! `invocations.csv` and `durations.csv` in a folder. Their rows are in different orders and belong
//! together by `HashFunction`. `memory.csv` is not read: no memory is allocated.

use super::workload::{Percentiles, Profile, Workload};
use anyhow::{Context, bail, ensure};
use csv::{ReaderBuilder, StringRecord};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const FUNCTION: &str = "HashFunction";
const PERCENTILES: [&str; 7] = [
    "percentile_Average_0",
    "percentile_Average_1",
    "percentile_Average_25",
    "percentile_Average_50",
    "percentile_Average_75",
    "percentile_Average_99",
    "percentile_Average_100",
];

/// Which part of a trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// How many functions, drawn at random; `None`: all.
    pub functions: Option<usize>,
    /// The minute to begin with, as the header of `invocations.csv` calls it; `None`: its first.
    pub first_minute: Option<u32>,
    pub minutes: usize,
    pub seed: u64,
}

/// Reads a part of a trace.
///
/// # Errors
/// They name file, line and column of the fault.
pub(super) fn load(folder: &Path, part: &Part) -> anyhow::Result<Workload> {
    let mut times = times(&Table::open(folder.join("durations.csv"))?)?;
    let table = Table::open(folder.join("invocations.csv"))?;
    let (first, columns) = minutes(&table, part)?;
    let mut functions = Vec::new();
    for row in &table.rows {
        let name = table.text(row, FUNCTION)?;
        let Some(times) = times.remove(name) else {
            bail!("{}: function {name} is not in durations.csv, or twice here", table.place(row, FUNCTION));
        };
        let per_minute = columns.iter().map(|column| table.number(row, column)).collect::<anyhow::Result<_>>()?;
        functions.push(Profile { per_minute, times });
    }
    let there = functions.len();
    ensure!(there > 0, "{} has no functions", table.path.display());
    let functions = match part.functions.filter(|count| *count < there) {
        None => functions,
        Some(count) => {
            let mut random = ChaCha8Rng::seed_from_u64(part.seed);
            let mut drawn = rand::seq::index::sample(&mut random, there, count).into_vec();
            drawn.sort_unstable();
            drawn.into_iter().map(|index| functions[index].clone()).collect()
        }
    };
    let source = format!(
        "{}, {}{} minutes from minute {first} on",
        named(folder, there),
        drawn(functions.len(), there),
        part.minutes
    );
    Ok(Workload { functions, source })
}

/// The workload's name. The folder's name gives the size of the paper's samples; other samples have
/// no name.
fn named(folder: &Path, functions: usize) -> String {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match functions {
        // The paper's own sample is not public: ours has its size and was drawn by its rules.
        200 => format!("a 200-function Azure sample matched to the paper's size (folder {name})"),
        _ => format!("an Azure sample of {functions} functions (folder {name})"),
    }
}

fn drawn(functions: usize, there: usize) -> String {
    if functions < there { format!("{functions} of them at random, ") } else { String::new() }
}

fn times(table: &Table) -> anyhow::Result<HashMap<String, Percentiles>> {
    let mut times = HashMap::new();
    for row in &table.rows {
        let mut values = [0.0; 7];
        for (index, column) in PERCENTILES.iter().enumerate() {
            let value: f64 = table.number(row, column)?;
            let least = if index == 0 { 0.0 } else { values[index - 1] };
            ensure!(
                value.is_finite() && value >= least,
                "{}: {value} where at least {least} is expected",
                table.place(row, column)
            );
            values[index] = value;
        }
        let name = table.text(row, FUNCTION)?.to_owned();
        let known = times.insert(name, Percentiles(values));
        ensure!(known.is_none(), "{}: this function was there before", table.place(row, FUNCTION));
    }
    Ok(times)
}

/// Name of the first minute, and of all minutes of the part.
fn minutes(table: &Table, part: &Part) -> anyhow::Result<(u32, Vec<String>)> {
    let is_minute = |name: &&String| name.parse::<u32>().is_ok();
    let known: Vec<&String> = table.names.iter().filter(is_minute).collect();
    let file = table.path.display();
    let first = known.first().with_context(|| format!("{file}, line 1: no column is called by a minute, like 480"))?;
    let first: u32 = part.first_minute.map_or_else(|| first.parse(), Ok)?;
    let columns: Vec<String> = (first..).take(part.minutes).map(|minute| minute.to_string()).collect();
    if let Some(missing) = columns.iter().find(|column| !known.contains(column)) {
        bail!("{file}, line 1: there is no minute {missing}; there are {} from {} on", known.len(), known[0]);
    }
    Ok((first, columns))
}

/// A file of comma-separated values.
struct Table {
    path: PathBuf,
    names: Vec<String>,
    columns: HashMap<String, usize>,
    rows: Vec<StringRecord>,
}

impl Table {
    fn open(path: PathBuf) -> anyhow::Result<Self> {
        let file = File::open(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        let mut reader = ReaderBuilder::new().from_reader(file);
        // The library's words name the line.
        let names: Vec<String> = reader
            .headers()
            .with_context(|| path.display().to_string())?
            .iter()
            .map(|name| name.trim_start_matches('\u{feff}').to_owned())
            .collect();
        let columns = names.iter().enumerate().map(|(index, name)| (name.clone(), index)).collect();
        let rows = reader.records().collect::<Result<_, _>>().with_context(|| path.display().to_string())?;
        Ok(Self { path, names, columns, rows })
    }

    fn text<'a>(&self, row: &'a StringRecord, column: &str) -> anyhow::Result<&'a str> {
        let index = self.columns.get(column);
        let index = index.with_context(|| format!("{}, line 1: there is no column {column}", self.path.display()))?;
        row.get(*index).with_context(|| format!("{}: nothing there", self.place(row, column)))
    }

    fn number<T: FromStr>(&self, row: &StringRecord, column: &str) -> anyhow::Result<T> {
        let text = self.text(row, column)?;
        text.trim().parse().ok().with_context(|| format!("{}: `{text}` is no such number", self.place(row, column)))
    }

    fn place(&self, row: &StringRecord, column: &str) -> String {
        let line = row.position().map_or(0, csv::Position::line);
        format!("{}, line {line}, column {column}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVOCATIONS: &str =
        "HashOwner,HashApp,HashFunction,Trigger,480,481,482\no,a,f1,http,1,0,3\no,a,f2,timer,0,1,0\n";
    const DURATIONS: &str = "HashOwner,HashApp,HashFunction,Average,Count,Minimum,Maximum,percentile_Average_0,\
        percentile_Average_1,percentile_Average_25,percentile_Average_50,percentile_Average_75,percentile_Average_99,\
        percentile_Average_100\no,a,f2,5,9,1.0,9.0,1,2,3,4,5,6,7\no,a,f1,5,9,1.0,9.0,10,20,30,40.5,50,60,70\n";
    const ALL: Part = Part { functions: None, first_minute: None, minutes: 3, seed: 42 };

    fn loaded(invocations: &str, durations: &str, part: &Part) -> anyhow::Result<Workload> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("invocations.csv"), invocations).unwrap();
        std::fs::write(folder.path().join("durations.csv"), durations).unwrap();
        load(folder.path(), part)
    }

    fn refusal(invocations: &str, durations: &str, part: &Part) -> String {
        format!("{:#}", loaded(invocations, durations, part).unwrap_err())
    }

    #[test]
    fn rows_belong_together_by_their_function() {
        let workload = loaded(INVOCATIONS, DURATIONS, &ALL).unwrap();
        assert_eq!(workload.functions[0].per_minute, [1, 0, 3]);
        assert_eq!(workload.functions[0].times, Percentiles([10.0, 20.0, 30.0, 40.5, 50.0, 60.0, 70.0]));
        assert_eq!(workload.functions[1].times.0[6], 7.0);
        assert_eq!(workload.count(), 5);
        assert!(
            workload.source.contains("2 functions") && workload.source.contains("minute 480"),
            "{}",
            workload.source
        );
    }

    #[test]
    fn a_part_is_some_minutes_of_some_functions() {
        let part = Part { functions: Some(1), first_minute: Some(481), minutes: 2, seed: 42 };
        let workload = loaded(INVOCATIONS, DURATIONS, &part).unwrap();
        assert_eq!((workload.functions.len(), workload.functions[0].per_minute.len()), (1, 2));
        assert!(workload.source.contains("1 of them at random"), "{}", workload.source);
    }

    #[test]
    fn what_is_wrong_is_named_by_file_line_and_column() {
        let cases = [
            (INVOCATIONS.replace("http,1", "http,x"), DURATIONS.to_owned(), "invocations.csv, line 2, column 480: `x`"),
            (INVOCATIONS.replace("timer,0", "timer,-1"), DURATIONS.to_owned(), "line 3, column 480: `-1`"),
            (INVOCATIONS.replace("f2", "f3"), DURATIONS.to_owned(), "line 3, column HashFunction: function f3"),
            (INVOCATIONS.replace("f2", "f1"), DURATIONS.to_owned(), "line 3, column HashFunction: function f1"),
            (
                INVOCATIONS.replace("HashFunction", "Name"),
                DURATIONS.to_owned(),
                "line 1: there is no column HashFunction",
            ),
            (INVOCATIONS.replace(",0,1,0", ",0,1"), DURATIONS.to_owned(), "line: 3"),
            (INVOCATIONS.replace("480,481,482", "a,b,c"), DURATIONS.to_owned(), "no column is called by a minute"),
            (
                INVOCATIONS.to_owned(),
                DURATIONS.replace("40.5", "80"),
                "durations.csv, line 3, column percentile_Average_75: 50",
            ),
            (INVOCATIONS.to_owned(), DURATIONS.replace("40.5", "NaN"), "line 3, column percentile_Average_50"),
            (
                INVOCATIONS.to_owned(),
                DURATIONS.replace("f1", "f2"),
                "line 3, column HashFunction: this function was there",
            ),
        ];
        for (invocations, durations, expected) in cases {
            let refusal = refusal(&invocations, &durations, &ALL);
            assert!(refusal.contains(expected), "{refusal} instead of {expected}");
        }
        let late = refusal(INVOCATIONS, DURATIONS, &Part { first_minute: Some(481), ..ALL });
        assert!(late.contains("there is no minute 483"), "{late}");
        assert!(load(Path::new("/nowhere"), &ALL).is_err());
    }
}
