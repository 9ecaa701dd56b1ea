//! The parts beside the node that a hot restart of `leno up` transfers: the control plane's listener
//! and state.

use crate::hot_restart::{ChildProcess, ChildStarter, TransferredState};
use anyhow::{Context, Result};
use leno_api::upgrade::UpgradeRequest;
use leno_config::Snapshot;
use leno_control::{Control, Store};
use leno_intake::Intake;
use leno_node::{ChildLink, Parent, Running, StateCheck};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::future::pending;
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Names of the descriptors.
const LISTENER: &str = "control";
const STATE: &str = "control.state";
/// Pause between two attempts to open the store, which the parent closes after the transfer. After so
/// many attempts it is an alert, and the pause is longer.
const PAUSE: Duration = Duration::from_millis(100);
const ATTEMPTS: u32 = 100;
const PAUSE_AFTER_FAULT: Duration = Duration::from_secs(5);

/// The listener of the control plane.
pub(super) struct ControlListener {
    pub listener: TcpListener,
    /// The listener at the address of the Mesh document, which each process passes to the next one.
    /// A child does not accept from it: until its parent has ended, that would get some of the
    /// connections. Its only node connects to another address, on loopback.
    pub reserved: Option<OwnedFd>,
}

impl ControlListener {
    pub(super) async fn bind(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await;
        let listener =
            listener.with_context(|| format!("cannot listen on {address} (control); is another `leno up` running?"))?;
        let reserved = Some(listener.as_fd().try_clone_to_owned()?);
        Ok(Self { listener, reserved })
    }

    /// The listener of a child.
    pub(super) async fn after(parent: &mut Parent) -> Result<Self> {
        let reserved = parent.take(LISTENER);
        Ok(Self { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?, reserved })
    }
}

/// Continues from the state of the parent's control plane.
pub(super) fn import(control: &Control, parent: &mut Parent) -> Result<()> {
    let state = parent.take(STATE).context("the parent has no control plane; it is another kind of process")?;
    let mut bytes = Vec::new();
    File::from(state).read_to_end(&mut bytes).context("the state of the parent's control plane cannot be read")?;
    Ok(control.import(&bytes)?)
}

/// Transfers the mesh to a new child. The error says why that failed; then nothing has changed.
pub(super) async fn upgrade(
    starter: &mut ChildStarter,
    running: &Running,
    control: &Control,
    (reserved, request): (&Option<OwnedFd>, &UpgradeRequest),
) -> Result<(ChildLink, ChildProcess)> {
    let exported = control.export()?;
    let mut file = File::from(memfd_create(STATE, MemfdFlags::CLOEXEC)?);
    file.write_all(&exported)?;
    file.rewind()?;
    let mut descriptors = vec![(STATE.to_owned(), OwnedFd::from(file))];
    if let Some(reserved) = reserved {
        descriptors.push((LISTENER.to_owned(), reserved.try_clone()?));
    }
    let current = control.clone();
    let unchanged: StateCheck = Box::new(move || current.export().is_ok_and(|now| now == exported));
    starter.upgrade(running, request, TransferredState { descriptors, unchanged: Some(unchanged) }).await
}

/// The store that a child opens as soon as its parent has closed it.
pub(super) struct Attachment<'a> {
    /// The file, until it is in use.
    file: Option<&'a Path>,
    attempts: u32,
    /// The time of the next attempt.
    at: Instant,
    fault: watch::Sender<Option<String>>,
}

impl<'a> Attachment<'a> {
    /// A file that is not in use yet, and why it cannot be used.
    pub(super) fn new(file: Option<&'a Path>) -> (Self, watch::Receiver<Option<String>>) {
        let (fault, told) = watch::channel(None);
        (Self { file, attempts: 0, at: Instant::now(), fault }, told)
    }

    /// Waits until the next attempt.
    pub(super) async fn due(&self) {
        match self.file {
            Some(_) => sleep_until(self.at).await,
            None => pending().await,
        }
    }

    /// Opens the store, and stores the state of this process.
    pub(super) async fn attempt(&mut self, control: &Control, intake: &Intake, snapshot: &Snapshot) {
        let Some(file) = self.file else { return };
        let attached = tokio::task::block_in_place(|| Store::open(file).and_then(|store| control.attach(store)));
        // The publication stores the definitions.
        let stored = match attached {
            Ok(()) => intake.publish(control, snapshot, None).await.map(drop).map_err(anyhow::Error::from),
            Err(error) => Err(error.into()),
        };
        self.attempts += 1;
        match stored {
            Ok(()) => {
                self.file = None;
                if self.fault.send_replace(None).is_some() {
                    tracing::info!("{}: revisions and results of jobs are stored again", file.display());
                }
            }
            Err(error) => {
                control.detach();
                self.at = Instant::now() + if self.attempts < ATTEMPTS { PAUSE } else { PAUSE_AFTER_FAULT };
                if self.attempts >= ATTEMPTS {
                    let reason = format!("the store {} cannot be used: {error:#}", file.display());
                    if self.attempts == ATTEMPTS {
                        tracing::error!("{reason}; revisions and results of jobs are in memory only until it can");
                    }
                    self.fault.send_replace(Some(reason));
                }
            }
        }
    }
}
