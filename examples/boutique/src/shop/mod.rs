//! The shop's ten functions.
//!
//! The pattern of calls between the functions, including their number and content, is that of the
//! Online Boutique, a well-known demonstration of microservices. Code, messages and products are
//! this shop's own.

pub(crate) mod ad;
pub(crate) mod cart;
pub(crate) mod catalog;
pub(crate) mod checkout;
pub(crate) mod currency;
pub(crate) mod email;
pub(crate) mod frontend;
pub(crate) mod money;
pub(crate) mod page;
pub(crate) mod payment;
pub(crate) mod products;
pub(crate) mod recommendation;
pub(crate) mod shipping;

use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of parcels, payments and orders.
#[derive(Default)]
pub(crate) struct Numbers(AtomicU64);

impl Numbers {
    /// A new number, which does not reveal how many there were.
    pub(crate) fn next(&self, prefix: &str) -> String {
        // Multiplication by an odd number is a bijection.
        let number = self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{prefix}-{number:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_comes_twice() {
        let numbers = Numbers::default();
        let many: std::collections::HashSet<_> = (0..1000).map(|_| numbers.next("order")).collect();
        assert_eq!(many.len(), 1000);
    }
}
