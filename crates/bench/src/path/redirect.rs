//! The way of other meshes to take hold of what a program sends: a rule of the firewall that leads connections to the proxy's port.

use super::{CALLED, INSIDE, greet};
use anyhow::{Context, ensure};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

/// The subcommand that runs in a network of its own.
const REDIRECTED: &str = "path-redirected";

#[derive(clap::Args)]
pub(crate) struct RedirectedArguments {
    /// How many connections are made.
    connections: usize,
}

/// Connect and first byte of connections that are redirected by nftables, in microseconds. Needs `nft` and `unshare`.
pub(super) fn connect(connections: usize) -> anyhow::Result<f64> {
    let output = Command::new("unshare")
        .arg("--net")
        .arg(std::env::current_exe()?)
        .args([REDIRECTED, &connections.to_string()])
        .output()
        .context("unshare (util-linux) cannot be run")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "redirected connections: {errors}");
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// In the network: makes the rule, and has a client connect.
pub(crate) fn run(arguments: &RedirectedArguments) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let rules = format!(
        "table ip bench {{ chain output {{ type nat hook output priority -100; tcp dport {} redirect to :{port}; }}; }}",
        CALLED.port()
    );
    // An address that is not of the loopback's, as a container has one: the kernel drops what comes from there and goes elsewhere.
    for (program, arguments) in [
        ("ip", &["link", "set", "lo", "up"][..]),
        ("ip", &["address", "add", "10.0.0.1/32", "dev", "lo"]),
        ("ip", &["route", "add", "default", "dev", "lo"]),
        ("nft", &[&rules]),
    ] {
        let status = Command::new(program).args(arguments).status();
        let status = status.with_context(|| format!("{program} cannot be run: install iproute2 and nftables"))?;
        ensure!(status.success(), "{program} {}: {status}", arguments.join(" "));
    }
    std::thread::spawn(move || greet(&listener));
    let client = Command::new(std::env::current_exe()?)
        .args([INSIDE, &arguments.connections.to_string(), &CALLED.to_string()])
        .output()?;
    ensure!(client.status.success(), "the client ended with {}", client.status);
    print!("{}", String::from_utf8(client.stdout)?);
    Ok(())
}
