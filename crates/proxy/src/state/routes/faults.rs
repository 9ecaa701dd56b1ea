//! Faults of rules, and of functions that are exposed.

use http::{HeaderMap, HeaderName};
use leno_http::failure::{self, InjectedFailure};
use leno_model::{FaultAbort, FieldValues};
use leno_policy::matching;
use leno_policy::spec::StringMatch;
use leno_runtime::clock::rfc3339;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Longest delay, whatever a control plane sends.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The faults of the requests that follow one rule, or that come to one function by `expose`.
#[derive(Debug)]
pub(crate) struct Faults(Box<[Arc<Fault>]>);

/// A fault, prepared for requests.
#[derive(Debug)]
pub(crate) struct Fault {
    /// `<policy>/faults/<name>`.
    pub name: Arc<str>,
    /// The route or the function: `namespace/name`.
    pub route: Arc<str>,
    when: Box<[(HeaderName, Box<[StringMatch]>)]>,
    per_10k: u16,
    /// Zero: none.
    pub delay: Duration,
    /// `None`: the request goes on.
    pub abort: Option<Arc<InjectedFailure>>,
    /// From then on nothing of it acts.
    pub until: SystemTime,
}

impl Faults {
    /// Prepares the faults of a route or a function; `None`: it has none.
    pub(crate) fn new(route: &Arc<str>, faults: &[leno_model::Fault]) -> Option<Self> {
        let prepared: Box<[_]> = faults.iter().filter_map(|fault| Fault::new(route, fault).map(Arc::new)).collect();
        (!prepared.is_empty()).then_some(Self(prepared))
    }

    /// The first fault in force that a request meets, by its header fields as they came and by
    /// chance.
    pub(crate) fn pick(&self, headers: &HeaderMap, random: impl Fn() -> u64) -> Option<Arc<Fault>> {
        let now = SystemTime::now();
        self.0.iter().find(|fault| now < fault.until && fault.is_met(headers, &random)).cloned()
    }
}

impl Fault {
    /// `None`: no request can have such a header field.
    fn new(route: &Arc<str>, fault: &leno_model::Fault) -> Option<Self> {
        let until = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(fault.until_ms))?;
        let field = |FieldValues { name, values }: &FieldValues| {
            Some((HeaderName::try_from(name.as_str()).ok()?, values.clone().into()))
        };
        let (status, grpc_status) = match fault.abort {
            None => Default::default(),
            Some(FaultAbort::Status(status)) => {
                let status = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::SERVICE_UNAVAILABLE);
                (status, failure::grpc_status(status))
            }
            Some(FaultAbort::Grpc(status)) => (failure::http_status(status), status),
        };
        let words = || format!("an injected fault: {}, until {}", fault.name, rfc3339(until));
        Some(Self {
            name: fault.name.as_str().into(),
            route: route.clone(),
            when: fault.when.iter().map(field).collect::<Option<_>>()?,
            per_10k: fault.per_10k,
            delay: fault.delay.min(LONGEST_DELAY),
            abort: fault.abort.map(|_| InjectedFailure { words: words(), status, grpc_status }.into()),
            until,
        })
    }

    fn is_met(&self, headers: &HeaderMap, random: impl Fn() -> u64) -> bool {
        let has = |(name, values): &(HeaderName, Box<[StringMatch]>)| {
            let is_meant = |value: &[u8]| values.iter().any(|wanted| matching::bytes(wanted, value));
            headers.get_all(name).iter().any(|value| is_meant(value.as_bytes()))
        };
        self.when.iter().all(has) && (self.per_10k >= 10_000 || random() % 10_000 < u64::from(self.per_10k))
    }

    /// The namespace of the route and of the policy.
    pub(crate) fn namespace(&self) -> &str {
        self.route.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The time until it ends; zero: it has.
    pub(crate) fn left(&self) -> Duration {
        self.until.duration_since(SystemTime::now()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fault(per_10k: u16, seconds: i64, when: &[(&str, &[StringMatch])]) -> leno_model::Fault {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        let field =
            |(name, values): &(&str, &[StringMatch])| FieldValues { name: (*name).to_owned(), values: values.to_vec() };
        leno_model::Fault {
            name: format!("chaos/faults/{per_10k}-{seconds}-{}", when.len()),
            when: when.iter().map(field).collect(),
            per_10k,
            delay: Duration::ZERO,
            abort: Some(FaultAbort::Status(503)),
            until_ms: u64::try_from(i64::try_from(now).unwrap() + 1000 * seconds).unwrap(),
        }
    }

    fn picked(faults: &[leno_model::Fault], headers: &HeaderMap, random: u64) -> Option<String> {
        let faults = Faults::new(&"shop/web".into(), faults)?;
        faults.pick(headers, || random).map(|fault| fault.name.to_string())
    }

    #[test]
    fn the_first_fault_in_force_that_a_request_meets_is_picked() {
        let group = |values: &[StringMatch]| fault(10_000, 60, &[("x-group", values)]);
        let testers = group(&[StringMatch::Exact("testers".to_owned()), StringMatch::Prefix("qa-".to_owned())]);
        let all = [fault(10_000, -1, &[]), fault(0, 60, &[]), testers.clone(), fault(2_500, 60, &[])];
        let headers = |values: &[&str]| -> HeaderMap {
            values.iter().map(|value| (HeaderName::from_static("x-group"), value.parse().unwrap())).collect()
        };
        for (values, random, expected) in [
            (&["testers"][..], 9_999, Some(&testers.name)),
            (&["other", "qa-7"], 9_999, Some(&testers.name)),
            (&["Testers"], 9_999, None),
            (&[], 2_500, None),
            (&[], 12_499, Some(&all[3].name)),
        ] {
            assert_eq!(picked(&all, &headers(values), random).as_ref(), expected, "{values:?} {random}");
        }
        assert!(Faults::new(&"shop/web".into(), &[]).is_none());
        let last = fault(10_000, i64::MAX / 10_000, &[]);
        assert_eq!(picked(std::slice::from_ref(&last), &headers(&[]), 0), Some(last.name));
    }

    proptest! {
        #[test]
        fn a_percentage_is_that_part_of_all_random_numbers(per_10k in 0..=10_000u16) {
            let faults = Faults::new(&"shop/web".into(), &[fault(per_10k, 60, &[])]).unwrap();
            let hits = (0..10_000).filter(|random| faults.pick(&HeaderMap::new(), || *random).is_some());
            prop_assert_eq!(hits.count(), usize::from(per_10k));
        }
    }
}
