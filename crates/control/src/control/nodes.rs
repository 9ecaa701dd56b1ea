//! Admits nodes, lets machines join, and ends memberships.

use super::{Control, NODE_LIFETIME, certify, now_ms};
use crate::admission::{Admission, AdmitError, JoinRefused, Member, TokenGrant};
use crate::admission::{CapacityLimits, Cordon};
use crate::state::State;
use crate::status::NodeChange;
use crate::store::{StoreError, Transaction};
use leno_identity::{CertificateDer, Membership, RootPin, SpiffeId, SvidStore};
use leno_wire::{JoinToken, check_node_name};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

/// Why a machine could not join.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    #[error(transparent)]
    Refused(#[from] JoinRefused),
    #[error("{0}")]
    Request(String),
    #[error(transparent)]
    Store(#[from] StoreError),
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

    /// Makes a machine a node. Returns the chain of its certificate, leaf first. Blocks on the
    /// store.
    pub(crate) fn join(
        &self,
        secret: &[u8],
        (name, csr): (&str, &[u8]),
        (from, address): (IpAddr, IpAddr),
    ) -> Result<Vec<CertificateDer<'static>>, JoinError> {
        let request = |error: &dyn fmt::Display| JoinError::Request(error.to_string());
        let identity = SpiffeId::node(&self.0.trust_domain, name).map_err(|error| request(&error))?;
        // A request without a token costs a hash, and no lock that changes of documents need.
        if !self.members().knows_token(secret, SystemTime::now()) {
            return Err(JoinRefused::Token.into());
        }
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner);
        let longest_proof = self.longest_proof(name);
        let before = self.members().clone();
        let mut members = before.clone();
        let now = SystemTime::now();
        let member = members.join(secret, (name, csr), (from, address), now)?;
        // Another machine may have had the name until now.
        let replaced = before.get(name).filter(|(_, replaced)| replaced.joined_by != member.joined_by);
        if let Some((name, replaced)) = replaced {
            members.note_revoked(name, replaced, now, longest_proof);
        }
        let authority = self.authority().map_err(|error| JoinError::Request(error.to_string()))?;
        let signed = authority.sign_node(csr, &identity, &member.addresses, member.mark(), NODE_LIFETIME);
        let chain = signed.map_err(|error| request(&error))?;
        if before != members {
            store.save_members(&before, &members, Transaction::default())?;
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
