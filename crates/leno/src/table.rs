//! Rows of a node's listings, as a table for people.

use crate::screen::shown;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

/// One column: its heading, the field of the row, and the field's format.
pub(crate) type Column = (&'static str, &'static str, Show);

/// The format of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// Unchanged.
    Plain,
    /// Unchanged, and only in wide tables.
    Wide,
    /// A time, in seconds since 1970, shown as local time.
    Time,
    /// The time since such a moment, or until it.
    Age,
    /// The same; `at_least` of the row: it may be longer.
    Since,
}

/// The cells of a row in these columns.
pub(crate) fn cells(columns: &[Column], row: &Value, now: Timestamp) -> Vec<String> {
    let cell = |(_, field, show): &Column| match show {
        Show::Since if row["at_least"] == true => format!("{} or more", cell(&row[*field], Show::Age, now)),
        show => cell(&row[*field], *show, now),
    };
    columns.iter().map(cell).collect()
}

fn cell(value: &Value, show: Show, now: Timestamp) -> String {
    let time = || value.as_f64().and_then(|seconds| Timestamp::from_millisecond((seconds * 1e3) as i64).ok());
    match (show, time()) {
        (Show::Time, Some(time)) => time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        (Show::Age | Show::Since, Some(time)) if time > now => {
            format!("in {}", rough(time.as_second() - now.as_second()))
        }
        (Show::Age | Show::Since, Some(time)) => rough(now.as_second() - time.as_second()),
        _ => plain(value),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => shown(text).into_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// `45s`, `12m`, `3h`, `9d`: in the largest unit of which there are at least two, if any.
fn rough(seconds: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(86_400, "d"), (3600, "h"), (60, "m")];
    let unit = UNITS.into_iter().find(|(length, _)| seconds >= 2 * length);
    unit.map_or_else(|| format!("{seconds}s"), |(length, name)| format!("{}{name}", seconds / length))
}

/// Prints rows below each other, in columns as wide as they need.
pub(crate) fn print(rows: &[Vec<String>]) {
    lines(rows).iter().for_each(|line| println!("{line}"));
}

/// The lines of such a table.
pub(crate) fn lines(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let length = |cell: &String| cell.chars().count();
    let widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| length(&row[column])).max().unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_told_as_people_tell_them() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let age = |seconds: f64| cell(&json!(1_800_000_000.0 + seconds), Show::Age, now);
        assert_eq!(
            ["0s", "119s", "2m", "119m", "2h", "47h", "2d"],
            [0., 119., 120., 7199., 7200., 172_799., 172_800.].map(|ago| age(-ago))
        );
        assert_eq!(age(3599.0), "in 59m");
        assert_eq!(cell(&Value::Null, Show::Age, now), "-");
        let told = cell(&json!(1_800_000_000.25), Show::Time, now);
        assert!(told.starts_with("2027-01-1") && told.len() == "2027-01-15 08:00:00".len(), "{told}");
    }

    #[test]
    fn other_fields_are_told_as_they_are() {
        let now = Timestamp::UNIX_EPOCH;
        let columns = [("A", "a", Show::Plain), ("B", "b", Show::Wide), ("C", "c", Show::Plain)];
        let row = json!({ "a": ["x", "y\n"], "b": 7, "c": [] });
        assert_eq!(cells(&columns, &row, now), ["x,y\\n", "7", "-"]);
    }

    #[test]
    fn the_age_of_a_condition_from_before_the_process_is_a_lower_bound() {
        let now = Timestamp::from_second(1000).unwrap();
        let since = |row| cells(&[("SINCE", "since", Show::Since)], &row, now);
        assert_eq!(since(json!({ "since": 400.0 })), ["10m"]);
        assert_eq!(since(json!({ "since": 400.0, "at_least": true })), ["10m or more"]);
        assert_eq!(since(json!({})), ["-"]);
    }
}
