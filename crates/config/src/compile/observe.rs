//! `spec.tracing` and `spec.accessLog`.

use super::fields;
use super::header::{self, Use};
use crate::document::{AccessLog, Tracing};
use crate::problem::Scope;
use leno_policy::spec;

pub(super) fn tracing(scope: &Scope<'_>, policy: &str, tracing: &Tracing) -> spec::Tracing {
    spec::Tracing {
        name: format!("{policy}/tracing"),
        enabled: tracing.enabled,
        sampling_per_10k: fields::per_10k(&scope.field("sampling"), tracing.sampling),
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
