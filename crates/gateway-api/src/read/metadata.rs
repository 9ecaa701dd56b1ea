//! `metadata` of a document.

use crate::document_value::{Content, DocumentValue, quoted};
use crate::fault::{Faults, Path};
use crate::metadata::ObjectMeta;
use crate::pattern::{LABEL_KEY, Pattern};
use crate::resource::{LABEL_VALUE, NAME, NAMESPACE};
use std::collections::BTreeMap;

/// The longest name of a resource, and of the domain before the slash of a label.
const LONGEST: usize = 253;
/// Bytes of all annotations together, as in Kubernetes.
const LARGEST_ANNOTATIONS: usize = 256 << 10;

/// Fields that an API server or another program writes, and that mean nothing to a mesh.
const IGNORED: &[&str] = &[
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The metadata of a document; nothing if a fault was reported.
pub(super) fn read<V: DocumentValue>(value: &V, is_namespaced: bool, faults: &mut Faults) -> Option<ObjectMeta> {
    let (path, before) = (Path::of("metadata"), faults.len());
    let Content::Map(fields) = value.content() else {
        faults.add(&path, format!("expected a mapping, found {}", value.content().describe()), "write {name: …}");
        return None;
    };
    let mut metadata = ObjectMeta::default();
    if is_namespaced {
        "default".clone_into(&mut metadata.namespace);
    }
    for (name, value) in fields {
        let path = path.field(name);
        match name {
            "name" => read_name(value, &path, &NAME, LONGEST, &mut metadata.name, faults),
            "namespace" if is_namespaced => {
                read_name(value, &path, &NAMESPACE, 63, &mut metadata.namespace, faults);
            }
            "namespace" => faults.add(&path, "documents of this kind are in no namespace", "remove it"),
            "labels" => metadata.labels = read_texts(value, &path, Some(&LABEL_VALUE), faults),
            "annotations" => {
                metadata.annotations = read_texts(value, &path, None, faults);
                let size: usize = metadata.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
                if size > LARGEST_ANNOTATIONS {
                    faults.add(&path, format!("{size} bytes of annotations"), "expected at most 262144");
                }
            }
            "generateName" => faults.add(&path, "no name is generated here", "write `name`"),
            name if IGNORED.contains(&name) => {}
            other => {
                let known = ["name", "namespace", "labels", "annotations"];
                faults.wrong_name(&path, "there is no such field", other, known);
            }
        }
    }
    if metadata.name.is_empty() && faults.len() == before {
        faults.add(&path, "the field `name` is missing", "add it");
    }
    (faults.len() == before).then_some(metadata)
}

fn read_name<V: DocumentValue>(
    value: &V,
    path: &Path<'_>,
    form: &Pattern,
    longest: usize,
    name: &mut String,
    faults: &mut Faults,
) {
    match value.content() {
        Content::Null => {}
        Content::Scalar { text, .. } if text.len() <= longest && form.matches(text) => text.clone_into(name),
        Content::Scalar { text, .. } => {
            let fix = format!(
                "expected {}, at most {longest} characters",
                form.words.trim_end_matches(", at most 63 characters")
            );
            faults.add(path, format!("{} cannot be a name", quoted(text)), fix);
        }
        other => faults.add(path, format!("expected text, found {}", other.describe()), ""),
    }
}

fn read_texts<V: DocumentValue>(
    value: &V,
    path: &Path<'_>,
    form: Option<&Pattern>,
    faults: &mut Faults,
) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    let entries = match value.content() {
        Content::Null => Vec::new(),
        Content::Map(entries) => entries,
        other => {
            faults.add(path, format!("expected a mapping, found {}", other.describe()), "");
            Vec::new()
        }
    };
    for (key, value) in entries {
        let path = path.field(key);
        if !LABEL_KEY.matches(key) || key.split_once('/').is_some_and(|(domain, _)| domain.len() > LONGEST) {
            faults.add(&path, format!("{} cannot be a key here", quoted(key)), format!("expected {}", LABEL_KEY.words));
        }
        match value.content() {
            Content::Null => {}
            Content::Scalar { text, .. } => match form {
                Some(form) if text.len() > 63 || !form.matches(text) => {
                    let fix = format!("expected at most 63 {}", form.words);
                    faults.add(&path, format!("{} cannot be the value of a label", quoted(text)), fix);
                }
                _ => {
                    texts.insert(key.to_owned(), text.to_owned());
                }
            },
            other => faults.add(&path, format!("expected text, found {}", other.describe()), ""),
        }
    }
    texts
}
