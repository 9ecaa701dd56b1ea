//! Amounts in options, as documents write them.

use leno_model::size::Size;
use std::time::Duration;

/// Memory in bytes: `512Mi` as in documents, or a number of bytes.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(bytes) => Ok(bytes),
        Err(_) => text.parse::<Size>().map(|size| size.0).map_err(|error| format!("{error}, or a number of bytes")),
    }
}

/// Thousandths of a processor: `0.5` as in documents, `500m` as in Kubernetes, or their number.
pub(crate) fn cpu(text: &str) -> Result<u64, String> {
    let expected = || {
        let bad = text.escape_debug();
        format!("`{bad}` is no number of processors; expected one such as 0.5, 4.0, or thousandths: 500m, 500")
    };
    let whole = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    if let Some(millis) = text.strip_suffix('m') {
        return whole(millis).ok_or_else(expected);
    }
    let Some((cores, rest)) = text.split_once('.') else {
        let millis = whole(text).ok_or_else(expected)?;
        // No function may have less than 0.01, so a smaller offer is very likely one in processors.
        if (1..10).contains(&millis) {
            return Err(format!(
                "{millis} is {millis} thousandths of a processor; write {millis}.0 for processors, or {millis}m"
            ));
        }
        return Ok(millis);
    };
    let places = rest.len();
    let millis = (1..=3).contains(&places).then(|| whole(rest)).flatten();
    let scaled: Option<u64> = millis.and_then(|millis: u64| millis.checked_mul(10_u64.pow(3 - places as u32)));
    let cores: Option<u64> = whole(cores);
    cores.zip(scaled).and_then(|(cores, millis)| cores.checked_mul(1000)?.checked_add(millis)).ok_or_else(expected)
}

/// A duration: `90d`, `12h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    seconds(text).map(Duration::from_secs)
}

/// A duration in seconds: `90d`, `12h`.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    let units = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let seconds = units.into_iter().find_map(|(unit, length)| {
        let count: u64 = text.strip_suffix(unit)?.parse().ok()?;
        count.checked_mul(length)
    });
    seconds.filter(|seconds| *seconds > 0).ok_or_else(|| "expected a duration, such as 90d, 12h or 10m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(["90d", "1h", "5s"].map(|text| seconds(text).unwrap()), [7_776_000, 3600, 5]);
        for bad in ["", "d", "0d", "-1h", "1", "1w", "999999999999999999d"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn amounts_are_written_as_in_documents_or_as_numbers() {
        assert_eq!(
            ["512Mi", "8Gi", "0", "536870912"].map(|text| memory(text).unwrap()),
            [512 << 20, 8 << 30, 0, 512 << 20]
        );
        assert_eq!(
            ["0.5", "4.0", "0.125", "16.25", "500m", "500", "0", "4000", "2m"].map(|text| cpu(text).unwrap()),
            [500, 4000, 125, 16_250, 500, 500, 0, 4000, 2]
        );
        for bad in ["", "512M", "0.5Gi", "-1", "1e9", "512 Mi"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
        for bad in
            ["", ".", "0.", "0.0005", "-1", "+5", "1e3", "m", "half", "99999999999999999999", "18446744073709551615.0"]
        {
            assert!(cpu(bad).is_err(), "{bad}");
        }
        assert!(cpu("4").unwrap_err().contains("write 4.0 for processors"));
    }
}
