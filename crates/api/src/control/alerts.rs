//! Alerts of all nodes and of the control plane.

use super::error::ApiError;
use super::expiry;
use super::leading::Leading;
use super::service::Service;
use super::tokens::Caller;
use super::types::Refusal;
use super::views::ViewPage;
use crate::alerts::{self, Alert, Decisions, Severity, beginnings};
use axum::Json;
use axum::extract::State;
use leno_wire::View;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

impl Service {
    async fn alerts(&self, caller: &Caller) -> Result<ViewPage, ApiError> {
        let mut page: ViewPage = self.view(caller, None, View::Alerts.query("")).await?;
        let (mut all, missing) = read(std::mem::take(&mut page.rows));
        page.missing.extend(missing);
        let mut own = self.alerts_of_leader(&*self.leading()?).await;
        self.beginnings.complete(&mut own);
        all.extend(own);
        // Those of a node or the mesh are for readers of the whole mesh.
        all.retain(|alert| caller.is_everywhere() || alert.namespace().is_some_and(|of| caller.may_know_namespace(of)));
        alerts::sort(&mut all);
        page.rows = all.iter().map(|alert| json!(alert)).collect();
        Ok(page)
    }

    /// Alerts that this control plane knows itself.
    async fn alerts_of_leader(&self, leading: &Leading) -> Vec<Alert> {
        let control = &leading.control;
        let mut all = alerts::of_control_plane(&self.statuses.of(control).await, &Decisions::of(control));
        all.extend(leading.notices());
        all.extend(leading.routes().alerts());
        all.extend(self.own_alerts());
        all
    }

    /// Late certificates of the control plane, and stored documents that are not in force.
    fn own_alerts(&self) -> Vec<Alert> {
        let fix = "docs/nodes.md has the steps; `leno ca status` shows the authority";
        let expiring = expiry::of_control_plane(self).into_iter();
        let expiring = expiring.map(|text| {
            let topic = text.split_once(" expires").map_or(&*text, |(certificate, _)| certificate).to_owned();
            Alert::new(Severity::Warning, "certificate", "control plane", text, fix).about(topic)
        });
        let problems = self.state().not_in_force.clone();
        let fix = "correct the documents and apply them again";
        let documents = problems.iter().map(|problem| {
            let text = format!("the stored documents are not in force: {problem}");
            Alert::new(Severity::Critical, "documents", "control plane", text, fix).about(problem)
        });
        expiring.chain(documents).collect()
    }
}

/// Notes when alerts of the leading control plane begin and end.
pub async fn watch(service: Arc<Service>) {
    loop {
        let began = Instant::now();
        match service.leading().ok() {
            Some(leading) => {
                let alerts = service.alerts_of_leader(&leading).await;
                service.beginnings.look(&alerts, SystemTime::now());
            }
            None => service.beginnings.forget(),
        }
        tokio::time::sleep(beginnings::pause(began.elapsed())).await;
    }
}

/// The alerts of nodes. Those of a later release may be of another form.
fn read(rows: Vec<Value>) -> (Vec<Alert>, Option<String>) {
    let all = rows.len();
    let alerts: Vec<Alert> = rows.into_iter().filter_map(|row| serde_json::from_value(row).ok()).collect();
    let unread = all - alerts.len();
    (alerts, (unread > 0).then(|| format!("{unread} alerts of nodes cannot be read")))
}

/// Conditions that need attention, the worst first: each with its severity (`critical`, `warning`, `info`, `notice`), subject, a sentence and the fix. Those of nodes and of the mesh are for tokens of the whole mesh.
#[utoipa::path(
    get, path = "/v1/alerts",
    responses(
        (status = 200, description = "Those that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn alerts(caller: Caller, State(service): State<Arc<Service>>) -> Result<Json<ViewPage>, ApiError> {
    service.alerts(&caller).await.map(Json)
}
