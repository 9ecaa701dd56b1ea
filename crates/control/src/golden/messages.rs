//! Messages of the protocol.

use super::{at, dump, file, id, outcome};
use crate::server::greeting;
use leno_identity::MembershipMark;
use leno_model::{CandidatePrograms, InstanceState, Output, OutputLine, OutputMark, OutputQuery, OutputStream};
use leno_wire::v1::{self, from_node, to_node};
use leno_wire::{
    Answer, Content, Instance, JobState, ListenerFault, ListenerFaultKind, PodFaults, Question, ReplayExample,
    ReplaySummary, ReplayVerdict, RevisionCounts, Subject, View, ViewQuery, ViewRows, listener_fault, messages,
    pod_fault,
};
use prost::Message;
use std::time::{Duration, SystemTime};

/// Checks that a message is read as this one, and written unchanged. `name` is the file's, `kind`
/// the message's.
fn message<M: Message + Default + PartialEq + std::fmt::Debug>(name: &str, kind: &str, expected: &M) {
    let encoded = file(&format!("{name}.pb"), || expected.encode_to_vec());
    let read = M::decode(&*encoded).unwrap();
    assert_eq!(read, *expected, "{name}");
    assert_eq!(read.encode_to_vec(), encoded, "{name} is written in other bytes than it was");
    let text = dump::message(kind, &encoded);
    assert_eq!(String::from_utf8(file(&format!("{name}.txt"), || text.clone().into_bytes())).unwrap(), text, "{name}");
}

fn from_node(name: &str, sent: from_node::Message) {
    message(name, "FromNode", &v1::FromNode { message: Some(sent) });
}

fn to_node(name: &str, sent: to_node::Message) {
    message(name, "ToNode", &v1::ToNode { message: Some(sent) });
}

#[test]
fn golden_messages_are_read_and_written_as_they_were() {
    let greeted = greeting(&hello()).unwrap();
    assert_eq!((greeted.subscribe.len(), greeted.held.len(), greeted.inbound.is_some()), (7, 7, true));
    assert_eq!((greeted.instances.len(), greeted.jobs.len()), (1, 1));
    from_node("hello", from_node::Message::Hello(hello()));
    let capacity = v1::Capacity {
        cpu_millis: 2000,
        memory_bytes: 4 << 30,
        instances: 100,
        images: vec!["shop@sha256:00".to_owned()],
        without_jails: false,
    };
    let bounds = vec![v1::FunctionBounds {
        function: "shop/checkout".to_owned(),
        bounds: vec![v1::Bounds { revision: 3, least: 1, most: 4 }],
    }];
    from_node(
        "capacity-without-jails",
        from_node::Message::Capacity(v1::Capacity { without_jails: true, ..capacity.clone() }),
    );
    let placed = v1::Hello { capacity: Some(capacity.clone()), bounds, ..hello() };
    from_node("hello-placed", from_node::Message::Hello(placed));
    let shares = vec![v1::LimitShare { limit: "p/rateLimits/all".to_owned(), parts: 360_360 }];
    let leases = vec![v1::FunctionLease { function: "shop/checkout".to_owned(), shares }];
    from_node("hello-leased", from_node::Message::Hello(v1::Hello { leases, ..hello() }));
    let uid = super::pods::pods()[0].uid.clone();
    let held = vec![messages::held((&Subject::Pod(uid), &Content::new(&1_u8).unwrap().version))];
    from_node("hello-of-pods", from_node::Message::Hello(v1::Hello { held, ..hello() }));
    from_node("renew", from_node::Message::Renew(v1::Renew { sequence: 3 }));
    to_node("renewed", to_node::Message::Renewed(v1::Renewed { sequence: 3 }));
    let demand = v1::LimitDemand {
        function: "shop/checkout".to_owned(),
        limit: "p/rateLimits/all".to_owned(),
        admitted: 100,
        refused: 7,
    };
    from_node("demands", from_node::Message::Demands(v1::LimitDemands { demands: vec![demand] }));
    from_node("capacity", from_node::Message::Capacity(capacity));
    let load = v1::Load {
        function: "shop/checkout".to_owned(),
        revision: 3,
        ready: 1,
        starting: 2,
        in_flight: 5,
        waiting: 6,
        request_seconds: 1.5,
        requests: 70,
    };
    from_node("loads", from_node::Message::Loads(v1::Loads { loads: vec![load] }));
    let subjects = || subjects().iter().map(v1::Subject::from).collect::<Vec<_>>();
    let subscribe = v1::Subscribe { subscribe: subjects(), unsubscribe: subjects() };
    from_node("subscribe", from_node::Message::Subscribe(subscribe));
    let rejection = |subject| v1::Rejection { subject: Some(subject), reason: "its program does not load".to_owned() };
    let ack = v1::Ack { nonce: 300, rejected: subjects().into_iter().map(rejection).collect() };
    from_node("ack", from_node::Message::Ack(ack));
    from_node("report", from_node::Message::Report(messages::report(&id("shop/checkout"), &instances())));
    let counts = [(6, RevisionCounts { requests: 1000, failed: 10, slow: 20 }), (7, RevisionCounts::default())];
    from_node("traffic", from_node::Message::Traffic(messages::traffic(&id("shop/checkout"), &counts)));
    for state in [JobState::Running, JobState::Succeeded, JobState::Failed] {
        let report = messages::job_report(&id("shop/report"), &outcome(state).report);
        from_node(&format!("job-{state:?}").to_lowercase(), from_node::Message::Job(report));
    }

    let certificates = v1::Certificates {
        issuers: vec![vec![7; 20].into(), vec![9; 20].into()],
        not_after: 1_900_000_000,
        overdue: 3,
    };
    from_node("certificates", from_node::Message::Certificates(certificates));
    let fault =
        |kind, reason: &str| ListenerFault { listener: "shop/edge/tls".to_owned(), kind, reason: reason.to_owned() };
    let faults = listener_fault::to_wire(&[
        fault(ListenerFaultKind::Port, "port 9000 cannot be opened: Address already in use"),
        fault(ListenerFaultKind::Certificate, "the key does not belong to the certificate"),
    ]);
    assert_eq!(listener_fault::to_wire(&listener_fault::from_wire(faults.clone())), faults);
    from_node("listeners", from_node::Message::Listeners(faults));
    let reason = "its network cannot be entered".to_owned();
    let faults = pod_fault::to_wire(&PodFaults::from([(super::pods::pods()[0].uid.clone(), reason)]));
    assert_eq!(pod_fault::to_wire(&pod_fault::from_wire(faults.clone())), faults);
    from_node("pod-faults", from_node::Message::Pods(faults));
    let proof = v1::Proof { sequence: 4, failure: "the certificate is not valid here: CertNotValidYet".to_owned() };
    from_node("proof", from_node::Message::Proof(proof));
    let authority = v1::Authority { key: vec![9; 20].into(), spread_ms: 1500 };
    to_node("authority", to_node::Message::Authority(authority));
    let machines = messages::machines(["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap()));
    to_node("machines", to_node::Message::Machines(machines));
    let revoked = messages::revoked([[7; 8], [9; 8]].map(MembershipMark));
    to_node("revoked", to_node::Message::Revoked(revoked));
    let unenrolled = pod_fault::unenrolled(&[super::pods::pods()[0].uid.clone()]);
    to_node("unenrolled-pods", to_node::Message::Unenrolled(unenrolled));
    to_node("prove", to_node::Message::Prove(v1::Prove { sequence: 4 }));

    let welcome = v1::Welcome { protocol: 1, release: "0.0.9".to_owned() };
    to_node("welcome", to_node::Message::Welcome(welcome));
    let content = Content::new(&()).unwrap();
    let resources = self::subjects().iter().map(|subject| messages::resource(subject, &content)).collect();
    let removed = vec![(&Subject::FunctionConfig("shop/checkout".parse().unwrap())).into()];
    let withdrawn = vec!["shop/checkout".to_owned()];
    let delta = v1::Delta { nonce: 301, resources: vec![], removed, withdrawn };
    to_node("delta-withdrawn", to_node::Message::Delta(delta));
    to_node(
        "delta",
        to_node::Message::Delta(v1::Delta { nonce: 300, resources, removed: subjects(), withdrawn: vec![] }),
    );

    questions();

    let identity = "spiffe://orders.example/ns/shop/sa/checkout".to_owned();
    let (secret, csr) = (vec![7; 16].into(), vec![0x30, 0].into());
    let (name, address) = ("one".to_owned(), "192.0.2.1".to_owned());
    message("join-request", "JoinRequest", &v1::JoinRequest { secret, name, csr, address });
    let (chain, roots) = (vec![vec![0x30, 0].into(); 2], vec![vec![0x30, 0].into()]);
    message("join-response", "JoinResponse", &v1::JoinResponse { chain, roots });
    let request = v1::SignRequest { identity, csr: vec![0x30, 0].into(), candidate: false };
    message("sign-request", "SignRequest", &request);
    message("sign-request-candidate", "SignRequest", &v1::SignRequest { candidate: true, ..request });
    message("sign-response", "SignResponse", &v1::SignResponse { chain: vec![vec![0x30, 0].into(); 2] });
}

/// Questions to nodes, and answers.
fn questions() {
    let candidates = vec![CandidatePrograms::of(&super::configs::command())];
    let replay = Question::Replay { candidates, limit: Duration::from_secs(10) };
    let mark = OutputMark { instance: 3, began_ms: 1_900_000_000_000, next: 70 };
    let read = Question::Output(OutputQuery {
        function: id("shop/checkout"),
        instance: Some(3),
        previous: true,
        attempt: None,
        tail: Some(100),
        after: vec![mark],
        limit: 65_536,
    });
    let of_attempt = Question::Output(OutputQuery {
        function: id("shop/report"),
        instance: None,
        previous: false,
        attempt: Some(2),
        tail: None,
        after: Vec::new(),
        limit: 65_536,
    });
    let (argument, namespaces) = ("7-12".to_owned(), ["shop".to_owned()].into());
    let view = ViewQuery { namespaces, limit: 65_536, ..View::Flows.query(argument) };
    let denied = ViewQuery { filter: r#"{"verdict":"deny"}"#.to_owned(), last: Some(200), ..view.clone() };
    let verdict = |allowed: bool, policy: &str, rule: &str, clause: &str| ReplayVerdict {
        allowed,
        policy: policy.to_owned(),
        rule: rule.to_owned(),
        clause: clause.to_owned(),
    };
    let example = ReplayExample {
        at: at(1),
        request_id: "req-1".to_owned(),
        direction: "outbound".to_owned(),
        caller: "shop/checkout".to_owned(),
        callee: Some("shop/stock".to_owned()),
        method: "GET".to_owned(),
        path: "/items/7".to_owned(),
        before: verdict(true, "", "p/authorization/all", ""),
        after: verdict(false, "authorization", "p/authorization/some", "to.paths: nothing matches"),
    };
    let replayed = ReplaySummary {
        judged: 100,
        newly_denied: 3,
        newly_allowed: 1,
        unjudged: [("its query was not kept".to_owned(), 7)].into(),
        skipped: 2,
        examples: vec![example],
        left_out: vec!["rate limits".to_owned()],
    };
    let declined = Err("it does not host the function any more".to_owned());
    let replays = Answer::Replays([(id("shop/checkout"), Ok(replayed)), (id("shop/stock"), declined)].into());
    let written = SystemTime::UNIX_EPOCH + Duration::from_millis(1_900_000_000_000);
    let line = OutputLine { instance: 3, at: written, stream: OutputStream::Stderr, text: "hello".to_owned() };
    let output = Answer::Output(Output { lines: vec![line], marks: vec![mark], dropped: 5, more: true });
    let rows = vec![r#"{"kind":"inbound"}"#.to_owned()];
    let seen = Answer::View(ViewRows { rows, missed: 5, next: "8-20".to_owned() });
    let refused = Answer::Declined("another replay is under way".to_owned());
    let questions = [
        ("question-replay", replay),
        ("question-output", read),
        ("question-output-attempt", of_attempt),
        ("question-view", Question::View(view)),
        ("question-view-denied", Question::View(denied)),
    ];
    for (name, question) in questions {
        let sent = question.to_wire(7).unwrap();
        assert_eq!(Question::from_wire(sent.clone()), Ok(question));
        to_node(name, to_node::Message::Question(sent));
    }
    let answers =
        [("answer-replays", replays), ("answer-output", output), ("answer-view", seen), ("answer-declined", refused)];
    for (name, answer) in answers {
        let sent = answer.to_wire(7);
        assert_eq!(Answer::from_wire(sent.clone()), Ok(answer));
        from_node(name, from_node::Message::Answer(sent));
    }
}

fn hello() -> v1::Hello {
    let version = Content::new(&()).unwrap().version;
    v1::Hello {
        release: "0.0.9".to_owned(),
        subscribe: subjects().iter().map(Into::into).collect(),
        held: subjects().iter().map(|subject| messages::held((subject, &version))).collect(),
        inbound: "192.0.2.1:15008".to_owned(),
        reports: vec![messages::report(&id("shop/checkout"), &instances())],
        jobs: vec![messages::job_report(&id("shop/report"), &outcome(JobState::Running).report)],
        protocols: Some(v1::Protocols { oldest: 1, newest: 2 }),
        capacity: None,
        bounds: Vec::new(),
        leases: Vec::new(),
    }
}

/// One of each kind.
fn subjects() -> Vec<Subject> {
    vec![
        Subject::Mesh,
        Subject::Bundle,
        Subject::Module(leno_wire::module_hash(b"a module")),
        Subject::FunctionConfig(id("shop/checkout")),
        Subject::Endpoints(id("shop/checkout")),
        Subject::Routes,
        Subject::Hosted,
    ]
}

/// One in each state.
fn instances() -> Vec<Instance> {
    let states = [InstanceState::Starting, InstanceState::Ready, InstanceState::Draining, InstanceState::Stopping];
    let instance = |(id, state)| Instance {
        id,
        state,
        address: "127.0.0.1:9000".parse().unwrap(),
        pid: Some(4711),
        restarts: 2,
        since: at(id),
    };
    (1..).zip(states).map(instance).collect()
}
