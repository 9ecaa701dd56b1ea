//! Why a function has as many instances as it has, in the terms of the configuration.

use leno_model::Metric;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The autoscaler's mode, as in Knative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Follows the average over the stable window.
    #[default]
    Stable,
    /// Also follows the average over the panic window, and never scales down.
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

/// What determined the number of instances: the last step that changed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// The average load.
    Load {
        /// Unit of `average` and `target`.
        metric: Metric,
        /// The average load.
        average: f64,
        /// The window of the average.
        window: Duration,
        /// The load that is aimed at for each instance.
        target: f64,
    },
    /// This many requests wait for an instance.
    Waiting(u32),
    /// `activationScale` raised the number.
    Activation,
    /// `maxScaleUpRate` limited the number.
    UpRate,
    /// `maxScaleDownRate` limited the decrease.
    DownRate,
    /// Panic mode never scales down.
    Panic,
    /// `scaleDownDelay`: the instances were needed within this time.
    ScaleDownDelay(Duration),
    /// `initial`, which has not been reached yet.
    Initial,
    /// `min` raised the number.
    Minimum,
    /// `max` limited the number.
    Maximum,
    /// The last instance stays this long: `scaleToZeroGracePeriod` or `scaleToZeroPodRetentionPeriod`.
    LastInstance(Duration),
    /// No request came for this long, or none ever came.
    Idle(Duration),
    /// An instance could not be started, and no request waits for one.
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
