//! Why there are as many instances as there are, in the words of the configuration.

use leno_config::slice::Metric;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// How the autoscaler is working.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By the average over the stable window.
    #[default]
    Stable,
    /// By the average over the panic window too, and never down.
    Panic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Stable => "stable",
            Self::Panic => "panic",
        })
    }
}

/// What made a count of instances this number: the last thing that changed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// The load, on average.
    Load {
        /// In this unit.
        metric: Metric,
        /// So much of it.
        average: f64,
        /// Over this time.
        window: Duration,
        /// So much is aimed at for each instance.
        target: f64,
    },
    /// So many requests wait.
    Waiting(u32),
    /// `activationScale`.
    Activation,
    /// `maxScaleUpRate`.
    UpRate,
    /// `maxScaleDownRate`.
    DownRate,
    /// Nothing is taken away in panic mode.
    Panic,
    /// `scaleDownDelay`.
    ScaleDownDelay(Duration),
    /// `initial`, which was not reached yet.
    Initial,
    /// `min`.
    Minimum,
    /// `max`.
    Maximum,
    /// `scaleToZeroGracePeriod`, or `scaleToZeroPodRetentionPeriod`.
    LastInstance(Duration),
    /// There was no request for this long, or ever.
    Idle(Duration),
    /// An instance could not be started, and nobody waits for one.
    Failed,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { metric, average, window, target } => {
                let unit = match metric {
                    Metric::Concurrency => "requests at a time",
                    Metric::Rps => "requests a second",
                };
                write!(f, "{average:.2} {unit} over {window:?}, {target:.2} for each instance")
            }
            Self::Waiting(1) => f.write_str("a request waits"),
            Self::Waiting(count) => write!(f, "{count} requests wait"),
            Self::Activation => f.write_str("activationScale"),
            Self::UpRate => f.write_str("maxScaleUpRate allows no more in one step"),
            Self::DownRate => f.write_str("maxScaleDownRate allows no fewer in one step"),
            Self::Panic => f.write_str("none is taken away in panic mode"),
            Self::ScaleDownDelay(delay) => write!(f, "scaleDownDelay: needed within the last {delay:?}"),
            Self::Initial => f.write_str("initial, not reached yet"),
            Self::Minimum => f.write_str("min"),
            Self::Maximum => f.write_str("max"),
            Self::LastInstance(time) => write!(f, "the last instance stays for {time:?}"),
            Self::Idle(window) => write!(f, "no request for {window:?}"),
            Self::Failed => f.write_str("it could not be started, and nobody waits for it"),
        }
    }
}
