//! Something outside of the mesh that functions may call.

use leno_policy::spec::Cidr;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

/// Where it is, and how it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// Its names, in lower case: exact, or `*.suffix` for one label more.
    pub hosts: Vec<String>,
    /// Addresses by which it may be called instead.
    pub addresses: Vec<Cidr>,
    /// Addresses that its names may have; empty: any that is not special.
    pub resolves_to: Vec<Cidr>,
    /// Its ports.
    pub ports: Vec<EgressPort>,
    /// TLS at ports with [`EgressProtocol::Https`].
    pub tls: EgressTls,
    /// What the node adds to each request.
    pub credentials: Vec<Credential>,
    /// Longest look-up of a name, and longest attempt to connect.
    pub connect_timeout: Duration,
    /// Whether trace context and request ID go out.
    pub trace_context: bool,
    /// Whether nodes with the egress role connect to it, and no others; otherwise each caller's own node does.
    pub by_egress_nodes: bool,
}

/// One of its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressPort {
    /// Its number.
    pub number: u16,
    /// What it is.
    pub protocol: EgressProtocol,
    /// Whether it speaks HTTP/2.
    pub http2: bool,
}

/// What a port outside of the mesh is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EgressProtocol {
    /// HTTP without TLS. The mesh judges each request.
    Http,
    /// HTTP with TLS that begins in the node: functions send plain HTTP, and the mesh judges each request.
    Https,
    /// TLS that begins in the function. It has to name one of `hosts` (SNI); what is inside, the mesh does not see.
    Tls,
    /// Whatever the function speaks. The mesh judges the connection.
    Tcp,
}

/// How the node begins TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressTls {
    /// PEM file with root certificates; `None`: the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM files with the node's certificate chain and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The name to ask for and to verify; `None`: the host that was called.
    pub server_name: Option<String>,
}

/// A header field with a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// Name of the field, in lower case.
    pub header: String,
    /// What its value is made of.
    pub form: CredentialForm,
    /// The node's file with the secret.
    pub from: PathBuf,
}

/// What the value of a credential's field is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CredentialForm {
    /// The secret.
    Plain,
    /// This scheme, a blank, and the secret.
    Scheme(String),
    /// Basic authentication of this user.
    Basic(String),
}

/// IPv4 addresses that are nobody's on the public internet, or everybody's own.
const SPECIAL_V4: [(Ipv4Addr, u8); 14] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
    // Azure's and Alibaba's metadata services, which have addresses like anybody's.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(100, 100, 100, 200), 32),
];

/// The same of IPv6. All that is not `2000::/3`, and what in there leads to IPv4 addresses or is reserved.
const SPECIAL_V6: [(Ipv6Addr, u8); 12] = [
    (Ipv6Addr::UNSPECIFIED, 8),
    (Ipv6Addr::new(0x0064, 0xff9b, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x0100, 0, 0, 0, 0, 0, 0, 0), 8),
    (Ipv6Addr::new(0x0200, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0x0400, 0, 0, 0, 0, 0, 0, 0), 6),
    (Ipv6Addr::new(0x0800, 0, 0, 0, 0, 0, 0, 0), 5),
    (Ipv6Addr::new(0x1000, 0, 0, 0, 0, 0, 0, 0), 4),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x4000, 0, 0, 0, 0, 0, 0, 0), 2),
    (Ipv6Addr::new(0x8000, 0, 0, 0, 0, 0, 0, 0), 1),
    (Ipv6Addr::new(0x2001, 0x0db8, 0, 0, 0, 0, 0, 0), 32),
];

/// The blocks of special addresses that an address is in.
fn special(address: IpAddr) -> impl Iterator<Item = Cidr> {
    let v4 = SPECIAL_V4.iter().map(|(first, prefix)| Cidr { address: (*first).into(), prefix: *prefix });
    let v6 = SPECIAL_V6.iter().map(|(first, prefix)| Cidr { address: (*first).into(), prefix: *prefix });
    v4.chain(v6).filter(move |block| block.contains(address))
}

/// The blocks of special addresses that all of a block is in.
pub(crate) fn special_around(block: Cidr) -> impl Iterator<Item = Cidr> {
    special(block.address).filter(move |special| special.prefix <= block.prefix)
}

/// Whether `list` admits an address: one of its blocks has it and, if the address is special, has none outside of a special block that it is in.
fn admits(list: &[Cidr], address: IpAddr) -> bool {
    let has = |listed: &&Cidr| listed.contains(address);
    let mut blocks = special(address).peekable();
    if blocks.peek().is_none() {
        return list.iter().any(|listed| has(&listed));
    }
    blocks.all(|block| {
        let within = |listed: &Cidr| listed.prefix >= block.prefix && block.contains(listed.address);
        list.iter().filter(has).any(within)
    })
}

impl Egress {
    /// Whether one of its names may have this address. An address that nobody listed must not be special: a name server must not be able to lead a
    /// function to the machine's own network.
    pub fn may_resolve_to(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        if self.resolves_to.is_empty() { special(address).next().is_none() } else { admits(&self.resolves_to, address) }
    }

    /// Whether it may be called by this address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        admits(&self.addresses, address.to_canonical())
    }

    /// Whether this is one of its names, which is in lower case and without a dot at its end.
    pub fn has_host(&self, name: &str) -> bool {
        let wildcard = wildcard(name);
        self.hosts.iter().any(|host| host == name || Some(host) == wildcard.as_ref())
    }

    /// The port to which a request goes that asks for `port` of it.
    pub fn http_port(&self, port: u16) -> Option<EgressPort> {
        let http = |port: &&EgressPort| matches!(port.protocol, EgressProtocol::Http | EgressProtocol::Https);
        let mut all = self.ports.iter().filter(http);
        let named = all.clone().find(|other| other.number == port);
        // Who sends plain HTTP to `http://HOST/` asks for port 80.
        named.or_else(|| all.find(|other| port == 80 && other.protocol == EgressProtocol::Https)).copied()
    }
}

/// What a request for `host` at this port names.
pub fn authority(host: &str, port: EgressPort) -> String {
    let usual = match port.protocol {
        EgressProtocol::Https => 443,
        _ => 80,
    };
    if port.number == usual { host.to_owned() } else { format!("{host}:{}", port.number) }
}

/// The `*.suffix` that would stand for this name.
pub fn wildcard(name: &str) -> Option<String> {
    let (_, suffix) = name.split_once('.')?;
    Some(format!("*.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        let (address, prefix) = text.split_once('/').unwrap();
        Cidr { address: address.parse().unwrap(), prefix: prefix.parse().unwrap() }
    }

    fn egress(hosts: &[&str], addresses: &[&str], resolves_to: &[&str], ports: &[(u16, EgressProtocol)]) -> Egress {
        let cidrs = |texts: &[&str]| texts.iter().map(|text| cidr(text)).collect();
        let port = |(number, protocol): &(u16, EgressProtocol)| EgressPort {
            number: *number,
            protocol: *protocol,
            http2: false,
        };
        Egress {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            addresses: cidrs(addresses),
            resolves_to: cidrs(resolves_to),
            ports: ports.iter().map(port).collect(),
            tls: EgressTls::default(),
            credentials: Vec::new(),
            connect_timeout: Duration::from_secs(1),
            trace_context: false,
            by_egress_nodes: false,
        }
    }

    /// Addresses that no name may have unless somebody listed them.
    const SPECIAL: [&str; 30] = [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.64.0.1",
        "169.254.169.254",
        "172.31.255.255",
        "192.0.0.192",
        "192.168.1.1",
        "198.19.0.1",
        "168.63.129.16",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a00:1",
        "100::1",
        "2001:0:4136:e378::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ];

    #[test]
    fn names_do_not_lead_to_special_addresses() {
        let public = egress(&["api.example.com"], &[], &[], &[]);
        let wide = egress(&["api.example.com"], &["0.0.0.0/0", "::/0"], &["0.0.0.0/0", "::/0"], &[]);
        for address in SPECIAL {
            let address = address.parse().unwrap();
            assert!(!public.may_resolve_to(address), "{address}");
            assert!(!wide.may_resolve_to(address), "{address}: a block with others does not admit it");
            assert!(!wide.has_address(address), "{address}: a block with others does not admit it");
        }
        for address in ["93.184.215.14", "1.1.1.1", "192.0.2.7", "2606:2800:21f::1", "2a00:1450::1"] {
            let address = address.parse().unwrap();
            assert!(public.may_resolve_to(address) && wide.may_resolve_to(address) && wide.has_address(address));
            assert!(!public.has_address(address), "nobody listed it");
        }
    }

    #[test]
    fn what_is_listed_by_itself_is_admitted_and_nothing_else() {
        let inside = egress(&["db.example.com"], &[], &["10.0.0.0/8", "127.0.0.0/30", "fd00::/8"], &[]);
        for good in ["10.255.0.1", "127.0.0.3", "fd12::1", "::ffff:10.0.0.1"] {
            assert!(inside.may_resolve_to(good.parse().unwrap()), "{good}");
        }
        for bad in ["127.0.0.4", "1.1.1.1", "192.168.0.1", "fe80::1", "2606::1"] {
            assert!(!inside.may_resolve_to(bad.parse().unwrap()), "{bad}");
        }
        // In two special blocks: both have to have been meant.
        let alibaba = "100.100.100.200".parse().unwrap();
        assert!(!egress(&["x.example"], &[], &["100.64.0.0/10"], &[]).may_resolve_to(alibaba));
        assert!(egress(&["x.example"], &[], &["100.100.100.200/32"], &[]).may_resolve_to(alibaba));
    }

    #[test]
    fn a_wildcard_stands_for_one_label() {
        let egress = egress(&["api.example.com", "*.eu.example.com"], &[], &[], &[]);
        for good in ["api.example.com", "a.eu.example.com"] {
            assert!(egress.has_host(good), "{good}");
        }
        for bad in [
            "example.com",
            "eu.example.com",
            "a.b.eu.example.com",
            ".eu.example.com.evil.test",
            "xapi.example.com",
            "*",
            "",
            "eu",
        ] {
            assert!(!egress.has_host(bad), "{bad}");
        }
    }

    #[test]
    fn a_request_finds_its_port() {
        use EgressProtocol::{Http, Https, Tcp, Tls};
        let number = |ports: &[(u16, EgressProtocol)], port| {
            egress(&[], &[], &[], ports).http_port(port).map(|port| port.number)
        };
        assert_eq!(number(&[(443, Https)], 443), Some(443));
        assert_eq!(number(&[(443, Https)], 80), Some(443), "http://HOST/ begins TLS");
        assert_eq!(number(&[(80, Http), (443, Https)], 80), Some(80));
        assert_eq!(number(&[(8443, Https), (5432, Tcp)], 5432), None, "it is no HTTP");
        assert_eq!(number(&[(443, Tls)], 443), None, "what is inside is not seen");
        assert_eq!(number(&[(8080, Http)], 80), None);
    }
}
