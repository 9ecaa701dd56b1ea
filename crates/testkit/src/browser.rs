//! A browser of the dashboard's page, as far as its server can tell.

use crate::cluster::MESH;
use crate::control::Control;
use crate::{Answer, Process, curl};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The page's mark on requests that change something.
pub const OWN_REQUEST: [&str; 2] = ["--header", "x-leno-dashboard: 1"];

/// A browser with its cookies.
pub struct Browser {
    folder: TempDir,
    base: String,
    /// Further arguments for curl.
    arguments: Vec<String>,
}

impl Browser {
    /// At a page's address.
    pub fn new(base: &str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { folder: tempfile::tempdir().unwrap(), base: base.to_owned(), arguments }
    }

    /// At the page of a control plane.
    pub fn of(control: &Control) -> Self {
        let ca = control.path("data/api.pem").display().to_string();
        Self::new(&format!("{}/dashboard/", control.url()), &["--cacert", &ca])
    }

    /// Its folder, with the cookies.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Opens an address, which may begin a session.
    pub fn open(&self, url: &str) -> Answer {
        curl(url, &self.all(&[]).iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn ask(&self, path: &str, arguments: &[&str]) -> Answer {
        curl(&format!("{}{path}", self.base), &self.all(arguments).iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn json(&self, path: &str) -> Value {
        let answer = self.ask(path, &[]);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    pub fn status(&self, path: &str, arguments: &[&str]) -> u16 {
        self.ask(path, arguments).status
    }

    pub fn sign_in(&self, token: &str) -> Answer {
        let body = json!({ "token": token }).to_string();
        self.ask("session", &[&OWN_REQUEST[..], &["--data-binary", &body]].concat())
    }

    /// A stream of events, in its output.
    pub fn stream(&self, query: &str) -> Process {
        let mut command = Command::new("curl");
        command.args(["--silent", "--no-buffer", "--noproxy", "*"]).args(self.all(&[]));
        Process::spawn(command.arg(format!("{}api/stream?{query}", self.base))).unwrap()
    }

    fn all(&self, arguments: &[&str]) -> Vec<String> {
        let cookies = self.folder.path().join("cookies").display().to_string();
        let own = ["--cookie", &*cookies, "--cookie-jar", &*cookies];
        own.iter().chain(arguments).map(|&argument| argument.to_owned()).chain(self.arguments.clone()).collect()
    }
}

/// The data of a stream's events of one kind.
pub fn events(stream: &Process, kind: &str) -> Vec<Value> {
    let begin = format!("event: {kind}\ndata: ");
    let output = stream.output();
    // The last one may not be whole.
    let whole = output.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
    whole
        .split("\n\n")
        .filter_map(|event| event.strip_prefix(&begin))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// A control plane that serves the page.
pub fn control_with_page() -> Control {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mesh.yaml"), MESH).unwrap();
    Control::start(folder, &["--mesh", "mesh.yaml", "--dashboard"])
}
