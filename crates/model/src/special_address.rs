//! Special addresses: addresses to which no name of the public internet has to lead, and the
//! addresses of the mesh's own machines.

use leno_policy::spec::Cidr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 addresses that are not assigned on the public internet, or that every machine has.
const SPECIAL_V4: [(Ipv4Addr, u8); 11] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Addresses of the metadata services of machines, which give the machine's credentials to each
/// client that can connect.
const METADATA_V4: [(Ipv4Addr, u8); 4] = [
    // Link-local addresses. Most clouds use 169.254.169.254.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    // Azure.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    // Alibaba Cloud.
    (Ipv4Addr::new(100, 100, 100, 200), 32),
    // Oracle Cloud.
    (Ipv4Addr::new(192, 0, 0, 192), 32),
];

/// The same for IPv6.
const METADATA_V6: [(Ipv6Addr, u8); 7] = [
    // Link-local addresses.
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    // AWS: metadata of machines, and credentials of pods.
    (Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254), 128),
    (Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0023), 128),
    // Google Cloud.
    (Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254), 128),
    // Oracle Cloud.
    (Ipv6Addr::new(0xfd00, 0x00c1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128),
    // Scaleway.
    (Ipv6Addr::new(0xfd00, 0x0042, 0, 0, 0, 0, 0, 0x0042), 128),
    // Linode.
    (Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 0x0001), 128),
];

/// The same for IPv6: all addresses outside `2000::/3`, and those within that embed an IPv4 address
/// or are reserved.
const SPECIAL_V6: [(Ipv6Addr, u8); 12] = [
    (Ipv6Addr::UNSPECIFIED, 8),
    (NAT64, 32),
    (Ipv6Addr::new(0x0100, 0, 0, 0, 0, 0, 0, 0), 8),
    (Ipv6Addr::new(0x0200, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0x0400, 0, 0, 0, 0, 0, 0, 0), 6),
    (Ipv6Addr::new(0x0800, 0, 0, 0, 0, 0, 0, 0), 5),
    (Ipv6Addr::new(0x1000, 0, 0, 0, 0, 0, 0, 0), 4),
    (TEREDO, 23),
    (SIX_TO_FOUR, 16),
    (Ipv6Addr::new(0x4000, 0, 0, 0, 0, 0, 0, 0), 2),
    (Ipv6Addr::new(0x8000, 0, 0, 0, 0, 0, 0, 0), 1),
    (Ipv6Addr::new(0x2001, 0x0db8, 0, 0, 0, 0, 0, 0), 32),
];

const TRANSLATED: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0);
const NAT64_LOCAL: Ipv6Addr = Ipv6Addr::new(0x0064, 0xff9b, 1, 0, 0, 0, 0, 0);
const NAT64: Ipv6Addr = Ipv6Addr::new(0x0064, 0xff9b, 0, 0, 0, 0, 0, 0);
const TEREDO: Ipv6Addr = Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0);
const SIX_TO_FOUR: Ipv6Addr = Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0);

/// The block of one address.
pub fn single(address: IpAddr) -> Cidr {
    Cidr { address, prefix: if address.is_ipv4() { 32 } else { 128 } }
}

fn block<A: Into<IpAddr> + Copy>((first, prefix): &(A, u8)) -> Cidr {
    Cidr { address: (*first).into(), prefix: *prefix }
}

/// The blocks of metadata services with an address, without embedded IPv4 addresses.
fn metadata(address: IpAddr) -> impl Iterator<Item = Cidr> {
    let all = METADATA_V4.iter().map(block).chain(METADATA_V6.iter().map(block));
    all.filter(move |block| block.contains(address))
}

/// The constant special blocks with an address.
fn fixed(address: IpAddr) -> impl Iterator<Item = Cidr> {
    let all = SPECIAL_V4.iter().map(block).chain(SPECIAL_V6.iter().map(block));
    all.filter(move |block| block.contains(address)).chain(metadata(address))
}

/// The special blocks with an address. An IPv6 address that embeds an IPv4 address is also in the
/// blocks that embed that one's. A loopback address is in the loopback block only, which belongs to
/// this machine.
pub fn special(address: IpAddr, is_machine: &dyn Fn(IpAddr) -> bool) -> Vec<Cidr> {
    let machine = |address: IpAddr| (!address.is_loopback() && is_machine(address)).then(|| single(address));
    let mut blocks: Vec<Cidr> = fixed(address).chain(machine(address)).collect();
    if let IpAddr::V6(v6) = address {
        blocks.extend(metadata_in_nat64(v6));
        if let Some((v4, before)) = embedded(v6) {
            let v4 = IpAddr::V4(v4);
            let within = fixed(v4).chain(machine(v4));
            blocks.extend(within.map(|block| Cidr { address, prefix: before + block.prefix }));
        }
    }
    blocks
}

/// The IPv4 address in an IPv6 address, and the number of bits before it: IPv4-compatible and
/// IPv4-translated (RFC 2765) addresses, NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056) and Teredo
/// (RFC 4380).
fn embedded(address: Ipv6Addr) -> Option<(Ipv4Addr, u8)> {
    let bits = address.to_bits();
    let begins = |with: Ipv6Addr, prefix: u32| (bits ^ with.to_bits()) >> (128 - prefix) == 0;
    let last = bits as u32;
    if begins(Ipv6Addr::UNSPECIFIED, 96) || begins(TRANSLATED, 96) || begins(NAT64, 32) {
        Some((Ipv4Addr::from_bits(last), 96))
    } else if begins(SIX_TO_FOUR, 16) {
        Some((Ipv4Addr::from_bits((bits >> 80) as u32), 16))
    } else if begins(TEREDO, 32) {
        Some((Ipv4Addr::from_bits(!last), 96))
    } else {
        None
    }
}

/// The blocks of metadata services with an address by the forms of NAT64 (RFC 6052) that have the
/// IPv4 address further to the left. Operators choose among them in `64:ff9b:1::/48` (RFC 8215).
fn metadata_in_nat64(address: Ipv6Addr) -> impl Iterator<Item = Cidr> {
    // Bits 64 to 71 belong to no IPv4 address.
    let bits = address.to_bits();
    let left = (bits >> 64) << 64 | (bits << 72) >> 64;
    let is_local = (bits ^ NAT64_LOCAL.to_bits()) >> 80 == 0;
    [48, 56, 64].into_iter().filter(move |_| is_local).flat_map(move |before: u8| {
        let v4 = Ipv4Addr::from_bits((left >> (96 - before)) as u32);
        metadata(v4.into()).map(move |block| {
            let end = before + block.prefix;
            Cidr { address: address.into(), prefix: if end > 64 { end + 8 } else { end } }
        })
    })
}

/// The blocks of metadata services that contain a whole block, also by an embedded IPv4 address.
fn metadata_around(block: Cidr) -> Vec<Cidr> {
    let mut around: Vec<Cidr> = metadata(block.address).collect();
    if let IpAddr::V6(v6) = block.address {
        around.extend(metadata_in_nat64(v6));
        if let Some((v4, before)) = embedded(v6) {
            let within = metadata(v4.into());
            around.extend(within.map(|inner| Cidr { address: block.address, prefix: before + inner.prefix }));
        }
    }
    around.retain(|outer| outer.prefix <= block.prefix);
    around
}

/// The block of metadata services that contains a whole block and that `list` does not mean. `list`
/// means it by a block within it that contains the whole block.
pub fn unlisted_metadata(list: &[Cidr], block: Cidr) -> Option<Cidr> {
    let listed = |around: &Cidr| {
        let means = |listed: &Cidr| listed.prefix >= around.prefix && around.contains(listed.address);
        list.iter().any(|one| one.prefix <= block.prefix && one.contains(block.address) && means(one))
    };
    metadata_around(block).into_iter().find(|around| !listed(around))
}

/// The special blocks that contain a whole block.
pub fn special_around(block: Cidr) -> impl Iterator<Item = Cidr> {
    fixed(block.address).filter(move |special| special.prefix <= block.prefix)
}

/// Whether `list` admits an address: one of its blocks contains it. For each special block with the
/// address, `list` must also have a block within that block that contains the address.
pub fn admits(list: &[Cidr], address: IpAddr, is_machine: &dyn Fn(IpAddr) -> bool) -> bool {
    let mut with_it = list.iter().filter(|listed| listed.contains(address)).peekable();
    if with_it.peek().is_none() {
        return false;
    }
    let meant =
        |block: Cidr| with_it.clone().any(|listed| listed.prefix >= block.prefix && block.contains(listed.address));
    special(address, is_machine).into_iter().all(meant)
}
