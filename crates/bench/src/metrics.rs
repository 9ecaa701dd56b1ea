//! The metrics of a node under test.

use leno_testkit::Admin;
use std::net::SocketAddr;

/// The token of the admin listeners of nodes under test.
pub(crate) const TOKEN: &str = "leno-bench-asks-the-node-that-it-measures";

/// The admin listener at an address.
pub(crate) fn admin(address: SocketAddr) -> Admin {
    Admin::Address(address, TOKEN.to_owned())
}

/// The text of `/metrics`; `None`: there was no answer.
pub(crate) fn get(address: SocketAddr) -> Option<String> {
    admin(address).get("/metrics").map(|answer| answer.body)
}

/// The sum of all samples of this name that have this text among their labels; `None`: there are
/// none.
pub(crate) fn sum(text: &str, name: &str, label: &str) -> Option<u64> {
    let value = |line: &str| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
        labels.contains(label).then(|| value.parse::<u64>().ok())?
    };
    let values: Vec<u64> = text.lines().filter_map(value).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_added_up_by_name_and_label() {
        let text = "# TYPE a counter\na_total{f=\"x\",d=\"up\"} 3\na_total{f=\"y\",d=\"up\"} 4\na_total{f=\"y\",d=\"down\"} 5\nab_total{} 9\n";
        assert_eq!(sum(text, "a_total", "d=\"up\""), Some(7));
        assert_eq!(sum(text, "a_total", ""), Some(12));
        assert_eq!(sum(text, "b_total", ""), None);
    }
}
