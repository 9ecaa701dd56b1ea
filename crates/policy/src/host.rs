//! Parsing of hosts and identities.

use crate::spec::{Matches, StringMatch};
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use core::net::Ipv6Addr;

/// The host of an authority, in the one form in which the mesh compares hosts: without port and
/// without one trailing dot, in lower case, IPv6 addresses in brackets and in the form of RFC 5952.
/// Routes, calls, server names and rules all compare this form. Empty if the authority is empty.
/// `None` for text that is no authority, and for an authority that servers read differently (user
/// information, percent-encoding, empty labels).
pub fn of_authority(authority: &str) -> Option<Cow<'_, str>> {
    split(authority).map(|(host, _)| host)
}

/// An authority with its host in the form of [`of_authority`]. A port stays as it is written.
pub fn normal_authority(authority: &str) -> Option<Cow<'_, str>> {
    let (host, port) = split(authority)?;
    Some(if port.is_empty() { host } else { Cow::Owned(format!("{host}:{port}")) })
}

/// Whether two authorities mean the same: equal hosts by [`of_authority`], and equal ports as they are written.
pub fn is_same_authority(one: &str, other: &str) -> bool {
    split(one).is_some_and(|one| split(other) == Some(one))
}

fn split(authority: &str) -> Option<(Cow<'_, str>, &str)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let port = if port.is_empty() { port } else { port.strip_prefix(':').filter(|port| is_port(port))? };
        return address.parse::<Ipv6Addr>().ok().map(|address| (Cow::Owned(format!("[{address}]")), port));
    }
    // One pass: each request's authority is read here more than once.
    let (mut upper, mut label, mut end) = (false, 0_usize, authority.len());
    for (index, byte) in authority.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => label += 1,
            b'A'..=b'Z' => (upper, label) = (true, label + 1),
            b'.' if label > 0 => label = 0,
            b':' if index > 0 => {
                end = index;
                break;
            }
            _ => return None,
        }
    }
    let (host, port) = authority.split_at_checked(end)?;
    let port = port.strip_prefix(':').unwrap_or(port);
    if !is_port(port) {
        return None;
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    Some((if upper { Cow::Owned(host.to_ascii_lowercase()) } else { Cow::Borrowed(host) }, port))
}

fn is_port(text: &str) -> bool {
    let digits = text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.is_empty() || (digits && text.parse::<u16>().is_ok())
}

/// Brings configured hosts into the form of [`of_authority`], so that they can be compared as they are.
pub(crate) fn prepare(hosts: &mut Matches<StringMatch>) {
    for matcher in hosts.any.iter_mut().chain(&mut hosts.none) {
        match matcher {
            StringMatch::Exact(host) => *host = whole(host),
            StringMatch::Suffix(part) => *part = part.strip_suffix('.').unwrap_or(part).to_ascii_lowercase(),
            StringMatch::Prefix(part) => part.make_ascii_lowercase(),
            StringMatch::Present | StringMatch::Any | StringMatch::Regex(_) => {}
        }
    }
}

fn whole(host: &str) -> String {
    of_document(host).unwrap_or_else(|| host.to_ascii_lowercase())
}

/// The form of [`of_authority`] for a host in a document: it has no port, and an IPv6 address may stand without brackets. `None`
/// for text that is no host.
pub fn of_document(host: &str) -> Option<String> {
    if let Ok(address) = host.parse::<Ipv6Addr>() {
        return Some(format!("[{address}]"));
    }
    let (name, port) = split(host)?;
    (port.is_empty() && !host.ends_with(':') && !name.is_empty()).then(|| name.into_owned())
}

/// The namespace of `spiffe://<trust domain>/ns/<namespace>/sa/<name>`; `None` for any other form.
pub(crate) fn namespace_of_identity(identity: &str) -> Option<&str> {
    let mut parts = identity.strip_prefix("spiffe://")?.split('/');
    let (domain, ns, namespace, sa, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let whole = !domain.is_empty() && !namespace.is_empty() && !name.is_empty() && parts.next().is_none();
    (whole && ns == "ns" && sa == "sa").then_some(namespace)
}

#[cfg(test)]
mod tests {
    use super::{is_same_authority, namespace_of_identity, normal_authority, of_authority, of_document, prepare};
    use crate::spec::{Matches, StringMatch};
    use alloc::borrow::ToOwned;
    use alloc::string::String;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn hosts() {
        for (authority, host) in [
            ("Example.COM:8080", "example.com"),
            ("example.com.", "example.com"),
            ("example.com.:80", "example.com"),
            ("my_host", "my_host"),
            ("[::1]:80", "[::1]"),
            ("[0:0::1]", "[::1]"),
            ("[2001:DB8::A]:", "[2001:db8::a]"),
            ("10.0.0.1:", "10.0.0.1"),
            ("", ""),
        ] {
            assert_eq!(of_authority(authority).as_deref(), Some(host), "{authority}");
        }
        for authority in [
            "a@b",
            "a:b",
            "a:80:90",
            "[::1",
            "[x]:1",
            "[::1]80",
            "[::1%25eth0]",
            "::1",
            "a:99999",
            "a:+80",
            "a/b",
            "a%2eb",
            "a..b",
            ".a",
            "a..",
            ".",
            ":80",
            "a b",
            "a\\b",
            "b\u{fc}cher",
            "a\0",
            "a,b",
            "a?b",
            "a#b",
            "a:000080",
        ] {
            assert_eq!(of_authority(authority), None, "{authority}");
        }
    }

    #[test]
    fn authorities_are_the_same_by_host_and_port() {
        for (one, other) in [("a", "A."), ("a:80", "A.:80"), ("[::1]:80", "[0::1]:80"), ("a", "a:")] {
            assert!(is_same_authority(one, other), "{one} {other}");
        }
        for (one, other) in [("a", "b"), ("a", "a:80"), ("a..", "a.."), ("a", "a..")] {
            assert!(!is_same_authority(one, other), "{one} {other}");
        }
    }

    #[test]
    fn authorities_keep_their_ports() {
        for (authority, normal) in
            [("A.:80", Some("a:80")), ("[0::1]:1", Some("[::1]:1")), ("a.:", Some("a")), ("a..", None)]
        {
            assert_eq!(normal_authority(authority).as_deref(), normal, "{authority}");
        }
    }

    #[test]
    fn hosts_of_documents() {
        for (written, host) in [
            ("Shop.Example.", "shop.example"),
            ("2001:DB8::A", "[2001:db8::a]"),
            ("[2001:DB8::A]", "[2001:db8::a]"),
            ("my_host", "my_host"),
        ] {
            assert_eq!(of_document(written).as_deref(), Some(host), "{written}");
        }
        for written in ["", ".", "a..", "a..b", ".a", "a:80", "a:", "[::1]:80", "[::1]:", "*.a", "b\u{fc}cher"] {
            assert_eq!(of_document(written), None, "{written}");
        }
    }

    #[test]
    fn configured_hosts() {
        let texts = ["Shop.Example.", "::1", "[0::1]", "Shop.example"];
        let mut hosts = Matches {
            any: texts.iter().map(|text| StringMatch::Exact((*text).to_owned())).collect(),
            none: vec![
                StringMatch::Suffix(".Example.".to_owned()),
                StringMatch::Prefix("Shop.".to_owned()),
                StringMatch::Present,
            ],
        };
        prepare(&mut hosts);
        let expected: Vec<_> = ["shop.example", "[::1]", "[::1]", "shop.example"]
            .iter()
            .map(|text| StringMatch::Exact((*text).to_owned()))
            .collect();
        assert_eq!(hosts.any, expected);
        let expected =
            [StringMatch::Suffix(".example".to_owned()), StringMatch::Prefix("shop.".to_owned()), StringMatch::Present];
        assert_eq!(hosts.none, expected);
    }

    #[test]
    fn namespaces() {
        assert_eq!(namespace_of_identity("spiffe://td/ns/orders/sa/api"), Some("orders"));
        for other in [
            "spiffe://td/ns/orders",
            "spiffe://td/ns/orders/sa/api/x",
            "spiffe://td/ns//sa/api",
            "http://td/ns/o/sa/a",
            "spiffe://td/sa/o/ns/a",
            "spiffe:///ns/o/sa/a",
            "",
        ] {
            assert_eq!(namespace_of_identity(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_is_stable(authority in any::<String>()) {
            if let Some(host) = of_authority(&authority) {
                prop_assert_eq!(of_authority(&host), Some(host.clone()));
            }
            namespace_of_identity(&authority);
        }

        #[test]
        fn hosts_are_stable(authority in r"[a-cA-C.:\[\]0-9_-]{0,12}") {
            if let Some(host) = of_authority(&authority) {
                prop_assert_eq!(of_authority(&host), Some(host.clone()));
            }
        }
    }
}
