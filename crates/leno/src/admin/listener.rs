//! Who is answered: at the socket this account and root, at an address whoever bears the token.

use super::address::{self, Address};
use anyhow::{Context, Result, bail};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use hyper::header::{AUTHORIZATION, HeaderMap};
use leno_config::slice::AdminListener;
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// An open listener.
pub enum Listener {
    /// The file is removed with it.
    Socket(UnixListener, SocketFile),
    Tcp(TcpListener, Arc<str>),
}

/// A connection.
pub type Stream = Pin<Box<dyn Duplex>>;

pub trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// What a connection may ask.
#[derive(Clone, Debug)]
pub enum Access {
    /// Anything. It is of this process, if that is known.
    Full(Option<i32>),
    /// Nothing: it is another account's.
    Denied,
    /// Anything with this token, and whether the node is well without it.
    Bearing(Arc<str>),
}

impl Access {
    /// Whether a request with these fields is answered.
    pub fn allows(&self, path: &str, headers: &HeaderMap) -> bool {
        match self {
            Self::Full(_) => true,
            Self::Denied => false,
            Self::Bearing(_) if matches!(path, "/healthz" | "/readyz") => true,
            Self::Bearing(token) => {
                let said = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(7));
                said.is_some_and(|(scheme, said)| {
                    scheme.eq_ignore_ascii_case(b"bearer ") && verify_slices_are_equal(said, token.as_bytes()).is_ok()
                })
            }
        }
    }
}

impl Listener {
    /// Opens it; an error if another node is there.
    pub async fn open(wanted: &AdminListener) -> Result<Self> {
        match wanted {
            AdminListener::Usual => match Address::usual() {
                Address::Socket(path) => {
                    address::make_folder(&path)?;
                    Self::socket(path).await
                }
                Address::Tcp(address) => bail!("{address} is no socket"),
            },
            AdminListener::Socket(path) => Self::socket(path.clone()).await,
            AdminListener::Address(address, token) => {
                let token = address::token(token)?;
                let listener = TcpListener::bind(address)
                    .await
                    .with_context(|| format!("cannot listen on {address} (admin); is another `leno up` running?"))?;
                Ok(Self::Tcp(listener, token.into()))
            }
        }
    }

    async fn socket(path: PathBuf) -> Result<Self> {
        clear(&path).await?;
        let listener = bind(&path).with_context(|| format!("cannot listen on unix:{} (admin)", path.display()))?;
        let file = SocketFile::at(path)?;
        Ok(Self::Socket(UnixListener::from_std(listener)?, file))
    }

    /// Where it is.
    pub fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Socket(_, file) => Address::Socket(file.path.clone()),
            Self::Tcp(listener, _) => Address::Tcp(listener.local_addr()?),
        })
    }

    /// The next connection, and what it may ask.
    pub async fn accept(&self) -> io::Result<(Stream, Access)> {
        match self {
            Self::Socket(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?;
                let known = peer.uid() == geteuid().as_raw() || peer.uid() == 0;
                let access = if known { Access::Full(peer.pid()) } else { Access::Denied };
                Ok((Box::pin(stream), access))
            }
            Self::Tcp(listener, token) => {
                let (stream, _) = listener.accept().await?;
                Ok((Box::pin(stream), Access::Bearing(token.clone())))
            }
        }
    }
}

/// Removes a socket that nobody listens on any more, and nothing else.
async fn clear(path: &Path) -> Result<()> {
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("{} (admin) cannot be looked at", path.display())),
    };
    if !found.file_type().is_socket() {
        bail!("{} (admin) is there and is not a socket; remove it, or set `listeners.admin` elsewhere", path.display());
    }
    match UnixStream::connect(path).await {
        Ok(_) => bail!(
            "another leno answers at unix:{} (admin); end it, or set `listeners.admin` in the Mesh document",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .with_context(|| format!("{} was left behind and cannot be removed", path.display())),
        Err(error) => Err(error).with_context(|| format!("{} (admin) is there and cannot be used", path.display())),
    }
}

/// The socket has its mode before it has its name: there is no moment at which others could connect.
fn bind(path: &Path) -> Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

/// A socket in the file system, as long as this lives.
pub struct SocketFile {
    path: PathBuf,
    found: Metadata,
}

impl SocketFile {
    fn at(path: PathBuf) -> io::Result<Self> {
        let found = path.symlink_metadata()?;
        Ok(Self { path, found })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another node may have put its own there, if this one seemed to be gone.
        let same = |now: Metadata| now.dev() == self.found.dev() && now.ino() == self.found.ino();
        if self.path.symlink_metadata().is_ok_and(same) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn wanted(path: &Path) -> AdminListener {
        AdminListener::Socket(path.to_owned())
    }

    async fn refusal(path: &Path) -> String {
        match Listener::open(&wanted(path)).await {
            Ok(_) => panic!("{} is used", path.display()),
            Err(error) => format!("{error:#}"),
        }
    }

    #[tokio::test]
    async fn a_socket_is_its_accounts_own_and_gone_with_its_node() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let listener = Listener::open(&wanted(&path)).await.unwrap();
        let found = path.symlink_metadata().unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!((found.mode() & 0o777, found.uid()), (0o600, geteuid().as_raw()));
        assert!(refusal(&path).await.contains("another leno answers"));
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_was_left_behind_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "as after a crash");
        let listener = Listener::open(&wanted(&path)).await.unwrap();
        // Somebody removes it, and another node starts: its socket stays when this one ends.
        std::fs::remove_file(&path).unwrap();
        let other = Listener::open(&wanted(&path)).await.unwrap();
        drop(listener);
        assert!(path.exists());
        drop(other);
        std::fs::write(&path, "mine").unwrap();
        assert!(refusal(&path).await.contains("is not a socket"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
        assert!(refusal(&folder.path().join("nowhere/admin.sock")).await.contains("cannot listen"));
    }

    #[tokio::test]
    async fn only_who_bears_the_token_is_told_more_than_that_the_node_is_well() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let listener = Listener::open(&AdminListener::Address(([127, 0, 0, 1], 0).into(), path)).await.unwrap();
        let Address::Tcp(address) = listener.address().unwrap() else { panic!("no address") };
        let _client = tokio::net::TcpStream::connect(address).await.unwrap();
        let (_, access) = listener.accept().await.unwrap();
        let allows = |path: &str, said: Option<&str>| {
            let headers = said.map(|said| (AUTHORIZATION, said.parse().unwrap())).into_iter().collect();
            access.allows(path, &headers)
        };
        assert!(allows("/metrics", Some("Bearer 0123456789abcdef")) && allows("/x", Some("bearer 0123456789abcdef")));
        for bad in [
            None,
            Some(""),
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer 0123456789abcdeg"),
            Some("Basic 0123456789abcdef"),
        ] {
            assert!(!allows("/metrics", bad), "{bad:?}");
            assert!(allows("/healthz", bad) && allows("/readyz", bad), "{bad:?}");
        }
        assert!(!Access::Denied.allows("/healthz", &HeaderMap::new()));
    }
}
