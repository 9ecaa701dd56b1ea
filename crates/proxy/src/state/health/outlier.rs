//! Ejects failing endpoints, like Envoy's outlier detection (`consecutive_5xx`,
//! `consecutive_gateway_failure`).
//!
//! There is no timer. Each caller passes the time, and reviews that were due by then are done
//! first.

use leno_policy::spec::Outlier;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest ejection, like Envoy's `max_ejection_time`, unless the base ejection time is longer.
const LONGEST_EJECTION: Duration = Duration::from_secs(300);
/// Maximum number of endpoints whose failures are remembered. When it is reached, those that are
/// not ejected are forgotten.
const MOST_ENDPOINTS: usize = 4096;

/// How one attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// With a response of this status.
    Status(u16),
    /// Without a response: no connection, a broken one, or a timeout.
    LocalFailure,
}

/// The endpoints of one callee that failed recently.
#[derive(Debug, Default)]
pub struct Outliers {
    /// Number of `endpoints`. While it is 0, a success takes no lock.
    known: AtomicU32,
    /// How many of them are ejected.
    out: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    endpoints: HashMap<SocketAddr, Endpoint>,
    /// How many of them are ejected.
    out: u32,
    reviews: Option<Reviews>,
}

#[derive(Debug)]
struct Reviews {
    next: Instant,
    interval: Duration,
}

#[derive(Debug, Default)]
struct Endpoint {
    consecutive_5xx: u32,
    consecutive_gateway: u32,
    /// How often the endpoint was ejected, minus one for each later review at which it was in use.
    ejections: u32,
    /// The endpoint is ejected at least until then. It returns at the first review after that.
    out_until: Option<Instant>,
    /// When it was last ejected.
    ejected_at: Option<Instant>,
}

/// An endpoint that gets no requests for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Its address.
    pub endpoint: SocketAddr,
    /// When it was ejected.
    pub since: Instant,
    /// The earliest time of its return.
    pub until: Instant,
    /// How often it was ejected lately.
    pub times: u32,
}

impl Outliers {
    /// Records how one attempt ended. Returns true if this ejected the endpoint.
    pub fn report(
        &self,
        address: SocketAddr,
        attempt: Attempt,
        outlier: &Outlier,
        endpoints: u32,
        now: Instant,
    ) -> bool {
        let failed = match attempt {
            Attempt::Status(status) => (500..=599).contains(&status),
            Attempt::LocalFailure => true,
        };
        if !failed && self.known.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut state = self.lock();
        state.catch_up(Duration::from_millis(outlier.interval_ms.max(1)), now);
        let ejected = state.note(address, attempt, failed, outlier, endpoints, now);
        self.publish(&state);
        ejected
    }

    /// Whether this endpoint is ejected.
    pub fn is_ejected(&self, address: SocketAddr, now: Instant) -> bool {
        if self.out.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut state = self.lock();
        state.review_if_due(now);
        self.publish(&state);
        state.endpoints.get(&address).is_some_and(|endpoint| endpoint.out_until.is_some())
    }

    /// The ejected endpoints, by address.
    pub fn ejections(&self, now: Instant) -> Vec<Ejection> {
        if self.out.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut state = self.lock();
        state.review_if_due(now);
        self.publish(&state);
        let ejection = |(&endpoint, known): (&SocketAddr, &Endpoint)| {
            Some(Ejection { endpoint, since: known.ejected_at?, until: known.out_until?, times: known.ejections })
        };
        let mut ejections: Vec<Ejection> = state.endpoints.iter().filter_map(ejection).collect();
        ejections.sort_by_key(|ejection| ejection.endpoint);
        ejections
    }

    /// How many endpoints are ejected.
    pub fn ejected_count(&self, now: Instant) -> u32 {
        if self.out.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut state = self.lock();
        state.review_if_due(now);
        self.publish(&state);
        state.out
    }

    /// Ignores poisoning: after a panic, the counts are slightly wrong at worst. Refusing all
    /// requests from then on would be worse.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, state: &State) {
        self.known.store(u32::try_from(state.endpoints.len()).unwrap_or(u32::MAX), Ordering::Release);
        self.out.store(state.out, Ordering::Release);
    }
}

impl State {
    /// Adopts the review interval in force, then does the reviews that are due.
    fn catch_up(&mut self, interval: Duration, now: Instant) {
        match &mut self.reviews {
            Some(reviews) if reviews.interval == interval => {}
            reviews => *reviews = Some(Reviews { next: now + interval, interval }),
        }
        self.review_if_due(now);
    }

    fn review_if_due(&mut self, now: Instant) {
        let Some(reviews) = &mut self.reviews else { return };
        if now < reviews.next {
            return;
        }
        // Several reviews may be due. Their effect depends on the time only, so one step does all
        // of them.
        let late = now.duration_since(reviews.next).as_nanos() / reviews.interval.as_nanos();
        let passed = u32::try_from(late).unwrap_or(u32::MAX).saturating_add(1);
        let last = reviews.next + reviews.interval.saturating_mul(passed - 1);
        let first = reviews.next;
        reviews.next = last + reviews.interval;
        let interval = reviews.interval;
        let mut out = 0;
        self.endpoints.retain(|_, endpoint| {
            endpoint.review(first, last, passed, interval);
            out += u32::from(endpoint.out_until.is_some());
            !endpoint.is_forgettable()
        });
        self.out = out;
    }

    fn note(
        &mut self,
        address: SocketAddr,
        attempt: Attempt,
        failed: bool,
        outlier: &Outlier,
        endpoints: u32,
        now: Instant,
    ) -> bool {
        if !failed {
            if let Some(endpoint) = self.endpoints.get_mut(&address) {
                endpoint.consecutive_5xx = 0;
                endpoint.consecutive_gateway = 0;
                if endpoint.is_forgettable() {
                    self.endpoints.remove(&address);
                }
            }
            return false;
        }
        if self.endpoints.len() >= MOST_ENDPOINTS && !self.endpoints.contains_key(&address) {
            self.endpoints.retain(|_, endpoint| endpoint.out_until.is_some());
            if self.endpoints.len() >= MOST_ENDPOINTS {
                return false;
            }
        }
        let endpoint = self.endpoints.entry(address).or_default();
        if endpoint.out_until.is_some() {
            return false;
        }
        endpoint.consecutive_5xx += 1;
        let gateway = matches!(attempt, Attempt::LocalFailure | Attempt::Status(502..=504));
        endpoint.consecutive_gateway = if gateway { endpoint.consecutive_gateway + 1 } else { 0 };
        let reached = |limit: u32, count: u32| limit > 0 && count >= limit;
        let due = reached(outlier.consecutive_5xx, endpoint.consecutive_5xx)
            || reached(outlier.consecutive_gateway, endpoint.consecutive_gateway);
        let share = (u64::from(self.out) + 1) * 100;
        let fits = self.out == 0 || share <= u64::from(endpoints) * u64::from(outlier.max_ejection_percent);
        if due && fits {
            endpoint.eject(Duration::from_millis(outlier.base_ejection_ms), now);
            self.out += u32::from(endpoint.out_until.is_some());
        }
        due && fits
    }
}

impl Endpoint {
    fn eject(&mut self, base: Duration, now: Instant) {
        self.ejections = self.ejections.saturating_add(1);
        let time = base.saturating_mul(self.ejections).min(base.max(LONGEST_EJECTION));
        self.out_until = now.checked_add(time);
        self.ejected_at = Some(now);
        self.consecutive_5xx = 0;
        self.consecutive_gateway = 0;
    }

    /// Does `passed` reviews, from `first` to `last`. A review ends the ejection if its time is
    /// over. Each review after that forgives one ejection.
    fn review(&mut self, first: Instant, last: Instant, passed: u32, interval: Duration) {
        let forgiving = match self.out_until {
            None => passed,
            Some(until) if until > last => return,
            Some(until) => {
                self.out_until = None;
                let still_out = until.saturating_duration_since(first).as_nanos().div_ceil(interval.as_nanos());
                passed.saturating_sub(u32::try_from(still_out).unwrap_or(u32::MAX)).saturating_sub(1)
            }
        };
        self.ejections = self.ejections.saturating_sub(forgiving);
    }

    fn is_forgettable(&self) -> bool {
        self.consecutive_5xx == 0 && self.consecutive_gateway == 0 && self.ejections == 0 && self.out_until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Outlier = Outlier {
        consecutive_5xx: 3,
        consecutive_gateway: 0,
        interval_ms: 1_000,
        base_ejection_ms: 2_000,
        max_ejection_percent: 100,
    };

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn fail(outliers: &Outliers, port: u16, times: u32, settings: &Outlier, endpoints: u32, now: Instant) -> bool {
        (0..times).any(|_| outliers.report(address(port), Attempt::LocalFailure, settings, endpoints, now))
    }

    #[test]
    fn consecutive_failures_eject_and_a_success_between_starts_anew() {
        let (outliers, now) = (Outliers::default(), Instant::now());
        assert!(!fail(&outliers, 1, 2, &SETTINGS, 4, now));
        assert!(!outliers.report(address(1), Attempt::Status(200), &SETTINGS, 4, now));
        assert!(!fail(&outliers, 1, 2, &SETTINGS, 4, now));
        assert!(!outliers.is_ejected(address(1), now));
        assert!(outliers.report(address(1), Attempt::Status(500), &SETTINGS, 4, now));
        assert!(outliers.is_ejected(address(1), now));
        assert!(!outliers.is_ejected(address(2), now));
        assert_eq!(outliers.ejected_count(now), 1);
    }

    #[test]
    fn it_comes_back_at_the_review_after_its_time_and_stays_out_longer_the_next_time() {
        let (outliers, start) = (Outliers::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        assert!(fail(&outliers, 1, 3, &SETTINGS, 4, start));
        assert!(outliers.is_ejected(address(1), after(1_999)));
        assert!(!outliers.is_ejected(address(1), after(2_000)), "the second review is due just then");
        // Ejected again at 2.5 s, for twice the base time. The endpoint returns at the first review
        // after that.
        assert!(fail(&outliers, 1, 3, &SETTINGS, 4, after(2_500)));
        assert!(outliers.is_ejected(address(1), after(6_999)), "its time ended at 6.5 s, the review is at 7 s");
        assert!(!outliers.is_ejected(address(1), after(7_000)));
    }

    #[test]
    fn good_reviews_forgive() {
        let (outliers, start) = (Outliers::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        assert!(fail(&outliers, 1, 3, &SETTINGS, 4, start));
        // The endpoint returns at 2 s. The review at 3 s forgives the one ejection, so the next one
        // counts as the first again.
        assert!(fail(&outliers, 1, 3, &SETTINGS, 4, after(3_000)));
        assert!(outliers.is_ejected(address(1), after(4_999)));
        assert!(!outliers.is_ejected(address(1), after(5_000)));
    }

    #[test]
    fn one_may_always_be_out_and_more_only_up_to_the_share() {
        let (outliers, now) = (Outliers::default(), Instant::now());
        let half = Outlier { max_ejection_percent: 50, ..SETTINGS };
        assert!(fail(&outliers, 1, 3, &half, 1, now), "the only endpoint");
        assert!(fail(&outliers, 2, 3, &half, 4, now), "two of four");
        assert!(!fail(&outliers, 3, 3, &half, 4, now), "three of four would be more than half");
        let none = Outlier { max_ejection_percent: 0, ..SETTINGS };
        let fresh = Outliers::default();
        assert!(fail(&fresh, 1, 3, &none, 10, now));
        assert!(!fail(&fresh, 2, 3, &none, 10, now));
    }

    #[test]
    fn gateway_errors_are_counted_for_themselves() {
        let now = Instant::now();
        let gateway = Outlier { consecutive_5xx: 0, consecutive_gateway: 2, ..SETTINGS };
        let outliers = Outliers::default();
        for status in [502, 500, 503, 500] {
            assert!(!outliers.report(address(1), Attempt::Status(status), &gateway, 4, now), "{status}");
        }
        assert!(!outliers.report(address(1), Attempt::Status(504), &gateway, 4, now));
        assert!(outliers.report(address(1), Attempt::LocalFailure, &gateway, 4, now));
    }

    #[test]
    fn client_errors_are_no_failures() {
        let (outliers, now) = (Outliers::default(), Instant::now());
        for _ in 0..10 {
            assert!(!outliers.report(address(1), Attempt::Status(404), &SETTINGS, 4, now));
        }
        assert_eq!(outliers.known.load(Ordering::Relaxed), 0, "and leave nothing behind");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_fades() {
        let (outliers, now) = (Outliers::default(), Instant::now());
        for port in 0..=u16::MAX {
            outliers.report(address(port), Attempt::LocalFailure, &SETTINGS, 1, now);
        }
        assert!(outliers.known.load(Ordering::Relaxed) as usize <= MOST_ENDPOINTS);
        outliers.report(address(u16::MAX), Attempt::Status(200), &SETTINGS, 1, now);
        assert_eq!(outliers.ejected_count(now), 0);
    }
}
