//! The kernel's reports of refused connections and packets.

use crate::Error;
use crate::mesh::{Mesh, Network, Transport};
use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};
use nix::time::{ClockId, clock_gettime};
use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A connection or packet that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The network that it came from. `None`: it was a packet of a connection whose permission was
    /// withdrawn.
    pub network: Option<Network>,
    /// When.
    pub at: Instant,
    /// The function whose jail it came from, if it is known.
    pub caller: Option<Ipv4Addr>,
    /// The destination address.
    pub callee: Ipv4Addr,
    /// The destination port.
    pub port: u16,
    /// The transport protocol; `None`: neither TCP nor UDP.
    pub transport: Option<Transport>,
}

/// Reads refusals.
pub struct Refusals {
    ring: RingBuffer<'static>,
    told: mpsc::Receiver<Refusal>,
    untold: MapHandle,
}

impl std::fmt::Debug for Refusals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refusals")
    }
}

impl Mesh {
    /// A reader of all refusals from now on. There is one reader.
    ///
    /// # Errors
    /// Fails without memory.
    pub fn refusals(&self) -> Result<Refusals, Error> {
        Refusals::new(MapHandle::try_from(&self.refusals)?, MapHandle::try_from(&self.untold)?)
    }
}

impl Refusals {
    fn new(ring: MapHandle, untold: MapHandle) -> Result<Self, Error> {
        let (tell, told) = mpsc::channel();
        let mut builder = RingBufferBuilder::new();
        builder.add(&ring, move |bytes| {
            // The receiver lives as long as the ring.
            let _ = parse(bytes).map(|refusal| tell.send(refusal));
            0
        })?;
        Ok(Self { ring: builder.build()?, told, untold })
    }

    /// Waits for refusals until the time is over. Returns the refusals that arrived.
    ///
    /// # Errors
    /// Fails if the process is out of resources.
    pub fn wait(&self, most: Duration) -> Result<Vec<Refusal>, Error> {
        match self.ring.poll(most) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        Ok(self.told.try_iter().collect())
    }

    /// The number of refusals that were not reported, because there were too many at once.
    pub fn untold(&self) -> u64 {
        let value = self.untold.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        value.and_then(|value| Some(u64::from_ne_bytes(*value.first_chunk()?))).unwrap_or_default()
    }
}

fn parse(bytes: &[u8]) -> Option<Refusal> {
    // `struct refusal` of the eBPF program.
    const SIZE: usize = 32;
    let bytes: &[u8; SIZE] = bytes.first_chunk()?;
    let number = |at: usize| bytes.get(at..at + 4).and_then(|part| part.first_chunk()).copied().map(Ipv4Addr::from);
    let network = u64::from_ne_bytes(*bytes.first_chunk()?);
    let at = u64::from_ne_bytes(*bytes.get(8..16)?.first_chunk()?);
    let [port_low, port_high, protocol, _] = *bytes.get(24..28)?.first_chunk()?;
    Some(Refusal {
        network: (network != 0).then_some(Network(network)),
        at: instant(Duration::from_nanos(at)),
        caller: number(16).filter(|address| !address.is_unspecified()),
        callee: number(20)?,
        port: u16::from_ne_bytes([port_low, port_high]),
        transport: Transport::of(protocol),
    })
}

/// A time of `CLOCK_MONOTONIC`, by which `Instant` measures too.
fn instant(at: Duration) -> Instant {
    let now = Instant::now();
    let age = clock_gettime(ClockId::CLOCK_MONOTONIC).map(|clock| Duration::from(clock).saturating_sub(at));
    age.ok().and_then(|age| now.checked_sub(age)).unwrap_or(now)
}
