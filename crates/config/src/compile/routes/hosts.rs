//! The hosts that a listener and a route both serve.

use std::collections::BTreeSet;

/// The hosts of a route at a listener; empty: they have none in common. `listener`: `None` for all
/// hosts. All hosts are in the form in which they are compared.
pub(super) fn common(listener: Option<&str>, route: &[String]) -> Vec<String> {
    let listener = listener.unwrap_or("*");
    if route.is_empty() {
        return vec![listener.to_owned()];
    }
    let mut hosts: Vec<String> = route.iter().filter_map(|host| narrower(listener, host)).map(str::to_owned).collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

/// Whether some hosts and others have one in common.
pub(super) fn overlap(one: &BTreeSet<String>, other: &[String]) -> bool {
    one.iter().any(|host| other.iter().any(|another| narrower(host, another).is_some()))
}

/// The host of two that the other one includes; `None`: neither includes the other.
pub(super) fn narrower<'h>(one: &'h str, other: &'h str) -> Option<&'h str> {
    match () {
        () if includes(one, other) => Some(other),
        () if includes(other, one) => Some(one),
        () => None,
    }
}

/// Whether a host, `*.suffix` or `*` includes another one.
pub(in crate::compile) fn includes(wide: &str, narrow: &str) -> bool {
    match wide.strip_prefix('*') {
        Some(suffix) if narrow.starts_with('*') => narrow[1..].ends_with(suffix),
        Some(suffix) => narrow.len() > suffix.len() && narrow.ends_with(suffix),
        None => wide == narrow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn listeners_and_routes_have_the_narrower_host_in_common() {
        let hosts = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (listener, route, wanted) in [
            (None, &[][..], &["*"][..]),
            (None, &["a.example"], &["a.example"]),
            (Some("a.example"), &[], &["a.example"]),
            (Some("*.example"), &[], &["*.example"]),
            (Some("test.example.com"), &["test.example.com"], &["test.example.com"]),
            (Some("test.example.com"), &["*.example.com"], &["test.example.com"]),
            (Some("test.example.com"), &["*.example.com", "*.com"], &["test.example.com"]),
            (
                Some("*.example.com"),
                &["*.example.com", "test.example.com", "foo.test.example.com"],
                &["*.example.com", "foo.test.example.com", "test.example.com"],
            ),
            (Some("*.example.com"), &["example.com", "test.example.net"], &[]),
            (Some("*.example.com"), &["*.a.example.com"], &["*.a.example.com"]),
            (Some("*.a.example.com"), &["*.example.com"], &["*.a.example.com"]),
            (Some("*.xample.com"), &["*.example.com"], &[]),
        ] {
            assert_eq!(common(listener, &hosts(route)), hosts(wanted), "{listener:?} {route:?}");
        }
    }

    fn pattern() -> impl Strategy<Value = String> {
        let name = proptest::collection::vec("[ab]{1,2}", 1..4).prop_map(|labels| labels.join("."));
        prop_oneof![1 => Just("*".to_owned()), 4 => name.clone(), 4 => name.prop_map(|name| format!("*.{name}"))]
    }

    fn matches(pattern: &str, host: &str) -> bool {
        pattern
            .strip_prefix('*')
            .map_or(pattern == host, |suffix| host.strip_suffix(suffix).is_some_and(|rest| !rest.is_empty()))
    }

    proptest! {
        /// A host is served exactly if both patterns match it.
        #[test]
        fn common_hosts_are_those_that_both_match(one in pattern(), other in pattern(), host in "[ab]{1,2}(\\.[ab]{1,2}){0,3}") {
            let both = matches(&one, &host) && matches(&other, &host);
            let found = narrower(&one, &other).is_some_and(|common| matches(common, &host));
            prop_assert_eq!(both, found, "{} {} {}", one, other, host);
        }
    }
}
