//! `spec.scale` and `spec.queue` of a function.

use super::function::Sole;
use super::{Context, fields};
use crate::document::{FunctionSpec, Scale};
use crate::duration::Duration;
use crate::problem::Scope;
use leno_model::Metric;
use std::ops::RangeInclusive;

/// Instances of one function on one node.
const MOST: u32 = 1000;
/// Windows and delays.
const HOUR: Duration = Duration::from_secs(3600);
/// Knative's defaults for the two metrics.
const CONCURRENCY: f64 = 100.0;
const RPS: f64 = 200.0;

pub(super) fn scale(
    context: &Context<'_>,
    function: &Scope<'_>,
    spec: &FunctionSpec,
    sole: Option<&Sole>,
) -> leno_model::Scale {
    let (scope, scale) = (function.field("scale"), &spec.scale);
    counts(&scope, scale, sole);
    let percent = |name, value, range| percentage(&scope.field(name), value, range);
    let duration = |name, value, low| fields::within(&scope.field(name), value, low, HOUR);
    let window = duration("window", scale.window, Duration::from_secs(1));
    let panic_share = percent("panicWindowPercentage", scale.panic_window_percentage, 1.0..=100.0);
    leno_model::Scale {
        min: least(context, &scope, spec),
        max: match (scale.max, sole) {
            (0, Some(Sole::Volume(_))) => 1,
            (0, _) => u32::MAX,
            (max, _) => max,
        },
        initial: scale.initial,
        activation: scale.activation_scale,
        metric: scale.metric,
        per_instance: per_instance(&scope.field("target"), spec),
        utilization: percent("targetUtilization", scale.target_utilization, 1.0..=100.0),
        window,
        panic_window: window.mul_f64(panic_share),
        panic_threshold: percent("panicThresholdPercentage", scale.panic_threshold_percentage, 110.0..=1000.0),
        scale_down_delay: duration("scaleDownDelay", scale.scale_down_delay, Duration::default()),
        last_instance: duration("scaleToZeroGracePeriod", scale.scale_to_zero_grace_period, Duration::default()).max(
            duration("scaleToZeroPodRetentionPeriod", scale.scale_to_zero_pod_retention_period, Duration::default()),
        ),
        up_rate: rate(&scope.field("maxScaleUpRate"), scale.max_scale_up_rate),
        down_rate: rate(&scope.field("maxScaleDownRate"), scale.max_scale_down_rate),
    }
}

/// Instances that are kept without load. An instance with state is, unless the document asks for
/// another number.
fn least(context: &Context<'_>, scope: &Scope<'_>, spec: &FunctionSpec) -> u32 {
    let keeps_files = spec.volumes.iter().any(|volume| volume.name.is_some());
    if spec.ports.is_empty() && !keeps_files {
        return spec.scale.min.unwrap_or_default();
    }
    let loses = match keeps_files {
        true => "an idle instance ends with all that it keeps in memory, and does no work until the next request",
        false => "a connection is its only load, and an idle instance ends with all that it keeps in memory",
    };
    if spec.scale.min == Some(0) {
        scope.field("min").doubt(context.doubts, loses, "remove it: without it, one instance is kept");
    } else if spec.scale.min.is_none() {
        let periods = ["scaleToZeroGracePeriod", "scaleToZeroPodRetentionPeriod"];
        if let Some(field) = periods.into_iter().find(|field| scope.has(field)) {
            let message = "a function with `ports` or volumes on disk does not scale to zero";
            scope.field(field).doubt(context.doubts, message, format!("remove it, or write `min: 0`; {loses}"));
        }
    }
    spec.scale.min.unwrap_or(1)
}

fn counts(scope: &Scope<'_>, scale: &Scale, sole: Option<&Sole>) {
    let least = [
        ("min", scale.min.unwrap_or_default()),
        ("initial", scale.initial),
        ("activationScale", scale.activation_scale),
    ];
    for (name, count) in least.into_iter().chain([("max", scale.max)]) {
        let field = scope.field(name);
        if count > MOST {
            field.problem(format!("{count} instances"), format!("expected 0 to {MOST}"));
        }
        if let Some(sole) = sole.filter(|_| count > 1) {
            let (cannot, fix) = sole.explain();
            field.problem(format!("{count} instances {cannot}"), fix);
        }
    }
    for (name, count) in least {
        if scale.max > 0 && count > scale.max {
            let fix = format!("expected 0 to {}, or a larger `max`", scale.max);
            scope.field(name).problem(format!("{count} instances are more than `max`"), fix);
        }
    }
    if scale.activation_scale == 0 {
        scope
            .field("activationScale")
            .problem("0 instances serve nobody", "expected at least 1; `min: 0` scales to zero");
    }
}

/// The target of one instance, before utilization is applied.
fn per_instance(scope: &Scope<'_>, spec: &FunctionSpec) -> f64 {
    // Knative's smallest target.
    const LEAST: f64 = 0.01;
    if let Some(target) = spec.scale.target
        && !(LEAST..=1e6).contains(&target)
    {
        scope.problem(format!("a target of {target}"), format!("expected {LEAST} to 1000000"));
    }
    match (spec.scale.metric, spec.scale.target, spec.concurrency) {
        (Metric::Rps, target, _) => target.unwrap_or(RPS),
        (Metric::Concurrency, target, 0) => target.unwrap_or(CONCURRENCY),
        (Metric::Concurrency, target, limit) => target.unwrap_or(f64::INFINITY).min(f64::from(limit)),
    }
}

/// A percentage as a fraction.
fn percentage(scope: &Scope<'_>, value: f64, range: RangeInclusive<f64>) -> f64 {
    if !range.contains(&value) {
        scope.problem(format!("{value} percent"), format!("expected {} to {}", range.start(), range.end()));
        // The result is dropped with the refused document, but has to be valid until then.
        return range.end() / 100.0;
    }
    value / 100.0
}

fn rate(scope: &Scope<'_>, value: f64) -> f64 {
    if !(value > 1.0 && value <= 1e6) {
        scope.problem(format!("a rate of {value}"), "expected more than 1, such as 2; at most 1000000");
    }
    value
}

pub(super) fn queue(scope: &Scope<'_>, most: u32) -> u32 {
    const RANGE: RangeInclusive<u32> = 1..=100_000;
    if !RANGE.contains(&most) {
        scope.problem(format!("{most} waiting requests"), format!("expected {} to {}", RANGE.start(), RANGE.end()));
    }
    most
}
