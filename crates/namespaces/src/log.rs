//! Limits on a namespace's writes into the node's logs, and counters of the dropped lines.

use crate::Rate;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The burst is so many seconds of the rate.
const BURST_SECONDS: u64 = 4;
/// The burst is at least so many bytes.
const LEAST_BURST: u64 = 16 << 10;

/// A source of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Lines that instances write.
    Output,
    /// Lines of the access log.
    AccessLog,
    /// Messages about refusals and other events of an instance or a function.
    Events,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Output, Self::AccessLog, Self::Events];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::AccessLog => "access_log",
            Self::Events => "events",
        }
    }
}

/// The priority of a line when the burst is not large enough for all. Lower priorities leave a part
/// of the burst to higher ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importance {
    /// Output of a function.
    Output,
    /// Allowed requests.
    Allowed,
    /// Refused requests.
    Refused,
}

impl Importance {
    /// Eighths of the burst that it leaves.
    fn leaves(self) -> u8 {
        match self {
            Self::Output => 4,
            Self::Allowed => 2,
            Self::Refused => 0,
        }
    }
}

/// The log of one namespace.
#[derive(Debug, Default)]
pub struct Log {
    rate: Rate,
    totals: [Total; Source::ALL.len()],
    omitted: Mutex<[OmittedLines; Source::ALL.len()]>,
}

#[derive(Debug, Default)]
struct Total {
    lines: AtomicU64,
    bytes: AtomicU64,
}

/// Lines that were left out since the last report.
#[derive(Debug, Default)]
struct OmittedLines {
    lines: u64,
    bytes: u64,
    function: Option<Box<str>>,
    several: bool,
}

/// Lines of a namespace that were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Omission {
    /// Their source.
    pub source: Source,
    /// The function that they were about, `namespace/name`; `None`: they were about several.
    pub function: Option<Box<str>>,
    /// Number of the lines.
    pub lines: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Log {
    /// Puts a rate into force.
    pub(crate) fn set(&self, bytes_per_second: u64) {
        let burst = bytes_per_second.saturating_mul(BURST_SECONDS).max(LEAST_BURST);
        self.rate.set(bytes_per_second, burst);
    }

    /// Whether a line of so many bytes about `function` is to be written. If not, it is counted.
    pub fn admits(&self, source: Source, importance: Importance, function: &str, bytes: usize, now: Instant) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.rate.take(bytes, importance.leaves(), now) || {
            self.leave_out(source, function, bytes);
            false
        }
    }

    fn leave_out(&self, source: Source, function: &str, bytes: u64) {
        let total = &self.totals[source as usize];
        total.lines.fetch_add(1, Relaxed);
        total.bytes.fetch_add(bytes, Relaxed);
        let omitted = &mut self.omitted.lock().unwrap_or_else(PoisonError::into_inner)[source as usize];
        omitted.lines += 1;
        omitted.bytes = omitted.bytes.saturating_add(bytes);
        match &omitted.function {
            None => omitted.function = Some(function.into()),
            Some(other) => omitted.several |= **other != *function,
        }
    }

    /// The lines that were left out since the last call.
    pub fn take_omissions(&self) -> Vec<Omission> {
        let omitted = std::mem::take(&mut *self.omitted.lock().unwrap_or_else(PoisonError::into_inner));
        let each = Source::ALL.into_iter().zip(omitted).filter(|(_, omitted)| omitted.lines > 0);
        each.map(|(source, OmittedLines { lines, bytes, function, several })| Omission {
            source,
            function: function.filter(|_| !several),
            lines,
            bytes,
        })
        .collect()
    }

    /// Lines and bytes that were left out so far, by source.
    pub fn totals(&self) -> [(Source, u64, u64); Source::ALL.len()] {
        Source::ALL.map(|source| {
            let total = &self.totals[source as usize];
            (source, total.lines.load(Relaxed), total.bytes.load(Relaxed))
        })
    }

    /// The rate that all of it shares.
    pub fn rate(&self) -> &Rate {
        &self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_counted_by_source_and_said_once() {
        let (log, now) = (Log::default(), Instant::now());
        log.set(1 << 10);
        let flood = |source, importance, function| {
            (0..1000).filter(|_| log.admits(source, importance, function, 100, now)).count()
        };
        let written = flood(Source::Output, Importance::Output, "demo/shop");
        assert!((50..200).contains(&written), "{written}");
        assert!(flood(Source::AccessLog, Importance::Allowed, "demo/shop") > 0, "its own output is no reason");
        assert!(flood(Source::AccessLog, Importance::Refused, "demo/other") > 0, "a refusal comes first");
        let omissions = log.take_omissions();
        assert_eq!(omissions[0].source, Source::Output);
        assert_eq!((omissions[0].lines, omissions[0].function.as_deref()), (1000 - written as u64, Some("demo/shop")));
        assert_eq!((omissions[1].source, &omissions[1].function), (Source::AccessLog, &None));
        assert_eq!(log.take_omissions(), []);
        assert_eq!(log.totals()[0], (Source::Output, omissions[0].lines, omissions[0].bytes));
    }
}
