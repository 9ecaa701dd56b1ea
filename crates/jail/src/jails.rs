//! The jails of a node: how they are created, and the pool of jails that wait for a program.

use crate::account::{Accounts, Half};
use crate::error::{JailError, LONGEST};
use crate::host::Owners;
use crate::jail::{Jail, Prepare};
use crate::jailer_process::{Jailer, pair};
use crate::wire::{Kind, Make};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Maximum number of jails in creation at a time. The jailer creates one after the other, and its
/// socket has buffer space for so many requests.
const AT_A_TIME: usize = 32;
/// Why a node that is not root runs no containers.
const NO_CONTAINERS: &str = "containers need a node that runs as root: their users have IDs of their own outside";
/// Maximum number of jails of a kind that wait for a program.
const MOST_AHEAD: usize = 16;
/// The time without a start after which no more jails wait than at first.
const QUIET: Duration = Duration::from_secs(30);
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
    /// Number of jails of a kind that wait for a program when few are needed.
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
    demand: Mutex<Demand>,
}

/// Starts in jails of one kind.
#[derive(Debug, Default)]
struct Demand {
    /// Starts that found no jail, although some had been created ahead. So many more wait from then on.
    misses: usize,
    starts: u64,
    /// A task waits until there is no start for some time.
    is_watched: bool,
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

    /// Ends the jails that wait for a program because there were many starts. It also happens when
    /// there is no start for some time.
    pub async fn shrink(&self) {
        for pool in [&self.inner.for_processes, &self.inner.for_containers] {
            self.inner.shrink(pool).await;
        }
    }

    async fn take_from(&self, pool: fn(&Inner) -> &Pool) -> Result<Jail, JailError> {
        let made_ahead = {
            let mut waiting = pool(&self.inner).waiting();
            std::iter::from_fn(|| waiting.pop()).find(|jail| !jail.is_over())
        };
        let inner = Arc::clone(&self.inner);
        let watches = pool(&inner).demand().note(made_ahead.is_none(), inner.most_misses());
        tokio::spawn(async move {
            // The program that gets this jail starts now, so this waits to leave the processors to
            // it.
            tokio::time::sleep(REFILL).await;
            inner.fill(pool(&inner)).await;
            let weak = Arc::downgrade(&inner);
            // The jails end with the last clone.
            drop(inner);
            if watches {
                watch(weak, pool).await;
            }
        });
        match made_ahead {
            Some(jail) => Ok(jail),
            None => self.inner.make(pool(&self.inner)).await,
        }
    }
}

/// Waits until there is no start for some time, and then ends the jails that only many starts need.
async fn watch(inner: Weak<Inner>, pool: fn(&Inner) -> &Pool) {
    let mut before = None;
    while let Some(starts) = inner.upgrade().map(|inner| pool(&inner).demand().starts) {
        if before == Some(starts) {
            break;
        }
        before = Some(starts);
        tokio::time::sleep(QUIET).await;
    }
    if let Some(inner) = inner.upgrade() {
        inner.shrink(pool(&inner)).await;
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
        while !self.asking.is_closed() && pool.waiting().len() < self.ahead + pool.demand().misses {
            match self.make(pool).await {
                Ok(jail) => pool.waiting().push(jail),
                Err(error) => {
                    tracing::warn!("no jail can be made ahead of need: {error}");
                    return;
                }
            }
        }
    }

    /// Ends the jails that only many starts need.
    async fn shrink(&self, pool: &Pool) {
        let _filling = pool.filling.lock().await;
        let starts = pool.demand().starts;
        *pool.demand() = Demand { starts, ..Demand::default() };
        let surplus = {
            let mut waiting = pool.waiting();
            let kept = waiting.len().min(self.ahead);
            waiting.split_off(kept)
        };
        for jail in surplus {
            jail.end().await;
        }
    }

    fn most_misses(&self) -> usize {
        if self.ahead == 0 { 0 } else { MOST_AHEAD.saturating_sub(self.ahead) }
    }

    fn jailer(&self) -> MutexGuard<'_, Jailer> {
        self.jailer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn new(kind: Kind, accounts: Option<Accounts>) -> Self {
        Self {
            kind,
            accounts,
            waiting: Mutex::default(),
            filling: tokio::sync::Mutex::default(),
            demand: Mutex::default(),
        }
    }

    fn demand(&self) -> MutexGuard<'_, Demand> {
        self.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Jail>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Demand {
    /// Notes a start. Whether the caller has to wait until there is none for some time.
    fn note(&mut self, missed: bool, most_misses: usize) -> bool {
        let missed = missed && self.starts > 0;
        self.starts += 1;
        self.misses = (self.misses + usize::from(missed)).min(most_misses);
        self.misses > 0 && !std::mem::replace(&mut self.is_watched, true)
    }
}
