//! Objects of an API server, as far as the controller reads them.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt;

/// A kind of objects, as requests and messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version of the group.
    pub version: &'static str,
    /// The name in paths, such as `pods`.
    pub plural: &'static str,
    /// The name in messages, such as `Pod`.
    pub name: &'static str,
}

impl Kind {
    /// A kind of the core group, version 1.
    pub const fn core(plural: &'static str, name: &'static str) -> Self {
        Self { group: "", version: "v1", plural, name }
    }

    /// The path of the objects of all namespaces.
    pub fn path(&self) -> String {
        match self.group {
            "" => format!("/api/{}/{}", self.version, self.plural),
            group => format!("/apis/{group}/{}/{}", self.version, self.plural),
        }
    }

    /// The name of the CustomResourceDefinition that defines the kind, if one does.
    pub fn definition(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }
}

/// The name of an object, unique in its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace; empty for kinds without namespaces.
    pub namespace: String,
    /// The name in the namespace.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// The metadata of an object, without the fields that the controller never reads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// The namespace; empty for kinds without namespaces.
    pub namespace: String,
    /// The name in the namespace.
    pub name: String,
    /// The identifier that no other object ever has.
    pub uid: String,
    /// The version of the object, with which a watch resumes.
    pub resource_version: String,
    /// The version of the specification; absent for kinds that count none.
    pub generation: Option<i64>,
    /// When the object was made, as RFC 3339 in UTC: an older object has the lesser text.
    pub creation_timestamp: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The annotations that the controller reads.
    pub annotations: Annotations,
    /// The objects that own this one.
    pub owner_references: Vec<Owner>,
}

impl Metadata {
    /// The name of the object.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// The annotations that the controller reads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// The UID by which the kubelet knows a static pod, whose object has another.
    #[serde(rename = "kubernetes.io/config.mirror")]
    pub mirror: Option<String>,
}

/// An object that owns another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// The kind, such as `ReplicaSet`.
    pub kind: String,
    /// The name, in the same namespace.
    pub name: String,
    /// The owner that manages the object; at most one does.
    pub controller: bool,
}

/// An object that a watch decodes. Types list the fields that they need: serde skips all others.
pub trait Object: DeserializeOwned + Send + 'static {
    /// The object's metadata.
    fn metadata(&self) -> &Metadata;
}

/// An object that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenObject {
    /// The kind, such as `Policy`.
    pub kind: &'static str,
    /// The name of the object.
    pub key: ObjectKey,
    /// The path of the first field that is wrong; empty if it is not known.
    pub field: String,
    /// The error, and the form that would be right.
    pub message: String,
}

impl fmt::Display for BrokenObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.kind, self.key)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// A change of the objects of a kind. Changes arrive in the order of the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<K> {
    /// All objects there are. Objects in neither list are gone.
    Replaced {
        /// The objects. If one occurs twice, the later one is newer.
        objects: Vec<K>,
        /// Objects that exist and could not be decoded. An earlier version stays in force. Without
        /// one, a reader whose objects forbid something has to act as if this one forbade all.
        broken: Vec<BrokenObject>,
    },
    /// An object is new or differs.
    Put(K),
    /// An object exists and could not be decoded, as in `Replaced`.
    Broken(BrokenObject),
    /// An object is gone.
    Gone(ObjectKey),
}
