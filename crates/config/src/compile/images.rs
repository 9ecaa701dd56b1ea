//! `spec.images` of the Mesh document.

use super::fields;
use crate::document;
use crate::problem::Scope;
use leno_model::size::Size;
use leno_model::{ImageRegistry, Images, RegistryCredentials};
use std::cell::RefCell;
use std::path::{Component, Path, PathBuf};

const LEAST: Size = Size::from_mib(1);

/// `documents`: the folder whose documents are read.
pub(super) fn images(
    scope: &Scope<'_>,
    written: &document::Images,
    documents: Option<&Path>,
    inputs: &RefCell<Vec<PathBuf>>,
) -> Images {
    let folder = fields::relative(scope, &written.folder);
    if documents.is_some_and(|documents| is_read(documents, &folder)) {
        let fix = "expected a folder elsewhere, or one whose name begins with a dot";
        scope.field("folder").problem("an image could bring documents: this folder is in that of the documents", fix);
    }
    if written.size < LEAST {
        scope.field("size").problem(format!("{} is too little", written.size), format!("expected at least {LEAST}"));
    }
    if let Some(host) = &written.default_registry {
        registry_host(&scope.field("defaultRegistry"), host);
    }
    let list = scope.field("registries");
    let mut registries: Vec<ImageRegistry> = Vec::new();
    for (index, written) in written.registries.iter().enumerate() {
        let scope = list.element(index);
        registry_host(&scope.field("host"), &written.host);
        if registries.iter().any(|other| other.host == written.host) {
            scope.field("host").problem(format!("`{}` is there twice", written.host), "make one of the two");
        }
        for (index, mirror) in written.mirrors.iter().enumerate() {
            registry_host(&scope.field("mirrors").element(index), mirror);
        }
        if written.insecure && written.ca_file.is_some() {
            scope.field("caFile").problem("plain HTTP has no certificates", "remove it, or `insecure`");
        }
        let file =
            |field: &str, path: &Option<PathBuf>| Some(fields::file(inputs, &scope.field(field), path.as_deref()?));
        registries.push(ImageRegistry {
            host: written.host.clone(),
            mirrors: written.mirrors.clone(),
            ca_file: file("caFile", &written.ca_file),
            insecure: written.insecure,
            credentials: credentials(
                &scope,
                written,
                file("passwordFile", &written.password_file),
                file("tokenFile", &written.token_file),
            ),
        });
    }
    Images {
        folder,
        size: written.size.0,
        default_registry: written.default_registry.clone(),
        docker_config: written
            .docker_config
            .as_deref()
            .map(|path| fields::file(inputs, &scope.field("dockerConfig"), path)),
        registries,
    }
}

/// Whether files of a folder, which may not be there yet, are read as documents.
fn is_read(documents: &Path, folder: &Path) -> bool {
    let mut plain = PathBuf::new();
    for component in folder.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            component => plain.push(component),
        }
    }
    let there = plain.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    let real = there.and_then(|(ancestor, real)| Some(real.join(plain.strip_prefix(ancestor).ok()?)));
    let (Some(real), Ok(documents)) = (real, documents.canonicalize()) else { return false };
    let hidden = |name: Component<'_>| name.as_os_str().as_encoded_bytes().starts_with(b".");
    real.strip_prefix(documents).is_ok_and(|inside| !inside.components().any(hidden))
}

/// Defaults without a Mesh document: there are no paths to resolve and nothing to check.
pub(super) fn usual(written: &document::Images) -> Images {
    Images {
        folder: written.folder.clone(),
        size: written.size.0,
        default_registry: None,
        docker_config: None,
        registries: Vec::new(),
    }
}

fn credentials(
    scope: &Scope<'_>,
    written: &document::ImageRegistry,
    password: Option<PathBuf>,
    token: Option<PathBuf>,
) -> Option<RegistryCredentials> {
    match (&written.username, password, token) {
        (None, None, None) => None,
        (Some(username), Some(file), None) => {
            if username.is_empty() || username.contains(':') || username.contains(char::is_control) {
                let message = format!("`{}` cannot be a user", username.escape_debug());
                scope.field("username").problem(message, "expected a name without `:`");
            }
            Some(RegistryCredentials::Password { username: username.clone(), file })
        }
        (None, None, Some(file)) => Some(RegistryCredentials::Token(file)),
        (_, _, Some(_)) => {
            scope.field("tokenFile").problem("a registry is shown a token or a password", "keep one of the two");
            None
        }
        (Some(_), None, None) => {
            scope.field("username").problem("there is a user without a password", "add `passwordFile: FILE`");
            None
        }
        (None, Some(_), None) => {
            scope.field("passwordFile").problem("there is a password without a user", "add `username`");
            None
        }
    }
}

/// A host, and possibly a port; no path and no scheme.
fn registry_host(scope: &Scope<'_>, text: &str) {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if host.is_empty() || !host.bytes().all(good) || !is_port {
        let message = format!("`{}` is no registry's host", text.escape_debug());
        scope.problem(message, "expected a host and possibly a port, such as ghcr.io or registry.example:5000");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_not_where_documents_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let documents = folder.path().join("documents");
        std::fs::create_dir_all(&documents).unwrap();
        for (images, expected) in [
            ("documents", true),
            ("documents/images", true),
            ("documents/not/there/yet", true),
            ("elsewhere/../documents/images", true),
            ("documents/.images", false),
            ("documents/../images", false),
            ("documents-2", false),
            (".", false),
        ] {
            assert_eq!(is_read(&documents, &folder.path().join(images)), expected, "{images}");
        }
    }
}
