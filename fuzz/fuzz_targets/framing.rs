//! Bytes of an HTTP/1.1 connection, checked as they arrive and then parsed by hyper, as in the listener.
//! A strict parser of RFC 9112 must find each request that hyper finds.
#![no_main]

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use leno_http::framing::{Framing, escape};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};

/// A parsed request: method, target and body.
type Reading = (String, String, Vec<u8>);

// The size of the pieces in which the bytes arrive, and the bytes.
fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else { return };
    let whole = passed(bytes, usize::MAX);
    let pieces = passed(bytes, usize::from(*piece).max(1));
    assert_eq!(whole, pieces, "it makes no difference in which pieces they come");
    if !bytes.iter().any(|byte| b"\"<>`".contains(byte)) {
        assert!(whole.len() <= bytes.len());
        assert!(whole.iter().zip(bytes).all(|(passed, byte)| passed == byte || (*byte, *passed) == (b'#', 0)));
    }

    let read = by_hyper(whole.clone(), usize::from(*piece).max(1));
    let strict = to_the_letter(&whole);
    assert!(read.len() <= strict.len(), "hyper makes more of it: {read:?}, and not {strict:?}");
    for (index, (read, strict)) in read.iter().zip(&strict).enumerate() {
        assert_eq!(read, strict, "request {index}");
    }
});

/// The bytes that are passed on.
fn passed(bytes: &[u8], piece: usize) -> Vec<u8> {
    let (mut framing, mut passed, mut left) = (Framing::default(), Vec::new(), bytes.to_vec());
    while !left.is_empty() {
        let mut now = left[..piece.min(left.len())].to_vec();
        let good = framing.watch(&mut now);
        passed.extend_from_slice(&now[..good]);
        left.drain(..good);
        if framing.is_unescaped() {
            left = escape(&left);
        } else if good < now.len() {
            assert_eq!(framing.watch(&mut [b'x']), 0, "nothing follows what is broken");
            break;
        }
    }
    passed
}

/// The complete requests that hyper reads.
fn by_hyper(bytes: Vec<u8>, piece: usize) -> Vec<Reading> {
    let read = Rc::new(RefCell::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let read = read.clone();
        async move {
            let (head, body) = request.into_parts();
            let mut response = Response::new(Empty::<Bytes>::new());
            if head.method == Method::CONNECT {
                // As the listener answers a tunnel that it does not open.
                *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            if let Ok(body) = body.collect().await {
                let body = body.to_bytes().to_vec();
                read.borrow_mut().push((head.method.to_string(), head.uri.to_string(), body));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).half_close(false);
    let connection = pin!(builder.serve_connection(Memory { bytes, at: 0, piece }, service));
    exhaust(connection);
    read.take()
}

/// Polls for as long as there is something to do.
fn exhaust(mut future: Pin<&mut impl Future>) {
    let work = Arc::new(Work(AtomicBool::new(true)));
    let waker = work.clone().into();
    let mut cx = Context::from_waker(&waker);
    while work.0.swap(false, Ordering::Relaxed) && future.as_mut().poll(&mut cx).is_pending() {}
}

struct Work(AtomicBool);

impl Wake for Work {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Memory {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
}

impl Read for Memory {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let count = into.remaining().min(self.bytes.len() - self.at).min(self.piece);
        if count == 0 {
            // The client waits for answers.
            return Poll::Pending;
        }
        into.put_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Poll::Ready(Ok(()))
    }
}

impl Write for Memory {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The requests that a strict parser finds, up to the first invalid one.
fn to_the_letter(mut bytes: &[u8]) -> Vec<Reading> {
    let mut all = Vec::new();
    while let Some((reading, rest)) = request(bytes) {
        all.push(reading);
        bytes = rest;
    }
    all
}

fn request(bytes: &[u8]) -> Option<(Reading, &[u8])> {
    let mut fields = [httparse::EMPTY_HEADER; 256];
    let mut head = httparse::Request::new(&mut fields);
    let Ok(httparse::Status::Complete(length)) = head.parse(bytes) else { return None };
    let target = head.path?;
    if target.contains('#') {
        return None;
    }
    let values = |name: &str| -> Vec<&[u8]> {
        head.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value).collect()
    };
    let rest = &bytes[length..];
    let (codings, lengths) = (values("transfer-encoding"), values("content-length"));
    let (body, rest) = match (codings.is_empty(), lengths.first()) {
        (false, _) => chunks(rest)?,
        (true, None) => (Vec::new(), rest),
        (true, Some(length)) => {
            let length = std::str::from_utf8(length).ok()?.parse().ok()?;
            let (body, rest) = rest.split_at_checked(length)?;
            (body.to_vec(), rest)
        }
    };
    Some(((head.method?.to_owned(), shown(target), body), rest))
}

/// The target in hyper's form.
fn shown(target: &str) -> String {
    target.parse::<http::Uri>().map(|target| target.to_string()).unwrap_or_default()
}

/// RFC 9112, 7.1.
fn chunks(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut body = Vec::new();
    loop {
        let line;
        (line, rest) = line_of(rest)?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let size = usize::from_str_radix(std::str::from_utf8(&line[..digits]).ok()?, 16).ok()?;
        if !are_extensions(&line[digits..]) {
            return None;
        }
        if size == 0 {
            break;
        }
        let chunk;
        (chunk, rest) = rest.split_at_checked(size)?;
        body.extend_from_slice(chunk);
        rest = rest.strip_prefix(b"\r\n")?;
    }
    loop {
        let line;
        (line, rest) = line_of(rest)?;
        if line.is_empty() {
            return Some((body, rest));
        }
    }
}

/// A line that ends in CR LF, and holds neither.
fn line_of(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
    Some((&bytes[..end], bytes[end..].strip_prefix(b"\r\n")?))
}

/// `*( ";" chunk-ext-name [ "=" chunk-ext-val ] )`, without blanks.
fn are_extensions(mut rest: &[u8]) -> bool {
    let token = |text: &[u8]| {
        let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        text.iter().take_while(|byte| is_token(byte)).count()
    };
    while let Some((b';', text)) = rest.split_first() {
        let name = token(text);
        if name == 0 {
            return false;
        }
        rest = &text[name..];
        if let Some((b'=', value)) = rest.split_first() {
            let length = match value.first() {
                Some(b'"') => quoted(value),
                _ => Some(token(value)).filter(|length| *length > 0),
            };
            let Some(length) = length else { return false };
            rest = &value[length..];
        }
    }
    rest.is_empty()
}

/// The length of a quoted string at the beginning.
fn quoted(text: &[u8]) -> Option<usize> {
    let mut escaped = false;
    for (index, byte) in text.iter().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(index + 1),
            _ => {}
        }
    }
    None
}
