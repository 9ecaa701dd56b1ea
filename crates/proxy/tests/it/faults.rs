//! A compromised policy program harms only the request that it judges. Tested on both isolating
//! engines, with a guest that misbehaves on command.

#[path = "../../../sandbox/build/guest.rs"]
mod guest;

use guest::Form;
use http::Request;
use leno_http::peer::{Peer, TrafficDirection};
use leno_policy::spec::{Counts, KeyPart, Protocol, QuotaAlgorithm, RateLimit};
use leno_proxy::FunctionEntry;
use leno_proxy::judge::{Judge, JudgeInput, Judgement};
use leno_proxy::policy_state::PolicyState;
use leno_runtime::random::Random;
use leno_sandbox::Engine;
use leno_telemetry::Telemetry;
use leno_telemetry::record::Record;
use leno_telemetry::recorder::Recorder;
use leno_telemetry::ring::Explanation;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const DOCUMENTS: &str = "
apiVersion: leno.dev/v1alpha1
kind: Mesh
metadata: {name: test}
spec: {trustDomain: td.example}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: orders, namespace: shop}
spec: {external: {addresses: ['127.0.0.1:9000']}}
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: p, namespace: shop}
spec:
  functions: [orders]
  authorization: {rules: [{name: all}]}
";

const LIMIT: &str = "p/rateLimits/some";

fn misbehaving(form: Form) -> Engine {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("misbehaving");
    let file = guest::build(form, &repository, &target, &["misbehave"]).unwrap_or_else(|message| panic!("{message}"));
    let image = std::fs::read(file).unwrap();
    match form {
        Form::Elf => Engine::microvm_on(Path::new("/dev/kvm"), &image).expect("these tests need micro-VMs"),
        Form::Wasm => Engine::wasm_with(&image).unwrap(),
    }
}

struct Bench {
    telemetry: Telemetry,
    recorder: Rc<Recorder>,
    policy_state: Arc<PolicyState>,
    judge: Judge,
    entry: Arc<FunctionEntry>,
}

impl Bench {
    fn new(engine: &Engine) -> Self {
        let snapshot = leno_config::load_text(Path::new("test.yaml"), DOCUMENTS).unwrap();
        let mut config = snapshot.function_config(&"shop/orders".parse().unwrap()).unwrap();
        // Every regular run is shorter, even on a busy machine.
        config.deadline = Duration::from_secs(1);
        let algorithm = QuotaAlgorithm::FixedWindow { requests: 1000, period_ms: 1 << 40 };
        config.inbound.sidecar.judge_each_request = true;
        config.inbound.rate_limits.push(RateLimit {
            name: LIMIT.into(),
            counts: Counts::Requests,
            only: None,
            from: vec![],
            except: vec![],
            audit: false,
            // So the program is given the orders.
            key: vec![KeyPart::Header("x-order".into())],
            algorithm,
        });
        let (telemetry, policy_state) = (Telemetry::quiet("td.example"), PolicyState::new());
        Self {
            recorder: Recorder::new(&telemetry),
            judge: Judge::new(policy_state.clone(), Rc::new(Random::from_system().unwrap())),
            entry: Arc::new(FunctionEntry::load(engine, config)),
            telemetry,
            policy_state,
        }
    }

    /// Returns the status of the refusal, if there is one, and the record.
    fn ask(&self, order: Option<&str>) -> (Option<u16>, Explanation) {
        let mut request = Request::get("/").header("host", "orders.example");
        if let Some(order) = order {
            request = request.header("x-order", format!("misbehave:{order}:"));
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let peer = Peer { identity: None, address: ([192, 0, 2, 1], 4711).into() };
        let record = Record::new(&self.recorder, TrafficDirection::Gateway, &peer, Protocol::Http1, &head, "req-1");
        let ask = JudgeInput {
            entry: &self.entry,
            direction: TrafficDirection::Gateway,
            peer: &peer,
            target: Some(&self.entry.config.id),
            protocol: Protocol::Http1,
            scheme: "http",
            port: 80,
            parent: None,
            endpoints: 1,
            bodiless: true,
        };
        // Does not wait, because there is no quota store.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let status = match runtime.block_on(self.judge.request(ask, Box::new(head), &record)) {
            Judgement::Permitted(_) => None,
            Judgement::Denied(refusal) => Some(refusal.status.as_u16()),
        };
        drop(record);
        (status, self.telemetry.ring.latest(1).remove(0))
    }

    fn serves(&self, after: &str) {
        let (status, told) = self.ask(None);
        assert_eq!(status, None, "after {after}: {told:?}");
    }
}

fn faults_harm_one_request_only(form: Form, orders: &[(&str, &str)]) {
    let engine = misbehaving(form);
    for (order, fault) in orders {
        // After a missed deadline, the function gets shorter deadlines for a while.
        let bench = Bench::new(&engine);
        bench.serves("nothing");
        let (status, told) = bench.ask(Some(order));
        assert_eq!(status, Some(500), "{order}");
        let judgement = told.judgement.unwrap();
        assert_eq!(judgement.verdict, "error", "{order}");
        assert!(!judgement.clause.is_empty(), "{order}: the reason is told");
        let metrics = bench.telemetry.exposition(bench.policy_state.entries()).finish();
        let line =
            format!(r#"leno_sandbox_faults_total{{function="shop/orders",direction="inbound",fault="{fault}"}}"#);
        assert!(metrics.contains(&line), "{order} should be a {fault}: {}", judgement.clause);
        bench.serves(order);
        let quota = bench.policy_state.limits.function(&"shop/orders".parse().unwrap()).read(LIMIT, "-;").state;
        assert_eq!(quota.used, 2, "only what was permitted is counted");
    }
}

#[test]
fn of_the_microvm() {
    faults_harm_one_request_only(
        Form::Elf,
        &[
            ("spin", "deadline"),
            ("spin-writing", "deadline"),
            ("recurse", "stack_overflow"),
            ("divide", "arithmetic"),
            ("panic", "panicked"),
            ("exhaust-heap", "out_of_memory"),
            ("undefined", "instruction"),
            ("write-code", "memory"),
            ("empty-output", "bad_output"),
            ("long-output", "bad_length"),
            ("huge-output", "bad_length"),
            ("full-output", "bad_output"),
        ],
    );
}

#[test]
fn of_wasm() {
    faults_harm_one_request_only(
        Form::Wasm,
        &[
            ("spin", "deadline"),
            ("spin-writing", "deadline"),
            ("panic", "panicked"),
            ("exhaust-heap", "out_of_memory"),
            ("empty-output", "bad_output"),
            ("long-output", "bad_length"),
            ("huge-output", "bad_length"),
            ("full-output", "bad_output"),
        ],
    );
}
