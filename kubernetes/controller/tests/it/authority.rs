//! Several controllers change to the authority of a Secret together.

use crate::conversation::{Body, Server, body_of};
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper::{Method, Response};
use kube::Client;
use leno_control::{Authorities, Control, Phase, Store};
use leno_controller::authority::AuthoritySecret;
use leno_controller::publication::Publication;
use leno_controller::status::{Captures, Peers};
use leno_identity::{AuthorityPem, TrustDomain};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The objects of an API server, by path.
type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

const SECRET: &str = "/api/v1/namespaces/leno-system/secrets/leno-ca";
const ROOTS: &str = "/api/v1/namespaces/leno-system/configmaps/leno-ca";

fn domain() -> TrustDomain {
    "leno.local".parse().unwrap()
}

/// An API server whose patches add to an object.
async fn api_server(objects: Objects) -> Server {
    let answer = move |request| {
        let objects = objects.clone();
        async move {
            let (parts, body) = body_of(request).await;
            let mut objects = objects.lock().unwrap();
            if parts.method == Method::PATCH {
                let patch: Value = serde_json::from_slice(&body).unwrap();
                let object = objects.entry(parts.uri.path().to_owned()).or_insert_with(|| json!({ "data": {} }));
                for (name, value) in patch["data"].as_object().unwrap() {
                    object["data"][name] = value.clone();
                }
            }
            let (status, text) = match objects.get(parts.uri.path()) {
                Some(object) => (200, object.to_string()),
                None => (
                    404,
                    json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" }).to_string(),
                ),
            };
            let body: Body = StreamBody::new(Box::pin(stream::iter([Ok(Frame::data(Bytes::from(text)))])));
            Response::builder().status(status).body(body).unwrap()
        }
    };
    Server::start(answer).await
}

fn secret(pem: &AuthorityPem) -> Value {
    let text = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
    json!({ "data": {
        "tls.crt": text(&pem.certificate), "tls.key": text(&pem.key), "ca.crt": text(&pem.roots),
    } })
}

/// A controller that serves no objects.
struct Controller {
    control: Control,
    present: Option<AuthorityPem>,
    secret: Arc<AuthoritySecret>,
    peers: Peers,
    leads: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Controller {
    async fn open(client: &Client, name: &str, leads: bool) -> Self {
        let (leads, leading) = watch::channel(leads);
        let secret = Arc::new(AuthoritySecret::new(client.clone(), "leno-system", "leno-ca", domain()));
        let (authority, present) = secret.open(&leading).await;
        let authorities = Authorities::in_memory(authority);
        let control = Control::with_authorities(authorities, Store::memory(), Default::default()).unwrap();
        let peers = Peers::new(client.clone(), "leno-system", name);
        Self { control, present: Some(present), secret, peers, leads, tasks: Vec::new() }
    }

    /// Serves nodes, and reports to the other controllers.
    async fn serve(&mut self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (control, peers) = (self.control.clone(), self.peers.clone());
        self.tasks.push(tokio::spawn(async move {
            let publications = watch::channel(Arc::<Publication>::default()).1;
            let captures = watch::channel(Arc::<Captures>::default()).1;
            tokio::select! {
                _ = control.serve(listener, std::future::pending()) => {}
                never = peers.report(&control, &publications, &captures) => match never {},
            }
        }));
    }

    fn follow(&mut self) {
        let (control, peers, leads) = (self.control.clone(), self.peers.clone(), self.leads.subscribe());
        let (secret, present) = (self.secret.clone(), self.present.take().unwrap());
        self.tasks.push(tokio::spawn(async move { secret.follow(&control, present, &peers, leads).await }));
    }

    /// Has it look at once.
    fn look(&self) {
        self.leads.send_modify(|_| {});
    }

    /// Whether it signs with this authority, and trusts only that.
    fn has_changed_to(&self, pem: &AuthorityPem) -> bool {
        let status = self.control.authority_status();
        status.phase.is_none() && self.control.bundle().to_pem().trim() == pem.roots.trim()
    }
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_change_to_another_authority_together() {
    let [before, after] = [(); 2].map(|()| AuthorityPem::generate(&domain()).unwrap());
    let objects = Objects::default();
    objects.lock().unwrap().insert(SECRET.to_owned(), secret(&before));
    let server = api_server(objects.clone()).await;
    let client = server.api().client().clone();
    let (mut first, mut second) =
        (Controller::open(&client, "first", true).await, Controller::open(&client, "second", false).await);
    for controller in [&mut first, &mut second] {
        controller.secret.clone().join(&controller.control, &controller.peers, |_| {}).await;
        controller.serve().await;
    }
    first.follow();
    let roots = || objects.lock().unwrap().get(ROOTS).map(|map| map["data"]["ca.crt"].as_str().unwrap().to_owned());
    eventually("the roots", || roots().is_some_and(|roots| roots.trim() == before.roots.trim())).await;
    let reported = |name: &str| {
        let path = "/api/v1/namespaces/leno-system/configmaps/leno-controller-nodes";
        objects.lock().unwrap().get(path).is_some_and(|map| map["data"][name].is_string())
    };
    eventually("both reports", || reported("first") && reported("second")).await;

    // One has read the Secret, and the other has not: nothing is signed with the new authority.
    objects.lock().unwrap().insert(SECRET.to_owned(), secret(&after));
    first.look();
    let status = || first.control.authority_status();
    let waits = || status().waiting.get("controller second").is_some_and(|reason| reason.contains("not read"));
    eventually("the first controller waits", waits).await;
    assert_eq!(status().phase, Some(Phase::Trust));
    let signs = |root: &str, pem: &AuthorityPem| {
        let bundle = leno_identity::TrustBundle::from_pem(pem.roots.as_bytes()).unwrap();
        bundle.roots().any(|own| leno_identity::RootPin::of(own).to_string() == root)
    };
    assert!(status().roots.iter().all(|root| root.signs == signs(&root.sha256, &before)));
    eventually("agents read both roots", || roots().is_some_and(|roots| roots.matches("BEGIN").count() == 2)).await;

    // A controller that begins has only the new authority, and waits too.
    let third = Controller::open(&client, "third", false).await;
    let (joined, secret, peers) = (third.control.clone(), third.secret.clone(), third.peers.clone());
    let joining = tokio::spawn(async move { secret.join(&joined, &peers, |_| {}).await });
    second.follow();
    second.look();
    joining.await.unwrap();
    assert!([&first, &second].iter().all(|one| one.control.rotation_progress().is_trusted));
    let mut third = third;
    third.serve().await;
    third.follow();
    for controller in [&first, &second, &third] {
        eventually("the end of the rotation", || controller.has_changed_to(&after)).await;
    }
    eventually("agents read the new root", || roots().is_some_and(|roots| roots.trim() == after.roots.trim())).await;
}
