//! Early responses over HTTP/1.1: a server responds and closes the connection during the upload.
//! Writes then fail although the response can be read. hyper would drop the response, so this
//! module holds the failure back until all bytes were read.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Sleep;

/// Limit on the wait for unread bytes after a failed write. The kernel has them when the write
/// fails, and the runtime polls the socket in its next turn.
const READ_ON: Duration = Duration::from_secs(1);

/// The state of a connection that the server may have closed early.
#[derive(Debug, Default)]
pub(super) struct EarlyEnd {
    /// Nothing more can be read.
    is_read: bool,
    failed: Option<Box<FailedWrite>>,
}

/// A write that failed before everything was read.
#[derive(Debug)]
struct FailedWrite {
    error: io::ErrorKind,
    writer: Waker,
    timer: Pin<Box<Sleep>>,
}

impl EarlyEnd {
    /// The result of a write after one that has failed; `None`: none has.
    pub(super) fn before_write(&mut self, cx: &Context<'_>) -> Option<Poll<io::Result<usize>>> {
        let failed = self.failed.as_mut()?;
        if self.is_read {
            return Some(Poll::Ready(Err(failed.error.into())));
        }
        failed.writer.clone_from(cx.waker());
        Some(Poll::Pending)
    }

    /// Holds a failed write back until everything was read.
    pub(super) fn written(&mut self, polled: Poll<io::Result<usize>>, cx: &Context<'_>) -> Poll<io::Result<usize>> {
        match polled {
            Poll::Ready(Err(error)) if !self.is_read && is_closed(&error) => {
                let timer = Box::pin(tokio::time::sleep(READ_ON));
                self.failed = Some(Box::new(FailedWrite { error: error.kind(), writer: cx.waker().clone(), timer }));
                // hyper has read before it wrote, and has to read again.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            polled => polled,
        }
    }

    /// The result of a read that has brought nothing, after a response has begun or before. A
    /// response without a length ends with the connection, so a reset is passed on: it may have cut
    /// the response off.
    pub(super) fn read_nothing(
        &mut self,
        polled: Poll<io::Result<()>>,
        has_begun: bool,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if polled.is_pending() && !self.failed.as_mut().is_some_and(|it| it.timer.as_mut().poll(cx).is_ready()) {
            return Poll::Pending;
        }
        self.is_read = true;
        let Some(failed) = &self.failed else { return polled };
        failed.writer.wake_by_ref();
        if polled.is_pending() || !has_begun { Poll::Ready(Err(failed.error.into())) } else { polled }
    }
}

/// Whether the other end has closed the connection.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset)
}
