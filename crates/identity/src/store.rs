//! The identities that a node can prove now.

use crate::authority_key_id::AuthorityKeyId;
use crate::bundle::TrustBundle;
use crate::crypto::algorithms;
use crate::membership_mark::{MembershipMark, RevokedMemberships};
use crate::request::KeyRequest;
use crate::svid::{Svid, SvidError};
use arc_swap::{ArcSwap, ArcSwapOption};
use aws_lc_rs::rand;
use leno_model::SpiffeId;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tokio::sync::Notify;

/// Shortest interval of renewals of a certificate whose authority does not sign any more. The node
/// may not know yet that this one does.
const AGAIN: Duration = Duration::from_secs(30);

/// The node's SVIDs and the trust bundle. Every identity has a slot whose content is swapped atomically: a renewal takes
/// no lock and touches no connection, and each later handshake uses the new SVID. The map of slots
/// is locked for the moment of a look-up, once a handshake.
pub struct SvidStore {
    bundle: ArcSwap<TrustBundle>,
    /// The authority that signs now, if the control plane has named it.
    issuer: ArcSwapOption<AuthorityKeyId>,
    revoked: RevokedMemberships,
    slots: RwLock<Slots>,
    /// Notified when an SVID was installed.
    installed: Notify,
    clock: Arc<dyn TimeProvider>,
}

#[derive(Default)]
struct Slots {
    by_id: HashMap<SpiffeId, Arc<Slot>>,
    /// Holds only installed identities, which are checked to be of the bundle's trust domain.
    by_server_name: HashMap<String, Arc<Slot>>,
}

/// The current SVID of one identity; none before the first and after its removal.
#[derive(Default)]
pub(crate) struct Slot(ArcSwapOption<Svid>);

/// Why an identity was not renewed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenewError<E: std::error::Error> {
    /// No authority signed.
    #[error(transparent)]
    Sign(E),
    /// The signed certificate is not usable.
    #[error(transparent)]
    Svid(#[from] SvidError),
}

impl SvidStore {
    /// An empty store, by the system's clock.
    pub fn new(bundle: TrustBundle) -> Arc<Self> {
        Self::with_clock(bundle, Arc::new(DefaultTimeProvider))
    }

    /// An empty store, by `clock`. The TLS configurations made from it use the same clock.
    pub fn with_clock(bundle: TrustBundle, clock: Arc<dyn TimeProvider>) -> Arc<Self> {
        let bundle = ArcSwap::from_pointee(bundle);
        let (issuer, revoked, slots) = (ArcSwapOption::empty(), RevokedMemberships::default(), RwLock::default());
        Arc::new(Self { bundle, issuer, revoked, slots, installed: Notify::new(), clock })
    }

    /// The roots that peers' certificates must chain to.
    pub fn bundle(&self) -> Arc<TrustBundle> {
        self.bundle.load_full()
    }

    /// Trusts these roots, and no others, from the next handshake on. SVIDs that they do not cover
    /// are due for renewal at once; until then, handshakes still show them, to peers that do not
    /// have these roots yet.
    pub fn set_bundle(&self, bundle: TrustBundle) {
        let bundle = Arc::new(bundle);
        self.bundle.store(bundle.clone());
        let Some(now) = self.now() else { return };
        for svid in self.all() {
            if !svid.is_covered_by(&bundle, now, &algorithms()) {
                let slot = self.slot(svid.id());
                // The swap fails if the SVID was renewed in the meantime.
                slot.0.compare_and_swap(&svid, Some(Arc::new(svid.due_at(now))));
            }
        }
    }

    /// This authority signs from now on. SVIDs of other authorities are due for renewal within
    /// `spread`, each at a random moment. Until then, handshakes show them.
    pub fn set_issuer(&self, issuer: AuthorityKeyId, spread: Duration) {
        let issuer = Arc::new(issuer);
        self.issuer.store(Some(issuer.clone()));
        let Some(now) = self.now() else { return };
        for svid in self.all().into_iter().filter(|svid| *svid.issuer() != *issuer) {
            let due = after(now, spread.mul_f64(fraction())).min(svid.renew_at());
            self.slot(svid.id()).0.compare_and_swap(&svid, Some(Arc::new(svid.due_at(due))));
        }
    }

    /// Refuses peers with certificates of these memberships, and of no others, from the next
    /// handshake on. The caller must end open connections: see [`SvidStore::is_revoked`].
    pub fn set_revoked(&self, memberships: Vec<MembershipMark>) {
        self.revoked.set(memberships);
    }

    /// Whether a peer's certificate belongs to a revoked membership. `None`: a certificate without
    /// a mark.
    pub fn is_revoked(&self, membership: Option<MembershipMark>) -> bool {
        self.revoked.contains(membership)
    }

    pub(crate) fn revoked(&self) -> &RevokedMemberships {
        &self.revoked
    }

    /// The authorities that signed the current SVIDs.
    pub fn issuers(&self) -> BTreeSet<AuthorityKeyId> {
        self.all().iter().map(|svid| svid.issuer().clone()).collect()
    }

    /// Whether the authority that signs now, as far as is known, has signed all current SVIDs.
    pub fn is_renewed(&self) -> bool {
        self.issuer.load().as_deref().is_none_or(|issuer| self.issuers().iter().all(|other| other == issuer))
    }

    /// Checks the authority's answer to `request` as peers would, and serves it from the next
    /// handshake on. On an error the store keeps its current SVID.
    pub fn install(&self, request: KeyRequest, chain: Vec<CertificateDer<'static>>) -> Result<Arc<Svid>, SvidError> {
        let now = self.now().ok_or(SvidError::NoTime)?;
        let mut svid = Svid::new(request, chain, &self.bundle.load(), now, &algorithms())?;
        // The node may have sent the request before another authority began to sign.
        if self.issuer.load().as_deref().is_some_and(|issuer| issuer != svid.issuer()) {
            svid = svid.due_at(after(now, AGAIN).min(svid.renew_at()));
        }
        let svid = Arc::new(svid);
        self.show(svid.clone());
        Ok(svid)
    }

    /// Takes the SVID of `id` from another store, if it is newer there. Returns whether it is.
    pub fn adopt(&self, other: &Self, id: &SpiffeId) -> bool {
        let (own, theirs) = (self.current(id), other.current(id));
        let is_newer = |theirs: &Arc<Svid>| {
            own.is_none_or(|own| own.not_after() <= theirs.not_after() && own.chain() != theirs.chain())
        };
        let Some(newer) = theirs.filter(is_newer) else { return false };
        self.show(newer);
        true
    }

    fn show(&self, svid: Arc<Svid>) {
        let (slot, name) = (self.slot(svid.id()), svid.id().server_name());
        slot.0.store(Some(svid));
        if let Some(name) = name {
            self.write().by_server_name.insert(name, slot);
        }
        self.installed.notify_waiters();
    }

    /// Waits for the first SVID of `id`. An expired one counts: its renewal may take long.
    pub async fn until_installed(&self, id: &SpiffeId) {
        let is_installed = || self.read().by_id.get(id).is_some_and(|slot| slot.0.load().is_some());
        loop {
            let mut installed = pin!(self.installed.notified());
            installed.as_mut().enable();
            if is_installed() {
                return;
            }
            installed.await;
        }
    }

    /// Requests a certificate for `id` with `sign` and installs it: the first and each later one.
    pub async fn renew<S, F, E>(&self, id: &SpiffeId, sign: S) -> Result<Arc<Svid>, RenewError<E>>
    where
        S: FnOnce(Vec<u8>) -> F,
        F: Future<Output = Result<Vec<CertificateDer<'static>>, E>>,
        E: std::error::Error,
    {
        let request = KeyRequest::new(id).map_err(SvidError::from)?;
        let chain = sign(request.csr().to_vec()).await.map_err(RenewError::Sign)?;
        Ok(self.install(request, chain)?)
    }

    /// Stops serving `id`.
    pub fn remove(&self, id: &SpiffeId) {
        let mut slots = self.write();
        id.server_name().and_then(|name| slots.by_server_name.remove(&name));
        let Some(slot) = slots.by_id.get(id) else { return };
        slot.0.store(None);
        // A client configuration that still holds the slot must see the identity again if it is
        // installed again.
        if Arc::strong_count(slot) == 1 {
            slots.by_id.remove(id);
        }
    }

    /// The SVID of `id`; never an expired one.
    pub fn current(&self, id: &SpiffeId) -> Option<Arc<Svid>> {
        self.read().by_id.get(id)?.current(self.now()?)
    }

    /// All SVIDs, expired ones too, in the order of their identities.
    pub fn all(&self) -> Vec<Arc<Svid>> {
        let mut all: Vec<_> = self.read().by_id.values().filter_map(|slot| slot.0.load_full()).collect();
        all.sort_by(|a, b| a.id().cmp(b.id()));
        all
    }

    /// The identities whose SVID has passed half of its lifetime at `now`.
    pub fn renew_due(&self, now: UnixTime) -> Vec<SpiffeId> {
        self.all().into_iter().filter(|svid| svid.renew_at() <= now).map(|svid| svid.id().clone()).collect()
    }

    /// When the next SVID is due.
    pub fn next_renewal(&self) -> Option<UnixTime> {
        self.all().into_iter().map(|svid| svid.renew_at()).min()
    }

    /// Now, by the store's clock.
    pub fn now(&self) -> Option<UnixTime> {
        self.clock.current_time()
    }

    pub(crate) fn clock(&self) -> &Arc<dyn TimeProvider> {
        &self.clock
    }

    pub(crate) fn slot(&self, id: &SpiffeId) -> Arc<Slot> {
        if let Some(slot) = self.read().by_id.get(id) {
            return slot.clone();
        }
        self.write().by_id.entry(id.clone()).or_default().clone()
    }

    /// The SVID that a server shows to a client that asks for `server_name` (lower case).
    pub(crate) fn by_server_name(&self, server_name: &str) -> Option<Arc<Svid>> {
        self.read().by_server_name.get(server_name)?.current(self.now()?)
    }

    // Nothing panics while holding the lock, so poisoning is ignored.
    fn read(&self) -> RwLockReadGuard<'_, Slots> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn after(time: UnixTime, duration: Duration) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(time.as_secs().saturating_add(duration.as_secs())))
}

/// A random number from 0 to 1.
fn fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness nothing is spread; keys cannot be made then either.
    let _ = rand::fill(&mut bytes);
    f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX)
}

impl Slot {
    /// An expired certificate is not served: the peer would refuse it, and the log here would not
    /// say why.
    pub(crate) fn current(&self, now: UnixTime) -> Option<Arc<Svid>> {
        self.0.load_full().filter(|svid| now <= svid.not_after())
    }
}

impl fmt::Debug for SvidStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.load().fmt(f)
    }
}
