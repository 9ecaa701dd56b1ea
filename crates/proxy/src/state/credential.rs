//! Proxy credentials, by which an instance proves its identity to its outbound sidecar.
//!
//! Every process of the machine can reach the outbound listener, so a connection's address proves
//! nothing. Each instance gets its own secret in its environment (`HTTP_PROXY`), and sends it as
//! `proxy-authorization` (RFC 9110, 11.7; Basic, RFC 7617). The secret ends with the instance, and
//! is useless to other processes: the node looks up which process opened the connection that
//! carries it.

use crate::state::in_flight::{InFlight, Requests};
use crate::state::shards::Shards;
use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use leno_http::failure::Unproven;
use leno_model::FunctionId;
use leno_telemetry::flows::HandledRequests;
use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use zeroize::Zeroizing;

/// How late [`Credentials::started`] may be called after an instance's first call, in milliseconds.
const START_WAIT_MS: u32 = 100;

/// Credentials of the instances that may use the outbound listener.
#[derive(Debug, Default)]
pub struct Credentials {
    callers: ArcSwap<Callers>,
    minted: AtomicU64,
    /// Notified when an instance's credential is revoked.
    revoked: Notify,
    /// Serialises changes of `callers`. Each change copies only the shards that it touches, so that
    /// the next start is cheap even among a thousand instances.
    changing: Mutex<()>,
}

#[derive(Clone, Debug, Default)]
struct Callers {
    by_user: Shards<Arc<str>, Arc<Caller>>,
    by_instance: Shards<Arc<str>, Arc<Caller>>,
}

/// One instance and its secret.
pub struct Caller {
    /// The function that this is an instance of.
    pub function: FunctionId,
    /// The instance's name, as in [`crate::state::instances::Lease::instance`].
    pub instance: Arc<str>,
    user: Arc<str>,
    /// `None`: the instance runs in a jail, and the listening socket of that jail identifies it.
    secret: Option<String>,
    revoked: AtomicBool,
    /// Notified when the credential is revoked.
    ended: Notify,
    /// Checks that the instance opened a connection; set when the instance has started.
    opener_check: OnceLock<OpenerCheck>,
    /// Held while a connection is checked.
    checking: tokio::sync::Mutex<()>,
    requests: Mutex<Requests>,
}

/// Checks that the instance opened a connection. The first address is the instance's end; the
/// second is this process's end.
pub type OpenerCheck = Box<dyn Fn(SocketAddr, SocketAddr) -> Result<(), Unproven> + Send + Sync>;

/// A new credential, meant for the instance's environment only.
#[derive(Clone, PartialEq, Eq)]
pub struct NewCredential {
    /// The user name selects the secret to compare with. It is not secret itself, and needs no
    /// escaping in a URL.
    pub user: String,
    /// 256 random bits in hexadecimal.
    pub secret: String,
}

/// The operating system gave no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gave no random bytes for a proxy credential")]
pub struct NoRandomness;

impl NewCredential {
    /// The value of `HTTP_PROXY`. `outbound` is the address of the outbound listener.
    pub fn proxy_url(&self, outbound: SocketAddr) -> String {
        format!("http://{}:{}@{outbound}", self.user, self.secret)
    }
}

impl Credentials {
    /// Creates a credential for an instance. An earlier one of the same instance is revoked.
    pub fn mint(&self, function: &FunctionId, instance: &str) -> Result<NewCredential, NoRandomness> {
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
        let mut secret = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            let _ = write!(secret, "{byte:02x}");
        }
        let number = self.minted.fetch_add(1, Ordering::Relaxed);
        let user = format!("{}.{}.{number}", function.name, function.namespace);
        let caller = Caller::new(function, instance, &user, Some(secret.clone()));
        self.change(|callers| {
            let revoked = callers.remove(instance);
            callers.by_user.insert(caller.user.clone(), caller.clone());
            callers.by_instance.insert(caller.instance.clone(), caller);
            revoked
        });
        Ok(NewCredential { user, secret })
    }

    /// Registers an instance that needs no credential, because no other process can reach its
    /// sockets. Revokes an earlier one of the same name.
    pub fn admit(&self, function: &FunctionId, instance: &str) -> Arc<Caller> {
        let caller = Caller::new(function, instance, "", None);
        self.change(|callers| {
            let revoked = callers.remove(instance);
            callers.by_instance.insert(caller.instance.clone(), caller.clone());
            revoked
        });
        caller
    }

    /// The lowest number of new credentials. Another process of this node may have minted some with
    /// lower numbers.
    pub fn number_from(&self, first: u64) {
        self.minted.fetch_max(first, Ordering::Relaxed);
    }

    /// The credential of an instance, for another process that accepts from the same outbound
    /// listener. `None`: the instance has none.
    pub fn minted(&self, instance: &str) -> Option<NewCredential> {
        let caller = self.callers.load().by_instance.get(instance)?.clone();
        Some(NewCredential { user: caller.user.to_string(), secret: caller.secret.clone()? })
    }

    /// Adopts the credential of an instance of another process. Returns false, and changes nothing,
    /// if there is an instance of that name.
    pub fn adopt(
        &self,
        function: &FunctionId,
        instance: &str,
        minted: NewCredential,
        opener_check: OpenerCheck,
    ) -> bool {
        let caller = Caller::new(function, instance, &minted.user, Some(minted.secret));
        let _ = caller.opener_check.set(opener_check);
        let mut adopted = false;
        self.change(|callers| {
            if callers.by_instance.get(instance).is_none() && callers.by_user.get(&*caller.user).is_none() {
                callers.by_user.insert(caller.user.clone(), caller.clone());
                callers.by_instance.insert(caller.instance.clone(), caller);
                adopted = true;
            }
            // No earlier credential is revoked.
            false
        });
        adopted
    }

    /// Marks an instance as started. From now on, `opener_check` proves that the instance itself
    /// uses its credential. Before that, the credential is refused.
    pub fn started(&self, instance: &str, opener_check: OpenerCheck) {
        if let Some(caller) = self.callers.load().by_instance.get(instance) {
            // An instance starts once. A second call changes nothing.
            let _ = caller.opener_check.set(opener_check);
        }
    }

    /// Revokes an instance's credential, also on connections that have used it before.
    pub fn revoke(&self, instance: &str) {
        self.change(|callers| callers.remove(instance));
    }

    /// Waits until the next credential is revoked.
    pub(crate) fn next_revoked(&self) -> Notified<'_> {
        self.revoked.notified()
    }

    /// The instance whose credential is in a `proxy-authorization` value. `None`: the credential is
    /// not valid.
    pub fn caller(&self, authorization: &HeaderValue) -> Option<Arc<Caller>> {
        let (scheme, encoded) = authorization.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let decoded = Zeroizing::new(STANDARD.decode(encoded.trim()).ok()?);
        let (user, secret) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
        let caller = self.callers.load().by_user.get(user)?.clone();
        verify_slices_are_equal(caller.secret.as_ref()?.as_bytes(), secret.as_bytes()).ok()?;
        Some(caller)
    }

    /// The instance of this name. `None`: it has ended, or never began.
    pub fn of_instance(&self, instance: &str) -> Option<Arc<Caller>> {
        self.callers.load().by_instance.get(instance).cloned()
    }

    /// Marks a request as handled by an instance until the result is dropped. `None`: no instance
    /// of this name has a credential.
    pub fn handle(&self, instance: &str, request: Arc<InFlight>) -> Option<HandlingGuard> {
        let caller = self.callers.load().by_instance.get(instance)?.clone();
        caller.requests(|requests| requests.begin(&request));
        Some(HandlingGuard { caller, request })
    }

    /// `change` returns whether it has revoked a credential.
    fn change(&self, change: impl FnOnce(&mut Callers) -> bool) {
        let one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut callers = Callers::clone(&self.callers.load());
        let revoked = change(&mut callers);
        self.callers.store(Arc::new(callers));
        drop(one_at_a_time);
        if revoked {
            self.revoked.notify_waiters();
        }
    }
}

impl Callers {
    /// Returns whether there was one.
    fn remove(&mut self, instance: &str) -> bool {
        let Some(caller) = self.by_instance.remove(instance) else { return false };
        caller.revoked.store(true, Ordering::Release);
        caller.ended.notify_waiters();
        self.by_user.remove(&*caller.user);
        true
    }
}

impl Caller {
    fn new(function: &FunctionId, instance: &str, user: &str, secret: Option<String>) -> Arc<Self> {
        Arc::new(Self {
            function: function.clone(),
            instance: instance.into(),
            user: user.into(),
            secret,
            revoked: AtomicBool::new(false),
            ended: Notify::new(),
            opener_check: OnceLock::new(),
            checking: tokio::sync::Mutex::default(),
            requests: Mutex::default(),
        })
    }

    /// Waits until the credential is revoked.
    pub(crate) async fn revoked(&self) {
        let ended = self.ended.notified();
        if !self.is_revoked() {
            ended.await;
        }
    }

    /// Whether the credential has been revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Checks that the instance opened the connection from `near`, the peer's address, to `far`,
    /// where it was accepted. The check takes long if the process that opened the connection has
    /// many descriptors. So it runs apart from the workers, and each instance has one check at a
    /// time.
    pub async fn verify_opener(self: &Arc<Self>, near: SocketAddr, far: SocketAddr) -> Result<(), Unproven> {
        let _turn = self.checking.lock().await;
        let caller = self.clone();
        let checked = tokio::task::spawn_blocking(move || caller.check_opener(near, far)).await;
        checked.unwrap_or_else(|error| Err(Unproven(error.to_string())))
    }

    fn check_opener(&self, near: SocketAddr, far: SocketAddr) -> Result<(), Unproven> {
        // The instance's first call may be quicker than the call of `started`.
        for _ in 0..START_WAIT_MS {
            if let Some(check) = self.opener_check.get() {
                return check(near, far);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Unproven("the instance has not been started yet".to_owned()))
    }

    /// The request that the instance is handling, if it is handling exactly one.
    pub fn only_in_flight(&self) -> Option<Arc<InFlight>> {
        self.requests(|requests| requests.only_in_flight())
    }

    /// The requests that the instance is handling.
    pub fn handled(&self) -> HandledRequests {
        self.requests(|requests| HandledRequests::new(&self.function, requests.in_flight()))
    }

    /// The requests that the instance was handling a moment ago. Empty if too many have ended since.
    pub fn handled_at(&self, then: Instant) -> HandledRequests {
        self.requests(|requests| HandledRequests::new(&self.function, requests.at(then)))
    }

    fn requests<R>(&self, act: impl FnOnce(&mut Requests) -> R) -> R {
        act(&mut self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("function", &self.function)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for NewCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewCredential").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Marks a request as handled by an instance until it is dropped.
#[derive(Debug)]
pub struct HandlingGuard {
    caller: Arc<Caller>,
    request: Arc<InFlight>,
}

impl Drop for HandlingGuard {
    fn drop(&mut self) {
        let is_in_jail = self.caller.secret.is_none();
        self.caller.requests(|requests| requests.end(&self.request, is_in_jail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use leno_policy::trace::TraceContext;

    fn header(user: &str, secret: &str) -> HeaderValue {
        HeaderValue::try_from(format!("Basic {}", STANDARD.encode(format!("{user}:{secret}")))).unwrap()
    }

    fn function(name: &str) -> FunctionId {
        FunctionId::new("orders", name).unwrap()
    }

    #[test]
    fn only_the_right_secret_names_the_caller() {
        let credentials = Credentials::default();
        let first = credentials.mint(&function("a"), "a-1").unwrap();
        let second = credentials.mint(&function("b"), "b-1").unwrap();
        assert_eq!(credentials.caller(&header(&first.user, &first.secret)).unwrap().function, function("a"));
        assert!(credentials.caller(&header(&first.user, &second.secret)).is_none());
        assert!(credentials.caller(&header(&second.user, &first.secret)).is_none());
        assert!(credentials.caller(&header("nobody", &first.secret)).is_none());
        assert!(credentials.caller(&header(&first.user, "")).is_none());
        for malformed in ["", "Basic", "Basic !!!", "Bearer x", "Basic YQ=="] {
            assert!(credentials.caller(&HeaderValue::from_static(malformed)).is_none(), "{malformed}");
        }
    }

    #[test]
    fn a_credential_ends_with_its_instance() {
        let credentials = Credentials::default();
        let minted = credentials.mint(&function("a"), "a-1").unwrap();
        let caller = credentials.caller(&header(&minted.user, &minted.secret)).unwrap();
        credentials.revoke("a-1");
        assert!(caller.is_revoked());
        assert!(credentials.caller(&header(&minted.user, &minted.secret)).is_none());
        let again = credentials.mint(&function("a"), "a-1").unwrap();
        assert_ne!((&again.user, &again.secret), (&minted.user, &minted.secret));
        assert!(credentials.caller(&header(&again.user, &again.secret)).is_some());
    }

    #[tokio::test]
    async fn a_credential_is_good_in_two_processes_of_a_node() {
        let (one, other) = (Credentials::default(), Credentials::default());
        let minted = one.mint(&function("a"), "a-1").unwrap();
        let adopt = || other.adopt(&function("a"), "a-1", one.minted("a-1").unwrap(), Box::new(|_, _| Ok(())));
        assert!(adopt());
        let caller = other.caller(&header(&minted.user, &minted.secret)).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(caller.verify_opener(address, address).await.is_ok());
        other.number_from(1000);
        let own = other.mint(&function("a"), "a-1000").unwrap();
        assert_ne!(own.user, minted.user);
        other.revoke("a-1");
        assert!(caller.is_revoked() && other.caller(&header(&minted.user, &minted.secret)).is_none());
        // The existing instance keeps its credential.
        other.mint(&function("a"), "a-1").unwrap();
        assert!(!adopt());
        one.admit(&function("a"), "a-2");
        assert!(one.minted("a-2").is_none(), "known by its socket");
    }

    #[test]
    fn no_secret_is_printed() {
        let credentials = Credentials::default();
        let minted = credentials.mint(&function("a"), "a-1").unwrap();
        assert!(!format!("{minted:?} {credentials:?}").contains(&minted.secret));
    }

    #[test]
    fn one_request_at_a_time_is_the_parent_of_what_it_calls() {
        let credentials = Credentials::default();
        let minted = credentials.mint(&function("a"), "a-1").unwrap();
        let caller = credentials.caller(&header(&minted.user, &minted.secret)).unwrap();
        let context = |span_id| TraceContext { trace_id: 1, span_id, sampled: true };
        let headers = HeaderMap::from_iter([("tracestate".parse().unwrap(), HeaderValue::from_static("a=1"))]);
        let request = |span| Arc::new(InFlight::new(&HeaderValue::from_static("r"), Some(context(span)), &headers));
        let span = || caller.only_in_flight().and_then(|request| request.parent().map(|parent| parent.context.span_id));
        assert_eq!(span(), None);
        let first = credentials.handle("a-1", request(1)).unwrap();
        assert_eq!(span(), Some(1));
        let second = credentials.handle("a-1", request(2)).unwrap();
        assert_eq!(span(), None);
        drop(first);
        assert_eq!(span(), Some(2));
        drop(second);
        assert_eq!(span(), None);
        assert!(credentials.handle("unknown", request(3)).is_none());
        let untraced = InFlight::new(&HeaderValue::from_static("r"), None, &headers);
        assert_eq!((untraced.parent(), request(4).parent().unwrap().state), (None, "a=1"));
    }

    #[test]
    fn the_requests_of_a_moment_ago_are_known() {
        let credentials = Credentials::default();
        let caller = credentials.admit(&function("a"), "a-1");
        let handle = |id: &'static str| {
            let id = HeaderValue::from_static(id);
            credentials.handle("a-1", Arc::new(InFlight::new(&id, None, &HeaderMap::new()))).unwrap()
        };
        let ids = |handled: HandledRequests| handled.ids().map(str::to_owned).collect::<Vec<_>>();
        assert!(ids(caller.handled()).is_empty());
        let first = handle("one");
        let alone = Instant::now();
        assert_eq!(ids(caller.handled()), ["one"]);
        let second = handle("two");
        let both = Instant::now();
        assert_eq!(ids(caller.handled()), ["one", "two"]);
        drop((first, second));
        let none = Instant::now();
        let third = handle("three");
        assert_eq!(ids(caller.handled()), ["three"]);
        assert_eq!(ids(caller.handled_at(alone)), ["one"]);
        assert_eq!(caller.handled_at(alone).only(), Some("one"));
        assert_eq!((ids(caller.handled_at(both)).len(), caller.handled_at(both).only()), (2, None));
        assert!(ids(caller.handled_at(none)).len() <= 1);
        for _ in 0..40 {
            drop(handle("later"));
        }
        assert!(ids(caller.handled_at(alone)).is_empty(), "no guess about what is forgotten");
        assert!(ids(caller.handled_at(Instant::now())).contains(&"three".to_owned()));
        drop(third);
    }
}
