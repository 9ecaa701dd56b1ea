//! Entries in etcd, for several control planes of which one leads.
//!
//! The leader is named by an entry with a lease. Each commit compares the revision that created
//! that entry, so a control plane that lost its lease without noticing commits nothing.

mod term;

use self::term::{Resign, keep};
use crate::store::backend::{Backend, Commit, Entry, Limits, Listing, StoreError, Term, Transaction, Watch};
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, EventType, GetOptions, Identity, KvClient,
    PutOptions, SortOrder, SortTarget, TlsOptions, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::Code;

/// Format of the entries. It changes with each change that an older release cannot read.
const FORMAT: &str = "2";
const KEY_FORMAT: &str = "format";
const KEY_LEADER: &str = "leader";
/// The identity of the leader, with the same lease.
const KEY_MEMBER: &str = "member";
/// The certificate of the leader's API, with the same lease.
const KEY_CERTIFICATE: &str = "leader-certificate";
/// Longest time of one operation.
const LONGEST: Duration = Duration::from_secs(5);
/// Maximum number of entries in one answer to a listing.
const PAGE: i64 = 128;
/// Maximum size of an answer: a page of the largest entries that etcd accepts has 192 MiB.
const LARGEST_ANSWER: usize = 256 << 20;
/// etcd by default refuses more than 128 operations and 1.5 MiB. A few are for the lease and the
/// framing.
const LIMITS: Limits = Limits { changes: 120, bytes: 1 << 20 };
/// Maximum number of commits that a watch may be behind.
const BEHIND: usize = 256;

/// The address of etcd, and the settings of its client.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// `https://HOST:PORT`, or `http://` on a loopback address.
    pub endpoints: Vec<String>,
    /// Prefix of all keys, such as `/leno`.
    pub prefix: String,
    /// PEM of the authorities that may have signed etcd's certificate.
    pub ca: Option<Vec<u8>>,
    /// PEM of a certificate and its key, with which etcd knows this control plane.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The identity of this control plane, which no other running process has; `None`: it has none.
    /// A control plane that is started again does not wait for the lease of its previous process.
    pub member: Option<String>,
    /// The certificate of this control plane's API, in DER, until [`Backend::set_certificate`]
    /// replaces it. Others forward reads to it.
    pub certificate: Option<Vec<u8>>,
    /// How long a control plane leads after its last sign of life, in whole seconds, at least 2.
    pub lease: Duration,
}

/// A store in etcd 3.4 or later.
pub struct Etcd(Arc<Inner>);

struct Inner {
    client: Client,
    /// The async runtime of operations, so that callers may be on threads of any runtime or of
    /// none. `None` while it is dropped.
    runtime: Option<Runtime>,
    options: EtcdOptions,
    /// The revision that created the entry of this leader; `None`: this one does not lead.
    term: Mutex<Option<i64>>,
    /// The present certificate of this control plane's API. Locked while it is written to etcd, so
    /// that a new leader does not write the one before.
    certificate: Mutex<Option<Vec<u8>>>,
}

impl Etcd {
    /// Connects, and checks the format of the stored entries. Blocks on the network.
    pub fn connect(options: EtcdOptions) -> Result<Self, StoreError> {
        let name = options.endpoints.join(",");
        let failed = |reason: String| StoreError::Failed { store: name.clone(), reason };
        check(&options).map_err(|error| failed(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("leno-etcd")
            .enable_all()
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let (endpoints, connecting) = (options.endpoints.clone(), connect_options(&options));
        let client = wait(&runtime, async move { Client::connect(endpoints, Some(connecting)).await });
        let client = client.map_err(|error| failed(words(&error)))?;
        let certificate = Mutex::new(options.certificate.clone());
        let inner = Inner { client, runtime: Some(runtime), options, term: Mutex::new(None), certificate };
        inner.check_format()?;
        Ok(Self(Arc::new(inner)))
    }
}

/// Options with which the control plane does not use etcd.
#[derive(Debug, thiserror::Error)]
enum BadOptions {
    #[error("there is no address of etcd")]
    NoEndpoint,
    #[error("{0} is not on loopback and has no TLS; expected https://HOST:PORT")]
    Plaintext(String),
    #[error("`{0}` is no address of etcd; expected https://HOST:PORT")]
    Endpoint(String),
    #[error("a lease of {0:?} is too short; expected at least 2 s")]
    Lease(Duration),
}

/// Definitions contain the environment of functions, so they must not cross a network unencrypted.
fn check(options: &EtcdOptions) -> Result<(), BadOptions> {
    if options.endpoints.is_empty() {
        return Err(BadOptions::NoEndpoint);
    }
    for endpoint in &options.endpoints {
        let plain = endpoint.strip_prefix("http://");
        let host = plain.map(|rest| rest.trim_end_matches('/').rsplit_once(':').map_or(rest, |(host, _)| host));
        match host {
            Some("127.0.0.1" | "localhost" | "[::1]") => {}
            Some(_) => return Err(BadOptions::Plaintext(endpoint.clone())),
            None if endpoint.starts_with("https://") => {}
            None => return Err(BadOptions::Endpoint(endpoint.clone())),
        }
    }
    if options.lease < Duration::from_secs(2) {
        return Err(BadOptions::Lease(options.lease));
    }
    Ok(())
}

fn connect_options(options: &EtcdOptions) -> ConnectOptions {
    let mut connecting = ConnectOptions::new()
        .with_connect_timeout(LONGEST)
        .with_keep_alive(LONGEST, LONGEST)
        .with_keep_alive_while_idle(true)
        // A member that is cut off from the others ends its watches, instead of leaving them
        // silent.
        .with_require_leader(true);
    if options.endpoints.iter().any(|endpoint| endpoint.starts_with("https://")) {
        let mut tls = TlsOptions::new();
        if let Some(ca) = &options.ca {
            tls = tls.ca_certificate(Certificate::from_pem(ca));
        }
        if let Some((certificate, key)) = &options.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        connecting = connecting.with_tls(tls);
    }
    connecting
}

/// Runs an operation on the store's own runtime. Unlike `block_on` this is allowed on any thread.
fn wait<T: Send + 'static>(
    runtime: &Runtime,
    operation: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let (sender, receiver) = sync_channel(1);
    runtime.spawn(async move {
        let late = || Error::GRpcStatus(tonic::Status::deadline_exceeded(format!("no answer within {LONGEST:?}")));
        let outcome = timeout(LONGEST, operation).await.unwrap_or_else(|_| Err(late()));
        // The caller waits for this.
        let _ = sender.send(outcome);
    });
    receiver.recv().unwrap_or_else(|_| Err(Error::Internal("the operation was given up".to_owned())))
}

/// Describes an error without the debugging form that the library prints.
fn words(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) => format!("{} ({:?})", status.message(), status.code()),
        error => error.to_string(),
    }
}

impl Inner {
    fn wait<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        match &self.runtime {
            Some(runtime) => wait(runtime, operation),
            None => Err(Error::Internal("the store is closed".to_owned())),
        }
    }

    fn kv(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(LARGEST_ANSWER)
    }

    fn name(&self) -> String {
        format!("{}{}", self.options.endpoints.join(","), self.options.prefix)
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.options.prefix)
    }

    fn failed(&self, error: &Error) -> StoreError {
        StoreError::Failed { store: self.name(), reason: words(error) }
    }

    fn entry(&self, found: etcd_client::KeyValue) -> Result<Entry, StoreError> {
        let version = found.mod_revision().unsigned_abs();
        let (key, value) = found.into_key_value();
        let damaged = |reason: &str| StoreError::Damaged {
            store: self.name(),
            entry: String::from_utf8_lossy(&key).into_owned(),
            reason: reason.to_owned(),
        };
        let key = std::str::from_utf8(&key).map_err(|_| damaged("its key is not UTF-8"))?;
        let own = key.strip_prefix(&self.key("")).ok_or_else(|| damaged("its key has another prefix"))?;
        Ok(Entry { key: own.to_owned(), value, version })
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let (mut kv, key) = (self.kv(), self.key(KEY_FORMAT));
        let absent = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let write = TxnOp::put(key.clone(), FORMAT, None);
        let txn = Txn::new().when([absent]).and_then([write]).or_else([TxnOp::get(key, None)]);
        let answer = self.wait(async move { kv.txn(txn).await }).map_err(|error| self.failed(&error))?;
        let found = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(found) => found.kvs().first().map(|entry| entry.value().to_vec()),
            _ => None,
        });
        match found {
            Some(found) if found != FORMAT.as_bytes() => Err(StoreError::Format {
                store: self.name(),
                found: String::from_utf8_lossy(&found).into_owned(),
                expected: FORMAT,
                fix: "use another prefix, or the release that wrote it",
            }),
            _ => Ok(()),
        }
    }

    /// The term in which this control plane leads.
    fn term(&self) -> Option<i64> {
        *self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn certificate(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.certificate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_term(&self, term: Option<i64>) {
        *self.term.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }

    /// The first entry with an unexpected version; `None`: all are as expected, so this control
    /// plane no longer leads.
    fn conflict(&self, expected: &[(String, u64)]) -> Result<Option<String>, StoreError> {
        for (key, version) in expected {
            if self.get(key)?.map_or(0, |entry| entry.version) != *version {
                return Ok(Some(key.clone()));
            }
        }
        Ok(None)
    }

    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let (mut kv, key) = (self.kv(), self.key(key));
        let answer = self.wait(async move { kv.get(key, None).await });
        let mut answer = answer.map_err(|error| self.failed(&error))?;
        answer.take_kvs().pop().map(|found| self.entry(found)).transpose()
    }
}

impl Backend for Etcd {
    fn name(&self) -> String {
        self.0.name()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.0.get(key)
    }

    fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let prefix = self.0.key(prefix);
        let (mut listing, mut next) = (Listing::default(), prefix.clone());
        loop {
            let (mut kv, from, prefix) = (self.0.kv(), next.clone(), prefix.clone());
            // All pages show the moment of the first one.
            let revision = i64::try_from(listing.revision).unwrap_or(i64::MAX);
            let options = GetOptions::new()
                .with_range(after_prefix(&prefix))
                .with_limit(PAGE)
                .with_revision(revision)
                .with_sort(SortTarget::Key, SortOrder::Ascend);
            let answer = self.0.wait(async move { kv.get(from, Some(options)).await });
            let mut answer = answer.map_err(|error| self.0.failed(&error))?;
            if listing.revision == 0 {
                listing.revision = answer.header().map_or(0, |header| header.revision().unsigned_abs());
            }
            let more = answer.more();
            for found in answer.take_kvs() {
                listing.entries.push(self.0.entry(found)?);
            }
            match listing.entries.last() {
                // The key that follows this one.
                Some(last) if more => next = format!("{}\0", self.0.key(&last.key)),
                _ => return Ok(listing),
            }
        }
    }

    fn last(&self, prefix: &str, before: Option<&str>, most: usize) -> Result<Vec<Entry>, StoreError> {
        let (mut kv, from) = (self.0.kv(), self.0.key(prefix));
        let end = before.map_or_else(|| after_prefix(&from), |before| self.0.key(before).into_bytes());
        let options = GetOptions::new()
            .with_range(end)
            .with_limit(i64::try_from(most).unwrap_or(PAGE).min(PAGE))
            .with_sort(SortTarget::Key, SortOrder::Descend);
        let answer = self.0.wait(async move { kv.get(from, Some(options)).await });
        let mut answer = answer.map_err(|error| self.0.failed(&error))?;
        answer.take_kvs().into_iter().map(|found| self.0.entry(found)).collect()
    }

    fn commit(&self, transaction: &Transaction) -> Result<u64, StoreError> {
        transaction.check(LIMITS)?;
        let not_leader = || StoreError::NotLeader { store: self.name() };
        let term = self.0.term().ok_or_else(not_leader)?;
        let mut compares = vec![Compare::create_revision(self.0.key(KEY_LEADER), CompareOp::Equal, term)];
        for (key, version) in &transaction.expected {
            let version = i64::try_from(*version).unwrap_or(i64::MAX);
            compares.push(Compare::mod_revision(self.0.key(key), CompareOp::Equal, version));
        }
        let operation = |(key, value): &(String, Option<Vec<u8>>)| match value {
            Some(value) => TxnOp::put(self.0.key(key), value.clone(), None),
            None => TxnOp::delete(self.0.key(key), None),
        };
        let operations: Vec<TxnOp> = transaction.changes.iter().map(operation).collect();
        let (mut kv, txn) = (self.0.kv(), Txn::new().when(compares).and_then(operations));
        let answer = self.0.wait(async move { kv.txn(txn).await }).map_err(|error| self.commit_failed(&error))?;
        if answer.succeeded() {
            return Ok(answer.header().map_or(0, |header| header.revision().unsigned_abs()));
        }
        match self.0.conflict(&transaction.expected)? {
            Some(key) => Err(StoreError::Conflict { key }),
            None => {
                self.0.set_term(None);
                Err(not_leader())
            }
        }
    }

    fn watch(&self, prefix: &str, after: u64) -> Result<Watch, StoreError> {
        let (sender, receiver) = mpsc::channel(BEHIND);
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(i64::try_from(after.saturating_add(1)).unwrap_or(i64::MAX));
        let (mut client, key) = (self.0.client.watch_client(), self.0.key(prefix));
        let mut stream = self
            .0
            .wait(async move { client.watch(key, Some(options)).await })
            .map_err(|error| self.0.failed(&error))?;
        let own = self.0.key("");
        if let Some(runtime) = &self.0.runtime {
            runtime.spawn(async move {
                loop {
                    let message = tokio::select! {
                        message = stream.message() => message,
                        () = sender.closed() => return,
                    };
                    // The watch has ended, or missed revisions are compacted: the reader lists
                    // again.
                    let Ok(Some(message)) = message else { return };
                    if message.canceled() {
                        return;
                    }
                    for commit in commits(&own, message.events()) {
                        if sender.send(commit).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
        Ok(Watch(receiver))
    }

    fn try_lead(&self, address: &str) -> Result<Option<Term>, StoreError> {
        if self.leader()?.is_some() {
            // The previous process has ended, so nothing writes in its term. Once its lease is
            // revoked, another control plane may be faster to lead.
            let Some(lease) = self.0.own_lease()? else { return Ok(None) };
            tracing::info!("the leader of before was the previous process of this control plane: its lease ends now");
            self.0.revoke(lease);
        }
        let seconds = i64::try_from(self.0.options.lease.as_secs()).unwrap_or(i64::MAX);
        let asked = Instant::now();
        let mut leases = self.0.client.lease_client();
        let lease = self.0.wait(async move { leases.grant(seconds, None).await });
        let lease = lease.map_err(|error| self.0.failed(&error))?.id();
        let key = self.0.key(KEY_LEADER);
        let nobody = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let put = |key, value: &[u8]| TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
        let mut lead = vec![put(key, address.as_bytes())];
        let EtcdOptions { member, .. } = &self.0.options;
        let certificate = self.0.certificate();
        lead.extend(member.as_ref().map(|member| put(self.0.key(KEY_MEMBER), member.as_bytes())));
        lead.extend(certificate.as_ref().map(|certificate| put(self.0.key(KEY_CERTIFICATE), certificate)));
        let (mut kv, txn) = (self.0.kv(), Txn::new().when([nobody]).and_then(lead));
        let answer = self.0.wait(async move { kv.txn(txn).await });
        let revision = match &answer {
            Ok(answer) if answer.succeeded() => answer.header().map(etcd_client::ResponseHeader::revision),
            _ => None,
        };
        let Some(revision) = revision else {
            // If the entry was created after all, it ends with its lease.
            self.0.revoke(lease);
            return answer.map(|_| None).map_err(|error| self.0.failed(&error));
        };
        self.0.set_term(Some(revision));
        drop(certificate);
        let (lose, lost) = watch::channel(false);
        let keeping = self.0.runtime.as_ref().map(|runtime| {
            runtime.spawn(keep(Arc::downgrade(&self.0), lease, self.0.options.lease, asked, lose)).abort_handle()
        });
        let resign = Resign { store: self.0.clone(), lease, revision, keeping };
        Ok(Some(Term { lost, _resign: Box::new(resign) }))
    }

    fn leader(&self) -> Result<Option<String>, StoreError> {
        let entry = self.0.get(KEY_LEADER)?;
        Ok(entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()))
    }

    fn leader_certificate(&self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.0.get(KEY_CERTIFICATE)?.map(|entry| entry.value))
    }

    fn set_certificate(&self, certificate: &[u8]) -> Result<(), StoreError> {
        let mut present = self.0.certificate();
        *present = Some(certificate.to_vec());
        let Some(term) = self.0.term() else { return Ok(()) };
        let leads = Compare::create_revision(self.0.key(KEY_LEADER), CompareOp::Equal, term);
        // It ends with the lease of the leader, like the entry that it replaces.
        let options = PutOptions::new().with_ignore_lease();
        let put = TxnOp::put(self.0.key(KEY_CERTIFICATE), certificate, Some(options));
        let (mut kv, txn) = (self.0.kv(), Txn::new().when([leads]).and_then([put]));
        self.0.wait(async move { kv.txn(txn).await }).map(drop).map_err(|error| self.0.failed(&error))
    }
}

impl Etcd {
    fn commit_failed(&self, error: &Error) -> StoreError {
        let nothing_written = match error {
            Error::GRpcStatus(status) => matches!(
                status.code(),
                Code::InvalidArgument
                    | Code::ResourceExhausted
                    | Code::PermissionDenied
                    | Code::Unauthenticated
                    | Code::OutOfRange
            ),
            Error::InvalidArgs(_) => true,
            _ => false,
        };
        if nothing_written {
            return self.0.failed(error);
        }
        StoreError::Unknown { store: self.name(), reason: words(error) }
    }
}

impl Inner {
    /// The lease of the leader, if that has the identity of this control plane.
    fn own_lease(&self) -> Result<Option<i64>, StoreError> {
        let Some(member) = &self.options.member else { return Ok(None) };
        let (mut kv, key) = (self.kv(), self.key(KEY_MEMBER));
        let answer = self.wait(async move { kv.get(key, None).await }).map_err(|error| self.failed(&error))?;
        let found = answer.kvs().first().filter(|found| found.value() == member.as_bytes());
        Ok(found.map(etcd_client::KeyValue::lease).filter(|lease| *lease != 0))
    }

    /// Tries to end a lease; otherwise it expires.
    fn revoke(&self, lease: i64) {
        let mut leases = self.client.lease_client();
        if let Err(error) = self.wait(async move { leases.revoke(lease).await }) {
            tracing::debug!(error = words(&error), "a lease was not ended; it ends by itself");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Events of one answer, by commit.
fn commits(prefix: &str, events: &[etcd_client::Event]) -> Vec<Commit> {
    let mut commits: Vec<Commit> = Vec::new();
    for event in events {
        let Some(found) = event.kv() else { continue };
        let Some(key) = found.key_str().ok().and_then(|key| key.strip_prefix(prefix)) else { continue };
        let revision = found.mod_revision().unsigned_abs();
        let value = (event.event_type() == EventType::Put).then(|| found.value().to_vec());
        match commits.last_mut() {
            Some(last) if last.revision == revision => last.changes.push((key.to_owned(), value)),
            _ => commits.push(Commit { revision, changes: vec![(key.to_owned(), value)] }),
        }
    }
    commits
}

/// The first key after all keys that begin with `prefix`, which is not empty and ends with an ASCII
/// character.
fn after_prefix(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}
