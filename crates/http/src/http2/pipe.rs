//! Sends a body on an HTTP/2 stream.

use crate::body::Body;
use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;
use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// A DATA frame with fewer bytes costs its reader more than the bytes. HTTP/2 libraries end
/// connections with too many of them that nothing has read yet.
const SMALL: usize = 256;
/// Small frames that are sent in [`PACE`] at most. Beyond, the next bytes wait, and are joined
/// meanwhile.
const BURST: u32 = 128;
const PACE: Duration = Duration::from_millis(6);

/// How fast small frames are sent.
#[derive(Default)]
struct Pace {
    sent: u32,
    since: Option<Instant>,
}

impl Pace {
    /// A small frame was sent. Waits if they are too many.
    async fn keep(&mut self) {
        self.sent += 1;
        if self.sent < BURST {
            return;
        }
        let due = self.since.map(|since| since + PACE).filter(|due| *due > Instant::now());
        if let Some(due) = due {
            tokio::time::sleep_until(due).await;
        }
        (self.sent, self.since) = (0, Some(Instant::now()));
    }
}

/// Sends all frames of the body. Resets the stream if the body breaks off.
pub async fn pipe(mut body: Body, mut to: SendStream<Bytes>) -> Result<(), h2::Error> {
    let mut pace = Pace::default();
    loop {
        let frame = poll_fn(|cx| match is_reset(&mut to, cx) {
            Some(error) => Poll::Ready(Err(error)),
            None => Pin::new(&mut body).poll_frame(cx).map(Ok),
        });
        match frame.await? {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    let is_end = body.is_end_stream();
                    if !data.is_empty() {
                        // `send_data` reserves the rest of the capacity.
                        to.reserve_capacity(1);
                        poll_fn(|cx| poll_capacity(&mut to, cx)).await?;
                    }
                    let is_small = data.len() < SMALL;
                    to.send_data(data, is_end)?;
                    if is_end {
                        return Ok(());
                    }
                    if is_small {
                        pace.keep().await;
                    }
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        to.reserve_capacity(0);
                        return to.send_trailers(trailers);
                    }
                }
            },
            Some(Err(error)) => {
                to.send_reset(reason(&error));
                return Err(reason(&error).into());
            }
            None => return to.send_data(Bytes::new(), true),
        }
    }
}

fn is_reset(to: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Option<h2::Error> {
    match to.poll_reset(cx) {
        Poll::Ready(Ok(reason)) => Some(reason.into()),
        Poll::Ready(Err(error)) => Some(error),
        Poll::Pending => None,
    }
}

/// Waits until there is room for a byte.
pub(super) fn poll_capacity(to: &mut SendStream<Bytes>, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
    if let Some(error) = is_reset(to, cx) {
        return Poll::Ready(Err(error));
    }
    while to.capacity() == 0 {
        match to.poll_capacity(cx) {
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
            // The stream has ended.
            Poll::Ready(None) => return Poll::Ready(Err(Reason::CANCEL.into())),
            Poll::Pending => return Poll::Pending,
        }
    }
    Poll::Ready(Ok(()))
}

/// The code that a stream is reset with for this error.
fn reason(error: &(dyn Error + 'static)) -> Reason {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(reason) = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason) {
            return reason;
        }
        source = error.source();
    }
    Reason::INTERNAL_ERROR
}
