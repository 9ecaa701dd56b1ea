//! Wall-clock time: as text, and as a moment to wait for.

use http::HeaderValue;
use leno_identity::UnixTime;
use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

/// A point in time that displays as RFC 3339 in UTC, to the millisecond.
#[derive(Clone, Copy, Debug)]
pub struct Rfc3339 {
    ms: u64,
}

/// Formats a time. Times before 1970 show as the beginning of 1970.
#[inline]
pub fn rfc3339(time: SystemTime) -> Rfc3339 {
    Rfc3339 { ms: unix_ms(time) }
}

/// The present time as a `Date` field has it.
pub fn http_date() -> HeaderValue {
    thread_local! {
        static LATEST: RefCell<(u64, HeaderValue)> = const { RefCell::new((0, HeaderValue::from_static(""))) };
    }
    let now = SystemTime::now();
    let second = unix_ms(now) / 1000;
    LATEST.with_borrow_mut(|(at, text)| {
        if *at != second {
            let date = HeaderValue::try_from(httpdate::fmt_http_date(now));
            (*at, *text) = (second, date.unwrap_or_else(|_| HeaderValue::from_static("")));
        }
        text.clone()
    })
}

/// Milliseconds since the Unix epoch; 0 before it.
#[inline]
pub fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Converts a wall-clock time. `None`: it is too far in the future to matter.
pub fn instant(time: UnixTime) -> Option<Instant> {
    let left = time.as_secs().saturating_sub(UnixTime::now().as_secs());
    Instant::now().checked_add(Duration::from_secs(left))
}

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = (self.ms / 86_400_000, self.ms % 86_400_000);
        let (year, month, day) = civil(days);
        // By hand, because each access log line has a time, and the standard formatter is slow with
        // seven padded numbers.
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |at: usize, digits: usize, mut number: u64| {
            for place in text[at..at + digits].iter_mut().rev() {
                *place = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        put(0, 4, year);
        put(5, 2, month);
        put(8, 2, day);
        put(11, 2, ms / 3_600_000);
        put(14, 2, ms / 60_000 % 60);
        put(17, 2, ms / 1000 % 60);
        put(20, 3, ms % 1000);
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

/// Gregorian date of a day counted from 1970-01-01. The calculation begins years in March, so that
/// the leap day comes last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // since 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + carry, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn is_the_date_that_the_calendar_says() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(ms)).to_string(), text);
        }
    }
}
