//! Identities and their proofs: SPIFFE IDs, X.509 SVIDs, trust bundles, the embedded certificate
//! authority, and the TLS configurations built from them.
//!
//! Read it in the order of use. An [`Authority`] has a root; the [`TrustBundle`] made of roots goes
//! to every node. For each identity that it hosts a node makes a [`KeyRequest`]; the authority
//! signs it; the node's [`SvidStore`] checks the answer and holds it. [`server_config`] and
//! [`client_config`] read the store at each handshake, so that a renewal needs no new configuration
//! and drops no connection. [`peer_identity`] returns the identity of the other end.
//!
//! Private keys are generated inside `aws-lc` and wiped by it when they are dropped. Only a node's
//! own identity can be saved, in a file that only its owner can read. No type of this crate prints
//! a key.
#![forbid(unsafe_code)]

mod authority;
mod authority_file;
mod authority_key_id;
mod authority_pem;
mod bundle;
mod constraints;
mod control;
mod crypto;
mod expiry;
mod failure;
mod gateway;
mod key;
mod membership;
mod membership_mark;
mod proof;
mod reason;
mod request;
mod roots;
mod saved;
mod store;
mod stored_certificates;
mod svid;
mod tls;
mod trusted_servers;
mod verifier;
mod verify;

pub use authority::{Authority, SignError};
pub use authority_file::{AuthorityFile, AuthorityFileError};
pub use authority_key_id::AuthorityKeyId;
pub use authority_pem::{AuthorityPem, AuthorityPemError};
pub use bundle::{BundleError, RootPin, TrustBundle};
pub use constraints::UnknownConstraints;
pub use control::{control_server_config, joining_client_config, joining_client_config_with, peer_addresses};
pub use expiry::{Holder, chain_late_at, expires_in_words, late_at};
pub use failure::{CertificateFault, certificate_fault, handshake_failure};
pub use gateway::{ServerCertificate, ServerCertificates, gateway_server_config};
pub use key::NoKey;
pub use leno_model::{BadSpiffeId, CertificateName, SpiffeId, TrustDomain, function_of_server_name};
pub use membership::Membership;
pub use membership_mark::MembershipMark;
pub use proof::{HandshakeError, ProofError};
pub use request::{KeyRequest, RequestError};
pub use roots::{Roots, RootsError, roots};
pub use rustls::pki_types::{CertificateDer, UnixTime};
pub use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
pub use saved::{SavedError, replace_private_file};
pub use store::{RenewError, SvidStore};
pub use stored_certificates::{CERTIFICATE_KEY, PRIVATE_KEY, StoredCertificate, StoredCertificates};
pub use svid::{Svid, SvidError};
pub use tls::{
    TlsError, client_config, peer_identity, peer_not_after, server_config, server_name, tunnel_client_config,
    tunnel_server_config,
};
pub use trusted_servers::TrustedServers;
pub use verify::{PeerError, not_after};
