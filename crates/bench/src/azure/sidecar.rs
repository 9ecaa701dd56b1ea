//! `leno-bench sidecar`: an instance with an Envoy before it, as a pod has them: both are started
//! together, in one process group; the port that the layer knows is Envoy's.
//!
//! This program becomes Envoy, so that nothing stays between. The function listens on a socket that
//! was opened before either of them was started, so that Envoy's first request finds it.

use super::function;
use anyhow::{Context, ensure};
use serde_json::Value;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Stand in a configuration for the ports that an instance gets.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 64_001);
const UPSTREAM: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 64_002);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "PROGRAM")]
    envoy: PathBuf,
    /// Configuration with ports to be filled in.
    #[arg(long, value_name = "FILE")]
    template: PathBuf,
}

/// Writes a template. `configuration` is given the addresses that stand for an instance's own.
pub(crate) fn write_template(
    path: &Path,
    configuration: impl FnOnce(SocketAddr, SocketAddr) -> Value,
) -> anyhow::Result<()> {
    let mut configuration = configuration(LISTEN, UPSTREAM);
    // As long as the function works, as in the other scenarios; Istio's default, too, is no limit.
    let manager = &mut configuration["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0];
    let route = &mut manager["typed_config"]["route_config"]["virtual_hosts"][0]["routes"][0]["route"];
    ensure!(route["timeout"].is_string(), "Envoy's configuration has its route elsewhere now");
    route["timeout"] = "0s".into();
    Ok(fs::write(path, configuration.to_string())?)
}

/// Starts the function and becomes its Envoy. Returns only if that cannot be.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let port = std::env::var("PORT").context("PORT")?.parse().context("PORT")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let upstream = listener.local_addr()?.port();
    Command::new(std::env::current_exe()?)
        .args([function::SUBCOMMAND, "--inherit"])
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .spawn()
        .context("the function cannot be started")?;
    let template = fs::read_to_string(&arguments.template)?;
    let configuration = filled(&filled(&template, LISTEN.port(), port)?, UPSTREAM.port(), upstream)?;
    let path = arguments.template.with_file_name(format!("{PREFIX}{}.json", std::process::id()));
    fs::write(&path, configuration)?;
    let error = Command::new(&arguments.envoy)
        .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warn", "--config-path"])
        .arg(&path)
        .exec();
    Err(error).with_context(|| format!("{} cannot be started", arguments.envoy.display()))
}

/// How the configurations of instances are called.
const PREFIX: &str = "sidecar-";

/// How many configurations instances were given, and their bytes.
pub(crate) fn configured(folder: &Path) -> (u64, u64) {
    let Ok(entries) = fs::read_dir(folder) else { return (0, 0) };
    let own = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let sizes = own.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size))
}

fn filled(text: &str, placeholder: u16, port: u16) -> anyhow::Result<String> {
    let [from, to] = [placeholder, port].map(|port| format!("\"port_value\":{port}"));
    ensure!(text.matches(&from).count() == 1, "the template has not exactly one port {placeholder}");
    Ok(text.replace(&from, &to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_filled_in_where_there_is_one() {
        let text = r#"{"address":"127.0.0.1","port_value":64001}"#;
        assert_eq!(filled(text, 64_001, 5).unwrap(), r#"{"address":"127.0.0.1","port_value":5}"#);
        assert!(filled(text, 64_002, 5).is_err());
    }
}
