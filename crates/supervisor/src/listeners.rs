//! Where an instance listens that does not become ready.

use crate::dialer::Dialer;
use crate::sockets::{self, Socket};
use crate::tree::ProcessTree;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The difference between where an instance listens and where it should.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlaceMismatch {
    pub place: String,
    pub fix: String,
}

/// Compares where an instance listens with where it should. `None`: there is no difference, or it
/// cannot be seen.
pub(crate) async fn misplaced(tree: &ProcessTree, dialer: &Dialer, port: u16) -> Option<PlaceMismatch> {
    let pid = tree.pid();
    let (in_jail, node, processes) = match (tree, dialer) {
        (ProcessTree::Jail(jail), _) => (true, Some(jail.node_port()), None),
        (ProcessTree::Group(_), Dialer::Process(processes)) => (false, None, Some(Arc::clone(processes))),
        (ProcessTree::Group(_), _) => return None,
    };
    let look = move || {
        let mut listeners = sockets::listening_near(pid).ok()?;
        match processes.map(|processes| processes.sockets()) {
            Some(own) => listeners.retain(|listener| own.contains(&listener.inode)),
            None => listeners.retain(|listener| Some(listener.address.port()) != node),
        }
        // The network of a jail has no Unix sockets of others.
        let unix = if in_jail { sockets::unix_near(pid) } else { Vec::new() };
        describe(&listeners, &unix, port, in_jail)
    };
    tokio::task::spawn_blocking(look).await.ok()?
}

fn describe(listeners: &[Socket], unix: &[String], port: u16, in_jail: bool) -> Option<PlaceMismatch> {
    let all = |ip: IpAddr| ip.is_unspecified() || ip == Ipv4Addr::LOCALHOST;
    let reached = |ip: IpAddr| all(ip) || in_jail && ip == Ipv6Addr::LOCALHOST;
    if listeners.iter().any(|listener| listener.address.port() == port && reached(listener.address.ip())) {
        return None;
    }
    let each = |listener: &Socket| match listener.address {
        address if all(address.ip()) => address.port().to_string(),
        address => address.to_string(),
    };
    let places: BTreeSet<String> = listeners.iter().map(each).collect();
    let at_all = listeners.iter().find(|listener| all(listener.address.ip()));
    let fix = match (at_all, places.is_empty(), unix) {
        (Some(other), ..) => format!("set `port: {}`, or have it listen on $PORT", other.address.port()),
        (None, false, _) => "have it listen at 127.0.0.1, or at all addresses".to_owned(),
        (None, true, [_, ..]) => "have it listen on a TCP port: the node connects to no Unix socket".to_owned(),
        (None, true, []) => "a program that starts slowly needs a longer `timeouts: {startup: …}`".to_owned(),
    };
    let places = match (places.is_empty(), unix) {
        (true, [path, ..]) => format!("no port, but on the Unix socket {path}"),
        (true, []) => "no port".to_owned(),
        (false, _) => places.into_iter().collect::<Vec<_>>().join(", "),
    };
    Some(PlaceMismatch { place: format!("it listens on {places}, expected $PORT {port} on 127.0.0.1"), fix })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::State;

    #[test]
    fn a_listener_elsewhere_is_named() {
        let told = |addresses: &[&str], in_jail| {
            let socket = |address: &&str| Socket::listening(address.parse().unwrap(), State::Listening);
            let told = describe(&addresses.iter().map(socket).collect::<Vec<_>>(), &[], 12345, in_jail);
            told.map(|told| told.place)
        };
        let expected = |places: &str| Some(format!("it listens on {places}, expected $PORT 12345 on 127.0.0.1"));
        assert_eq!(told(&["0.0.0.0:8000"], true), expected("8000"));
        assert_eq!(told(&["127.0.0.1:8000", "[::]:8000", "10.0.0.1:12345"], true), expected("10.0.0.1:12345, 8000"));
        assert_eq!(told(&[], false), expected("no port"));
        for right in ["0.0.0.0:12345", "127.0.0.1:12345", "[::]:12345"] {
            assert_eq!((told(&[right], true), told(&[right, "127.0.0.1:1"], false)), (None, None), "{right}");
        }
        assert_eq!(told(&["[::1]:12345"], true), None);
        let unix = describe(&[], &["/tmp/app.sock".to_owned()], 12345, true).unwrap();
        assert!(unix.place.contains("the Unix socket /tmp/app.sock") && unix.fix.contains("TCP port"), "{unix:?}");
        assert_eq!(told(&["[::1]:12345"], false), expected("[::1]:12345"));
    }
}
