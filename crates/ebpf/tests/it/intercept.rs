//! Connections to any address and port of a network arrive at one listener.

use crate::networks::{Network, may_run};
use leno_ebpf::Interception;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

/// Runs a test in its own network, in which every address is local.
fn in_a_network(test: impl FnOnce() + Send + 'static) {
    if may_run() {
        Network::new().run(test);
    }
}

#[test]
fn every_address_and_port_leads_to_the_listener_until_it_ends() {
    in_a_network(|| {
        let listener = TcpListener::bind("0.0.0.0:80").unwrap();
        let own = TcpListener::bind("127.0.0.1:4000").unwrap();
        assert!(TcpStream::connect("203.0.113.9:5432").is_err());
        let network = File::open("/proc/thread-self/ns/net").unwrap();
        let interception = Interception::begin(network.as_fd(), listener.as_fd()).unwrap();
        for address in ["203.0.113.9:5432", "100.64.0.1:443", "10.0.0.1:80", "8.8.8.8:53"] {
            let mut client = TcpStream::connect(address).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            assert_eq!(accepted.local_addr().unwrap().to_string(), address, "the address that was called");
            accepted.write_all(b"hi").unwrap();
            let mut answer = [0; 2];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"hi");
        }
        // Connections to the program's own listeners are not redirected.
        let _client = TcpStream::connect("127.0.0.1:4000").unwrap();
        assert_eq!(own.accept().unwrap().0.local_addr().unwrap().port(), 4000);
        assert!(TcpStream::connect("127.0.0.1:4001").is_err());
        drop(interception);
        assert!(TcpStream::connect("203.0.113.9:5432").is_err());
    });
}

#[test]
fn a_network_is_not_led_to_another_ones_listener_by_mistake() {
    in_a_network(|| {
        let closed = TcpListener::bind("0.0.0.0:80").unwrap();
        let network = File::open("/proc/thread-self/ns/net").unwrap();
        let _interception = Interception::begin(network.as_fd(), closed.as_fd()).unwrap();
        drop(closed);
        // Without a listener, connections do not reach another listener on the same port.
        let _other = TcpListener::bind("0.0.0.0:5432").unwrap();
        assert!(TcpStream::connect("203.0.113.9:5432").is_err());
    });
}
