//! The rule and the route that lead marked packets back into a pod, and the addresses of its
//! interfaces (rtnetlink). The caller is in the pod's network.

use crate::error::{CaptureError, Explain};
use leno_ebpf::POD_MARK;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// The routing table of captured connections.
const TABLE: u32 = 0x4c65;
/// The table of local addresses, which the kernel asks first.
const LOCAL: u32 = 255;
/// Rules with this number come first.
const FIRST: u32 = 0;
/// The loopback interface has this number in every network namespace.
const LOOPBACK: u32 = 1;

/// The kernel's routing of a network.
pub(crate) struct Routes {
    kernel: Socket,
}

impl Routes {
    pub(crate) fn open() -> Result<Self, CaptureError> {
        let open = || {
            let mut kernel = Socket::new(NETLINK_ROUTE)?;
            kernel.bind_auto()?;
            kernel.connect(&SocketAddr::new(0, 0))?;
            Ok(Self { kernel })
        };
        open().explain("a netlink socket")
    }

    /// The numbers of the interfaces.
    pub(crate) fn interfaces(&self) -> Result<Vec<u32>, CaptureError> {
        let all = self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default())).explain("listing interfaces")?;
        let number = |message| match message {
            RouteNetlinkMessage::NewLink(link) => Some(link.header.index),
            _ => None,
        };
        Ok(all.into_iter().filter_map(number).collect())
    }

    /// The addresses of all interfaces but the loopback interface.
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>, CaptureError> {
        let all = self.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default())).explain("listing addresses")?;
        Ok(all.into_iter().filter_map(address).collect())
    }

    /// Has marked packets arrive at the loopback interface. `source` is the address of sockets that
    /// have none yet.
    pub(crate) fn lead_back(&self, source: IpAddr) -> Result<(), CaptureError> {
        let family = family(&source);
        self.change(RouteNetlinkMessage::NewRoute(route(source)), NLM_F_CREATE | NLM_F_REPLACE)
            .explain("adding a route")?;
        if !self.rules(&family)?.iter().any(is_own) {
            self.change(RouteNetlinkMessage::NewRule(own_rule(&family)), NLM_F_CREATE).explain("adding a rule")?;
        }
        // The kernel adds rules after those with the same number, so the own one is after the one of
        // local addresses. By that, packets to the pod's own address would seem to come by the
        // interface of that address. A copy of it comes after the own one, then the first one goes.
        loop {
            let rules = self.rules(&family)?;
            let Some(own) = rules.iter().position(is_own) else { return Ok(()) };
            let (before, after) = (&rules[..own], &rules[own..]);
            if !before.iter().any(is_local) {
                return Ok(());
            }
            let local = || RouteNetlinkMessage::NewRule(local_rule(&family));
            if !after.iter().any(is_local) {
                self.change(local(), NLM_F_CREATE).explain("moving the rule of local addresses")?;
            }
            let first = RouteNetlinkMessage::DelRule(local_rule(&family));
            self.change(first, 0).explain("moving the rule of local addresses")?;
        }
    }

    /// Takes [`Routes::lead_back`] back. Routes and rules that are gone already are fine.
    pub(crate) fn undo(&self) -> Result<(), CaptureError> {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            while self.rules(&family)?.iter().any(is_own) {
                let rule = RouteNetlinkMessage::DelRule(own_rule(&family));
                self.change(rule, 0).explain("removing a rule")?;
            }
            let mut route = route(Ipv4Addr::LOCALHOST.into());
            route.header.address_family = family;
            route.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::PrefSource(_)));
            match self.change(RouteNetlinkMessage::DelRoute(route), 0) {
                Err(error) if error.raw_os_error() != Some(NO_ROUTE) => return Err(error).explain("removing a route"),
                _ => {}
            }
        }
        Ok(())
    }

    fn rules(&self, family: &AddressFamily) -> Result<Vec<RuleMessage>, CaptureError> {
        let mut asked = RuleMessage::default();
        asked.header.family = *family;
        let all = self.dump(RouteNetlinkMessage::GetRule(asked)).explain("listing rules")?;
        let rule = |message| match message {
            RouteNetlinkMessage::NewRule(rule) => Some(rule),
            _ => None,
        };
        Ok(all.into_iter().filter_map(rule).collect())
    }

    fn change(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(message, NLM_F_ACK | flags)?;
        self.receive(|_| ())
    }

    fn dump(&self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(message, NLM_F_DUMP)?;
        let mut all = Vec::new();
        self.receive(|message| all.push(message))?;
        Ok(all)
    }

    fn send(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.kernel.send(&bytes, 0).map(|_| ())
    }

    /// Takes answers until the kernel says that it is done.
    fn receive(&self, mut take: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
        loop {
            let (bytes, _) = self.kernel.recv_from_full()?;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => {
                        return error.code.map_or(Ok(()), |_| Err(error.to_io()));
                    }
                    NetlinkPayload::InnerMessage(message) => take(message),
                    _ => {}
                }
                // Messages are aligned to four bytes.
                let length = (message.header.length as usize).next_multiple_of(4).max(4);
                rest = rest.get(length..).unwrap_or_default();
            }
        }
    }
}

/// `ESRCH`.
const NO_ROUTE: i32 = 3;

fn family(address: &IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn address(message: RouteNetlinkMessage) -> Option<IpAddr> {
    let RouteNetlinkMessage::NewAddress(message) = message else { return None };
    if message.header.index == LOOPBACK {
        return None;
    }
    // Of an interface that leads to one other address, `Address` is the other one.
    let find = |local| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if local => Some(*address),
            AddressAttribute::Address(address) if !local => Some(*address),
            _ => None,
        })
    };
    find(true).or_else(|| find(false))
}

fn rule(family: &AddressFamily, table: u32) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = *family;
    rule.header.action = RuleAction::ToTable;
    rule.attributes = vec![RuleAttribute::Priority(FIRST), RuleAttribute::Table(table)];
    rule
}

/// `ip rule add pref 0 fwmark MARK lookup TABLE`
fn own_rule(family: &AddressFamily) -> RuleMessage {
    let mut rule = rule(family, TABLE);
    rule.attributes.push(RuleAttribute::FwMark(POD_MARK));
    rule.attributes.push(RuleAttribute::FwMask(u32::MAX));
    rule
}

/// `ip rule add pref 0 lookup local`, as the kernel itself adds it.
fn local_rule(family: &AddressFamily) -> RuleMessage {
    let mut rule = rule(family, LOCAL);
    rule.header.table = LOCAL as u8;
    rule.attributes.push(RuleAttribute::Protocol(RouteProtocol::Kernel));
    rule
}

fn is_own(rule: &RuleMessage) -> bool {
    let has = |wanted| rule.attributes.contains(&wanted);
    has(RuleAttribute::FwMark(POD_MARK)) && has(RuleAttribute::Table(TABLE))
}

/// The rule with the number 0 for all packets. The kernel does not tell the number 0.
fn is_local(rule: &RuleMessage) -> bool {
    let only = |attribute: &RuleAttribute| {
        matches!(
            attribute,
            RuleAttribute::Table(LOCAL)
                | RuleAttribute::Priority(FIRST)
                | RuleAttribute::Protocol(_)
                | RuleAttribute::SuppressPrefixLen(u32::MAX)
        )
    };
    rule.header.table == LOCAL as u8
        && rule.header.dst_len == 0
        && rule.header.src_len == 0
        && rule.attributes.iter().all(only)
}

/// `ip route replace local default dev lo src SOURCE table TABLE`. With IPv6, the kernel chooses the
/// source among the pod's addresses; it would refuse one that it is still checking for duplicates.
fn route(source: IpAddr) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = family(&source);
    route.header.protocol = RouteProtocol::Static;
    route.header.scope = if source.is_ipv4() { RouteScope::Host } else { RouteScope::Universe };
    route.header.kind = RouteType::Local;
    route.attributes = vec![RouteAttribute::Table(TABLE), RouteAttribute::Oif(LOOPBACK)];
    if let IpAddr::V4(source) = source {
        route.attributes.push(RouteAttribute::PrefSource(RouteAddress::Inet(source)));
    }
    route
}
