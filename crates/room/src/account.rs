//! User IDs that rooms have outside.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first user ID that rooms have outside, and how many there are. Beyond those that systemd gives to containers.
const FIRST_ACCOUNT: u32 = 0x7000_0000;
const ACCOUNTS: u32 = 0x1_0000;

/// User IDs outside. No two rooms have the same at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts(Arc<Mutex<BTreeSet<u32>>>);

/// The user and group ID of one room, until this is dropped.
#[derive(Debug)]
pub(crate) struct Account {
    pub number: u32,
    given: Accounts,
}

impl Accounts {
    pub(crate) fn take(&self) -> Option<Account> {
        let mut given = self.given();
        let number = (FIRST_ACCOUNT..FIRST_ACCOUNT + ACCOUNTS).find(|number| !given.contains(number))?;
        given.insert(number);
        Some(Account { number, given: self.clone() })
    }

    fn given(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.given.given().remove(&self.number);
    }
}
