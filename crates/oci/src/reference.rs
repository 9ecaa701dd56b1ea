use crate::{Digest, DigestError, Error, Result};
use leno_files::FileAccess;
use oci_spec::distribution;
use std::fmt;
use std::path::PathBuf;

/// Where an image is, and which one it is there.
///
/// | written | is |
/// |---|---|
/// | `registry/repository:tag`, `registry/repository@sha256:…` | in a registry; without a tag, `latest` |
/// | `name:tag`, `name/name:tag` | the same, in the [default registry](crate::Registries::default_registry) |
/// | `oci:FOLDER`, `oci:FOLDER:tag`, `oci:FOLDER@sha256:…` | in an OCI layout; without a tag, the only image in it |
/// | `oci-archive:FILE`, `oci-archive:FILE:tag`, `oci-archive:FILE@sha256:…` | in a tar archive of an OCI layout, plain or compressed |
///
/// Folders and files have no `:` in their paths.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    pub(crate) place: Place,
    pub(crate) tag: Option<String>,
    digest: Option<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Registry { registry: String, repository: String },
    Layout(Local),
    Archive(Local),
}

/// A layout or an archive on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    pub(crate) path: PathBuf,
    /// The namespace of the document that names it.
    pub(crate) namespace: String,
    pub(crate) access: FileAccess,
}

impl Local {
    /// A path that may not be opened until [`Reference::named_by`] allows it.
    fn new(path: PathBuf) -> Self {
        Self { path, namespace: String::new(), access: FileAccess::default() }
    }
}

impl Reference {
    /// The registry, folder or file that it is in.
    pub fn origin(&self) -> String {
        match &self.place {
            Place::Registry { registry, .. } => registry.clone(),
            Place::Layout(folder) => format!("oci:{}", folder.path.display()),
            Place::Archive(file) => format!("oci-archive:{}", file.path.display()),
        }
    }

    /// Reads a reference. `default_registry` is where names without a registry are.
    ///
    /// # Errors
    /// [`Error::Reference`] names the fault and shows the correct form.
    pub fn parse(text: &str, default_registry: Option<&str>) -> Result<Self> {
        let wrong = |reason: String| Error::Reference { reference: text.to_owned(), reason };
        if let Some(rest) = text.strip_prefix("oci:") {
            return local(rest, Place::Layout).map_err(|error| wrong(error.to_string()));
        }
        if let Some(rest) = text.strip_prefix("oci-archive:") {
            return local(rest, Place::Archive).map_err(|error| wrong(error.to_string()));
        }
        if text.contains("://") {
            return Err(wrong("it is no URL; write `registry/repository:tag`".to_owned()));
        }
        // Docker distinguishes a registry from the first part of a name in the same way.
        let names_registry =
            text.split_once('/').is_some_and(|(first, _)| first.contains(['.', ':']) || first == "localhost");
        let whole = match (names_registry, default_registry) {
            (true, _) => text.to_owned(),
            (false, Some(registry)) => format!("{registry}/{text}"),
            (false, None) => {
                let hub =
                    if text.contains('/') { format!("docker.io/{text}") } else { format!("docker.io/library/{text}") };
                let reason = format!(
                    "it names no registry, and no default registry is configured; write `{hub}` if it is on Docker Hub, or `registry/{text}`"
                );
                return Err(wrong(reason));
            }
        };
        let parsed: distribution::Reference = whole.parse().map_err(|error| {
            wrong(format!("{error}; expected `registry/repository:tag` or `registry/repository@sha256:…`, the repository in lower case"))
        })?;
        let digest = parsed.digest().map(str::parse).transpose();
        let digest = digest.map_err(|error: DigestError| wrong(error.to_string()))?;
        Ok(Self {
            place: Place::Registry {
                registry: parsed.registry().to_owned(),
                repository: parsed.repository().to_owned(),
            },
            tag: parsed.tag().map(str::to_owned),
            digest,
        })
    }

    /// The digest, if the reference has one.
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// The same place, with exactly this image.
    pub fn with_digest(&self, digest: Digest) -> Self {
        Self { digest: Some(digest), ..self.clone() }
    }

    /// The same reference, named by a document of `namespace`, which may name these files. Without
    /// this call, no layout and no archive is opened.
    pub fn named_by(mut self, namespace: &str, files: &FileAccess) -> Self {
        if let Place::Layout(local) | Place::Archive(local) = &mut self.place {
            (local.namespace, local.access) = (namespace.to_owned(), files.clone());
        }
        self
    }

    /// Makes an [`Error::Reference`] about this reference.
    pub(crate) fn wrong(&self, reason: impl Into<String>) -> Error {
        Error::Reference { reference: self.to_string(), reason: reason.into() }
    }
}

/// Why a reference to a file or folder cannot be parsed.
#[derive(Debug, thiserror::Error)]
enum LocalError {
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error("the path is missing; expected `oci:FOLDER:tag` or `oci-archive:FILE:tag`")]
    NoPath,
    #[error("expected one tag after the path, which itself may contain no `:`")]
    Tag,
}

fn local(rest: &str, place: fn(Local) -> Place) -> Result<Reference, LocalError> {
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest.parse()?)),
        None => (rest, None),
    };
    let (path, tag) = match rest.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (rest, None),
    };
    if path.is_empty() {
        return Err(LocalError::NoPath);
    }
    if tag.is_some_and(|tag| tag.is_empty() || tag.contains(':')) {
        return Err(LocalError::Tag);
    }
    Ok(Reference { place: place(Local::new(PathBuf::from(path))), tag: tag.map(str::to_owned), digest })
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Registry { registry, repository } => write!(f, "{registry}/{repository}")?,
            Place::Layout(local) => write!(f, "oci:{}", local.path.display())?,
            Place::Archive(local) => write!(f, "oci-archive:{}", local.path.display())?,
        }
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_and_written() {
        let digest = Digest::of(b"x");
        for (text, default, written) in [
            ("ghcr.io/a/b:1", None, "ghcr.io/a/b:1".to_owned()),
            ("ghcr.io/a/b", None, "ghcr.io/a/b:latest".to_owned()),
            ("127.0.0.1:5000/a", None, "127.0.0.1:5000/a:latest".to_owned()),
            ("localhost/a:x", None, "localhost/a:x".to_owned()),
            (&format!("ghcr.io/a/b@{digest}"), None, format!("ghcr.io/a/b@{digest}")),
            (&format!("ghcr.io/a/b:1@{digest}"), None, format!("ghcr.io/a/b:1@{digest}")),
            ("debian:12", Some("docker.io"), "docker.io/library/debian:12".to_owned()),
            ("a/b:1", Some("registry.example:5000"), "registry.example:5000/a/b:1".to_owned()),
            ("oci:/srv/x", None, "oci:/srv/x".to_owned()),
            ("oci:/srv/x:1", None, "oci:/srv/x:1".to_owned()),
            (&format!("oci-archive:x.tar@{digest}"), None, format!("oci-archive:x.tar@{digest}")),
        ] {
            assert_eq!(Reference::parse(text, default).unwrap().to_string(), written, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_says_what_would_be_right() {
        for (text, expected) in [
            ("debian:12", "write `docker.io/library/debian:12`"),
            ("bitnami/redis", "write `docker.io/bitnami/redis`"),
            ("", "no registry"),
            ("https://ghcr.io/a/b", "no URL"),
            ("ghcr.io/A/b:1", "lower case"),
            ("ghcr.io/a/b@sha256:12", "expected `registry/repository:tag`"),
            ("ghcr.io/a/../b", "expected `registry/repository:tag`"),
            ("ghcr.io/a/b?x=1", "expected `registry/repository:tag`"),
            ("oci:", "path is missing"),
            ("oci:a:b:c", "one tag"),
            ("oci:a@md5:12", "64 lower-case"),
        ] {
            let error = Reference::parse(text, None).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
