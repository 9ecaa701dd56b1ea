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
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::sleep;

/// Names of the descriptors.
const LISTENER: &str = "control";
const STATE: &str = "control.state";
/// Pause between two attempts to open the store, which the parent closes after the transfer, and
/// how many there are.
const PAUSE: Duration = Duration::from_millis(100);
const ATTEMPTS: u32 = 100;

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

/// Opens the store as soon as the parent has closed it, and stores what this process has.
pub(super) async fn attach(control: &Control, intake: &Intake, snapshot: &Snapshot, file: &Path) {
    let mut attempt = 1;
    let attached = loop {
        let attached = tokio::task::block_in_place(|| Store::open(file).and_then(|store| control.attach(store)));
        if attached.is_ok() || attempt >= ATTEMPTS {
            break attached;
        }
        attempt += 1;
        sleep(PAUSE).await;
    };
    // The publication stores the definitions.
    let stored = match attached {
        Ok(()) => intake.publish(control, snapshot, None).await.map(drop).map_err(anyhow::Error::from),
        Err(error) => Err(error.into()),
    };
    if let Err(error) = stored {
        tracing::error!(
            "{} cannot be used: {error:#}; until the next restart, revisions and results of jobs are in memory only",
            file.display()
        );
    }
}
