//! Entry points for the targets in `fuzz/`: how each end of a stream handles bytes from the other
//! end. Each function panics if a property does not hold.

use crate::admission::{Member, Token};
use crate::history::History;
use crate::job::Outcome;
use crate::rotation::AuthorityRecord;
use crate::server::greeting;
use leno_model::revision::Template;
use leno_model::{CandidatePrograms, FunctionConfig, FunctionId, Pod, Route};
use leno_wire::encoding::{from_bytes, to_bytes};
use leno_wire::v1::{from_node, to_node};
use leno_wire::{
    Answer, Content, Instance, JobReport, MAX_REASON, PROTOCOLS, Question, Resource, Subject, listener_fault, messages,
    pod_fault, v1,
};
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::IpAddr;

/// Decodes a node's message as the control plane does. A valid message must survive a round trip
/// unchanged.
pub fn from_node(bytes: &[u8]) {
    let Ok(message) = v1::FromNode::decode(bytes) else { return };
    same_message(&message);
    match message.message {
        Some(from_node::Message::Hello(hello)) => {
            if let Ok(protocol) = leno_wire::shared_protocol(&hello) {
                assert!(PROTOCOLS.contains(&protocol));
            }
            let Ok(greeting) = greeting(&hello) else { return };
            let named = greeting.held.iter().map(|(subject, _)| subject).chain(&greeting.subscribe);
            named.for_each(same_subject);
            greeting.instances.into_iter().for_each(same_report);
            greeting.jobs.into_iter().for_each(same_job);
        }
        Some(from_node::Message::Subscribe(sent)) => {
            for sent in [&sent.subscribe, &sent.unsubscribe] {
                messages::subjects(sent).iter().flatten().for_each(same_subject);
            }
        }
        Some(from_node::Message::Ack(ack)) => {
            for rejected in &ack.rejected {
                messages::subject(rejected.subject.as_ref()).iter().for_each(same_subject);
            }
        }
        Some(from_node::Message::Report(sent)) => messages::reported(&sent).into_iter().for_each(same_report),
        Some(from_node::Message::Traffic(sent)) => {
            if let Ok((function, counts)) = messages::counted(&sent) {
                assert_eq!(messages::counted(&messages::traffic(&function, &counts)).ok(), Some((function, counts)));
            }
        }
        Some(from_node::Message::Loads(sent)) => {
            if let Ok(loads) = messages::loaded(&sent) {
                assert_eq!(messages::loaded(&messages::loads(&loads)).ok(), Some(loads));
            }
        }
        Some(from_node::Message::Capacity(sent)) => {
            let offer = messages::offered(sent);
            assert_eq!(messages::offered(messages::capacity(&offer)), offer);
        }
        Some(from_node::Message::Demands(sent)) => {
            if let Ok(demands) = messages::demanded(sent) {
                assert_eq!(messages::demanded(messages::demands(&demands)).ok(), Some(demands));
            }
        }
        Some(from_node::Message::Job(sent)) => messages::reported_job(sent).into_iter().for_each(same_job),
        Some(from_node::Message::Certificates(sent)) => {
            let certified = messages::certified(&sent);
            assert_eq!(messages::certified(&messages::certificates(&certified)), certified);
        }
        Some(from_node::Message::Pods(sent)) => {
            let faults = pod_fault::from_wire(sent);
            assert_eq!(pod_fault::from_wire(pod_fault::to_wire(&faults)), faults);
        }
        Some(from_node::Message::Listeners(sent)) => {
            let faults = listener_fault::from_wire(sent);
            assert_eq!(listener_fault::from_wire(listener_fault::to_wire(&faults)), faults);
        }
        Some(from_node::Message::Proof(sent)) => {
            let (_, outcome) = messages::proof(sent);
            assert!(outcome.err().is_none_or(|reason| reason.len() <= MAX_REASON));
        }
        Some(from_node::Message::Answer(sent)) => {
            let id = sent.id;
            if let Ok(answer) = Answer::from_wire(sent) {
                assert_eq!(Answer::from_wire(answer.to_wire(id)), Ok(answer));
            }
        }
        Some(from_node::Message::Renew(_)) | None => {}
    }
}

/// Decodes a control plane's message as a node does. A valid message must survive a round trip
/// unchanged.
pub fn to_node(bytes: &[u8]) {
    let Ok(message) = v1::ToNode::decode(bytes) else { return };
    same_message(&message);
    let delta = match message.message {
        Some(to_node::Message::Delta(delta)) => delta,
        Some(to_node::Message::Question(sent)) => return same_question(sent),
        Some(to_node::Message::Machines(sent)) => {
            let addresses = messages::machine_addresses(&sent);
            return assert_eq!(messages::machine_addresses(&messages::machines(addresses.clone())), addresses);
        }
        Some(to_node::Message::Revoked(sent)) => {
            let memberships = messages::memberships(&sent);
            return assert_eq!(messages::memberships(&messages::revoked(memberships.clone())), memberships);
        }
        Some(to_node::Message::Unenrolled(sent)) => {
            let pods = pod_fault::unenrolled_pods(sent);
            return assert_eq!(pod_fault::unenrolled_pods(pod_fault::unenrolled(&pods)), pods);
        }
        Some(
            to_node::Message::Welcome(_)
            | to_node::Message::Renewed(_)
            | to_node::Message::Authority(_)
            | to_node::Message::Prove(_),
        )
        | None => return,
    };
    messages::subjects(&delta.removed).iter().flatten().for_each(same_subject);
    for sent in &delta.resources {
        let (Ok(subject), Ok(version)) = (messages::subject(sent.subject.as_ref()), messages::version(&sent.version))
        else {
            continue;
        };
        assert_eq!(version.to_wire(), sent.version);
        same_subject(&subject);
        same_resource(&subject, &sent.payload);
    }
}

/// Decodes a payload as a resource of each kind.
pub fn payload(payload: &[u8]) {
    let mut subjects = vec![
        Subject::Mesh,
        Subject::Bundle,
        Subject::Module(leno_wire::module_hash(payload)),
        Subject::Routes,
        Subject::Certificates,
        Subject::EnforcedNamespaces,
        Subject::Destination(IpAddr::from([10, 96, 0, 1])),
        Subject::Hosted,
    ];
    let id = FunctionId::new("shop", "checkout");
    subjects.extend(
        id.into_iter().flat_map(|id| [Subject::Endpoints(id.clone()), Subject::Scale(id.clone()), Subject::Quota(id)]),
    );
    // A function configuration must carry the name under which it is sent, so the name is read from
    // the payload.
    subjects.extend(from_bytes::<FunctionConfig>(payload).map(|config| Subject::FunctionConfig(config.id)));
    subjects.extend(from_bytes::<Route>(payload).map(|route| Subject::Route(route.id)));
    subjects.extend(from_bytes::<Pod>(payload).map(|pod| Subject::Pod(pod.uid)));
    let service = "shop/checkout".parse();
    subjects.extend(service.map(|service| Subject::ServiceEndpoint(service, IpAddr::from([10, 244, 1, 7]))));
    subjects.iter().for_each(|subject| same_resource(subject, payload));
}

/// Decodes a stored value of a control plane. A valid message must survive a round trip unchanged.
pub fn stored(value: &[u8]) {
    fn same<T: Serialize + DeserializeOwned>(value: &[u8]) {
        let Ok(read) = from_bytes::<T>(value) else { return };
        let written = to_bytes(&read).expect("what was read can be written");
        let again = from_bytes::<T>(&written).expect("what was written can be read");
        assert_eq!(to_bytes(&again), Ok(written));
    }
    same::<History>(value);
    same::<Outcome>(value);
    same::<Template>(value);
    same::<Member>(value);
    same::<Token>(value);
    same::<AuthorityRecord>(value);
    same::<CandidatePrograms>(value);
}

/// The encodings are compared, because a NaN in a message is not equal to itself.
fn same_message<M: Message + Default>(message: &M) {
    let encoded = message.encode_to_vec();
    assert_eq!(M::decode(&*encoded).map(|again| again.encode_to_vec()), Ok(encoded));
}

fn same_question(sent: v1::Question) {
    let id = sent.id;
    let Ok(question) = Question::from_wire(sent) else { return };
    let again = question.to_wire(id).expect("what was read is small enough");
    // The encodings are compared, because a NaN in a candidate is not equal to itself.
    let encoded = again.encode_to_vec();
    let read = Question::from_wire(again).expect("what was written can be read");
    assert_eq!(read.to_wire(id).map(|again| again.encode_to_vec()), Ok(encoded));
}

fn same_subject(subject: &Subject) {
    assert_eq!(messages::subject(Some(&subject.into())).as_ref().ok(), Some(subject));
}

fn same_report((function, instances): (FunctionId, Vec<Instance>)) {
    let again = messages::reported(&messages::report(&function, &instances));
    assert_eq!(again.ok(), Some((function, instances)));
}

fn same_job((job, report): (FunctionId, JobReport)) {
    assert!(report.reason.as_ref().is_none_or(|reason| reason.len() <= MAX_REASON));
    let again = messages::reported_job(messages::job_report(&job, &report));
    assert_eq!(again.ok(), Some((job, report)));
}

fn same_resource(subject: &Subject, payload: &[u8]) {
    let Ok(resource) = Resource::decode(subject, payload) else { return };
    assert_eq!(resource.subject(), *subject);
    let content = written(&resource);
    let again = Resource::decode(subject, &content.payload).expect("what was written can be read");
    // The encodings are compared, because a NaN in a resource is not equal to itself.
    assert_eq!(written(&again).payload, content.payload);
}

/// Encodes a resource.
pub(crate) fn written(resource: &Resource) -> Content {
    let content = match resource {
        Resource::Mesh(mesh) => Content::new(mesh),
        Resource::Bundle(bundle) => Content::of_bundle(bundle),
        Resource::Module(_, module) => Ok(Content::of_module(&module.to_vec().into())),
        Resource::FunctionConfig(config) => Content::new(config),
        Resource::Route(route) => Content::new(route),
        Resource::Scale(_, bounds) => Content::new(bounds),
        Resource::Quota(_, lease) => Content::new(lease),
        Resource::Secrets(_, values) | Resource::Certificates(values) => Content::of_secrets(values),
        Resource::Endpoints(_, endpoints) => Content::new(endpoints),
        Resource::EnforcedNamespaces(names) => Content::new(names),
        Resource::Pod(pod) => Content::new(pod),
        Resource::ServiceEndpoint(_, _, endpoints) => Content::new(endpoints),
        Resource::Destination(_, destination) => Content::new(destination),
        Resource::Routes(routes) => Content::of_routes(routes),
        Resource::Hosted(placement) => Content::new(placement),
    };
    content.expect("what was read can be written")
}
