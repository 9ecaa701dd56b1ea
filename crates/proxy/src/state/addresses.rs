//! The addresses by which instances in jails call functions.
//!
//! They have a meaning only in jails, where the node receives all traffic to every address. They
//! are from a range that the machine's networks do not use (RFC 6598).

use leno_model::FunctionId;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

/// The first address. No function has it.
const BASE: u32 = 0x6440_0000;
/// The number of addresses: 100.64.0.0/10.
const MOST: usize = 1 << 22;

/// Assigns each function an address, which it keeps for the life of the node.
#[derive(Debug, Default)]
pub struct Addresses(Mutex<AddressTable>);

#[derive(Debug, Default)]
struct AddressTable {
    by_function: HashMap<FunctionId, Ipv4Addr>,
    /// In the order of their addresses.
    functions: Vec<FunctionId>,
}

impl Addresses {
    /// The address of a function. `None`: all addresses are assigned.
    pub fn of(&self, function: &FunctionId) -> Option<Ipv4Addr> {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = given.by_function.get(function) {
            return Some(*address);
        }
        let number = u32::try_from(given.functions.len() + 1).ok().filter(|number| (*number as usize) < MOST)?;
        let address = Ipv4Addr::from(BASE + number);
        given.functions.push(function.clone());
        given.by_function.insert(function.clone(), address);
        Some(address)
    }

    /// The function that has an address.
    pub fn function(&self, address: Ipv4Addr) -> Option<FunctionId> {
        let place = u32::from(address).checked_sub(BASE + 1)?;
        let given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given.functions.get(place as usize).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_has_one_and_keeps_it() {
        let addresses = Addresses::default();
        let id = |name| FunctionId::new("shop", name).unwrap();
        let first = addresses.of(&id("cart")).unwrap();
        let second = addresses.of(&id("stock")).unwrap();
        assert_eq!((first.to_string().as_str(), second.to_string().as_str()), ("100.64.0.1", "100.64.0.2"));
        assert_eq!(addresses.of(&id("cart")), Some(first));
        assert_eq!(addresses.function(second), Some(id("stock")));
        for nobody in ["100.64.0.0", "100.64.0.3", "10.0.0.1", "203.0.113.1"] {
            assert_eq!(addresses.function(nobody.parse().unwrap()), None, "{nobody}");
        }
    }
}
