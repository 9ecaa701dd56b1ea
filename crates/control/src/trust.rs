//! The signing authority, the candidate to replace it if there is one, and the roots that the mesh
//! trusts.

use crate::rotation::{AuthorityRecord, Phase, Rotation};
use crate::store::{Store, StoreError};
use leno_identity::{Authority, AuthorityKeyId, BundleError, CertificateDer, TrustBundle};
use std::sync::Arc;

/// The authorities whose keys a control plane has.
pub struct Authorities {
    /// The signing authority, and during a rotation the other one, in any order.
    pub held: Vec<Authority>,
    /// The file with their keys; `None`: they are in memory only.
    pub file: Option<String>,
    /// Whether to use the first of them, even if the store knows another authority.
    pub replace: bool,
}

impl Authorities {
    /// An authority that is in memory only.
    pub fn in_memory(authority: Authority) -> Self {
        Self { held: vec![authority], file: None, replace: false }
    }
}

/// Why a control plane cannot lead with these authorities.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Authority(String),
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

/// The present signing authority and trusted roots.
#[derive(Clone)]
pub(crate) struct Trust {
    /// The authority that signed before a rotation, and perhaps the candidate.
    authorities: Vec<Arc<Authority>>,
    remembered: AuthorityRecord,
    bundle: Arc<TrustBundle>,
    /// The file with the authorities' keys.
    file: Option<String>,
}

impl Trust {
    /// Continues from the stored state of the authority.
    pub(crate) fn recall(given: Authorities, store: &Store) -> Result<Self, TrustError> {
        let Authorities { held, file, replace } = given;
        let authorities: Vec<Arc<Authority>> = held.into_iter().map(Arc::new).collect();
        let first = authorities.first().ok_or_else(|| TrustError::Authority("no authority is given".to_owned()))?;
        // A replacement does not trust the root of the authority that it replaces.
        let root = if replace { None } else { store.root()? };
        let mut trust = Self {
            authorities: Vec::new(),
            remembered: AuthorityRecord::default(),
            bundle: first.bundle().clone().into(),
            file,
        };
        let known = store.authority()?.filter(|_| !replace);
        let before = match known {
            Some(known) if known.kept => trust.remembered_of(known, &authorities, root.as_deref())?,
            Some(known) => {
                if known.rotation.is_some() {
                    tracing::warn!(
                        "a rotation was under way, with keys in memory only: it is over, and nodes have to join again"
                    );
                }
                AuthorityRecord { rotation: None, ..known }
            }
            None => AuthorityRecord::default(),
        };
        let signs = match trust.file.is_some() && before.kept {
            true => find(&authorities, &before.key).unwrap_or(first),
            false => first,
        };
        trust.remembered = AuthorityRecord {
            key: signs.key_id().as_bytes().to_vec(),
            kept: trust.file.is_some(),
            rotation: before.rotation,
            last: before.last,
        };
        trust.authorities = match &trust.remembered.rotation {
            Some(_) => authorities.clone(),
            None => vec![signs.clone()],
        };
        trust.bundle = Arc::new(match &trust.remembered.rotation {
            Some(rotation) => bundle_of(first.bundle(), rotation)?,
            None => overlapping(signs.bundle(), root),
        });
        trust.save(store)?;
        Ok(trust)
    }

    /// The stored state, if this control plane can continue from it.
    fn remembered_of(
        &self,
        known: AuthorityRecord,
        held: &[Arc<Authority>],
        root: Option<&[u8]>,
    ) -> Result<AuthorityRecord, TrustError> {
        let refused = |text: String| Err(TrustError::Authority(text));
        let Some(file) = &self.file else {
            return refused(
                "the mesh's authority is kept in a file: give it with --authority and --authority-passphrase"
                    .to_owned(),
            );
        };
        let remedy = "copy the file of the control plane that led last; if the key is lost, --replace-authority makes this one the mesh's, and all nodes have to join again";
        let mut needed = vec![&known.key];
        needed.extend(known.rotation.iter().flat_map(|rotation| [&rotation.original, &rotation.candidate]));
        for key in needed {
            if find(held, key).is_none() {
                let is_candidate = known.rotation.as_ref().is_some_and(|rotation| *key == rotation.candidate);
                let which =
                    if is_candidate { "to which the mesh is changing (`leno ca status`)" } else { "of this mesh" };
                return refused(format!(
                    "{file} does not have the authority with the key {} {which}; {remedy}",
                    hex(key)
                ));
            }
        }
        let other_root =
            find(held, &known.key).is_some_and(|authority| root.is_some_and(|root| root_of(authority) != root));
        if known.rotation.is_none() && other_root {
            return refused(format!(
                "{file} has the mesh's authority under another root than the one that nodes trust; put it under a new root with `leno ca request --successor`, `leno ca install --successor` and `leno ca rotate`"
            ));
        }
        Ok(known)
    }

    /// Saves the state of the authority.
    pub(crate) fn save(&self, store: &Store) -> Result<(), StoreError> {
        let root = find(&self.authorities, &self.remembered.key).map(|authority| root_of(authority));
        store.save_authority(&self.remembered, root.unwrap_or_default())
    }

    /// The same with another rotation, in the store first. `candidate`: the authority of a rotation
    /// that begins.
    pub(crate) fn change(
        &self,
        remembered: AuthorityRecord,
        candidate: Option<Arc<Authority>>,
        store: &Store,
    ) -> Result<Self, TrustError> {
        let all: Vec<Arc<Authority>> = self.authorities.iter().cloned().chain(candidate).collect();
        let domain = &self.bundle;
        let (bundle, authorities) = match &remembered.rotation {
            Some(rotation) => (Arc::new(bundle_of(domain, rotation)?), all),
            None => {
                let signs = find(&all, &remembered.key).cloned();
                (self.bundle.clone(), signs.into_iter().collect())
            }
        };
        let changed = Self { authorities, remembered, bundle, file: self.file.clone() };
        changed.save(store)?;
        Ok(changed)
    }

    /// The same with these roots beside that of the authority; `None`: a rotation is under way, or
    /// they are trusted already.
    pub(crate) fn with_roots(&self, others: &[&TrustBundle]) -> Result<Option<Self>, TrustError> {
        let Some(signs) = find(&self.authorities, &self.remembered.key) else { return Ok(None) };
        let mut bundle = signs.bundle().clone();
        for other in others {
            bundle = bundle.merge(other)?;
        }
        let is_same = self.remembered.rotation.is_some() || bundle == *self.bundle;
        Ok((!is_same).then(|| Self { bundle: Arc::new(bundle), ..self.clone() }))
    }

    /// The authority that signs for nodes and functions.
    pub(crate) fn signer(&self) -> Result<Arc<Authority>, UnknownAuthority> {
        let key = self.remembered.rotation.as_ref().map_or(&self.remembered.key[..], Rotation::signs);
        self.of(key)
    }

    /// The authority that signs the control plane's own certificate.
    pub(crate) fn own_signer(&self) -> Result<Arc<Authority>, UnknownAuthority> {
        let key = self.remembered.rotation.as_ref().map_or(&self.remembered.key[..], Rotation::signs_own);
        self.of(key)
    }

    /// The candidate that nodes have to prove; `None`: there is none.
    pub(crate) fn candidate(&self) -> Option<Arc<Authority>> {
        let rotation = self.remembered.rotation.as_ref()?;
        (rotation.phase == Phase::Trust).then(|| self.of(&rotation.candidate).ok())?
    }

    fn of(&self, key: &[u8]) -> Result<Arc<Authority>, UnknownAuthority> {
        // The caller has checked that the authority exists.
        find(&self.authorities, key).cloned().ok_or_else(|| UnknownAuthority(hex(key)))
    }

    pub(crate) fn authorities(&self) -> &[Arc<Authority>] {
        &self.authorities
    }

    pub(crate) fn remembered(&self) -> &AuthorityRecord {
        &self.remembered
    }

    pub(crate) fn bundle(&self) -> &Arc<TrustBundle> {
        &self.bundle
    }

    pub(crate) fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

/// The control plane does not have the authority with this key.
#[derive(Debug, thiserror::Error)]
#[error("the authority with the key {0} is not here")]
pub(crate) struct UnknownAuthority(String);

fn find<'a>(authorities: &'a [Arc<Authority>], key: &[u8]) -> Option<&'a Arc<Authority>> {
    authorities.iter().find(|authority| authority.key_id().as_bytes() == key)
}

/// The root of an authority, in DER.
pub(crate) fn root_of(authority: &Authority) -> &[u8] {
    authority.bundle().roots().next().map_or(&[], |root| root)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    AuthorityKeyId::from_bytes(bytes).to_string()
}

/// The roots that nodes get during a rotation.
fn bundle_of(domain: &TrustBundle, rotation: &Rotation) -> Result<TrustBundle, BundleError> {
    TrustBundle::new(domain.trust_domain(), rotation.bundle().into_iter().map(CertificateDer::from))
}

/// The roots of this authority and of the previous process, whose certificates are valid until they
/// are renewed.
fn overlapping(own: &TrustBundle, before: Option<Vec<u8>>) -> TrustBundle {
    let before = before.and_then(|der| TrustBundle::new(own.trust_domain(), [CertificateDer::from(der)]).ok());
    before.and_then(|before| own.merge(&before).ok()).unwrap_or_else(|| own.clone())
}
