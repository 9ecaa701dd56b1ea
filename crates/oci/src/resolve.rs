//! What tags mean. It needs no store, and no rights.

use crate::client::{AddressCheck, Client};
use crate::store::source::resolve;
use crate::{Digest, Reference, Registries, Result};
use std::sync::Arc;

/// Says what a reference means now. Cloned, it is the same one, with the same connections.
#[derive(Clone)]
pub struct Resolver {
    client: Arc<Client>,
    default_registry: Option<String>,
}

impl Resolver {
    /// Reads the files that `registries` names.
    ///
    /// # Errors
    /// What is wrong with `registries`.
    pub fn new(registries: Registries) -> Result<Self> {
        let default_registry = registries.default_registry.clone();
        Ok(Self { client: Arc::new(Client::new(registries)?), default_registry })
    }

    /// The same resolver, for images that a document names which is not the operator's.
    ///
    /// # Errors
    /// What is wrong with the registries' settings.
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

    /// What a reference means now: its digest, or that of what its tag names. Keep it, and pull by it ([`Reference::with_digest`]): tags change.
    ///
    /// # Errors
    /// When the registry, its mirrors, the layout or the archive do not have it.
    pub async fn resolve(&self, reference: &Reference) -> Result<Digest> {
        resolve(reference, &self.client).await
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("default_registry", &self.default_registry).finish_non_exhaustive()
    }
}
