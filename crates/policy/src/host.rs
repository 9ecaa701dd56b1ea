//! Hosts and identities, taken apart.

use crate::spec::{Matches, StringMatch};
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use core::net::Ipv6Addr;

/// The host of an authority: without port and trailing dot, in lower case, IPv6 addresses in brackets and in the form of RFC 5952.
/// Empty if the authority is. `None` if it is not one, or one that different servers read differently (user information,
/// percent-encoding, empty labels).
pub(crate) fn of_authority(authority: &str) -> Option<Cow<'_, str>> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        if !port.is_empty() && !is_port(port.strip_prefix(':')?) {
            return None;
        }
        return address.parse::<Ipv6Addr>().ok().map(|address| Cow::Owned(format!("[{address}]")));
    }
    let host = match authority.split_once(':') {
        Some((host, port)) if is_port(port) => host,
        Some(_) => return None,
        None => authority,
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if !host.bytes().all(allowed)
        || (host.is_empty() && !authority.is_empty())
        || host.split('.').skip(1).any(str::is_empty)
        || host.starts_with('.')
    {
        return None;
    }
    Some(if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    })
}

fn is_port(text: &str) -> bool {
    text.is_empty() || (text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok())
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
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => of_authority(host).map_or_else(|| host.to_ascii_lowercase(), |host| host.to_string()),
    }
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
    use super::{namespace_of_identity, of_authority, prepare};
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
        ] {
            assert_eq!(of_authority(authority), None, "{authority}");
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
