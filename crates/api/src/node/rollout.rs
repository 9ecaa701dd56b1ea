//! Promotion, pause and undo for the control plane in this process.

use super::listener::Access;
use super::{Admin, ELSEWHERE, MOST_ASKED, list, reply};
use crate::rollouts::{RolloutAnswer, RolloutRequest};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use leno_control::{PublishError, Transaction};
use leno_model::FunctionId;
use serde_json::json;

impl Admin {
    /// Changes the rollouts of a function, `NAMESPACE/NAME`.
    pub(super) async fn roll_out(
        &self,
        access: &Access,
        function: &str,
        request: Request<Incoming>,
    ) -> Response<Full<Bytes>> {
        let text = |status, body: &str| reply(status, "text/plain", format!("{body}\n"));
        // A token may be for monitoring.
        if !matches!(access, Access::Full) {
            let refusal = "rollouts are changed at the Unix socket, by the node's account or root";
            return text(StatusCode::FORBIDDEN, refusal);
        }
        let Some(control) = self.control.clone() else {
            return text(StatusCode::NOT_FOUND, ELSEWHERE.trim_end());
        };
        let body = Limited::new(request.into_body(), MOST_ASKED).collect().await;
        let ask = body.map_err(|error| error.to_string()).and_then(|body| {
            let ask = serde_json::from_slice::<RolloutRequest>(&body.to_bytes()).map_err(|error| error.to_string())?;
            let id = function.parse::<FunctionId>().map_err(|error| error.to_string())?;
            Ok((id, ask.action()?, ask.dry_run))
        });
        let (id, action, dry_run) = match ask {
            Ok(ask) => ask,
            Err(error) => return text(StatusCode::BAD_REQUEST, &error),
        };
        let noted = (!dry_run).then(Transaction::default);
        let steered = tokio::task::spawn_blocking(move || {
            let steered = control.steer(&id, &action, "the node's account", noted)?;
            Ok::<_, PublishError>(steered.map(|change| RolloutAnswer::of(&id, change)))
        });
        match steered.await.map_err(|error| error.to_string()) {
            Ok(Ok(Ok(answer))) => list(json!(answer)),
            Ok(Ok(Err(error))) => text(StatusCode::CONFLICT, &error.to_string()),
            Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error),
        }
    }
}
