//! Private networks of the test, which only root can make.

use super::{Place, leno_of_nodes};
use crate::eventually;
use std::fs;
use std::net::Ipv4Addr;
use std::process::{Child, Command};

/// A separate network for the test, with an address for the control plane, and one network for each
/// node, which the test can cut off.
pub struct Hub;

pub const HUB: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

impl Hub {
    /// Moves this thread and its later child processes into the network.
    pub fn enter() -> Self {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        ip("link set lo up");
        ip("link add hub type bridge");
        ip(&format!("addr add {HUB}/24 dev hub"));
        ip("link set hub up");
        Self
    }

    pub fn place(&self, number: u8) -> NodeNetwork {
        // The network lives as long as this process.
        let holder = Command::new("unshare").args(["--net", "sleep", "infinity"]).spawn().unwrap();
        let (own, net) = (fs::read_link("/proc/thread-self/ns/net").unwrap(), format!("/proc/{}/ns/net", holder.id()));
        eventually("a network", || fs::read_link(&net).ok().filter(|other| *other != own));
        let (link, address) = (format!("node{number}"), Ipv4Addr::new(10, 77, 0, 10 + number));
        ip(&format!("link add {link} type veth peer name eth0 netns {}", holder.id()));
        ip(&format!("link set {link} master hub up"));
        let enter = format!("--net={net}");
        for arguments in
            ["link set lo up".to_owned(), format!("addr add {address}/24 dev eth0"), "link set eth0 up".to_owned()]
        {
            let done = Command::new("nsenter").arg(&enter).arg("ip").args(arguments.split(' ')).status().unwrap();
            assert!(done.success(), "ip {arguments}");
        }
        let command = vec!["nsenter".to_owned(), enter, leno_of_nodes()];
        NodeNetwork { place: Place { address, command }, link, holder }
    }
}

/// A network of a node.
pub struct NodeNetwork {
    pub place: Place,
    pub link: String,
    pub holder: Child,
}

impl NodeNetwork {
    pub fn cut(&self) {
        ip(&format!("link set {} down", self.link));
    }

    pub fn mend(&self) {
        ip(&format!("link set {} up", self.link));
    }
}

impl NodeNetwork {
    /// Drops packets to this address.
    pub fn without(&self, address: Ipv4Addr) {
        self.run(&format!("ip route add blackhole {address}/32"));
    }

    pub fn again_with(&self, address: Ipv4Addr) {
        self.run(&format!("ip route del blackhole {address}/32"));
    }

    /// Limits packets from the node to the others to 512 kbit/s.
    pub fn slow(&self) {
        self.run("tc qdisc add dev eth0 root tbf rate 512kbit burst 8kb latency 200ms");
    }

    pub fn fast(&self) {
        self.run("tc qdisc del dev eth0 root");
    }

    fn run(&self, command: &str) {
        let net = format!("--net=/proc/{}/ns/net", self.holder.id());
        assert!(Command::new("nsenter").arg(net).args(command.split(' ')).status().unwrap().success(), "{command}");
    }
}

impl Drop for NodeNetwork {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

pub fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}
