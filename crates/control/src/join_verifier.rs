//! Nodes that join with a credential of their platform.

use leno_model::Locality;
use std::net::IpAddr;
use std::pin::Pin;

/// A future that may run on another thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Verifies a node that proves itself by a credential of its platform, such as the token of a service
/// account.
pub trait JoinVerifier: Send + Sync {
    /// The node that has the credential. It then hosts the functions of its pods.
    fn verify<'a>(&'a self, credential: &'a [u8]) -> BoxFuture<'a, Result<VerifiedNode, JoinError>>;
}

/// A node that has proved itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedNode {
    /// Its name.
    pub name: String,
    /// Where other nodes may reach it. Its certificate confirms these addresses.
    pub addresses: Vec<IpAddr>,
    /// Where it is.
    pub locality: Locality,
}

/// Why a machine cannot join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Another attempt with the same credential will not help.
    #[error("{0}")]
    Refused(String),
    /// The request is wrong.
    #[error("{0}")]
    Request(String),
    /// The machine may try again: the store or the platform cannot be reached.
    #[error("{0}")]
    Away(String),
}
