//! A trust domain, and both ends of a TLS connection over a real socket.

use leno_identity::{
    Authority, CertificateDer, PeerError, SpiffeId, SvidStore, TimeProvider, TrustDomain, UnixTime, peer_identity,
};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Makes a broken test fail instead of hanging.
const TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);

/// A clock that stands still until a test advances it.
#[derive(Debug)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_900_000_000)))
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_secs(), Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::SeqCst)))
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.now())
    }
}

pub(crate) fn domain(name: &str) -> TrustDomain {
    name.parse().unwrap()
}

/// `<namespace>/<name>` in the trust domain `orders.example`.
pub(crate) fn id(function: &str) -> SpiffeId {
    let (namespace, name) = function.split_once('/').unwrap();
    SpiffeId::function(&domain("orders.example"), namespace, name).unwrap()
}

pub(crate) fn authority(clock: &Arc<Clock>) -> Authority {
    Authority::with_clock(&domain("orders.example"), clock.clone()).unwrap()
}

/// A store with an SVID for each function.
pub(crate) fn store(authority: &Authority, clock: &Arc<Clock>, functions: &[&str]) -> Arc<SvidStore> {
    let store = SvidStore::with_clock(authority.bundle().clone(), clock.clone());
    functions.iter().for_each(|function| renew(authority, &store, &id(function)));
    store
}

pub(crate) fn renew(authority: &Authority, store: &SvidStore, id: &SpiffeId) {
    let request = leno_identity::KeyRequest::new(id).unwrap();
    let chain = authority.sign(request.csr(), id, LIFETIME).unwrap();
    store.install(request, chain).unwrap();
}

/// The view that one side has of the other after an exchange of bytes.
#[derive(Debug)]
pub(crate) struct PeerView {
    pub identity: Option<SpiffeId>,
    pub leaf: Option<CertificateDer<'static>>,
    pub alpn: Option<Vec<u8>>,
}

impl PeerView {
    fn of(connection: &rustls::CommonState) -> Self {
        Self {
            identity: peer_identity(connection),
            leaf: connection.peer_certificates().and_then(|chain| chain.first()).cloned(),
            alpn: connection.alpn_protocol().map(<[u8]>::to_vec),
        }
    }
}

pub(crate) struct Client {
    pub stream: StreamOwned<ClientConnection, TcpStream>,
    server: JoinHandle<io::Result<PeerView>>,
}

/// Starts an echo server for one connection, and connects. Nothing is sent yet, so nothing has failed yet.
pub(crate) fn connect(server: Arc<ServerConfig>, client: Arc<ClientConfig>, name: &str) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let socket = patient(listener.accept()?.0);
        echo(StreamOwned::new(ServerConnection::new(server).map_err(io::Error::other)?, socket))
    });
    let connection = ClientConnection::new(client, name.to_owned().try_into().unwrap()).unwrap();
    Client { stream: StreamOwned::new(connection, patient(TcpStream::connect(address).unwrap())), server }
}

fn patient(socket: TcpStream) -> TcpStream {
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn echo(mut stream: StreamOwned<ServerConnection, TcpStream>) -> io::Result<PeerView> {
    let mut word = [0; 4];
    let mut seen = None;
    loop {
        match stream.read_exact(&mut word) {
            Ok(()) => stream.write_all(&word)?,
            Err(error) => return seen.ok_or(error),
        }
        seen = Some(PeerView::of(&stream.conn));
    }
}

impl Client {
    pub(crate) fn echo(&mut self, word: &[u8; 4]) -> io::Result<PeerView> {
        self.stream.write_all(word)?;
        let mut back = [0; 4];
        self.stream.read_exact(&mut back)?;
        assert_eq!(&back, word);
        Ok(PeerView::of(&self.stream.conn))
    }

    /// Closes, and returns the server's view.
    pub(crate) fn finish(mut self) -> io::Result<PeerView> {
        self.stream.conn.send_close_notify();
        let _ = self.stream.flush();
        drop(self.stream);
        self.server.join().unwrap()
    }
}

/// The views of client and server in one exchange, or the error of either.
pub(crate) fn exchange(
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    name: &str,
) -> (Result<PeerView, String>, Result<PeerView, String>) {
    let mut client = connect(server, client, name);
    let client_saw = client.echo(b"ping");
    (client_saw.map_err(complaint), client.finish().map_err(complaint))
}

fn complaint(error: io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    tls.and_then(PeerError::of).map_or_else(|| error.to_string(), PeerError::to_string)
}
