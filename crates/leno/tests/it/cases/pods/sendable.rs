//! Which cases pods can send: those whose expectation also holds for the facts of pods.

use super::super::engines::{CaseResult, Head, Programs};
use super::super::expectation;
use super::super::keys::Keys;
use super::super::table::{Case, Group, Load, Request, Texts, Token};
use leno_sandbox::{Engine, Pool};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};

/// The callers' namespaces and names; "": a pod without an identity.
pub(crate) const CALLERS: [&str; 7] = ["", "shop/web", "shop/pay", "ops/audit", "ops/web", "ops/pay", "ops2/audit"];
/// Seconds between the first of a case's requests and the last one, and the seconds at which they
/// are sent. The expectation must hold for all of them.
const LAGS: [f64; 2] = [0.0, 3.0];
const STARTS: [f64; 4] = [1_790_000_000.0, 1_790_000_000.4, 1_790_000_003.7, 1_790_001_234.5];
/// Claims within this distance from the case's time move with it.
const NEAR: f64 = 100_000.0;

/// Judges cases of a group in this process.
pub(crate) struct Judge<'a> {
    programs: Programs,
    pools: [Pool; 1],
    group: &'a Group,
    keys: &'a Keys,
}

impl<'a> Judge<'a> {
    pub(crate) fn of(group: &'a Group, keys: &'a Keys) -> Self {
        // Pods get paths as they come.
        let function = json!({"paths": {"send": "asReceived"}});
        let of_pods = Group {
            file: group.file.clone(),
            about: group.about.clone(),
            policies: group.policies.clone(),
            function: function.as_object().unwrap().clone(),
            cases: Vec::new(),
        };
        let programs = Programs::load(&of_pods, keys, &[Engine::inline()]).unwrap_or_else(|error| panic!("{error}"));
        Self { programs, pools: [Pool::new()], group, keys }
    }

    /// Why pods cannot send the case.
    pub(crate) fn obstacle(&mut self, case: &Case) -> Option<&'static str> {
        if case.outbound {
            return Some("the caller's node judges no calls of pods yet");
        }
        if self.group.function.keys().any(|field| field != "paths") {
            return Some("pods have no Function document, which the case needs");
        }
        if case.history.iter().any(|past| past.ago != 0.0) {
            return Some("time must pass between its requests");
        }
        let plan = case.expect.plan.as_ref().and_then(Value::as_object);
        if plan.is_some_and(|plan| plan.keys().any(|name| name != "log")) {
            return Some("a plan for retries, timeouts or a breaker shows in no answer");
        }
        let identities = requests(case).map(|request| request.identity.unwrap_or_default());
        if identities.into_iter().any(|identity| !CALLERS.contains(&&*identity)) {
            return Some("no pod has the caller's identity");
        }
        if requests(case).any(|request| !is_sendable(&request)) {
            return Some("no request carries this path, host or field to a policy");
        }
        let mut case = case.clone();
        if !self.holds(&case) {
            return Some("pods get paths as they come");
        }
        case.load = Load::default();
        if !self.holds(&case) {
            return Some("the target's load cannot be arranged");
        }
        place(&mut case);
        if !self.holds(&case) {
            return Some("no pod has the caller's address");
        }
        if case.expect.trace.is_some() && self.is_random(&case) {
            return Some("random numbers decide");
        }
        let has_tokens = case.token.is_some() || !case.tokens.is_empty();
        let has_limits = self.group.policies.iter().any(|policy| policy["spec"].get("rateLimits").is_some());
        let mut moments = STARTS.iter().flat_map(|start| LAGS.map(|lag| at(&case, *start, lag)));
        if (has_tokens || has_limits) && !moments.all(|case| self.holds(&case)) {
            return Some("the second at which it is sent decides");
        }
        None
    }

    /// Whether other random numbers change more than the identifiers of the trace.
    fn is_random(&mut self, case: &Case) -> bool {
        let mut flags = |last| {
            let random = [1, 2, 3, last];
            let judged = self.judged(&Case { random, ..case.clone() });
            judged.trace.map(|trace| trace.context.sampled)
        };
        let (one, other) = (flags(0), flags(9_999));
        one != other || case.random == [0; 4]
    }

    fn judged(&mut self, case: &Case) -> CaseResult {
        self.programs.judge(&mut self.pools, case, self.keys).remove(0).1
    }

    fn holds(&mut self, case: &Case) -> bool {
        let judged = self.judged(case);
        expectation::differences(case, &Head::of(case, self.keys), &judged).is_empty()
    }
}

/// Whether HTTP has a request that policies see like this.
fn is_sendable(request: &Request) -> bool {
    let path = &request.path;
    let is_path = !path.is_empty() && !path.contains("://") && path.bytes().all(|byte| byte.is_ascii_graphic());
    let mut values = request.headers.values().flat_map(Texts::all);
    is_path && !request.authority.is_empty() && values.all(|value| value.trim() == value)
}

/// All requests of a case.
fn requests(case: &Case) -> impl Iterator<Item = Request> {
    std::iter::once(case.request.clone()).chain(case.history.iter().map(|past| past.request_of(&case.request)))
}

/// Gives all requests of a case the addresses of their callers' pods.
fn place(case: &mut Case) {
    let address = |request: &Request| address(request.identity.as_deref().unwrap_or_default());
    for past in &mut case.history {
        let address = address(&past.request_of(&case.request));
        past.request.insert("address".to_owned(), Value::from(address.to_string()));
    }
    case.request.address = address(&case.request);
}

/// A stand-in for the address of a caller's pod: callers differ by it.
fn address(identity: &str) -> IpAddr {
    let place = CALLERS.iter().position(|caller| *caller == identity).unwrap_or_default();
    IpAddr::V4(Ipv4Addr::new(10, 78, 1, 10 + u8::try_from(place).unwrap()))
}

/// The case as it is sent at another time, with its earlier requests `lag` seconds before.
fn at(case: &Case, start: f64, lag: f64) -> Case {
    let mut case = case.clone();
    shift(&mut case, start);
    case.now += lag;
    case.history.iter_mut().for_each(|past| past.ago = lag);
    case
}

/// Moves a case with the times of its tokens, which stay whole numbers.
pub(crate) fn shift(case: &mut Case, now: f64) {
    let (before, by) = (case.now, (now - case.now).floor());
    let shift = |token: &mut Token| {
        for name in ["exp", "nbf", "iat"] {
            if let Some(time) = token.claims.get(name).and_then(Value::as_f64)
                && (time - before).abs() < NEAR
            {
                let text = (time + by).to_string();
                token.claims.insert(name.to_owned(), serde_json::from_str(&text).unwrap());
            }
        }
    };
    case.token.iter_mut().chain(case.tokens.values_mut()).for_each(shift);
    case.now = now;
}
