//! How long an instance may run: in processor time of its thread, which is looked at when the clock ticks.

use super::clock::{Clock, TICK};
use crate::cpu_time;
use std::time::Duration;
use wasmtime::{Engine, Store, UpdateDeadline};

/// What a run may use.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    /// So much from the first tick on: most runs are over by then and never ask what they have used.
    FromTick(Duration),
    /// Until this is over.
    Until(cpu_time::Limit),
}

/// A store whose instance is ended when its limit is reached. [`set`] says which.
pub(super) fn store(engine: &Engine) -> Store<Limit> {
    let mut store = Store::new(engine, Limit::FromTick(Duration::ZERO));
    store.epoch_deadline_callback(|mut store| {
        let mut limit = match *store.data() {
            Limit::FromTick(deadline) => cpu_time::Limit::after(deadline),
            Limit::Until(limit) => limit,
        };
        // Ticks run by the clock on the wall, which is the faster one; when they are up too early, as many are given as time is left.
        let left = limit.left();
        *store.data_mut() = Limit::Until(limit);
        Ok(if left.is_zero() { UpdateDeadline::Interrupt } else { UpdateDeadline::Continue(Clock::ticks(left)) })
    });
    store
}

/// Gives the run that starts now `deadline` of processor time. It may get up to a tick more, unless that is longer than the deadline.
pub(super) fn set(store: &mut Store<Limit>, clock: &Clock, deadline: Duration) {
    *store.data_mut() = if deadline < TICK {
        clock.hurry();
        Limit::Until(cpu_time::Limit::after(deadline))
    } else {
        Limit::FromTick(deadline)
    };
    store.set_epoch_deadline(1);
}
