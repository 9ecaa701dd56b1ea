//! The address of a node's admin listener: a Unix socket of the node's account, or a loopback
//! address with a token.

use anyhow::{Context, Result, bail, ensure};
use rustix::process::geteuid;
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Characters of the shortest token.
const SHORTEST_TOKEN: usize = 16;
const LONGEST_TOKEN: u64 = 4096;

/// The address of an admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Socket(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl Address {
    /// The default address for nodes of this account.
    pub fn usual() -> Self {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        Self::Socket(folder(geteuid().as_raw(), runtime).join("admin.sock"))
    }
}

fn folder(account: u32, runtime: Option<PathBuf>) -> PathBuf {
    match runtime.filter(|path| path.is_absolute()) {
        _ if account == 0 => "/run/leno".into(),
        Some(runtime) => runtime.join("leno"),
        None => format!("/tmp/leno-{account}").into(),
    }
}

/// A text is not an admin address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected unix:PATH, or an IP address and a port, such as 127.0.0.1:15000")]
pub struct BadAddress;

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(Self::Socket(path.into())),
            _ => text
                .strip_prefix("http://")
                .unwrap_or(text)
                .trim_end_matches('/')
                .parse()
                .map(Self::Tcp)
                .map_err(|_| BadAddress),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(formatter, "unix:{}", path.display()),
            Self::Tcp(address) => write!(formatter, "http://{address}"),
        }
    }
}

/// Creates the folder of the socket. In `/tmp`, another account may have created it.
pub(super) fn make_folder(socket: &Path) -> Result<()> {
    let Some(folder) = socket.parent() else { bail!("{} is in no folder", socket.display()) };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("the folder {} cannot be made", folder.display()));
        }
        _ => {}
    }
    let found = folder.symlink_metadata().with_context(|| format!("{} cannot be read", folder.display()))?;
    ensure!(
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0,
        "{} is not a folder that only this account can write to; remove it, or set `listeners.admin` in the Mesh document",
        folder.display()
    );
    Ok(())
}

/// Reads a token from a file that no other account can read.
pub fn token(path: &Path) -> Result<String> {
    let failed = || format!("the token of the admin address cannot be read from {}", path.display());
    let file = File::open(path).with_context(failed)?;
    let found = file.metadata().with_context(failed)?;
    ensure!(
        found.mode() & 0o077 == 0 && [0, geteuid().as_raw()].contains(&found.uid()),
        "{} can be read by other accounts (mode {:o}, account {}); chown it, and chmod 600 it",
        path.display(),
        found.mode() & 0o777,
        found.uid()
    );
    let mut text = String::new();
    file.take(LONGEST_TOKEN).read_to_string(&mut text).with_context(failed)?;
    let token = text.trim();
    ensure!(
        token.len() >= SHORTEST_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic()),
        "{} does not hold a token: expected {SHORTEST_TOKEN} or more printable characters without blanks, such as `openssl rand -hex 32` makes",
        path.display()
    );
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["unix:/run/leno/admin.sock", "http://127.0.0.1:15000", "http://[::1]:1"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("127.0.0.1:15000".parse(), Ok(Address::Tcp(([127, 0, 0, 1], 15000).into())));
        for bad in ["", "unix:", "/run/leno/admin.sock", "localhost:15000", "https://127.0.0.1:1"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[test]
    fn each_account_has_a_folder_of_its_own() {
        let runtime = || Some(PathBuf::from("/run/user/1000"));
        assert_eq!(folder(0, runtime()), Path::new("/run/leno"));
        assert_eq!(folder(1000, runtime()), Path::new("/run/user/1000/leno"));
        assert_eq!(folder(1000, None), Path::new("/tmp/leno-1000"));
        assert_eq!(folder(1000, Some("relative".into())), Path::new("/tmp/leno-1000"));
    }

    #[test]
    fn tokens_are_long_and_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            token(&path).map_err(|error| error.to_string())
        };
        assert_eq!(write("0123456789abcdef\n", 0o600).unwrap(), "0123456789abcdef");
        assert!(write("0123456789abcdef", 0o640).unwrap_err().contains("chmod 600"));
        for bad in ["", "0123456789abcde", "0123456789 abcdef", "0123456789äöüäöüäöü"] {
            assert!(write(bad, 0o600).unwrap_err().contains("does not hold a token"), "{bad}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(token(&path).unwrap_err().to_string().contains("cannot be read"));
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("leno/admin.sock");
        make_folder(&socket).unwrap();
        let made = folder.path().join("leno");
        assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o700);
        make_folder(&socket).unwrap();
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make_folder(&socket).is_err());
        std::fs::remove_dir(&made).unwrap();
        std::os::unix::fs::symlink(folder.path(), &made).unwrap();
        assert!(make_folder(&socket).is_err(), "a link that somebody else may have made");
    }
}
