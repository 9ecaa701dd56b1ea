//! Operating system accounts under which instances run.

use leno_model::FunctionId;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of accounts, and so of namespaces that can have one.
const MAX_ACCOUNTS: u32 = 10_000;

/// Chooses the account of each instance. Clones give the same accounts.
#[derive(Clone, Debug, Default)]
pub struct Accounts(Option<Arc<AccountTable>>);

#[derive(Debug)]
struct AccountTable {
    first: u32,
    /// User IDs by namespace. An account is never reassigned: files that a namespace has written
    /// must not become another's.
    accounts: Mutex<BTreeMap<String, u32>>,
}

impl Accounts {
    /// All instances run under the node's account.
    pub fn node() -> Self {
        Self::default()
    }

    /// Each namespace gets its own account, with numbers from `first` on. Only root can start
    /// programs under other accounts.
    pub fn per_namespace(first: u32) -> Self {
        Self(Some(Arc::new(AccountTable { first, accounts: Mutex::default() })))
    }

    /// User ID, and ID of the only group, of a function's instances; `None`: the node's account.
    pub(crate) fn of(&self, function: &FunctionId) -> io::Result<Option<u32>> {
        let Some(given) = &self.0 else { return Ok(None) };
        let namespace = function.namespace.to_string();
        let mut accounts = given.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get(&namespace) {
            return Ok(Some(*account));
        }
        // The hash gives a namespace the same account after a restart, unless another namespace has taken it.
        let wanted = hash(&namespace) % MAX_ACCOUNTS;
        let all = (0..MAX_ACCOUNTS).map(|step| given.first.saturating_add((wanted + step) % MAX_ACCOUNTS));
        let free = all.into_iter().find(|account| !accounts.values().any(|taken| taken == account));
        let account =
            free.ok_or_else(|| io::Error::other(format!("no account is left: {MAX_ACCOUNTS} namespaces have one")))?;
        accounts.insert(namespace, account);
        Ok(Some(account))
    }
}

/// FNV-1a, which does not change between versions.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_keep_their_accounts_and_share_none() {
        let accounts = Accounts::per_namespace(70_000);
        let of = |namespace: usize| {
            let function = FunctionId::new(&format!("n{namespace}"), "f").unwrap();
            accounts.of(&function).map(|account| account.unwrap())
        };
        let first: Vec<u32> = (0..2000).map(|namespace| of(namespace).unwrap()).collect();
        let mut distinct = first.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 2000);
        assert!(distinct.iter().all(|account| (70_000..80_000).contains(account)));
        assert!((0..2000).all(|namespace| of(namespace).unwrap() == first[namespace]));
        let again = Accounts::per_namespace(70_000).of(&FunctionId::new("n0", "f").unwrap());
        assert_eq!(again.unwrap(), Some(first[0]), "the same after a restart");

        let full = Accounts::per_namespace(70_000);
        let function = |namespace: u32| FunctionId::new(&format!("n{namespace}"), "f").unwrap();
        let given = AccountTable {
            first: 70_000,
            accounts: Mutex::new((0..MAX_ACCOUNTS).map(|n| (format!("n{n}"), 70_000 + n)).collect()),
        };
        let full = Accounts(full.0.map(|_| Arc::new(given)));
        assert_eq!(full.of(&function(7)).unwrap(), Some(70_007));
        assert!(full.of(&function(MAX_ACCOUNTS)).is_err());
        assert_eq!(Accounts::node().of(&function(0)).unwrap(), None);
    }
}
