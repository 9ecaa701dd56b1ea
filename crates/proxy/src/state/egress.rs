//! Something outside of the mesh: the addresses that its names have now, and what the node needs to speak to it.

use crate::http::failure::Failure;
use crate::runtime::client::{self, ClientError};
use crate::runtime::resolver::{LookupError, Resolver};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};
use leno_config::slice::{Credential, CredentialForm, Egress, EgressPort, EgressProtocol, EgressTls, Secret};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Semaphore;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use zeroize::Zeroizing;

/// How long what was read from files is used before they are looked at again.
const READ_AGAIN: Duration = Duration::from_secs(2);
/// Look-ups at a time for one External document, so that one whose names do not exist leaves the others theirs.
const LOOKUPS: usize = 32;

/// Something outside of the mesh, ready to be called.
#[derive(Debug)]
pub(crate) struct Outside {
    /// Its definition.
    pub egress: Egress,
    /// `namespace/name` of its document.
    pub name: Arc<str>,
    /// TLS configurations for HTTP/1.1 and for HTTP/2.
    tls: [FromFiles<ClientConfig>; 2],
    credentials: Vec<(HeaderName, Credential, FromFiles<HeaderValue>)>,
    lookups: Semaphore,
    /// Which of its addresses is next.
    turn: AtomicUsize,
    /// How many addresses there were last.
    known: AtomicU32,
}

/// What connections to it may be shared for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OutsideKey {
    /// Its document.
    pub name: Arc<str>,
    /// TLS; `None`: without.
    pub tls: Option<OutsideTls>,
}

/// TLS to something outside.
#[derive(Clone, Debug)]
pub(crate) struct OutsideTls {
    /// Of which certificates are trusted and shown. A change of them makes another one.
    pub config: Arc<ClientConfig>,
    /// The name that it has to prove.
    pub server: ServerName<'static>,
}

impl PartialEq for OutsideTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.server == other.server
    }
}

impl Eq for OutsideTls {}

impl Hash for OutsideTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.config).hash(state);
        self.server.hash(state);
    }
}

impl Outside {
    /// Prepares it. Its files are read when they are needed.
    pub(super) fn new(egress: &Egress, name: Arc<str>) -> Self {
        let EgressTls { ca_file, certificate, .. } = &egress.tls;
        let pair = certificate.iter().flat_map(|(chain, key)| [chain.clone(), key.clone()]);
        let files: Vec<PathBuf> = ca_file.iter().cloned().chain(pair).collect();
        let credential = |credential: &Credential| {
            // The configuration has checked the name.
            let name = HeaderName::try_from(credential.header.as_str()).ok()?;
            Some((name, credential.clone(), FromFiles::new(vec![credential.from.clone()])))
        };
        Self {
            tls: [FromFiles::new(files.clone()), FromFiles::new(files)],
            credentials: egress.credentials.iter().filter_map(credential).collect(),
            lookups: Semaphore::new(LOOKUPS),
            turn: AtomicUsize::new(0),
            known: AtomicU32::new(1),
            egress: egress.clone(),
            name,
        }
    }

    /// The addresses of `host`, which is one of its names (in lower case) or of its addresses. Each is one that its definition admits. They begin with
    /// another one each time.
    ///
    /// # Errors
    /// It has none now, or none that may be connected to.
    pub(crate) async fn addresses(&self, resolver: &Resolver, host: &str) -> Result<Vec<IpAddr>, Failure> {
        if let Some(address) = literal(host) {
            let named = self.egress.has_address(address);
            return if named { Ok(vec![address]) } else { Err(Failure::Misdirected) };
        }
        if !self.egress.has_host(host) {
            return Err(Failure::Misdirected);
        }
        let _lookup = self.lookups.try_acquire().map_err(|_| LookupError::TooMany { name: host.to_owned() })?;
        let found = resolver.look_up(host, self.egress.connect_timeout).await?;
        let mut addresses: Vec<IpAddr> =
            found.iter().copied().filter(|address| self.egress.may_resolve_to(*address)).collect();
        if addresses.is_empty() {
            let found: Vec<String> = found.iter().take(4).map(ToString::to_string).collect();
            let cause = format!("{host} has the address {}, which `resolvesTo` does not admit", found.join(", "));
            return Err(Failure::Lookup { cause });
        }
        self.known.store(u32::try_from(addresses.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % addresses.len();
        addresses.rotate_left(first);
        Ok(addresses)
    }

    /// How many addresses it had when it was called last.
    pub(crate) fn known(&self) -> u32 {
        self.known.load(Ordering::Relaxed)
    }

    /// What connections for requests to `host` are shared for.
    ///
    /// # Errors
    /// The files with its certificates cannot be used.
    pub(crate) async fn key(&self, host: &str, tls: bool, http2: bool) -> Result<OutsideKey, Failure> {
        let name = self.name.clone();
        if !tls {
            return Ok(OutsideKey { name, tls: None });
        }
        let settings = self.egress.tls.clone();
        let config = self.tls[usize::from(http2)].get(move || config(&settings, http2)).await;
        let config = config.map_err(|cause| Failure::Unready { cause })?;
        let server = self.egress.tls.server_name.as_deref().unwrap_or(host);
        let server = match literal(server) {
            Some(address) => ServerName::from(address),
            None => ServerName::try_from(server.to_owned())
                .map_err(|error| Failure::Unready { cause: format!("{server}: {error}") })?,
        };
        Ok(OutsideKey { name, tls: Some(OutsideTls { config, server }) })
    }

    /// The fields that the node adds to a request.
    ///
    /// # Errors
    /// A secret cannot be read. The request must not go without it.
    pub(crate) async fn credentials(&self) -> Result<Vec<(HeaderName, HeaderValue)>, Failure> {
        let mut fields = Vec::with_capacity(self.credentials.len());
        for (name, credential, value) in &self.credentials {
            let definition = credential.clone();
            let value = value.get(move || field(&definition)).await;
            let value =
                value.map_err(|reason| Failure::Unready { cause: format!("the credential {name}: {reason}") })?;
            fields.push((name.clone(), (*value).clone()));
        }
        Ok(fields)
    }
}

/// What a request for `host` at this port names.
pub(crate) fn authority(host: &str, port: EgressPort) -> String {
    let usual = match port.protocol {
        EgressProtocol::Https => 443,
        _ => 80,
    };
    if port.number == usual { host.to_owned() } else { format!("{host}:{}", port.number) }
}

/// An address, as it stands in an authority.
pub(crate) fn literal(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok()
}

impl From<LookupError> for Failure {
    fn from(error: LookupError) -> Self {
        Self::Lookup { cause: error.to_string() }
    }
}

fn config(settings: &EgressTls, http2: bool) -> Result<ClientConfig, String> {
    let pair = settings.certificate.as_ref().map(|(chain, key)| (chain.as_path(), key.as_path()));
    let mut config = client::tls(settings.ca_file.as_deref(), pair).map_err(|error: ClientError| error.to_string())?;
    config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    Ok(config)
}

fn field(credential: &Credential) -> Result<HeaderValue, String> {
    let secret = Secret { name: credential.header.clone(), from: credential.from.clone(), environment: true };
    let unreadable = |error: std::io::Error| format!("{}: {error}", secret.from.display());
    let text = Zeroizing::new(secret.text().map_err(unreadable)?);
    let value = Zeroizing::new(match &credential.form {
        CredentialForm::Plain => text.to_string(),
        CredentialForm::Scheme(scheme) => format!("{scheme} {}", *text),
        CredentialForm::Basic(user) => {
            let pair = Zeroizing::new(format!("{user}:{}", *text));
            format!("Basic {}", STANDARD.encode(pair.as_bytes()))
        }
    });
    let mut value = HeaderValue::try_from(value.as_str())
        .map_err(|_| format!("{}: it cannot be in a header field", secret.from.display()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Something that is made of files, and made anew when they have changed.
#[derive(Debug)]
struct FromFiles<T> {
    files: Vec<PathBuf>,
    made: Mutex<Option<Made<T>>>,
}

#[derive(Debug)]
struct Made<T> {
    value: Arc<T>,
    stamps: Vec<Stamp>,
    looked: Instant,
}

/// Tells one state of a file from another.
type Stamp = Option<(SystemTime, u64)>;

impl<T: Send + Sync + 'static> FromFiles<T> {
    fn new(files: Vec<PathBuf>) -> Self {
        Self { files, made: Mutex::default() }
    }

    async fn get(&self, make: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<Arc<T>, String> {
        let before = {
            let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            match &*made {
                Some(made) if made.looked.elapsed() < READ_AGAIN => return Ok(made.value.clone()),
                other => other.as_ref().map(|made| (made.value.clone(), made.stamps.clone())),
            }
        };
        let files = self.files.clone();
        // Reading files may block.
        let reading = tokio::task::spawn_blocking(move || {
            let stamps: Vec<Stamp> = files.iter().map(stamp).collect();
            match before {
                Some((value, same)) if same == stamps => Ok((value, stamps)),
                _ => make().map(|value| (Arc::new(value), stamps)),
            }
        });
        let (value, stamps) = reading.await.map_err(|error| error.to_string())??;
        let made = Made { value: value.clone(), stamps, looked: Instant::now() };
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        Ok(value)
    }
}

fn stamp(file: &PathBuf) -> Stamp {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
