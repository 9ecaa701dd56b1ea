//! Header fields that only the mesh itself writes.
//!
//! Names are compared without regard to case, and with `_` for `-`: CGI, WSGI and similar
//! interfaces pass `X_Leno_Caller` and `X-Leno-Caller` to a function as one variable, so to a
//! function the two are the same field.

/// The writers of a header field that not every component may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservedField {
    /// Fields by which the mesh informs its functions: the caller, and `x-leno-…`. Removed from
    /// every incoming request.
    Mesh,
    /// `x-request-id`: the gateway makes it, and functions may pass it on.
    RequestId,
    /// The gateway's description of the client. Functions may pass it on.
    Client,
    /// Other proxies' description of a client. The gateway removes it; policies and extensions may
    /// write it.
    OtherProxy,
    /// `proxy`, which CGI turns into `HTTP_PROXY` ("httpoxy", CVE-2016-5385). Removed from every
    /// incoming request.
    Proxy,
}

/// Suffixes after `x-forwarded-` of the fields that the gateway itself writes.
const FORWARDED: [&[u8]; 4] = [b"for", b"proto", b"host", b"port"];

/// Fields that other proxies are known to write, besides all other `x-forwarded-…` and `x-envoy-…`.
const OTHER_PROXIES: [&[u8]; 12] = [
    b"cf-connecting-ip",
    b"fastly-client-ip",
    b"forwarded",
    b"true-client-ip",
    b"x-client-ip",
    b"x-cluster-client-ip",
    b"x-original-forwarded-for",
    b"x-original-host",
    b"x-original-uri",
    b"x-original-url",
    b"x-real-ip",
    b"x-rewrite-url",
];

/// The writers for which a name is reserved; `None`: it is not reserved.
pub fn reserved(name: &[u8]) -> Option<ReservedField> {
    // This runs for every field of every request: two letters tell most of them apart.
    match (fold(*name.first()?), name.get(2).copied().map(fold)?) {
        (b'p', _) => is_same(name, b"proxy").then_some(ReservedField::Proxy),
        (b'x', b'f') => after(name, b"x-forwarded-").map(|rest| match rest {
            _ if is_same(rest, b"client-cert") => ReservedField::Mesh,
            _ if FORWARDED.iter().any(|known| is_same(rest, known)) => ReservedField::Client,
            _ => ReservedField::OtherProxy,
        }),
        (b'x', b'l') => after(name, b"x-leno-").map(|_| ReservedField::Mesh),
        (b'x', b'r') if is_same(name, b"x-request-id") => Some(ReservedField::RequestId),
        (b'x', b'e') => after(name, b"x-envoy-").map(|_| ReservedField::OtherProxy),
        (b'x', b'c' | b'o' | b'r') | (b'c', b'-') | (b'f', b'r' | b's') | (b't', b'u') => other_proxy(name),
        _ => None,
    }
}

fn other_proxy(name: &[u8]) -> Option<ReservedField> {
    OTHER_PROXIES.iter().any(|known| is_same(name, known)).then_some(ReservedField::OtherProxy)
}

/// Whether policies, extensions and senders of trailers must leave this field alone.
pub fn is_reserved(name: &str) -> bool {
    !matches!(reserved(name.as_bytes()), None | Some(ReservedField::OtherProxy))
}

/// Whether a function may take one of two names for the other.
pub fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| fold(*a) == fold(*b))
}

fn after<'n>(name: &'n [u8], prefix: &[u8]) -> Option<&'n [u8]> {
    let (start, rest) = name.split_at_checked(prefix.len())?;
    is_same(start, prefix).then_some(rest)
}

fn fold(byte: u8) -> u8 {
    if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_reserved_however_they_are_written() {
        for (names, expected) in [
            (
                &["x-forwarded-client-cert", "X_Forwarded_Client_Cert", "x-leno-", "x-leno-caller", "X_LENO-caller"][..],
                ReservedField::Mesh,
            ),
            (&["x-request-id", "X-REQUEST_ID"], ReservedField::RequestId),
            (&["x-forwarded-for", "x_forwarded_proto", "X-Forwarded-Host", "x-forwarded-port"], ReservedField::Client),
            (
                &["x-forwarded-user", "x-envoy-attempt-count", "x_real_ip", "Forwarded", "true-client-ip"],
                ReservedField::OtherProxy,
            ),
            (&["proxy", "Proxy"], ReservedField::Proxy),
        ] {
            for name in names {
                assert_eq!(reserved(name.as_bytes()), Some(expected), "{name}");
                assert_eq!(is_reserved(name), expected != ReservedField::OtherProxy, "{name}");
            }
        }
    }

    #[test]
    fn other_names_are_everybodys() {
        for name in [
            "",
            "x",
            "x-",
            "x-leno",
            "xleno-caller",
            "x-request-ids",
            "proxy-status",
            "accept",
            "x-user",
            "traceparent",
            "forwarded-for",
        ] {
            assert_eq!(reserved(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn twins_are_the_same() {
        assert!(is_same(b"X_User-Id", b"x-user_id"));
        assert!(!is_same(b"x-user", b"x-users") && !is_same(b"x-user", b"x.user"));
    }
}
