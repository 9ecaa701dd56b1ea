//! Members of the mesh, and the join tokens by which machines become members.
//!
//! A join token lets one machine join once. It holds a secret, and the hash of a root certificate,
//! by which the machine knows the control plane. After that the node proves itself by a
//! certificate, as long as it is a member.

use crate::join_verifier::{JoinError, VerifiedNode};
use crate::revocations::Revocations;
use aws_lc_rs::digest::{SHA256, digest};
use ipnet::IpNet;
use leno_identity::{MembershipMark, RootPin, TrustDomain};
use leno_model::Locality;
use leno_wire::{BadNodeName, Capacity, JoinToken, NoRandomness, Placement, check_node_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The roles of an admitted node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admission {
    /// The functions that the node hosts.
    pub placement: Placement,
    /// Whether the node runs a gateway, which has a separate identity.
    pub gateway: bool,
    /// Where the node is: other nodes prefer the endpoints that are near.
    pub locality: Locality,
    /// Whether the node is an egress node: it connects to external services for the functions of
    /// all nodes.
    pub egress: bool,
}

/// The most that a node may offer, as the operator set it when the node joined. Without a value, it
/// may offer as much as the largest machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityLimits {
    /// Thousandths of a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// Bytes of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Number of instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<u32>,
}

/// The capacity of the largest machine.
const LARGEST: Capacity = Capacity { cpu_millis: 1_024_000, memory: 16 << 40, instances: 10_000 };

impl CapacityLimits {
    /// Whether the operator has set no value.
    pub fn are_default(&self) -> bool {
        *self == Self::default()
    }

    /// The part of an offer that counts.
    pub(crate) fn cap(&self, offer: &Capacity) -> Capacity {
        Capacity {
            cpu_millis: offer.cpu_millis.min(self.cpu_millis.unwrap_or(LARGEST.cpu_millis)),
            memory: offer.memory.min(self.memory.unwrap_or(LARGEST.memory)),
            instances: offer.instances.min(self.instances.unwrap_or(LARGEST.instances)),
        }
    }
}

/// The grant of a join token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenGrant {
    /// The name that the node must have; it replaces a member of that name. `None`: any name that
    /// no member has.
    pub node: Option<String>,
    /// The roles of the node.
    pub admission: Admission,
    /// Where other nodes may reach the node. Empty: only at the address from which it joins.
    pub addresses: Vec<IpNet>,
    /// When the token ceases to be valid.
    pub expires: SystemTime,
    /// The most that the node may offer.
    #[serde(default, skip_serializing_if = "CapacityLimits::are_default")]
    pub limits: CapacityLimits,
}

/// Why a node was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The name is not a node name.
    #[error(transparent)]
    Name(#[from] BadNodeName),
    /// The store cannot be written, and why.
    #[error("{0}")]
    Store(String),
    /// The operating system could not provide random bytes for a token.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// The authority could not sign the node's certificate.
    #[error("the node's certificate cannot be made: {0}")]
    Certificate(String),
}

/// Why a join was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JoinRefused {
    #[error("the join token is not valid: it is unknown, expired, or was used")]
    Token,
    #[error("{0}")]
    Name(String),
    #[error("the join token is for a node of another name")]
    OtherName,
    #[error(
        "there is a node `{0}` already; choose another name, or make a token for this one (`leno token join --node {0}`)"
    )]
    NameTaken(String),
    #[error("the join token does not allow the address {0}; it joins from {1}")]
    Address(IpAddr, IpAddr),
    #[error("the credential is of the node `{0}`")]
    OtherNode(String),
    #[error("the node `{0}` joined with a join token; revoke it first (`leno node revoke {0}`)")]
    NotVerified(String),
}

impl From<JoinRefused> for JoinError {
    fn from(refused: JoinRefused) -> Self {
        Self::Refused(refused.to_string())
    }
}

/// A node that joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Member {
    pub admission: Admission,
    /// Where other nodes may reach it, confirmed by its certificate.
    pub addresses: Vec<IpAddr>,
    /// SHA-256 of the join token's secret that made it a member; `None`: it was admitted within the
    /// process.
    pub joined_by: Option<[u8; 32]>,
    /// It joined with a credential of its platform, and can join again with another one. `joined_by` is
    /// random then, and stays the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verified: bool,
    /// An operator has drained it. Earlier releases had no cordon that leaves functions in place.
    pub cordoned: bool,
    /// An operator has cordoned it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
    /// The most that it may offer.
    #[serde(default, skip_serializing_if = "CapacityLimits::are_default")]
    pub limits: CapacityLimits,
}

/// How an operator keeps a node from functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cordon {
    /// Not at all.
    #[default]
    Open,
    /// The node gets no further functions and instances; those that it has stay.
    Cordoned,
    /// The node gets no further functions, and those that it has move to other nodes.
    Drained,
}

impl Member {
    pub(crate) fn cordon(&self) -> Cordon {
        match (self.cordoned, self.unschedulable) {
            (true, _) => Cordon::Drained,
            (false, true) => Cordon::Cordoned,
            (false, false) => Cordon::Open,
        }
    }

    fn set_cordon(&mut self, cordon: Cordon) {
        self.cordoned = cordon == Cordon::Drained;
        self.unschedulable = cordon == Cordon::Cordoned;
    }

    /// The mark of the member's certificates, which those of an earlier member of the same name do
    /// not have.
    pub(crate) fn mark(&self) -> MembershipMark {
        let hash = self.joined_by.unwrap_or_default();
        MembershipMark(hash.first_chunk().copied().unwrap_or_default())
    }
}

/// Members and unused tokens. Tokens are kept as the SHA-256 of their secrets, so a comparison
/// reveals nothing about a token and nothing here can print one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members {
    pub members: BTreeMap<Arc<str>, Member>,
    pub tokens: BTreeMap<[u8; 32], Token>,
    pub revocations: Revocations,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Token {
    pub grant: TokenGrant,
    /// SHA-256 of the certificate request that used it, and the name that was given to it. The
    /// answer may have been lost, so the same request is answered again.
    pub used: Option<([u8; 32], String)>,
}

impl Members {
    /// Makes a token. Expired ones are dropped on the way.
    pub(crate) fn grant(
        &mut self,
        grant: TokenGrant,
        pin: RootPin,
        trust_domain: &TrustDomain,
        now: SystemTime,
    ) -> Result<JoinToken, AdmitError> {
        grant.node.as_deref().map(check_node_name).transpose()?;
        let token = JoinToken::generate(pin, trust_domain.clone())?;
        self.tokens.retain(|_, token| now < token.grant.expires);
        self.tokens.insert(hash(token.secret()), Token { grant, used: None });
        Ok(token)
    }

    /// Whether there is such a token, so that the join is worth checking.
    pub(crate) fn knows_token(&self, secret: &[u8], now: SystemTime) -> bool {
        self.tokens.get(&hash(secret)).is_some_and(|token| now < token.grant.expires)
    }

    /// Makes `name` a member, if the token with this secret allows it. `from` is where the request
    /// came from, `address` where the node says that it can be reached.
    pub(crate) fn join(
        &mut self,
        secret: &[u8],
        (name, csr): (&str, &[u8]),
        (from, address): (IpAddr, IpAddr),
        now: SystemTime,
    ) -> Result<Member, JoinRefused> {
        check_node_name(name).map_err(|error| JoinRefused::Name(error.to_string()))?;
        let secret = hash(secret);
        let token = self.tokens.get_mut(&secret).filter(|token| now < token.grant.expires).ok_or(JoinRefused::Token)?;
        let request = (hash(csr), name.to_owned());
        if token.used.as_ref().is_some_and(|used| *used != request) {
            return Err(JoinRefused::Token);
        }
        // A used token answers for the membership that it created. It creates no other one, because
        // that node was revoked or replaced.
        let is_member = self.members.get(name).is_some_and(|member| member.joined_by == Some(secret));
        if token.used.is_some() && !is_member {
            return Err(JoinRefused::Token);
        }
        match &token.grant.node {
            Some(node) if node != name => return Err(JoinRefused::OtherName),
            None if self.members.contains_key(name) && !is_member => {
                return Err(JoinRefused::NameTaken(name.to_owned()));
            }
            _ => (),
        }
        let addresses = &token.grant.addresses;
        let allowed = if addresses.is_empty() {
            address.to_canonical() == from.to_canonical()
        } else {
            addresses.iter().any(|block| block.contains(&address.to_canonical()))
        };
        if !allowed {
            return Err(JoinRefused::Address(address, from));
        }
        token.used = Some(request);
        let (admission, limits) = (token.grant.admission.clone(), token.grant.limits);
        // The operator's settings stay when another machine takes over the name.
        let cordon = self.members.get(name).map(Member::cordon).unwrap_or_default();
        let mut member = Member {
            admission,
            addresses: vec![address],
            joined_by: Some(secret),
            verified: false,
            cordoned: false,
            unschedulable: false,
            limits,
        };
        member.set_cordon(cordon);
        self.members.insert(name.into(), member.clone());
        Ok(member)
    }

    /// Makes a node that has proved itself a member, or a member again: then its certificates from
    /// before, and what they have proved, stay valid. `mark` is for a new membership.
    pub(crate) fn join_verified(
        &mut self,
        name: &str,
        node: &VerifiedNode,
        mark: [u8; 32],
    ) -> Result<Member, JoinRefused> {
        check_node_name(name).map_err(|error| JoinRefused::Name(error.to_string()))?;
        if node.name != name {
            return Err(JoinRefused::OtherNode(node.name.clone()));
        }
        let present = self.members.get(name);
        if present.is_some_and(|member| !member.verified) {
            return Err(JoinRefused::NotVerified(name.to_owned()));
        }
        let locality = node.locality.clone();
        let mut member = Member {
            admission: Admission { placement: Placement::Pods, gateway: false, locality, egress: false },
            addresses: node.addresses.clone(),
            joined_by: Some(present.and_then(|member| member.joined_by).unwrap_or(mark)),
            verified: true,
            cordoned: false,
            unschedulable: false,
            limits: CapacityLimits::default(),
        };
        member.set_cordon(present.map(Member::cordon).unwrap_or_default());
        self.members.insert(name.into(), member.clone());
        Ok(member)
    }

    /// Adds a member or replaces it.
    pub(crate) fn insert(&mut self, name: &str, member: Member) {
        self.members.insert(name.into(), member);
    }

    /// Changes the roles of a member.
    pub(crate) fn place(&mut self, name: &str, admission: Admission) {
        if let Some(member) = self.members.get_mut(name) {
            member.admission = admission;
        }
    }

    /// Returns whether there is such a member.
    pub(crate) fn cordon(&mut self, name: &str, cordon: Cordon) -> bool {
        let member = self.members.get_mut(name);
        member.map(|member| member.set_cordon(cordon)).is_some()
    }

    /// Ends a membership. `longest_proof`: how long from now its certificates, and the sessions
    /// that they have proved, would remain valid. Returns whether there was such a member.
    pub(crate) fn revoke(&mut self, name: &str, now: SystemTime, longest_proof: Duration) -> bool {
        let Some((name, member)) = self.members.remove_entry(name) else { return false };
        self.note_revoked(&name, &member, now, longest_proof);
        true
    }

    /// Notes that a membership has ended. A node of the same name may have another one.
    pub(crate) fn note_revoked(&mut self, name: &str, member: &Member, now: SystemTime, longest_proof: Duration) {
        // A node of this process ends with the process, and shares its mark with other nodes.
        if member.joined_by.is_some() {
            self.revocations.add(member.mark(), name, now, longest_proof);
        }
    }

    /// Members by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Member)> {
        self.members.iter()
    }

    /// The member with its name as it is kept.
    pub(crate) fn get(&self, name: &str) -> Option<(&Arc<str>, &Member)> {
        self.members.get_key_value(name)
    }
}

pub(crate) fn hash(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.iter_mut().zip(digest(&SHA256, bytes).as_ref()).for_each(|(to, from)| *to = *from);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_identity::Authority;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    struct Mesh {
        members: Members,
        pin: RootPin,
        now: SystemTime,
    }

    impl Mesh {
        fn new() -> Self {
            let authority = Authority::new(&"orders.example".parse().unwrap()).unwrap();
            let pin = RootPin::of(authority.bundle().roots().next().unwrap());
            Self { members: Members::default(), pin, now: SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30) }
        }

        fn token(&mut self, node: Option<&str>, addresses: &[&str]) -> JoinToken {
            let grant = TokenGrant {
                node: node.map(str::to_owned),
                admission: Admission {
                    placement: Placement::Everything,
                    gateway: false,
                    locality: Locality::default(),
                    egress: false,
                },
                addresses: addresses.iter().map(|block| block.parse().unwrap()).collect(),
                expires: self.now + Duration::from_secs(60),
                limits: CapacityLimits::default(),
            };
            self.members.grant(grant, self.pin, &"orders.example".parse().unwrap(), self.now).unwrap()
        }

        fn join(&mut self, token: &JoinToken, name: &str, csr: &[u8], address: IpAddr) -> Result<Member, JoinRefused> {
            self.members.join(token.secret(), (name, csr), (HERE, address), self.now)
        }
    }

    #[test]
    fn a_token_is_used_once_but_its_answer_may_be_asked_for_again() {
        let mut mesh = Mesh::new();
        let token = mesh.token(None, &[]);
        let member = mesh.join(&token, "one", b"a", HERE).unwrap();
        assert_eq!(member.addresses, [HERE]);
        assert_eq!(mesh.join(&token, "one", b"a", HERE), Ok(member));
        for (name, csr) in [("one", b"b"), ("two", b"a")] {
            assert_eq!(mesh.join(&token, name, csr, HERE), Err(JoinRefused::Token), "{name}");
        }
        assert!(mesh.members.get("one").is_some() && mesh.members.get("two").is_none());
    }

    #[test]
    fn a_token_expires() {
        let mut mesh = Mesh::new();
        let token = mesh.token(None, &[]);
        mesh.now += Duration::from_secs(60);
        assert_eq!(mesh.join(&token, "one", b"a", HERE), Err(JoinRefused::Token));
    }

    #[test]
    fn a_name_is_taken_over_only_with_a_token_for_it() {
        let mut mesh = Mesh::new();
        let (first, second, third) = (mesh.token(None, &[]), mesh.token(None, &[]), mesh.token(Some("one"), &[]));
        mesh.join(&first, "one", b"a", HERE).unwrap();
        assert_eq!(mesh.join(&second, "one", b"b", HERE), Err(JoinRefused::NameTaken("one".to_owned())));
        assert_eq!(mesh.join(&third, "two", b"c", HERE), Err(JoinRefused::OtherName));
        mesh.join(&third, "one", b"c", HERE).unwrap();
        // The first token does not admit the node again, and neither does one that was for this
        // name.
        assert_eq!(mesh.join(&first, "one", b"a", HERE), Err(JoinRefused::Token));
        let fourth = mesh.token(Some("one"), &[]);
        mesh.join(&fourth, "one", b"d", HERE).unwrap();
        assert_eq!(mesh.join(&third, "one", b"c", HERE), Err(JoinRefused::Token));
    }

    #[test]
    fn a_revoked_node_does_not_come_back_with_the_token_that_it_used() {
        let mut mesh = Mesh::new();
        for node in [None, Some("one")] {
            let token = mesh.token(node, &[]);
            mesh.join(&token, "one", b"a", HERE).unwrap();
            assert!(mesh.members.revoke("one", mesh.now, Duration::ZERO));
            assert_eq!(mesh.join(&token, "one", b"a", HERE), Err(JoinRefused::Token), "a token for {node:?}");
        }
    }

    #[test]
    fn an_address_is_that_of_the_connection_or_one_that_the_token_allows() {
        let mut mesh = Mesh::new();
        let (own, block) = (mesh.token(None, &[]), mesh.token(None, &["10.0.0.2/31", "fd00::/8"]));
        assert_eq!(mesh.join(&own, "one", b"a", THERE), Err(JoinRefused::Address(THERE, HERE)));
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert!(mesh.join(&own, "one", b"a", mapped).is_ok());
        assert_eq!(mesh.join(&block, "two", b"a", HERE), Err(JoinRefused::Address(HERE, HERE)));
        assert!(mesh.join(&block, "two", b"a", THERE).is_ok());
    }
}
