//! `leno-bench function`: an instance that works for the time in each request. It answers with the
//! times at which it started, listened, and worked.

use anyhow::Context;
use bytes::Bytes;
use clap::ValueEnum;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::convert::Infallible;
use std::hint::black_box;
use std::net::{Ipv4Addr, TcpListener};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::LocalSet;

/// Of a request: what to do, and for how many microseconds.
pub(crate) const WORK: &str = "x-work";
/// Of an answer: [`Life`], its numbers in their order.
pub(crate) const LIFE: &str = "x-life";
/// This subcommand.
pub(crate) const SUBCOMMAND: &str = "function";
/// Square roots between two looks at the clock.
const ROUND: u32 = 2000;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Listen on the socket that standard input is, instead of the port in `PORT`.
    #[arg(long)]
    inherit: bool,
}

/// How a function spends its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Work {
    /// It waits.
    Sleep,
    /// It computes square roots until it has used so much CPU time.
    Spin,
}

/// When what happened in an instance, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Life {
    /// The requests it had, this one included; 1: a cold start.
    pub count: u64,
    /// The program began.
    pub started: u64,
    /// It listened.
    pub listening: u64,
    /// The request was there.
    pub received: u64,
    /// Its work was done.
    pub finished: u64,
}

impl Life {
    /// As [`LIFE`] has it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        Some(Self { count: next()?, started: next()?, listening: next()?, received: next()?, finished: next()? })
    }

    fn text(self) -> String {
        let Self { count, started, listening, received, finished } = self;
        format!("{count} {started} {listening} {received} {finished}")
    }
}

/// Microseconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Serves HTTP/1.1 until it is killed.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let started = now();
    let listener = if arguments.inherit {
        TcpListener::from(rustix::io::dup(std::io::stdin())?)
    } else {
        let port: u16 = std::env::var("PORT").context("PORT")?.parse().context("PORT")?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port))?
    };
    listener.set_nonblocking(true)?;
    // Threads that work are kept: starting one is nothing that a function does for each request.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(Duration::from_secs(3600))
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let life = Life { count: 0, started, listening: now(), received: 0, finished: 0 };
        let count = Rc::new(Cell::new(0));
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let count = count.clone();
            let service = service_fn(move |request| answer(request, life, count.clone()));
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client that goes away is no event.
            tokio::task::spawn_local(async move { drop(connection.await) });
        }
    })
}

async fn answer(
    request: Request<Incoming>,
    mut life: Life,
    count: Rc<Cell<u64>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    life.received = now();
    count.set(count.get() + 1);
    life.count = count.get();
    let work = request.headers().get(WORK).and_then(|value| parse(value.to_str().ok()?));
    let done = match work {
        Some((work, time)) => tokio::task::spawn_blocking(move || work.for_time(time)).await.is_ok(),
        None => false,
    };
    life.finished = now();
    let mut response = Response::new(Full::new(Bytes::from_static(b"done\n")));
    if !done {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    if let Ok(value) = HeaderValue::from_str(&life.text()) {
        response.headers_mut().insert(LIFE, value);
    }
    Ok(response)
}

impl Work {
    /// The value of the header field [`WORK`] that requests this work.
    pub(crate) fn header(self, time: Duration) -> String {
        let word = match self {
            Self::Sleep => "sleep",
            Self::Spin => "spin",
        };
        format!("{word} {}", time.as_micros())
    }

    fn for_time(self, time: Duration) {
        match self {
            Self::Sleep => std::thread::sleep(time),
            Self::Spin => {
                let end = cpu_time() + time;
                while cpu_time() < end {
                    for number in 0..ROUND {
                        black_box(black_box(f64::from(number)).sqrt());
                    }
                }
            }
        }
    }
}

fn parse(text: &str) -> Option<(Work, Duration)> {
    let (word, micros) = text.split_once(' ')?;
    let work = match word {
        "sleep" => Work::Sleep,
        "spin" => Work::Spin,
        _ => return None,
    };
    Some((work, Duration::from_micros(micros.parse().ok()?)))
}

/// Of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let life = Life { count: 1, started: 2, listening: 3, received: 4, finished: 5 };
        assert_eq!(Life::parse(&life.text()), Some(life));
        assert_eq!(Life::parse("1 2 3 4"), None);
        for work in [Work::Sleep, Work::Spin] {
            let time = Duration::from_micros(1234);
            assert_eq!(parse(&work.header(time)), Some((work, time)));
        }
        assert_eq!(parse("rest 5"), None);
        assert_eq!(parse("sleep -5"), None);
    }

    #[test]
    fn spinning_uses_the_processor() {
        let (begin, time) = (cpu_time(), Duration::from_millis(5));
        Work::Spin.for_time(time);
        assert!(cpu_time() - begin >= time);
    }
}
