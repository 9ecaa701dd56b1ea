//! The jails of this node: the start of its jailer, and the log entry if jails are not available.

use leno_ebpf::Interception;
use leno_jail::{Half, JailError, JailListeners, Jailer, ListenerGuard};
use leno_supervisor::JailSupport;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The argument that makes this program the jailer. Only this program uses it, so it is no
/// subcommand.
const JAILER: &str = "jailer";
/// The argument in earlier releases. A running process of one may start this program with it.
const JAILER_BEFORE: &str = "room-launcher";
/// Number of jails that the jailer makes ahead of need.
const AHEAD: usize = 2;

/// Whether this process was started as the jailer.
pub(crate) fn is_jailer() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == JAILER || argument == JAILER_BEFORE)
}

/// Starts the jailer, and finds out whether it can make jails.
pub(crate) async fn open(half: Half) -> JailSupport {
    leno_ebpf::log_to(|text| tracing::debug!("{text}"));
    match try_open(half).await {
        Ok(jails) => {
            let whose = if jails.have_accounts() { "an account of its own" } else { "this node's account" };
            tracing::info!("instances: each is in a jail, under {whose}");
            JailSupport::Available(jails)
        }
        Err(error) => {
            tracing::warn!(
                "instances are not in jails: {error}. They can be reached, and reach anything, past the mesh, and read each other's memory and \
                 environment if they share an account; those with `isolation: strict` are not started"
            );
            JailSupport::Unavailable(error.to_string())
        }
    }
}

async fn try_open(half: Half) -> Result<leno_jail::Jails, JailError> {
    leno_jail::Jails::open_beside(jailer()?, AHEAD, Some(Arc::new(intercept)), half).await
}

fn jailer() -> Result<Jailer, JailError> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(JAILER).current_dir("/");
    Ok(Jailer::start(command)?)
}

/// The features of jails on this machine.
pub(crate) struct Support {
    /// Whether each jail has an account.
    pub have_accounts: bool,
    /// Why calls to ports other than 80 are not intercepted.
    pub interception: Result<(), String>,
    /// Why there are no containers, if there are none.
    pub no_containers: Option<String>,
}

/// Makes a jail, and ends it.
pub(crate) async fn probe() -> Result<Support, JailError> {
    let interception = Arc::new(Mutex::new(Err("no jail was prepared".to_owned())));
    let prepare = {
        let interception = interception.clone();
        move |listeners: &JailListeners, network: BorrowedFd<'_>| {
            let begun = Interception::begin(network, listeners.http.as_fd());
            let outcome = begun.as_ref().map(drop).map_err(ToString::to_string);
            *interception.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
            begun.ok().map(ListenerGuard::new)
        }
    };
    let jails = leno_jail::Jails::open(jailer()?, 1, Some(Arc::new(prepare))).await?;
    let no_containers = jails.no_containers().map(ToString::to_string);
    jails.close().await;
    let interception = interception.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Support { have_accounts: jails.have_accounts(), interception, no_containers })
}

/// Redirects connections to every port of a jail to the node. Without interception, only those to
/// port 80 arrive, and the kernel refuses all others.
fn intercept(listeners: &JailListeners, network: BorrowedFd<'_>) -> Option<ListenerGuard> {
    // Whether interception worked for the first jail.
    static EVERY_PORT: OnceLock<bool> = OnceLock::new();
    let begun = Interception::begin(network, listeners.http.as_fd());
    let is_first = EVERY_PORT.set(begun.is_ok()).is_ok();
    match &begun {
        Ok(_) if is_first => tracing::info!("instances: calls to every port are intercepted in the kernel"),
        Err(error) if is_first => {
            tracing::info!("instances: calls to port 80 are intercepted, others refused, for want of {error}");
        }
        Err(error) if EVERY_PORT.get() == Some(&true) => {
            tracing::warn!("calls of one jail to ports other than 80 will be refused: {error}");
        }
        _ => {}
    }
    begun.ok().map(ListenerGuard::new)
}
