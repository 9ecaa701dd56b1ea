//! The hot restart of a node that is in a container. The container's processes end with its first one,
//! so the node does not start its child: the child is the node of the next container. It connects to a
//! socket of the running one.

use anyhow::{Context, Result};
use leno_api::node::PARENT_PID;
use leno_jail::Half;
use leno_node::{ChildLink, HotRestartOptions, Parent, Running};
use rustix::fs::{Mode, fchmod};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// The socket of the running node of Kubernetes. Its folder is one of the machine.
pub(crate) const SOCKET: &str = "/run/leno/restart.sock";
/// How long the child may take until it is ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause after an attempt that has failed.
const PAUSE: Duration = Duration::from_secs(1);

/// The node that runs in another container of this machine. `None`: none does.
pub(crate) fn running(socket: &Path) -> Result<Option<Parent>> {
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("{} cannot be used", socket.display())),
    };
    let parent = socket_peercred(&stream)?.pid.as_raw_nonzero().get().unsigned_abs();
    PARENT_PID.store(parent, Ordering::Relaxed);
    tracing::info!("takes over from the node of another container, process {parent}");
    let taken = Parent::at(stream.into());
    Ok(Some(taken.context("the node of another container does not hand over; it may be ending")?))
}

/// Waits for the node of the next container.
pub(crate) struct NextContainer {
    listener: tokio::net::UnixListener,
    half: Half,
    descriptors: Option<u64>,
    /// Becomes true when the parent of this process has ended.
    alone: watch::Receiver<bool>,
    /// Whether a child is taking over.
    under_way: watch::Sender<bool>,
}

impl NextContainer {
    /// Opens the socket, in place of that of this process's parent.
    pub(crate) fn open(
        socket: &Path,
        (half, descriptors): (Half, Option<u64>),
        alone: watch::Receiver<bool>,
    ) -> Result<Self> {
        let listener = bind(socket)
            .with_context(|| format!("{} cannot be opened; its folder must exist and be writable", socket.display()))?;
        Ok(Self {
            listener: tokio::net::UnixListener::from_std(listener)?,
            half,
            descriptors,
            alone,
            under_way: watch::Sender::new(false),
        })
    }

    /// Whether a child is taking over, which a signal to end must not interrupt.
    pub(crate) fn under_way(&self) -> watch::Receiver<bool> {
        self.under_way.subscribe()
    }

    /// Hands this node over to the node of the next container. Returns when that one has it.
    pub(crate) async fn offer(mut self, running: &Running) -> ChildLink {
        // The error: this process never had a parent.
        let _ = self.alone.wait_for(|alone| *alone).await;
        loop {
            match self.attempt(running).await {
                Ok(link) => return link,
                Err(error) => {
                    self.under_way.send_replace(false);
                    tracing::error!("hot restart: {error:#}; this process goes on");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn attempt(&self, running: &Running) -> Result<ChildLink> {
        let (stream, _) = self.listener.accept().await.context("the next container cannot connect")?;
        // The mode of the file allows only this account, and root.
        let peer = stream.peer_cred()?;
        anyhow::ensure!(
            peer.uid() == 0 || peer.uid() == geteuid().as_raw(),
            "account {} may not take this node over",
            peer.uid()
        );
        self.under_way.send_replace(true);
        tracing::info!("hot restart: process {} of another container is to take over", peer.pid().unwrap_or_default());
        let options = HotRestartOptions {
            // The child has its own admin listener, in its container.
            others: Vec::new(),
            half: self.half,
            descriptors: self.descriptors,
            patience: PATIENCE,
            unchanged: None,
        };
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        running.offer(stream, options).await.context("the node of the next container was to take over")
    }
}

/// The socket gets its name when it is complete, so that the next node finds one that answers.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let folder = path.parent().ok_or(ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let made = folder.join(format!(".restart-{}", std::process::id()));
    let _ = fs::remove_file(&made);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&made)?)?;
    rustix::net::listen(&socket, 1)?;
    fs::rename(&made, path)?;
    Ok(socket.into())
}
