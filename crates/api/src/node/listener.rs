//! Access to the admin listener: the socket serves the node's account and root, an address serves
//! the bearer of the token.

use super::address::{self, Address};
use anyhow::{Context, Result, bail};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use hyper::header::{AUTHORIZATION, HeaderMap};
use leno_model::AdminListener;
use leno_supervisor::{descends_from, descends_from_the_node};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::UCred;
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// An open listener.
pub enum Listener {
    /// A Unix socket. Its file is removed with this value.
    Socket(UnixListener, SocketFile),
    /// A TCP listener, and the file with the token.
    Tcp(TcpListener, PathBuf),
}

/// The parent process in a hot restart, while it may have instances; 0: none.
pub static PARENT_PID: AtomicU32 = AtomicU32::new(0);

/// Names of the file descriptors that one process of a node passes to the next.
const LISTENER: &str = "admin";
const LOCK: &str = "admin.lock";

/// The admin listener of the parent process in a hot restart.
#[derive(Default)]
pub struct ParentListener {
    listener: Option<OwnedFd>,
    lock: Option<OwnedFd>,
}

impl ParentListener {
    /// Takes it from the passed file descriptors.
    pub fn from_descriptors(mut take: impl FnMut(&str) -> Option<OwnedFd>) -> Self {
        Self { listener: take(LISTENER), lock: take(LOCK) }
    }

    /// The listener, if it has this path, and the lock.
    fn at_path(self, path: &Path) -> Option<(std::os::unix::net::UnixListener, OwnedFd)> {
        let listener = std::os::unix::net::UnixListener::from(self.listener?);
        (listener.local_addr().ok()?.as_pathname()? == path).then_some((listener, self.lock?))
    }

    fn at_address(self, address: SocketAddr) -> Option<std::net::TcpListener> {
        let listener = std::net::TcpListener::from(self.listener?);
        (listener.local_addr().ok()? == address).then_some(listener)
    }
}

/// A connection.
pub(super) type Stream = Pin<Box<dyn Duplex>>;

pub trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// Permissions of a connection.
#[derive(Clone, Debug)]
pub enum Access {
    /// All requests.
    Full,
    /// No request: the peer is another account, or an instance.
    Denied,
    /// All requests with this token, if there is one; only health without it.
    Bearing(Option<Arc<str>>),
}

impl Access {
    /// Whether a request with these fields is permitted.
    pub fn allows(&self, path: &str, headers: &HeaderMap) -> bool {
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
    /// Opens the listener; an error if another node has it. Uses an inherited one at the same
    /// place.
    pub async fn open(wanted: &AdminListener, inherited: ParentListener) -> Result<Self> {
        match wanted {
            AdminListener::Usual => match Address::usual() {
                Address::Socket(path) => {
                    address::make_folder(&path)?;
                    Self::socket(path, inherited).await
                }
                Address::Tcp(address) => bail!("{address} is no socket"),
            },
            AdminListener::Socket(path) => Self::socket(path.clone(), inherited).await,
            AdminListener::Address(address, token) => {
                address::token(token)?;
                if let Some(listener) = inherited.at_address(*address) {
                    return Ok(Self::Tcp(TcpListener::from_std(listener)?, token.clone()));
                }
                let listener = TcpListener::bind(address)
                    .await
                    .with_context(|| format!("cannot listen on {address} (admin); is another `leno up` running?"))?;
                Ok(Self::Tcp(listener, token.clone()))
            }
        }
    }

    async fn socket(path: PathBuf, inherited: ParentListener) -> Result<Self> {
        if let Some((listener, lock)) = inherited.at_path(&path) {
            let file = SocketFile::at(path, lock)?;
            // Until the hot restart is complete, the file belongs to the other process.
            file.leave.store(true, Ordering::Relaxed);
            return Ok(Self::Socket(UnixListener::from_std(listener)?, file));
        }
        let lock = lock(&path)?;
        clear(&path).await?;
        let listener = bind(&path).with_context(|| format!("cannot listen on unix:{} (admin)", path.display()))?;
        let file = SocketFile::at(path, lock)?;
        Ok(Self::Socket(UnixListener::from_std(listener)?, file))
    }

    /// Its address.
    pub fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Socket(_, file) => Address::Socket(file.path.clone()),
            Self::Tcp(listener, _) => Address::Tcp(listener.local_addr()?),
        })
    }

    /// Its file descriptors for the next process of the node, with names.
    pub fn descriptors(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let copy = |name: &str, socket: BorrowedFd<'_>| -> io::Result<_> {
            Ok((name.to_owned(), socket.try_clone_to_owned()?))
        };
        match self {
            Self::Socket(listener, file) => Ok(vec![copy(LISTENER, listener.as_fd())?, copy(LOCK, file.lock.as_fd())?]),
            Self::Tcp(listener, _) => Ok(vec![copy(LISTENER, listener.as_fd())?]),
        }
    }

    /// Whether the file stays for another process of the node. Initially true if it was inherited.
    pub fn leaves_file(&self) -> Arc<AtomicBool> {
        match self {
            Self::Socket(_, file) => file.leave.clone(),
            Self::Tcp(..) => Arc::default(),
        }
    }

    /// The next connection, and its permissions.
    pub async fn accept(&self) -> io::Result<(Stream, Access)> {
        match self {
            Self::Socket(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let access = if is_operator(&stream.peer_cred()?) { Access::Full } else { Access::Denied };
                Ok((Box::pin(stream), access))
            }
            Self::Tcp(listener, token) => {
                let (stream, _) = listener.accept().await?;
                // A changed token takes effect with the next connection.
                let token = address::token(token).inspect_err(|error| tracing::warn!("nobody is answered: {error:#}"));
                Ok((Box::pin(stream), Access::Bearing(token.ok().map(Arc::from))))
            }
        }
    }
}

/// Permits the node's account and root, except descendants of the node. The descent of a process
/// that has ended is unknown.
fn is_operator(peer: &UCred) -> bool {
    let instance = || {
        let process = peer.pid().and_then(|process| u32::try_from(process).ok()).filter(|process| *process > 0);
        let of_parent = |process| match PARENT_PID.load(Ordering::Relaxed) {
            0 => false,
            // This process and its descendants also descend from the parent, and were checked
            // above.
            parent => descends_from(process, parent).unwrap_or(true),
        };
        process.is_none_or(|process| descends_from_the_node(process).unwrap_or(true) || of_parent(process))
    };
    is_trusted(peer) && !instance()
}

/// Whether the file belongs to this account or root.
pub fn is_trusted(peer: &UCred) -> bool {
    peer.uid() == geteuid().as_raw() || peer.uid() == 0
}

/// The lock of the node that has the socket. Of two nodes that start at once, one gets it.
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

/// Removes a socket without a listener, and nothing else.
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

/// The socket gets its mode before its name, so no other account can connect in between.
fn bind(path: &Path) -> Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket.into())
}

/// A socket in the file system. It is removed with this value.
pub struct SocketFile {
    path: PathBuf,
    found: Metadata,
    lock: OwnedFd,
    /// Another process has the listener.
    leave: Arc<AtomicBool>,
}

impl SocketFile {
    fn at(path: PathBuf, lock: OwnedFd) -> io::Result<Self> {
        let found = path.symlink_metadata()?;
        Ok(Self { path, found, lock, leave: Arc::default() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.leave.load(Ordering::Relaxed) {
            return;
        }
        // Another program may have replaced the file.
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
        match Listener::open(&wanted(path), ParentListener::default()).await {
            Ok(_) => panic!("{} is used", path.display()),
            Err(error) => format!("{error:#}"),
        }
    }

    #[tokio::test]
    async fn a_socket_is_its_accounts_own_and_gone_with_its_node() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let listener = Listener::open(&wanted(&path), ParentListener::default()).await.unwrap();
        let found = path.symlink_metadata().unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!((found.mode() & 0o777, found.uid()), (0o600, geteuid().as_raw()));
        assert!(refusal(&path).await.contains("another leno has"));
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_listener_is_passed_on_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let first = Listener::open(&wanted(&path), ParentListener::default()).await.unwrap();
        let mut passed = first.descriptors().unwrap();
        let waiting = UnixStream::connect(&path).await.unwrap();
        let inherited = ParentListener::from_descriptors(|name| {
            let index = passed.iter().position(|(other, _)| other == name)?;
            Some(passed.swap_remove(index).1)
        });
        let second = Listener::open(&wanted(&path), inherited).await.unwrap();
        first.leaves_file().store(true, Ordering::Relaxed);
        second.leaves_file().store(false, Ordering::Relaxed);
        drop(first);
        assert!(refusal(&path).await.contains("another leno has"), "the lock is held");
        second.accept().await.unwrap();
        drop((waiting, second));
        assert!(!path.exists());
        drop(Listener::open(&wanted(&path), ParentListener::default()).await.unwrap());
    }

    #[tokio::test]
    async fn what_was_left_behind_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "as after a crash");
        let listener = Listener::open(&wanted(&path), ParentListener::default()).await.unwrap();
        // Another program removes it and listens there: its socket stays when this listener ends,
        // and is not taken over.
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
        let wanted = AdminListener::Address(([127, 0, 0, 1], 0).into(), path.clone());
        let listener = Listener::open(&wanted, ParentListener::default()).await.unwrap();
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

        // A new token is in force with the next connection. Without a sound token file, the
        // listener answers no request.
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
