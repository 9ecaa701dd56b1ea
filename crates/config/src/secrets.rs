//! The stored secrets of a mesh, without or with their values.

use leno_model::{SecretBytes, SecretValues, StoredKey};
use std::collections::BTreeMap;

/// The stored secrets of all namespaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SecretSet {
    /// By namespace and name.
    pub(crate) all: BTreeMap<String, BTreeMap<String, CheckedSecret>>,
}

/// The keys of one StoredSecret document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckedSecret {
    /// Size and time of the last change of each value.
    pub keys: BTreeMap<String, KeySummary>,
    /// The values by key; empty: a control plane has them, encrypted.
    pub(crate) values: BTreeMap<String, SecretBytes>,
}

/// A value in a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeySummary {
    /// Its size.
    pub bytes: u32,
    /// When it last changed, in seconds since 1970; 0: the document is a file.
    pub changed: u64,
}

impl CheckedSecret {
    /// The number of its values, and their size in bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.keys.len() as u64, self.keys.values().map(|value| u64::from(value.bytes)).sum())
    }
}

impl SecretSet {
    /// Adds the keys of a document, without values.
    pub fn insert(&mut self, namespace: &str, name: &str, keys: BTreeMap<String, KeySummary>) {
        let checked = CheckedSecret { keys, values: BTreeMap::new() };
        self.all.entry(namespace.to_owned()).or_default().insert(name.to_owned(), checked);
    }

    /// A stored secret.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&CheckedSecret> {
        self.all.get(namespace)?.get(name)
    }

    /// The stored secrets of a namespace, by name.
    pub fn of(&self, namespace: &str) -> impl Iterator<Item = (&String, &CheckedSecret)> {
        self.all.get(namespace).into_iter().flatten()
    }

    /// All stored secrets, by namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &String, &CheckedSecret)> {
        self.all.iter().flat_map(|(namespace, secrets)| secrets.iter().map(move |(name, it)| (namespace, name, it)))
    }

    /// The number of values of each namespace's documents, and their size in bytes.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.all.iter().map(|(namespace, secrets)| {
            let sum = |(count, bytes), secret: &CheckedSecret| {
                let (values, size) = secret.size();
                (count + values, bytes + size)
            };
            let (values, bytes) = secrets.values().fold((0, 0), sum);
            (namespace.as_str(), values, bytes)
        })
    }

    /// The values of documents that are files, by namespace.
    pub fn values(&self) -> BTreeMap<String, SecretValues> {
        let mut all: BTreeMap<String, SecretValues> = BTreeMap::new();
        for (namespace, secret, checked) in self.iter() {
            let values = checked
                .values
                .iter()
                .map(|(key, value)| (StoredKey { secret: secret.clone(), key: key.clone() }, value.clone()));
            all.entry(namespace.clone()).or_default().extend(values);
        }
        all
    }
}
