//! The nodes of other controllers.
//!
//! Each node is connected to one controller, and only one controller writes status. The others put
//! the progress of their nodes into a ConfigMap, which the leader reads while a node is missing.

use super::programming::{NodeProgress, Programming};
use crate::publication::Publication;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error};
use leno_control::Control;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
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

/// The progress of one controller's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerReport {
    /// When it was written, in seconds since 1970.
    pub at: i64,
    /// The documents that the controller has published.
    pub documents: String,
    /// Connected nodes that have confirmed everything.
    pub current: BTreeSet<String>,
    /// Connected nodes that have not, or have refused something.
    pub behind: BTreeSet<String>,
}

impl PeerReport {
    /// The report on a control plane.
    fn of(control: &Control, publication: &Publication) -> Self {
        let (mut current, mut behind) = (BTreeSet::new(), BTreeSet::new());
        for (name, progress) in Programming::of(control).nodes {
            match progress {
                NodeProgress::Current => drop(current.insert(name)),
                NodeProgress::Behind | NodeProgress::Rejected(_) => drop(behind.insert(name)),
                NodeProgress::Away => {}
            }
        }
        Self { at: 0, documents: publication.digest(), current, behind }
    }
}

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

    /// Reports on a control plane until it is dropped. Without nodes there is nothing to report.
    pub(crate) async fn report(
        &self,
        control: &Control,
        publications: &watch::Receiver<Arc<Publication>>,
    ) -> Infallible {
        let (mut written, mut at) = (PeerReport::default(), Instant::now());
        loop {
            sleep(LOOK).await;
            let publication = publications.borrow().clone();
            let report = PeerReport::of(control, &publication);
            let has_nodes = |report: &PeerReport| !report.current.is_empty() || !report.behind.is_empty();
            let is_due = report != written || at.elapsed() > REPEAT;
            if !is_due || !has_nodes(&report) && !has_nodes(&written) {
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

    /// The reports of controllers that run; none if they cannot be read.
    pub(crate) async fn read(&self) -> Vec<PeerReport> {
        let Ok(Ok(Some(map))) = timeout(REQUEST, self.api.get_opt(NAME)).await else { return Vec::new() };
        let reports: BTreeMap<String, String> = map.data.unwrap_or_default();
        let others = reports.into_iter().filter(|(identity, _)| *identity != self.identity);
        let now = Timestamp::now().as_second();
        let reports = others.filter_map(|(_, text)| serde_json::from_str::<PeerReport>(&text).ok());
        reports.filter(|report| now.saturating_sub(report.at) < OLD).collect()
    }
}
