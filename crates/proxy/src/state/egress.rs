//! An external service: the current addresses of its names, and the TLS configuration and
//! credentials for it.

use crate::state::machines::Machines;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};
use leno_files::{FileAccess, readers};
use leno_http::failure::Failure;
use leno_http::head;
use leno_model::{
    Credential, CredentialForm, Egress, EgressTls, FunctionId, SecretBytes, SecretReader, SecretSource, StoredSecrets,
};
use leno_runtime::client::{self, ClientError, FileTls};
use leno_runtime::resolver::Resolver;
use std::hash::{Hash, Hasher};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};
use zeroize::Zeroizing;

/// How long data from files and stored secrets is used before these are checked again.
const READ_AGAIN: Duration = Duration::from_secs(2);

/// An external service, ready to be called.
#[derive(Debug)]
pub(crate) struct EgressTarget {
    /// Its configuration.
    pub egress: Egress,
    /// `namespace/name` of its document.
    pub name: Arc<str>,
    /// TLS configurations for HTTP/1.1 and for HTTP/2.
    tls: [FromSecrets<ClientConfig>; 2],
    credentials: Vec<(HeaderName, Credential, FromSecrets<HeaderValue>)>,
    /// Fields that must not be in trailers: those whose values the node writes, and those that must
    /// not leave the mesh.
    pub(crate) not_in_trailers: Arc<[Box<str>]>,
    /// The index of its next address.
    turn: AtomicUsize,
    /// The number of its addresses at the last call.
    known: AtomicU32,
}

/// Requests with an equal key may share a connection to the service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EgressKey {
    /// `namespace/name` of its document.
    pub name: Arc<str>,
    /// TLS; `None`: plain text.
    pub tls: Option<EgressTargetTls>,
}

/// TLS to an external service.
#[derive(Clone, Debug)]
pub(crate) struct EgressTargetTls {
    /// Contains the trusted roots and the client certificate. If they change, there is another one.
    pub config: Arc<ClientConfig>,
    /// The name that the server has to prove.
    pub server: ServerName<'static>,
}

impl PartialEq for EgressTargetTls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.server == other.server
    }
}

impl Eq for EgressTargetTls {}

impl Hash for EgressTargetTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.config).hash(state);
        self.server.hash(state);
    }
}

impl EgressTarget {
    /// Prepares the service. Its secrets are read on first use.
    pub(super) fn new(egress: &Egress, name: Arc<str>, secrets: &EgressSecrets) -> Self {
        let sources: Vec<SecretSource> = egress.tls.sources().cloned().collect();
        let credential = |credential: &Credential| {
            // The configuration has checked the name.
            let name = HeaderName::try_from(credential.header.as_str()).ok()?;
            Some((name, credential.clone(), FromSecrets::new(vec![credential.from.clone()], secrets.clone())))
        };
        let traced = if egress.trace_context { &[][..] } else { &head::TRACE_CONTEXT[..] };
        let own = egress.credentials.iter().map(|credential| credential.header.as_str());
        Self {
            not_in_trailers: own.chain(traced.iter().map(HeaderName::as_str)).map(Into::into).collect(),
            tls: [sources.clone(), sources].map(|sources| FromSecrets::new(sources, secrets.clone())),
            credentials: egress.credentials.iter().filter_map(credential).collect(),
            turn: AtomicUsize::new(0),
            known: AtomicU32::new(1),
            egress: egress.clone(),
            name,
        }
    }

    /// The addresses of `host`, which is one of the service's names (in lower case) or addresses.
    /// Each is one that the service's document admits. The list begins with another address each
    /// time.
    ///
    /// # Errors
    /// There is no address now, or none that may be connected to.
    pub(crate) async fn addresses(
        &self,
        resolver: &Resolver,
        machines: &Machines,
        host: &str,
    ) -> Result<Vec<IpAddr>, Failure> {
        let is_machine = |address| machines.have(address);
        if let Some(address) = literal(host) {
            let named = self.egress.has_address(address, &is_machine);
            return if named { Ok(vec![address]) } else { Err(Failure::NotServed) };
        }
        if !self.egress.has_host(host) {
            return Err(Failure::NotServed);
        }
        let namespace = self.name.split('/').next().unwrap_or_default();
        let found = resolver.look_up(host, namespace, self.egress.connect_timeout).await;
        let found = found.map_err(|error| Failure::Lookup { cause: error.to_string() })?;
        let mut addresses: Vec<IpAddr> =
            found.iter().copied().filter(|address| self.egress.may_resolve_to(*address, &is_machine)).collect();
        if addresses.is_empty() {
            let named = |address: &IpAddr| match is_machine(*address) && !address.is_loopback() {
                true => format!("{address} (one of the mesh's machines)"),
                false => address.to_string(),
            };
            let found: Vec<String> = found.iter().take(4).map(named).collect();
            let cause = format!("{host} has the address {}, which `resolvesTo` does not admit", found.join(", "));
            return Err(Failure::Lookup { cause });
        }
        self.known.store(u32::try_from(addresses.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % addresses.len();
        addresses.rotate_left(first);
        Ok(addresses)
    }

    /// Whether `address` is an admitted address of the service, which was called by `host`.
    pub(crate) fn admits(&self, machines: &Machines, host: &str, address: IpAddr) -> bool {
        let is_machine = |address| machines.have(address);
        match literal(host) {
            Some(literal) => literal == address && self.egress.has_address(address, &is_machine),
            None => self.egress.has_host(host) && self.egress.may_resolve_to(address, &is_machine),
        }
    }

    /// The number of its addresses at the last call.
    pub(crate) fn known(&self) -> u32 {
        self.known.load(Ordering::Relaxed)
    }

    /// The key of connections for requests to `host`.
    ///
    /// # Errors
    /// The certificate files cannot be used.
    pub(crate) async fn key(&self, host: &str, tls: bool, http2: bool) -> Result<EgressKey, Failure> {
        let name = self.name.clone();
        if !tls {
            return Ok(EgressKey { name, tls: None });
        }
        if !self.egress.tls.refused.is_empty() {
            return Err(Failure::Unready { cause: self.egress.tls.refused.clone() });
        }
        let settings = self.egress.tls.clone();
        let config = self.tls[usize::from(http2)].get(move |reader| config(&settings, http2, reader)).await;
        let config = config.map_err(|error| Failure::Unready { cause: error.to_string() })?;
        let server = self.egress.tls.server_name.as_deref().unwrap_or(host);
        let server = match literal(server) {
            Some(address) => ServerName::from(address),
            None => ServerName::try_from(server.to_owned())
                .map_err(|error| Failure::Unready { cause: format!("{server}: {error}") })?,
        };
        Ok(EgressKey { name, tls: Some(EgressTargetTls { config, server }) })
    }

    /// The fields that the node adds to a request.
    ///
    /// # Errors
    /// A secret cannot be read. The request must not go without it.
    pub(crate) async fn credentials(&self) -> Result<Vec<(HeaderName, HeaderValue)>, Failure> {
        let mut fields = Vec::with_capacity(self.credentials.len());
        for (name, credential, value) in &self.credentials {
            let definition = credential.clone();
            let value = value.get(move |reader| field(&definition, reader)).await;
            let value =
                value.map_err(|reason| Failure::Unready { cause: format!("the credential {name}: {reason}") })?;
            fields.push((name.clone(), (*value).clone()));
        }
        Ok(fields)
    }
}

/// Parses the address in an authority. It must have the canonical form that rules compare with: not
/// `[::ffff:192.0.2.7]`, not `[2001:0db8::1]`.
pub(crate) fn literal(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address: IpAddr = bare.unwrap_or(host).parse().ok()?;
    let plain = address == address.to_canonical() && address.to_string() == bare.unwrap_or(host);
    (plain && address.is_ipv6() == bare.is_some()).then_some(address)
}

/// The secrets that the document of an external service may name.
#[derive(Clone, Debug)]
pub(crate) struct EgressSecrets {
    function: FunctionId,
    files: FileAccess,
    stored: StoredSecrets,
}

impl EgressSecrets {
    pub(crate) fn new(function: &FunctionId, files: FileAccess, stored: &StoredSecrets) -> Self {
        Self { function: function.clone(), files, stored: stored.clone() }
    }
}

/// Why secrets of an external service cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
enum SecretError {
    #[error(transparent)]
    Tls(Arc<ClientError>),
    #[error("{from}: {error}")]
    Unreadable { from: SecretSource, error: Arc<io::Error> },
    #[error("{0}: it cannot be in a header field")]
    NotAField(SecretSource),
    #[error("{0}")]
    Forbidden(String),
    #[error("{files}: {error}")]
    NotRead { files: String, error: Arc<io::Error> },
}

fn config(settings: &EgressTls, http2: bool, reader: &SecretReader) -> Result<(ClientConfig, u64), SecretError> {
    let pair = settings.certificate.as_ref().map(|(chain, key)| (chain, key));
    let roots: Vec<&SecretSource> = settings.roots().collect();
    let made = client::tls_of(&roots, &settings.names, pair, |source| reader.bytes(source));
    let FileTls { mut config, expires } = made.map_err(|error: ClientError| SecretError::Tls(Arc::new(error)))?;
    config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    Ok((config, expires))
}

fn field(credential: &Credential, reader: &SecretReader) -> Result<(HeaderValue, u64), SecretError> {
    let from = &credential.from;
    let unreadable = |error: io::Error| SecretError::Unreadable { from: from.clone(), error: Arc::new(error) };
    let text = reader.text(from).map_err(unreadable)?;
    let value = Zeroizing::new(match &credential.form {
        CredentialForm::Plain => text.to_string(),
        CredentialForm::Scheme(scheme) => format!("{scheme} {}", *text),
        CredentialForm::Basic(user) => {
            let pair = Zeroizing::new(format!("{user}:{}", *text));
            format!("Basic {}", STANDARD.encode(pair.as_bytes()))
        }
    });
    let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| SecretError::NotAField(from.clone()))?;
    value.set_sensitive(true);
    Ok((value, u64::MAX))
}

/// A value that is made of files and stored secrets, and made anew when they have changed.
#[derive(Debug)]
struct FromSecrets<T> {
    sources: Vec<SecretSource>,
    secrets: EgressSecrets,
    made: Mutex<Option<CacheEntry<T>>>,
    /// Held by the task that reads the files.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct CacheEntry<T> {
    /// The result. An error, too, is kept for a while.
    value: Result<Arc<T>, SecretError>,
    /// When the value must be made anew even if its sources are the same, in seconds since 1970.
    expires: u64,
    stamps: Vec<Stamp>,
    looked: Instant,
}

/// Identifies a version of a source; `None`: it cannot be read.
type Stamp = Option<SourceStamp>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum SourceStamp {
    /// Inode, length, time of the last change.
    File(u64, u64, i64, i64),
    Stored(SecretBytes),
}

impl<T: Send + Sync + 'static> FromSecrets<T> {
    fn new(sources: Vec<SecretSource>, secrets: EgressSecrets) -> Self {
        Self { sources, secrets, made: Mutex::default(), reading: tokio::sync::Mutex::default() }
    }

    /// `make` also returns when its result expires, in seconds since 1970.
    async fn get(
        &self,
        make: impl FnOnce(&SecretReader) -> Result<(T, u64), SecretError> + Send + 'static,
    ) -> Result<Arc<T>, SecretError> {
        if let Some(value) = self.fresh() {
            return value;
        }
        let _one_reads = self.reading.lock().await;
        if let Some(value) = self.fresh() {
            return value;
        }
        let before =
            self.made().as_ref().and_then(|made| Some((made.value.clone().ok()?, made.expires, made.stamps.clone())));
        let EgressSecrets { function, files, stored } = &self.secrets;
        let (sources, reader) = (self.sources.clone(), stored.reader(function, files.clone()));
        if let Some(reason) = sources.iter().find_map(|source| reader.refusal(&function.namespace, source)) {
            return Err(SecretError::Forbidden(reason));
        }
        let reading = readers::run(&function.namespace, readers::MAX_WAIT, move || {
            let stamps: Vec<Stamp> = sources.iter().map(|source| stamp(source, &reader)).collect();
            let made = match before {
                Some((value, expires, same)) if same == stamps && !stamps.contains(&None) && now() < expires => {
                    Ok((value, expires))
                }
                _ => make(&reader).map(|(value, expires)| (Arc::new(value), expires)),
            };
            Ok((made, stamps))
        });
        let (made, stamps) = match reading.await {
            Ok(read) => read,
            Err(error) => {
                (Err(SecretError::NotRead { files: self.sources_in_words(), error: Arc::new(error) }), Vec::new())
            }
        };
        let expires = made.as_ref().map_or(u64::MAX, |(_, expires)| *expires);
        let value = made.map(|(value, _)| value);
        *self.made() = Some(CacheEntry { value: value.clone(), expires, stamps, looked: Instant::now() });
        value
    }

    fn sources_in_words(&self) -> String {
        let names: Vec<String> = self.sources.iter().map(ToString::to_string).collect();
        names.join(", ")
    }

    fn fresh(&self) -> Option<Result<Arc<T>, SecretError>> {
        let made = self.made();
        let made = made.as_ref().filter(|made| made.looked.elapsed() < READ_AGAIN)?;
        Some(made.value.clone())
    }

    fn made(&self) -> MutexGuard<'_, Option<CacheEntry<T>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now() -> u64 {
    UnixTime::now().as_secs()
}

fn stamp(source: &SecretSource, reader: &SecretReader) -> Stamp {
    match source {
        SecretSource::File(path) => {
            let metadata = leno_files::open(path, reader.files()).ok()?.metadata().ok()?;
            Some(SourceStamp::File(metadata.ino(), metadata.len(), metadata.ctime(), metadata.ctime_nsec()))
        }
        SecretSource::Stored(key) => Some(SourceStamp::Stored(reader.stored()?.get(key)?.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_form() {
        for good in ["192.0.2.7", "[2001:db8::1]", "[::1]"] {
            assert!(literal(good).is_some(), "{good}");
        }
        for other in [
            "[::ffff:192.0.2.7]",
            "::1",
            "[192.0.2.7]",
            "[2001:0db8::1]",
            "[2001:DB8::1]",
            "127.1",
            "0x7f.1",
            "[::1%1]",
            "",
        ] {
            assert_eq!(literal(other), None, "{other}");
        }
    }
}
