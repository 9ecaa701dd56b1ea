//! CONNECT: tunnels with HTTP inside, and connections without requests.

use super::Connection;
use super::open::OpenConnection;
use crate::l4::inbound::Inbound;
use crate::pipeline::exchange::Origin;
use crate::state::function::FunctionEntry;
use http::{Response, StatusCode, request};
use leno_http::activity::Busy;
use leno_http::body::Body;
use leno_http::http2::Upgrading;
use leno_http::peer::TrafficDirection;
use leno_runtime::schedule;
use std::cell::{Cell, OnceCell, RefCell};

impl Connection {
    /// Whether a CONNECT opens a tunnel. Tunnels lead to callees only. The judge refuses any other
    /// CONNECT, and the record says why.
    pub(super) fn opens_tunnel(&self, origin: &Origin, head: &request::Parts) -> bool {
        let Origin::Outbound(caller, _) = origin else { return false };
        let Some(authority) = head.uri.authority() else { return false };
        caller.callee(authority.as_str()).is_some()
    }

    /// Opens a connection without requests from a function on another node.
    pub(super) async fn relay(
        &self,
        on_upgrade: Option<Upgrading>,
        entry: &FunctionEntry,
        head: &request::Parts,
        busy: Busy,
    ) -> Response<Body> {
        let accepted = match Inbound::new(&self.worker, (&self.peer, self.certificate), entry, head) {
            Ok(inbound) => Box::pin(inbound.accept()).await,
            Err(status) => Err(status),
        };
        let mut response = Response::new(Body::empty());
        match (accepted, on_upgrade) {
            (Ok(accepted), Some(on_upgrade)) => {
                let (open, tunnel) = (OpenConnection::new(&self.worker, self.direction), busy.into_tunnel());
                schedule::spawn(async move {
                    let _tunnel = tunnel;
                    // The node cannot see whether the connection is in use, so a draining node ends
                    // it.
                    let _ = open.unless_draining(accepted.run(on_upgrade)).await;
                });
            }
            (Ok(_), None) => *response.status_mut() = StatusCode::BAD_REQUEST,
            (Err(status), _) => *response.status_mut() = status,
        }
        response
    }

    /// Serves the HTTP inside a CONNECT tunnel. Each of its requests is judged separately.
    pub(super) fn tunnel(&self, on_upgrade: Option<Upgrading>, origin: Origin, busy: Busy) {
        let (Some(on_upgrade), Origin::Outbound(_, Some(caller))) = (on_upgrade, origin) else { return };
        let proof = self.caller.borrow().as_ref().map(|(proof, _)| proof.clone()).unwrap_or_default();
        let open = OpenConnection::new(&self.worker, TrafficDirection::Outbound);
        let inner = Self {
            worker: self.worker.clone(),
            direction: TrafficDirection::Outbound,
            peer: self.peer.clone(),
            client: OnceCell::new(),
            scheme: self.scheme,
            port: self.port,
            opened: self.opened,
            accepted_at: self.accepted_at,
            function: None,
            caller: RefCell::new(Some((proof, caller))),
            one_caller: true,
            certificate: None,
            pod: None,
            is_kept: Cell::default(),
            carries_tunnels: false,
            activity: open.activity().clone(),
            attribution: self.attribution.clone(),
        };
        let tunnel = busy.into_tunnel();
        schedule::spawn(async move {
            let _tunnel = tunnel;
            match on_upgrade.done().await {
                Ok(stream) => {
                    if let Err(error) = inner.serve_http(stream, None, &open).await {
                        tracing::debug!(%error, "tunnel ended");
                    }
                }
                Err(error) => tracing::debug!(%error, "a tunnel was gone before it could be used"),
            }
        });
    }
}
