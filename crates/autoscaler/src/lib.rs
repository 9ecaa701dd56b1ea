//! The number of instances that a function should have: Knative's autoscaler (KPA) as a pure
//! function of observations and time. It has no clock and does no I/O: the same observations at the
//! same times give the same decisions.
//!
//! A decision takes these steps in this order. Each may change the count, and the last one that did
//! is the reason of the decision:
//! 1. **Load.** The average load over the stable and the panic window, divided by the target and
//!    rounded up.
//! 2. **Burst.** Waiting requests count at once, not as an average: their present demand is part of
//!    the panic count.
//! 3. **Rates.** One step multiplies or divides the ready instances by the configured rates at
//!    most. Then the activation scale applies.
//! 4. **Panic.** Panic mode begins when the panic count is twice (the threshold) the ready
//!    instances. It ends when that was not so for a whole stable window. In panic mode the larger
//!    of both counts holds, and the count never falls.
//! 5. **Delay.** The count does not fall while requests wait, nor before the scale-down delay.
//! 6. **Bounds.** The initial scale, until it was reached once; then minimum and maximum.
//! 7. **Zero.** The last instance stays for the stable window and the grace period.
//!
//! Three things differ from Knative. Step 2 is immediate; there, an activator reports its queue
//! every second. Averages are exact instead of scraped. The last instance can end without any other
//! condition, because requests are always buffered here.

mod average;
mod reason;
#[cfg(test)]
mod tests;

pub use reason::{Mode, Reason};

use average::{Averages, Largest};
use leno_model::{Metric, Scale};
use std::time::Duration;

/// A function's instances and load at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observation {
    /// Ready instances. Those that are starting do not count.
    pub ready: u32,
    /// Requests that instances are handling.
    pub in_flight: u32,
    /// Requests that wait for an instance.
    pub waiting: u32,
    /// Seconds that all requests so far have spent waiting or being handled, in total.
    pub request_seconds: f64,
    /// Number of requests so far.
    pub requests: u64,
}

/// How many instances there should be, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Number of instances.
    pub desired: u32,
    /// The mode in which it was decided.
    pub mode: Mode,
    /// What determined the number.
    pub reason: Reason,
    /// Average load over the stable window, in the metric's unit.
    pub stable: f64,
    /// Average load over the panic window, in the metric's unit.
    pub panic: f64,
}

/// Decides for one function. Times are measured from any fixed moment and must not go back.
#[derive(Clone, Debug)]
pub struct Autoscaler {
    scale: Scale,
    /// Requests that one instance handles at a time; 0: no limit.
    concurrency: u32,
    load: Averages,
    /// When the panic threshold was last exceeded; `None`: stable mode.
    panic: Option<Duration>,
    recent_desired: Largest,
    /// Whether as many instances as the initial scale have ever been ready.
    initialised: bool,
    desired: u32,
    /// When instances were last wanted after none were.
    active_since: Duration,
    /// Since when no instance is needed.
    idle_since: Option<Duration>,
}

/// A number of instances, and what determined it.
#[derive(Clone, Copy)]
struct Count(u32, Reason);

impl Count {
    fn at_least(self, least: u32, reason: Reason) -> Self {
        if least > self.0 { Self(least, reason) } else { self }
    }

    fn at_most(self, most: u32, reason: Reason) -> Self {
        if most < self.0 { Self(most, reason) } else { self }
    }
}

impl Autoscaler {
    /// An autoscaler for a function that was just added.
    pub fn new(scale: Scale, concurrency: u32, now: Duration) -> Self {
        Self {
            scale,
            concurrency,
            load: Averages::default(),
            panic: None,
            recent_desired: Largest::default(),
            initialised: false,
            desired: scale.initial.max(scale.min).min(scale.max),
            active_since: now,
            idle_since: None,
        }
    }

    /// Changes the settings. Observations are kept, unless the metric changes. The next decision uses the new settings; [`Autoscaler::desired`] uses
    /// the new bounds at once.
    pub fn configure(&mut self, scale: Scale, concurrency: u32) {
        if scale.metric != self.scale.metric {
            self.load.clear();
        }
        (self.scale, self.concurrency) = (scale, concurrency);
    }

    /// The last decision, within the current minimum and maximum.
    pub fn desired(&self) -> u32 {
        self.desired.max(self.scale.min).min(self.scale.max)
    }

    /// Whether no decision is due until the next request: there is no load in the window, and there
    /// are no more instances than the minimum.
    pub fn rests(&self) -> bool {
        let settled = self.panic.is_none() && self.load.over(self.scale.window) == 0.0;
        settled && self.initialised && self.desired == self.scale.min.min(self.scale.max)
    }

    /// No instance can be started. None is needed until the next request.
    pub fn give_up(&mut self) {
        (self.desired, self.panic, self.initialised) = (0, None, true);
        self.load.clear();
        self.recent_desired.clear();
    }

    /// Decides. Call it every few seconds, and whenever a request begins to wait.
    pub fn decide(&mut self, now: Duration, seen: &Observation) -> Decision {
        let scale = self.scale;
        self.load.record(now, total(scale.metric, seen), scale.window);
        let (stable, panic) = (self.load.over(scale.window), self.load.over(scale.panic_window));
        let burst = Count(self.burst(seen), Reason::Waiting(seen.waiting));
        let steady = by_load(&scale, stable, scale.window);
        let sudden = by_load(&scale, panic, scale.panic_window).at_least(burst.0, burst.1);

        let mode = self.panic_or_not(now, seen, sudden.0, burst.0);
        let mut count = step(&scale, steady, seen);
        if burst.0 > 0 {
            count = count.at_least(scale.activation, burst.1);
        }
        if mode == Mode::Panic {
            let Count(sudden, reason) = step(&scale, sudden, seen);
            count = count.at_least(sudden, reason).at_least(self.desired, Reason::Panic);
        }
        if seen.waiting > 0 {
            count = count.at_least(self.desired, burst.1);
        }
        let lately = self.recent_desired.record(now, count.0, scale.scale_down_delay);
        count = count.at_least(lately, Reason::ScaleDownDelay(scale.scale_down_delay));
        self.initialised |= seen.ready >= scale.initial.min(scale.max);
        if !self.initialised {
            count = count.at_least(scale.initial, Reason::Initial);
        }
        count = count.at_least(scale.min, Reason::Minimum).at_most(scale.max, Reason::Maximum);
        let Count(desired, reason) = self.keep_the_last(now, count);
        self.desired = desired;
        Decision { desired, mode, reason, stable, panic }
    }

    /// Instances for all present requests, if any of them waits; otherwise 0.
    fn burst(&self, seen: &Observation) -> u32 {
        let one = match (self.concurrency, self.scale.metric) {
            (0, Metric::Concurrency) => self.scale.per_instance,
            // It is not known how many requests an instance can handle at a time.
            (0, Metric::Rps) => f64::INFINITY,
            (limit, _) => f64::from(limit),
        };
        if seen.waiting == 0 { 0 } else { ceil((f64::from(seen.in_flight) + f64::from(seen.waiting)) / one).max(1) }
    }

    fn panic_or_not(&mut self, now: Duration, seen: &Observation, sudden: u32, burst: u32) -> Mode {
        let over = f64::from(sudden) >= self.scale.panic_threshold * f64::from(seen.ready.max(1));
        // Without a ready instance, waiting requests that need several instances begin panic mode, whatever the threshold.
        let begins = over || seen.ready == 0 && burst > 1;
        if begins {
            self.panic = Some(now);
        }
        self.panic = self.panic.filter(|last| now <= *last + self.scale.window);
        if self.panic.is_some() { Mode::Panic } else { Mode::Stable }
    }

    fn keep_the_last(&mut self, now: Duration, count: Count) -> Count {
        if count.0 > 0 {
            if self.desired == 0 {
                self.active_since = now;
            }
            self.idle_since = None;
            return count;
        }
        let idle = *self.idle_since.get_or_insert(now.max(self.active_since + self.scale.window));
        if self.desired > 0 && now < idle + self.scale.last_instance {
            return Count(1, Reason::LastInstance(self.scale.last_instance));
        }
        // The averages start afresh with the next request.
        self.load.clear();
        self.recent_desired.clear();
        Count(0, Reason::Idle(self.scale.window))
    }
}

/// The growing total whose slope is the load.
fn total(metric: Metric, seen: &Observation) -> f64 {
    match metric {
        Metric::Concurrency => seen.request_seconds,
        Metric::Rps => seen.requests as f64,
    }
}

fn by_load(scale: &Scale, average: f64, window: Duration) -> Count {
    let target = scale.per_instance * scale.utilization;
    Count(ceil(average / target), Reason::Load { metric: scale.metric, average, window, target })
}

/// Limits a count by the scaling rates, relative to the ready instances, and raises it to the activation scale.
fn step(scale: &Scale, count: Count, seen: &Observation) -> Count {
    let ready = f64::from(seen.ready.max(1));
    let fewest = (ready / scale.down_rate).floor() as u32;
    let limited = count.at_least(fewest, Reason::DownRate).at_most(ceil(ready * scale.up_rate), Reason::UpRate);
    if count.0 > 0 { limited.at_least(scale.activation, Reason::Activation) } else { limited }
}

fn ceil(instances: f64) -> u32 {
    instances.ceil() as u32
}
