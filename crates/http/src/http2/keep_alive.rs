//! Finds out whether the other end of an HTTP/2 connection is still there.

use h2::{Ping, PingPong};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Sends PINGs, and waits for their answers.
#[derive(Debug)]
pub struct KeepAlive {
    ping: PingPong,
    every: Duration,
    answer: Duration,
    timer: Pin<Box<Sleep>>,
    is_waiting: bool,
}

impl KeepAlive {
    /// Sends a PING each `every`. Its answer may take `answer`.
    pub fn new(ping: PingPong, every: Duration, answer: Duration) -> Self {
        Self { ping, every, answer, timer: Box::pin(tokio::time::sleep(every)), is_waiting: false }
    }

    /// Becomes ready when an answer has not come in time, or the connection has ended. `is_used`: a
    /// PING is sent only then.
    pub fn poll(&mut self, is_used: impl Fn() -> bool, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.is_waiting {
                match self.ping.poll_pong(cx) {
                    Poll::Ready(Ok(_)) => {
                        self.is_waiting = false;
                        self.timer.as_mut().reset(Instant::now() + self.every);
                    }
                    // The connection says why.
                    Poll::Ready(Err(_)) => return Poll::Pending,
                    Poll::Pending => {}
                }
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.is_waiting {
                return Poll::Ready(());
            }
            let is_sent = is_used() && self.ping.send_ping(Ping::opaque()).is_ok();
            self.is_waiting = is_sent;
            self.timer.as_mut().reset(Instant::now() + if is_sent { self.answer } else { self.every });
        }
    }
}
