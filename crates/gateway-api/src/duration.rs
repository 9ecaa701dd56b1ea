//! Durations, as GEP-2257 has them.

use std::time::Duration;

/// The duration of a text such as `1m30s`; `None`: it is none.
pub fn duration(text: &str) -> Option<Duration> {
    let (mut total, mut rest, mut parts) = (Duration::ZERO, text, 0);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok().filter(|_| (1..=5).contains(&digits))?;
        rest = &rest[digits..];
        // `ms` before `m`.
        let (unit, millis) = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1000)]
            .into_iter()
            .find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        total += Duration::from_millis(number * millis);
        parts += 1;
    }
    (1..=4).contains(&parts).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        for (text, millis) in
            [("0s", 0), ("500ms", 500), ("1m30s", 90_000), ("2h", 7_200_000), ("1s1ms", 1001), ("5m5ms", 300_005)]
        {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "1", "s", "1.5s", "-1s", "1d", "123456s", "1s1s1s1s1s", "1s ", "1µs"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
