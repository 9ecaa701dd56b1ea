//! `spec.tracing` and `spec.accessLog`.

use super::fields;
use super::header::{self, Use};
use crate::document::{AccessLog, Tracing};
use crate::problem::Scope;
use leno_policy::spec;

pub(super) fn tracing(scope: &Scope<'_>, policy: &str, tracing: &Tracing) -> spec::Tracing {
    let field = scope.field("sampling");
    let share = tracing.sampling * 100.0;
    if !(0.0..=100.0).contains(&tracing.sampling) {
        field.problem(format!("{} percent", tracing.sampling), "expected 0 to 100");
    } else if (share - share.round()).abs() > 1e-6 {
        field.problem(format!("{} percent is too fine", tracing.sampling), "expected steps of 0.01");
    }
    // Checked above: 0 to 10,000 (the cast saturates).
    let sampling_per_10k = share.round() as u16;
    spec::Tracing {
        name: format!("{policy}/tracing"),
        enabled: tracing.enabled,
        sampling_per_10k,
        accept_b3: tracing.b3,
    }
}

pub(super) fn access_log(scope: &Scope<'_>, policy: &str, log: &AccessLog) -> spec::AccessLog {
    let headers = scope.field("requestHeaders");
    let names = log
        .request_headers
        .iter()
        .enumerate()
        .filter_map(|(index, name)| header::name(&headers.element(index), name, Use::Log));
    spec::AccessLog {
        name: format!("{policy}/accessLog"),
        enabled: log.enabled,
        statuses: fields::statuses(&scope.field("statuses"), &log.statuses),
        request_headers: names.collect(),
    }
}
