//! Routes: gateway configuration of functions on other nodes.

use crate::fault::Fault;
use crate::function::{Engine, Expose, FunctionConfig};
use crate::function_id::FunctionId;
use crate::run::{AppProtocol, Run};
use crate::spiffe::SpiffeId;
use leno_policy::spec::{Action, AuthorizationRule, ProgramSpec, Sidecar};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The name of the only rule of a route's program. The callee's node judges the function's rules.
const JUDGED_BY_THE_CALLEE: &str = "gateway/judged-by-the-callee";

/// A gateway's configuration of a function that other nodes host: hosts and paths, and how to call
/// it. A route has none of the function's rules, keys and limits: the callee's node judges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The function.
    pub id: FunctionId,
    /// The SPIFFE ID that the function's node must present.
    pub identity: SpiffeId,
    /// The instances' protocol.
    pub protocol: AppProtocol,
    /// Hosts and paths.
    pub expose: Vec<Expose>,
    /// Faults of requests that come to it by `expose`.
    pub faults: Vec<Fault>,
    /// A route of the gateway leads to it.
    pub is_routed: bool,
    /// Timeout, retries, circuit breaker, tracing and access log. It allows every request.
    pub program: ProgramSpec,
    /// Engine that a policy selects; `None`: the mesh's.
    pub engine: Option<Engine>,
    /// Longest run of a sandbox.
    pub deadline: Duration,
}

impl Route {
    /// The route to a function; `None`: no gateway exposes it.
    pub fn of(config: &FunctionConfig) -> Option<Self> {
        let ProgramSpec { function, direction, tracing, access_log, targets, .. } = &config.inbound;
        let program = ProgramSpec {
            function: function.clone(),
            direction: *direction,
            sidecar: Sidecar::default(),
            authentication: Vec::new(),
            authorization: vec![AuthorizationRule {
                name: JUDGED_BY_THE_CALLEE.to_owned(),
                action: Action::Allow,
                from: Vec::new(),
                to: Vec::new(),
                when: Vec::new(),
                audit: false,
            }],
            audit_default: false,
            rate_limits: Vec::new(),
            authorizers: Vec::new(),
            tracing: tracing.clone(),
            access_log: access_log.clone(),
            targets: targets.clone(),
        };
        (config.is_routed || !config.expose.is_empty()).then(|| Self {
            id: config.id.clone(),
            identity: config.identity.clone(),
            protocol: config.protocol,
            expose: config.expose.clone(),
            faults: config.faults.clone(),
            is_routed: config.is_routed,
            program,
            engine: config.engine,
            deadline: config.deadline,
        })
    }

    /// A configuration with only the route. It has no instances, and its outbound program allows no
    /// call.
    pub fn into_config(self) -> FunctionConfig {
        let Self { id, identity, protocol, expose, faults, is_routed, program, engine, deadline } = self;
        let outbound = ProgramSpec {
            direction: leno_policy::spec::Direction::Outbound,
            targets: Vec::new(),
            authorization: Vec::new(),
            ..program.clone()
        };
        FunctionConfig {
            id,
            identity,
            inbound: program,
            outbound,
            engine,
            deadline,
            protocol,
            keys: Vec::new(),
            jwks: Vec::new(),
            run: Run::External(Vec::new()),
            expose,
            faults,
            is_routed,
            callees: Vec::new(),
            concurrency: 0,
            queue: 0,
            scale: Default::default(),
            authorizers: Vec::new(),
            inbound_extensions: Vec::new(),
            outbound_extensions: Vec::new(),
            revisions: Default::default(),
            chain: None,
            bounds: Default::default(),
        }
    }
}
