//! Currencies and their exchange rates.

use crate::calls::{Failure, Operation, Outcome, Request};
use crate::messages::{Conversion, Currencies, Money, Nothing};
use std::sync::Arc;

pub(crate) const GET_SUPPORTED_CURRENCIES: Operation<Nothing, Currencies> =
    Operation::new("currency", "/boutique.v1.Currency/GetSupportedCurrencies");
pub(crate) const CONVERT: Operation<Conversion, Money> = Operation::new("currency", "/boutique.v1.Currency/Convert");

/// Value of a euro in ten-thousandths of each currency; made up, in the right order of magnitude.
const RATES: [(&str, i64); 33] = [
    ("AUD", 16_300),
    ("BGN", 19_558),
    ("BRL", 54_000),
    ("CAD", 14_700),
    ("CHF", 9_600),
    ("CNY", 78_000),
    ("CZK", 250_000),
    ("DKK", 74_600),
    ("EUR", 10_000),
    ("GBP", 8_500),
    ("HKD", 85_000),
    ("HRK", 75_300),
    ("HUF", 3_900_000),
    ("IDR", 170_000_000),
    ("ILS", 40_000),
    ("INR", 900_000),
    ("ISK", 1_500_000),
    ("JPY", 1_600_000),
    ("KRW", 14_600_000),
    ("MXN", 185_000),
    ("MYR", 51_000),
    ("NOK", 115_000),
    ("NZD", 17_700),
    ("PHP", 610_000),
    ("PLN", 43_000),
    ("RON", 49_700),
    ("RUB", 950_000),
    ("SEK", 114_000),
    ("SGD", 14_600),
    ("THB", 390_000),
    ("TRY", 350_000),
    ("USD", 10_900),
    ("ZAR", 203_000),
];

/// All codes, as a message.
pub(crate) struct Currency(Arc<Currencies>);

impl Default for Currency {
    fn default() -> Self {
        Self(Arc::new(Currencies { codes: RATES.iter().map(|(code, _)| (*code).to_owned()).collect() }))
    }
}

impl Currency {
    pub(crate) fn handle(&self, request: &Request) -> Result<Outcome, Failure> {
        match request.path.as_str() {
            path if path == GET_SUPPORTED_CURRENCIES.path => Ok(GET_SUPPORTED_CURRENCIES.answer(self.0.clone())),
            path if path == CONVERT.path => {
                let Conversion { from, to } = CONVERT.question(request)?;
                Ok(CONVERT.answer(convert(&from.unwrap_or_default(), to)?))
            }
            _ => Err(Failure::Path),
        }
    }
}

fn convert(from: &Money, to: String) -> Result<Money, Failure> {
    let of = |code: &str| {
        let found = RATES.binary_search_by_key(&code, |(code, _)| code);
        found.map(|place| i128::from(RATES[place].1)).map_err(|_| Failure::Missing("such currency"))
    };
    let millionths = i128::from(from.millionths) * of(&to)? / of(&from.currency)?;
    let millionths = millionths.try_into().map_err(|_| Failure::Question("too much money"))?;
    Ok(Money { currency: to, millionths })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_can_be_searched() {
        assert!(RATES.is_sorted_by_key(|(code, _)| code));
    }

    #[test]
    fn money_is_converted() {
        let dollars = Money { currency: "USD".into(), millionths: 10_900_000 };
        assert_eq!(convert(&dollars, "EUR".into()).unwrap().millionths, 10_000_000);
        assert_eq!(convert(&dollars, "JPY".into()).unwrap().millionths, 1_600_000_000);
        assert!(convert(&dollars, "XXX".into()).is_err());
        let most = Money { currency: "EUR".into(), millionths: i64::MAX };
        assert!(convert(&most, "IDR".into()).is_err());
    }
}
