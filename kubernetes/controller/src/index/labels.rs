//! Enrolment and mode, by labels of namespaces and pods.

use crate::api::{Kind, Metadata, Object};
use leno_model::PodMode;
use serde::Deserialize;
use std::collections::BTreeMap;
use tracing::warn;

const MESH: &str = "leno.dev/mesh";
const MODE: &str = "leno.dev/mode";

/// The labels of a namespace or pod that concern the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct MeshLabels {
    /// `leno.dev/mesh`: enabled or disabled; `None`: absent, or of another value.
    pub(crate) mesh: Option<bool>,
    /// `leno.dev/mode: enforced`.
    pub(crate) enforced: bool,
}

impl MeshLabels {
    /// Reads the labels of an object, named for messages.
    pub(crate) fn of(labels: &BTreeMap<String, String>, object: impl Fn() -> String) -> Self {
        let mesh = match labels.get(MESH).map(String::as_str) {
            None => None,
            Some("enabled") => Some(true),
            Some("disabled") => Some(false),
            Some(other) => {
                warn!("{}: label {MESH} is `{other}`, and counts as absent: write `enabled` or `disabled`", object());
                None
            }
        };
        let enforced = match labels.get(MODE).map(String::as_str) {
            None | Some("permissive") => false,
            Some("enforced") => true,
            // The label asks for another mode than the default.
            Some(other) => {
                warn!(
                    "{}: label {MODE} is `{other}`, and counts as `enforced`: write `permissive` or `enforced`",
                    object()
                );
                true
            }
        };
        Self { mesh, enforced }
    }

    /// Whether a pod with these labels is enrolled in a namespace.
    pub(crate) fn enrols(self, namespace: Self) -> bool {
        self.mesh.or(namespace.mesh) == Some(true)
    }

    /// The mode of a pod with these labels in a namespace. A pod may only tighten it.
    pub(crate) fn mode(self, namespace: Self) -> PodMode {
        if self.enforced || namespace.enforced { PodMode::Enforced } else { PodMode::Permissive }
    }
}

/// A Namespace of the API server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamespaceObject {
    metadata: Metadata,
}

impl NamespaceObject {
    /// The kind.
    pub const KIND: Kind = Kind::core("namespaces", "Namespace");

    pub(crate) fn labels(&self) -> MeshLabels {
        MeshLabels::of(&self.metadata.labels, || format!("Namespace {}", self.metadata.name))
    }
}

impl Object for NamespaceObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}
