//! `leno-bench instance`: an instance of the calling function. It gives the load its credential for
//! the outbound sidecar.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where the value of `proxy-authorization` is written.
    #[arg(long, value_name = "FILE")]
    credential: PathBuf,
}

/// Accepts connections, so that it counts as ready, until it is ended.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let port: u16 = std::env::var("PORT").context("PORT")?.parse().context("PORT")?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let proxy = std::env::var("HTTP_PROXY").context("HTTP_PROXY")?;
    let user = proxy.strip_prefix("http://").and_then(|rest| rest.split_once('@')).context("HTTP_PROXY has no user")?.0;
    let partial = arguments.credential.with_extension("partial");
    fs::write(&partial, format!("Basic {}", STANDARD.encode(user)))?;
    fs::rename(partial, &arguments.credential)?;
    loop {
        drop(listener.accept()?);
    }
}
