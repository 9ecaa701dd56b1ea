//! User and group IDs of jails on the machine.

use crate::user::CONTAINER_IDS;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first machine ID for jails of processes, and the number of these IDs. They are above the IDs
/// that systemd gives to containers.
pub(crate) const FIRST_ACCOUNT: u32 = 0x7000_0000;
const ACCOUNTS: u32 = 0x1_0000;
/// The first machine ID for containers, and the maximum number of containers. The IDs end where
/// systemd's range for foreign images begins.
const FIRST_RANGE: u32 = FIRST_ACCOUNT + ACCOUNTS;
const RANGES: u32 = (0x7ffe_0000 - FIRST_RANGE) / CONTAINER_IDS;

/// The IDs that a process may give to its jails. During a hot restart, the parent and the child
/// have different halves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Half {
    /// The half of a process that was not started by a hot restart.
    #[default]
    First,
    /// The other half, which the child of a hot restart has.
    Second,
}

impl Half {
    /// The opposite half.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// Ranges of IDs on the machine. No two jails have the same range at a time.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    first: u32,
    length: u32,
    number: u32,
    given: Arc<Mutex<BTreeSet<u32>>>,
}

/// The IDs of one jail, until this is dropped.
#[derive(Debug)]
pub(crate) struct Account {
    /// The first ID of the range, or the only one.
    pub first: u32,
    accounts: Accounts,
}

impl Accounts {
    /// One ID for each jail, as both user and group.
    pub(crate) fn of_processes(half: Half) -> Self {
        Self::half(half, FIRST_ACCOUNT, 1, ACCOUNTS)
    }

    /// [`CONTAINER_IDS`] for each jail.
    pub(crate) fn of_containers(half: Half) -> Self {
        Self::half(half, FIRST_RANGE, CONTAINER_IDS, RANGES)
    }

    fn half(half: Half, first: u32, length: u32, both: u32) -> Self {
        let number = both / 2;
        let first = match half {
            Half::First => first,
            Half::Second => first + number * length,
        };
        Self { first, length, number, given: Arc::default() }
    }

    pub(crate) fn take(&self) -> Option<Account> {
        let mut given = self.given();
        let first = (0..self.number).map(|index| self.first + index * self.length).find(|id| !given.contains(id))?;
        given.insert(first);
        Some(Account { first, accounts: self.clone() })
    }

    fn given(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.accounts.given().remove(&self.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_jails_have_an_id_in_common() {
        let (processes, containers) = (Accounts::of_processes(Half::First), Accounts::of_containers(Half::First));
        let (first, second) = (containers.take().unwrap(), containers.take().unwrap());
        assert_eq!(second.first - first.first, CONTAINER_IDS);
        let processes = processes.take().unwrap();
        assert!(processes.first + ACCOUNTS <= first.first);
        let freed = first.first;
        drop(first);
        assert_eq!(containers.take().unwrap().first, freed);
    }

    #[test]
    fn two_processes_of_a_node_give_different_ids() {
        let both: [fn(Half) -> Accounts; 2] = [Accounts::of_processes, Accounts::of_containers];
        for of in both {
            let (first, second) = (of(Half::First), of(Half::First.other()));
            let last = first.first + (first.number - 1) * first.length;
            assert_eq!((last + first.length, first.number), (second.first, second.number));
        }
        let end = Accounts::of_containers(Half::Second);
        assert!(end.first + end.number * end.length <= 0x7ffe_0000);
    }
}
