//! Parses the header that a proxy sends before all else: versions 1 and 2 of HAProxy's PROXY
//! protocol.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum length of a version 1 header in bytes, including its CR LF.
const LONGEST_V1: usize = 107;
/// Maximum length of a version 2 header in bytes, including the data that a proxy adds after the
/// addresses.
const LONGEST_V2: usize = 4096;
const V1: &[u8] = b"PROXY ";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of a version 2 header before the addresses: signature, version and command, family,
/// length.
const FIXED: usize = 16;

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The beginning of a header; more bytes are needed.
    Incomplete,
    /// A whole header.
    Complete {
        /// Length of the header in bytes. The client's bytes follow it.
        length: usize,
        /// The client's address. `None`: the connection is the proxy's, or the proxy does not know
        /// the client.
        source: Option<SocketAddr>,
    },
}

/// Why the bytes are not a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyHeaderError {
    /// The first bytes are not those of a PROXY header.
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    /// The header breaks a rule of the protocol; the text says which.
    #[error("the PROXY header is malformed: {0}")]
    Wrong(&'static str),
}

/// Parses the first bytes of a connection.
pub fn parse(bytes: &[u8]) -> Result<Header, ProxyHeaderError> {
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(a, b)| a == b);
    if begins(V1) {
        v1(bytes)
    } else if begins(V2) {
        v2(bytes)
    } else {
        Err(ProxyHeaderError::Missing)
    }
}

fn v1(bytes: &[u8]) -> Result<Header, ProxyHeaderError> {
    let seen = &bytes[..bytes.len().min(LONGEST_V1)];
    let Some(end) = seen.windows(2).position(|pair| pair == b"\r\n") else {
        let whole = seen.len() == LONGEST_V1;
        return if whole { Err(ProxyHeaderError::Wrong("its line has no end")) } else { Ok(Header::Incomplete) };
    };
    let wrong = ProxyHeaderError::Wrong("its line is not `PROXY TCP4|TCP6 source destination port port`");
    let line = std::str::from_utf8(&seen[..end]).map_err(|_| wrong)?;
    let length = end + 2;
    let mut words = line.split(' ').skip(1);
    let source = match words.next() {
        // The protocol says to ignore the rest of the line.
        Some("UNKNOWN") => return Ok(Header::Complete { length, source: None }),
        Some("TCP4") => addresses::<Ipv4Addr>(&mut words),
        Some("TCP6") => addresses::<Ipv6Addr>(&mut words),
        _ => None,
    };
    let source = source.filter(|_| words.next().is_none()).ok_or(wrong)?;
    Ok(Header::Complete { length, source: Some(source) })
}

/// Parses source address, destination address, source port and destination port. Returns the
/// source.
fn addresses<'t, A: std::str::FromStr + Into<IpAddr>>(words: &mut impl Iterator<Item = &'t str>) -> Option<SocketAddr> {
    let (source, _) = (words.next()?.parse::<A>().ok()?, words.next()?.parse::<A>().ok()?);
    let (port, _) = (port(words.next()?)?, port(words.next()?)?);
    Some(SocketAddr::new(source.into(), port))
}

fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}

fn v2(bytes: &[u8]) -> Result<Header, ProxyHeaderError> {
    let Some((fixed, rest)) = bytes.split_at_checked(FIXED) else { return Ok(Header::Incomplete) };
    let after = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    let length = FIXED + after;
    if length > LONGEST_V2 {
        return Err(ProxyHeaderError::Wrong("it is too long"));
    }
    let Some(rest) = rest.get(..after) else { return Ok(Header::Incomplete) };
    let local = match fixed[12] {
        0x20 => true,
        0x21 => false,
        _ => return Err(ProxyHeaderError::Wrong("its version or command is unknown")),
    };
    let wrong = ProxyHeaderError::Wrong("its addresses are cut short");
    let port = |at: usize| rest.get(at..at + 2).map(|port| u16::from_be_bytes([port[0], port[1]])).ok_or(wrong);
    let source = match fixed[13] {
        _ if local => None,
        // The family is unspecified, or the proxy was reached through a Unix socket.
        0x00 | 0x31 => None,
        0x11 => {
            let source = *rest.first_chunk::<4>().ok_or(wrong)?;
            // The destination's port is not used, but it must be there.
            port(10)?;
            Some(SocketAddr::new(Ipv4Addr::from(source).into(), port(8)?))
        }
        0x21 => {
            let source = *rest.first_chunk::<16>().ok_or(wrong)?;
            port(34)?;
            Some(SocketAddr::new(Ipv6Addr::from(source).into(), port(32)?))
        }
        _ => return Err(ProxyHeaderError::Wrong("what it carried was no TCP")),
    };
    Ok(Header::Complete { length, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v2_header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = V2.to_vec();
        bytes.extend([command, family]);
        bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn complete(bytes: &[u8]) -> Option<SocketAddr> {
        match parse(bytes) {
            Ok(Header::Complete { length, source }) => {
                assert_eq!(length, bytes.len());
                source
            }
            other => panic!("{other:?}: {bytes:?}"),
        }
    }

    #[test]
    fn both_versions_are_read() {
        let v4 = Some("203.0.113.9:51234".parse().unwrap());
        let v6 = Some("[2001:db8::7]:80".parse().unwrap());
        assert_eq!(complete(b"PROXY TCP4 203.0.113.9 10.0.0.1 51234 443\r\n"), v4);
        assert_eq!(complete(b"PROXY TCP6 2001:db8::7 ::1 80 443\r\n"), v6);
        assert_eq!(complete(b"PROXY UNKNOWN\r\n"), None);
        assert_eq!(complete(b"PROXY UNKNOWN ff:: ff:: 1 2\r\n"), None);
        let mut tcp4 = vec![203, 0, 113, 9, 10, 0, 0, 1, 0xc8, 0x22, 1, 187];
        assert_eq!(complete(&v2_header(0x21, 0x11, &tcp4)), v4);
        // Something follows the addresses.
        tcp4.extend([0x04, 0, 1, 7]);
        assert_eq!(complete(&v2_header(0x21, 0x11, &tcp4)), v4);
        let v6_body = ["2001:db8::7", "::1"].map(|text| text.parse::<Ipv6Addr>().unwrap().octets()).concat();
        assert_eq!(complete(&v2_header(0x21, 0x21, &[&v6_body[..], &[0, 80, 1, 187]].concat())), v6);
        // The proxy's own health check.
        assert_eq!(complete(&v2_header(0x20, 0x00, &[])), None);
        assert_eq!(complete(&v2_header(0x20, 0x11, &tcp4)), None);
        assert_eq!(complete(&v2_header(0x21, 0x00, &[])), None);
    }

    #[test]
    fn nothing_else_is() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\x16\x03\x01",
            b"PROXY  TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
            b"PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY \r\n",
            &[b'P', b'R', b'O', b'X', b'Y', b' '].into_iter().chain([b'a'; 101]).collect::<Vec<_>>(),
            &v2_header(0x11, 0x11, &[0; 12]),
            &v2_header(0x22, 0x11, &[0; 12]),
            &v2_header(0x21, 0x12, &[0; 12]),
            &v2_header(0x21, 0x11, &[0; 11]),
            &v2_header(0x21, 0x21, &[0; 35]),
            &v2_header(0x21, 0x00, &[0; 4096]),
        ] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn a_header_is_told_by_its_own_bytes_alone(
            bytes in prop_oneof![
                "PROXY (TCP4|TCP6|UNKNOWN) [0-9a-f.: ]{0,40}(\r\n)?".prop_map(String::into_bytes),
                (any::<[u8; 2]>(), proptest::collection::vec(any::<u8>(), 0..60))
                    .prop_map(|(kind, body)| v2_header(kind[0] & 0x23, kind[1] & 0x31, &body)),
            ],
            more in proptest::collection::vec(any::<u8>(), 0..8),
        ) {
            let followed = [&bytes[..], &more[..]].concat();
            if let Ok(Header::Complete { length, source }) = parse(&followed) {
                prop_assert!(length <= followed.len());
                prop_assert_eq!(parse(&followed[..length]), Ok(Header::Complete { length, source }));
                for shorter in 1..length {
                    prop_assert_eq!(parse(&followed[..shorter]), Ok(Header::Incomplete));
                }
            }
        }
    }
}
