//! The end of a leader's term, and the lease on which it depends.

use super::Inner;
use etcd_client::Error;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;

/// Ends a term.
pub(super) struct Resign {
    pub store: Arc<Inner>,
    pub lease: i64,
    pub revision: i64,
    pub keeping: Option<tokio::task::AbortHandle>,
}

impl Drop for Resign {
    fn drop(&mut self) {
        if let Some(keeping) = &self.keeping {
            keeping.abort();
        }
        if self.store.term() == Some(self.revision) {
            self.store.set_term(None);
        }
        self.store.revoke(self.lease);
    }
}

/// Renews a lease until it is lost. It counts as lost a little before it can end at etcd.
pub(super) async fn keep(
    store: Weak<Inner>,
    lease: i64,
    length: Duration,
    mut renewed: Instant,
    lose: watch::Sender<bool>,
) {
    let tick = length / 5;
    loop {
        tokio::time::sleep(tick).await;
        let Some(inner) = store.upgrade() else { return };
        let mut leases = inner.client.lease_client();
        drop(inner);
        let asked = Instant::now();
        let gone = match timeout(tick, leases.keep_alive(lease)).await {
            Ok(Ok(_)) => {
                renewed = asked;
                false
            }
            Ok(Err(Error::LeaseKeepAliveError(_))) => true,
            Ok(Err(_)) | Err(_) => false,
        };
        if gone || renewed.elapsed() + 2 * tick > length {
            if let Some(inner) = store.upgrade() {
                inner.set_term(None);
            }
            lose.send_replace(true);
            return;
        }
    }
}
