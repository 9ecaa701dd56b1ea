//! Events on pods that are not captured.

use crate::index::PodFault;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use std::time::Duration;
use tokio::time::timeout;

/// The component that Events name.
const COMPONENT: &str = "leno-controller";
/// Characters of a pod's name in the name of an Event, which may have 253 with the rest.
const MAX_NAME: usize = 230;
/// Bytes of a message. Kubernetes allows 1024.
const MAX_MESSAGE: usize = 1000;
/// Timeout of a write.
const WRITE: Duration = Duration::from_secs(5);

/// Writes Events.
#[derive(Clone)]
pub(crate) struct EventWriter {
    client: Client,
    identity: String,
}

impl EventWriter {
    /// For a controller of this name.
    pub(crate) fn new(client: Client, identity: &str) -> Self {
        Self { client, identity: identity.to_owned() }
    }

    /// Writes the Event of a fault. Returns whether the API server has it.
    pub(crate) async fn write(&self, fault: &PodFault) -> bool {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &fault.pod.namespace);
        let event = event(fault, &self.identity, Timestamp::now());
        match timeout(WRITE, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => true,
            // It was written before, perhaps by another controller; or the namespace ends.
            Ok(Err(Error::Api(status))) if matches!(status.code, 403 | 404 | 409) => true,
            Ok(Err(error)) => {
                tracing::debug!(pod = %fault.pod, %error, "an Event is not written yet");
                false
            }
            Err(_) => false,
        }
    }
}

/// The Event of a fault. Its name is that of the pod and of the reason, so that controllers write
/// one Event between them.
fn event(fault: &PodFault, identity: &str, now: Timestamp) -> Event {
    let PodFault { pod, uid, reason, .. } = fault;
    let hash = leno_config::module_hash(format!("{uid} {} {reason}", reason.word()).as_bytes()).to_string();
    let kept = pod.name.get(..MAX_NAME).unwrap_or(&pod.name).trim_end_matches(['.', '-']);
    let mut message = format!("The pod is not in the mesh, though it is enrolled: {reason}.");
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        message.push('…');
    }
    let time = Some(Time(now));
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{kept}.{}", &hash[..16])),
            namespace: Some(pod.namespace.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some("NotCaptured".to_owned()),
        message: Some(message),
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(identity.chars().take(128).collect()),
        count: Some(1),
        first_timestamp: time.clone(),
        last_timestamp: time,
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ObjectKey;
    use crate::index::UncapturedReason;
    use leno_model::FunctionId;

    #[test]
    fn an_event_has_one_name_for_each_pod_and_reason() {
        let fault = |name: &str, reason| PodFault {
            pod: ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() },
            uid: format!("uid-{}", name.len()).parse().unwrap(),
            function: FunctionId::new("shop", "web").unwrap(),
            reason,
        };
        let name = |fault: &PodFault| event(fault, "one", Timestamp::UNIX_EPOCH).metadata.name.unwrap();
        let failed = |reason: &str| UncapturedReason::CaptureFailed(reason.to_owned());
        let host = fault("web", UncapturedReason::HostNetwork);
        assert_eq!(name(&host), name(&host));
        assert_ne!(name(&host), name(&fault("web", failed("x"))));
        assert_ne!(name(&fault("web", failed("y"))), name(&fault("web", failed("x"))));
        let long = fault(&format!("{}.{}", "a".repeat(MAX_NAME - 1), "b".repeat(20)), failed(&"é".repeat(2000)));
        assert!(name(&long).len() <= 253 && !name(&long).contains(".."), "{}", name(&long));
        let message = event(&long, "one", Timestamp::UNIX_EPOCH).message.unwrap();
        assert!(message.len() <= 1024, "{}", message.len());
    }
}
