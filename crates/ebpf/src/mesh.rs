//! The kernel's rules which functions may connect to which.

crate::skeleton!("/mesh.skel.rs");

use crate::{Error, option, queue};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject};
use skeleton::{MeshSkel, MeshSkelBuilder};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// A network namespace, by the permanent number that the kernel gave it (its cookie).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(pub(crate) u64);

impl Network {
    /// The network of a socket. It remains that of the process that made the socket.
    ///
    /// # Errors
    /// Linux before 5.14 does not have this option.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        option::get(socket, option::NETWORK).map(Self)
    }
}

/// The transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    pub(crate) fn of(number: u8) -> Option<Self> {
        [Self::Tcp, Self::Udp].into_iter().find(|transport| transport.number() == number)
    }
}

/// The kernel's decision about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not opened (`EPERM`). An open connection is ended.
    Refused,
    /// It arrives at the node.
    ToTheNode,
    /// It arrives at the node, which may splice it (see [`Mesh::splice`]).
    Direct,
}

/// The connections that a verdict applies to. The kernel refuses connections without a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// The address of the function whose jail opens the connection.
    pub caller: Ipv4Addr,
    /// Its destination address, or the first address of a block.
    pub callee: Ipv4Addr,
    /// The number of bits of the address that matter: 32 for a function's address, fewer for a
    /// block outside the mesh. A block has no rules for single ports.
    pub prefix: u8,
    /// Its destination port. `None`: any TCP port without its own rule.
    pub port: Option<u16>,
    /// Its transport protocol.
    pub transport: Transport,
}

impl Rule {
    pub(crate) fn key(&self) -> [u8; 12] {
        let mut key = [0; 12];
        let (port, [protocol, zero]) = (self.port.unwrap_or(0).to_ne_bytes(), [self.transport.number(), 0]);
        let [[a, b, c, d], [e, f, g, h]] = [self.caller.octets(), self.callee.octets()];
        let [low, high] = port;
        key.copy_from_slice(&[a, b, c, d, e, f, g, h, low, high, protocol, zero]);
        key
    }
}

impl Rule {
    /// The key in `blocks`; `None`: the rule is for one address, and its key is in `rules`.
    fn block(&self) -> Option<[u8; 12]> {
        let mut key = [0; 12];
        let [[a, b, c, d], [e, f, g, h]] = [self.caller.octets(), self.callee.octets()];
        let [p, q, r, s] = (32 + u32::from(self.prefix)).to_ne_bytes();
        key.copy_from_slice(&[p, q, r, s, a, b, c, d, e, f, g, h]);
        (self.prefix < 32).then_some(key)
    }
}

/// The kernel's maps and programs for the mesh. Unless it is pinned, they are removed when this is
/// dropped, also by the end of the process.
#[derive(Debug)]
pub struct Mesh {
    jails: MapHandle,
    rules: MapHandle,
    blocks: MapHandle,
    pub(crate) expected: MapHandle,
    pub(crate) halves: MapHandle,
    pub(crate) pairs: MapHandle,
    pub(crate) refusals: MapHandle,
    /// The kernel detaches `forward` when the last handle of this map is closed.
    _sockets: MapHandle,
    pub(crate) untold: MapHandle,
    links: Vec<(&'static str, Link)>,
    /// Why nothing is spliced.
    unspliced: Option<String>,
}

fn load(place: &mut MaybeUninit<OpenObject>) -> Result<MeshSkel<'_>, Error> {
    let mut open = MeshSkelBuilder::default().open(place)?;
    let own = Network::of(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?)?;
    if let Some(rodata) = &mut open.maps.rodata_data {
        rodata.own_network = own.0;
    }
    Ok(open.load()?)
}

/// Why this kernel splices no connections; `None`: it does.
fn unspliced() -> Option<String> {
    match queue::is_counted() {
        Ok(true) => None,
        Ok(false) => Some("this kernel does not count what is in the queue of a socket (Linux 6.13 does)".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

impl Mesh {
    /// Attaches the eBPF programs to the sockets of a control group (v2) and of all groups below
    /// it. Sockets of the calling thread's network are left alone; in all other networks, the
    /// kernel refuses every connection that no rule allows.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn attach(group: &Path) -> Result<Self, Error> {
        let group = File::open(group)?;
        let unspliced = unspliced();
        let mut place = MaybeUninit::uninit();
        let skeleton = load(&mut place)?;
        let (maps, programs) = (&skeleton.maps, &skeleton.progs);
        programs.forward.attach_sockmap(maps.sockets.as_fd().as_raw_fd())?;
        let mut links = Vec::new();
        for (name, program) in [
            ("connect4", &programs.connect4),
            ("connect6", &programs.connect6),
            ("sendmsg4", &programs.sendmsg4),
            ("sendmsg6", &programs.sendmsg6),
            ("egress", &programs.egress),
            ("established", &programs.established),
        ] {
            links.push((name, program.attach_cgroup(group.as_raw_fd())?));
        }
        Ok(Self {
            jails: MapHandle::try_from(&maps.jails)?,
            rules: MapHandle::try_from(&maps.rules)?,
            blocks: MapHandle::try_from(&maps.blocks)?,
            expected: MapHandle::try_from(&maps.expected)?,
            halves: MapHandle::try_from(&maps.halves)?,
            pairs: MapHandle::try_from(&maps.pairs)?,
            refusals: MapHandle::try_from(&maps.refusals)?,
            _sockets: MapHandle::try_from(&maps.sockets)?,
            untold: MapHandle::try_from(&maps.bss)?,
            links,
            unspliced,
        })
    }

    /// Loads the eBPF programs and attaches them to nothing. Returns why no connections would be
    /// spliced, if none would.
    ///
    /// # Errors
    /// Returns the kernel's refusal.
    pub fn probe() -> Result<Option<String>, Error> {
        load(&mut MaybeUninit::uninit())?;
        Ok(unspliced())
    }

    /// Why no connections are spliced, if none are. Then [`Verdict::Direct`] means the same as [`Verdict::ToTheNode`].
    pub fn unspliced(&self) -> Option<&str> {
        self.unspliced.as_deref()
    }

    /// Registers the jail of a function by its network. Before that, the jail's processes can only
    /// connect within their own network.
    ///
    /// # Errors
    /// The kernel has no memory, or the map of jails is full.
    pub fn admit(&self, network: Network, function: Ipv4Addr) -> Result<(), Error> {
        Ok(self.jails.update(&network.0.to_ne_bytes(), &function.octets(), MapFlags::ANY)?)
    }

    /// The function whose jail has this network.
    pub(crate) fn function(&self, network: Network) -> Result<Option<Ipv4Addr>, Error> {
        let value = self.jails.lookup(&network.0.to_ne_bytes(), MapFlags::ANY)?;
        Ok(value.and_then(|value| value.first_chunk::<4>().copied()).map(Ipv4Addr::from))
    }

    /// Removes a jail.
    pub fn dismiss(&self, network: Network) {
        // It fails if the jail was not registered, which is fine.
        let _ = self.jails.delete(&network.0.to_ne_bytes());
    }

    /// Sets a verdict.
    ///
    /// # Errors
    /// The kernel has no memory, or the map of rules is full.
    pub fn set(&self, rule: &Rule, verdict: Verdict) -> Result<(), Error> {
        let value: u8 = match verdict {
            Verdict::Refused => 0,
            Verdict::Direct if self.unspliced.is_none() => 2,
            Verdict::ToTheNode | Verdict::Direct => 1,
        };
        match rule.block() {
            Some(key) => self.blocks.update(&key, &[value], MapFlags::ANY)?,
            None => self.rules.update(&rule.key(), &[value], MapFlags::ANY)?,
        }
        Ok(())
    }

    /// Removes a verdict. The kernel refuses its connections from now on.
    pub fn unset(&self, rule: &Rule) {
        // It fails if there is no such verdict, which is fine.
        let _ = match rule.block() {
            Some(key) => self.blocks.delete(&key),
            None => self.rules.delete(&rule.key()),
        };
    }

    /// Keeps the verdicts in force after the end of this process, until the folder is removed. The
    /// folder is one of a BPF file system.
    ///
    /// # Errors
    /// Fails if the folder is of another file system, or is not empty.
    pub fn pin(&mut self, folder: &Path) -> Result<(), Error> {
        for (name, link) in &mut self.links {
            link.pin(folder.join(name))?;
        }
        Ok(())
    }
}
