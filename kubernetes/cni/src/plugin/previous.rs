//! The result of the plug-ins before this one.

use std::net::IpAddr;

use serde::Deserialize;

use super::{CniError, ErrorCode};

#[derive(Deserialize)]
struct Previous {
    interfaces: Option<Vec<Interface>>,
    ips: Option<Vec<Address>>,
}

#[derive(Deserialize)]
struct Interface {
    sandbox: Option<String>,
}

#[derive(Deserialize)]
struct Address {
    address: String,
    interface: Option<i64>,
}

/// The addresses of the pod in a result. Addresses of interfaces on the node are left out.
pub fn addresses(result: &str) -> Result<Vec<IpAddr>, CniError> {
    let previous: Previous = serde_json::from_str(result)
        .map_err(|error| CniError::new(ErrorCode::Decode, "cannot decode `prevResult`", error))?;
    let interfaces = previous.interfaces.unwrap_or_default();
    let of_pod = |address: &&Address| {
        let interface = address.interface.and_then(|index| interfaces.get(usize::try_from(index).ok()?));
        interface.is_none_or(|interface| interface.sandbox.as_ref().is_some_and(|sandbox| !sandbox.is_empty()))
    };
    previous.ips.unwrap_or_default().iter().filter(of_pod).map(parsed).collect()
}

fn parsed(address: &Address) -> Result<IpAddr, CniError> {
    let text = &address.address;
    text.split_once('/').map_or(text.as_str(), |(address, _)| address).parse().map_err(|_| {
        let text: String = text.chars().take(80).collect();
        let details = format!("`ips` has `{text}`, which is no IP address");
        CniError::new(ErrorCode::Decode, "cannot decode `prevResult`", details)
    })
}
