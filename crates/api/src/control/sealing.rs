//! The encryption of stored secrets.
//!
//! Each value is sealed by itself with AES-256-GCM-SIV, under a random nonce. Its associated data
//! are namespace, name and key, so a ciphertext is no value of another key.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::{hmac, pbkdf2, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leno_config::DocumentId;
use leno_model::SecretBytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// Bytes of a key.
const KEY: usize = 32;
/// Bytes of the salt of a passphrase.
const SALT: usize = 16;
/// Rounds of PBKDF2 with HMAC-SHA-256, as OWASP recommends.
const ROUNDS: NonZeroU32 = NonZeroU32::new(600_000).unwrap();
/// What keys are for. Another use of the same file or passphrase has another key.
const PURPOSE: &str = "leno stored secrets v1";
const PASSPHRASE: &str = "passphrase-";

/// The sealed values of a StoredSecret document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedValues {
    /// Identifies the key: that of a file, or the salt of the passphrase.
    pub with: String,
    /// Nonce and ciphertext by key of the document, in base64.
    pub values: BTreeMap<String, String>,
}

/// Why values cannot be sealed or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// There is no key.
    #[error(
        "this control plane has no key to encrypt stored secrets with; start it with --secret-key FILE (`openssl rand -base64 32 > FILE`), or with --authority and --authority-passphrase"
    )]
    NoKey,
    /// A file is not a key.
    #[error("expected 32 random bytes in base64, as `openssl rand -base64 32` writes them")]
    BadKey,
    /// A value is sealed with a key that this control plane does not have.
    #[error(
        "its values are encrypted with the key {0}, which this control plane does not have; give it with a further --secret-key"
    )]
    OtherKey(String),
    /// A stored value was changed, or belongs to another document.
    #[error("the stored value of the key `{0}` is damaged, or is not of this document; apply the document again")]
    Damaged(String),
    /// The library failed.
    #[error("the encryption has failed")]
    Failed,
}

/// The keys of stored secrets. The first one seals, the others only open.
#[derive(Default)]
pub struct SealingKeys {
    keys: Vec<Arc<SealingKey>>,
    passphrase: Option<Zeroizing<String>>,
    /// Keys of the passphrase, which take a while to derive, by their IDs.
    derived: Mutex<BTreeMap<String, Arc<SealingKey>>>,
}

struct SealingKey {
    id: String,
    key: LessSafeKey,
    /// For the marks of values.
    marks: hmac::Key,
}

/// The length of a derived key.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl SealingKeys {
    /// The contents of key files, the one that seals first, and the passphrase of the authority,
    /// which seals only if there is no file.
    ///
    /// # Errors
    /// A content is no key; with its index.
    pub fn new(files: &[Zeroizing<String>], passphrase: Option<Zeroizing<String>>) -> Result<Self, (usize, SealError)> {
        let keys = files.iter().enumerate().map(|(index, text)| {
            let secret = STANDARD.decode(text.trim()).map(Zeroizing::new);
            let secret = secret.ok().filter(|secret| secret.len() == KEY).ok_or((index, SealError::BadKey))?;
            SealingKey::of_secret(&secret, None).map(Arc::new).map_err(|error| (index, error))
        });
        Ok(Self { keys: keys.collect::<Result<_, _>>()?, passphrase, derived: Mutex::default() })
    }

    /// Whether values sealed with this key are to be sealed anew.
    pub fn is_old(&self, sealed: &SealedValues) -> bool {
        match self.keys.first() {
            Some(first) => first.id != sealed.with,
            None => self.passphrase.is_some() && !sealed.with.starts_with(PASSPHRASE),
        }
    }

    /// Seals the values of a document. Blocks for a while after the start.
    pub fn seal(
        &self,
        id: &DocumentId,
        values: &BTreeMap<String, Zeroizing<Vec<u8>>>,
    ) -> Result<SealedValues, SealError> {
        let key = self.sealing()?;
        let seal = |(name, value): (&String, &Zeroizing<Vec<u8>>)| Ok((name.clone(), key.seal(id, name, value)?));
        Ok(SealedValues { with: key.id.clone(), values: values.iter().map(seal).collect::<Result<_, _>>()? })
    }

    /// Opens the values of a document. Blocks for a while after the start.
    pub fn open(&self, id: &DocumentId, sealed: &SealedValues) -> Result<BTreeMap<String, SecretBytes>, SealError> {
        let key = self.named(&sealed.with)?;
        let open = |(name, text): (&String, &String)| {
            let value = key.open(id, name, text).ok_or_else(|| SealError::Damaged(name.clone()))?;
            Ok((name.clone(), value))
        };
        sealed.values.iter().map(open).collect()
    }

    /// The key that seals.
    fn sealing(&self) -> Result<Arc<SealingKey>, SealError> {
        if let Some(first) = self.keys.first() {
            return Ok(first.clone());
        }
        self.passphrase.as_ref().ok_or(SealError::NoKey)?;
        let known = self.derived().values().next().cloned();
        match known {
            Some(key) => Ok(key),
            None => {
                let mut salt = [0; SALT];
                rand::fill(&mut salt).map_err(|_| SealError::Failed)?;
                self.of_passphrase(&format!("{PASSPHRASE}{}", hexadecimal(&salt)), salt)
            }
        }
    }

    fn named(&self, id: &str) -> Result<Arc<SealingKey>, SealError> {
        let other = || SealError::OtherKey(id.to_owned());
        if let Some(key) = self.keys.iter().find(|key| key.id == id) {
            return Ok(key.clone());
        }
        let salt = id.strip_prefix(PASSPHRASE).and_then(bytes).ok_or_else(other)?;
        self.of_passphrase(id, salt)
    }

    fn of_passphrase(&self, id: &str, salt: [u8; SALT]) -> Result<Arc<SealingKey>, SealError> {
        let passphrase = self.passphrase.as_ref().ok_or_else(|| SealError::OtherKey(id.to_owned()))?;
        if let Some(key) = self.derived().get(id) {
            return Ok(key.clone());
        }
        let mut secret = Zeroizing::new([0; KEY]);
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ROUNDS, &salt, passphrase.as_bytes(), &mut *secret);
        let key = Arc::new(SealingKey::of_secret(&*secret, Some(id))?);
        self.derived().insert(id.to_owned(), key.clone());
        Ok(key)
    }

    fn derived(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<SealingKey>>> {
        self.derived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SealingKey {
    /// Without an ID, the ID is derived too, and does not help to find the key.
    fn of_secret(secret: &[u8], id: Option<&str>) -> Result<Self, SealError> {
        let derive = |what: &str, length| {
            let mut out = Zeroizing::new(vec![0; length]);
            let info = [PURPOSE.as_bytes(), what.as_bytes()];
            let secret = Salt::new(HKDF_SHA256, &[]).extract(secret);
            let expanded = secret.expand(&info, Length(length)).and_then(|expanded| expanded.fill(&mut out));
            expanded.map(|()| out).map_err(|_| SealError::Failed)
        };
        let id = match id {
            Some(id) => id.to_owned(),
            None => format!("file-{}", hexadecimal(&derive(": the ID", 8)?)),
        };
        let key = UnboundKey::new(&AES_256_GCM_SIV, &derive(": the key", KEY)?).map_err(|_| SealError::Failed)?;
        let marks = hmac::Key::new(hmac::HMAC_SHA256, &derive(": the marks", KEY)?);
        Ok(Self { id, key: LessSafeKey::new(key), marks })
    }

    fn seal(&self, id: &DocumentId, name: &str, value: &[u8]) -> Result<String, SealError> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(|_| SealError::Failed)?;
        let mut sealed = value.to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        let outcome = self.key.seal_in_place_append_tag(unique, Aad::from(context(id, name)), &mut sealed);
        outcome.map_err(|_| SealError::Failed)?;
        Ok(STANDARD.encode([&nonce[..], &sealed].concat()))
    }

    fn open(&self, id: &DocumentId, name: &str, text: &str) -> Option<SecretBytes> {
        let mut sealed = Zeroizing::new(STANDARD.decode(text).ok()?);
        // A new value has a new ciphertext.
        let mut mark = [0; 16];
        mark.iter_mut().zip(hmac::sign(&self.marks, &sealed).as_ref()).for_each(|(to, from)| *to = *from);
        let (nonce, rest) = sealed.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let value = self.key.open_in_place(nonce, Aad::from(context(id, name)), rest).ok()?;
        Some(SecretBytes::new(Zeroizing::new(value.to_vec()), mark))
    }
}

/// The associated data of a value. The length of each part precedes it.
fn context(id: &DocumentId, key: &str) -> Vec<u8> {
    let mut context = PURPOSE.as_bytes().to_vec();
    for part in [&*id.namespace, &*id.name, key] {
        context.extend((part.len() as u64).to_be_bytes());
        context.extend(part.as_bytes());
    }
    context
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl fmt::Debug for SealingKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKeys")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(namespace: &str, name: &str) -> DocumentId {
        DocumentId { kind: "StoredSecret".to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn key(byte: u8) -> Zeroizing<String> {
        Zeroizing::new(format!("{}\n", STANDARD.encode([byte; KEY])))
    }

    fn values() -> BTreeMap<String, Zeroizing<Vec<u8>>> {
        BTreeMap::from([("password", "swordfish"), ("user", "swordfish"), ("empty", "")])
            .into_iter()
            .map(|(key, value)| (key.to_owned(), Zeroizing::new(value.as_bytes().to_vec())))
            .collect()
    }

    #[test]
    fn a_ciphertext_is_of_one_key_of_one_document() {
        for keys in [
            SealingKeys::new(&[key(1)], None).unwrap(),
            SealingKeys::new(&[], Some(Zeroizing::new("correct horse battery".to_owned()))).unwrap(),
        ] {
            let sealed = keys.seal(&id("a", "db"), &values()).unwrap();
            assert!(!format!("{sealed:?}").contains("swordfish"));
            assert_ne!(sealed.values["password"], sealed.values["user"], "equal values have other nonces");
            let opened = keys.open(&id("a", "db"), &sealed).unwrap();
            assert_eq!(opened["password"].expose(), b"swordfish");
            assert_eq!(opened["empty"].expose(), b"");
            let again = keys.open(&id("a", "db"), &sealed).unwrap();
            assert_eq!(opened, again);
            let damaged = |document: &DocumentId, sealed: &SealedValues| keys.open(document, sealed).is_err();
            assert!(damaged(&id("b", "db"), &sealed) && damaged(&id("a", "other"), &sealed));
            let mut swapped = sealed.clone();
            swapped.values.insert("user".to_owned(), sealed.values["password"].clone());
            assert_eq!(keys.open(&id("a", "db"), &swapped).unwrap_err(), SealError::Damaged("user".to_owned()));
            for bad in ["", "AAAA", "no base64"] {
                swapped.values.insert("user".to_owned(), bad.to_owned());
                assert!(damaged(&id("a", "db"), &swapped), "{bad}");
            }
        }
    }

    #[test]
    fn further_keys_open_and_do_not_seal() {
        let (old, both) =
            (SealingKeys::new(&[key(1)], None).unwrap(), SealingKeys::new(&[key(2), key(1)], None).unwrap());
        let sealed = old.seal(&id("a", "db"), &values()).unwrap();
        assert!(both.is_old(&sealed) && !old.is_old(&sealed));
        assert_eq!(both.open(&id("a", "db"), &sealed).unwrap()["password"].expose(), b"swordfish");
        let new = both.seal(&id("a", "db"), &values()).unwrap();
        assert!(!both.is_old(&new));
        assert_eq!(old.open(&id("a", "db"), &new).unwrap_err(), SealError::OtherKey(new.with.clone()));
        let passphrase = |text: &str| SealingKeys::new(&[], Some(Zeroizing::new(text.to_owned()))).unwrap();
        let sealed = passphrase("correct horse battery").seal(&id("a", "db"), &values()).unwrap();
        assert!(passphrase("correct horse battery").open(&id("a", "db"), &sealed).is_ok());
        assert!(passphrase("another").open(&id("a", "db"), &sealed).is_err());
        assert_eq!(SealingKeys::default().seal(&id("a", "db"), &values()).unwrap_err(), SealError::NoKey);
        for bad in ["", "swordfish", "c3dvcmRmaXNo"] {
            assert_eq!(SealingKeys::new(&[Zeroizing::new(bad.to_owned())], None).unwrap_err(), (0, SealError::BadKey));
        }
    }
}
