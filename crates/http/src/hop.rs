//! Header fields in which one sidecar passes information about a request to the next. A sidecar
//! accepts them from peers with an identity of the mesh, and removes them from all other requests.

use crate::head::HeadError;
use http::{HeaderMap, HeaderName, HeaderValue};
use leno_policy::host::of_authority;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

/// The milliseconds that the caller still waits.
pub const TIMEOUT: HeaderName = HeaderName::from_static("x-leno-timeout");
/// The request is a retry, or was made for a request that is one.
pub const RETRY: HeaderName = HeaderName::from_static("x-leno-retry");
/// The request is a call to an authorizer. Over HTTP/1.1, no other request uses its connection.
pub const UNSHARED: HeaderName = HeaderName::from_static("x-leno-unshared");
/// The decisions of the route that the caller's sidecar followed: [`RouteTerms`].
pub const ROUTE: HeaderName = HeaderName::from_static("x-leno-route");
/// The gateway's client: `<scheme> <port> <address>`. Accepted from the gateway's identity only.
pub const CLIENT: HeaderName = HeaderName::from_static("x-leno-client");
/// For a connection without requests: the server name of its TLS handshake.
pub const SERVER_NAME: HeaderName = HeaderName::from_static("x-leno-server-name");
/// The time that a gRPC client waits: at most eight digits, and a unit.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The client of a request that another node's gateway let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The scheme that it used: `http` or `https`.
    pub scheme: &'static str,
    /// The gateway's port.
    pub port: u16,
    /// Its address, or the one that trusted proxies name.
    pub address: SocketAddr,
}

impl Client {
    /// The client that a gateway names; `None`: there is none, or the field is malformed.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut parts = only(headers, &CLIENT)?.to_str().ok()?.splitn(3, ' ');
        let scheme = match parts.next()? {
            "http" => "http",
            "https" => "https",
            _ => return None,
        };
        let (port, address) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { scheme, port, address })
    }

    /// The client as a field value.
    pub fn value(&self) -> Option<HeaderValue> {
        HeaderValue::try_from(format!("{} {} {}", self.scheme, self.port, self.address)).ok()
    }
}

/// The decisions of a route in place of the callee's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTerms {
    /// The callee sets no time limit: the caller's sidecar has one, or none.
    pub is_limited_by_caller: bool,
    /// The request is a copy: nothing waits for its answer, and no instance starts for it.
    pub is_copy: bool,
    /// The tag or name of the revision that gets the request; `None`: the callee decides.
    pub revision: Option<Box<str>>,
}

impl RouteTerms {
    /// The terms that a caller's sidecar names; `None`: it names none.
    ///
    /// # Errors
    /// The field occurs twice, or no sidecar of this release writes it so. The request must not go
    /// on without its terms: it would reach another revision than its route says.
    pub fn from_headers(headers: &HeaderMap) -> Result<Option<Self>, HeadError> {
        if !headers.contains_key(ROUTE) {
            return Ok(None);
        }
        let value = only(headers, &ROUTE).ok_or(HeadError::RouteTerms)?;
        let terms = value.to_str().ok().and_then(Self::parse).filter(|terms| terms.value().as_ref() == Some(value));
        terms.map(Some).ok_or(HeadError::RouteTerms)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut terms = Self::default();
        for word in text.split(' ') {
            match word.split_once('=') {
                Some(("limit", "caller")) => terms.is_limited_by_caller = true,
                Some(("revision", revision)) if !revision.is_empty() => terms.revision = Some(revision.into()),
                None if word == "copy" => terms.is_copy = true,
                _ => return None,
            }
        }
        Some(terms)
    }

    /// The terms as a field value.
    pub fn value(&self) -> Option<HeaderValue> {
        let limit = self.is_limited_by_caller.then(|| "limit=caller".to_owned());
        let copy = self.is_copy.then(|| "copy".to_owned());
        let revision = self.revision.as_ref().map(|revision| format!("revision={revision}"));
        HeaderValue::try_from(Vec::from_iter([limit, copy, revision].into_iter().flatten()).join(" ")).ok()
    }
}

/// The time that the caller still waits; `None`: the field is missing or malformed.
pub fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = only(headers, &TIMEOUT)?.to_str().ok()?;
    text.parse().ok().map(Duration::from_millis)
}

/// The remaining time as a field value. It is rounded up, so that the caller's own limit passes
/// first.
pub fn timeout_value(left: Duration) -> HeaderValue {
    HeaderValue::from(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).saturating_add(1))
}

/// Whether the request is a retry, or was made for one.
pub fn is_retry(headers: &HeaderMap) -> bool {
    headers.contains_key(RETRY)
}

/// Whether the request needs an HTTP/1.1 connection that carries nothing else.
pub fn is_unshared(headers: &HeaderMap) -> bool {
    headers.contains_key(UNSHARED)
}

/// The name that the TLS of a connection asks for; `None`: it is no TLS.
pub fn server_name(headers: &HeaderMap) -> Option<String> {
    only(headers, &SERVER_NAME)?.to_str().ok().and_then(of_authority).map(Cow::into_owned)
}

/// How long a gRPC client waits; `None`: it does not say, or not as gRPC has it.
pub fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = only(headers, &GRPC_TIMEOUT)?.as_bytes().split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(number * 3600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// The remaining time, in the most exact unit that can express it.
pub fn grpc_timeout_value(left: Duration) -> Option<HeaderValue> {
    const MOST: u128 = 99_999_999;
    let (number, unit) = match left.as_micros() {
        micros @ ..=MOST => (micros, 'u'),
        _ if left.as_millis() <= MOST => (left.as_millis(), 'm'),
        _ => (u128::from(left.as_secs()).min(MOST), 'S'),
    };
    HeaderValue::try_from(format!("{number}{unit}")).ok()
}

/// The value of a field that occurs once. With several, it is unclear which one counts.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(name: HeaderName, values: &[&str]) -> HeaderMap {
        let values = values.iter().map(|value| (name.clone(), HeaderValue::from_str(value).unwrap()));
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn what_is_not_written_as_sidecars_do_says_nothing() {
        let told = |values: &[&str]| Client::from_headers(&with(CLIENT, values));
        assert!(told(&["https 443 [2001:db8::1]:5000"]).is_some());
        for bad in [
            "",
            "https",
            "ftp 1 127.0.0.1:1",
            "http 70000 127.0.0.1:1",
            "http 1 127.0.0.1",
            "http 1 a:1",
            "http  1 a:1",
        ] {
            assert_eq!(told(&[bad]), None, "{bad}");
        }
        assert_eq!(told(&["http 1 127.0.0.1:1", "http 1 127.0.0.2:1"]), None, "which one?");
        let terms = |text: &str| RouteTerms::from_headers(&with(ROUTE, &[text])).ok().flatten();
        for (is_limited_by_caller, is_copy, revision) in
            [(true, false, None), (false, true, Some("next".into())), (true, true, Some("copy".into()))]
        {
            let written = RouteTerms { is_limited_by_caller, is_copy, revision };
            assert_eq!(terms(written.value().unwrap().to_str().unwrap()), Some(written));
        }
        assert_eq!(RouteTerms::from_headers(&HeaderMap::new()), Ok(None));
        for bad in
            ["", "other", "copy limit=callee", "copy copy", "revision=", "revision=a revision=b", "copy limit=caller"]
        {
            assert_eq!(RouteTerms::from_headers(&with(ROUTE, &[bad])), Err(HeadError::RouteTerms), "{bad}");
        }
        let twice = with(ROUTE, &["revision=a", "revision=a"]);
        assert_eq!(RouteTerms::from_headers(&twice), Err(HeadError::RouteTerms), "which one?");
        let grpc = |text: &str| grpc_timeout(&with(GRPC_TIMEOUT, &[text]));
        assert_eq!(grpc("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!([grpc("2M"), grpc("3S"), grpc("4m")], [120_000, 3_000, 4].map(Duration::from_millis).map(Some));
        assert_eq!([grpc("5u"), grpc("6n")], [Duration::from_micros(5), Duration::from_nanos(6)].map(Some));
        for bad in ["", "1", "S", "1s", "-1S", "123456789S", "1.5S", " 1S"] {
            assert_eq!(grpc(bad), None, "{bad}");
        }
        assert_eq!(timeout(&with(TIMEOUT, &["x"])), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(secs in 0..4_000_000_000_u64, nanos in 0..1_000_000_000_u32, port: u16, ip: std::net::IpAddr) {
            let left = Duration::new(secs, nanos);
            let read = timeout(&HeaderMap::from_iter([(TIMEOUT, timeout_value(left))])).unwrap();
            prop_assert!(read >= left && read - left <= Duration::from_millis(1));
            let value = grpc_timeout_value(left).unwrap();
            prop_assert!(value.len() <= 9);
            let read = grpc_timeout(&HeaderMap::from_iter([(GRPC_TIMEOUT, value)])).unwrap();
            prop_assert!(read <= left && (secs > 99_999_999 || left - read <= Duration::from_secs(1)));
            let client = Client { scheme: "https", port, address: SocketAddr::new(ip, port) };
            prop_assert_eq!(Client::from_headers(&HeaderMap::from_iter([(CLIENT, client.value().unwrap())])), Some(client));
        }

        /// Each value is read as a sidecar has written it, or refused: no word of it is left out.
        #[test]
        fn terms_are_read_whole_or_not_at_all(
            is_limited_by_caller: bool, is_copy: bool, revision in proptest::option::of("[!-~]{1,20}"),
            other in "(limit=caller|copy|revision=[a-z]{0,3}|fault=x| |\\PC){0,6}",
        ) {
            let written = RouteTerms { is_limited_by_caller, is_copy, revision: revision.map(Into::into) };
            if written != RouteTerms::default() {
                let headers = HeaderMap::from_iter([(ROUTE, written.value().unwrap())]);
                prop_assert_eq!(RouteTerms::from_headers(&headers), Ok(Some(written)));
            }
            if let Ok(value) = HeaderValue::from_str(&other) {
                match RouteTerms::from_headers(&HeaderMap::from_iter([(ROUTE, value.clone())])) {
                    Ok(read) => prop_assert_eq!(read.and_then(|terms| terms.value()), Some(value)),
                    Err(refused) => prop_assert_eq!(refused, HeadError::RouteTerms),
                }
            }
        }

        #[test]
        fn nothing_that_is_read_panics(value in "\\PC{0,40}") {
            if let Ok(value) = HeaderValue::from_str(&value) {
                let name = |name: HeaderName| HeaderMap::from_iter([(name, value.clone())]);
                let _ = (Client::from_headers(&name(CLIENT)), timeout(&name(TIMEOUT)), grpc_timeout(&name(GRPC_TIMEOUT)));
                let _ = RouteTerms::from_headers(&name(ROUTE));
            }
        }
    }
}
