//! Which controller leads: the holder of a Lease.
//!
//! Only status and the Secret of the authority need a leader. All controllers serve nodes. A holder
//! counts as gone if its Lease stays the same for longer than it says, by this controller's own
//! clock, so that clocks may differ.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// How long a Lease holds without a renewal.
const LEASE: Duration = Duration::from_secs(15);
/// A leader that could not renew for so long does not lead any more, before another one does.
const DEADLINE: Duration = Duration::from_secs(10);
/// Pause between renewals, and between looks at another holder's Lease.
const PAUSE: Duration = Duration::from_secs(2);
/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(4);

/// A candidate for a Lease.
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    /// The name of this candidate, unique among all.
    identity: String,
    /// The version of the Lease of another holder, and when this candidate saw it first.
    seen: Option<(String, Instant)>,
}

impl Candidate {
    /// A candidate for the Lease `name` in a namespace.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, name: name.to_owned(), identity: identity.to_owned(), seen: None }
    }

    /// Takes and renews the Lease until `leads` has no receiver. `leads`: whether this candidate
    /// holds it.
    pub async fn run(mut self, leads: watch::Sender<bool>) {
        let mut renewed = Instant::now();
        while !leads.is_closed() {
            let begin = Instant::now();
            let holds = match timeout(REQUEST, self.attempt()).await {
                Ok(Ok(holds)) => {
                    renewed = begin;
                    holds
                }
                failed => {
                    let reason = match failed {
                        Ok(Err(error)) => error.to_string(),
                        Ok(Ok(_)) | Err(_) => format!("no answer within {REQUEST:?}"),
                    };
                    tracing::warn!(reason, "the Lease cannot be renewed or looked at");
                    *leads.borrow() && renewed.elapsed() < DEADLINE
                }
            };
            leads.send_if_modified(|leads| {
                let changed = *leads != holds;
                if changed {
                    tracing::info!("this controller {}", if holds { "leads" } else { "does not lead any more" });
                }
                *leads = holds;
                changed
            });
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = leads.closed() => {}
            }
        }
        if *leads.borrow()
            && let Err(error) = timeout(REQUEST, self.release()).await.unwrap_or(Ok(()))
        {
            tracing::warn!(%error, "the Lease is not given back: another controller leads once it has expired");
        }
    }

    /// Tries once to take or renew the Lease. Returns whether this candidate holds it.
    async fn attempt(&mut self) -> Result<bool, Error> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.spec(None)) };
            return written(self.api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.take();
        let holder = spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if holder != self.identity && !holder.is_empty() && !self.is_expired(&lease.metadata, spec.as_ref()) {
            return Ok(false);
        }
        // The version of the Lease that was read makes the API server refuse this if another
        // candidate was faster.
        lease.spec = Some(self.spec(spec.as_ref()));
        written(self.api.replace(&self.name, &PostParams::default(), &lease).await)
    }

    /// Whether another holder has not renewed its Lease for too long.
    fn is_expired(&mut self, metadata: &ObjectMeta, spec: Option<&LeaseSpec>) -> bool {
        let version = metadata.resource_version.as_deref().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if seen == version => *since,
            _ => {
                let now = Instant::now();
                self.seen = Some((version.to_owned(), now));
                now
            }
        };
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
        since.elapsed() > seconds.map_or(LEASE, Duration::from_secs)
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let own = before.filter(|before| before.holder_identity.as_deref() == Some(&self.identity));
        let transitions = before.and_then(|before| before.lease_transitions).unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE.as_secs()).ok(),
            acquire_time: own.map_or(Some(now.clone()), |own| own.acquire_time.clone()),
            renew_time: Some(now),
            lease_transitions: Some(if own.is_some() || before.is_none() { transitions } else { transitions + 1 }),
            ..LeaseSpec::default()
        }
    }

    /// Gives the Lease back, so that another candidate leads at once.
    async fn release(&self) -> Result<(), Error> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
        let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity))
        else {
            return Ok(());
        };
        spec.holder_identity = None;
        written(self.api.replace(&self.name, &PostParams::default(), &lease).await).map(drop)
    }
}

/// Whether a write succeeded; another candidate may have been faster.
fn written(outcome: Result<Lease, Error>) -> Result<bool, Error> {
    match outcome {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
