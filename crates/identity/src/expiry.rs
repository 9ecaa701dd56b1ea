//! The time from which a certificate that nothing has replaced is late.

use crate::verify;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::time::Duration;

const DAY: u64 = 86_400;

/// The certificate's holder, which decides how long a replacement takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A server, node or function: a file, or a request, replaces the certificate.
    Endpoint,
    /// A root or an intermediate: all nodes have to follow.
    Authority,
}

impl Holder {
    /// The longest time before the end that counts as late.
    fn longest(self) -> Duration {
        Duration::from_secs(match self {
            Self::Endpoint => 14 * DAY,
            Self::Authority => 30 * DAY,
        })
    }
}

/// The time from which a certificate of this life is late: the last quarter of the life, but no more
/// than the last 14 days, of an authority 30.
pub fn late_at(begin: UnixTime, end: UnixTime, holder: Holder) -> UnixTime {
    let quarter = Duration::from_secs(end.as_secs().saturating_sub(begin.as_secs())) / 4;
    UnixTime::since_unix_epoch(Duration::from_secs(end.as_secs()).saturating_sub(quarter.min(holder.longest())))
}

/// The same of the first certificate of a chain that is late; `None`: there is none, or it is
/// malformed.
pub fn chain_late_at<'a, 'der: 'a>(
    chain: impl IntoIterator<Item = &'a CertificateDer<'der>>,
    holder: Holder,
) -> Option<UnixTime> {
    let late = |certificate| verify::validity(certificate).map(|(begin, end)| late_at(begin, end, holder));
    chain.into_iter().filter_map(late).min_by_key(UnixTime::as_secs)
}

/// `expires in 19 days` or `has expired`, in the largest unit of which two are left.
pub fn expires_in_words(end: u64, now: u64) -> String {
    let left = match end.checked_sub(now) {
        None | Some(0) => return "has expired".to_owned(),
        Some(left) => left,
    };
    let unit = [(DAY, "days"), (3600, "hours"), (60, "minutes")].into_iter().find(|(length, _)| left >= 2 * length);
    let (length, name) = unit.unwrap_or((1, if left == 1 { "second" } else { "seconds" }));
    format!("expires in {} {name}", left / length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_quarter_is_late_and_never_more_than_two_weeks_or_a_month() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let left = |life: u64, holder| {
            1_000_000_000 + life - late_at(at(1_000_000_000), at(1_000_000_000 + life), holder).as_secs()
        };
        for (life, endpoint, authority) in [
            (3600, 900, 900),
            (40, 10, 10),
            (DAY, DAY / 4, DAY / 4),
            (56 * DAY, 14 * DAY, 14 * DAY),
            (90 * DAY, 14 * DAY, 90 * DAY / 4),
            (120 * DAY, 14 * DAY, 30 * DAY),
            (3650 * DAY, 14 * DAY, 30 * DAY),
        ] {
            assert_eq!((left(life, Holder::Endpoint), left(life, Holder::Authority)), (endpoint, authority), "{life}");
        }
        assert_eq!(late_at(at(5), at(3), Holder::Endpoint), at(3), "an end before the beginning");
    }

    #[test]
    fn the_time_left_is_in_its_largest_unit() {
        let words = |left| expires_in_words(1000 + left, 1000);
        assert_eq!(words(20 * DAY - 1), "expires in 19 days");
        assert_eq!(words(2 * DAY - 1), "expires in 47 hours");
        assert_eq!(words(900), "expires in 15 minutes");
        assert_eq!([words(119), words(1), words(0)], ["expires in 119 seconds", "expires in 1 second", "has expired"]);
        assert_eq!(expires_in_words(999, 1000), "has expired");
    }
}
