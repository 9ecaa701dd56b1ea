//! Runs cases on engines, as the runtime does: gives a program the parts of the request that it
//! declares, verifies the signature that it names, runs each sandbox once, and carries out the
//! decision.

use super::keys::Keys;
use super::table::{Case, Group, Texts, merge};
use leno_model::{FunctionConfig, FunctionId};
use leno_policy::breaker::{self, TargetLoad};
use leno_policy::engine::EngineKind;
use leno_policy::input::{Header, Peer, RequestInput};
use leno_policy::needs::Needs;
use leno_policy::outcome::{Decision, Denial, HeaderEdit, Output, Take, Verdict, Window};
use leno_policy::quota::{self, QuotaState, TakeResult};
use leno_policy::spec::{KeyId, ProgramSpec, Protocol};
use leno_policy::trace::{self, Parent, TracePlan};
use leno_policy::{sidecar, token};
use leno_proxy::signature::PreparedKeys;
use leno_sandbox::{Engine, Image, Pool};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

/// The runs are slow on a busy machine, and this test is not about their duration.
const DEADLINE: Duration = Duration::from_secs(30);
const MOST_RUNS: usize = 2;

/// The engines that work on this machine.
pub(crate) fn all() -> Vec<Engine> {
    let mut engines = vec![Engine::inline(), Engine::wasm().unwrap()];
    match Engine::microvm() {
        Ok(engine) => engines.push(engine),
        Err(_) if std::env::var_os("LENO_SKIP_MICROVM").is_some_and(|value| value == "1") => {
            eprintln!("\n*** The decision cases were NOT run on micro-VMs (LENO_SKIP_MICROVM=1). ***\n");
        }
        Err(reason) => panic!(
            "the decision cases cannot be run on micro-VMs: {reason}. To leave micro-VMs out, set LENO_SKIP_MICROVM=1"
        ),
    }
    engines
}

/// A group's policies, compiled and loaded.
pub(crate) struct Programs {
    config: FunctionConfig,
    keys: PreparedKeys,
    images: Vec<[Image; 2]>,
}

/// The result of a case on one engine.
#[derive(Debug, PartialEq)]
pub(crate) struct CaseResult {
    /// All outputs of the sandboxes, in order.
    pub outputs: Vec<Output>,
    /// The decision after limits and circuit breaker, with the edits that pass on the span.
    pub decision: Decision,
    /// Edits to the response that the client gets, also to a refusal.
    pub response_edits: Vec<HeaderEdit>,
    /// This hop's span.
    pub trace: Option<TracePlan>,
    /// The parts of the program's description that apply to this exchange.
    pub plan: Value,
    /// Edits to the case's response.
    pub answer: Option<Vec<HeaderEdit>>,
}

impl CaseResult {
    /// Whether it is the same but for the form of the path: a route leaves a normal one.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        let without_path = |Self { decision, .. }: &Self| Decision { path: None, ..decision.clone() };
        without_path(self) == without_path(other)
            && self.response_edits == other.response_edits
            && (&self.trace, &self.plan, &self.answer) == (&other.trace, &other.plan, &other.answer)
    }
}

impl Programs {
    /// Compiles the documents as `leno` does, and loads the resulting programs.
    pub(crate) fn load(group: &Group, keys: &Keys, engines: &[Engine]) -> anyhow::Result<Self> {
        let text = documents(group, keys);
        let snapshot = leno_config::load_text(Path::new("table.yaml"), &text).map_err(|problems| {
            anyhow::anyhow!(problems.iter().map(|problem| format!("\n  {problem}")).collect::<String>())
        })?;
        let id: FunctionId = "shop/cart".parse().unwrap();
        let config = snapshot.function_config(&id).unwrap();
        let load = |engine: &Engine| {
            [&config.inbound, &config.outbound].map(|program| {
                engine.load(&leno_sandbox::encode(program).unwrap()).unwrap_or_else(|error| panic!("{error}"))
            })
        };
        let images = engines.iter().map(load).collect();
        Ok(Self { keys: PreparedKeys::new(&config.keys), images, config })
    }

    fn spec(&self, case: &Case) -> &ProgramSpec {
        if case.outbound { &self.config.outbound } else { &self.config.inbound }
    }

    /// Judges the case on each engine, with the counters that its history leaves.
    pub(crate) fn judge(&self, pools: &mut [Pool], case: &Case, keys: &Keys) -> Vec<(EngineKind, CaseResult)> {
        let head = Head::of(case, keys);
        let mut ledger = Ledger::default();
        for past in &case.history {
            let mut before = case.clone();
            before.request = past.request_of(&case.request);
            before.now -= past.ago;
            let head = Head::of(&before, keys);
            for _ in 0..past.times {
                let judged = self.run(&mut pools[0], &self.images[0], &before, &head, &ledger);
                ledger.take(self.spec(case), &judged.decision, before.now);
            }
        }
        let runs = self.images.iter().zip(pools);
        runs.map(|(images, pool)| {
            let kind = images[0].kind();
            (kind, self.run(pool, images, case, &head, &ledger))
        })
        .collect()
    }

    fn run(&self, pool: &mut Pool, images: &[Image; 2], case: &Case, head: &Head, ledger: &Ledger) -> CaseResult {
        let spec = self.spec(case);
        let (outputs, decision) = self.decide(pool, &images[usize::from(case.outbound)], case, head);
        let (mut decision, response_edits) = ledger.carry_out(spec, decision, case);
        let parent = case
            .parent
            .as_ref()
            .map(|parent| Parent { context: trace::parse(parent.as_bytes()).unwrap(), state: &case.parent_state });
        let (trace, edits) = trace::plan(&spec.tracing, || head.headers().into_iter(), case.random, parent).unzip();
        if matches!(decision.verdict, Verdict::Allow { .. }) {
            decision.request_edits.splice(0..0, edits.unwrap_or_default());
        }
        let plan = plan(spec, &decision);
        let answer = case.answer.as_ref().map(|answer| sidecar::response_edits(&spec.sidecar, answer.status));
        CaseResult { outputs, decision, response_edits, trace, plan, answer }
    }

    /// All outputs of the sandboxes, and the decision.
    fn decide(&self, pool: &mut Pool, image: &Image, case: &Case, head: &Head) -> (Vec<Output>, Decision) {
        let spec = self.spec(case);
        let needs = Needs::of(spec);
        let mut input = head.input(case, spec, &needs);
        let tokens = token::locate(&needs.tokens, &input.headers, input.path);
        let mut outputs = Vec::new();
        while outputs.len() < MOST_RUNS {
            let output = pool.run(image, &input, DEADLINE).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            outputs.push(output.clone());
            match output {
                Output::Decided(decision) => return (outputs, decision),
                Output::Unverified(want) => {
                    let made = |key: &&KeyId| self.keys.verify(tokens[0].token, **key, want.algorithm).is_ok();
                    let Some(key) = want.keys.iter().find(made).copied() else {
                        return (outputs, wrong_signature(want.denial, want.failure));
                    };
                    input.verified = Some(key);
                }
                Output::Unreadable(reason) => panic!("{}: {reason}", case.name),
            }
        }
        panic!("{}: no decision within {MOST_RUNS} runs: {outputs:?}", case.name)
    }
}

fn plan(spec: &ProgramSpec, decision: &Decision) -> Value {
    let target = decision.target.map(|index| &spec.targets[usize::from(index)]);
    json!({
        "timeout_ms": target.map_or(0, |target| target.timeout_ms),
        "retry": target.and_then(|target| target.retry.as_ref()),
        "breaker": target.and_then(|target| target.breaker.as_ref()),
        "log": spec.access_log,
    })
}

/// The runtime's decision on a wrong signature.
fn wrong_signature(denial: Denial, takes: Vec<Take>) -> Decision {
    Decision {
        verdict: Verdict::Deny(denial),
        path: None,
        request_edits: Vec::new(),
        takes,
        principal: None,
        audit: None,
        window: Window::ALWAYS,
        target: None,
        asks: Vec::new(),
    }
}

/// The decision on a request that the program allows and the runtime refuses.
fn refused(denial: Denial, decision: Decision) -> Decision {
    Decision { principal: decision.principal, audit: decision.audit, ..wrong_signature(denial, Vec::new()) }
}

/// The documents of a small mesh, and the group's policies. The cases judge `shop/cart`.
fn documents(group: &Group, keys: &Keys) -> String {
    let function = |namespace: &str, name: &str, labels: Value| {
        json!({
            "apiVersion": "leno.dev/v1alpha1",
            "kind": "Function",
            "metadata": {"namespace": namespace, "name": name, "labels": labels},
            "spec": {"external": {"addresses": ["127.0.0.1:9000"]}},
        })
    };
    let mut cart = function("shop", "cart", json!({"app": "cart"}));
    merge(&mut cart["spec"], Value::Object(group.function.clone()));
    let mesh = json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": "Mesh",
        "metadata": {"name": "cases"},
        "spec": {"trustDomain": "mesh.example"},
    });
    let mut documents = vec![
        mesh,
        cart,
        function("shop", "web", json!({"app": "web", "tier": "front"})),
        function("shop", "pay", json!({"app": "pay"})),
        function("ops", "audit", json!({"app": "audit", "tier": "back"})),
    ];
    documents.extend(policies(group, keys));
    // JSON is also YAML.
    let texts: Vec<String> = documents.iter().map(|document| serde_json::to_string_pretty(document).unwrap()).collect();
    texts.join("\n---\n")
}

/// The group's Policy documents.
pub(crate) fn policies(group: &Group, keys: &Keys) -> Vec<Value> {
    let document = |policy: &Value| {
        let mut document = json!({
            "apiVersion": "leno.dev/v1alpha1",
            "kind": "Policy",
            "metadata": {"namespace": "shop"},
            "spec": {"functions": ["cart"]},
        });
        merge(&mut document, policy.clone());
        keys.publish(&mut document);
        document
    };
    group.policies.iter().map(document).collect()
}

/// Counters as the runtime keeps them.
#[derive(Default)]
struct Ledger(HashMap<(u16, String), QuotaState>);

impl Ledger {
    /// The decision after the counters that it names and the circuit breaker, and the edits to the
    /// response. It takes from the counters that are left in it.
    fn carry_out(&self, spec: &ProgramSpec, mut decision: Decision, case: &Case) -> (Decision, Vec<HeaderEdit>) {
        let read = |take: &Take| (&spec.rate_limits[usize::from(take.limit)], self.read(spec, take, case.now));
        let taken: Vec<_> = decision.takes.iter().map(read).collect();
        let (audited, counted): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|(limit, taken)| limit.audit && !taken.allowed);
        let exhausted = counted.iter().rev().filter(|(_, taken)| !taken.allowed);
        if let Some((limit, taken)) = exhausted.max_by_key(|(_, taken)| taken.retry_after_ms) {
            let denial = quota::exhausted(&limit.name, taken);
            return (refused(denial, decision), quota::limit_headers(taken).into());
        }
        let target = decision.target.map(|index| &spec.targets[usize::from(index)]);
        if let Some(Err(denial)) = target.map(|target| breaker::check(target, load(case))) {
            return (refused(denial, decision), Vec::new());
        }
        decision.takes.retain(|take| self.read(spec, take, case.now).allowed);
        if let Some((limit, taken)) = audited.first() {
            decision.audit.get_or_insert_with(|| Verdict::Deny(quota::exhausted(&limit.name, taken)));
        }
        let reported = counted.into_iter().map(|(_, taken)| taken).filter(|_| target.is_some());
        let edits = quota::tightest(reported).map(|taken| quota::limit_headers(&taken).into());
        (decision, edits.unwrap_or_default())
    }

    /// The result of taking from a counter, which stays as it is.
    fn read(&self, spec: &ProgramSpec, take: &Take, now: f64) -> TakeResult {
        let state = self.0.get(&(take.limit, take.key.clone())).copied().unwrap_or_default();
        quota::take(&spec.rate_limits[usize::from(take.limit)].algorithm, state, millis(now), take.cost)
    }

    fn take(&mut self, spec: &ProgramSpec, decision: &Decision, now: f64) {
        for take in &decision.takes {
            let taken = self.read(spec, take, now);
            assert!(taken.allowed, "an exhausted counter is taken from: {take:?}");
            self.0.insert((take.limit, take.key.clone()), taken.state);
        }
    }
}

fn load(case: &Case) -> TargetLoad {
    let load = case.load;
    TargetLoad {
        requests: load.requests,
        pending: load.pending,
        connections: load.connections,
        healthy: load.healthy,
        ejected: load.ejected,
    }
}

/// A request head with its tokens inserted.
pub(crate) struct Head {
    path: String,
    headers: Vec<(String, String)>,
    identity: Option<String>,
    /// The replacements of `<name>`.
    tokens: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn of(case: &Case, keys: &Keys) -> Self {
        let request = &case.request;
        let mut tokens: Vec<(String, String)> =
            case.tokens.iter().map(|(name, token)| (format!("<{name}>"), keys.token(token))).collect();
        tokens.extend(case.token.as_ref().map(|token| ("<token>".to_owned(), keys.token(token))));
        let fill = |text: &str| fill(&tokens, text);
        let mut headers: Vec<(String, String)> = request
            .headers
            .iter()
            .flat_map(|(name, values)| values.all().iter().map(|value| (name.clone(), fill(value))))
            .collect();
        let path = fill(&request.path);
        let placed = request.path.contains("<token>")
            || request.headers.contains_key("authorization")
            || request.headers.values().flat_map(Texts::all).any(|value| value.contains("<token>"));
        if case.token.is_some() && !placed {
            headers.push(("authorization".to_owned(), fill("Bearer <token>")));
        }
        let identity = request.identity.as_ref().map(|identity| match identity.split_once('/') {
            Some((namespace, name)) if !identity.contains(':') => {
                format!("spiffe://mesh.example/ns/{namespace}/sa/{name}")
            }
            _ => identity.clone(),
        });
        Self { path, headers, identity, tokens }
    }

    /// Replaces the tokens of this head in a text.
    pub(crate) fn fill(&self, text: &str) -> String {
        fill(&self.tokens, text)
    }

    /// Path and query as sent.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn headers(&self) -> Vec<Header<'_>> {
        self.headers.iter().map(|(name, value)| Header { name, value: value.as_bytes() }).collect()
    }

    /// The parts of the request that the program declares.
    fn input<'a>(&'a self, case: &'a Case, spec: &'a ProgramSpec, needs: &Needs) -> RequestInput<'a> {
        let request = &case.request;
        let nobody = if case.outbound { "" } else { spec.function.as_str() };
        let mut headers = self.headers();
        headers.retain(|header| needs.gives(header.name));
        RequestInput {
            now_ms: millis(case.now),
            peer: Peer { identity: self.identity.as_deref(), address: needs.address.then_some(request.address) },
            target: request.target.as_deref().unwrap_or(nobody),
            port: request.port,
            protocol: protocol(&request.protocol),
            method: &request.method,
            authority: &request.authority,
            path: &self.path,
            headers,
            verified: None,
        }
    }
}

fn fill(tokens: &[(String, String)], text: &str) -> String {
    tokens.iter().fold(text.to_owned(), |text, (name, token)| text.replace(name, token))
}

pub(crate) fn fields(headers: &BTreeMap<String, Texts>) -> Vec<Header<'_>> {
    headers
        .iter()
        .flat_map(|(name, values)| values.all().iter().map(move |value| Header { name, value: value.as_bytes() }))
        .collect()
}

fn protocol(name: &str) -> Protocol {
    match name {
        "http1" => Protocol::Http1,
        "http2" => Protocol::Http2,
        "grpc" => Protocol::Grpc,
        "websocket" => Protocol::WebSocket,
        _ => panic!("there is no protocol `{name}`"),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the tables' times are small")]
fn millis(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}
