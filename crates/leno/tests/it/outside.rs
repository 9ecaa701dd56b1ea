//! The external services of a test's mesh: a name server whose answers the test sets, and servers
//! that report their requests.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_testkit::keys::CertificateAuthority;
use leno_testkit::mesh::policy;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;

/// An External document.
pub(crate) fn external(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: External\nmetadata: {{name: {name}, namespace: test}}\nspec:\n{spec}\n"
    )
}

/// A policy that lets `caller` GET all paths except those below `/admin`.
pub(crate) fn reading(external: &str, more: &str) -> String {
    policy(
        external,
        external,
        &format!(
            "  authorization: {{rules: [{{name: no-admin, action: deny, to: [{{paths: [\"/admin/{{**}}\"]}}]}}, \
             {{name: read, from: [{{identities: [caller]}}], to: [{{methods: [GET]}}]}}]}}\n{more}"
        ),
    )
}

/// The answer of a name server for a name.
#[derive(Clone)]
pub(crate) enum Answer {
    /// These addresses, with this TTL in seconds.
    Addresses(Vec<Ipv4Addr>, u32),
    /// So many loopback addresses without a listener, which is more than fits into a datagram.
    Huge(u16),
    /// No answer.
    Silence,
}

/// A name server. It answers NXDOMAIN for unknown names.
pub(crate) struct Names {
    pub address: SocketAddr,
    answers: Arc<Mutex<HashMap<String, Answer>>>,
    asked: Arc<Mutex<Vec<String>>>,
    _runtime: Runtime,
}

impl Names {
    pub(crate) fn start() -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST)
    }

    pub(crate) fn start_at(at: Ipv4Addr) -> Self {
        let runtime = runtime();
        let (answers, asked) = (Arc::<Mutex<HashMap<String, Answer>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (socket, listener) = runtime.block_on(async {
            loop {
                let socket = UdpSocket::bind((at, 0)).await.unwrap();
                // The number may be taken for the other protocol.
                if let Ok(listener) = TcpListener::bind(socket.local_addr().unwrap()).await {
                    return (socket, listener);
                }
            }
        });
        let address = socket.local_addr().unwrap();
        let (known, log) = (answers.clone(), asked.clone());
        runtime.spawn(async move {
            let mut question = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut question).await {
                if let Some(reply) = reply(&question[..length], &known, &log, 1200) {
                    let _ = socket.send_to(&reply, from).await;
                }
            }
        });
        let (known, log) = (answers.clone(), asked.clone());
        runtime.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (known, log) = (known.clone(), log.clone());
                tokio::spawn(async move {
                    while let Ok(length) = stream.read_u16().await {
                        let mut question = vec![0; usize::from(length)];
                        stream.read_exact(&mut question).await.unwrap();
                        let Some(reply) = reply(&question, &known, &log, usize::from(u16::MAX)) else { return };
                        stream.write_u16(u16::try_from(reply.len()).unwrap()).await.unwrap();
                        stream.write_all(&reply).await.unwrap();
                    }
                });
            }
        });
        Self { address, answers, asked, _runtime: runtime }
    }

    pub(crate) fn set(&self, name: &str, answer: Answer) {
        self.answers.lock().unwrap().insert(name.to_owned(), answer);
    }

    /// The number of questions for the IPv4 addresses of a name.
    pub(crate) fn asked(&self, name: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| *asked == name).count()
    }

    /// The field of a Mesh document that makes nodes use this server.
    pub(crate) fn mesh(&self) -> String {
        format!("  egress: {{nameServers: [\"{}\"]}}\n", self.address)
    }
}

/// Answers a question (RFC 1035, 4.1).
fn reply(
    question: &[u8],
    answers: &Mutex<HashMap<String, Answer>>,
    asked: &Mutex<Vec<String>>,
    longest: usize,
) -> Option<Vec<u8>> {
    const A: u16 = 1;
    let (mut at, mut labels) = (12, Vec::new());
    while question[at] != 0 {
        let end = at + 1 + usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..end]).to_lowercase());
        at = end;
    }
    let (name, kind) = (labels.join("."), u16::from_be_bytes([question[at + 1], question[at + 2]]));
    let end = at + 5;
    if kind == A {
        asked.lock().unwrap().push(name.clone());
    }
    let answer = answers.lock().unwrap().get(&name).cloned();
    let (code, addresses, ttl) = match answer {
        None => (3, Vec::new(), 0),
        Some(Answer::Silence) => return None,
        Some(Answer::Addresses(addresses, ttl)) => (0, addresses, ttl),
        Some(Answer::Huge(count)) => {
            let addresses = (0..count).map(|n| Ipv4Addr::new(127, 93, (n >> 8) as u8, n as u8));
            (0, addresses.collect(), 60)
        }
    };
    let addresses = if kind == A { addresses } else { Vec::new() };
    let fits = end + 16 * addresses.len() <= longest;
    let addresses = if fits { addresses } else { Vec::new() };
    let mut reply = question[..2].to_vec();
    // A response, truncated (TC) if it does not fit; recursion is available.
    reply.extend([if fits { 0x85 } else { 0x87 }, 0x80 | code]);
    reply.extend([0, 1]);
    reply.extend(u16::try_from(addresses.len()).unwrap().to_be_bytes());
    reply.extend([0, 0, 0, 0]);
    reply.extend(&question[12..end]);
    for address in addresses {
        reply.extend([0xc0, 12, 0, 1, 0, 1]);
        reply.extend(ttl.to_be_bytes());
        reply.extend([0, 4]);
        reply.extend(address.octets());
    }
    Some(reply)
}

/// A server. Over HTTP it answers each request with a JSON description of that request.
pub(crate) struct Server {
    pub address: SocketAddr,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
    runtime: Option<Runtime>,
}

impl Server {
    /// Plain HTTP.
    pub(crate) fn http(address: &str) -> Self {
        Self::start(address, None)
    }

    /// HTTP with TLS, with a certificate for these names. `clients`: requires client certificates
    /// of this authority.
    pub(crate) fn https(
        address: &str,
        authority: &CertificateAuthority,
        names: &[&str],
        clients: Option<&CertificateAuthority>,
    ) -> Self {
        let (certificate, key) = authority.issue(names);
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Self::with_certificate(address, certificate.der().clone(), key, clients)
    }

    /// A server that shows this certificate.
    pub(crate) fn with_certificate(
        address: &str,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
        clients: Option<&CertificateAuthority>,
    ) -> Self {
        let builder = ServerConfig::builder();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.certificate().der().clone()).unwrap();
                builder.with_client_cert_verifier(WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap())
            }
        };
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self::start(address, Some(TlsAcceptor::from(Arc::new(config))))
    }

    fn start(address: &str, tls: Option<TlsAcceptor>) -> Self {
        let runtime = runtime();
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, connections, fails) =
            (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (counted, accepted, failing) = (requests.clone(), connections.clone(), fails.clone());
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                let (tls, counted, failing) = (tls.clone(), counted.clone(), failing.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, None, counted, failing).await,
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            let session = stream.get_ref().1;
                            let seen = json!({
                                "sni": session.server_name(),
                                "alpn": session.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned()),
                                "client": session.peer_certificates().is_some(),
                            });
                            serve(stream, Some(seen), counted, failing).await;
                        }
                    }
                });
            }
        });
        Self { address, requests, connections, fails, runtime: Some(runtime) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Whether it answers 503 from now on.
    pub(crate) fn set_fails(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    /// Ends the server and its connections.
    pub(crate) fn die(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    tls: Option<Value>,
    counted: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
) {
    let answer = service_fn(move |request: Request<Incoming>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let (tls, status) = (tls.clone(), if fails.load(Ordering::SeqCst) { 503 } else { 200 });
        async move {
            let mut headers = BTreeMap::<String, String>::new();
            for (name, value) in request.headers() {
                headers.insert(name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned());
            }
            let (method, uri) = (request.method().to_string(), request.uri().to_string());
            let version = format!("{:?}", request.version());
            let length = request.into_body().collect().await?.to_bytes().len();
            let seen = json!({
                "outside": true, "tls": tls, "method": method, "uri": uri, "version": version, "headers": headers, "length": length,
            });
            Ok::<_, hyper::Error>(
                Response::builder().status(status).body(Full::new(Bytes::from(seen.to_string()))).unwrap(),
            )
        }
    });
    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    let _ = server.serve_connection(TokioIo::new(stream), answer).await;
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
