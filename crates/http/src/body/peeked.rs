//! Reads the first frame of a body before the body is passed on.

use super::{Body, Source};
use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use std::future::poll_fn;

/// A body whose first frame was read ahead.
#[derive(Debug)]
pub(super) struct PeekedBody {
    pub first: Frame<Bytes>,
    pub rest: Source,
}

impl Body {
    /// Waits for the first frame without taking it. Returns it if it is the trailers, so the body
    /// is empty.
    pub async fn first_trailers(&mut self) -> Option<&HeaderMap> {
        if !matches!(self.source, Source::Peeked(_)) {
            let first = match poll_fn(|cx| self.poll_source(cx)).await {
                Some(Ok(first)) => first,
                Some(Err(error)) => {
                    self.source = Source::Broken(error);
                    return None;
                }
                None => return None,
            };
            let rest = std::mem::take(&mut self.source);
            self.source = Source::Peeked(Box::new(PeekedBody { first, rest }));
        }
        match &self.source {
            Source::Peeked(begun) => begun.first.trailers_ref(),
            _ => None,
        }
    }
}
