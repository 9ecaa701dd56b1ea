//! The authority of the mesh: the signing keys, and their replacement while the mesh runs.

use super::{Control, NO_MEMBER, certify};
use crate::rotation::{AuthorityRecord, NodeProgress, Phase, Rotation, RotationOutcome, Step};
use crate::trust::{Trust, TrustError, hex, root_of};
use leno_identity::{
    Authority, AuthorityKeyId, Holder, RootPin, TrustBundle, UnixTime, chain_late_at, expires_in_words, not_after,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Why a rotation did not begin or change.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The request does not fit the rotation under way.
    #[error("{0}")]
    Conflict(String),
    /// The change is not stored, or the roots are invalid.
    #[error("{0}")]
    Failed(String),
}

impl From<TrustError> for RotateError {
    fn from(error: TrustError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The present authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuthorityStatus {
    /// Key identifier of the authority that signs for nodes and functions.
    pub signs: String,
    /// The file with its key, on the leading control plane; `None`: the key is only in memory, and
    /// lost with the process.
    pub file: Option<String>,
    /// When the last certificate that it signs becomes invalid, in seconds since 1970.
    pub not_after: u64,
    /// The roots that the control plane delivers to nodes.
    pub roots: Vec<RootStatus>,
    /// The phase of a rotation; `None`: there is none.
    pub phase: Option<Phase>,
    /// Whether it is a drill.
    pub drill: bool,
    /// Whether it goes back to the first authority.
    pub aborted: bool,
    /// When the phase began, in seconds since 1970; 0: there is none.
    pub since: u64,
    /// The nodes that the rotation waits for, and why.
    pub waiting: BTreeMap<String, String>,
    /// The nodes for which the rotation does not wait.
    pub without: BTreeSet<String>,
    /// How the last rotation or drill ended.
    pub last: Option<RotationOutcome>,
    /// Problems that an operator must solve soon.
    pub warnings: Vec<String>,
}

/// A root certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RootStatus {
    /// SHA-256 of the certificate in DER.
    pub sha256: String,
    /// When it expires, in seconds since 1970.
    pub not_after: u64,
    /// Whether certificates are signed under it now.
    pub signs: bool,
}

/// The other control planes of the mesh. Each has its own nodes, and they rotate together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RotationPeers {
    /// The nodes that are connected to them. They wait for these.
    pub nodes: BTreeSet<String>,
    /// Those that have yet to finish the phase, and why. The rotation waits for them.
    pub waiting: BTreeMap<String, String>,
}

/// The part of a rotation that a control plane has behind it with its own nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotationProgress {
    /// Key identifier of the authority that signs in the end.
    pub aim: String,
    /// The nodes trust certificates of this authority.
    pub is_trusted: bool,
    /// The nodes have certificates of this authority only.
    pub has_renewed: bool,
}

impl Control {
    /// Notes the state of the other control planes. Call it before [`Control::rotate`] too.
    pub fn set_rotation_peers(&self, peers: RotationPeers) {
        *self.0.rotation_peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    }

    /// The progress of a rotation with this control plane's nodes. Without a rotation, all is done.
    pub fn rotation_progress(&self) -> RotationProgress {
        let (nodes, lifetime) = self.seen();
        let record = self.trust().remembered().clone();
        let Some(rotation) = &record.rotation else {
            // With a further root, certificates of another control plane may be under it.
            let is_of_key = |issuer: &AuthorityKeyId| issuer.as_bytes() == record.key;
            let renewed = |node: &NodeProgress| node.connected && node.issuers.iter().all(is_of_key);
            let has_renewed = self.bundle().roots().count() == 1 || nodes.values().all(renewed);
            return RotationProgress { aim: hex(&record.key), is_trusted: true, has_renewed };
        };
        let is_done = !matches!(rotation.step(&nodes, lifetime, now()), Step::Wait(_));
        RotationProgress {
            aim: hex(rotation.aim()),
            is_trusted: rotation.phase != Phase::Trust || is_done,
            has_renewed: rotation.phase == Phase::Withdraw || rotation.phase == Phase::Renew && is_done,
        }
    }

    /// Trusts these roots beside that of the authority: nodes may have certificates under them, of
    /// another control plane. During a rotation this changes nothing.
    pub fn trust_also(&self, others: &[&TrustBundle]) -> Result<(), RotateError> {
        let _store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let trust = self.trust().clone();
        match trust.with_roots(others)? {
            Some(changed) => self.put_trust_into_force(changed),
            None => Ok(()),
        }
    }

    /// Begins to replace the authority by `candidate`, or with `drill` only tries whether all nodes
    /// would accept that. Does not wait for the nodes in `without`. Blocks on the store.
    pub fn rotate(&self, candidate: Authority, drill: bool, without: BTreeSet<String>) -> Result<(), RotateError> {
        self.known(&without)?;
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let trust = self.trust().clone();
        let remembered = trust.remembered();
        if let Some(rotation) = &remembered.rotation {
            let what = if rotation.drill { "a drill" } else { "a rotation" };
            return Err(RotateError::Conflict(format!("{what} is under way; see `leno ca status`")));
        }
        if candidate.key_id().as_bytes() == remembered.key {
            return Err(RotateError::Conflict("the candidate is the authority that signs already".to_owned()));
        }
        let rotation = Rotation {
            phase: Phase::Trust,
            drill,
            aborted: false,
            roots: trust.bundle().roots().map(|root| root.to_vec()).collect(),
            original: remembered.key.clone(),
            candidate_root: root_of(&candidate).to_vec(),
            candidate: candidate.key_id().as_bytes().to_vec(),
            since: now(),
            without,
            failed: BTreeMap::new(),
        };
        let root = RootPin::of(&rotation.candidate_root.as_slice().into()).to_string();
        let remembered = AuthorityRecord { rotation: Some(rotation), ..remembered.clone() };
        let changed = trust.change(remembered, Some(Arc::new(candidate)), &store)?;
        tracing::info!(root, drill, "nodes are given a second root");
        self.state().forget_proofs();
        self.put_trust_into_force(changed)
    }

    /// Goes back to the previous authority, unless its root is being withdrawn already. Blocks on
    /// the store.
    pub fn abort_rotation(&self) -> Result<(), RotateError> {
        let abort = |rotation: &Rotation| {
            let late = || RotateError::Conflict("it is too late: one of the roots is being withdrawn".to_owned());
            rotation.abort(now()).ok_or_else(late)
        };
        self.change_rotation(abort)?;
        tracing::warn!("the rotation goes back to the first authority");
        Ok(())
    }

    /// Does not wait for these nodes any more. They have to join again if they come back after the
    /// end. Blocks on the store.
    pub fn rotate_without(&self, nodes: &BTreeSet<String>) -> Result<(), RotateError> {
        self.known(nodes)?;
        self.change_rotation(|rotation| {
            Ok(Rotation { without: rotation.without.union(nodes).cloned().collect(), ..rotation.clone() })
        })
    }

    fn known(&self, nodes: &BTreeSet<String>) -> Result<(), RotateError> {
        let seen = self.state().seen(now());
        match nodes.iter().find(|node| !seen.contains_key(*node)) {
            Some(node) => Err(RotateError::Conflict(format!("there is no node `{node}`"))),
            None => Ok(()),
        }
    }

    fn change_rotation(&self, change: impl Fn(&Rotation) -> Result<Rotation, RotateError>) -> Result<(), RotateError> {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let trust = self.trust().clone();
        let rotation = trust.remembered().rotation.as_ref();
        let rotation = rotation.ok_or_else(|| RotateError::Conflict("no rotation is under way".to_owned()))?;
        let remembered = AuthorityRecord { rotation: Some(change(rotation)?), ..trust.remembered().clone() };
        let changed = trust.change(remembered, None, &store)?;
        self.put_trust_into_force(changed)
    }

    /// Advances a rotation as far as the nodes' reports permit. Called while the control plane
    /// serves. Blocks on the store.
    pub(crate) fn advance_rotation(&self) -> Result<(), RotateError> {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let trust = self.trust().clone();
        if !self.0.trust_in_force.load(Ordering::Relaxed) {
            return self.put_trust_into_force(trust);
        }
        let remembered = trust.remembered();
        let Some(rotation) = &remembered.rotation else { return Ok(()) };
        let (nodes, lifetime) = self.seen();
        let next = match self.step(rotation, &nodes, lifetime) {
            Step::Wait(_) => {
                if rotation.phase == Phase::Trust {
                    self.state().ask_for_proofs(now());
                }
                return Ok(());
            }
            Step::Next(next) => AuthorityRecord { rotation: Some(next), ..remembered.clone() },
            Step::End(ended) => {
                let (key, kept) = (rotation.aim().to_vec(), remembered.kept);
                let number = remembered.last.as_ref().map_or(0, |last| last.number) + 1;
                AuthorityRecord { key, kept, rotation: None, last: Some(RotationOutcome { number, ..ended }) }
            }
        };
        let changed = trust.change(next, None, &store)?;
        match &changed.remembered().rotation {
            Some(rotation) => tracing::info!(phase = ?rotation.phase, "the rotation goes on"),
            None => tracing::info!(key = hex(rotation.aim()), "the rotation is over"),
        }
        self.put_trust_into_force(changed)
    }

    /// Applies the stored state. The order matters: first certificates that all nodes trust, then
    /// the roots.
    fn put_trust_into_force(&self, changed: Trust) -> Result<(), RotateError> {
        let failed = |error: &dyn std::fmt::Display| RotateError::Failed(error.to_string());
        let (svids, identity) = self.own();
        let own = changed.own_signer().map_err(|error| failed(&error))?;
        let (signs, bundle) = (changed.signer().map_err(|error| failed(&error))?, changed.bundle().clone());
        *self.trust() = changed;
        self.0.trust_in_force.store(false, Ordering::Relaxed);
        let both = svids.bundle().merge(&bundle).map_err(|error| failed(&error))?;
        svids.set_bundle(both);
        if svids.current(identity).is_none_or(|current| current.issuer() != own.key_id()) {
            certify(&own, svids, identity, &[], NO_MEMBER).map_err(|error| failed(&error))?;
        }
        svids.set_bundle(bundle.as_ref().clone());
        let mut state = self.state();
        state.set_bundle(&bundle).map_err(|error| failed(&error))?;
        state.set_issuer(signs.key_id().as_bytes());
        self.0.trust_in_force.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn rotates(&self) -> bool {
        self.trust().remembered().rotation.is_some() || !self.0.trust_in_force.load(Ordering::Relaxed)
    }

    /// The next step. Drills concern this control plane alone.
    fn step(&self, rotation: &Rotation, nodes: &BTreeMap<String, NodeProgress>, lifetime: Duration) -> Step {
        let RotationPeers { waiting, .. } =
            self.0.rotation_peers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match rotation.step(nodes, lifetime, now()) {
            Step::Next(_) if !waiting.is_empty() && !rotation.drill => Step::Wait(waiting),
            step => step,
        }
    }

    /// The state of nodes, and the longest lifetime of a certificate.
    fn seen(&self) -> (BTreeMap<String, NodeProgress>, Duration) {
        let elsewhere = self.0.rotation_peers.lock().unwrap_or_else(PoisonError::into_inner).nodes.clone();
        let mut state = self.state();
        let mut nodes = state.seen(now());
        nodes.retain(|name, node| node.connected || !elsewhere.contains(name));
        (nodes, state.svid_lifetime().max(super::NODE_LIFETIME))
    }

    /// The present authority and its rotation.
    pub fn authority_status(&self) -> AuthorityStatus {
        let (nodes, lifetime) = self.seen();
        let trust = self.trust();
        let (remembered, signer) = (trust.remembered(), trust.signer().ok());
        let rotation = remembered.rotation.as_ref();
        let waiting = rotation.map(|rotation| self.step(rotation, &nodes, lifetime));
        let waiting = if let Some(Step::Wait(waiting)) = waiting { waiting } else { BTreeMap::new() };
        let signs_under = signer.as_deref().map(|authority| root_of(authority).to_vec()).unwrap_or_default();
        let root = |root: &leno_identity::CertificateDer<'static>| RootStatus {
            sha256: RootPin::of(root).to_string(),
            not_after: not_after(root).map_or(0, |end| end.as_secs()),
            signs: **root == *signs_under,
        };
        let roots: Vec<RootStatus> = trust.bundle().roots().map(root).collect();
        let not_after = signer.as_ref().map_or(0, |authority| authority.not_after().as_secs());
        AuthorityStatus {
            signs: signer.as_deref().map(|authority| authority.key_id().to_string()).unwrap_or_default(),
            file: trust.file().map(str::to_owned),
            not_after,
            phase: rotation.map(|rotation| rotation.phase),
            drill: rotation.is_some_and(|rotation| rotation.drill),
            aborted: rotation.is_some_and(|rotation| rotation.aborted && !rotation.drill),
            since: rotation.map_or(0, |rotation| rotation.since),
            waiting,
            without: rotation.map(|rotation| rotation.without.clone()).unwrap_or_default(),
            last: remembered.last.clone(),
            warnings: warnings(signer.as_deref(), trust.bundle()),
            roots,
        }
    }

    /// Key identifiers of the authorities whose keys are needed: of the signing one, and of both
    /// during a rotation.
    pub fn authorities(&self) -> Vec<AuthorityKeyId> {
        self.trust().authorities().iter().map(|authority| authority.key_id().clone()).collect()
    }

    /// The lock is held only briefly. Nothing panics while holding it, so poisoning is ignored.
    pub(crate) fn trust(&self) -> MutexGuard<'_, Trust> {
        self.0.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Warnings of certificates that are late: of the roots, or else of the authority.
fn warnings(authority: Option<&Authority>, bundle: &TrustBundle) -> Vec<String> {
    let in_words = |end: Option<UnixTime>| expires_in_words(end.map_or(0, |end| end.as_secs()), now());
    let is_late = |late_at: Option<UnixTime>| late_at.is_some_and(|late_at| now() >= late_at.as_secs());
    let of_roots = bundle.roots().filter(|root| is_late(chain_late_at([*root], Holder::Authority)));
    let of_root = |root| format!("the root {} {}", RootPin::of(root), in_words(not_after(root)));
    let mut warnings: Vec<String> = of_roots.map(of_root).collect();
    if let Some(authority) = authority.filter(|authority| warnings.is_empty() && is_late(Some(authority.late_at()))) {
        warnings.push(format!("the authority's certificate {}", in_words(Some(authority.not_after()))));
    }
    warnings.iter_mut().for_each(|warning| warning.push_str(": `leno ca rotate` replaces it"));
    warnings
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
