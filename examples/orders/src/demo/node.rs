//! `leno up` as a child process.

use crate::Result;
use crate::client::{Answer, send_to};
use crate::report::{Line, Report};
use crate::stage::Stage;
use http_body_util::Full;
use hyper::Request;
use serde::Deserialize;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};

/// Compiling sandboxes takes longest.
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(30);

/// A running node.
pub(crate) struct Leno {
    child: Child,
    admin: PathBuf,
    own_log: PathBuf,
}

/// A running instance of a function.
#[derive(Debug, Deserialize)]
pub(crate) struct Instance {
    pub function: String,
    pub pid: Option<u32>,
    pub address: String,
    pub isolation: Option<String>,
}

/// A part of the output of `leno observe`.
#[derive(Debug, Deserialize)]
pub(crate) struct Flow {
    pub kind: String,
    pub source: String,
    pub verdict: String,
    pub what: String,
    pub host: String,
    #[serde(default)]
    pub reason: String,
}

impl Leno {
    /// Returns when the node is ready.
    pub(crate) async fn start(stage: &Stage) -> Result<Self> {
        let own_log = File::create(stage.own_log())?;
        let child = Command::new(&stage.leno)
            .arg("up")
            .arg(&stage.folder)
            .stdin(Stdio::null())
            .stdout(own_log.try_clone()?)
            .stderr(own_log)
            // Ctrl-C on a terminal is for this program, which then ends the node.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{}: {error}", stage.leno.display()))?;
        let mut leno = Self { child, admin: stage.admin.clone(), own_log: stage.own_log() };
        match tokio::time::timeout(START, leno.ready()).await {
            Ok(Ok(())) => Ok(leno),
            Ok(Err(error)) => Err(leno.explained(&error.to_string())),
            Err(_) => Err(leno.explained(&format!("leno was not ready within {START:?}"))),
        }
    }

    async fn ready(&mut self) -> Result<()> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("leno ended: {status}").into());
            }
            if self.ask("/readyz").await.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn explained(&self, what: &str) -> Box<dyn std::error::Error> {
        let log = std::fs::read_to_string(&self.own_log).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(20).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!("{what}; the last it said was:\n{}", last.join("\n")).into()
    }

    async fn ask(&self, path: &str) -> Result<Answer> {
        let request = Request::get(path).header("host", "admin").body(Full::default())?;
        send_to(&self.admin, request).await
    }

    async fn list<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T> {
        let answer = self.ask(path).await?;
        serde_json::from_str(&answer.body).map_err(|error| format!("{path}: {error}: {}", answer.body).into())
    }

    /// How the node isolates requests, in the words of its log.
    pub(crate) fn engine(&self) -> Result<String> {
        let log = std::fs::read_to_string(&self.own_log)?;
        let line = log.lines().find_map(|line| line.split_once("sandbox engine: "));
        Ok(format!("each request is judged in a fresh sandbox: {}", line.map_or("?", |(_, engine)| engine)))
    }

    pub(crate) async fn instances(&self) -> Result<Vec<Instance>> {
        self.list("/instances").await
    }

    /// The flows that the node reports to `leno observe`.
    pub(crate) async fn flows(&self) -> Result<Vec<Flow>> {
        #[derive(Deserialize)]
        struct Answer {
            flows: Vec<Flow>,
        }
        Ok(self.list::<Answer>("/flows").await?.flows)
    }

    /// Why instances have no jails, in the words of the node's log.
    pub(crate) fn no_jails(&self) -> Result<String> {
        let log = std::fs::read_to_string(&self.own_log)?;
        let line = log.lines().find_map(|line| line.split_once("instances are not in jails: "));
        Ok(line.map_or("?", |(_, reason)| reason).to_owned())
    }

    pub(crate) async fn identities(&self) -> Result<Vec<Value>> {
        self.list("/identities").await
    }

    /// The records that the node reports to `leno explain`.
    pub(crate) async fn explanation(&self, request_id: &str) -> Result<Vec<Value>> {
        self.list(&format!("/explain/{request_id}")).await
    }

    /// Sends SIGTERM. Then no process of the node may be left.
    pub(crate) async fn end(&mut self, report: &mut Report) -> Result<()> {
        let pids: Vec<u32> = self.instances().await?.iter().filter_map(|instance| instance.pid).collect();
        let mut line = Line::new("(end)", format!("SIGTERM, with {} instances running", pids.len()));
        if let Some(pid) = self.child.id() {
            let kill = Command::new("kill").args(["-TERM", &pid.to_string()]).status().await?;
            line.expect(kill.success(), "SIGTERM can be sent");
        }
        match tokio::time::timeout(END, self.child.wait()).await {
            Ok(status) => {
                let status = status?;
                line.back = status.to_string();
                line.expect(status.success(), "leno ends with exit status 0");
            }
            Err(_) => {
                self.child.kill().await?;
                line.back = format!("still there after {END:?}");
                line.expect(false, "leno ends by itself");
            }
        }
        let left: Vec<u32> = pids.into_iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).collect();
        line.rule =
            if left.is_empty() { "no process is left".to_owned() } else { format!("processes {left:?} are left") };
        line.expect(left.is_empty(), "no process is left");
        report.print(line);
        Ok(())
    }
}
