//! What the Mesh document says of registries, as those who speak to them take it.

use leno_config::slice::{self, ImageRegistry, RegistryCredentials};
use leno_image::{Credentials, Registries, Registry};
use std::path::Path;

/// No password is longer, in bytes.
const LONGEST_SECRET: usize = 64 << 10;

/// Reads the files with passwords and tokens. Blocks.
///
/// # Errors
/// Names the file that cannot be used.
pub fn registries(images: &slice::Images) -> Result<Registries, String> {
    let mut registries = Registries {
        default_registry: images.default_registry.clone(),
        docker_config: images.docker_config.clone(),
        ..Registries::default()
    };
    for ImageRegistry { host, mirrors, ca_file, insecure, credentials } in &images.registries {
        let credentials = match credentials {
            None => None,
            Some(RegistryCredentials::Password { username, file }) => {
                Some(Credentials::Basic { username: username.clone(), password: secret(file)? })
            }
            Some(RegistryCredentials::Token(file)) => Some(Credentials::Token(secret(file)?)),
        };
        let registry =
            Registry { mirrors: mirrors.clone(), insecure: *insecure, ca_file: ca_file.clone(), credentials };
        registries.registries.insert(host.clone(), registry);
    }
    Ok(registries)
}

/// A secret in a file, without the line end at its end.
pub(crate) fn secret(path: &Path) -> Result<String, String> {
    let wrong = |reason: &dyn std::fmt::Display| format!("{}: {reason}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let secret = text.strip_suffix('\n').map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text));
    if secret.is_empty() || secret.len() > LONGEST_SECRET {
        return Err(wrong(&format!("expected a secret of 1 to {LONGEST_SECRET} bytes")));
    }
    Ok(secret.to_owned())
}
