//! Logs how many lines of each namespace were left out of the logs.

use leno_namespaces::{Namespaces, Omission, Source};
use std::sync::Arc;
use std::time::Duration;

/// How often the node reports a namespace's omissions.
const INTERVAL: Duration = Duration::from_secs(5);

/// Logs omissions in intervals, as long as the node runs.
pub(crate) async fn report(namespaces: Arc<Namespaces>) {
    let mut tick = tokio::time::interval(INTERVAL);
    loop {
        tick.tick().await;
        log(&namespaces);
    }
}

/// Reports the lines that were left out since the last report.
pub(crate) fn log(namespaces: &Namespaces) {
    for namespace in namespaces.all() {
        for omission in namespace.log.take_omissions() {
            tracing::warn!("{}", words(namespace.name(), &omission, namespace.log.rate().per_second()));
        }
    }
}

/// `… 12,345 lines (8.1 MiB) of demo/shop left out in 5 s: output, beyond logBandwidth of its namespace, 64.0 KiB`
fn words(namespace: &str, Omission { source, function, lines, bytes }: &Omission, rate: u64) -> String {
    let of = match function {
        Some(function) if &**function != Namespaces::NONE => function.to_string(),
        _ if namespace == Namespaces::NONE => "no namespace".to_owned(),
        _ => format!("namespace {namespace}"),
    };
    let what = match source {
        Source::Output => "output",
        Source::AccessLog => "access log",
        Source::Events => "events",
    };
    let (lines, bytes, rate) = (grouped(*lines), size(*bytes), size(rate));
    let seconds = INTERVAL.as_secs();
    format!(
        "… {lines} lines ({bytes}) of {of} left out in {seconds} s: {what}, beyond logBandwidth of its namespace, {rate}"
    )
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    let (unit, name) = if bytes >= MIB { (MIB, "MiB") } else { (KIB, "KiB") };
    let tenths = bytes.saturating_mul(10) / unit;
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_said_in_units_that_fit() {
        let mut omission =
            Omission { source: Source::Output, function: Some("demo/shop".into()), lines: 12_345, bytes: 8_493_466 };
        let said = words("demo", &omission, 65_536);
        assert!(said.starts_with("… 12,345 lines (8.1 MiB) of demo/shop left out in 5 s: output"), "{said}");
        (omission.function, omission.lines, omission.bytes) = (None, 1, 100);
        assert!(words("demo", &omission, 1).starts_with("… 1 lines (0.0 KiB) of namespace demo left out"));
        assert_eq!([grouped(0), grouped(999), grouped(1000), grouped(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
    }
}
