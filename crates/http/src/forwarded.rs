//! Finds the client behind proxies that the mesh trusts, from `x-forwarded-for`.
//!
//! Each proxy appends the address of its peer, so the field is read from its end. Entries that
//! trusted proxies wrote are reliable; a client may have forged the entries before them.

use crate::head::{FORWARDED_FOR, FORWARDED_PROTO};
use http::HeaderMap;
use leno_policy::spec::Cidr;
use std::net::{IpAddr, SocketAddr};

/// A client as trusted proxies report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The client's address. `None`: the proxies name none, so the peer is the client.
    pub address: Option<IpAddr>,
    /// The client's scheme from `x-forwarded-proto`, if there is exactly one such field and it
    /// names `http` or `https`.
    pub scheme: Option<&'static str>,
}

/// The client of a request from `peer`, where proxies in these blocks are trusted. `None`: `peer`
/// is not trusted, so it is the client itself.
pub fn by_address(trusted: &[Cidr], peer: IpAddr, headers: &HeaderMap) -> Option<Client> {
    if !is_trusted(trusted, peer) {
        return None;
    }
    // If all addresses are trusted proxies, the farthest one is the client.
    let mut client = None;
    for address in forwarded_for(headers) {
        let Some(address) = address else { break };
        client = Some(address);
        if !is_trusted(trusted, address) {
            break;
        }
    }
    Some(Client { address: client, scheme: scheme(headers) })
}

/// The client of a request that has passed this number of trusted proxies, at least one.
pub fn by_hops(hops: u32, headers: &HeaderMap) -> Client {
    let address = forwarded_for(headers).nth((hops as usize).saturating_sub(1)).flatten();
    Client { address, scheme: scheme(headers) }
}

/// Whether an address is in a trusted block.
pub fn is_trusted(trusted: &[Cidr], address: IpAddr) -> bool {
    trusted.iter().any(|block| block.contains(address))
}

/// Entries of `x-forwarded-for`, the nearest proxy's first. `None`: an entry that is not an
/// address.
fn forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let fields = headers.get_all(FORWARDED_FOR).into_iter().rev();
    fields.flat_map(|field| field.as_bytes().rsplit(|byte| *byte == b',')).map(address)
}

/// Parses one entry. Some proxies write ports, and brackets around IPv6 addresses.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim_matches([' ', '\t']);
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))?;
    Some(address.to_canonical())
}

fn scheme(headers: &HeaderMap) -> Option<&'static str> {
    let mut fields = headers.get_all(FORWARDED_PROTO).iter();
    let (Some(only), None) = (fields.next(), fields.next()) else { return None };
    ["http", "https"].into_iter().find(|scheme| only.as_bytes().eq_ignore_ascii_case(scheme.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(fields: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(FORWARDED_FOR, HeaderValue::from_static(field));
        }
        headers
    }

    #[test]
    fn proxies_are_trusted_by_address() {
        let block = |address: &str, prefix| Cidr { address: address.parse().unwrap(), prefix };
        let trusted = [block("10.0.0.0", 8), block("2001:db8::", 32)];
        for (peer, fields, client) in [
            ("192.0.2.1", &["1.1.1.1"][..], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
            ("10.0.0.1", &["6.6.6.6, 203.0.113.9, 10.9.9.9"], "203.0.113.9"),
            ("10.0.0.1", &["6.6.6.6, 203.0.113.9", "10.9.9.9"], "203.0.113.9"),
            ("10.0.0.1", &["10.1.1.1, 10.9.9.9"], "10.1.1.1"),
            ("10.0.0.1", &["6.6.6.6, nonsense, 10.9.9.9"], "10.9.9.9"),
            ("10.0.0.1", &["6.6.6.6, "], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.9:1234"], "203.0.113.9"),
            ("10.0.0.1", &["[2002::1]:1234,[2001:db8::1]"], "2002::1"),
            ("10.0.0.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
            ("::ffff:10.0.0.1", &["203.0.113.9"], "203.0.113.9"),
        ] {
            let peer: IpAddr = peer.parse().unwrap();
            let found = by_address(&trusted, peer, &headers(fields)).and_then(|client| client.address);
            assert_eq!(found.unwrap_or(peer).to_string(), client, "{peer} {fields:?}");
        }
    }

    /// Envoy counts like this with `xff_num_trusted_hops` at an edge.
    #[test]
    fn proxies_are_trusted_by_number() {
        for (hops, fields, client) in [
            (1, &["6.6.6.6, 203.0.113.9"][..], "203.0.113.9"),
            (2, &["6.6.6.6, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            (2, &["6.6.6.6", "203.0.113.9, 10.0.0.2"], "203.0.113.9"),
            (2, &["203.0.113.9"], "10.0.0.1"),
            (1, &["nonsense"], "10.0.0.1"),
            (1, &[], "10.0.0.1"),
        ] {
            let found = by_hops(hops, &headers(fields)).address;
            assert_eq!(found.unwrap_or([10, 0, 0, 1].into()).to_string(), client, "{hops} {fields:?}");
        }
    }

    #[test]
    fn the_scheme_counts_only_if_one_field_names_it() {
        let mut headers = HeaderMap::new();
        let scheme = |headers: &HeaderMap| by_hops(1, headers).scheme;
        assert_eq!(scheme(&headers), None);
        headers.append(FORWARDED_PROTO, HeaderValue::from_static("HTTPS"));
        assert_eq!(scheme(&headers), Some("https"));
        headers.append(FORWARDED_PROTO, HeaderValue::from_static("http"));
        assert_eq!(scheme(&headers), None);
    }
}
