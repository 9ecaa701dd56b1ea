//! Checks cards, without charging them.

use super::Numbers;
use crate::calls::{Failure, Operation, Outcome, Request};
use crate::messages::{Bill, Transaction};

pub(crate) const CHARGE: Operation<Bill, Transaction> = Operation::new("payment", "/boutique.v1.Payment/Charge");

/// Cards of an earlier year have expired.
const YEAR: u32 = 2025;

pub(crate) fn handle(numbers: &Numbers, request: &Request) -> Result<Outcome, Failure> {
    if request.path != CHARGE.path {
        return Err(Failure::Path);
    }
    let Bill { amount, card } = CHARGE.question(request)?;
    let card = card.ok_or(Failure::Question("there is no card"))?;
    if !is_number(&card.number) || !(1..=12).contains(&card.month) {
        return Err(Failure::Question("this is not a card"));
    }
    if card.year < YEAR {
        return Err(Failure::Question("the card has expired"));
    }
    if amount.is_none_or(|amount| amount.millionths <= 0) {
        return Err(Failure::Question("there is nothing to pay"));
    }
    Ok(CHARGE.answer(Transaction { id: numbers.next("payment") }))
}

/// Whether the last digit is the right check digit (ISO/IEC 7812-1).
fn is_number(text: &str) -> bool {
    let digits = text.bytes().filter(|byte| *byte != b'-').rev().enumerate();
    let mut sum = 0;
    let mut count = 0;
    for (place, byte) in digits {
        if !byte.is_ascii_digit() {
            return false;
        }
        let digit = u32::from(byte - b'0') << (place % 2);
        sum += if digit > 9 { digit - 9 } else { digit };
        count += 1;
    }
    (12..=19).contains(&count) && sum % 10 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_cards_are_checked() {
        assert!(is_number("4111-1111-1111-1111"));
        assert!(!is_number("4111-1111-1111-1112"));
        assert!(!is_number("4111-1111-1111-111x"));
        assert!(!is_number("0"));
    }
}
