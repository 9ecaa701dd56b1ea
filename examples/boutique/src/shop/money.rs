//! Amounts.

use crate::messages::Money;

/// Millionths in one unit of a currency.
pub(crate) const MILLION: i64 = 1_000_000;

impl Money {
    pub(crate) fn zero(currency: &str) -> Self {
        Self { currency: currency.to_owned(), millionths: 0 }
    }

    /// The sum; `None`: the currencies differ, or it overflows.
    pub(crate) fn plus(&self, other: &Self, times: u32) -> Option<Self> {
        let more = other.millionths.checked_mul(times.into())?;
        let millionths = self.millionths.checked_add(more).filter(|_| self.currency == other.currency)?;
        Some(Self { currency: self.currency.clone(), millionths })
    }

    /// Appends the amount, as text for users.
    pub(crate) fn show(&self, into: &mut String) {
        use std::fmt::Write;
        let hundredths = (self.millionths + MILLION / 200) / (MILLION / 100);
        // Writing to a string cannot fail.
        let _ = write!(into, "{} {}.{:02}", self.currency, hundredths / 100, hundredths % 100);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_add_up_and_are_shown() {
        let one = Money { currency: "EUR".into(), millionths: 1_995_000 };
        let sum = Money::zero("EUR").plus(&one, 3).unwrap();
        assert_eq!(sum.millionths, 5_985_000);
        let mut text = String::new();
        sum.show(&mut text);
        assert_eq!(text, "EUR 5.99");
        assert_eq!(sum.plus(&Money::zero("USD"), 1), None);
        assert_eq!(sum.plus(&Money { millionths: i64::MAX, ..one }, 2), None);
    }
}
