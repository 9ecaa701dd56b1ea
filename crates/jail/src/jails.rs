//! The jails of a node: how they are created, and the pool of jails that wait for a program.

use crate::account::{Accounts, Half};
use crate::error::{JailError, LONGEST};
use crate::host::Owners;
use crate::jail::{Jail, Prepare};
use crate::jailer_process::{Jailer, pair};
use crate::wire::{Kind, Make};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Maximum number of jails in creation at a time. The jailer creates one after the other, and its
/// socket has buffer space for so many requests.
const AT_A_TIME: usize = 32;
/// Why a node that is not root runs no containers.
const NO_CONTAINERS: &str = "containers need a node that runs as root: their users have IDs of their own outside";
/// Pause after a jail is taken until the next one is created.
const REFILL: Duration = Duration::from_millis(20);

/// The jails of a node. Cheap to clone; clones share one state. All jails end when the last clone
/// is dropped.
#[derive(Clone, Debug)]
pub struct Jails {
    inner: Arc<Inner>,
}

struct Inner {
    jailer: Arc<Mutex<Jailer>>,
    prepare: Option<Prepare>,
    /// Limits the number of jails in creation.
    asking: Semaphore,
    /// Number of jails of a kind that should wait for a program.
    ahead: usize,
    for_processes: Pool,
    for_containers: Pool,
}

/// Jails of one kind.
struct Pool {
    kind: Kind,
    /// `None`: the node may only map its own IDs.
    accounts: Option<Accounts>,
    /// The jails that wait for a program.
    waiting: Mutex<Vec<Jail>>,
    /// Held while jails are created ahead.
    filling: tokio::sync::Mutex<()>,
}

impl Jails {
    /// Creates the first `ahead` jails, and at least one, to check that this machine supports them.
    /// Each jail that is taken is replaced. `prepare` is called with each.
    ///
    /// # Errors
    /// Names the feature of this machine that jails lack.
    pub async fn open(jailer: Jailer, ahead: usize, prepare: Option<Prepare>) -> Result<Self, JailError> {
        Self::open_beside(jailer, ahead, prepare, Half::First).await
    }

    /// Like [`Jails::open`], while another process of the node has the other half of the IDs.
    ///
    /// # Errors
    /// Names the feature of this machine that jails lack.
    pub async fn open_beside(
        jailer: Jailer,
        ahead: usize,
        prepare: Option<Prepare>,
        half: Half,
    ) -> Result<Self, JailError> {
        // Only root can give jails other IDs than its own.
        let is_root = rustix::process::geteuid().is_root();
        let inner = Inner {
            jailer: Arc::new(Mutex::new(jailer)),
            prepare,
            asking: Semaphore::new(AT_A_TIME),
            ahead,
            for_processes: Pool::new(Kind::Process, is_root.then(|| Accounts::of_processes(half))),
            for_containers: Pool::new(Kind::Container, is_root.then(|| Accounts::of_containers(half))),
        };
        let jails = Self { inner: Arc::new(inner) };
        let pool = &jails.inner.for_processes;
        let first = jails.inner.make(pool).await?;
        pool.waiting().push(first);
        jails.inner.fill(pool).await;
        Ok(jails)
    }

    /// Why this machine can run no containers; `None`: it probably can.
    pub fn no_containers(&self) -> Option<&'static str> {
        (!self.have_accounts()).then_some(NO_CONTAINERS)
    }

    /// Process ID of the present jailer.
    pub fn jailer(&self) -> u32 {
        self.inner.jailer().id()
    }

    /// Ends the jails that wait for a program, and then the jailer, which ends the other jails.
    /// Returns when all are gone. No jail is created from here on.
    pub async fn close(&self) {
        self.inner.asking.close();
        for pool in [&self.inner.for_processes, &self.inner.for_containers] {
            // A task that creates a jail now ends soon.
            let _filling = pool.filling.lock().await;
            let waiting = std::mem::take(&mut *pool.waiting());
            for jail in waiting {
                jail.end().await;
            }
        }
        self.inner.jailer().end();
    }

    /// Whether each jail has its own user ID on the machine.
    pub fn have_accounts(&self) -> bool {
        self.inner.for_processes.accounts.is_some()
    }

    /// Takes a jail for a program: one that was created ahead, if there is one.
    ///
    /// # Errors
    /// Gives the cause. The next call may succeed.
    pub async fn take(&self) -> Result<Jail, JailError> {
        self.take_from(|inner| &inner.for_processes).await
    }

    /// Takes a jail for a container ([`Jail::contain`]). After the first one, such jails are
    /// created ahead too.
    ///
    /// # Errors
    /// Names the missing feature of this machine, or the cause of the failure. In the latter case
    /// the next call may succeed.
    pub async fn take_for_container(&self) -> Result<Jail, JailError> {
        if let Some(reason) = self.no_containers() {
            return Err(JailError::Unmade(reason.to_string()));
        }
        self.take_from(|inner| &inner.for_containers).await
    }

    async fn take_from(&self, pool: fn(&Inner) -> &Pool) -> Result<Jail, JailError> {
        let made_ahead = {
            let mut waiting = pool(&self.inner).waiting();
            std::iter::from_fn(|| waiting.pop()).find(|jail| !jail.is_over())
        };
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move {
            // The program that gets this jail starts now, so this waits to leave the processors to
            // it.
            tokio::time::sleep(REFILL).await;
            inner.fill(pool(&inner)).await;
        });
        match made_ahead {
            Some(jail) => Ok(jail),
            None => self.inner.make(pool(&self.inner)).await,
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("jailer", &self.jailer).field("ahead", &self.ahead).finish_non_exhaustive()
    }
}

impl Inner {
    async fn make(&self, pool: &Pool) -> Result<Jail, JailError> {
        let _permit = self.asking.acquire().await.map_err(io::Error::other)?;
        let account = match &pool.accounts {
            None => None,
            Some(accounts) => Some(accounts.take().ok_or_else(|| JailError::Unmade("no account is left".to_owned()))?),
        };
        let (control, theirs) = pair()?;
        let make = Make::Jail { account: account.as_ref().map(|account| account.first), kind: pool.kind };
        self.jailer().ask(&make, &theirs)?;
        drop(theirs);
        let owners = Owners::new(&self.jailer);
        tokio::time::timeout(LONGEST, Jail::set_up(control, account, self.prepare.clone(), pool.kind, owners))
            .await
            .unwrap_or(Err(JailError::Timeout))
    }

    /// Creates jails until enough of them wait.
    async fn fill(&self, pool: &Pool) {
        // One after the other. Otherwise a burst of starts would create as many spare jails.
        let _one = pool.filling.lock().await;
        while !self.asking.is_closed() && pool.waiting().len() < self.ahead {
            match self.make(pool).await {
                Ok(jail) => pool.waiting().push(jail),
                Err(error) => {
                    tracing::warn!("no jail can be made ahead of need: {error}");
                    return;
                }
            }
        }
    }

    fn jailer(&self) -> MutexGuard<'_, Jailer> {
        self.jailer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn new(kind: Kind, accounts: Option<Accounts>) -> Self {
        Self { kind, accounts, waiting: Mutex::default(), filling: tokio::sync::Mutex::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Jail>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
