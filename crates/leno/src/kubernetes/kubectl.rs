//! The cluster, by the `kubectl` of this machine, which has the user's credentials and plug-ins for
//! signing in.

use super::chart::NAMESPACE;
use crate::screen::shown;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};

/// The oldest Kubernetes: TokenReviews name the node since.
const OLDEST: (u64, u64) = (1, 30);

/// The cluster that a command is about.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Cluster {
    /// Context of the kubeconfig; default: its current one.
    #[arg(long, value_name = "NAME")]
    kube_context: Option<String>,
    /// The kubectl to use.
    #[arg(long, value_name = "PROGRAM", env = "KUBECTL", default_value = "kubectl")]
    kubectl: String,
}

impl Cluster {
    /// Runs kubectl with an input, and returns its output.
    ///
    /// # Errors
    /// kubectl is missing, or fails: the error has its message.
    pub(crate) fn run(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut command = Command::new(&self.kubectl);
        if let Some(context) = &self.kube_context {
            command.args(["--context", context]);
        }
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                anyhow::anyhow!("`{}` is not on the PATH: install kubectl, or name it with --kubectl", self.kubectl)
            }
            _ => anyhow::Error::new(error).context(self.kubectl.clone()),
        })?;
        let mut stdin = child.stdin.take().context("kubectl has no input")?;
        let input = input.to_owned();
        // kubectl may end before it has read all.
        let writing = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output()?;
        let _ = writing.join();
        let errors = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let lines: Vec<_> = errors.trim().lines().map(|line| shown(line).into_owned()).collect();
            bail!("kubectl {}: {}", arguments.join(" "), lines.join("\n"));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Fails if Helm has installed Leno, which then has to change and remove it too.
    pub(crate) fn check_owner(&self) -> Result<()> {
        let releases = ["get", "secrets", "--namespace", NAMESPACE, "--selector=owner=helm", "--output=name"];
        ensure!(
            self.run(&releases, "")?.is_empty(),
            "Helm has installed Leno here: use `helm upgrade` or `helm uninstall` with the name from `helm list --namespace {NAMESPACE}`"
        );
        Ok(())
    }

    /// Applies objects. Returns their number. Definitions that Helm has kept become Leno's.
    pub(crate) fn apply(&self, objects: &str) -> Result<usize> {
        let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=leno", "--filename=-"];
        let applied = self.run(&apply, objects)?;
        Ok(applied.lines().count())
    }

    /// Runs kubectl, whose output is JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(arguments, "")?;
        serde_json::from_str(&text).with_context(|| format!("kubectl {}: its output is no JSON", arguments.join(" ")))
    }

    /// The release of the API server, such as `v1.37.0`.
    ///
    /// # Errors
    /// It does not answer, or is too old for Leno.
    pub(crate) fn check_version(&self) -> Result<String> {
        let version = &self.json(&["version", "--output=json"])?["serverVersion"];
        let number = |name: &str| -> Option<u64> {
            let text = version[name].as_str()?;
            text.trim_end_matches(|it: char| !it.is_ascii_digit()).parse().ok()
        };
        let found = number("major").zip(number("minor")).context("the API server does not say its release")?;
        let release = version["gitVersion"].as_str().unwrap_or_default().to_owned();
        ensure!(found >= OLDEST, "this is Kubernetes {release}, and Leno needs {}.{}", OLDEST.0, OLDEST.1);
        Ok(release)
    }

    /// The groups with versions, and with kinds, that the cluster has.
    pub(crate) fn api_versions(&self) -> Result<Vec<String>> {
        Ok(self.run(&["api-versions"], "")?.lines().map(str::to_owned).collect())
    }
}
