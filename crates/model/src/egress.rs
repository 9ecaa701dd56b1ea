//! External services.

use crate::secret::SecretSource;
use crate::special_address::{admits, special};
use leno_policy::spec::Cidr;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;

/// An external service that functions call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// Host names, in lower case: exact, or `*.suffix` for one more label.
    pub hosts: Vec<String>,
    /// Addresses that callers can use instead of a name.
    pub addresses: Vec<Cidr>,
    /// Addresses to which its names may resolve; empty: any that is not special.
    pub resolves_to: Vec<Cidr>,
    /// Ports.
    pub ports: Vec<EgressPort>,
    /// TLS at ports with [`EgressProtocol::Https`].
    pub tls: EgressTls,
    /// Header fields that the node adds to each request.
    pub credentials: Vec<Credential>,
    /// Timeout of name resolution, and of each attempt to connect.
    pub connect_timeout: Duration,
    /// The node sends trace context and request ID.
    pub trace_context: bool,
    /// Only nodes with the egress role connect to the service; otherwise each caller's node does.
    pub by_egress_nodes: bool,
}

/// A port of an external service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressPort {
    /// Number.
    pub number: u16,
    /// Protocol.
    pub protocol: EgressProtocol,
    /// The port speaks HTTP/2.
    pub http2: bool,
}

/// Protocol of a port outside the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EgressProtocol {
    /// HTTP without TLS. The mesh judges each request.
    Http,
    /// HTTP with TLS that begins in the node: functions send plain HTTP, and the mesh judges each
    /// request.
    Https,
    /// TLS that begins in the function. It has to name one of `hosts` (SNI); the mesh does not see
    /// its content.
    Tls,
    /// Any protocol. The mesh judges the connection.
    Tcp,
}

/// TLS settings of the node as a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressTls {
    /// PEM root certificates; `None`: the system's.
    pub ca_file: Option<SecretSource>,
    /// PEM client certificate chain and its key.
    pub certificate: Option<(SecretSource, SecretSource)>,
    /// The name in SNI, which the node also verifies unless there are `names`; `None`: the called
    /// host.
    pub server_name: Option<String>,
    /// Further PEM root certificates beside `ca_file`.
    pub further_roots: Vec<SecretSource>,
    /// The server's certificate has to have one of these names, in place of that in SNI.
    pub names: Vec<CertificateName>,
    /// Why requests that need TLS fail; empty: they do not.
    pub refused: String,
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CertificateName {
    /// Of a host, in lower case: exact, or `*.suffix` for one more label.
    Host(String),
    /// A URI, such as a SPIFFE ID.
    Uri(String),
}

/// A header field with a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// Name of the field, in lower case.
    pub header: String,
    /// The form of the value.
    pub form: CredentialForm,
    /// Where the secret comes from.
    pub from: SecretSource,
}

/// The form of a credential's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CredentialForm {
    /// The secret.
    Plain,
    /// This scheme, a blank, and the secret.
    Scheme(String),
    /// Basic authentication of this user.
    Basic(String),
}

impl EgressTls {
    /// The sources of its certificates and key.
    pub fn sources(&self) -> impl Iterator<Item = &SecretSource> {
        let pair = self.certificate.iter().flat_map(|(chain, key)| [chain, key]);
        self.roots().chain(pair)
    }

    /// The sources of root certificates; none: the system's.
    pub fn roots(&self) -> impl Iterator<Item = &SecretSource> {
        self.ca_file.iter().chain(&self.further_roots)
    }
}

impl Egress {
    /// The sources of its certificates, key and credentials.
    pub fn secret_sources(&self) -> impl Iterator<Item = &SecretSource> {
        self.tls.sources().chain(self.credentials.iter().map(|credential| &credential.from))
    }

    /// Whether one of its names may resolve to this address. A special address must be listed by
    /// itself: a name server must not be able to direct a function to the machine's own network, or
    /// past the firewall of one of the mesh's machines. `is_machine` recognises their addresses.
    pub fn may_resolve_to(&self, address: IpAddr, is_machine: &dyn Fn(IpAddr) -> bool) -> bool {
        let address = address.to_canonical();
        if self.resolves_to.is_empty() {
            special(address, is_machine).is_empty()
        } else {
            admits(&self.resolves_to, address, is_machine)
        }
    }

    /// Whether callers can use this address.
    pub fn has_address(&self, address: IpAddr, is_machine: &dyn Fn(IpAddr) -> bool) -> bool {
        admits(&self.addresses, address.to_canonical(), is_machine)
    }

    /// Whether it has this name, given in lower case and without a trailing dot.
    pub fn has_host(&self, name: &str) -> bool {
        let wildcard = wildcard(name);
        self.hosts.iter().any(|host| host == name || Some(host) == wildcard.as_ref())
    }

    /// The port that gets a request for `port`.
    pub fn http_port(&self, port: u16) -> Option<EgressPort> {
        let http = |port: &&EgressPort| matches!(port.protocol, EgressProtocol::Http | EgressProtocol::Https);
        let mut all = self.ports.iter().filter(http);
        let named = all.clone().find(|other| other.number == port);
        // A client that sends plain HTTP to `http://HOST/` names port 80.
        named.or_else(|| all.find(|other| port == 80 && other.protocol == EgressProtocol::Https)).copied()
    }
}

/// Whether a node may fetch from this address for a document. `listed` has the special addresses
/// that the document's namespace permits; `None`: all. Other addresses are always permitted.
pub fn may_fetch_from(listed: Option<&[Cidr]>, address: IpAddr, is_machine: &dyn Fn(IpAddr) -> bool) -> bool {
    let address = address.to_canonical();
    listed.is_none_or(|listed| special(address, is_machine).is_empty() || admits(listed, address, is_machine))
}

/// The authority of a request for `host` at this port.
pub fn authority(host: &str, port: EgressPort) -> String {
    let usual = match port.protocol {
        EgressProtocol::Https => 443,
        _ => 80,
    };
    if port.number == usual { host.to_owned() } else { format!("{host}:{}", port.number) }
}

/// The `*.suffix` that matches this name.
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

    /// Addresses to which no name may resolve unless the document lists them.
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
        let none = &|_: IpAddr| false;
        let public = egress(&["api.example.com"], &[], &[], &[]);
        let wide = egress(&["api.example.com"], &["0.0.0.0/0", "::/0"], &["0.0.0.0/0", "::/0"], &[]);
        for address in SPECIAL {
            let address = address.parse().unwrap();
            assert!(!public.may_resolve_to(address, none), "{address}");
            assert!(!wide.may_resolve_to(address, none), "{address}: a block with others does not admit it");
            assert!(!wide.has_address(address, none), "{address}: a block with others does not admit it");
        }
        for address in ["93.184.215.14", "1.1.1.1", "192.0.2.7", "2606:2800:21f::1", "2a00:1450::1"] {
            let address = address.parse().unwrap();
            assert!(
                public.may_resolve_to(address, none)
                    && wide.may_resolve_to(address, none)
                    && wide.has_address(address, none)
            );
            assert!(!public.has_address(address, none), "no document lists it");
        }
    }

    #[test]
    fn what_is_listed_by_itself_is_admitted_and_nothing_else() {
        let none = &|_: IpAddr| false;
        let inside = egress(&["db.example.com"], &[], &["10.0.0.0/8", "127.0.0.0/30", "fd00::/8"], &[]);
        for good in ["10.255.0.1", "127.0.0.3", "fd12::1", "::ffff:10.0.0.1"] {
            assert!(inside.may_resolve_to(good.parse().unwrap(), none), "{good}");
        }
        for bad in ["127.0.0.4", "1.1.1.1", "192.168.0.1", "fe80::1", "2606::1"] {
            assert!(!inside.may_resolve_to(bad.parse().unwrap(), none), "{bad}");
        }
        // The address is in two special blocks: the list must mean both.
        let alibaba = "100.100.100.200".parse().unwrap();
        assert!(!egress(&["x.example"], &[], &["100.64.0.0/10"], &[]).may_resolve_to(alibaba, none));
        assert!(egress(&["x.example"], &[], &["100.100.100.200/32"], &[]).may_resolve_to(alibaba, none));
    }

    #[test]
    fn an_address_that_leads_to_a_special_ipv4_address_needs_that_one_listed() {
        let none = &|_: IpAddr| false;
        let inside = egress(&["x.example"], &[], &["64:ff9b::/96", "2002::/16", "2001::/32"], &[]);
        for good in ["64:ff9b::5db8:d70e", "2002:5db8:d70e::1", "2001:0:5db8:d70e::a247:28f1"] {
            assert!(inside.may_resolve_to(good.parse().unwrap(), none), "{good}");
        }
        for bad in [
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "2002:a00:1::1",
            "2001:0:5db8:d70e::80ff:fffe",
        ] {
            assert!(!inside.may_resolve_to(bad.parse().unwrap(), none), "{bad}");
        }
        let meant = egress(&["x.example"], &[], &["64:ff9b::a00:0/104"], &[]);
        assert!(meant.may_resolve_to("64:ff9b::a01:203".parse().unwrap(), none));
    }

    #[test]
    fn the_addresses_of_the_mesh_s_machines_are_special() {
        let known = ["93.184.215.14", "1.1.1.1", "2606:2800:21f::1", "10.0.0.5", "127.0.0.1", "127.0.0.2"];
        let known = known.map(|address| address.parse::<IpAddr>().unwrap());
        let machines = &move |address: IpAddr| known.contains(&address);
        let public = egress(&["api.example.com"], &[], &[], &[]);
        let wide = egress(&["api.example.com"], &["0.0.0.0/0", "::/0"], &["0.0.0.0/0", "10.0.0.0/8", "::/0"], &[]);
        for bad in ["93.184.215.14", "1.1.1.1", "2606:2800:21f::1", "::ffff:1.1.1.1", "10.0.0.5"] {
            let bad = bad.parse().unwrap();
            assert!(!public.may_resolve_to(bad, machines), "{bad}");
            assert!(!wide.may_resolve_to(bad, machines), "{bad}: a block with others does not admit it");
            assert!(!wide.has_address(bad, machines), "{bad}: a block with others does not admit it");
        }
        for good in ["93.184.215.15", "1.1.1.3", "2606:2800:21f::2"] {
            assert!(public.may_resolve_to(good.parse().unwrap(), machines), "{good}");
        }
        let mapped = egress(&["x.example"], &[], &["64:ff9b::/96"], &[]);
        assert!(!mapped.may_resolve_to("64:ff9b::101:101".parse().unwrap(), machines), "another way to a machine");
        let meant = egress(&["x.example"], &[], &["93.184.215.14/32", "10.0.0.5/32", "127.0.0.0/8"], &[]);
        for listed in ["93.184.215.14", "10.0.0.5", "127.0.0.1", "127.0.0.2"] {
            assert!(meant.may_resolve_to(listed.parse().unwrap(), machines), "{listed}");
        }
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
