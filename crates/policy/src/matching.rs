//! How one value meets one matcher.

use crate::spec::{Cidr, Matches, PathMatch, Segment, StringMatch};
use core::net::{IpAddr, Ipv6Addr};

/// Whether a text matches.
pub fn text(matcher: &StringMatch, value: &str) -> bool {
    match matcher {
        StringMatch::Exact(exact) => value == exact,
        StringMatch::Prefix(prefix) => value.starts_with(prefix.as_str()),
        StringMatch::Suffix(suffix) => value.ends_with(suffix.as_str()),
        StringMatch::Present => !value.is_empty(),
    }
}

/// The same without regard to ASCII case; `value` is lower case already.
pub fn host(matcher: &StringMatch, value: &str) -> bool {
    let ends = |part: &str, from: Option<&str>| from.is_some_and(|from| from.eq_ignore_ascii_case(part));
    match matcher {
        StringMatch::Exact(exact) => value.eq_ignore_ascii_case(exact),
        StringMatch::Prefix(prefix) => ends(prefix, value.get(..prefix.len())),
        StringMatch::Suffix(suffix) => {
            ends(suffix, value.len().checked_sub(suffix.len()).and_then(|start| value.get(start..)))
        }
        StringMatch::Present => !value.is_empty(),
    }
}

/// Whether a normalised path matches.
pub fn path(matcher: &PathMatch, value: &str) -> bool {
    match matcher {
        PathMatch::Text(matcher) => text(matcher, value),
        PathMatch::Template(segments) => template(segments, value),
    }
}

fn template(segments: &[Segment], path: &str) -> bool {
    let Some(inner) = path.strip_prefix('/') else { return false };
    let mut parts = inner.split('/');
    for segment in segments {
        let matched = match segment {
            Segment::Rest => return true,
            Segment::One => parts.next().is_some_and(|part| !part.is_empty()),
            Segment::Literal(literal) => parts.next() == Some(literal),
        };
        if !matched {
            return false;
        }
    }
    parts.next().is_none()
}

/// Whether an address lies in a block.
pub fn cidr(block: &Cidr, address: IpAddr) -> bool {
    fn bits(address: IpAddr) -> (u128, u8) {
        match address.to_canonical() {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (Ipv6Addr::to_bits(v6), 128),
        }
    }
    let ((network, width), (address, other)) = (bits(block.address), bits(address));
    let mapped = matches!(block.address, IpAddr::V6(_)) && width == 32;
    let prefix = if mapped { block.prefix.saturating_sub(96) } else { block.prefix };
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
    width == other && (network ^ address) & mask == 0
}

/// Whether a field with positive and negative matchers holds for a value that may be absent. What is absent meets no positive
/// matcher, and no negative one either.
pub fn holds<T, V: Copy>(matches: &Matches<T>, value: Option<V>, meets: impl Fn(&T, V) -> bool) -> bool {
    let any = |list: &[T]| value.is_some_and(|value| list.iter().any(|matcher| meets(matcher, value)));
    (matches.any.is_empty() || any(&matches.any)) && !any(&matches.none)
}

#[cfg(test)]
mod tests {
    use super::{cidr, host, template};
    use crate::spec::{Cidr, Segment, StringMatch};
    use alloc::string::String;

    fn inside(block: &str, prefix: u8, address: &str) -> bool {
        cidr(&Cidr { address: block.parse().unwrap(), prefix }, address.parse().unwrap())
    }

    #[test]
    fn blocks() {
        assert!(inside("10.0.0.0", 8, "10.255.1.2"));
        assert!(!inside("10.0.0.0", 8, "11.0.0.1"));
        assert!(inside("0.0.0.0", 0, "11.0.0.1"));
        assert!(!inside("0.0.0.0", 0, "::1"));
        assert!(inside("::", 0, "fe80::1"));
        assert!(inside("10.0.0.1", 32, "::ffff:10.0.0.1"));
        assert!(inside("::ffff:10.0.0.0", 104, "10.1.2.3"));
        assert!(!inside("10.0.0.1", 32, "10.0.0.2"));
    }

    #[test]
    fn templates() {
        let orders = [Segment::Literal(String::from("orders")), Segment::One];
        assert!(template(&orders, "/orders/7"));
        for path in ["/orders", "/orders/", "/orders/7/x", "/other/7", "*"] {
            assert!(!template(&orders, path), "{path}");
        }
        let files = [Segment::Literal(String::from("files")), Segment::Rest];
        for path in ["/files", "/files/", "/files/a/b"] {
            assert!(template(&files, path), "{path}");
        }
        assert!(!template(&files, "/file"));
    }

    #[test]
    fn hosts_have_no_case() {
        assert!(host(&StringMatch::Suffix(String::from(".Example.com")), "a.example.com"));
        assert!(!host(&StringMatch::Suffix(String::from(".example.com")), "example.com"));
        assert!(host(&StringMatch::Exact(String::from("A.b")), "a.b"));
    }
}
