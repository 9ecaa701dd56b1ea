//! `boutique NAME`: the function of this name, on the port in `PORT`, at the address in `HOST` (the
//! default is 127.0.0.1). `BOUTIQUE_TRANSPORT` selects the transport of its calls: `http` (the
//! default), `grpc` or `chain`.
#![forbid(unsafe_code)]

use boutique::function::{Function, NAMES, is_entry};
use boutique::transport::{chain, grpc, http};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    match run(&name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("boutique {name}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let function = Function::new(name).ok_or_else(|| format!("expected one of {}", NAMES.join(", ")))?;
    let transport = std::env::var("BOUTIQUE_TRANSPORT").unwrap_or_else(|_| "http".into());
    if transport == "chain" {
        return Ok(chain::serve(&function)?);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut end = signal(SignalKind::terminate())?;
        tokio::select! {
            served = serve(name, function, &transport) => served,
            // The process that sends the signal has made sure that no requests are under way.
            _ = end.recv() => Ok(()),
        }
    })
}

async fn serve(name: &str, function: Function, transport: &str) -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::var("PORT").ok().and_then(|port| port.parse().ok()).ok_or("PORT is not a port")?;
    let host = std::env::var("HOST").unwrap_or_else(|_| "127.0.0.1".into());
    let host: IpAddr = host.parse().map_err(|_| format!("HOST is `{host}`, not an IP address"))?;
    let listener = TcpListener::bind(SocketAddr::from((host, port))).await?;
    match transport {
        "http" => http::serve(function, http::Http::from_env()?, listener).await?,
        // Clients outside of the application are browsers, which speak no gRPC.
        "grpc" if is_entry(name) => http::serve(function, grpc::Grpc::from_env()?, listener).await?,
        "grpc" => grpc::serve(function, grpc::Grpc::from_env()?, listener).await?,
        other => return Err(format!("BOUTIQUE_TRANSPORT is `{other}`: expected `http`, `grpc` or `chain`").into()),
    }
    Ok(())
}
