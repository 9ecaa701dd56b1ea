//! Secrets of an instance. The supervisor reads them when the instance starts: from files of the
//! node, or those that the control plane has delivered. It and passes them in its environment or in private files.

use leno_model::SecretValue;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown, fchown};
use std::path::{Path, PathBuf};

/// The environment variable with the path of an instance's secrets folder.
pub(crate) const FOLDER: &str = "LENO_SECRETS";

/// The secrets of an instance. Dropping this removes their folder.
#[derive(Default)]
pub(crate) struct Secrets {
    /// Names and values. They must never be logged.
    pub environment: Vec<(String, String)>,
    folder: Option<PathBuf>,
}

/// The secrets of an instance in a jail, which shows the files itself.
#[derive(Default)]
pub(crate) struct JailSecrets {
    /// Names and values. They must never be logged.
    pub environment: Vec<(String, String)>,
    /// Names and contents of files.
    pub files: Vec<(String, Vec<u8>)>,
}

impl JailSecrets {
    pub(crate) fn new(secrets: Vec<(String, SecretValue)>) -> Self {
        let mut sorted = Self::default();
        for (name, value) in secrets {
            match value {
                SecretValue::Text(text) => sorted.environment.push((name, text)),
                SecretValue::Bytes(bytes) => sorted.files.push((name, bytes)),
            }
        }
        if !sorted.files.is_empty() {
            sorted.environment.push((FOLDER.to_owned(), leno_jail::SECRETS.to_owned()));
        }
        sorted
    }
}

impl Secrets {
    /// Writes secrets that are files to a new folder that only the instance's account can read:
    /// `account`, or the node's. Errors name the secret and never contain any of it.
    pub(crate) fn hand_over(secrets: Vec<(String, SecretValue)>, account: Option<u32>) -> io::Result<Self> {
        let mut given = Self::default();
        for (name, value) in secrets {
            match value {
                SecretValue::Text(text) => given.environment.push((name, text)),
                SecretValue::Bytes(bytes) => given
                    .write(&name, &bytes, account)
                    .map_err(|error| io::Error::new(error.kind(), format!("secret `{name}`: {error}")))?,
            }
        }
        // The folder changes its owner last, so that no process of that account has been in it before.
        if let Some(folder) = &given.folder {
            chown(folder, account, account)?;
        }
        Ok(given)
    }

    fn write(&mut self, name: &str, bytes: &[u8], account: Option<u32>) -> io::Result<()> {
        let file = self.folder()?.join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        fchown(&file, account, account)?;
        file.write_all(bytes)
    }

    fn folder(&mut self) -> io::Result<PathBuf> {
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        // In memory where possible. A name that exists is an error, so no other process can have
        // prepared the folder.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = place.join(format!("leno-secrets-{:032x}", fastrand::u128(..)));
        DirBuilder::new().mode(0o700).create(&folder)?;
        self.environment.push((FOLDER.to_owned(), folder.display().to_string()));
        self.folder = Some(folder.clone());
        Ok(folder)
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_private_and_vanish_with_the_instance() {
        let secrets = vec![
            ("token".to_owned(), SecretValue::Bytes(b"swordfish\n".to_vec())),
            ("TOKEN".to_owned(), SecretValue::Text("swordfish".to_owned())),
        ];
        let given = Secrets::hand_over(secrets, None).unwrap();
        let folder = given.folder.clone().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("token"))), (0o700, 0o600));
        assert_eq!(fs::read_to_string(folder.join("token")).unwrap(), "swordfish\n", "files are as they are");
        let expected =
            [(FOLDER.to_owned(), folder.display().to_string()), ("TOKEN".to_owned(), "swordfish".to_owned())];
        assert_eq!(given.environment, expected);
        drop(given);
        assert!(!folder.exists());
    }
}
