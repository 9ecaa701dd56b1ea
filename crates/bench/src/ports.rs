//! Free ports of this machine, for the programs that are measured.

use std::net::{SocketAddr, TcpListener};

/// Addresses of this machine without a listener. The kernel does not hand out the same again soon.
pub(crate) fn free_addresses<const COUNT: usize>() -> anyhow::Result<[SocketAddr; COUNT]> {
    let mut listeners = Vec::new();
    let mut addresses = [SocketAddr::from(([127, 0, 0, 1], 0)); COUNT];
    for address in &mut addresses {
        let listener = TcpListener::bind(*address)?;
        *address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(addresses)
}
