//! Promotion, pause and undo at a control plane.

use super::audit;
use super::error::ApiError;
use super::leading::Leading;
use super::service::{Service, entry};
use super::tokens::Caller;
use super::types::{Action, AuditChange, ChangeRequest, ExpectedVersion, File, Role};
use crate::rollouts::{RolloutAnswer, RolloutRequest};
use leno_config::{DocumentId, with_traffic};
use leno_control::{SteerError, Transaction};
use leno_model::FunctionId;
use std::sync::Arc;
use tokio::task::block_in_place;

impl Leading {
    /// Changes the rollouts of a function, or its stored document.
    pub(super) async fn roll_out(
        self: &Arc<Self>,
        service: &Arc<Service>,
        caller: &Caller,
        id: &FunctionId,
        request: &RolloutRequest,
    ) -> Result<RolloutAnswer, ApiError> {
        caller.needs(if request.dry_run { Role::Reader } else { Role::Editor })?;
        let action = request.action().map_err(|error| ApiError::Bad(error.to_owned()))?;
        let not_found = || ApiError::NotFound(format!("function {id}"));
        let FunctionId { namespace, name } = id.clone();
        let document = DocumentId { kind: "Function".to_owned(), namespace, name };
        let stored = service.state().entries.documents.get(&document).cloned();
        let stored = stored.filter(|_| caller.may_know(id)).ok_or_else(not_found)?;
        if request.if_version.is_some_and(|version| version != stored.version) {
            return Err(ApiError::Conflict(document.to_string()));
        }
        let audited = entry(caller, vec![AuditChange { what: request.words(id), action: Action::Changed, before: 0 }]);
        let mut noted = Transaction::default();
        audit::add(&mut noted, &audited)?;
        let noted = (!request.dry_run).then_some(noted);
        let steered = block_in_place(|| self.control.steer(id, &action, &caller.name, noted))?;
        let change = steered.map_err(|error| match error {
            SteerError::NoFunction(_) => not_found(),
            error => ApiError::Busy(error.to_string()),
        })?;
        let answer = RolloutAnswer::of(id, change);
        let Some(traffic) = &answer.traffic else {
            if !request.dry_run {
                service.log(&audited);
            }
            return Ok(answer);
        };
        let text = with_traffic(&stored.value.text, id, traffic).ok_or_else(|| {
            let fix = "apply the document with the new `traffic`, which a dry run shows";
            ApiError::Busy(format!("the stored {document} is written in a form that is not edited; {fix}"))
        });
        // A dry run shows the change of such a document nevertheless.
        let text = match text {
            Err(_) if request.dry_run => return Ok(answer),
            text => text?,
        };
        let change = ChangeRequest {
            apply: vec![File { name: request.words(id), text }],
            expect: vec![ExpectedVersion { document: (&document).into(), version: stored.version }],
            dry_run: request.dry_run,
            ..ChangeRequest::default()
        };
        let change = self.change(service, caller, change).await?;
        Ok(RolloutAnswer { change: Some(change), ..answer })
    }
}
