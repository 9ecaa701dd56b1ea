//! Judges open exchanges again, and closes those that are not permitted any more.
//!
//! A task of each worker waits for four events: a new snapshot, a revoked credential, a revoked
//! node, and the end of a token or a certificate. It finds the exchanges that a change concerns by
//! comparing pointers: a snapshot shares all unchanged parts with the one before.

use crate::pipeline::judge::{self, OpenRequest, Withdrawn};
use crate::pipeline::open::{GRACE, Open, OpenExchanges, OpenRoute};
use crate::pipeline::route;
use crate::pipeline::worker::Worker;
use crate::state::function::FunctionEntry;
use http::StatusCode;
use leno_http::body::{CloseReason, ClosedBy};
use leno_http::peer::TrafficDirection;
use leno_policy::outcome::PolicyKind;
use leno_policy::path::{self, Readings};
use leno_policy::spec::Protocol;
use leno_runtime::clock::unix_ms;
use leno_runtime::schedule;
use leno_runtime::schedule::Class;
use leno_telemetry::exchange::RecordedVerdict;
use leno_telemetry::names::policy_name;
use leno_telemetry::record::Record;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The reason in the record of an exchange that ended with this certificate.
const CALLEES_CERTIFICATE: &str = "the certificate of the callee's sidecar";

/// A permission that expires is checked after its end, and not just before.
const ROUNDING: Duration = Duration::from_millis(1);

impl Worker {
    /// Follows the node's snapshots and credentials as long as the worker runs. Releases each
    /// snapshot as soon as there is a newer one, even if no request arrives, and judges open
    /// exchanges again.
    pub(crate) async fn watch(self: Rc<Self>) {
        loop {
            let (changed, revoked) = (self.node.changed(), self.node.credentials.next_revoked());
            self.snapshot();
            self.open.note_change(|open| self.due(open));
            let (mut changed, mut revoked) = (std::pin::pin!(changed), std::pin::pin!(revoked));
            loop {
                self.judge_due().await;
                self.end_revoked();
                tokio::select! {
                    () = &mut changed => break,
                    () = &mut revoked => break,
                    () = self.open.next_due() => {}
                }
            }
        }
    }

    /// Ends the connections with nodes that were revoked since the last time. The exchanges on them
    /// are closed before, so that their records give the reason.
    fn end_revoked(&self) {
        let revocations = self.node.revocations();
        if self.revocations.replace(revocations) != revocations {
            self.pool.end_revoked(&self.node.svids);
            self.connections.wake();
        }
    }

    /// When the exchange is judged again because its caller, or the function that permitted it, has
    /// changed.
    fn due(&self, open: &Open) -> Option<Instant> {
        let entry = open.entry.borrow();
        let is_same = || self.present(&entry).is_some_and(|present| Arc::ptr_eq(&present, &entry));
        let is_changed = open.permission.caller.as_ref().is_some_and(|caller| caller.is_revoked())
            || !is_same()
            || self.has_other_routes(open);
        let changed = is_changed.then(|| Instant::now() + GRACE);
        let overdue = (self.is_overdue(open) || open.revoked(&self.node.svids).is_some()).then(Instant::now);
        // The lifetime may have become shorter.
        let proof_end = open.proof_end(self.stream_lifetime()).map(|end| end.max(open.permission.started + GRACE));
        [changed, overdue, proof_end, self.removed_until(&entry)].into_iter().flatten().min()
    }

    /// Whether the exchange came in by routes of the gateway that are others now.
    fn has_other_routes(&self, open: &Open) -> bool {
        let route = open.permission.route.as_ref().filter(|_| open.permission.from_gateway);
        route.is_some_and(|route| !Arc::ptr_eq(&route.tables.borrow(), &self.node.snapshot.load().gateway_routes))
    }

    fn stream_lifetime(&self) -> Duration {
        self.node.snapshot.load().mesh.stream_lifetime()
    }

    /// Whether the instance that handles the request has had the drain timeout.
    fn is_overdue(&self, open: &Open) -> bool {
        open.record().and_then(|record| record.instance()).is_some_and(|it| self.node.terminating.is_overdue(it))
    }

    /// Ends all open exchanges, because the node ends.
    pub(crate) fn end_all(&self) {
        for open in self.open.all() {
            if let Some(record) = open.record() {
                end(&self.open, &open, "drain", "the node ends, and the drain timeout is over", &record);
            }
        }
    }

    /// When the exchanges of a removed function are closed.
    pub(super) fn removed_until(&self, entry: &FunctionEntry) -> Option<Instant> {
        if entry.remote { None } else { self.node.removed_until(&entry.config.id) }
    }

    /// The current state of the function. If only other nodes host it, they judge.
    fn present(&self, entry: &Arc<FunctionEntry>) -> Option<Arc<FunctionEntry>> {
        if entry.remote {
            return Some(entry.clone());
        }
        self.snapshot_with(&entry.config.id).map(|(_, present)| present)
    }

    async fn judge_due(&self) {
        for open in self.open.take_due(Instant::now()) {
            if open.is_closed() {
                open.cut_off();
                self.connections.wake();
                continue;
            }
            let Some(record) = open.record() else { continue };
            schedule::charge(open.entry.borrow().class);
            if self.is_overdue(&open) {
                let reason = "the instance is not needed any more, and the drain timeout is over";
                end(&self.open, &open, "drain", reason, &record);
                continue;
            }
            match self.judge_again(&open, &record) {
                Ok(ends) => {
                    self.open.end_at(&open, ends, self.stream_lifetime());
                    self.open.judge_at(&open, self.removed_until(&open.entry.borrow()));
                }
                Err(withdrawn) => close(&self.open, &open, withdrawn, &record),
            }
            drop((open, record));
            schedule::give_way().await;
        }
        schedule::charge(Class::WORKER);
    }

    /// Judges an exchange by the current configuration. Returns when the permission expires.
    fn judge_again(&self, open: &Open, record: &Record) -> Result<Option<Instant>, Withdrawn> {
        let permission = &open.permission;
        if permission.caller.as_ref().is_some_and(|caller| caller.is_revoked()) {
            return Err(Withdrawn::unproven("the instance that called has ended"));
        }
        if let Some(whose) = open.revoked(&self.node.svids) {
            return Err(Withdrawn::unproven(whose));
        }
        let now = Instant::now();
        if open.proof_end(self.stream_lifetime()).is_some_and(|end| end <= now) {
            let whose = if open.is_caller_first() { "the caller's certificate" } else { CALLEES_CERTIFICATE };
            return Err(Withdrawn::unproven(&format!("{whose} has expired")));
        }
        let entry = open.entry.borrow().clone();
        if let Some(route) = &permission.route {
            self.follow_again(route, permission.from_gateway, &entry)?;
        }
        if entry.remote {
            return Ok(None);
        }
        let gone = |clause| Withdrawn::new(StatusCode::SERVICE_UNAVAILABLE, PolicyKind::Sidecar, clause);
        if self.removed_until(&entry).is_some_and(|until| until <= now) {
            return Err(gone("the function was removed, and the time for its open exchanges is over"));
        }
        let present = self.present(&entry).ok_or_else(|| gone("this node does not have the function any more"))?;
        // The gateway's node checks the routes of its exchanges.
        let is_routed = permission.direction == TrafficDirection::Inbound && present.config.is_routed;
        if permission.from_gateway && permission.route.is_none() && !is_routed && !is_exposed(&present, open) {
            let nothing = "nothing is exposed at this host and path any more";
            return Err(Withdrawn::new(StatusCode::NOT_FOUND, PolicyKind::Sidecar, nothing));
        }
        let request = OpenRequest {
            direction: permission.direction,
            peer: &permission.peer,
            target: &permission.target,
            protocol: permission.protocol,
            port: permission.port,
            asked: &permission.asked,
        };
        let now = (std::time::Instant::now(), unix_ms(SystemTime::now()));
        let until_ms = self.judge.again(&present, &request, now.1, record)?;
        open.entry.replace(present);
        Ok(until_ms.and_then(|until_ms| instant(until_ms, now)))
    }

    /// Checks that the exchange's route still leads to its back end.
    fn follow_again(&self, route: &OpenRoute, from_gateway: bool, entry: &Arc<FunctionEntry>) -> Result<(), Withdrawn> {
        let snapshot = self.node.snapshot.load_full();
        let caller = if from_gateway { None } else { self.present(entry) };
        // A caller that is gone is none of the routes' business.
        let leads = match &caller {
            None if !from_gateway => true,
            caller => route::still_leads(&snapshot, caller.as_deref(), &route.followed),
        };
        if !leads {
            let clause = format!("the route {} does not lead there any more", route.followed.matched.rule.route);
            return Err(Withdrawn::new(StatusCode::NOT_FOUND, PolicyKind::Sidecar, &clause));
        }
        route.tables.replace(snapshot.gateway_routes.clone());
        Ok(())
    }
}

/// Converts the end of a permission, in Unix milliseconds, by a moment on both clocks. `None`: it
/// is too far in the future to matter.
pub(super) fn instant(until_ms: u64, (now, now_ms): (std::time::Instant, u64)) -> Option<Instant> {
    let left = Duration::from_millis(until_ms.saturating_sub(now_ms));
    now.checked_add(left.saturating_add(ROUNDING)).map(Into::into)
}

fn is_exposed(entry: &FunctionEntry, open: &Open) -> bool {
    let asked = &open.permission.asked;
    let (path, _) = path::split(asked.path());
    let is_exposed = |path: &str| entry.is_exposed(asked.authority(), path);
    if entry.gets_as_received() {
        return Readings::as_received(path).is_ok_and(|readings| readings.iter().all(is_exposed));
    }
    path::normalise(path).is_ok_and(|path| is_exposed(&path))
}

/// Closes an exchange. The record says which rule withdrew the permission.
fn close(exchanges: &OpenExchanges, open: &Open, withdrawn: Withdrawn, record: &Record) {
    let Withdrawn { status, verdict, by } = withdrawn;
    let function = open.entry.borrow().name.clone();
    let policy = match &verdict {
        RecordedVerdict::Deny { policy, .. } => policy_name(*policy),
        _ => "error",
    };
    record.metrics().closed(&function, is_outbound(open), policy);
    let reason = match verdict.rule_and_clause() {
        ("", clause) => format!("{function}: {clause}"),
        (rule, clause) => format!("{function}: {rule}: {clause}"),
    };
    judge::overrule(record, verdict);
    finish(exchanges, open, record, CloseReason { status, reason, grpc: is_grpc(open), by });
}

/// Ends an exchange that is still permitted. `cause`: its name in the metric.
fn end(exchanges: &OpenExchanges, open: &Open, cause: &'static str, reason: &str, record: &Record) {
    let function = open.entry.borrow().name.clone();
    record.metrics().closed(&function, is_outbound(open), cause);
    let reason = format!("{function}: {reason}");
    let status = StatusCode::SERVICE_UNAVAILABLE;
    finish(exchanges, open, record, CloseReason { status, reason, grpc: is_grpc(open), by: ClosedBy::Mesh });
}

fn finish(exchanges: &OpenExchanges, open: &Open, record: &Record, closed: CloseReason) {
    record.failure(&closed.failure());
    exchanges.close(open, closed);
}

fn is_grpc(open: &Open) -> bool {
    open.permission.protocol == Protocol::Grpc
}

fn is_outbound(open: &Open) -> bool {
    open.permission.direction == TrafficDirection::Outbound
}
