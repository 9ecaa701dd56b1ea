//! Writes metrics as OpenMetrics text, of the families that [`super::families`] defines and of no
//! others.
//!
//! Crates that encode OpenMetrics attach exemplars only to histograms that they hold themselves, and
//! Leno's are sums of the workers' shards.

use std::fmt::{self, Write};
use std::time::SystemTime;

/// Content type of [`Exposition::finish`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The kinds of families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counts up. Samples end in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values by buckets. Samples end in `_bucket`, `_sum` and `_count`.
    Histogram,
    /// A constant 1, whose labels inform. Samples end in `_info`.
    Info,
}

impl Kind {
    /// The name in OpenMetrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// The suffixes of a family's samples.
    pub fn suffixes(self) -> &'static [&'static str] {
        match self {
            Self::Counter => &["_total"],
            Self::Gauge => &[""],
            Self::Histogram => &["_bucket", "_sum", "_count"],
            Self::Info => &["_info"],
        }
    }
}

/// The definition of a family.
#[derive(Debug)]
pub struct Definition {
    /// The name, without the suffixes of samples.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The names of labels. A sample lacks those that have no value.
    pub labels: &'static [&'static str],
    /// The meaning, in a sentence.
    pub help: &'static str,
}

impl Definition {
    /// The unit, with which the name ends.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "milliseconds", "bytes"]
            .into_iter()
            .find(|unit| self.name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')))
    }
}

/// A family with `N` labels.
#[derive(Debug)]
pub struct Family<const N: usize>(pub(super) Definition);

/// Adds metrics to an exposition.
pub trait Collector {
    /// Adds them, as they are now.
    fn collect(&self, exposition: &mut Exposition);
}

/// The value of a sample.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// Exact.
    Whole(i128),
    /// Rounded.
    Decimal(f64),
}

macro_rules! whole {
    ($($of:ty),*) => {$(
        impl From<$of> for Number {
            fn from(number: $of) -> Self {
                // No target has a `usize` of more than 64 bits.
                Self::Whole(number as i128)
            }
        }
    )*};
}
whole!(bool, u16, u32, u64, usize, i64);

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Decimal(number)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(formatter),
            Self::Decimal(number) if number.is_infinite() => {
                formatter.write_str(if *number > 0.0 { "+Inf" } else { "-Inf" })
            }
            Self::Decimal(number) => fmt::Debug::fmt(number, formatter),
        }
    }
}

/// An observed value, and the trace that it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Exemplar {
    /// ID of the trace.
    pub trace_id: u128,
    /// The value.
    pub value: f64,
    /// When it was observed.
    pub at: SystemTime,
}

/// One bucket of a histogram.
#[derive(Clone, Copy, Debug)]
pub struct Bucket<'a> {
    /// The upper bound, inclusive.
    pub bound: f64,
    /// Values in this bucket and in no lower one.
    pub count: u64,
    /// One of these values.
    pub exemplar: Option<&'a Exemplar>,
}

/// OpenMetrics text.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a family.
    pub fn family<const N: usize>(&mut self, family: &'static Family<N>) -> Samples<'_, N> {
        let Definition { name, kind, help, .. } = family.0;
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name()));
        if let Some(unit) = family.0.unit() {
            self.write(format_args!("# UNIT {name} {unit}\n"));
        }
        Samples { definition: &family.0, exposition: self }
    }

    /// Adds the metrics of a collector.
    pub fn with(mut self, collector: &dyn Collector) -> Self {
        collector.collect(&mut self);
        self
    }

    /// The whole text.
    pub fn finish(mut self) -> String {
        self.0.push_str("# EOF\n");
        self.0
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a `String` does not fail.
        let _ = self.0.write_fmt(text);
    }
}

/// The samples of a family with `N` labels.
#[derive(Debug)]
pub struct Samples<'a, const N: usize> {
    definition: &'static Definition,
    exposition: &'a mut Exposition,
}

impl<const N: usize> Samples<'_, N> {
    /// Adds a sample with these values of the labels. An empty value means no label.
    pub fn sample<L: AsRef<str>>(&mut self, labels: [L; N], value: impl Into<Number>) {
        self.line(self.definition.kind.suffixes()[0], &labels, None, value.into());
        self.exposition.0.push('\n');
    }

    /// Adds samples.
    pub fn samples<L: AsRef<str>, V: Into<Number>>(&mut self, samples: impl IntoIterator<Item = ([L; N], V)>) {
        samples.into_iter().for_each(|(labels, value)| self.sample(labels, value));
    }

    /// Adds a histogram with these values of the labels.
    pub fn histogram<'b, L: AsRef<str>>(
        &mut self,
        labels: [L; N],
        sum: f64,
        buckets: impl IntoIterator<Item = Bucket<'b>>,
    ) {
        let mut count = 0;
        for bucket in buckets {
            count += bucket.count;
            self.line("_bucket", &labels, Some(bucket.bound), count.into());
            if let Some(Exemplar { trace_id, value, at }) = bucket.exemplar {
                let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
                self.exposition.write(format_args!(" # {{trace_id=\"{trace_id:032x}\"}} {value:?} {at:.3}"));
            }
            self.exposition.0.push('\n');
        }
        for (suffix, value) in [("_sum", sum.into()), ("_count", count.into())] {
            self.line(suffix, &labels, None, value);
            self.exposition.0.push('\n');
        }
    }

    /// Writes a line without its end.
    fn line<L: AsRef<str>>(&mut self, suffix: &str, labels: &[L; N], bound: Option<f64>, value: Number) {
        self.exposition.write(format_args!("{}{suffix}", self.definition.name));
        let mut open = '{';
        for (name, value) in self.definition.labels.iter().zip(labels) {
            if !value.as_ref().is_empty() {
                self.exposition.write(format_args!("{open}{name}=\"{}\"", LabelValue(value.as_ref())));
                open = ',';
            }
        }
        if let Some(bound) = bound {
            self.exposition.write(format_args!("{open}le=\"{}\"", Number::Decimal(bound)));
            open = ',';
        }
        let close = if open == ',' { "}" } else { "" };
        self.exposition.write(format_args!("{close} {value}"));
    }
}

/// A label's value, escaped as OpenMetrics requires.
struct LabelValue<'a>(&'a str);

impl fmt::Display for LabelValue<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '\\' => formatter.write_str("\\\\"),
            '"' => formatter.write_str("\\\""),
            '\n' => formatter.write_str("\\n"),
            _ => formatter.write_char(character),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static FAMILY: Family<2> = Family(Definition {
        name: "leno_example_bytes",
        kind: Kind::Counter,
        labels: &["function", "reason"],
        help: "An example.",
    });

    /// The labels of a sample, read as the text format of OpenMetrics 1.0 says.
    fn labels(line: &str) -> Vec<(String, String)> {
        let mut rest = line.strip_prefix("leno_example_bytes_total").unwrap();
        let mut found = Vec::new();
        while let Some(begun) = rest.strip_prefix(['{', ',']) {
            let (name, text) = begun.split_once("=\"").unwrap();
            let (mut value, mut characters) = (String::new(), text.chars());
            loop {
                match characters.next().unwrap() {
                    '"' => break,
                    '\\' => value.push(match characters.next().unwrap() {
                        'n' => '\n',
                        other => other,
                    }),
                    other => value.push(other),
                }
            }
            found.push((name.to_owned(), value));
            rest = characters.as_str();
        }
        assert!(rest == " 7" || rest == "} 7", "{rest:?}");
        found
    }

    proptest! {
        #[test]
        fn values_of_labels_are_read_back_as_they_were(values in any::<[String; 2]>()) {
            let mut exposition = Exposition::default();
            exposition.family(&FAMILY).sample([&values[0], &values[1]], 7u64);
            let text = exposition.finish();
            let lines: Vec<&str> = text.split('\n').collect();
            let head = ["# HELP leno_example_bytes An example.", "# TYPE leno_example_bytes counter", "# UNIT leno_example_bytes bytes"];
            prop_assert_eq!(&lines[..3], &head[..]);
            prop_assert_eq!(&lines[4..], &["# EOF", ""][..], "one line for a sample: {}", text);
            let given = FAMILY.0.labels.iter().map(|name| (*name).to_owned()).zip(values);
            prop_assert_eq!(labels(lines[3]), given.filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>());
        }
    }
}
