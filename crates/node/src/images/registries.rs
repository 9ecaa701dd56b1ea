//! The Mesh document's settings of registries, in the form that registry clients take.

use leno_files::FileAccess;
use leno_model::{ImageRegistry, RegistryCredentials};
use leno_oci::{Credentials, Registries, Registry};
use std::path::{Path, PathBuf};

/// No password is longer, in bytes.
const MAX_SECRET: usize = 64 << 10;

/// A file with a password or token cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct SecretError {
    path: PathBuf,
    reason: String,
}

/// Reads the files with passwords and tokens, as far as `files` admits them. Blocks.
///
/// # Errors
/// Names the file that cannot be used.
pub fn registries(images: &leno_model::Images, files: &FileAccess) -> Result<Registries, SecretError> {
    let mut registries = Registries {
        files: files.clone(),
        default_registry: images.default_registry.clone(),
        docker_config: images.docker_config.clone(),
        ..Registries::default()
    };
    for ImageRegistry { host, mirrors, ca_file, insecure, credentials } in &images.registries {
        let credentials = match credentials {
            None => None,
            Some(RegistryCredentials::Password { username, file }) => {
                Some(Credentials::Basic { username: username.clone(), password: secret(file, files)? })
            }
            Some(RegistryCredentials::Token(file)) => Some(Credentials::Token(secret(file, files)?)),
        };
        let registry =
            Registry { mirrors: mirrors.clone(), insecure: *insecure, ca_file: ca_file.clone(), credentials };
        registries.registries.insert(host.clone(), registry);
    }
    Ok(registries)
}

/// A secret in a file, without the line end at its end.
pub(crate) fn secret(path: &Path, files: &FileAccess) -> Result<String, SecretError> {
    let wrong = |reason: &dyn std::fmt::Display| SecretError { path: path.to_owned(), reason: reason.to_string() };
    let text = leno_files::read(path, files, MAX_SECRET as u64 + 2).map_err(|error| wrong(&error))?;
    let text = String::from_utf8(text).map_err(|_| wrong(&"it is not UTF-8"))?;
    let secret = text.strip_suffix('\n').map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text));
    if secret.is_empty() || secret.len() > MAX_SECRET {
        return Err(wrong(&format!("expected a secret of 1 to {MAX_SECRET} bytes")));
    }
    Ok(secret.to_owned())
}
