//! Secrets of an instance. They are read from files of the node when the instance starts, and passed in its environment or in files of its own.

use leno_config::slice::Secret;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown, fchown};
use std::path::{Path, PathBuf};

/// The environment variable with the path of an instance's secrets folder.
const FOLDER: &str = "LENO_SECRETS";

/// The secrets that an instance is given. Dropping this removes their folder.
#[derive(Default)]
pub(crate) struct Secrets {
    /// Names and values. They must never be logged.
    pub environment: Vec<(String, String)>,
    folder: Option<PathBuf>,
}

/// The secrets of an instance in a room, which shows them itself.
#[derive(Default)]
pub(crate) struct RoomSecrets {
    /// Names and values. They must never be logged.
    pub environment: Vec<(String, String)>,
    /// Names and contents of files.
    pub files: Vec<(String, Vec<u8>)>,
}

impl RoomSecrets {
    /// Reads the secrets. Errors name the secret and never contain any of it.
    pub(crate) fn read(secrets: &[Secret]) -> io::Result<Self> {
        let mut read = Self::default();
        for secret in secrets {
            let explain = |error| explain(secret, &error);
            if secret.environment {
                read.environment.push((secret.name.clone(), secret.text().map_err(explain)?));
            } else {
                read.files.push((secret.name.clone(), secret.bytes().map_err(explain)?));
            }
        }
        if !read.files.is_empty() {
            read.environment.push((FOLDER.to_owned(), leno_room::SECRETS.to_owned()));
        }
        Ok(read)
    }
}

fn explain(secret: &Secret, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("secret `{}` from {}: {error}", secret.name, secret.from.display()))
}

impl Secrets {
    /// Reads the secrets. Those that are files are written to a new folder that only the instance's account can read: `account`, or the node's.
    /// Errors name the secret and never contain any of it.
    pub(crate) fn hand_over(secrets: &[Secret], account: Option<u32>) -> io::Result<Self> {
        let mut given = Self::default();
        for secret in secrets {
            given.add(secret, account).map_err(|error| explain(secret, &error))?;
        }
        // The folder changes its owner last, so that no process of that account has been in it before.
        if let Some(folder) = &given.folder {
            chown(folder, account, account)?;
        }
        Ok(given)
    }

    fn add(&mut self, secret: &Secret, account: Option<u32>) -> io::Result<()> {
        if secret.environment {
            self.environment.push((secret.name.clone(), secret.text()?));
            return Ok(());
        }
        let file = self.folder()?.join(&secret.name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        fchown(&file, account, account)?;
        file.write_all(&secret.bytes()?)
    }

    fn folder(&mut self) -> io::Result<PathBuf> {
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        // In memory where possible. A name that exists is an error, so nobody can have prepared the folder.
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

    fn secret(name: &str, from: &Path, environment: bool) -> Secret {
        Secret { name: name.to_owned(), from: from.to_owned(), environment }
    }

    #[test]
    fn files_are_private_and_vanish_with_the_instance() {
        let from = std::env::temp_dir().join(format!("leno-secret-test-{:032x}", fastrand::u128(..)));
        fs::write(&from, "swordfish\n").unwrap();
        let given = Secrets::hand_over(&[secret("token", &from, false), secret("TOKEN", &from, true)], None).unwrap();
        let folder = given.folder.clone().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("token"))), (0o700, 0o600));
        assert_eq!(fs::read_to_string(folder.join("token")).unwrap(), "swordfish\n", "files are as they are");
        let expected =
            [(FOLDER.to_owned(), folder.display().to_string()), ("TOKEN".to_owned(), "swordfish".to_owned())];
        assert_eq!(given.environment, expected);
        drop(given);
        assert!(!folder.exists());

        fs::write(&from, "a\0b").unwrap();
        let error = Secrets::hand_over(&[secret("TOKEN", &from, true)], None).err().unwrap().to_string();
        assert!(error.starts_with("secret `TOKEN` from /"), "{error}");
        fs::remove_file(&from).unwrap();
        assert!(Secrets::hand_over(&[secret("TOKEN", &from, true)], None).is_err());
    }
}
