//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

/// How long a condition may take. Only a broken test waits so long, and an emulated machine is
/// slow.
pub const TIMEOUT: Duration = Duration::from_secs(240);

/// The result of one look: `bool`, or an `Option` of the value that the test waits for.
pub trait Condition {
    /// The value that the wait returns.
    type Value;

    /// The value, if the condition holds.
    fn value(self) -> Option<Self::Value>;
}

impl Condition for bool {
    type Value = ();

    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Value = T;

    fn value(self) -> Self {
        self
    }
}

/// Polls until the condition holds, and blocks the thread meanwhile. `what` completes "waited in
/// vain for".
pub fn eventually<C: Condition>(what: &str, mut condition: impl FnMut() -> C) -> C::Value {
    let begin = Instant::now();
    loop {
        if let Some(value) = condition().value() {
            return value;
        }
        assert!(begin.elapsed() < TIMEOUT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The same as [`eventually`] for asynchronous tests: other tasks of the thread go on meanwhile.
pub async fn eventually_async<C: Condition>(what: &str, mut condition: impl FnMut() -> C) -> C::Value {
    let begin = Instant::now();
    loop {
        if let Some(value) = condition().value() {
            return value;
        }
        assert!(begin.elapsed() < TIMEOUT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
