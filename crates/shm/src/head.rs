//! Heads: a list of fields, first those that HTTP/2 has (RFC 9113, 8.3), then the rest.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, Method, StatusCode};

/// Most bytes of a head, unless the handshake sets another limit.
pub const MOST_BYTES: u32 = 64 << 10;

/// Fields about a connection, which a message of HTTP/2 does not have either (RFC 9113, 8.2.2).
const OF_CONNECTIONS: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// Most fields of a head that [is plain](RequestHead::is_plain).
pub const MOST_PLAIN: usize = 64;

/// The head of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Not `CONNECT`.
    pub method: Method,
    /// The callee, without user information.
    pub authority: Authority,
    /// Begins with `/`, or is `*`.
    pub path: PathAndQuery,
    /// All other fields.
    pub headers: HeaderMap,
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// 200 or greater.
    pub status: StatusCode,
    /// All other fields.
    pub headers: HeaderMap,
}

/// Why bytes are no head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    /// It ends within a field.
    #[error("the head ends within a field, {0} bytes from its end")]
    Cut(usize),
    /// A name that no field may have.
    #[error("`{0}` cannot be the name of a field")]
    Name(String),
    /// A value that this field may not have.
    #[error("the field `{0}` has a value that it cannot have")]
    Value(String),
    /// A field that is missing.
    #[error("the field `{0}` is missing")]
    Missing(&'static str),
    /// A field that appears twice.
    #[error("the field `{0}` is there twice")]
    Twice(&'static str),
    /// A field of HTTP/2 that comes after others.
    #[error("the field `{0}` comes after one without a colon")]
    Late(&'static str),
    /// A field about a connection.
    #[error("the field `{0}` is about a connection, and there is none")]
    OfConnection(&'static str),
    /// There are more fields than a reader accepts.
    #[error("there are too many fields")]
    TooMany,
    /// `content-length` does not agree with the body.
    #[error("`content-length` is not the length of the body")]
    ContentLength,
}

impl RequestHead {
    /// A head without other fields.
    #[must_use]
    pub fn new(method: Method, authority: Authority, path: PathAndQuery) -> Self {
        Self { method, authority, path, headers: HeaderMap::new() }
    }

    /// Appends it, as it is in a message.
    pub fn encode(&self, into: &mut Vec<u8>) {
        push(into, b":method", self.method.as_str().as_bytes());
        push(into, b":authority", self.authority.as_str().as_bytes());
        push(into, b":path", self.path.as_str().as_bytes());
        push_all(into, &self.headers);
    }

    /// Decodes a head. Its values are slices of these bytes, and keep them alive. The caller must
    /// still call [`Self::check`].
    ///
    /// # Errors
    /// If the bytes are no fields, or not those that there must be.
    pub fn decode(bytes: Bytes) -> Result<Self, BadHead> {
        let mut parsed = RawHead::new(bytes, &[":method", ":authority", ":path"])?;
        let value = |name: &'static str| move |_| BadHead::Value(name.to_owned());
        let method = Method::from_bytes(&parsed.take(0)?).map_err(|_| BadHead::Value(":method".into()))?;
        let authority = Authority::from_maybe_shared(parsed.take(1)?).map_err(value(":authority"))?;
        let bytes = parsed.take(2)?;
        let length = bytes.len();
        let path = PathAndQuery::from_maybe_shared(bytes).map_err(value(":path"))?;
        // A fragment is cut off, but has no place here.
        if path.as_str().len() != length {
            return Err(BadHead::Value(":path".into()));
        }
        Ok(Self { method, authority, path, headers: parsed.headers })
    }

    /// Whether the head contains nothing that a sidecar would examine more closely: a path that
    /// could be taken for another one, a field that only the mesh may set, an expectation, or more
    /// than [`MOST_PLAIN`] fields.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
        let path = self.path.path().strip_prefix('/');
        let is_one = |segment: &str| !matches!(segment, "." | "..") && segment.bytes().all(is_plain);
        // Only the last segment may be empty.
        let segments = |path: &str| {
            let (before, last) = path.rsplit_once('/').map_or((None, path), |(before, last)| (Some(before), last));
            is_one(last) && before.is_none_or(|before| before.split('/').all(|one| !one.is_empty() && is_one(one)))
        };
        let host = self.authority.host();
        path.is_some_and(segments)
            && !self.headers.contains_key(http::header::EXPECT)
            && !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
            && self.headers.len() <= MOST_PLAIN
            && !self.headers.keys().any(|name| is_the_meshs(name.as_str()))
    }

    /// Checks the rules that the types do not enforce, and that `content-length`, if present, is
    /// the length of the body.
    ///
    /// # Errors
    /// If a reader must refuse the head.
    pub fn check(&self, body: u64) -> Result<(), BadHead> {
        if self.method == Method::CONNECT {
            return Err(BadHead::Value(":method".into()));
        }
        if self.authority.as_str().contains('@') {
            return Err(BadHead::Value(":authority".into()));
        }
        if !self.path.as_str().starts_with('/') && self.path.as_str() != "*" {
            return Err(BadHead::Value(":path".into()));
        }
        check_names(&self.headers)?;
        check_length(&self.headers, body)
    }
}

impl ResponseHead {
    /// A head without other fields.
    #[must_use]
    pub fn new(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new() }
    }

    /// Appends it, as it is in a message.
    pub fn encode(&self, into: &mut Vec<u8>) {
        push(into, b":status", self.status.as_str().as_bytes());
        push_all(into, &self.headers);
    }

    /// Decodes a head. Its values are slices of these bytes, and keep them alive. The caller must
    /// still call [`Self::check`].
    ///
    /// # Errors
    /// If the bytes are no fields, or not those that there must be.
    pub fn decode(bytes: Bytes) -> Result<Self, BadHead> {
        let mut parsed = RawHead::new(bytes, &[":status"])?;
        let status = StatusCode::from_bytes(&parsed.take(0)?).map_err(|_| BadHead::Value(":status".into()))?;
        Ok(Self { status, headers: parsed.headers })
    }

    /// Checks the rules that the types do not enforce, and that `content-length`, if present, is
    /// the length of the body. An answer to `HEAD` may have one without a body.
    ///
    /// # Errors
    /// If a reader must refuse the head.
    pub fn check(&self, body: u64) -> Result<(), BadHead> {
        if self.status.is_informational() {
            return Err(BadHead::Value(":status".into()));
        }
        check_names(&self.headers)?;
        if body == 0 { Ok(()) } else { check_length(&self.headers, body) }
    }
}

impl From<StatusCode> for ResponseHead {
    fn from(status: StatusCode) -> Self {
        Self::new(status)
    }
}

fn check_names(headers: &HeaderMap) -> Result<(), BadHead> {
    match OF_CONNECTIONS.into_iter().find(|name| headers.contains_key(*name)) {
        Some(name) => Err(BadHead::OfConnection(name)),
        None => Ok(()),
    }
}

fn check_length(headers: &HeaderMap, body: u64) -> Result<(), BadHead> {
    let is = |value: &HeaderValue| value.to_str().is_ok_and(|text| text == body.to_string());
    if headers.get_all(CONTENT_LENGTH).iter().all(is) { Ok(()) } else { Err(BadHead::ContentLength) }
}

fn push_all(into: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        push(into, name.as_str().as_bytes(), value.as_bytes());
    }
}

/// Appends a field. The `http` crate keeps names below 2^16 bytes; a value of 4 GiB would exceed
/// the limit of any head.
fn push(into: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    into.extend_from_slice(&u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
    into.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes());
    into.extend_from_slice(name);
    into.extend_from_slice(value);
}

/// A head whose fields with a colon are not validated yet.
struct RawHead {
    wanted: &'static [&'static str],
    values: [Option<Bytes>; 3],
    headers: HeaderMap,
}

impl RawHead {
    fn new(mut bytes: Bytes, wanted: &'static [&'static str]) -> Result<Self, BadHead> {
        let mut parsed = Self { wanted, values: [None, None, None], headers: HeaderMap::new() };
        while let Some((name, value)) = field(&mut bytes)? {
            parsed.add(&name, value)?;
        }
        Ok(parsed)
    }

    fn add(&mut self, name: &[u8], value: Bytes) -> Result<(), BadHead> {
        if name.first() == Some(&b':') {
            let place = self.wanted.iter().position(|wanted| wanted.as_bytes() == name);
            let place = place.ok_or_else(|| BadHead::Name(shown(name)))?;
            if !self.headers.is_empty() {
                return Err(BadHead::Late(self.wanted[place]));
            }
            return match self.values[place].replace(value) {
                Some(_) => Err(BadHead::Twice(self.wanted[place])),
                None => Ok(()),
            };
        }
        let name = HeaderName::from_lowercase(name).map_err(|_| BadHead::Name(shown(name)))?;
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| BadHead::Value(name.as_str().to_owned()))?;
        self.headers.try_append(name, value).map_err(|_| BadHead::TooMany)?;
        Ok(())
    }

    fn take(&mut self, place: usize) -> Result<Bytes, BadHead> {
        self.values[place].take().ok_or(BadHead::Missing(self.wanted[place]))
    }
}

/// Splits a field off.
fn field(bytes: &mut Bytes) -> Result<Option<(Bytes, Bytes)>, BadHead> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let cut = BadHead::Cut(bytes.len());
    let Some((&[a, b, c, d, e, f], _)) = bytes.split_first_chunk() else { return Err(cut) };
    let (name, value) = (usize::from(u16::from_le_bytes([a, b])), u32::from_le_bytes([c, d, e, f]) as usize);
    if bytes.len() - 6 < name.saturating_add(value) {
        return Err(cut);
    }
    let _ = bytes.split_to(6);
    Ok(Some((bytes.split_to(name), bytes.split_to(value))))
}

/// An invalid name, escaped for an error message.
fn shown(name: &[u8]) -> String {
    name[..name.len().min(64)].escape_ascii().to_string()
}

/// Whether only the mesh may set a field. As for functions behind CGI, `_` is the same as `-`.
fn is_the_meshs(name: &str) -> bool {
    let folded = name.replace('_', "-");
    folded.starts_with("x-leno-") || folded == "x-forwarded-client-cert" || folded == "proxy"
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn raw(fields: &[(&str, &str)]) -> Bytes {
        let mut bytes = Vec::new();
        fields.iter().for_each(|(name, value)| push(&mut bytes, name.as_bytes(), value.as_bytes()));
        bytes.into()
    }

    const GOOD: [(&str, &str); 3] = [(":method", "POST"), (":authority", "stock"), (":path", "/items?a=b")];

    fn read(fields: &[(&str, &str)]) -> Result<RequestHead, BadHead> {
        let head = RequestHead::decode(raw(fields))?;
        head.check(3).map(|()| head)
    }

    fn request(more: &[(&str, &str)]) -> Result<RequestHead, BadHead> {
        read(&[&GOOD[..], more].concat())
    }

    #[test]
    fn a_request_is_read() {
        let head = request(&[("accept", "a"), ("accept", "b"), ("x-empty", "")]).unwrap();
        assert_eq!((head.method.as_str(), head.authority.as_str()), ("POST", "stock"));
        assert_eq!((head.path.as_str(), head.headers.len()), ("/items?a=b", 3));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = [
            (&[(":path", "/")][..], "the field `:path` is there twice"),
            (&[("a", "b"), (":path", "/")], "the field `:path` comes after one without a colon"),
            (&[(":status", "200")], "`:status` cannot be the name of a field"),
            (&[("Accept", "b")], "`Accept` cannot be the name of a field"),
            (&[("", "b")], "`` cannot be the name of a field"),
            (&[("a", "b\r\nc: d")], "the field `a` has a value that it cannot have"),
            (&[("upgrade", "x")], "the field `upgrade` is about a connection, and there is none"),
        ];
        for (fields, error) in wrong {
            assert_eq!(request(fields).unwrap_err().to_string(), error);
        }
        let decode = |fields: &[_]| read(fields).map_err(|error| error.to_string());
        assert_eq!(decode(&GOOD[..2]), Err("the field `:path` is missing".into()));
        for (place, value) in [(0, "CONNECT"), (0, "a b"), (1, ""), (1, "a@b"), (2, ""), (2, "a"), (2, "/a#b")] {
            let mut fields = GOOD;
            fields[place].1 = value;
            let error = format!("the field `{}` has a value that it cannot have", fields[place].0);
            assert_eq!(decode(&fields), Err(error), "{value}");
        }
        for status in ["", "99", "100", "1000", "abc"] {
            let head = ResponseHead::decode(raw(&[(":status", status)]));
            assert!(head.and_then(|head| head.check(0)).is_err(), "{status}");
        }
        let cut = raw(&GOOD).split_to(20);
        assert!(matches!(RequestHead::decode(cut), Err(BadHead::Cut(_))));
    }

    #[test]
    fn the_length_of_the_body_is_the_one_that_is_said() {
        let head = request(&[("content-length", "3")]).unwrap();
        assert_eq!((head.check(3), head.check(4)), (Ok(()), Err(BadHead::ContentLength)));
        assert!(request(&[("content-length", "3"), ("content-length", "4")]).is_err());
        assert_eq!(request(&[]).unwrap().check(4), Ok(()));
        let answer = ResponseHead::decode(raw(&[(":status", "200"), ("content-length", "3")])).unwrap();
        assert_eq!([answer.check(0), answer.check(3)], [Ok(()), Ok(())]);
        assert_eq!(answer.check(4), Err(BadHead::ContentLength));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = (RequestHead::decode(bytes.clone().into()), ResponseHead::decode(bytes.into()));
        }

        #[test]
        fn whatever_is_written_is_read_alike(
            path in "/[a-z0-9/]{0,9}(\\?[a-z=&]{0,9})?",
            fields in prop::collection::vec(("x-[a-z0-9-]{1,9}", "[ -~]{0,20}"), 0..20),
            status in 200..1000_u16,
        ) {
            let headers: HeaderMap = fields
                .iter()
                .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap()))
                .collect();
            let request = RequestHead {
                method: Method::PATCH,
                authority: Authority::from_static("a.b:80"),
                path: path.parse().unwrap(),
                headers: headers.clone(),
            };
            let mut bytes = Vec::new();
            request.encode(&mut bytes);
            prop_assert_eq!(RequestHead::decode(bytes.into()), Ok(request));
            let response = ResponseHead { status: StatusCode::from_u16(status).unwrap(), headers };
            let mut bytes = Vec::new();
            response.encode(&mut bytes);
            prop_assert_eq!(ResponseHead::decode(bytes.into()), Ok(response));
        }
    }

    #[test]
    fn what_a_sidecar_looks_at_twice_is_not_plain() {
        let head = |path: &str| RequestHead::new(Method::GET, "cart.shop".parse().unwrap(), path.parse().unwrap());
        for path in ["/", "/a", "/a/", "/a/b.c/d?e=%2f", "/boutique.v1.Cart/GetCart"] {
            assert!(head(path).is_plain(), "{path}");
        }
        for path in ["*", "/a%2fb", "/a//b", "//", "/./a", "/a/..", "/a/../b", "/%61"] {
            assert!(!head(path).is_plain(), "{path}");
        }
        for name in ["x-leno-caller", "x_leno_caller", "x-forwarded-client-cert", "x-forwarded_client-cert", "proxy"] {
            let mut head = head("/");
            head.headers.insert(http::HeaderName::try_from(name).unwrap(), "me".parse().unwrap());
            assert!(!head.is_plain(), "{name}");
        }
        let mut many = head("/");
        (0..65).for_each(|number| {
            many.headers.insert(http::HeaderName::try_from(format!("x-{number}")).unwrap(), "1".parse().unwrap());
        });
        assert!(!many.is_plain());
        assert!(!RequestHead::new(Method::GET, "[::1]".parse().unwrap(), "/".parse().unwrap()).is_plain());
    }
}
