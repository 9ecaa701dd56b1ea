//! The policies of a proxy: the same list for Envoy and for Leno.

use std::fmt;

/// Which of the nine policies are in force, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policies {
    /// 1: request authentication.
    pub jwt: Option<Algorithm>,
    /// 2: sidecar configuration: a header set, a header removed.
    pub sidecar: bool,
    /// 3: authorization by method, path, identity and claim; a deny rule and two allow rules.
    pub authorization: bool,
    /// 4: rate limiting.
    pub limit: Option<Limit>,
    /// 5: tracing, every request, exported by OTLP.
    pub tracing: bool,
    /// 6: a JSON line for each request, to a file.
    pub log: bool,
    /// 7: mutual TLS.
    pub mtls: bool,
    /// 8: retry.
    pub retry: bool,
    /// 9: circuit breaker and outlier detection.
    pub breaker: bool,
    /// Envoy's `jwt_cache_config`. Leno always remembers verified tokens.
    pub jwt_cache: bool,
    /// Leno judges each request by a run, and remembers no decision.
    pub judge_each: bool,
}

/// Signs tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Es256,
    Rs256,
}

/// How requests are counted. Leno has one way: the node's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Envoy calls a service over gRPC (`envoy.filters.http.ratelimit`).
    Global,
    /// Envoy counts itself (`envoy.filters.http.local_ratelimit`).
    Local,
}

/// One policy, for taking away or adding by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Jwt,
    Sidecar,
    Authorization,
    Limit,
    Tracing,
    Log,
    Mtls,
    Retry,
    Breaker,
}

impl Policies {
    pub(crate) const NONE: Self = Self {
        jwt: None,
        sidecar: false,
        authorization: false,
        limit: None,
        tracing: false,
        log: false,
        mtls: false,
        retry: false,
        breaker: false,
        jwt_cache: false,
        judge_each: false,
    };

    /// All nine, as in an untuned sidecar.
    pub(crate) const NINE: Self = Self {
        jwt: Some(Algorithm::Es256),
        sidecar: true,
        authorization: true,
        limit: Some(Limit::Global),
        tracing: true,
        log: true,
        mtls: true,
        retry: true,
        breaker: true,
        jwt_cache: false,
        judge_each: false,
    };

    /// Envoy's best: verified tokens remembered, requests counted locally.
    pub(crate) const BEST: Self = Self { jwt_cache: true, limit: Some(Limit::Local), ..Self::NINE };

    /// What most functions have: rules on method and path, and a rate limit.
    pub(crate) const RULES: Self = Self { authorization: true, limit: Some(Limit::Local), ..Self::NONE };

    /// With each request judged by a run.
    pub(crate) fn each(self) -> Self {
        Self { judge_each: true, ..self }
    }

    /// With this policy switched on as in [`Self::NINE`], or off.
    pub(crate) fn with(mut self, policy: Policy, on: bool) -> Self {
        let source = if on { Self::NINE } else { Self::NONE };
        match policy {
            Policy::Jwt => self.jwt = source.jwt,
            Policy::Sidecar => self.sidecar = source.sidecar,
            Policy::Authorization => self.authorization = source.authorization,
            Policy::Limit => self.limit = source.limit,
            Policy::Tracing => self.tracing = source.tracing,
            Policy::Log => self.log = source.log,
            Policy::Mtls => self.mtls = source.mtls,
            Policy::Retry => self.retry = source.retry,
            Policy::Breaker => self.breaker = source.breaker,
        }
        self
    }
}

impl Policy {
    pub(crate) const ALL: [Self; 9] = [
        Self::Jwt,
        Self::Sidecar,
        Self::Authorization,
        Self::Limit,
        Self::Tracing,
        Self::Log,
        Self::Mtls,
        Self::Retry,
        Self::Breaker,
    ];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jwt => "jwt",
            Self::Sidecar => "sidecar",
            Self::Authorization => "authorization",
            Self::Limit => "limit",
            Self::Tracing => "tracing",
            Self::Log => "log",
            Self::Mtls => "mtls",
            Self::Retry => "retry",
            Self::Breaker => "breaker",
        })
    }
}
