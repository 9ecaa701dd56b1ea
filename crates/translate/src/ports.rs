//! Ports.

use crate::report::Report;
use crate::walk;
use leno_config::Scope;
use leno_config::document::{Condition, Operation};

/// A larger range is not written out.
const MOST: usize = 1024;

/// Ports, and the requests that are allowed at them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PortRule {
    /// `None`: all ports.
    pub(super) ports: Option<Vec<u16>>,
    /// Only HTTP requests that meet one of these; `None`: any traffic.
    pub(super) http: Option<Vec<Call>>,
}

impl PortRule {
    /// The ways to call that it allows.
    pub(super) fn calls(&self) -> impl Iterator<Item = Call> {
        let unrestricted = self.http.is_none().then(Call::default);
        let calls = self.http.iter().flatten().cloned().chain(unrestricted);
        calls.map(|(operation, conditions)| (Operation { ports: self.ports.clone(), ..operation }, conditions))
    }
}

/// A way to call: an operation, and further conditions.
pub(super) type Call = (Operation, Vec<Condition>);

/// The ports that a list allows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ports {
    /// Any port.
    Any,
    /// These ports.
    These(Vec<u16>),
    /// No port that the mesh carries: ports of UDP and SCTP.
    None,
}

/// `ports` of either project. `None`: a problem was reported.
pub(super) fn ports(report: &Report<'_>, list: &Scope<'_>, default_protocol: &str) -> Option<Ports> {
    if walk::length(list) == 0 {
        return Some(Ports::Any);
    }
    let (mut any, mut these) = (false, Vec::new());
    for index in 0..walk::length(list) {
        let scope = list.element(index);
        for field in walk::fields(&scope) {
            if !["port", "endPort", "protocol"].contains(&field) {
                report.refused(&scope.field(field), "the field is not known");
                return None;
            }
        }
        let protocol = match scope.has("protocol") {
            true => walk::text(&scope.field("protocol"))?,
            false => default_protocol,
        };
        match protocol {
            "TCP" | "ANY" => {}
            "UDP" | "SCTP" | "ICMP" | "ICMPv6" => {
                report.left_out(&scope, "the mesh carries TCP only");
                continue;
            }
            _ => {
                report.refused(&scope.field("protocol"), "the protocol is not known");
                return None;
            }
        }
        let first = match scope.has("port") {
            true => number(report, &scope.field("port"))?,
            false => 0,
        };
        let last = match scope.has("endPort") {
            true => number(report, &scope.field("endPort"))?,
            false => first,
        };
        match (first, last) {
            (0, 0) | (1, u16::MAX) => any = true,
            (first, last) if first > last => {
                report.refused(&scope.field("endPort"), "the range ends before it begins");
                return None;
            }
            (first, last) if usize::from(last - first) >= MOST => {
                report.refused(&scope.field("endPort"), "the range has more than 1024 ports, and is not all of them");
                return None;
            }
            (first, last) => these.extend(first..=last),
        }
        report.approximated(&scope, "the port that the caller asks for; at the gateway, the listener's");
    }
    these.sort_unstable();
    these.dedup();
    Some(match (any, these.is_empty()) {
        (true, _) => Ports::Any,
        (false, false) => Ports::These(these),
        (false, true) => Ports::None,
    })
}

fn number(report: &Report<'_>, scope: &Scope<'_>) -> Option<u16> {
    let number = walk::text(scope)?.parse();
    if number.is_err() {
        report.refused(scope, "ports have no names in the mesh: write the number");
    }
    number.ok()
}
