//! Two functions for measurements: one calls the other, and reports the duration.

use crate::calls::{Body, Calls, Failure, Operation, Outcome, Reply, Request};
use crate::messages::Content;
use bytes::Bytes;
use std::time::Instant;

const RETURN: Operation<Content, Content> = Operation::new("echo", "/boutique.v1.Echo/Return");

/// Most calls for one request.
const MOST: usize = 100_000;

/// `GET /hops?calls=NUMBER&bytes=NUMBER`: makes so many calls, one after the other. Answers with
/// microseconds.
pub(crate) async fn call(calls: &impl Calls, request: &Request) -> Result<Outcome, Failure> {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    if path != "/hops" {
        return Err(Failure::Path);
    }
    let number = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse::<usize>().ok())
    };
    let count = number("calls").unwrap_or(1000).clamp(1, MOST);
    let content = Content { bytes: Bytes::from(vec![b'x'; number("bytes").unwrap_or(100).min(1 << 20)]) };
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        let answer = RETURN.ask(calls, &content).await?;
        times.push(begin.elapsed());
        if answer.bytes.len() != content.bytes.len() {
            return Err(Failure::Question("the echo is not what was said"));
        }
    }
    times.sort_unstable();
    let at = |share: f64| times[((count - 1) as f64 * share) as usize].as_nanos() as f64 / 1000.0;
    let text = format!("{{\"p50_us\": {}, \"p99_us\": {}}}\n", at(0.5), at(0.99));
    Ok(Outcome::Reply(Reply::of(Body::Bytes(Bytes::from(text)))))
}

/// Sends the received body back.
pub(crate) fn echo(request: &Request) -> Result<Outcome, Failure> {
    match request.path.as_str() {
        path if path == RETURN.path => Ok(Outcome::Reply(Reply::of(Body::Same))),
        _ => Err(Failure::Path),
    }
}
