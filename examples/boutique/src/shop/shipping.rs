//! Shipping: its price, and the tracking number of a parcel.

use super::Numbers;
use super::money::MILLION;
use crate::calls::{Failure, Operation, Outcome, Request};
use crate::messages::{Money, Parcel, Shipment};

pub(crate) const GET_QUOTE: Operation<Parcel, Money> = Operation::new("shipping", "/boutique.v1.Shipping/GetQuote");
pub(crate) const SHIP_ORDER: Operation<Parcel, Shipment> =
    Operation::new("shipping", "/boutique.v1.Shipping/ShipOrder");

pub(crate) fn handle(numbers: &Numbers, request: &Request) -> Result<Outcome, Failure> {
    match request.path.as_str() {
        path if path == GET_QUOTE.path => {
            let pieces: i64 = GET_QUOTE.question(request)?.items.iter().map(|item| i64::from(item.quantity)).sum();
            // The price of a parcel, and a little for each piece.
            let millionths = if pieces == 0 { 0 } else { 4 * MILLION + pieces * MILLION / 4 };
            Ok(GET_QUOTE.answer(Money { currency: "USD".into(), millionths }))
        }
        path if path == SHIP_ORDER.path => {
            if SHIP_ORDER.question(request)?.address.is_none() {
                return Err(Failure::Question("nobody knows where to"));
            }
            Ok(SHIP_ORDER.answer(Shipment { tracking: numbers.next("parcel") }))
        }
        _ => Err(Failure::Path),
    }
}
