//! `leno ca rotate` and `leno ca status`.

use super::connection::Connection;
use super::context::Server;
use crate::output::Format;
use crate::screen::{shown, shown_json};
use anyhow::{Result, bail};
use jiff::Timestamp;
use leno_api::control::types::{AuthorityAnswer, RotationAction, RotationEnd, RotationRequest};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pause between two queries of its progress.
const LOOK: Duration = Duration::from_secs(1);
/// How long to look for a control plane that is away: another one may take over.
const LONGEST_SILENCE: Duration = Duration::from_secs(120);

/// The options of a rotation.
#[derive(clap::Args)]
pub(crate) struct Rotate {
    /// Only try it: every node gets the candidate's root and proves that it would accept its
    /// certificates; then the control plane withdraws the root. Ends with 1 if a node would fail.
    #[arg(long, conflicts_with = "abort")]
    drill: bool,
    /// Do not wait for this node, which has to join again if it comes back later; may be given several times, and also while a rotation waits.
    #[arg(long, value_name = "NODE", conflicts_with = "abort")]
    without: Vec<String>,
    /// Go back to the previous authority.
    #[arg(long)]
    abort: bool,
    /// Return as soon as the rotation has begun.
    #[arg(long)]
    detach: bool,
}

/// `leno ca rotate`
pub(crate) fn rotate(server: &Server, rotate: Rotate) -> Result<ExitCode> {
    let connection = Connection::to(server)?;
    let before: AuthorityAnswer = connection.get("/v1/authority")?;
    let Rotate { drill, without, abort, detach } = rotate;
    let action = match (abort, drill) {
        (true, _) => RotationAction::Abort,
        (_, true) => RotationAction::Drill,
        _ if before.phase.is_some() && !without.is_empty() => RotationAction::Without,
        _ => RotationAction::Begin,
    };
    let begun: AuthorityAnswer = connection.post("/v1/authority/rotation", &RotationRequest { action, without })?;
    if let (None, RotationAction::Begin) = (&begun.file, action) {
        eprintln!(
            "warning: keys are in the control plane's memory only; if it is started again before the end, nodes have to join again"
        );
    }
    if detach {
        return tell(&begun, false).map(|()| ExitCode::SUCCESS);
    }
    let end = follow(&connection, before.last.as_ref().map_or(0, |last| last.number))?;
    finish(&end, &connection.get::<AuthorityAnswer>("/v1/authority")?)
}

/// Reports the rotation's progress until its end. The rotation continues if this is interrupted.
/// `last`: the number of the previous rotation.
fn follow(connection: &Connection, last: u64) -> Result<RotationEnd> {
    let (mut told, mut silent) = (String::new(), Instant::now());
    loop {
        match connection.get::<AuthorityAnswer>("/v1/authority") {
            Ok(status) if status.phase.is_some() => {
                silent = Instant::now();
                let text = progress(&status);
                if text != told {
                    println!("{text}");
                    told = text;
                }
            }
            Ok(status) => match status.last {
                Some(end) if end.number != last => return Ok(end),
                _ => bail!("the rotation is lost: the control plane was started again and had its keys in memory only"),
            },
            // The control plane may have been started again, or another one will lead soon.
            Err(_) if silent.elapsed() < LONGEST_SILENCE => {}
            Err(error) => return Err(error.into()),
        }
        sleep(LOOK);
    }
}

fn finish(end: &RotationEnd, status: &AuthorityAnswer) -> Result<ExitCode> {
    if end.drill {
        for (node, reason) in &end.failed {
            println!("{} would fail: {}", shown(node), shown(reason));
        }
        if !end.failed.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
        println!("the drill is over: every node takes certificates of the candidate");
        return Ok(ExitCode::SUCCESS);
    }
    let root = status.roots.iter().find(|root| root.signs).map(|root| root.sha256.as_str()).unwrap_or_default();
    let how = if end.aborted { "aborted" } else { "over" };
    println!("the rotation is {how}: certificates are signed under the root {}", shown(root));
    if let (Some(file), false) = (&status.file, end.aborted) {
        println!("other control planes of this mesh need {} as it is now", shown(file));
    }
    Ok(ExitCode::SUCCESS)
}

/// The progress of the rotation, in a few lines.
fn progress(status: &AuthorityAnswer) -> String {
    let phase = match (status.phase.as_deref(), status.drill, status.aborted) {
        (Some("trust"), true, _) => {
            "drill: nodes are given the candidate's root, and prove that they would take its certificates"
        }
        (_, true, _) => "drill: the candidate's root is withdrawn",
        (Some("trust"), ..) => {
            "1 of 3: nodes are given both roots, and prove that they would take the candidate's certificates"
        }
        (Some("renew"), _, false) => "2 of 3: the candidate signs, and nodes renew their certificates",
        (Some("renew"), _, true) => "going back: the first authority signs again, and nodes renew their certificates",
        (_, _, true) => "going back: the candidate's root is withdrawn",
        _ => "3 of 3: the first root is withdrawn",
    };
    let mut text = phase.to_owned();
    for (node, reason) in &status.waiting {
        text.push_str(&format!("\n  waiting for {}: {}", shown(node), shown(reason)));
    }
    text
}

/// `leno ca status`
pub(crate) fn status(server: &Server, format: Format) -> Result<ExitCode> {
    tell(&Connection::to(server)?.get("/v1/authority")?, format.is_json())?;
    Ok(ExitCode::SUCCESS)
}

fn tell(status: &AuthorityAnswer, json: bool) -> Result<()> {
    if json {
        println!("{}", shown_json(&serde_json::to_string_pretty(status)?));
        return Ok(());
    }
    let day = |seconds: u64| Timestamp::from_second(i64::try_from(seconds)?).map_err(anyhow::Error::from);
    println!("authority  key {}, valid until {}", shown(&status.signs), day(status.not_after)?);
    let file = status.file.as_deref().map_or_else(|| "in memory only; a restart loses it".into(), shown);
    println!("kept       {file}");
    for root in &status.roots {
        let signs = if root.signs { ", signs" } else { "" };
        println!("root       SHA-256 {}, valid until {}{signs}", shown(&root.sha256), day(root.not_after)?);
    }
    match (&status.phase, &status.last) {
        (Some(_), _) => println!("rotation   {}", progress(status)),
        (None, Some(RotationEnd { drill, aborted, at, failed, .. })) => {
            let what = if *drill { "a drill" } else { "a rotation" };
            let how = if *aborted { "was aborted" } else { "ended" };
            println!("rotation   none; {what} {how} at {}", day(*at)?);
            for (node, reason) in failed {
                println!("  {} would fail: {}", shown(node), shown(reason));
            }
        }
        (None, None) => println!("rotation   none"),
    }
    if !status.without.is_empty() {
        let without: Vec<&str> = status.without.iter().map(String::as_str).collect();
        println!("without    {}", shown(&without.join(", ")));
    }
    status.warnings.iter().for_each(|warning| eprintln!("warning: {}", shown(warning)));
    Ok(())
}
