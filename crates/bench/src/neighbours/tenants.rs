//! A tenant with modest traffic, and hostile ones on the same node.

use super::bomb;
use crate::contenders::{Running, listeners, mesh, new_folder};
use crate::load::{Pace, Plan, Protocol, Request, Tls};
use crate::policies::{Algorithm, Policies};
use crate::proxy_under_test::Proxy;
use crate::proxy_under_test::control::Api;
use crate::proxy_under_test::leno::{HOARDER, HURRIED, Hostile, INTERIM, NOISY, OUTPUT, PULLED, RUNAWAY, host_of};
use crate::rig::{Noise, Rig};
use crate::trial::{Contender, HTTP1};
use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

/// An extension that does not end before its deadline.
const ENDLESS: &str = r#"(module
    (memory (export "memory") 1)
    (func (export "proxy_abi_version_0_2_1"))
    (func (export "malloc") (param i32) (result i32) (i32.const 1024))
    (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (loop $again (br $again)) (i32.const 0)))"#;
/// Interim responses before each answer of the tenant that sends them.
const INTERIM_RESPONSES: usize = 20_000;
/// Tokens of the tenant that sends dry runs. Few requests of one token may wait at a time.
const TOKENS: usize = 8;

/// The modest tenant, and the hostile ones, on one node.
pub(super) struct Tenants {
    pub modest: Running,
    /// To the hostile tenants' upstream, without the node.
    pub elsewhere: Plan,
    pub noisy: Plan,
    pub hurried: Plan,
    pub runaway: Plan,
    pub output: Plan,
    pub interim: Plan,
    pub hoarder: Plan,
    pub pulled: Plan,
    /// Files in which the instances of `output` and `hoarder` count the resources that they have
    /// taken.
    pub tallies: [PathBuf; 2],
    /// The process of the slow registries.
    pub registry: RefCell<Noise>,
    /// A second node, if it is needed.
    pub with_control: Option<WithControl>,
    /// Of the hostile tenants.
    _upstreams: [Noise; 2],
}

/// The modest tenant on a node that has joined a `leno control` on the same core.
pub(super) struct WithControl {
    pub modest: Running,
    /// Dry runs, and changes that are refused.
    pub dry_runs: Plan,
}

impl Tenants {
    /// Starts the node, and a second one with a control plane if a scenario needs it.
    pub(super) fn start(rig: &Rig, with_control: bool) -> anyhow::Result<Self> {
        let folder = new_folder(rig, "tenants")?;
        let listeners = listeners()?;
        let policies = Policies::NINE;
        let (noisy, noise) = rig.another_upstream(0)?;
        let (interim, interim_noise) = rig.another_upstream(INTERIM_RESPONSES)?;
        let (registries, registry) = rig.slow_registries()?;
        let mesh = mesh(rig, &folder, "wasm", policies, listeners);
        let [endless, images] = ["endless.wasm", ".images"].map(|name| rig.folder().join(name));
        fs::write(&endless, wat::parse_str(ENDLESS)?)?;
        let tallies = ["output.tally", "hoard.tally"].map(|name| rig.folder().join(name));
        let hostile = Hostile {
            noisy,
            interim,
            endless: &endless,
            tallies: [&tallies[0], &tallies[1]],
            registries: &registries.map(|address| address.to_string()),
            images: &images,
        };
        fs::write(folder.join("bench.yaml"), mesh.documents_of_tenants(&hostile)?)?;
        let modest = Running::at_gateway(rig, "modest", listeners, policies)?.asking(request(rig, 0)?);
        let modest = modest.behind_leno(rig, &folder, listeners, policies)?;
        let plan = modest.plan(HTTP1, Pace::Closed);
        let of = |index| anyhow::Ok(Plan { request: request(rig, index)?, ..plan.clone() });
        let mut pulled = of(PULLED.start)?;
        pulled.request.authorities = PULLED.map(host_of).collect();
        Ok(Self {
            _upstreams: [noise, interim_noise],
            elsewhere: Plan { address: noisy, tls: None, ..plan.clone() },
            noisy: of(NOISY)?,
            hurried: of(HURRIED)?,
            runaway: of(RUNAWAY)?,
            output: of(OUTPUT)?,
            interim: of(INTERIM)?,
            hoarder: of(HOARDER)?,
            pulled,
            tallies,
            registry: RefCell::new(registry),
            with_control: with_control.then(|| WithControl::start(rig)).transpose()?,
            modest,
        })
    }
}

impl Tenants {
    /// The last lines that each node has written.
    pub(super) fn last_lines(&self, count: usize) -> String {
        let outputs = [Some(&self.modest), self.with_control.as_ref().map(|joined| &joined.modest)];
        let last = |running: &Running| {
            let output = running.output();
            let lines: Vec<&str> = output.lines().collect();
            lines[lines.len().saturating_sub(count)..].join("\n")
        };
        outputs.into_iter().flatten().map(last).collect::<Vec<_>>().join("\n")
    }
}

impl WithControl {
    fn start(rig: &Rig) -> anyhow::Result<Self> {
        let folder = new_folder(rig, "joined")?;
        let listeners = listeners()?;
        let policies = Policies::NINE;
        let (of_mesh, documents) = mesh(rig, &folder, "wasm", policies, listeners).documents_for_control();
        let leno = &rig.programs.leno;
        let (proxy, api) = Proxy::leno_with_control(leno, rig.cores, &folder, listeners, (&of_mesh, &documents))?;
        let modest = Running::at_gateway(rig, "joined", listeners, policies)?.asking(request(rig, 0)?);
        Ok(Self { modest: modest.behind(rig, proxy, policies)?, dry_runs: dry_runs(&api)? })
    }
}

fn request(rig: &Rig, index: usize) -> anyhow::Result<Request> {
    Ok(Request { authorities: vec![host_of(index)], ..rig.material.request(Algorithm::Es256)? })
}

/// The requests of [`bomb`].
fn dry_runs(api: &Api) -> anyhow::Result<Plan> {
    let tokens = (0..TOKENS).map(|_| Ok(format!("Bearer {}", api.hostile_token()?)));
    Ok(Plan {
        address: api.address,
        protocol: Protocol::Http1,
        tls: Some(Tls { ca: api.ca(), server_name: api.address.ip().to_string(), client: None }),
        pace: Pace::Closed,
        connections: 1,
        streams: 1,
        warm_up_ms: 0,
        measured_ms: 0,
        request: Request {
            method: "POST".into(),
            target: "/v1/changes".into(),
            authorities: vec![api.address.to_string()],
            headers: vec![("content-type".into(), "application/json".into())],
            authorizations: tokens.collect::<anyhow::Result<_>>()?,
            body: 0,
            contents: bomb::changes(),
        },
    })
}
