//! Sends each invocation when it is due, whatever the others do, over connections that are kept.

use super::function::{LIFE, Life, WORK, Work, now};
use super::workload::Invocation;
use crate::load::{self, Request, Tls};
use crate::proxy_under_test::leno::host_of;
use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::http::request::Builder;
use hyper_util::rt::TokioIo;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// How long the last requests may take beyond their work. (InVitro waits so long for a connection.)
const TIMEOUT: Duration = Duration::from_secs(15);

/// Where to.
pub(super) struct Target<'a> {
    pub address: SocketAddr,
    pub tls: Option<&'a Tls>,
    pub request: &'a Request,
    pub work: Work,
    /// That are open before anything is sent. More are opened when all of them are in use.
    pub connections: usize,
}

/// The outcome of an invocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Completion {
    /// How late it was sent: the load's own doing, within the latency.
    pub late: Duration,
    /// From when it was due to the last byte of the answer, or to the end of all hope.
    pub latency: Duration,
    /// `None`: no answer.
    pub status: Option<u16>,
    /// The instance's report.
    pub life: Option<Life>,
    pub error: Option<String>,
}

impl Completion {
    /// Whether it worked.
    pub(super) fn is_good(&self) -> bool {
        self.status == Some(200) && self.life.is_some()
    }
}

/// The outcomes of all invocations.
#[derive(Serialize, Deserialize)]
pub(super) struct ReplayResult {
    /// When the first was due, in microseconds since 1970.
    pub epoch: u64,
    /// One for each invocation.
    pub all: Vec<Completion>,
}

/// Sends all invocations; `begun` is called when the first connections are open.
pub(super) fn replay(
    target: &Target<'_>,
    invocations: &[Invocation],
    begun: impl FnOnce(),
) -> anyhow::Result<ReplayResult> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let client = Rc::new(Client::new(target)?);
        for _ in 0..target.connections {
            let connection = client.connect().await.context("nobody listens")?;
            client.idle.borrow_mut().push_back(connection);
        }
        begun();
        send_all(&client, invocations).await
    })
}

async fn send_all(client: &Rc<Client>, invocations: &[Invocation]) -> anyhow::Result<ReplayResult> {
    let timer = Timer::new()?;
    let (begin, epoch) = (Instant::now(), now());
    let mut under_way = JoinSet::new();
    for (index, invocation) in invocations.iter().copied().enumerate() {
        timer.until(begin + invocation.at).await?;
        let client = client.clone();
        under_way.spawn_local(async move {
            let due = begin + invocation.at;
            let late = due.elapsed();
            let answer = client.invoke(index, invocation).await;
            (index, done(answer, late, due.elapsed()))
        });
    }
    let longest = invocations.iter().map(|invocation| invocation.work).max().unwrap_or_default();
    let over = tokio::time::sleep(longest + TIMEOUT);
    tokio::pin!(over);
    let mut all = vec![None; invocations.len()];
    loop {
        tokio::select! {
            joined = under_way.join_next() => match joined {
                Some(joined) => {
                    let (index, done) = joined?;
                    all[index] = Some(done);
                }
                None => break,
            },
            () = &mut over => break,
        }
    }
    let unanswered = |invocation: &Invocation| Completion {
        late: Duration::ZERO,
        latency: (begin + invocation.at).elapsed(),
        status: None,
        life: None,
        error: Some("not answered when all was over".to_owned()),
    };
    let all = all.into_iter().zip(invocations).map(|(done, invocation)| done.unwrap_or_else(|| unanswered(invocation)));
    Ok(ReplayResult { epoch, all: all.collect() })
}

fn done(answer: anyhow::Result<(u16, Option<Life>)>, late: Duration, latency: Duration) -> Completion {
    match answer {
        Ok((status, life)) => Completion { late, latency, status: Some(status), life, error: None },
        Err(error) => Completion { late, latency, status: None, life: None, error: Some(format!("{error:#}")) },
    }
}

type Connection = SendRequest<Empty<Bytes>>;

struct Client {
    address: SocketAddr,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    request: Request,
    work: Work,
    /// Taken in turn, so that none is idle for long.
    idle: RefCell<VecDeque<Connection>>,
}

impl Client {
    fn new(target: &Target<'_>) -> anyhow::Result<Self> {
        let tls = target.tls.map(|tls| load::configure(tls, b"http/1.1")).transpose()?;
        let idle = RefCell::default();
        Ok(Self { address: target.address, tls, request: target.request.clone(), work: target.work, idle })
    }

    async fn invoke(&self, index: usize, invocation: Invocation) -> anyhow::Result<(u16, Option<Life>)> {
        let request = self.head(index, invocation).body(Empty::new())?;
        let mut connection = match self.kept() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let answer = match connection.try_send_request(request).await {
            Ok(answer) => answer,
            Err(mut error) => {
                // A kept connection may have been closed meanwhile; then nothing of the request was
                // sent.
                let Some(request) = error.take_message() else { return Err(error.into_error().into()) };
                connection = self.connect().await?;
                connection.send_request(request).await?
            }
        };
        let status = answer.status().as_u16();
        let life = answer.headers().get(LIFE).and_then(|value| Life::parse(value.to_str().ok()?));
        answer.into_body().collect().await?;
        if connection.ready().await.is_ok() {
            self.idle.borrow_mut().push_back(connection);
        }
        Ok((status, life))
    }

    fn head(&self, index: usize, invocation: Invocation) -> Builder {
        let request = &self.request;
        let mut head = hyper::Request::builder()
            .method(request.method.as_str())
            .uri(request.target.as_str())
            .header(HOST, host_of(invocation.function))
            .header(WORK, self.work.header(invocation.work));
        for (name, value) in &request.headers {
            head = head.header(name, value);
        }
        match request.authorizations.get(index % request.authorizations.len().max(1)) {
            Some(authorization) => head.header(AUTHORIZATION, authorization),
            None => head,
        }
    }

    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        std::iter::from_fn(|| idle.pop_front()).find(Connection::is_ready)
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let Some((tls, name)) = &self.tls else { return handshake(stream).await };
        handshake(tls.connect(name.clone(), stream).await?).await
    }
}

async fn handshake<S>(stream: S) -> anyhow::Result<Connection>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::task::spawn_local(async move { drop(connection.await) });
    Ok(sender)
}

/// The runtime's own timers know milliseconds only.
struct Timer(AsyncFd<OwnedFd>);

impl Timer {
    fn new() -> anyhow::Result<Self> {
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "an OwnedFd stays the same descriptor as long as it lives; the successor is unsafe"
        )]
        let timer = AsyncFd::new(timer)?;
        Ok(Self(timer))
    }

    async fn until(&self, due: Instant) -> anyhow::Result<()> {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let once = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let times = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: once };
        rustix::time::timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &times)?;
        loop {
            let mut guard = self.0.readable().await?;
            let mut bytes = [0; 8];
            if guard.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut bytes)?)).is_ok() {
                return Ok(());
            }
        }
    }
}
