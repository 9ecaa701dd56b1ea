//! Who is answered: at the socket this account and root, at an address whoever bears the token.

use super::address::{self, Address};
use anyhow::{Context, Result, bail};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use hyper::header::{AUTHORIZATION, HeaderMap};
use leno_config::slice::AdminListener;
use leno_function::descends_from_the_node;
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::UCred;
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// An open listener.
pub(crate) enum Listener {
    /// The file is removed with it.
    Socket(UnixListener, SocketFile),
    /// With the file that holds the token.
    Tcp(TcpListener, PathBuf),
}

/// A connection.
pub(super) type Stream = Pin<Box<dyn Duplex>>;

pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// What a connection may ask.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// Anything.
    Full,
    /// Nothing: it is another account's, or an instance's.
    Denied,
    /// Anything with this token, if there is one; and whether the node is well without it.
    Bearing(Option<Arc<str>>),
}

impl Access {
    /// Whether a request with these fields is answered.
    pub(crate) fn allows(&self, path: &str, headers: &HeaderMap) -> bool {
        match self {
            Self::Full => true,
            Self::Denied => false,
            Self::Bearing(_) if matches!(path, "/healthz" | "/readyz") => true,
            Self::Bearing(None) => false,
            Self::Bearing(Some(token)) => {
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
    pub(crate) async fn open(wanted: &AdminListener) -> Result<Self> {
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
                address::token(token)?;
                let listener = TcpListener::bind(address)
                    .await
                    .with_context(|| format!("cannot listen on {address} (admin); is another `leno up` running?"))?;
                Ok(Self::Tcp(listener, token.clone()))
            }
        }
    }

    async fn socket(path: PathBuf) -> Result<Self> {
        let lock = lock(&path)?;
        clear(&path).await?;
        let listener = bind(&path).with_context(|| format!("cannot listen on unix:{} (admin)", path.display()))?;
        let file = SocketFile::at(path, lock)?;
        Ok(Self::Socket(UnixListener::from_std(listener)?, file))
    }

    /// Where it is.
    pub(crate) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Socket(_, file) => Address::Socket(file.path.clone()),
            Self::Tcp(listener, _) => Address::Tcp(listener.local_addr()?),
        })
    }

    /// The next connection, and what it may ask.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, Access)> {
        match self {
            Self::Socket(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let access = if is_operator(&stream.peer_cred()?) { Access::Full } else { Access::Denied };
                Ok((Box::pin(stream), access))
            }
            Self::Tcp(listener, token) => {
                let (stream, _) = listener.accept().await?;
                // A token that was changed is in force with the next connection.
                let token = address::token(token).inspect_err(|error| tracing::warn!("nobody is answered: {error:#}"));
                Ok((Box::pin(stream), Access::Bearing(token.ok().map(Arc::from))))
            }
        }
    }
}

/// The node's account and root, but for what the node has started. Of a process that has ended meanwhile it cannot be told whose it was.
fn is_operator(peer: &UCred) -> bool {
    let instance = || {
        let process = peer.pid().and_then(|process| u32::try_from(process).ok()).filter(|process| *process > 0);
        process.is_none_or(|process| descends_from_the_node(process).unwrap_or(true))
    };
    is_trusted(peer) && !instance()
}

/// Whether this is of the same account, or of root.
pub(crate) fn is_trusted(peer: &UCred) -> bool {
    peer.uid() == geteuid().as_raw() || peer.uid() == 0
}

/// Held by the node that has the socket: of two that start at a time, one has it.
fn lock(socket: &Path) -> Result<OwnedFd> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let failed = || format!("cannot listen on unix:{} (admin): {} cannot be opened", socket.display(), path.display());
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).with_context(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => bail!(
            "another leno has unix:{} (admin); end it, or set `listeners.admin` in the Mesh document",
            socket.display()
        ),
        Err(error) => Err(error).with_context(|| format!("{} cannot be locked", path.display())),
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
            "somebody else answers at unix:{} (admin); end it, or set `listeners.admin` in the Mesh document",
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
pub(crate) struct SocketFile {
    path: PathBuf,
    found: Metadata,
    _lock: OwnedFd,
}

impl SocketFile {
    fn at(path: PathBuf, lock: OwnedFd) -> io::Result<Self> {
        let found = path.symlink_metadata()?;
        Ok(Self { path, found, _lock: lock })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it, and put another one there.
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
        assert!(refusal(&path).await.contains("another leno has"));
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
        // Somebody removes it and listens there: that socket stays when this one ends, and is not taken over.
        std::fs::remove_file(&path).unwrap();
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
        assert!(refusal(&path).await.contains("somebody else answers"));
        drop(other);
        std::fs::remove_file(&path).unwrap();
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
        let listener = Listener::open(&AdminListener::Address(([127, 0, 0, 1], 0).into(), path.clone())).await.unwrap();
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

        // A new token is in force with the next connection, and without a sound one nobody is told anything.
        let told = async |said: &str| {
            let _client = tokio::net::TcpStream::connect(address).await.unwrap();
            let (_, access) = listener.accept().await.unwrap();
            access.allows("/metrics", &[(AUTHORIZATION, said.parse().unwrap())].into_iter().collect())
        };
        std::fs::write(&path, "fedcba9876543210").unwrap();
        assert!(told("Bearer fedcba9876543210").await && !told("Bearer 0123456789abcdef").await);
        std::fs::write(&path, "").unwrap();
        assert!(!told("Bearer fedcba9876543210").await && !told("Bearer ").await);
    }
}
