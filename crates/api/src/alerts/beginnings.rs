//! Since when alerts hold, for those whose source does not tell.

use super::Alert;
use crate::scaling::seconds;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Time after the start of a process in which it finds conditions that may be older.
const SETTLING: f64 = 30.0;
/// Shortest pause between two looks at the alerts.
const PAUSE: Duration = Duration::from_secs(1);
/// A look takes at most one in so many parts of the time.
const SHARE: u32 = 50;

/// When the alerts of a process began. The process looks at them about each second.
pub(crate) struct Beginnings(Mutex<State>);

struct State {
    /// When the process began to look.
    started: f64,
    known: BTreeMap<Condition, f64>,
}

/// Kind, subject, and topic of an alert.
type Condition = (String, String, String);

impl Default for Beginnings {
    fn default() -> Self {
        Self(Mutex::new(State { started: seconds(SystemTime::now()), known: BTreeMap::new() }))
    }
}

impl Beginnings {
    /// Notes which alerts there are now. An alert that is not among them has ended.
    pub(crate) fn look(&self, alerts: &[Alert], now: SystemTime) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut state.known);
        let since = |alert: &Alert| {
            let condition = condition(alert);
            let since = before.remove(&condition).unwrap_or_else(|| seconds(now));
            (condition, since)
        };
        state.known = alerts.iter().map(since).collect();
    }

    /// Begins anew, as a process that has just started.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            State { started: seconds(SystemTime::now()), known: BTreeMap::new() };
    }

    /// Completes alerts with the times at which they began.
    pub(crate) fn complete(&self, alerts: &mut [Alert]) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for alert in alerts {
            let is_older = is_older_than_its_process(alert);
            alert.since = alert.since.or_else(|| state.known.get(&condition(alert)).copied());
            let settling = state.started..state.started + SETTLING;
            alert.at_least |= is_older && alert.since.is_some_and(|since| settling.contains(&since));
        }
    }
}

/// The pause after a look that took this long.
pub(crate) fn pause(took: Duration) -> Duration {
    PAUSE.max(took * SHARE)
}

fn condition(alert: &Alert) -> Condition {
    (alert.kind.clone(), alert.subject.clone(), alert.topic.clone())
}

/// Whether the condition may hold while the process that tells it does not run.
fn is_older_than_its_process(alert: &Alert) -> bool {
    match &*alert.kind {
        // These are counts and states of the process.
        "failing" | "ejected" | "exhausted" | "deniedEgress" | "refusing" => false,
        // The time is in the certificate, or the control plane knows how exact it is.
        "certificate" | "node" => alert.since.is_none(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::Severity;

    fn alert(kind: &str, topic: &str) -> Alert {
        let alert = Alert::new(Severity::Warning, kind, "one", format!("{topic} again"), "");
        Alert { topic: topic.to_owned(), ..alert }
    }

    fn at(beginnings: &Beginnings, after: f64) -> SystemTime {
        let started = beginnings.0.lock().unwrap().started;
        SystemTime::UNIX_EPOCH + Duration::from_secs_f64(started + after)
    }

    fn told(beginnings: &Beginnings, alert: Alert) -> (Option<f64>, bool) {
        let mut alerts = [alert];
        beginnings.complete(&mut alerts);
        let started = beginnings.0.lock().unwrap().started;
        (alerts[0].since.map(|since| (since - started).round()), alerts[0].at_least)
    }

    #[test]
    fn an_alert_began_when_it_was_first_seen_and_begins_anew_after_its_end() {
        let beginnings = Beginnings::default();
        let (full, slow) = (alert("failing", "full"), alert("failing", "slow"));
        assert_eq!(told(&beginnings, full.clone()), (None, false));
        beginnings.look(std::slice::from_ref(&full), at(&beginnings, 100.0));
        // The text may change.
        let later = Alert { text: "other".to_owned(), ..full.clone() };
        beginnings.look(&[later, slow.clone()], at(&beginnings, 200.0));
        assert_eq!(told(&beginnings, full.clone()), (Some(100.0), false));
        assert_eq!(told(&beginnings, slow.clone()), (Some(200.0), false));
        beginnings.look(&[slow], at(&beginnings, 300.0));
        assert_eq!(told(&beginnings, full.clone()), (None, false));
        beginnings.look(std::slice::from_ref(&full), at(&beginnings, 400.0));
        assert_eq!(told(&beginnings, full), (Some(400.0), false));
    }

    #[test]
    fn conditions_that_a_process_finds_at_its_start_may_be_older() {
        let beginnings = Beginnings::default();
        let (store, failing) = (alert("store", ""), alert("failing", ""));
        beginnings.look(&[store.clone(), failing.clone()], at(&beginnings, 1.0));
        assert_eq!(told(&beginnings, store.clone()), (Some(1.0), true));
        assert_eq!(told(&beginnings, failing), (Some(1.0), false), "the process counts from its start");
        let fetched = at(&beginnings, 2.0);
        let known = alert("keySet", "").since(Some(seconds(fetched)));
        assert_eq!(told(&beginnings, known), (Some(2.0), true));
        let expired = alert("certificate", "").since(Some(seconds(at(&beginnings, 2.0))));
        assert_eq!(told(&beginnings, expired), (Some(2.0), false));
        beginnings.look(&[], at(&beginnings, 50.0));
        beginnings.look(std::slice::from_ref(&store), at(&beginnings, 60.0));
        assert_eq!(told(&beginnings, store.clone()), (Some(60.0), false));
        beginnings.forget();
        beginnings.look(std::slice::from_ref(&store), at(&beginnings, 0.5));
        assert!(told(&beginnings, store).1);
    }
}
