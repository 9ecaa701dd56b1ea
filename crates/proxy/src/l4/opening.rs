//! The first bytes of a connection to a pod, which show whether it carries HTTP, TLS or something
//! else. The program may also speak first.

use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

/// The HTTP/2 connection preface (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Methods of HTTP/1.1. A client may send any other token as well.
const METHODS: [&[u8]; 9] = [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"];
/// Longest method, in bytes.
const MAX_METHOD: usize = 32;
/// Maximum number of bytes that may begin a request line and leave its protocol open.
const MAX_LINE: usize = 16 * 1024;
/// How long a client may take until its first byte. After that the program may speak first.
const FIRST_BYTE: Duration = Duration::from_millis(50);
/// A year: the client may wait for the program as long as both like.
const NO_LIMIT: Duration = Duration::from_secs(365 * 86_400);

/// The beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A request line of HTTP/1, or nearly one: the parser refuses that.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// A TLS handshake.
    Tls,
    /// Another protocol.
    Other,
    /// The client waits for the program.
    Silent,
    /// The client has ended its direction before its first byte.
    Nothing,
}

/// The protocol that these first bytes show. `None`: more bytes decide.
pub(crate) fn classify(bytes: &[u8]) -> Option<Opening> {
    if bytes.starts_with(PREFACE) {
        return Some(Opening::Http2);
    }
    if PREFACE.starts_with(bytes) {
        return None;
    }
    match bytes {
        [0x16, 0x03, ..] => Some(Opening::Tls),
        [0x16] => None,
        // The HTTP parser refuses whatever is not one by then.
        _ => request_line(bytes).or_else(|| (bytes.len() > MAX_LINE).then_some(Opening::Http1)),
    }
}

/// Whether these bytes begin a request line. Blanks before it and between its parts are accepted,
/// because some servers accept them. The HTTP parser then refuses the request.
fn request_line(bytes: &[u8]) -> Option<Opening> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n'))?;
    let line = bytes.get(start..)?;
    let method = line.iter().take_while(|byte| is_token(**byte)).count();
    if method == 0 || method > MAX_METHOD {
        return Some(Opening::Other);
    }
    let (method, rest) = line.split_at_checked(method)?;
    let target_at = rest.iter().position(|byte| !is_blank(byte))?;
    if target_at == 0 {
        return Some(Opening::Other);
    }
    let rest = rest.get(target_at..)?;
    let target = rest.iter().take_while(|byte| !is_blank(byte) && **byte > 0x20 && **byte != 0x7f).count();
    let (target, rest) = rest.split_at_checked(target)?;
    let next = rest.first()?;
    if target.is_empty() {
        return Some(Opening::Other);
    }
    if !is_blank(next) {
        // HTTP/0.9 has no version.
        let is_old = METHODS.contains(&method) && target.starts_with(b"/") && matches!(next, b'\r' | b'\n');
        return Some(if is_old { Opening::Http1 } else { Opening::Other });
    }
    let version = rest.get(rest.iter().position(|byte| !is_blank(byte))?..)?;
    let seen = version.len().min(b"HTTP/".len());
    match version.get(..seen)?.eq_ignore_ascii_case(b"HTTP/".get(..seen)?) {
        true if seen == b"HTTP/".len() => Some(Opening::Http1),
        true => None,
        false => Some(Opening::Other),
    }
}

/// A byte of a token (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether a client that pauses here probably sends a request line.
fn is_probably_http(bytes: &[u8]) -> bool {
    let has_method = bytes.iter().any(|byte| matches!(byte, b' ' | b'\t'));
    !bytes.is_empty() && (has_method || METHODS.iter().chain([&PREFACE]).any(|method| method.starts_with(bytes)))
}

/// The longest pauses of a client at the beginning.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Until its first byte.
    pub first: Duration,
    /// Until the end of a request line.
    pub line: Duration,
}

impl Patience {
    /// Of a port whose program may speak first.
    pub(crate) fn short(line: Duration) -> Self {
        Self { first: FIRST_BYTE, line }
    }

    /// Of a connection on which either end may be silent.
    pub(crate) fn endless(line: Duration) -> Self {
        Self { first: NO_LIMIT, line }
    }
}

/// Reads the beginning of a connection into `read`.
pub(crate) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    read: &mut Vec<u8>,
    patience: Patience,
) -> io::Result<Opening> {
    let begun = Instant::now();
    let (mut pause, mut line) = (begun + FIRST_BYTE, None);
    loop {
        if let Some(opening) = classify(read) {
            return Ok(opening);
        }
        let until = match &read[..] {
            [] => begun + patience.first,
            bytes if is_probably_http(bytes) => *line.get_or_insert_with(|| Instant::now() + patience.line),
            _ => pause,
        };
        match within(until, stream.read_buf(read)).await? {
            Some(0) if read.is_empty() => return Ok(Opening::Nothing),
            // Some servers take a request without a version, and without an end of its line.
            Some(0) if is_probably_http(read) && read.contains(&b'/') => return Ok(Opening::Http1),
            Some(0) => return Ok(Opening::Other),
            Some(_) => pause = Instant::now() + FIRST_BYTE,
            None if read.is_empty() => return Ok(Opening::Silent),
            None if is_probably_http(read) => return Ok(Opening::Http1),
            None => return Ok(Opening::Other),
        }
    }
}

async fn within<T>(until: Instant, future: impl Future<Output = io::Result<T>>) -> io::Result<Option<T>> {
    timeout_at(until, future).await.ok().transpose()
}

/// Whether a program that speaks first begins HTTP/2: its first frame is SETTINGS (RFC 9113, 3.4).
pub(crate) fn is_settings(bytes: &[u8]) -> bool {
    matches!(bytes, [0, _, _, 4, 0 | 1, 0, 0, 0, 0, ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings() {
        let cases: [(&[u8], Opening); 22] = [
            (b"GET / HTTP/1.1\r\n", Opening::Http1),
            (b"get  /a\tHTTP/1.1\r\n", Opening::Http1),
            (b"\r\nPOST http://a/b HTTP/1.0\r\n", Opening::Http1),
            (b"CONNECT a:443 HTTP/1.1\r\n", Opening::Http1),
            (b"MKCALENDAR /x http/1.1\r\n", Opening::Http1),
            (b"GET /old\r\n", Opening::Http1),
            (PREFACE, Opening::Http2),
            (b"PRI * HTTP/2.1\r\n", Opening::Http1),
            (&[0x16, 3, 1, 2, 0], Opening::Tls),
            (&[0x16, 9], Opening::Other),
            (b"EHLO a\r\n", Opening::Other),
            (b"GET key\r\n", Opening::Other),
            (b"SET a b\r\n", Opening::Other),
            (b"PING\r\n", Opening::Other),
            (b"*1\r\n$4\r\nPING\r\n", Opening::Other),
            (b"INVITE sip:a@b SIP/2.0\r\n", Opening::Other),
            (b"SSH-2.0-x\r\n", Opening::Other),
            (b"AMQP\0\0\x09\x01", Opening::Other),
            (&[0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f], Opening::Other),
            (b" GET / HTTP/1.1", Opening::Other),
            (b"a-method-of-more-than-thirty-two-bytes / HTTP/1.1", Opening::Other),
            (b"GET \x01 HTTP/1.1", Opening::Other),
        ];
        for (bytes, wanted) in cases {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(classify(bytes), Some(wanted), "{text}");
            crate::fuzzing::opening(bytes);
        }
        // What stays open is bounded: a client must not fill the node's memory with blanks.
        for (begin, endless) in [("GET /", b'a'), ("", b'\n'), ("GET", b' '), ("GET / ", b'\t')] {
            let long = [begin.as_bytes(), &vec![endless; MAX_LINE]].concat();
            assert_eq!(classify(&long[..100]), None, "{begin}");
            assert_eq!(classify(&[&long[..], &[endless]].concat()), Some(Opening::Http1), "{begin}");
        }
    }

    #[test]
    fn pauses() {
        for http in [&b"G"[..], b"GET", b"PRI * H", b"FOO /a", b"DELETE /a HTT"] {
            assert!(is_probably_http(http) && classify(http).is_none(), "{http:?}");
        }
        for other in [&b""[..], b"PING", b"\r\n", b"hello"] {
            assert!(!is_probably_http(other) && classify(other).is_none(), "{other:?}");
        }
        assert!(is_settings(&[0, 0, 18, 4, 0, 0, 0, 0, 0, 0, 3]) && !is_settings(b"220 mail\r\n"));
    }
}
