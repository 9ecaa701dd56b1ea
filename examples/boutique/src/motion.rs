//! A sensor that detects motion, and the light that it switches on.

use crate::calls::{Calls, Failure, Operation, Outcome, Request};
use crate::messages::{Motion, Switched};
use std::time::Duration;

/// The service time of each function.
const SERVICE: Duration = Duration::from_millis(1);

const SWITCH: Operation<Motion, Switched> = Operation::new("actuator", "/boutique.v1.Actuator/Switch");

/// Reports motion. The sensor's own request has no content.
pub(crate) async fn sense(calls: &impl Calls) -> Result<Outcome, Failure> {
    calls.wait(SERVICE).await;
    Ok(SWITCH.answer_instead_to(Motion { sensor: "hall".into() }))
}

/// Switches the light on.
pub(crate) async fn act(calls: &impl Calls, request: &Request) -> Result<Outcome, Failure> {
    let motion = SWITCH.question(request)?;
    calls.wait(SERVICE).await;
    Ok(SWITCH.answer(Switched { on: !motion.sensor.is_empty() }))
}
