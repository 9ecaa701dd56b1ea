//! The capture of pods: their TCP connections arrive at the agent, in both directions.

crate::skeleton!("/pods.skel.rs");

mod callers;
mod offsets;
mod peer;
mod pins;

use crate::{Error, Network};
pub use callers::KnownCaller;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{AsRawLibbpf, Link, MapCore, MapFlags, MapHandle, Program};
pub use peer::DatagramPeer;
use skeleton::{OpenPodsSkel, PodsSkelBuilder, types};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// The mark of packets that a pod's rule leads back into the pod. It is `MARK` of `pods.bpf.c`.
pub const POD_MARK: u32 = 0x4c65_6e6f;

/// The direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// A program of the pod opens it.
    Out,
    /// It comes from outside of the pod.
    In,
}

/// Why the kernel dropped a packet of an enforced pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// A connection that begins while no agent listens.
    NoAgent = 1,
    /// TCP past the agent.
    Tcp,
    /// UDP with a peer that is not allowed.
    Udp,
    /// ICMP that TCP does not need.
    Icmp,
    /// Another protocol, such as SCTP.
    Protocol,
    /// A frame of another kind, or one that a program made itself (`AF_PACKET`).
    Frame,
    /// A fragment.
    Fragment,
    /// A packet that the pod was to forward.
    Forwarded,
    /// A packet from outside that has the pod's address as its source, or one from inside that has not.
    Spoofed,
    /// A socket of a kind that sends past the kernel's rules, such as `AF_PACKET`. It is refused.
    Family,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::NoAgent,
        Self::Tcp,
        Self::Udp,
        Self::Icmp,
        Self::Protocol,
        Self::Frame,
        Self::Fragment,
        Self::Forwarded,
        Self::Spoofed,
        Self::Family,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoAgent => "no_agent",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Protocol => "protocol",
            Self::Frame => "frame",
            Self::Fragment => "fragment",
            Self::Forwarded => "forwarded",
            Self::Spoofed => "spoofed",
            Self::Family => "socket_family",
        }
    }

    fn key(self, network: Network) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&network.0.to_ne_bytes());
        key[8..12].copy_from_slice(&(self as u32).to_ne_bytes());
        key
    }
}

/// The kernel's means against programs of enforced pods that would send past its rules for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// It refuses sockets that could, such as those of `AF_PACKET`.
    Sockets,
    /// It refuses the options of sockets by which they do. System calls of 32-bit programs are not
    /// checked.
    Options,
}

/// The kernel's state of a captured pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodState {
    /// Whether connections out of the pod are led to the agent.
    pub captured: bool,
    /// Whether the kernel drops everything that does not pass the agent.
    pub enforced: bool,
    /// The generation of the listeners that get its connections. The next agent's is one higher; those
    /// before 0 are the 255th.
    pub generation: u8,
    /// A value that the agent keeps here, for its successor.
    pub kept: u8,
}

/// The kernel's maps and programs that capture pods. All are pinned in a BPF file system, so they
/// remain in force when the process ends.
#[derive(Debug)]
pub struct Pods {
    folder: PathBuf,
    networks: MapHandle,
    listeners: MapHandle,
    own: MapHandle,
    peers: MapHandle,
    drops: MapHandle,
    agents: MapHandle,
    callers: MapHandle,
    /// Loading the programs of a pod takes megabytes for a moment: one pod at a time.
    loading: Mutex<()>,
    offsets: types::offsets,
    /// Without one, the programs that drop packets are not loaded.
    guard: Option<Guard>,
}

impl Pods {
    /// Attaches the programs for calls out to the sockets of a control group (v2) and of all groups
    /// below it. It adopts the pins of an earlier process in the folder, and replaces its programs.
    /// With a guard, it loads the programs for enforced pods, too. They need Linux 6.6.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn load(group: &Path, folder: &Path, guard: Option<Guard>) -> Result<Self, Error> {
        // Many kernels do not have this guard. The caller tries another, so libbpf need not complain.
        let said = (guard == Some(Guard::Sockets)).then(|| libbpf_rs::set_print(None));
        let loaded = Self::load_with(group, folder, guard);
        if let Some(said) = said {
            libbpf_rs::set_print(said);
        }
        loaded
    }

    fn load_with(group: &Path, folder: &Path, guard: Option<Guard>) -> Result<Self, Error> {
        let group = File::open(group)?;
        std::fs::create_dir_all(folder)?;
        let mut place = MaybeUninit::uninit();
        let mut open = PodsSkelBuilder::default().open(&mut place)?;
        let offsets = types::offsets::of_kernel()?;
        if let Some(rodata) = &mut open.maps.rodata_data {
            rodata.offsets = offsets;
        }
        for program in
            [&mut open.progs.choose, &mut open.progs.ingress, &mut open.progs.egress, &mut open.progs.loopback]
        {
            program.set_autoload(false);
        }
        open.progs.create.set_autoload(guard == Some(Guard::Sockets));
        open.progs.setsockopt.set_autoload(guard == Some(Guard::Options));
        let maps = &mut open.maps;
        for (name, map) in [
            ("networks", &mut maps.networks),
            ("listeners", &mut maps.listeners),
            ("own", &mut maps.own),
            ("peers", &mut maps.peers),
            ("drops", &mut maps.drops),
            ("agents", &mut maps.agents),
            ("callers", &mut maps.callers),
        ] {
            // It is adopted if it exists.
            map.set_pin_path(folder.join(name))?;
        }
        let skeleton = open.load()?;
        let (maps, programs) = (&skeleton.maps, &skeleton.progs);
        for (name, program) in [("connect4", &programs.connect4), ("connect6", &programs.connect6)] {
            pins::attach(&folder.join(name), program, || Ok(program.attach_cgroup(group.as_raw_fd())?))?;
        }
        let (create, setsockopt) = (folder.join("create"), folder.join("setsockopt"));
        match guard {
            Some(Guard::Sockets) => pins::attach(&create, &programs.create, || Ok(programs.create.attach_trace()?))?,
            Some(Guard::Options) => pins::attach(&setsockopt, &programs.setsockopt, || {
                Ok(programs.setsockopt.attach_cgroup(group.as_raw_fd())?)
            })?,
            None => {}
        }
        if guard == Some(Guard::Sockets) && setsockopt.exists() {
            std::fs::remove_file(setsockopt)?;
        }
        Ok(Self {
            folder: folder.to_owned(),
            networks: MapHandle::try_from(&maps.networks)?,
            listeners: MapHandle::try_from(&maps.listeners)?,
            own: MapHandle::try_from(&maps.own)?,
            peers: MapHandle::try_from(&maps.peers)?,
            drops: MapHandle::try_from(&maps.drops)?,
            agents: MapHandle::try_from(&maps.agents)?,
            callers: MapHandle::try_from(&maps.callers)?,
            loading: Mutex::default(),
            offsets,
            guard,
        })
    }

    /// Attaches the programs of a pod to its network, and to the interfaces with these numbers. The
    /// calling thread is in that network. Programs that an earlier process has attached are replaced.
    /// Only an enforced pod needs those for packets that leave: the kernel takes milliseconds for each.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn attach(
        &self,
        pod: &str,
        network: Network,
        namespace: BorrowedFd<'_>,
        interfaces: &[u32],
        enforced: bool,
    ) -> Result<(), Error> {
        /// The loopback interface has this number in every network namespace.
        const LOOPBACK: u32 = 1;
        let loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let mut place = MaybeUninit::uninit();
        let mut open = PodsSkelBuilder::default().open(&mut place)?;
        self.share(&mut open, enforced)?;
        if let Some(rodata) = &mut open.maps.rodata_data {
            rodata.network = network.0;
            rodata.offsets = self.offsets;
        }
        let skeleton = open.load()?;
        drop(loading);
        for reason in DropReason::ALL {
            // It fails if the count exists, which is fine.
            let _ = self.drops.update(&reason.key(network), &0_u64.to_ne_bytes(), MapFlags::NO_EXIST);
        }
        let folder = pins::folder(&self.folder, pod, network);
        std::fs::create_dir_all(&folder)?;
        let programs = &skeleton.progs;
        if self.guard.is_some() {
            let both = [("ingress", &programs.ingress), ("egress", &programs.egress)];
            let needed = if enforced { &both[..] } else { &both[..1] };
            for &interface in interfaces.iter().filter(|&&interface| interface != LOOPBACK) {
                for (name, program) in needed.iter().copied() {
                    let pin = folder.join(format!("{name}{interface}"));
                    pins::attach(&pin, program, || attach_interface(program, interface))?;
                }
            }
            if enforced {
                pins::attach(&folder.join("loopback"), &programs.loopback, || {
                    attach_interface(&programs.loopback, LOOPBACK)
                })?;
            }
        }
        pins::attach(&folder.join(pins::CHOOSE), &programs.choose, || {
            Ok(programs.choose.attach_netns(namespace.as_raw_fd())?)
        })
    }

    /// The programs of a pod use the maps that all have.
    fn share(&self, open: &mut OpenPodsSkel<'_>, enforced: bool) -> Result<(), Error> {
        let (maps, programs) = (&mut open.maps, &mut open.progs);
        for (map, shared) in [
            (&mut maps.networks, &self.networks),
            (&mut maps.listeners, &self.listeners),
            (&mut maps.own, &self.own),
            (&mut maps.peers, &self.peers),
            (&mut maps.drops, &self.drops),
            (&mut maps.agents, &self.agents),
            (&mut maps.callers, &self.callers),
        ] {
            map.reuse_fd(shared.as_fd())?;
        }
        programs.connect4.set_autoload(false);
        programs.connect6.set_autoload(false);
        programs.create.set_autoload(false);
        programs.setsockopt.set_autoload(false);
        programs.ingress.set_autoload(self.guard.is_some());
        for program in [&mut programs.egress, &mut programs.loopback] {
            program.set_autoload(self.guard.is_some() && enforced);
        }
        Ok(())
    }

    /// The guard of enforced pods.
    pub fn guard(&self) -> Option<Guard> {
        self.guard
    }

    /// The state of a network; `None`: the kernel knows nothing of it.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn state(&self, network: Network) -> Result<Option<PodState>, Error> {
        let value = self.networks.lookup(&network.0.to_ne_bytes(), MapFlags::ANY)?;
        Ok(value.and_then(|value| {
            let [captured, enforced, generation, kept] = *value.first_chunk()?;
            Some(PodState { captured: captured != 0, enforced: enforced != 0, generation, kept })
        }))
    }

    /// Changes the state of a network.
    ///
    /// # Errors
    /// The kernel has no memory, or the map is full.
    pub fn set_state(&self, network: Network, state: PodState) -> Result<(), Error> {
        let value = [u8::from(state.captured), u8::from(state.enforced), state.generation, state.kept];
        Ok(self.networks.update(&network.0.to_ne_bytes(), &value, MapFlags::ANY)?)
    }

    /// Adds addresses of a pod. Connections of the pod to them are not captured.
    ///
    /// # Errors
    /// The kernel has no memory, or the map is full.
    pub fn add_addresses(&self, network: Network, addresses: &[IpAddr]) -> Result<(), Error> {
        for &address in addresses {
            self.own.update(&own_key(network, address), &[1], MapFlags::ANY)?;
        }
        Ok(())
    }

    /// Whether an address is one of the pod's, as [`Pods::add_addresses`] has set them.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn has_address(&self, network: Network, address: IpAddr) -> Result<bool, Error> {
        Ok(self.own.lookup(&own_key(network, address), MapFlags::ANY)?.is_some())
    }

    /// Lets a listening socket of a network have its connections while its state has this generation.
    /// The kernel removes it when the socket is closed.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn listen(
        &self,
        network: Network,
        generation: u8,
        side: Side,
        is_ipv6: bool,
        listener: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let socket = u64::try_from(listener.as_raw_fd()).unwrap_or(u64::MAX);
        let key = listener_key(network, generation, side, is_ipv6);
        Ok(self.listeners.update(&key, &socket.to_ne_bytes(), MapFlags::ANY)?)
    }

    /// Has the kernel know a socket as one of the agent's. Sockets that a listener accepts are known
    /// if the listener is.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn add_socket(&self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        Ok(self.agents.update(&socket.as_raw_fd().to_ne_bytes(), &[1], MapFlags::ANY)?)
    }

    /// Sets the peers with which an enforced pod may exchange datagrams.
    ///
    /// # Errors
    /// The kernel has no memory, or the map is full.
    pub fn set_peers(&self, network: Network, peers: &[DatagramPeer]) -> Result<(), Error> {
        let wanted: Vec<_> = peers.iter().map(|peer| peer.key(network)).collect();
        for key in &wanted {
            self.peers.update(key, &[1], MapFlags::ANY)?;
        }
        let old = self
            .peers
            .keys()
            .filter(|key| DatagramPeer::is_of(key, network) && !wanted.iter().any(|new| new == &key[..]));
        for key in old.collect::<Vec<_>>() {
            self.peers.delete(&key)?;
        }
        Ok(())
    }

    /// How many packets of a pod were dropped for a reason.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn dropped(&self, network: Network, reason: DropReason) -> Result<u64, Error> {
        let value = self.drops.lookup(&reason.key(network), MapFlags::ANY)?;
        Ok(value.and_then(|value| value.first_chunk().copied()).map_or(0, u64::from_ne_bytes))
    }

    /// The pods whose programs are attached, with their networks. `false`: the network is gone.
    ///
    /// # Errors
    /// Fails if the folder cannot be read.
    pub fn attached(&self) -> io::Result<Vec<(String, Network, bool)>> {
        pins::list(&self.folder)
    }

    /// Takes the listeners of a network away, those of all generations.
    pub fn unlisten(&self, network: Network) {
        for generation in 0..=u8::MAX {
            for side in [Side::Out, Side::In] {
                for is_ipv6 in [false, true] {
                    // It fails if there is none, which is fine.
                    let _ = self.listeners.delete(&listener_key(network, generation, side, is_ipv6));
                }
            }
        }
    }

    /// Detaches the programs of a pod and removes all about it.
    ///
    /// # Errors
    /// Fails if a pin cannot be removed.
    pub fn detach(&self, pod: &str, network: Network) -> Result<(), Error> {
        self.unlisten(network);
        pins::remove(&pins::folder(&self.folder, pod, network))?;
        self.set_peers(network, &[])?;
        for key in self.own.keys().filter(|key| key.starts_with(&network.0.to_ne_bytes())).collect::<Vec<_>>() {
            self.own.delete(&key)?;
        }
        for reason in DropReason::ALL {
            let _ = self.drops.delete(&reason.key(network));
        }
        let _ = self.networks.delete(&network.0.to_ne_bytes());
        Ok(())
    }
}

/// The four words of an address in network order. An IPv4 address has its form of IPv6.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn own_key(network: Network, address: IpAddr) -> [u8; 24] {
    let mut key = [0; 24];
    key[..8].copy_from_slice(&network.0.to_ne_bytes());
    key[8..].copy_from_slice(&octets(address));
    key
}

fn listener_key(network: Network, generation: u8, side: Side, is_ipv6: bool) -> [u8; 16] {
    let family = if is_ipv6 { libc::AF_INET6 } else { libc::AF_INET };
    let mut key = [0; 16];
    key[..8].copy_from_slice(&network.0.to_ne_bytes());
    key[8] = side as u8;
    key[9] = generation;
    key[12..].copy_from_slice(&family.to_ne_bytes());
    key
}

#[expect(unsafe_code, reason = "libbpf-rs does not offer this kind of link yet")]
fn attach_interface(program: &Program<'_>, interface: u32) -> Result<Link, Error> {
    let interface = i32::try_from(interface).map_err(io::Error::other)?;
    // SAFETY: the program is a loaded one of libbpf and outlives the call. Options are optional.
    let link = unsafe {
        libbpf_sys::bpf_program__attach_tcx(program.as_libbpf_object().as_ptr(), interface, std::ptr::null())
    };
    let link = NonNull::new(link).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: libbpf has just made it, and this is its only owner.
    Ok(unsafe { Link::from_ptr(link) })
}
