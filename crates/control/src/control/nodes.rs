//! Admits nodes, lets machines join, and ends memberships.

use super::{Control, NODE_LIFETIME, certify, now_ms};
use crate::admission::{Admission, AdmitError, JoinRefused, Member, TokenGrant};
use crate::admission::{CapacityLimits, Cordon};
use crate::join_verifier::{JoinError, JoinVerifier, VerifiedNode};
use crate::state::State;
use crate::status::NodeChange;
use crate::store::{StoreError, Transaction};
use aws_lc_rs::rand;
use bytes::Bytes;
use leno_identity::{CertificateDer, Membership, RootPin, SpiffeId, SvidStore};
use leno_wire::{JoinToken, NoRandomness, check_node_name};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

/// Maximum number of credentials that are being verified.
pub(super) const MAX_VERIFYING: usize = 64;
/// How long the verification of a credential may take.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(10);

/// The proof of a machine that may join.
pub(crate) enum JoinProof {
    /// The secret of a join token, the source address of the request, and the address at which the
    /// machine is reached.
    Token { secret: Bytes, from: IpAddr, address: IpAddr },
    /// The join verifier has accepted its credential.
    Verified(VerifiedNode),
}

impl Control {
    /// Admits a node of this process under its permanent name, or a node on this machine whose
    /// memory no other process shares. It can be reached at loopback addresses only.
    pub fn admit(&self, node: &str, admission: Admission) -> Result<Membership, AdmitError> {
        self.admit_at(node, admission, &[])
    }

    /// Admits a node of this process, which can also be reached at these addresses.
    pub fn admit_at(&self, node: &str, admission: Admission, addresses: &[IpAddr]) -> Result<Membership, AdmitError> {
        check_node_name(node)?;
        let failed = |error: &dyn fmt::Display| AdmitError::Certificate(error.to_string());
        let trust_domain = &self.0.trust_domain;
        let identity = SpiffeId::node(trust_domain, node).map_err(|error| failed(&error))?;
        let svids = SvidStore::new(self.bundle().as_ref().clone());
        let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let addresses: Vec<IpAddr> = loopback.into_iter().chain(addresses.iter().copied()).collect();
        let member = Member {
            admission: admission.clone(),
            addresses,
            joined_by: None,
            verified: false,
            cordoned: false,
            unschedulable: false,
            limits: CapacityLimits::default(),
        };
        let authority = self.authority().map_err(|error| failed(&error))?;
        certify(&authority, &svids, &identity, &member.addresses, member.mark()).map_err(|error| failed(&error))?;
        let addresses = member.addresses.clone();
        self.members().insert(node, member);
        let mut state = self.state();
        state.admit(node, admission);
        state.locate(node, &addresses);
        drop(state);
        Membership::new(identity, trust_domain, svids).map_err(|error| failed(&error))
    }

    /// The known addresses of the mesh's machines: of nodes, and of the control plane as nodes
    /// reach it.
    pub fn machine_addresses(&self) -> Vec<IpAddr> {
        self.state().machine_addresses()
    }

    /// Makes a token with which a machine can join once. Blocks on the store. `noted` is stored
    /// atomically with it, here and in the methods below.
    pub fn grant(&self, grant: TokenGrant, noted: Transaction) -> Result<JoinToken, AdmitError> {
        // The token names the authority by which machines can verify the control plane until the
        // end of a rotation.
        let authority = self.trust().own_signer().map_err(|error| AdmitError::Certificate(error.to_string()))?;
        let bundle = authority.bundle();
        let root = bundle.roots().next().ok_or_else(|| AdmitError::Certificate("there is no root".to_owned()))?;
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        // The change is made in a copy, which is in force only when it is stored.
        let before = self.members().clone();
        let mut members = before.clone();
        let token = members.grant(grant, RootPin::of(root), bundle.trust_domain(), SystemTime::now())?;
        store.save_members(&before, &members, noted).map_err(|error| AdmitError::Store(error.to_string()))?;
        *self.members() = members;
        Ok(token)
    }

    /// Nodes may join with a credential that this verifier accepts, beside join tokens.
    pub fn set_join_verifier(&self, verifier: Arc<dyn JoinVerifier>) {
        *self.0.join_verifier.lock().unwrap_or_else(PoisonError::into_inner) = Some(verifier);
    }

    /// Has the join verifier verify a credential.
    pub(crate) async fn verify(&self, credential: &[u8]) -> Result<VerifiedNode, JoinError> {
        let verifier = self.0.join_verifier.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let verifier = verifier.ok_or(JoinRefused::Token)?;
        let busy = |_| JoinError::Away("too many nodes join at a time; try again".to_owned());
        let _permit = self.0.verifying.try_acquire().map_err(busy)?;
        let late = |_| JoinError::Away("the platform does not verify the credential; try again".to_owned());
        tokio::time::timeout(VERIFY_TIMEOUT, verifier.verify(credential)).await.map_err(late)?
    }

    /// Makes a machine a node. Returns the chain of its certificate, leaf first. Blocks on the
    /// store.
    pub(crate) fn join(
        &self,
        proof: &JoinProof,
        (name, csr): (&str, &[u8]),
    ) -> Result<Vec<CertificateDer<'static>>, JoinError> {
        let request = |error: &dyn fmt::Display| JoinError::Request(error.to_string());
        let identity = SpiffeId::node(&self.0.trust_domain, name).map_err(|error| request(&error))?;
        // A request without a token costs a hash, and no lock that changes of documents need.
        if let JoinProof::Token { secret, .. } = proof
            && !self.members().knows_token(secret, SystemTime::now())
        {
            return Err(JoinRefused::Token.into());
        }
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let longest_proof = self.longest_proof(name);
        let before = self.members().clone();
        let mut members = before.clone();
        let now = SystemTime::now();
        let member = match proof {
            JoinProof::Token { secret, from, address } => members.join(secret, (name, csr), (*from, *address), now)?,
            JoinProof::Verified(node) => {
                let mut mark = [0; 32];
                rand::fill(&mut mark).map_err(|_| request(&NoRandomness))?;
                members.join_verified(name, node, mark)?
            }
        };
        // Another machine may have had the name until now.
        let replaced = before.get(name).filter(|(_, replaced)| replaced.joined_by != member.joined_by);
        if let Some((name, replaced)) = replaced {
            members.note_revoked(name, replaced, now, longest_proof);
        }
        let authority = self.authority().map_err(|error| JoinError::Request(error.to_string()))?;
        let signed = authority.sign_node(csr, &identity, &member.addresses, member.mark(), NODE_LIFETIME);
        let chain = signed.map_err(|error| request(&error))?;
        if before != members {
            let saved = store.save_members(&before, &members, Transaction::default());
            saved.map_err(|error| JoinError::Away(error.to_string()))?;
        }
        let revoked: Vec<_> = members.revocations.marks().collect();
        *self.members() = members;
        let mut state = self.state();
        let record = |state: &mut State, change, reason: &str| {
            state.record_node(now_ms(), name, change, reason.to_owned());
        };
        // Its stream, its endpoints and its connections with other nodes end.
        if replaced.is_some() {
            state.expel(name);
            state.set_revoked(revoked);
            record(&mut state, NodeChange::Removed, "another machine joined under its name");
        }
        if replaced.is_some() || before.get(name).is_none() {
            record(&mut state, NodeChange::Joined, "a machine joined under this name");
        }
        state.admit(name, member.admission);
        state.limit(name, member.limits);
        state.locate(name, &member.addresses);
        Ok(chain)
    }

    /// Ends a node's membership: its stream and its endpoints end at once. Its certificates become
    /// invalid here and on all connected nodes, which close their exchanges with it; other nodes do
    /// so when they connect. Returns whether there was such a node. Blocks on the store; if it
    /// cannot be written, the node is out until the control plane starts again.
    pub fn revoke(&self, node: &str, noted: Transaction) -> Result<bool, StoreError> {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let longest_proof = self.longest_proof(node);
        let before = self.members().clone();
        if !self.members().revoke(node, SystemTime::now(), longest_proof) {
            return Ok(false);
        }
        // The control plane answers requests of nodes while it waits for the store, so it does not
        // hold the lock then.
        let after = self.members().clone();
        let mut state = self.state();
        state.expel(node);
        state.set_revoked(after.revocations.marks());
        state.record_node(now_ms(), node, NodeChange::Removed, "its membership was revoked".to_owned());
        drop(state);
        store.save_members(&before, &after, noted)?;
        Ok(true)
    }

    /// For how long from now other nodes may accept certificates of a node, or keep connections
    /// that it opened.
    fn longest_proof(&self, node: &str) -> Duration {
        self.state().longest_proof(node, now_ms() / 1000)
    }

    /// Cordons or drains a node, or ends that. Returns whether there is such a node. Blocks on the
    /// store.
    pub fn cordon(&self, node: &str, cordon: Cordon, noted: Transaction) -> Result<bool, StoreError> {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.members().clone();
        let mut members = before.clone();
        if !members.cordon(node, cordon) {
            return Ok(false);
        }
        store.save_members(&before, &members, noted)?;
        *self.members() = members;
        Ok(self.state().cordon(node, cordon))
    }

    /// Changes the placement and gateway role of an admitted node. Its certificate stays valid.
    /// Blocks on the store.
    pub fn place(&self, node: &str, admission: Admission) -> Result<(), StoreError> {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.members().clone();
        let mut members = before.clone();
        members.place(node, admission.clone());
        store.save_members(&before, &members, Transaction::default())?;
        *self.members() = members;
        self.state().admit(node, admission);
        Ok(())
    }
}
