//! A request of the table, and its expected verdict.

use super::Caller;

/// A function of the namespace `test`, its policy, and the requests to it.
pub(crate) struct Group {
    pub function: &'static str,
    /// The `spec` of a Policy that has the function's name. `<keys>` stands for the key set of the issuer `https://login.example`.
    pub policy: &'static str,
    pub cases: Vec<Case>,
}

/// A request and its verdict.
pub(crate) struct Case {
    pub caller: Caller,
    pub method: &'static str,
    /// Path and query, as sent.
    pub path: &'static str,
    /// The authority; `None`: `<function>.test`.
    pub host: Option<&'static str>,
    pub headers: Vec<(&'static str, &'static str)>,
    /// The caller's source address; `None`: the kernel chooses.
    pub bind: Option<&'static str>,
    /// Claims of the token in `authorization`, besides its issuer.
    pub token: Option<&'static str>,
    /// Whether another key than the issuer's signs the token.
    pub forged: bool,
    /// The only protocol for the request; `None`: the test sends it with each version of HTTP.
    pub protocol: Option<Protocol>,
    pub verdict: Verdict,
}

/// Protocols as policies see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    Grpc,
    WebSocket,
}

impl Protocol {
    /// The name in the access log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Grpc => "grpc",
            Self::WebSocket => "websocket",
        }
    }

    pub(crate) fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc)
    }

    /// The headers that show a request's protocol.
    pub(crate) fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Http1 | Self::Http2 => &[],
            Self::Grpc => &[("content-type", "application/grpc"), ("te", "trailers")],
            Self::WebSocket => &[
                ("connection", "upgrade"),
                ("upgrade", "websocket"),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ],
        }
    }
}

/// The verdict that the access log must contain.
pub(crate) struct Verdict {
    pub allow: bool,
    /// The side whose sidecar decided.
    pub by: Side,
    /// The rule that decided or came nearest. Rules of the callee are without the policy's name.
    pub rule: &'static str,
    /// The reason of a refusal, or empty. A final `…` stands for the rest.
    pub clause: &'static str,
    /// Whether the request is refused because no rule allows it.
    pub default: bool,
    pub status: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Caller,
    Callee,
}

/// A request by `test/web`: a method and a path.
pub(super) fn web(request: &'static str) -> Case {
    Case::new(Caller::Web, request)
}

/// A request by `ops/audit`.
pub(super) fn audit(request: &'static str) -> Case {
    Case::new(Caller::Audit, request)
}

impl Case {
    pub(super) fn new(caller: Caller, request: &'static str) -> Self {
        let (method, path) = request.split_once(' ').expect("a method and a path");
        Self {
            caller,
            method,
            path,
            host: None,
            headers: Vec::new(),
            bind: None,
            token: None,
            forged: false,
            protocol: None,
            verdict: Verdict { allow: true, by: Side::Callee, rule: "", clause: "", default: false, status: 200 },
        }
    }

    pub(super) fn host(mut self, host: &'static str) -> Self {
        self.host = Some(host);
        self
    }

    pub(super) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(super) fn bind(mut self, address: &'static str) -> Self {
        self.bind = Some(address);
        self
    }

    pub(super) fn token(mut self, claims: &'static str) -> Self {
        self.token = Some(claims);
        self
    }

    pub(super) fn forged(mut self) -> Self {
        self.forged = true;
        self
    }

    pub(super) fn over(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Expects that this rule allows it.
    pub(super) fn allowed(mut self, rule: &'static str) -> Self {
        self.verdict.rule = rule;
        self
    }

    /// Expects that this rule refuses it.
    pub(super) fn refused(mut self, rule: &'static str, clause: &'static str) -> Self {
        self.verdict = Verdict { allow: false, rule, clause, status: 403, ..self.verdict };
        self
    }

    /// Expects that no rule allows it, and that this one comes nearest.
    pub(super) fn missed(self, rule: &'static str, clause: &'static str) -> Self {
        let mut case = self.refused(rule, clause);
        case.verdict.default = true;
        case
    }

    /// Expects that the caller's sidecar decides.
    pub(super) fn by_the_caller(mut self) -> Self {
        self.verdict.by = Side::Caller;
        self
    }

    pub(super) fn status(mut self, status: u16) -> Self {
        self.verdict.status = status;
        self
    }
}
