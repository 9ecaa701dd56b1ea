//! Carries out the steps of an update, and publishes the snapshot that they result in.

use super::plan::{Step, steps};
use super::{LoopState, Reconciler};
use crate::instances::Revisions;
use crate::loader::LoadResult;
use crate::placement::DeliveredBounds;
use crate::pods::Pods;
use leno_agent::{Change, Update};
use leno_model::Run;
use leno_model::{FunctionConfig, FunctionId, MeshConfig, Pod, PodUid};
use leno_proxy::endpoints::Endpoint;
use leno_proxy::{FunctionEntry, NodeSnapshot, Requester, SnapshotChange};
use leno_supervisor::FunctionSpec;
use leno_wire::{Lease, Placement, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::SystemTime;

/// The results of steps, until the snapshot is published.
struct Pass {
    before: Arc<NodeSnapshot>,
    next: SnapshotChange,
    rejected: Vec<(Subject, String)>,
    endpoints: Vec<(FunctionId, Vec<Endpoint>)>,
    /// Pods that are new or have changed; `None`: they are gone.
    pods: Vec<(PodUid, Option<Pod>)>,
    /// Functions that are new or have changed.
    updated: Vec<Arc<FunctionEntry>>,
    /// Functions with other bounds and the same configuration.
    rescaled: BTreeSet<FunctionId>,
    /// Functions to drain.
    removed: BTreeSet<FunctionId>,
    /// Removed functions whose callers lose their permission.
    withdrawn: BTreeSet<FunctionId>,
    /// The node has all functions that it hosts.
    is_complete: bool,
    /// A function was removed.
    has_removals: bool,
    /// A function has replaced another one of the same name.
    has_replaced: bool,
}

impl Pass {
    fn new(before: Arc<NodeSnapshot>) -> Self {
        let next = before.change();
        let (rejected, endpoints, pods, updated, rescaled, removed, withdrawn) = Default::default();
        let (is_complete, has_removals, has_replaced) = Default::default();
        Self {
            before,
            next,
            rejected,
            endpoints,
            pods,
            updated,
            rescaled,
            removed,
            withdrawn,
            is_complete,
            has_removals,
            has_replaced,
        }
    }
}

impl Reconciler {
    pub(super) fn apply(&self, update: Update, loaded: LoadResult, state: &mut LoopState) {
        let is_apart = |change: &Change| {
            matches!(
                change.subject(),
                Subject::Endpoints(_)
                    | Subject::Pod(_)
                    | Subject::EnforcedNamespaces
                    | Subject::Destination(_)
                    | Subject::ServiceEndpoint(..)
            )
        };
        let changes_nothing = update.changes.iter().all(is_apart);
        let mut pass = Pass::new(self.node.snapshot.load_full());
        for step in steps(&update.changes, loaded) {
            self.carry_out(step, &mut pass, state);
        }
        let (rejected, is_complete) = (mem::take(&mut pass.rejected), pass.is_complete);
        let changed_pods = mem::take(&mut pass.pods);
        // Endpoints precede the functions that call them. They change far more often than
        // functions, and then no other step follows.
        self.node.endpoints.set(mem::take(&mut pass.endpoints));
        if !changes_nothing {
            self.publish(pass, state);
        }
        if let Some(pods) = &self.pods
            && !changed_pods.is_empty()
        {
            // Their functions are in force now.
            pods.follow(changed_pods);
            self.follow_accounts(&state.draining);
        }
        for (subject, reason) in &rejected {
            tracing::error!(%subject, reason, "refused; what was in force goes on");
        }
        update.reject(rejected);
        if is_complete {
            self.pods.iter().for_each(Pods::complete);
            self.applied.send_replace(true);
        }
    }

    fn carry_out(&self, step: Step, pass: &mut Pass, state: &mut LoopState) {
        match step {
            Step::SetMesh(mesh) => self.set_mesh(*mesh, pass),
            Step::SetBundle(bundle) => self.node.svids.set_bundle(bundle),
            Step::Host(entry) => self.host(entry, pass, state),
            Step::Drain(id) => self.drain(id, pass, state),
            Step::RemoveModule(hash) => self.loader.modules.remove(&hash),
            Step::SetBounds(id, Some(bounds)) => {
                state.bounds.set(id.clone(), bounds);
                pass.rescaled.insert(id);
            }
            Step::SetBounds(id, None) => state.bounds.remove(&id),
            Step::SetLease(id, lease) => self.lease(&id, lease),
            Step::RemoveSecrets(id) => self.loader.secrets.remove(&id),
            Step::SetPlacement(placement) => {
                let scheduled = placement == Placement::Scheduled;
                state.bounds.require(scheduled);
                if placement.shares_limits() {
                    self.node.policy_state.limits.require_leases();
                }
                pass.is_complete = true;
            }
            Step::SetRoute(entry) => drop(pass.next.insert_route(entry)),
            Step::RemoveRoute(id) => drop(pass.next.remove_route(&id)),
            Step::SetGatewayRoutes(routes) => drop(pass.next.gateway_routes(routes)),
            Step::SetCertificates(values) => self.node.listener_certificates.set(&values),
            Step::SetEndpoints(id, endpoints) => pass.endpoints.push((id, endpoints)),
            Step::SetPod(pod) => self.set_pod(*pod, pass),
            Step::RemovePod(uid) => pass.pods.push((uid, None)),
            Step::SetDestination(address, destination) => {
                if self.node.destinations.set(address, destination) {
                    self.agent.subscribe([Subject::Destination(address)]);
                }
            }
            Step::SetServiceEndpoint(service, address, parts) => {
                self.node.destinations.set_endpoint(service, address, parts);
            }
            Step::SetEnforced(namespaces) => {
                if let Some(pods) = &self.pods {
                    pods.set_enforced(namespaces);
                }
            }
            Step::Withdraw(id) => drop(pass.withdrawn.insert(id)),
            Step::Reject(subject, reason) => pass.rejected.push((subject, reason)),
        }
    }

    fn set_mesh(&self, mesh: MeshConfig, pass: &mut Pass) {
        let mesh = self.listeners.apply(mesh);
        let fixed = pass.before.mesh.fixed_at_start(&mesh);
        if fixed.is_empty() {
            pass.next.mesh(mesh);
        } else {
            pass.rejected.push((Subject::Mesh, format!("{}: needs a restart of this node", fixed.join(", "))));
        }
    }

    fn host(&self, entry: Arc<FunctionEntry>, pass: &mut Pass, state: &mut LoopState) {
        let LoopState { functions, draining, jobs, bounds, .. } = state;
        let id = &entry.config.id;
        draining.keep(id);
        pass.removed.remove(id);
        if entry.config.stored_keys().is_empty() {
            self.loader.secrets.remove(id);
        }
        match &entry.config.run {
            Run::Job(job) => {
                // The name may have been a function's until now.
                self.supervisor.remove(id);
                pass.has_replaced |= functions.remove(id).is_some();
                if let Err(error) = jobs.apply(&entry.config, job) {
                    return pass.rejected.push((Subject::FunctionConfig(id.clone()), error.to_string()));
                }
            }
            // An egress has no instances, and Kubernetes runs those of pods.
            Run::Egress(_) | Run::Pods(_) => {
                self.supervisor.remove(id);
                pass.has_replaced |= functions.remove(id).is_some();
                jobs.remove(id);
            }
            _ => {
                jobs.remove(id);
                let revisions = self.supervisor.apply_all(self.specs(&entry.config, bounds));
                if let Some(revisions) = Revisions::new(revisions, bounds.has_left(id)) {
                    pass.has_replaced |= functions.insert(id.clone(), revisions).is_some();
                }
            }
        }
        pass.rescaled.remove(id);
        pass.updated.push(entry.clone());
        pass.next.insert(entry);
    }

    fn set_pod(&self, pod: Pod, pass: &mut Pass) {
        let uid = pod.uid.clone();
        match self.pods {
            Some(_) => pass.pods.push((uid, Some(pod))),
            None => {
                let reason = "this node captures no pods; start it with --kubernetes".to_owned();
                pass.rejected.push((Subject::Pod(uid), reason));
            }
        }
    }

    fn drain(&self, id: FunctionId, pass: &mut Pass, state: &mut LoopState) {
        self.loader.secrets.remove(&id);
        state.keys.forget(&id);
        state.retries.forget(&id);
        pass.next.remove(&id);
        self.node.revision_stats.keep(&id, &[]);
        state.jobs.remove(&id);
        if state.functions.get(&id).is_some() {
            pass.removed.insert(id);
        }
        pass.has_removals = true;
    }

    /// Publishes the snapshot that the steps result in.
    fn publish(&self, pass: Pass, state: &mut LoopState) {
        let Pass { before, next, updated, rescaled, removed, withdrawn, has_removals, has_replaced, .. } = pass;
        let LoopState { functions, draining, bounds, ports, .. } = state;
        for id in &rescaled {
            if functions.get(id).is_some()
                && let Some(entry) = before.functions.get(id)
                && let revisions = self.supervisor.apply_all(self.specs(&entry.config, bounds))
                && let Some(revisions) = Revisions::new(revisions, bounds.has_left(id))
            {
                functions.insert(id.clone(), revisions);
            }
        }
        // The control plane counts from this report on. The report must precede the first request
        // to a new revision.
        self.report_request_counts();
        self.hosted.set(functions.clone());
        let snapshot = Arc::new(next.finish());
        // An exchange that does not find a function in the new snapshot finds it among the draining
        // ones.
        let drain_timeout = snapshot.mesh.limits.drain_timeout;
        self.supervisor.set_drain_timeout(drain_timeout);
        draining.add(&self.node, before, removed, drain_timeout);
        draining.withdraw(&self.node, &withdrawn);
        self.node.publish(snapshot.clone());
        ports.follow(&self.node, &self.agent, *self.jobs.borrow());
        tracing::info!(version = snapshot.version, functions = snapshot.functions.len(), "configuration is in force");
        // The proxy routed new requests to these revisions until the snapshot was published.
        for entry in &updated {
            let keep: Vec<u32> = entry.config.all_revisions().map(|revision| revision.number).collect();
            self.supervisor.retire(&entry.config.id, &keep);
            let several = entry.config.revisions.split.is_some();
            self.node.revision_stats.keep(&entry.config.id, if several { &keep } else { &[] });
        }
        // Requests from the gateway and within this node need no certificate, so they do not wait
        // for keys.
        if has_removals || has_replaced {
            self.set_wanted(snapshot.functions.values().chain(draining.entries()));
        } else {
            self.extend_wanted(&updated);
        }
        if has_removals {
            self.forget(draining);
        }
    }

    /// The instances of a function on this node, by revision.
    fn specs(&self, config: &FunctionConfig, bounds: &DeliveredBounds) -> Vec<FunctionSpec> {
        self.supervisor.bound(&config.id.namespace, &config.bounds);
        let requester = Requester::of(config);
        let bounded = |spec| self.warm.raise(bounds.limit(self.images.contain(spec, &requester)));
        FunctionSpec::all(config).into_iter().map(bounded).collect()
    }

    /// Applies the node's shares of a function's rate limits.
    fn lease(&self, id: &FunctionId, Lease { shares }: Lease) {
        // Without this, a term whose renewal has arrived would count as over.
        self.renew_term();
        // The parent process may have used the shares that it forwards.
        let is_own = *self.jobs.borrow();
        let unused = shares.iter().filter(|share| is_own && share.unused);
        let unused = unused.map(|share| share.limit.as_str().into()).collect();
        let shares: BTreeMap<Box<str>, u32> =
            shares.into_iter().map(|share| (share.limit.into(), share.parts)).collect();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        self.node.policy_state.limits.function(id).lease(&shares, &unused, now_ms);
    }
}
