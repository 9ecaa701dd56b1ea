//! The pods of the mesh that are not captured: counted for the Mesh object, and noted by an Event on
//! each pod.
//!
//! The controller that leads knows the pods and the nodes of all controllers. What an agent reports
//! is known to the controller that it is connected to, which writes that Event.

use super::captures::Captures;
use super::events::EventWriter;
use super::peers::Peers;
use super::programming::{NodeProgress, Programming};
use crate::index::{Index, PodFault, UncapturedReason};
use leno_control::Control;
use leno_model::PodUid;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Pause between looks at the pods.
const LOOK: Duration = Duration::from_secs(2);
/// How long a fault must last before an Event notes it: an agent captures a new pod some
/// milliseconds after it began, and connects anew within seconds when a controller ends.
const CAPTURE: Duration = Duration::from_secs(5);
const CONNECTION: Duration = Duration::from_secs(30);
/// Events of one look.
const MAX_EVENTS: usize = 50;

/// Looks which pods are not captured.
pub(crate) struct CaptureReporter<'a> {
    pub control: Control,
    pub index: &'a Mutex<Index>,
    pub peers: Peers,
    pub events: EventWriter,
    pub captures: watch::Sender<Arc<Captures>>,
}

/// A fault that was seen.
struct SeenFault {
    reason: UncapturedReason,
    since: Instant,
    is_noted: bool,
}

impl CaptureReporter<'_> {
    /// Looks until it is dropped.
    pub(crate) async fn run(self, leads: watch::Receiver<bool>) -> Infallible {
        let mut seen = BTreeMap::new();
        loop {
            sleep(LOOK).await;
            let leads = *leads.borrow();
            let faults = self.look(leads).await;
            let due = due(&mut seen, &faults, Instant::now());
            for fault in due.into_iter().take(MAX_EVENTS) {
                if self.events.write(fault).await
                    && let Some(seen) = seen.get_mut(&fault.uid)
                {
                    seen.is_noted = true;
                }
            }
        }
    }

    async fn look(&self, leads: bool) -> Vec<PodFault> {
        let (mut nodes, mut elsewhere) = (Programming::of(&self.control), 0);
        if leads && nodes.has_absent() {
            let reports = self.peers.read().await;
            elsewhere = reports.iter().map(|report| report.uncaptured).sum();
            // Whether the nodes have the same documents does not matter here.
            nodes.add(&reports, "");
        }
        let reported = self.control.pod_faults().into_iter().map(|(_, uid, reason)| (uid, reason)).collect();
        let is_away = |node: &str| leads && *nodes.progress(node) == NodeProgress::Away;
        let (enrolled, mut faults) =
            self.index.lock().unwrap_or_else(PoisonError::into_inner).faults(&reported, is_away);
        if !leads {
            faults.retain(|fault| matches!(fault.reason, UncapturedReason::CaptureFailed(_)));
        }
        let captures = Captures::of(enrolled, &faults, elsewhere);
        self.captures.send_if_modified(|before| {
            let changed = **before != captures;
            if changed {
                *before = Arc::new(captures);
            }
            changed
        });
        faults
    }
}

/// The faults that have lasted long enough and have no Event yet. Forgets those that are over.
fn due<'a>(seen: &mut BTreeMap<PodUid, SeenFault>, faults: &'a [PodFault], now: Instant) -> Vec<&'a PodFault> {
    let mut before = std::mem::take(seen);
    let mut due = Vec::new();
    for fault in faults {
        let known = before.remove(&fault.uid).filter(|seen| seen.reason == fault.reason);
        let known = known.unwrap_or_else(|| SeenFault { reason: fault.reason.clone(), since: now, is_noted: false });
        let least = match fault.reason {
            UncapturedReason::CaptureFailed(_) => CAPTURE,
            UncapturedReason::NoAgent(_) => CONNECTION,
            _ => Duration::ZERO,
        };
        if !known.is_noted && now.duration_since(known.since) >= least {
            due.push(fault);
        }
        seen.insert(fault.uid.clone(), known);
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ObjectKey;
    use leno_model::FunctionId;

    fn fault(name: &str, reason: UncapturedReason) -> PodFault {
        PodFault {
            pod: ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() },
            uid: format!("uid-{name}").parse().unwrap(),
            function: FunctionId::new("shop", "web").unwrap(),
            reason,
        }
    }

    #[test]
    fn a_fault_is_due_once_it_has_lasted() {
        let (mut seen, begin) = (BTreeMap::new(), Instant::now());
        let failed = |reason: &str| fault("b", UncapturedReason::CaptureFailed(reason.to_owned()));
        let mut step = |faults: &[PodFault], after: u64| {
            let due = due(&mut seen, faults, begin + Duration::from_secs(after));
            let due: Vec<String> = due.iter().map(|fault| fault.pod.name.clone()).collect();
            for name in &due {
                seen.get_mut(&format!("uid-{name}").parse().unwrap()).unwrap().is_noted = true;
            }
            due.concat()
        };
        let away = fault("c", UncapturedReason::NoAgent("one".to_owned()));
        let first = [fault("a", UncapturedReason::HostNetwork), failed("x"), away.clone()];
        assert_eq!(step(&first, 0), "a");
        assert_eq!(step(&first, 4), "");
        assert_eq!(step(&first, 5), "b");
        assert_eq!(step(&first, 29), "");
        assert_eq!(step(&first, 30), "c");
        // Another reason is another fault, and one that was over begins anew.
        assert_eq!(step(&[failed("y")], 40), "");
        assert_eq!(step(&[failed("y"), away.clone()], 45), "b");
        assert_eq!(step(&[away], 80), "c");
    }
}
