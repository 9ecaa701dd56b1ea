//! The mesh's authority and its rotation.

use super::error::ApiError;
use super::leading::Leading;
use super::service::Service;
use super::tokens::Caller;
use super::types::{Action, AuthorityAnswer, Role, RotationAction, RotationEnd, RotationRequest, TrustedRoot};
use leno_control::{AuthorityStatus, Phase, RotateError, RotationOutcome};
use leno_identity::Authority;
use std::collections::BTreeSet;

impl Service {
    /// The status of the authority and its rotation.
    pub fn authority(&self, caller: &Caller) -> Result<AuthorityAnswer, ApiError> {
        caller.needs(Role::Reader)?;
        if !caller.is_everywhere() {
            return Err(ApiError::Forbidden("the authority is of the whole mesh, and the token is not".to_owned()));
        }
        Ok(self.answer(self.leading()?.control.authority_status()))
    }

    /// Begins or changes a rotation. Blocks on the store.
    pub fn rotate(&self, caller: &Caller, request: RotationRequest) -> Result<AuthorityAnswer, ApiError> {
        let leading = self.of_the_mesh(caller)?;
        let RotationRequest { action, without } = request;
        let without: BTreeSet<String> = without.into_iter().collect();
        match action {
            RotationAction::Begin => leading.begin_rotation(false, without)?,
            RotationAction::Drill => leading.begin_rotation(true, without)?,
            RotationAction::Without => leading.control.rotate_without(&without)?,
            RotationAction::Abort => leading.control.abort_rotation()?,
        }
        let what = format!("the authority's rotation: {}", format!("{action:?}").to_lowercase());
        self.note(caller, what, Action::Changed)?;
        Ok(self.answer(leading.control.authority_status()))
    }

    fn answer(&self, status: AuthorityStatus) -> AuthorityAnswer {
        let phase = status.phase.map(|phase| match phase {
            Phase::Trust => "trust",
            Phase::Renew => "renew",
            Phase::Withdraw => "withdraw",
        });
        let root = |root: leno_control::RootStatus| TrustedRoot {
            sha256: root.sha256,
            not_after: root.not_after,
            signs: root.signs,
        };
        let end =
            |RotationOutcome { number, drill, aborted, at, failed }| RotationEnd { number, drill, aborted, at, failed };
        AuthorityAnswer {
            signs: status.signs,
            file: status.file,
            not_after: status.not_after,
            roots: status.roots.into_iter().map(root).collect(),
            phase: phase.map(str::to_owned),
            drill: status.drill,
            aborted: status.aborted,
            since: status.since,
            waiting: status.waiting,
            without: status.without,
            last: status.last.map(end),
            warnings: status.warnings,
        }
    }
}

impl Leading {
    fn begin_rotation(&self, drill: bool, without: BTreeSet<String>) -> Result<(), ApiError> {
        let status = self.control.authority_status();
        if status.phase.is_some() {
            return Err(ApiError::Busy("a rotation or a drill is under way; see `leno ca status`".to_owned()));
        }
        let failed = |error: &dyn std::fmt::Display| ApiError::Unavailable(error.to_string());
        let candidate = match (&self.authority_file, self.control.authorities().first()) {
            (Some(file), Some(signs)) => file.successor(signs).map_err(|error| failed(&error))?,
            _ => Authority::new(self.control.bundle().trust_domain()).map_err(|error| failed(&error))?,
        };
        Ok(self.control.rotate(candidate, drill, without)?)
    }

    /// Removes unneeded keys from the authority's file: the key of a replaced authority, or of a
    /// candidate after an abort.
    pub fn tidy_authority_file(&self) {
        let Some(file) = &self.authority_file else { return };
        let status = self.control.authority_status();
        let mut tidied = self.tidied.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let ended = status.last.as_ref().map_or(0, |last| last.number);
        if status.phase.is_some() || *tidied == Some(ended) {
            return;
        }
        // A key that a previous process has left after an abort may be meant for the next rotation.
        let given_up = tidied.is_some() && status.last.is_some_and(|last| last.aborted);
        let removed = file.open().and_then(|held| {
            let signs = held.iter().position(|one| one.key_id().to_string() == status.signs).unwrap_or(0);
            let after = if given_up { signs + 1 } else { held.len() };
            for unneeded in held[..signs].iter().chain(&held[after..]) {
                file.remove(unneeded.key_id())?;
                tracing::info!(file = %file.path().display(), key = %unneeded.key_id(), "the key of an authority was removed");
            }
            Ok(())
        });
        match removed {
            Ok(()) => *tidied = Some(ended),
            Err(error) => {
                tracing::error!(%error, "keys that are not needed any more stay in the authority's file; it is tried again")
            }
        }
    }
}

impl From<RotateError> for ApiError {
    fn from(error: RotateError) -> Self {
        match error {
            RotateError::Conflict(text) => Self::Busy(text),
            RotateError::Failed(text) => Self::Unavailable(text),
        }
    }
}
