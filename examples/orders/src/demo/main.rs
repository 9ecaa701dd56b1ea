//! Starts the shop behind Leno, drives it with real requests, and prints the effect of each of the
//! nine policies: the request, the response, and the rule that decided. Ends with a failure if
//! anything is not as expected. On a terminal the shop then stays open.
//!
//! With `--containers` the functions are images from a registry that this program starts.
#![forbid(unsafe_code)]

mod client;
mod containers;
mod jails;
mod log;
mod node;
mod policies;
mod report;
mod stage;
mod tls;
mod token;

use node::Leno;
use orders::server::told_to_end;
use report::Report;
use stage::{Ports, Programs, Stage};
use std::io::IsTerminal;
use std::process::ExitCode;
use token::{Claims, Issuer};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("orders-demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The number of expectations that were not met.
async fn run() -> Result<usize> {
    let programs = match std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [] => Programs::OfThisMachine,
        [ref option] if option == "--containers" => Programs::InContainers,
        _ => return Err("expected no arguments, or --containers".into()),
    };
    let issuer = Issuer::generate()?;
    let (stage, mut leno) = match start(&issuer, Ports::Documented, programs).await {
        Ok(started) => started,
        // Another process, perhaps another demo, was faster to take a port.
        Err(error) if error.to_string().contains("Address already in use") => {
            start(&issuer, Ports::Any, programs).await?
        }
        Err(error) => return Err(error),
    };
    let mut report = Report::default();
    let mut interruption = std::pin::pin!(told_to_end());
    let played = tokio::select! {
        played = play(&mut report, &issuer, &stage, &leno) => played,
        () = &mut interruption => Err("it was interrupted".into()),
    };
    if let Err(error) = played {
        report.broke_off(error.as_ref());
    } else if report.failures() == 0 && std::io::stdin().is_terminal() {
        invite(&issuer, &stage);
        interruption.await;
        println!();
    }
    leno.end(&mut report).await?;
    report.conclude();
    if report.failures() == 0 {
        stage.remove()?;
    } else {
        println!("the documents, the access log and leno's own log are in {}", stage.folder.display());
    }
    Ok(report.failures())
}

async fn start(issuer: &Issuer, ports: Ports, programs: Programs) -> Result<(Stage, Leno)> {
    let mut stage = Stage::prepare(issuer, ports)?;
    if programs == Programs::InContainers {
        println!("== making images of the functions, and pushing them to a registry of our own");
        if let Err(error) = stage.contain().await {
            stage.remove()?;
            return Err(error);
        }
    }
    println!("== starting leno with the documents in {}", stage.folder.display());
    match Leno::start(&stage).await {
        Ok(leno) => Ok((stage, leno)),
        Err(error) => {
            stage.remove()?;
            Err(error)
        }
    }
}

async fn play(report: &mut Report, issuer: &Issuer, stage: &Stage, leno: &Leno) -> Result<()> {
    println!("== {}\n", leno.engine()?);
    let shop = policies::Shop { issuer, stage, leno };
    policies::authentication(&shop, report).await?;
    policies::sidecar(&shop, report).await?;
    policies::authorization(&shop, report).await?;
    policies::rate_limit(&shop, report).await?;
    policies::tracing_and_logs(&shop, report).await?;
    policies::mutual_tls(&shop, report).await?;
    policies::mutual_tls_on_one_node(&shop, report).await?;
    policies::retry(&shop, report).await?;
    policies::circuit_breaker(&shop, report).await?;
    jails::intruder(&shop, report).await
}

/// Explains how to continue by hand.
fn invite(issuer: &Issuer, stage: &Stage) {
    let token = issuer.token(&Claims::of("you").role("admin").valid_for(3600));
    let (gateway, admin) = (stage.gateway, stage.admin.display());
    println!("\nThe shop stays open until Ctrl-C. A token for the next hour:\n\n  TOKEN={token}\n");
    println!(
        "  curl -i http://{gateway}/orders -H \"authorization: Bearer $TOKEN\" -d '{{\"id\": \"o-1\", \"item\": \"lamp\", \"quantity\": 2}}'"
    );
    println!("  curl -i http://{gateway}/whoami -H \"authorization: Bearer $TOKEN\"");
    println!("  {} explain --admin unix:{admin} <x-request-id of the answer>", stage.leno.display());
    println!("  curl --unix-socket {admin} http://admin/metrics");
    println!("  tail -f {}\n", stage.access_log().display());
    println!("The documents in {} can be changed while it runs.", stage.folder.display());
}
