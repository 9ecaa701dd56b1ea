//! Hosts and identities, taken apart.

use alloc::borrow::Cow;

/// The host of an authority: without port and trailing dot, in lower case. `None` if it is not one.
pub fn of_authority(authority: &str) -> Option<Cow<'_, str>> {
    if authority.contains(['@', '/', '\\', ' ', '\t', '?', '#', '%']) {
        return None;
    }
    let host = if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        if !port.is_empty() && !is_port(port.strip_prefix(':')?) {
            return None;
        }
        address.parse::<core::net::Ipv6Addr>().ok()?;
        authority.get(..address.len() + 2)?
    } else {
        match authority.split_once(':') {
            Some((host, port)) if is_port(port) => host,
            Some(_) => return None,
            None => authority,
        }
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Some(Cow::Owned(host.to_ascii_lowercase()));
    }
    Some(Cow::Borrowed(host))
}

fn is_port(text: &str) -> bool {
    text.is_empty() || (text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok())
}

/// The namespace of `spiffe://<trust domain>/ns/<namespace>/sa/<name>`; `None` for any other form.
pub fn namespace_of_identity(identity: &str) -> Option<&str> {
    let mut parts = identity.strip_prefix("spiffe://")?.split('/');
    let (domain, ns, namespace, sa, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let whole = !domain.is_empty() && !namespace.is_empty() && !name.is_empty() && parts.next().is_none();
    (whole && ns == "ns" && sa == "sa").then_some(namespace)
}

#[cfg(test)]
mod tests {
    use super::{namespace_of_identity, of_authority};

    #[test]
    fn hosts() {
        for (authority, host) in [
            ("Example.COM:8080", "example.com"),
            ("example.com.", "example.com"),
            ("example.com.:80", "example.com"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
            ("10.0.0.1:", "10.0.0.1"),
            ("", ""),
        ] {
            assert_eq!(of_authority(authority).as_deref(), Some(host), "{authority}");
        }
        for authority in ["a@b", "a:b", "a:80:90", "[::1", "[x]:1", "a:99999", "a/b", "a%2eb"] {
            assert_eq!(of_authority(authority), None, "{authority}");
        }
    }

    #[test]
    fn namespaces() {
        assert_eq!(namespace_of_identity("spiffe://td/ns/orders/sa/api"), Some("orders"));
        for other in [
            "spiffe://td/ns/orders",
            "spiffe://td/ns/orders/sa/api/x",
            "http://td/ns/o/sa/a",
            "spiffe://td/sa/o/ns/a",
            "spiffe:///ns/o/sa/a",
        ] {
            assert_eq!(namespace_of_identity(other), None, "{other}");
        }
    }
}
