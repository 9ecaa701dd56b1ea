//! The status of Gateways and routes.

use super::error::ApiError;
use super::service::Service;
use super::tokens::Caller;
use super::types::{Refusal, Role};
use super::views::ViewPage;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Listeners of Gateways: whether gateways serve them, their routes, and conditions of the Gateway API.
#[utoipa::path(
    get, path = "/v1/gateways",
    responses(
        (status = 200, description = "Those that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn gateways(caller: Caller, State(service): State<Arc<Service>>) -> Result<Json<ViewPage>, ApiError> {
    caller.needs(Role::Reader)?;
    let leading = service.leading()?;
    let faults = leading.control.listener_faults();
    let rows = leading.routes().gateways(|namespace| caller.may_know_namespace(namespace), &faults);
    Ok(Json(ViewPage { rows, ..ViewPage::default() }))
}

/// Routes of the Gateway API: whether their parents accept them, and the conditions of each.
#[utoipa::path(
    get, path = "/v1/routes",
    responses(
        (status = 200, description = "Those that the token may read.", body = ViewPage),
        (status = 401, description = "There is no valid token.", body = Refusal),
        (status = 421, description = "Another control plane leads; `leader` is its address.", body = Refusal),
    )
)]
pub(super) async fn routes(caller: Caller, State(service): State<Arc<Service>>) -> Result<Json<ViewPage>, ApiError> {
    caller.needs(Role::Reader)?;
    let rows = service.leading()?.routes().routes(|namespace| caller.may_know_namespace(namespace));
    Ok(Json(ViewPage { rows, ..ViewPage::default() }))
}
