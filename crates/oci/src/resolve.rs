//! Resolves tags. It needs no store, and no rights.

use crate::client::{AddressCheck, Client};
use crate::store::source::resolve;
use crate::{Digest, Reference, Registries, Result};
use std::sync::Arc;

/// Resolves references to digests. A clone shares its connections.
#[derive(Clone)]
pub struct Resolver {
    client: Arc<Client>,
    default_registry: Option<String>,
}

impl Resolver {
    /// Reads the files that `registries` names.
    ///
    /// # Errors
    /// Fails if `registries` is invalid.
    pub fn new(registries: Registries) -> Result<Self> {
        let default_registry = registries.default_registry.clone();
        Ok(Self { client: Arc::new(Client::new(registries)?), default_registry })
    }

    /// The same resolver, for images named by a document that is not the operator's.
    ///
    /// # Errors
    /// Fails if the registries' settings are invalid.
    pub fn checked(&self, check: &AddressCheck) -> Result<Self> {
        Ok(Self { client: Arc::new(self.client.checked(check)?), default_registry: self.default_registry.clone() })
    }

    /// Reads a reference; names without a registry are in the default registry.
    ///
    /// # Errors
    /// [`Error::Reference`](crate::Error::Reference).
    pub fn reference(&self, text: &str) -> Result<Reference> {
        Reference::parse(text, self.default_registry.as_deref())
    }

    /// Resolves a reference to its own digest, or to the digest that its tag names now. Keep the
    /// digest, and pull by it ([`Reference::with_digest`]): tags change.
    ///
    /// # Errors
    /// Fails when the registry, its mirrors, the layout or the archive do not have it.
    pub async fn resolve(&self, reference: &Reference) -> Result<Digest> {
        resolve(reference, &self.client).await
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("default_registry", &self.default_registry).finish_non_exhaustive()
    }
}
