//! Arithmetic with blocks of addresses.

use leno_model::special_address::special_around;
use leno_policy::spec::Cidr;
use std::net::IpAddr;

/// Whether all of `inner` is in `outer`.
pub(super) fn contains(outer: &Cidr, inner: &Cidr) -> bool {
    outer.prefix <= inner.prefix && outer.contains(inner.address)
}

/// Whether two blocks have an address in common.
pub(super) fn overlap(one: &Cidr, other: &Cidr) -> bool {
    contains(one, other) || contains(other, one)
}

/// A block without some others, as blocks that have no address in common. Special addresses are
/// left out unless all of `block` is special in the same way: a piece of a wide block must not
/// become one that admits special addresses by itself.
pub(super) fn without(block: Cidr, holes: &[Cidr]) -> Vec<Cidr> {
    let mut rest = pieces(block, holes);
    rest.retain(|piece| special_around(*piece).all(|special| contains(&special, &block)));
    rest
}

/// A block without some others, including special addresses.
pub(super) fn pieces(block: Cidr, holes: &[Cidr]) -> Vec<Cidr> {
    holes.iter().fold(vec![block], |rest, hole| rest.into_iter().flat_map(|block| minus(block, hole)).collect())
}

fn minus(block: Cidr, hole: &Cidr) -> Vec<Cidr> {
    if contains(hole, &block) {
        return Vec::new();
    }
    if !contains(&block, hole) {
        return vec![block];
    }
    let (mut rest, mut with) = (Vec::new(), block);
    while with.prefix < hole.prefix {
        let [low, high] = halves(with);
        let (half, other) = if low.contains(hole.address) { (low, high) } else { (high, low) };
        rest.push(other);
        with = half;
    }
    rest
}

/// Both halves of a block that has more than one address.
fn halves(block: Cidr) -> [Cidr; 2] {
    let prefix = block.prefix + 1;
    let high = match block.address {
        IpAddr::V4(first) => IpAddr::from((first.to_bits() | (1 << (32 - prefix))).to_be_bytes()),
        IpAddr::V6(first) => IpAddr::from((first.to_bits() | (1 << (128 - prefix))).to_be_bytes()),
    };
    [Cidr { prefix, ..block }, Cidr { address: high, prefix }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block() -> impl Strategy<Value = Cidr> {
        (any::<u32>(), 0..=32u8).prop_map(|(bits, prefix)| {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            Cidr { address: IpAddr::from((bits & mask).to_be_bytes()), prefix }
        })
    }

    fn within(block: Cidr, salt: u32) -> IpAddr {
        let IpAddr::V4(first) = block.address else { unreachable!() };
        let rest = u32::MAX.checked_shr(u32::from(block.prefix)).unwrap_or(0);
        IpAddr::from((first.to_bits() | (salt & rest)).to_be_bytes())
    }

    proptest! {
        #[test]
        fn what_is_left_is_in_the_block_and_in_no_hole(
            block in block(),
            holes in proptest::collection::vec(block(), 0..6),
            nested in proptest::collection::vec((any::<u32>(), 0..=32u8), 0..4),
            probes in proptest::collection::vec(any::<u32>(), 1..50),
        ) {
            let nested = nested.into_iter().map(|(salt, more)| {
                let prefix = block.prefix.saturating_add(more).min(32);
                let IpAddr::V4(address) = within(block, salt) else { unreachable!() };
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                Cidr { address: IpAddr::from((address.to_bits() & mask).to_be_bytes()), prefix }
            });
            let holes: Vec<Cidr> = holes.into_iter().chain(nested).collect();
            let pieces = without(block, &holes);
            let own_special: Vec<Cidr> = special_around(block).collect();
            for probe in probes.iter().map(|salt| within(block, *salt)) {
                let count = pieces.iter().filter(|piece| piece.contains(probe)).count();
                prop_assert!(count <= 1, "pieces overlap");
                let in_hole = holes.iter().any(|hole| hole.contains(probe));
                let here = Cidr { address: probe, prefix: 32 };
                let special = special_around(here).any(|special| !own_special.contains(&special));
                prop_assert!(!in_hole || count == 0);
                prop_assert!(in_hole || special || count == 1);
            }
            for piece in &pieces {
                prop_assert!(contains(&block, piece));
                prop_assert!(special_around(*piece).all(|special| own_special.contains(&special)));
            }
        }
    }
}
