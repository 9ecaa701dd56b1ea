//! The nodes of other controllers.
//!
//! Each node is connected to one controller, and only one controller writes status. The others put
//! the progress of their nodes into a ConfigMap, which the leader reads while a node is missing.

use super::captures::Captures;
use super::programming::PeerReport;
use crate::publication::Publication;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error};
use leno_control::Control;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// The ConfigMap.
const NAME: &str = "leno-controller-nodes";
/// Pause between looks at this controller's nodes.
const LOOK: Duration = Duration::from_millis(500);
/// A report is written again after this time, so that readers know that its controller runs.
const REPEAT: Duration = Duration::from_secs(10);
/// Age of a report whose controller is gone, in seconds. Clocks may differ a little.
const OLD: i64 = 60;
/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(4);

/// The reports of all controllers.
#[derive(Clone)]
pub struct Peers {
    api: Api<ConfigMap>,
    identity: String,
}

impl Peers {
    /// The reports in a namespace, for a controller of this name.
    pub fn new(client: Client, namespace: &str, identity: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), identity: identity.to_owned() }
    }

    /// Reports on a control plane until it is dropped.
    pub async fn report(
        &self,
        control: &Control,
        publications: &watch::Receiver<Arc<Publication>>,
        captures: &watch::Receiver<Arc<Captures>>,
    ) -> Infallible {
        let (mut written, mut at) = (PeerReport::default(), Instant::now());
        let mut is_tidy = false;
        loop {
            sleep(LOOK).await;
            if !is_tidy {
                is_tidy = matches!(timeout(REQUEST, self.remove_old()).await, Ok(Ok(())));
            }
            let publication = publications.borrow().clone();
            let report = PeerReport::of(control, &publication, &captures.borrow());
            if report == written && at.elapsed() <= REPEAT {
                continue;
            }
            let now = PeerReport { at: Timestamp::now().as_second(), ..report.clone() };
            match timeout(REQUEST, self.write(&now)).await {
                Ok(Ok(())) => (written, at) = (report, Instant::now()),
                Ok(Err(error)) => tracing::debug!(%error, "the progress of nodes is not written yet"),
                Err(_) => tracing::debug!("the progress of nodes is not written yet"),
            }
        }
    }

    async fn write(&self, report: &PeerReport) -> Result<(), Error> {
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME},
            "data": {&self.identity: json!(report).to_string()},
        });
        let parameters = PatchParams::apply(&format!("leno-controller/{}", self.identity)).force();
        self.api.patch(NAME, &parameters, &Patch::Apply(map)).await.map(drop)
    }

    /// The reports of the other controllers that run; none if they cannot be read.
    pub(crate) async fn read(&self) -> Vec<PeerReport> {
        self.by_name().await.unwrap_or_default().into_values().collect()
    }

    /// The same by the names of the controllers.
    pub(crate) async fn by_name(&self) -> Option<BTreeMap<String, PeerReport>> {
        let map = timeout(REQUEST, self.api.get_opt(NAME)).await.ok()?.ok()?;
        let reports = map.and_then(|map| map.data).unwrap_or_default();
        let others = reports.into_iter().filter(|(identity, _)| *identity != self.identity);
        let now = Timestamp::now().as_second();
        Some(others.filter_map(|(identity, text)| Some((identity, recent(&text, now)?))).collect())
    }

    /// Removes the reports of controllers that are gone: each rollout would add some.
    async fn remove_old(&self) -> Result<(), Error> {
        let Some(map) = self.api.get_opt(NAME).await? else { return Ok(()) };
        let old = old(&map.data.unwrap_or_default(), Timestamp::now().as_second());
        if old.is_empty() {
            return Ok(());
        }
        let nothing: Map<String, Value> = old.into_iter().map(|identity| (identity, Value::Null)).collect();
        let patch = Patch::Merge(json!({ "data": nothing }));
        self.api.patch(NAME, &PatchParams::default(), &patch).await.map(drop)
    }
}

/// A report of a controller that runs; `None`: it is gone, or the text is no report.
fn recent(text: &str, now: i64) -> Option<PeerReport> {
    serde_json::from_str::<PeerReport>(text).ok().filter(|report| now.saturating_sub(report.at) < OLD)
}

/// The keys of the other reports.
fn old(reports: &BTreeMap<String, String>, now: i64) -> Vec<String> {
    let old = reports.iter().filter(|(_, text)| recent(text, now).is_none());
    old.map(|(identity, _)| identity.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_controllers_that_are_gone_are_removed() {
        let report = |at| json!(PeerReport { at, ..PeerReport::default() }).to_string();
        let reports = [("new", report(1000)), ("old", report(1000 - OLD)), ("ahead", report(1005))];
        let mut reports: BTreeMap<_, _> = reports.map(|(name, text)| (name.to_owned(), text)).into();
        reports.insert("broken".to_owned(), "{".to_owned());
        assert_eq!(old(&reports, 1000), ["broken", "old"]);
    }
}
