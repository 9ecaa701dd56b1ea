//! Rows of a listing, printed in the format that the user chooses.

use crate::colour;
use crate::screen::{shown_all, shown_json};
use crate::table::{self, Column, Show};
use anyhow::Result;
use jiff::Timestamp;
use serde_json::Value;

/// The format of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// A table, with times as ages or local time.
    Table,
    /// A table with more columns.
    Wide,
    /// Only the names.
    Name,
    /// As the API returns it; times in seconds since 1970.
    Json,
    /// The same in YAML. Characters that a terminal would act on are escaped as in tables.
    Yaml,
}

/// Prints rows in this format; `headings`: with the names of the columns.
pub(crate) fn print_rows(columns: &[Column], rows: &[&Value], form: Form, headings: bool) -> Result<()> {
    if let Form::Json | Form::Yaml = form {
        println!("{}", document(rows, form)?);
        return Ok(());
    }
    let is_shown = |at: usize, show: Show| match form {
        Form::Name => at == 0,
        Form::Wide => true,
        _ => show != Show::Wide,
    };
    let columns: Vec<Column> =
        columns.iter().enumerate().filter(|(at, (.., show))| is_shown(*at, *show)).map(|(_, column)| *column).collect();
    let headings = headings && form != Form::Name;
    let headings = headings.then(|| columns.iter().map(|(heading, ..)| (*heading).to_owned()).collect::<Vec<_>>());
    let now = Timestamp::now();
    let cells = rows.iter().map(|row| table::cells(&columns, row, now));
    let has_headings = headings.is_some();
    let mut lines = table::lines(&headings.into_iter().chain(cells).collect::<Vec<_>>()).into_iter();
    if has_headings {
        println!("{}", lines.next().unwrap_or_default());
    }
    lines.zip(rows).for_each(|(line, row)| println!("{}", colour::by_state(line, row)));
    Ok(())
}

/// Rows for a program to read.
fn document(rows: &[&Value], form: Form) -> Result<String> {
    match form {
        Form::Yaml => {
            let rows: Vec<Value> = rows.iter().map(|row| shown_all((*row).clone())).collect();
            // The output of `--watch` is one stream of several documents.
            Ok(format!("---\n{}", serde_saphyr::to_string(&rows)?.trim_end()))
        }
        _ => Ok(shown_json(&serde_json::to_string_pretty(rows)?).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_is_of_rows_and_acts_on_no_terminal() {
        let rows =
            [serde_json::json!({ "job": "a/b", "exit": null, "reason": "x\x1b[2J: #\n\u{202e}- y", "callees": ["c"] })];
        let yaml = document(&rows.iter().collect::<Vec<_>>(), Form::Yaml).unwrap();
        assert!(yaml.starts_with("---\n- "), "{yaml}");
        assert!(yaml.contains("job: a/b\n") && yaml.contains(r"x\\u{1b}[2J: #\\n\\u{202e}- y"), "{yaml}");
        assert!(!yaml.contains(|character: char| character != '\n' && character.is_control()), "{yaml}");
    }
}
