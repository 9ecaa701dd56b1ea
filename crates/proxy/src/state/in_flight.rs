//! The requests that an instance is handling, and those that it has just handled.

use http::{HeaderMap, HeaderValue};
use leno_http::head;
use leno_policy::trace::{Parent, TraceContext};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Limit on the ended requests that are kept for one jail.
const MOST_ENDED: usize = 32;

/// A request that an instance is handling. All calls of the instance meanwhile belong to that
/// request, whether or not the instance copies headers.
#[derive(Debug)]
pub struct InFlight {
    /// The request's `x-request-id`.
    pub request_id: HeaderValue,
    trace: Option<TraceContext>,
    state: Option<HeaderValue>,
    retried: bool,
}

impl InFlight {
    /// A request as sent to the instance: its id, its span if it is traced, and the `tracestate`
    /// header.
    pub fn new(request_id: &HeaderValue, trace: Option<TraceContext>, headers: &HeaderMap) -> Self {
        let state = trace.and_then(|_| headers.get("tracestate")).map(head::own);
        Self { request_id: request_id.clone(), trace, state, retried: false }
    }

    /// The same request; if `retried`, as a retry, or as a call on behalf of one.
    #[must_use]
    pub fn retried(self, retried: bool) -> Self {
        Self { retried, ..self }
    }

    /// Whether the request is a retry, or was made on behalf of one. Calls on its behalf are not
    /// retried.
    pub fn is_retry(&self) -> bool {
        self.retried
    }

    /// The trace parent of requests that belong to this one; `None`: the request is not traced.
    pub fn parent(&self) -> Option<Parent<'_>> {
        let state = self.state.as_ref().and_then(|state| state.to_str().ok()).unwrap_or_default();
        self.trace.map(|context| Parent { context, state })
    }
}

/// The requests of one instance.
#[derive(Default)]
pub(super) struct Requests {
    /// Those that it is handling, and since when.
    in_flight: Vec<(Arc<InFlight>, Instant)>,
    /// The latest ones that have ended, oldest first.
    ended: VecDeque<EndedRequest>,
    /// When the last request ended that is in neither list.
    forgotten: Option<Instant>,
}

struct EndedRequest {
    request_id: HeaderValue,
    since: Instant,
    until: Instant,
}

impl Requests {
    pub(super) fn begin(&mut self, request: &Arc<InFlight>) {
        self.in_flight.push((request.clone(), Instant::now()));
    }

    /// Ends a request. `is_kept`: [`Requests::at`] finds it for a moment more, because the kernel
    /// reports refused connections later.
    pub(super) fn end(&mut self, request: &Arc<InFlight>, is_kept: bool) {
        let found = self.in_flight.iter().position(|(known, _)| Arc::ptr_eq(known, request));
        let Some((_, since)) = found.map(|index| self.in_flight.remove(index)) else { return };
        if !is_kept {
            return;
        }
        if self.ended.len() >= MOST_ENDED {
            let oldest = self.ended.pop_front().map(|ended| ended.until);
            self.forgotten = self.forgotten.max(oldest);
        }
        self.ended.push_back(EndedRequest { request_id: request.request_id.clone(), since, until: Instant::now() });
    }

    /// The request in flight, if there is exactly one.
    pub(super) fn only_in_flight(&self) -> Option<Arc<InFlight>> {
        match &self.in_flight[..] {
            [(request, _)] => Some(request.clone()),
            _ => None,
        }
    }

    /// The IDs of the requests in flight.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = &str> {
        self.in_flight.iter().filter_map(|(request, _)| request.request_id.to_str().ok())
    }

    /// The IDs of the requests that were in flight a moment ago. None if the moment is too long ago.
    pub(super) fn at(&self, then: Instant) -> impl Iterator<Item = &str> {
        let is_known = self.forgotten.is_none_or(|last| last < then);
        let open = self.in_flight.iter().filter(move |(_, since)| *since <= then);
        let ended = self.ended.iter().filter(move |ended| ended.since <= then && then <= ended.until);
        let ids = open.map(|(request, _)| &request.request_id).chain(ended.map(|ended| &ended.request_id));
        ids.filter(move |_| is_known).filter_map(|id| id.to_str().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_hand_keeps_nothing_of_its_head() {
        let buffer = bytes::Bytes::from(b"a=1, token".to_vec());
        let state = HeaderValue::from_maybe_shared(buffer.slice(..3)).unwrap();
        let headers = HeaderMap::from_iter([("tracestate".parse().unwrap(), state)]);
        let context = TraceContext { trace_id: 1, span_id: 1, sampled: true };
        let in_flight = InFlight::new(&HeaderValue::from_static("r"), Some(context), &headers);
        drop(headers);
        assert!(buffer.is_unique());
        assert_eq!(in_flight.parent().unwrap().state, "a=1");
    }
}
