//! External destinations, as egress rules name them.

use crate::blocks;
use crate::fqdn::Fqdn;
use crate::ports::{Call, PortRule};
use crate::report::Report;
use crate::walk;
use leno_config::Node;
use leno_config::Scope;
use leno_config::check;
use leno_config::document::{CalleeRule, CalleeSelector, ExternalSpec, FunctionSelector, Operation};
use leno_model::special_address::special_around;
use leno_policy::spec::Cidr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The rules of a translated policy for external calls.
#[derive(Debug, Default)]
pub(super) struct EgressRules {
    pub(super) allow: Vec<EgressRule>,
    /// Destinations that may not be called, at any port.
    pub(super) deny: Vec<Destination>,
}

/// Destinations that its functions may call, and how.
#[derive(Debug)]
pub(super) struct EgressRule {
    /// Name of the rule in its policy.
    pub(super) name: String,
    /// One of these destinations.
    pub(super) to: Vec<Destination>,
    /// One of these ports; empty: any port.
    pub(super) ports: Vec<PortRule>,
}

/// A selector of external destinations.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Destination {
    /// Names, and the host that an External document can have for them, if there is one.
    Names(Fqdn, Option<String>),
    /// Addresses, as blocks that have none in common.
    Blocks(Vec<Cidr>),
    /// All external addresses and names; External documents are made for these addresses, if there
    /// are any.
    Anywhere(Vec<Cidr>),
}

impl Destination {
    /// The host of its External document.
    pub(super) fn host(&self) -> Option<&str> {
        match self {
            Self::Names(_, host) => host.as_deref(),
            Self::Blocks(_) | Self::Anywhere(_) => None,
        }
    }

    /// The addresses of its External document.
    pub(super) fn blocks(&self) -> &[Cidr] {
        match self {
            Self::Names(..) => &[],
            Self::Blocks(blocks) | Self::Anywhere(blocks) => blocks,
        }
    }

    pub(super) fn covers_host(&self, host: &str) -> bool {
        match self {
            Self::Names(fqdn, _) => fqdn.covers(host),
            Self::Blocks(_) => false,
            Self::Anywhere(_) => true,
        }
    }

    /// Whether all of a block is selected.
    pub(super) fn covers_block(&self, block: &Cidr) -> bool {
        match self {
            Self::Names(..) => false,
            Self::Blocks(blocks) => blocks.iter().any(|one| blocks::contains(one, block)),
            Self::Anywhere(_) => true,
        }
    }

    /// Whether all of a block is selected and, if it is special, by itself: not as a part of a
    /// wider block that is not special.
    pub(super) fn names_block(&self, block: &Cidr) -> bool {
        let by_itself = |one: &Cidr| special_around(*block).all(|special| blocks::contains(&special, one));
        match self {
            Self::Names(..) => false,
            Self::Blocks(blocks) => blocks.iter().any(|one| blocks::contains(one, block) && by_itself(one)),
            Self::Anywhere(_) => special_around(*block).next().is_none(),
        }
    }
}

/// Whether a call to an External document may lead to an address, or a name with an address, of one
/// of these destinations.
pub(super) fn leads_to(external: &ExternalSpec, denied: &[Destination]) -> bool {
    let (addresses, resolves_to) = (blocks_of(&external.addresses), blocks_of(&external.resolves_to));
    let meets = |list: &[Cidr], blocks: &[Cidr]| {
        blocks.iter().any(|block| list.iter().any(|listed| blocks::overlap(listed, block)))
    };
    denied.iter().any(|destination| match destination {
        Destination::Anywhere(_) => true,
        Destination::Names(fqdn, _) => external.hosts.iter().any(|host| fqdn.covers(host)),
        Destination::Blocks(blocks) => {
            // Without `resolvesTo`, names resolve to no special address.
            let public = |block: &Cidr| special_around(*block).next().is_none();
            let by_name = match resolves_to.as_slice() {
                [] => blocks.iter().any(public),
                listed => meets(listed, blocks),
            };
            meets(&addresses, blocks) || (!external.hosts.is_empty() && by_name)
        }
    })
}

/// Blocks in the notation of External documents. Invalid text is reported when the document is
/// compiled.
pub(super) fn blocks_of(texts: &[String]) -> Vec<Cidr> {
    texts.iter().filter_map(|text| check::parse_cidr(text)).collect()
}

/// All callees, as a destination in reports.
pub(super) const LISTED: &str = "the functions and External documents that the function lists as `callees`";

/// The parts of an egress rule about functions and about external destinations. The External
/// documents in the former are named when all policies are known.
pub(super) fn callee_rules(
    name: &str,
    functions: Vec<FunctionSelector>,
    egress: Vec<Destination>,
    ports: Vec<PortRule>,
) -> (Option<CalleeRule>, Option<EgressRule>) {
    let mut calls: Vec<Call> = ports.iter().flat_map(PortRule::calls).collect();
    if calls.iter().all(|(operation, conditions)| *operation == Operation::default() && conditions.is_empty()) {
        calls.clear();
    }
    let beyond = (!egress.is_empty()).then(|| EgressRule { name: name.to_owned(), to: egress, ports });
    let to = CalleeSelector { functions, externals: Vec::new() };
    let rule = (!to.functions.is_empty() || beyond.is_some()).then(|| CalleeRule { name: name.to_owned(), to, calls });
    (rule, beyond)
}

/// An element of `toFQDNs`. `None`: a problem was reported.
pub(super) fn names(report: &Report<'_>, scope: &Scope<'_>, with_ports: bool) -> Option<Option<Destination>> {
    let field = match walk::fields(scope)[..] {
        [field @ ("matchName" | "matchPattern")] => field,
        _ => {
            report.refused(scope, "expected matchName or matchPattern");
            return None;
        }
    };
    let place = scope.field(field);
    let Some(fqdn) = Fqdn::new(walk::text(&place)?, field == "matchPattern") else {
        report.refused(&place, "the name has characters that are in no name");
        return None;
    };
    let Some(host) = fqdn.host() else {
        report.left_out(
            scope,
            "an External document has no host for that: write `*.example.com` or the names; those that the function lists keep it",
        );
        return Some(Some(Destination::Names(fqdn, None)));
    };
    if let Err(what) = check::external_host(&host) {
        report.left_out(scope, &format!("{what}: no External document can have it"));
        return Some(None);
    }
    if report.is_function(&host) {
        report.left_out(scope, "that is a function's name: toEndpoints is about functions");
        return Some(None);
    }
    let how = match fqdn.is_deep() {
        true => "one label more only; ",
        false => "",
    };
    let ports = if with_ports { BY_NAME } else { NAMES_WITHOUT_PORTS };
    report.approximated(scope, &format!("{how}{ports}; all but HTTP needs a room; none of its special addresses"));
    Some(Some(Destination::Names(fqdn, Some(host))))
}

const BY_NAME: &str = "port 80 is HTTP, port 443 TLS that names it (SNI), others the addresses that it has";
const NAMES_WITHOUT_PORTS: &str =
    "only port 80, as HTTP, and 443, as TLS that names it (SNI): others have to be listed as ports";
const BY_ADDRESS: &str = "connections by address, which need a room; what is special only where all of the block is";
const ADDRESSES_WITHOUT_PORTS: &str = "connections by address, which need a room, to ports 80 and 443 only: others have to be listed as ports; what is special only where all of the block is";

/// A block without some blocks in it, from a text, or from `cidr` and `except`. `None`: a problem
/// was reported.
pub(super) fn block(report: &Report<'_>, scope: &Scope<'_>, with_ports: bool) -> Option<Option<Destination>> {
    let (block, except) = written(report, scope)?;
    if block.address.is_ipv6() {
        report.left_out(scope, "connections to the outside by IPv6 address are not carried; names may have one");
        return Some(None);
    }
    if own(&block) {
        report.left_out(scope, "there, these addresses are the pod's own, and here the node's");
        return Some(None);
    }
    let blocks = blocks::without(block, &[&except[..], &OWN_V4].concat());
    report.approximated(scope, if with_ports { BY_ADDRESS } else { ADDRESSES_WITHOUT_PORTS });
    Some(Some(Destination::Blocks(blocks)))
}

/// A block that may not be called. `None`: a problem was reported.
pub(super) fn denied_block(report: &Report<'_>, scope: &Scope<'_>) -> Option<Destination> {
    let (block, except) = written(report, scope)?;
    report.approximated(
        scope,
        "by address, and names that may lead there: of an External document that the function lists, none is called",
    );
    // Special addresses are denied with the rest.
    Some(Destination::Blocks(blocks::pieces(block, &except)))
}

fn written(report: &Report<'_>, scope: &Scope<'_>) -> Option<(Cidr, Vec<Cidr>)> {
    let place = scope.field("cidr");
    let is_text = scope.node().is_some_and(Node::is_scalar);
    if let Some(field) = walk::fields(scope).into_iter().find(|field| !["cidr", "except"].contains(field)) {
        report.refused(&scope.field(field), "the field is not known");
        return None;
    }
    let block =
        if is_text { check::cidr(scope, walk::text(scope)?)? } else { check::cidr(&place, walk::text(&place)?)? };
    let list = scope.field("except");
    let except = match scope.has("except") {
        true => walk::texts(&list).into_iter().map(|one| check::cidr(&list, one)).collect::<Option<_>>()?,
        false => Vec::new(),
    };
    Some((block, except))
}

/// The report about `world`.
pub(super) fn world_note(with_ports: bool) -> &'static str {
    match with_ports {
        true => {
            "connections by address, which need a room, none that is special; names have to be in toFQDNs, or in External documents that the function lists"
        }
        false => {
            "connections by address, which need a room, none that is special, to ports 80 and 443 only; names have to be in toFQDNs, or in External documents that the function lists"
        }
    }
}

/// All addresses that can be called by address.
pub(super) fn world() -> Vec<Cidr> {
    blocks::without(Cidr { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), prefix: 0 }, &OWN_V4)
}

/// Loopback addresses. A pod has its own; a node that connects to them reaches programs that listen
/// on the node.
const OWN_V4: [Cidr; 2] = [
    Cidr { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), prefix: 8 },
    Cidr { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 },
];
const OWN_V6: Cidr = Cidr { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), prefix: 8 };

fn own(block: &Cidr) -> bool {
    OWN_V4.iter().chain([&OWN_V6]).any(|own| blocks::contains(own, block))
}
