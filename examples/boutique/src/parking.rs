//! A car park: the functions find a car's plate in the picture of a parking spot, and start to
//! charge the driver. They store cars that they see for the first time.

use crate::calls::{Calls, Failure, Operation, Outcome, Request};
use crate::messages::{Parked, Sighting};
use std::time::Duration;

const FIND: Operation<Sighting, Parked> = Operation::new("search", "/boutique.v1.Search/Find");
const ADD: Operation<Sighting, Parked> = Operation::new("index", "/boutique.v1.Index/Add");
const KEEP: Operation<Sighting, Parked> = Operation::new("persist", "/boutique.v1.Persist/Keep");
const BEGIN: Operation<Sighting, Parked> = Operation::new("charging", "/boutique.v1.Charging/Begin");

/// One of so many cars is new.
const NEW: u64 = 10;

/// Finds the plate. The picture goes along as evidence.
pub(crate) async fn detect(calls: &impl Calls, request: &Request) -> Result<Outcome, Failure> {
    calls.wait(Duration::from_millis(435)).await;
    let plate = format!("P-{:06}", number_of(&request.body) % 1_000_000);
    Ok(FIND.answer_instead_to(Sighting { plate, picture: request.body.clone() }))
}

/// Looks whether the car is known.
pub(crate) async fn search(calls: &impl Calls, request: &Request) -> Result<Outcome, Failure> {
    let sighting = FIND.question(request)?;
    calls.wait(Duration::from_millis(20)).await;
    Ok(if is_new(&sighting) { ADD.answer_instead() } else { BEGIN.answer_instead() })
}

/// Adds a new car to the index.
pub(crate) async fn index(calls: &impl Calls, request: &Request) -> Result<Outcome, Failure> {
    ADD.question(request)?;
    calls.wait(Duration::from_millis(1)).await;
    Ok(KEEP.answer_instead())
}

/// Stores a new car.
pub(crate) async fn persist(calls: &impl Calls, request: &Request) -> Result<Outcome, Failure> {
    KEEP.question(request)?;
    calls.wait(Duration::from_millis(10)).await;
    Ok(BEGIN.answer_instead())
}

/// Starts to charge the driver.
pub(crate) async fn charge(calls: &impl Calls, request: &Request) -> Result<Outcome, Failure> {
    let sighting = BEGIN.question(request)?;
    calls.wait(Duration::from_millis(50)).await;
    let is_new = is_new(&sighting);
    Ok(BEGIN.answer(Parked { plate: sighting.plate, is_new }))
}

/// Decides by the plate alone, so that the same picture always leads to the same calls.
fn is_new(sighting: &Sighting) -> bool {
    number_of(sighting.plate.as_bytes()).is_multiple_of(NEW)
}

/// A pseudorandom number (FNV-1a).
fn number_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |number, byte| (number ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_one_of_ten_cars_is_new() {
        let sighting = |number| Sighting { plate: format!("P-{number:06}"), ..Sighting::default() };
        let new = (0..1000).filter(|number| is_new(&sighting(*number))).count();
        assert!((60..140).contains(&new), "{new}");
    }
}
