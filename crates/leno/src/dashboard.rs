//! `leno dashboard`: a page that shows the mesh, for browsers of this machine.

use crate::NodeAddress;
use crate::client::Source;
use crate::remote::Server;
use crate::screen::shown;
use crate::signals::Stop;
use anyhow::{Context, Result, ensure};
use leno_dashboard::web::{self, Base, Dashboard, OneTimeToken, SignIn};
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use tokio::net::TcpListener;

/// The page's address, and the process that answers.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Loopback address and port at which it listens; port 0: any free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Path of the page, if a proxy serves it among others; the proxy passes paths on unchanged.
    #[arg(long, value_name = "PATH", default_value = "/")]
    base: Base,
    /// Only print the address, without opening it in a browser.
    #[arg(long)]
    no_open: bool,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    node: NodeAddress,
}

/// Serves the page until interrupted.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { listen, base, no_open, server, node } = arguments;
    ensure!(
        listen.ip().is_loopback(),
        "{listen} is no loopback address: the page has your rights, and HTTP does not protect it on a network. \
         `leno control --dashboard` serves it over HTTPS"
    );
    let source = Arc::new(Source::of(server, node)?);
    // Without an answer now, the page would have none either.
    source.look()?;
    warn_without_page();
    let (token, text) = OneTimeToken::new()?;
    let dashboard = Dashboard::new(web::Options {
        base: base.clone(),
        sign_in: SignIn::Command(token, source),
        is_own_host: Box::new(|_| false),
        secure: false,
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let mut stop = Stop::new()?;
        let listener = TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {listen} (--listen)"))?;
        let url = format!("http://{}{}?token={text}", listener.local_addr()?, base);
        println!("{url}");
        eprintln!("leno: the address is valid once, within ten minutes; Ctrl-C ends the page");
        if !no_open {
            open(&url);
        }
        tokio::select! {
            () = web::serve(dashboard.router(), listener) => {}
            () = stop.asked() => {}
        }
        anyhow::Ok(())
    })?;
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// Says so if the program has no page to serve.
pub(crate) fn warn_without_page() {
    if !web::has_page() {
        eprintln!("leno: this program was built without the page: run `make ui`, and build it again");
    }
}

/// Opens an address in the browser of the desktop, if there is one.
fn open(url: &str) {
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if !has_display {
        return;
    }
    let opener =
        Command::new("xdg-open").arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    if let Err(error) = opener {
        eprintln!("leno: xdg-open cannot open it: {}", shown(&error.to_string()));
    }
}
