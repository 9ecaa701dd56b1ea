//! Identifies the caller of each request: its credential, and its function.

use super::{Connection, Proof};
use crate::pipeline::exchange::Origin;
use crate::pipeline::worker::PinnedSnapshot;
use crate::state::credential::Caller;
use crate::state::function::{EVENT, FunctionEntry};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::{HeaderMap, HeaderValue, header};
use leno_http::failure::{Failure, Unproven};
use leno_http::peer::TrafficDirection;
use std::rc::Rc;
use std::sync::Arc;
use zeroize::Zeroizing;

impl Connection {
    /// Outbound: the instance that authenticated last.
    pub(in crate::listener) fn known_caller(&self) -> Option<Arc<Caller>> {
        self.caller.borrow().as_ref().map(|(_, caller)| caller.clone())
    }

    /// The snapshot for a request, and its origin. Outbound requests have been authenticated.
    pub(super) fn origin(&self, caller: Option<Arc<Caller>>) -> Result<(Rc<PinnedSnapshot>, Origin), Failure> {
        match self.direction {
            TrafficDirection::Gateway => {
                let snapshot = self.worker.snapshot();
                // Functions are exposed at the ports of the Mesh document only.
                let is_served = !self.opened || snapshot.gateway_routes.opens(self.port);
                if is_served { Ok((snapshot, Origin::Gateway)) } else { Err(Failure::NoRoute) }
            }
            TrafficDirection::Inbound => {
                let of_pod = self.pod.as_ref().map(|connection| connection.pod.function());
                let found = self.function.as_ref().or(of_pod.as_ref());
                let found = found.and_then(|function| self.worker.snapshot_with(function));
                let (snapshot, entry) = found.ok_or(Failure::Misdirected)?;
                Ok((snapshot, Origin::Inbound(entry)))
            }
            TrafficDirection::Outbound => {
                let caller = caller.filter(|caller| !caller.is_revoked()).ok_or(Failure::Credential)?;
                let (snapshot, entry) = self.of_caller(&caller)?;
                Ok((snapshot, Origin::Outbound(entry, Some(caller))))
            }
        }
    }

    fn of_caller(&self, caller: &Caller) -> Result<(Rc<PinnedSnapshot>, Arc<FunctionEntry>), Failure> {
        let found = self.worker.snapshot_with(&caller.function);
        // The credential is a good one.
        found.ok_or_else(|| Failure::Ended { reason: format!("{} was removed", caller.function) })
    }

    /// The instance that sends a request: the request's credential names it, unless the connection
    /// knows it from the beginning.
    pub(super) async fn authenticate(&self, headers: &HeaderMap) -> Result<Option<Arc<Caller>>, Failure> {
        if self.direction != TrafficDirection::Outbound {
            return Ok(None);
        }
        let (caller, known) = self.caller(headers).ok_or(Failure::Credential)?;
        if !known {
            // Boxed because it is rare: once for each connection.
            Box::pin(self.prove(&caller)).await?;
            // From now on, the caller is known on this connection.
            let proof = headers.get(header::PROXY_AUTHORIZATION).map(|field| field.as_bytes().to_vec());
            *self.caller.borrow_mut() = proof.map(|proof| (Rc::new(Zeroizing::new(proof)), caller.clone()));
        }
        Ok(Some(caller))
    }

    /// Checks that the instance of the credential has opened the connection.
    async fn prove(&self, caller: &Arc<Caller>) -> Result<(), Failure> {
        self.of_caller(caller)?;
        let address = self.peer.address;
        let proven = match self.accepted_at {
            Some(accepted_at) => caller.verify_opener(address, accepted_at).await,
            None => Err(Unproven("the connection is gone".to_owned())),
        };
        let (_, entry) = self.of_caller(caller)?;
        if let (Ok(()), Some(share), Some(attribution)) = (&proven, entry.share(), &self.attribution) {
            attribution.set(&caller.instance, share).map_err(|refused| Failure::Bound(refused.reason().to_owned()))?;
        }
        proven.map_err(|unproven| {
            if entry.may_log(EVENT) {
                tracing::warn!(instance = %caller.instance, %address, %unproven, "a credential is refused");
            }
            self.worker.recorder.metrics().unproven(&entry.name, "caller");
            Failure::StolenCredential(unproven)
        })
    }

    /// The instance that a request's credential names. The flag says whether this connection
    /// already knows the instance.
    fn caller(&self, headers: &HeaderMap) -> Option<(Arc<Caller>, bool)> {
        let known = self.caller.borrow();
        let (caller, known) = match (headers.get(header::PROXY_AUTHORIZATION), &*known) {
            (None, Some((_, caller))) if self.one_caller => (caller.clone(), true),
            (None, _) => return None,
            (Some(field), Some((proof, caller))) if is_same(field, proof) => (caller.clone(), true),
            (Some(_), _) if self.one_caller => return None,
            (Some(field), _) => (self.worker.node.credentials.caller(field)?, false),
        };
        (!caller.is_revoked()).then_some((caller, known))
    }
}

fn is_same(field: &HeaderValue, proof: &Proof) -> bool {
    verify_slices_are_equal(field.as_bytes(), proof).is_ok()
}
