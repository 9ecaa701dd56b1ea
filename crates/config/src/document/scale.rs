//! `spec.scale` of a function. The fields have the names, the meanings and, but for `initial`, the defaults of Knative's autoscaler.

use crate::duration::Duration;
use leno_model::Metric;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many instances there are: as many as keep each at its `target`. The names and meanings are
/// those of Knative's autoscaler, whose pods are instances here.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Scale {
    /// Instances that are kept without any request, 0 to 1000. 0: the first request starts one, and
    /// the last one ends when it is idle. Without it: 0; 1 for a function with `ports` or volumes
    /// on disk, because an instance that ends loses what it keeps in memory.
    #[schemars(range(max = 1000))]
    pub min: Option<u32>,
    /// Instances at most; 0: no limit.
    pub max: u32,
    /// Instances that are started when the function is taken on, before any request. Knative's
    /// default is 1.
    pub initial: u32,
    /// Instances at least, as long as there is any load; the first request starts them.
    #[schemars(range(min = 1))]
    pub activation_scale: u32,
    /// Metric that is compared with `target`.
    pub metric: Metric,
    /// Target load of one instance: requests at a time, or requests a second. Without it: for
    /// `concurrency`, the function's own `concurrency`, or 100 if that has no limit; for `rps`,
    /// 200. A target above the function's `concurrency` means that.
    pub target: Option<f64>,
    /// Percentage of the target that is aimed at, so that there is capacity while further instances
    /// start.
    #[schemars(range(min = 1.0, max = 100.0))]
    pub target_utilization: f64,
    /// Time over which the load is averaged, 1s to 1h (the stable window). The last instance stays
    /// until there was no request for this long.
    pub window: Duration,
    /// Length of the panic window, in per cent of `window`.
    #[schemars(range(min = 1.0, max = 100.0))]
    pub panic_window_percentage: f64,
    /// Panic begins when the load of the panic window asks for this percentage of the ready
    /// instances. While it lasts, no instance is taken away; it ends when this was not so for a
    /// whole `window`.
    #[schemars(range(min = 110.0, max = 1000.0))]
    pub panic_threshold_percentage: f64,
    /// How long fewer instances must have been enough before any is taken away, at most 1h.
    pub scale_down_delay: Duration,
    /// How long the last instance stays after `window` passed without a request. Nothing is lost
    /// without it: requests are buffered from the first moment on.
    pub scale_to_zero_grace_period: Duration,
    /// The same, if this is the longer of the two.
    pub scale_to_zero_pod_retention_period: Duration,
    /// The ready instances may be multiplied by this in one step; more than 1.
    pub max_scale_up_rate: f64,
    /// The ready instances may be divided by this in one step; more than 1.
    pub max_scale_down_rate: f64,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            min: None,
            max: 0,
            initial: 0,
            activation_scale: 1,
            metric: Metric::Concurrency,
            target: None,
            target_utilization: 70.0,
            window: Duration::from_secs(60),
            panic_window_percentage: 10.0,
            panic_threshold_percentage: 200.0,
            scale_down_delay: Duration::from_secs(0),
            scale_to_zero_grace_period: Duration::from_secs(30),
            scale_to_zero_pod_retention_period: Duration::from_secs(0),
            max_scale_up_rate: 1000.0,
            max_scale_down_rate: 2.0,
        }
    }
}
