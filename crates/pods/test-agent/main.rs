//! An agent for tests, which can be killed. It captures one pod, says so, and forwards its
//! connections until its standard input ends.
//!
//! `leno-test-agent CGROUP PINS NETWORK UID ADDRESS[,ADDRESS] permissive|enforced`

mod forwarder;

use forwarder::Forwarder;
use leno_pods::{Capture, CaptureOptions, PodCapture, PodNetwork};
use std::io::Read;
use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [cgroup, pins, network, uid, addresses, mode] = &arguments[..] else {
        panic!("CGROUP PINS NETWORK UID ADDRESSES MODE");
    };
    let capture = Capture::start(CaptureOptions { cgroup: cgroup.into(), pins: pins.into() }).unwrap();
    let pod = PodCapture {
        uid: uid.parse().unwrap(),
        addresses: addresses.split(',').map(|address| address.parse().unwrap()).collect(),
        enforced: mode == "enforced",
    };
    let forwarder = Forwarder::start(capture.enrol(PodNetwork::at(Path::new(network)).unwrap(), &pod).unwrap());
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    drop(forwarder);
}
