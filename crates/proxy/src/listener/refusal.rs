//! Answers and records heads that the HTTP/1.1 parser refuses, or that never end. The answer gives
//! the reason.

use super::connection::Connection;
use super::stream::ClientStream;
use crate::pipeline::reply;
use http::{Request, StatusCode, Uri, Version};
use leno_http::failure::Failure;
use leno_http::head::HeadError;
use leno_http::peer::TrafficDirection;
use leno_policy::spec::Protocol;
use leno_telemetry::record::Record;
use leno_telemetry::request_line::RequestLine;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// How long an answer may take to be written.
const WRITE: Duration = Duration::from_secs(2);

impl Connection {
    /// Answers a head that could not be read, and ends the connection. `rest`: the bytes that the
    /// parser has not consumed.
    pub(super) async fn refuse_head<T>(&self, stream: ClientStream<T>, failure: Failure, rest: &[u8])
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let request_line = stream.framing().map_or_else(Vec::new, |framing| framing.request_line().to_vec());
        let (method, target) = method_and_target(&request_line);
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let answer = {
            let request_id = self.worker.request_id();
            let record = self.record_unread(Protocol::Http1, &failure, request_id.to_str().unwrap_or_default());
            record.note(|observed| observed.request_line = RequestLine::new(&method, &host(rest), path));
            reply::unread(&failure, &request_id, method == "HEAD")
        };
        // The record is complete, and whether the client reads its answer changes nothing.
        let _ = tokio::time::timeout(WRITE, stream.end_with(&answer)).await;
    }

    /// Records a request whose head could not be read. The record counts for the caller, if the
    /// caller is known.
    pub(super) fn record_unread(&self, protocol: Protocol, failure: &Failure, request_id: &str) -> Record {
        let mut head = Request::new(()).into_parts().0;
        head.version = if protocol == Protocol::Http1 { Version::HTTP_11 } else { Version::HTTP_2 };
        let caller = self.known_caller().map(|caller| caller.function.clone());
        let found = caller.as_ref().or(self.function.as_ref()).and_then(|function| self.worker.snapshot_with(function));
        let mut peer = self.peer.clone();
        if let (TrafficDirection::Outbound, Some((_, entry))) = (self.direction, &found) {
            peer.identity = Some(entry.identity.clone());
        }
        let record = Record::new(&self.worker.recorder, self.direction, &peer, protocol, &head, request_id);
        if let Some((_, entry)) = &found {
            record.namespace(entry.share());
            if self.direction == TrafficDirection::Inbound {
                record.routed(&entry.name);
            }
        }
        record.note(|observed| observed.request_line = RequestLine::new("", "", ""));
        record.failure(failure);
        record.status(failure.status().as_u16());
        record
    }
}

/// Why hyper's parser has refused a head. `rest`: the bytes that the parser has not consumed.
pub(super) fn cause<T>(stream: &ClientStream<T>, rest: &[u8], most_fields: usize) -> HeadError {
    let Some(framing) = stream.framing() else { return HeadError::RequestLine };
    let line = framing.request_line();
    let begin = line.split(|byte| matches!(byte, b'#' | b'\r' | b'\n')).next().unwrap_or_default();
    if stream.refused() == Some(StatusCode::URI_TOO_LONG) {
        return HeadError::LongTarget;
    }
    // hyper consumes a head before it looks at the target and at the fields that frame the message.
    if !rest.trim_ascii_start().starts_with(begin) {
        let is_target = Uri::try_from(method_and_target(line).1).is_ok();
        return match framing.has_coding() {
            _ if !is_target => HeadError::TargetCharacter,
            true => HeadError::Framing,
            false => HeadError::Length,
        };
    }
    let mut fields = vec![httparse::EMPTY_HEADER; most_fields];
    let mut head = httparse::Request::new(&mut fields);
    let parsed = head.parse(rest);
    match parsed {
        Err(httparse::Error::TooManyHeaders) => HeadError::TooManyHeaders,
        _ if stream.refused() == Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE) => HeadError::LargeHead,
        Err(httparse::Error::HeaderName) => HeadError::FieldName,
        Err(httparse::Error::HeaderValue) => HeadError::FieldValue,
        Err(httparse::Error::NewLine) => HeadError::LineEnd,
        Err(httparse::Error::Token) if head.method.is_some() && version(rest).is_some() => HeadError::TargetCharacter,
        Err(httparse::Error::Version) if version(rest).is_some_and(is_version) => HeadError::Version,
        _ => HeadError::RequestLine,
    }
}

/// The third of three words in the request line.
fn version(head: &[u8]) -> Option<&[u8]> {
    let line = head.trim_ascii_start().split(|byte| *byte == b'\n').next()?.trim_ascii_end();
    let mut words = line.split(|byte| *byte == b' ');
    words.nth(2).filter(|_| words.next().is_none())
}

fn is_version(word: &[u8]) -> bool {
    matches!(word.strip_prefix(b"HTTP/"), Some([b'0'..=b'9'] | [b'0'..=b'9', b'.', b'0'..=b'9']))
}

/// Method and target of a request line, or of its beginning.
fn method_and_target(line: &[u8]) -> (String, String) {
    let line = String::from_utf8_lossy(line.trim_ascii());
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    (method.to_owned(), target.to_owned())
}

/// The first `Host` of a head.
fn host(head: &[u8]) -> String {
    let fields = head.split(|byte| *byte == b'\n').skip(1).take_while(|line| !line.trim_ascii().is_empty());
    let named = |line: &[u8]| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        name.eq_ignore_ascii_case(b"host").then(|| String::from_utf8_lossy(value).into_owned())
    };
    fields.filter_map(named).next().unwrap_or_default()
}
