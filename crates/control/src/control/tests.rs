use super::*;
use crate::admission::Admission;
use crate::configs;
use crate::definitions::Definitions;
use crate::join_verifier::JoinError;
use leno_agent::{BACKOFF, Connection, join};
use leno_model::InstanceState;
use leno_wire::{Instance, Placement};
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use tokio::net::TcpListener;

/// A broken test fails instead of hanging.
const TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn nodes_are_served_while_a_change_takes_long() {
    let authority = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap();
    let control = Control::new(authority, Store::memory(), Options::default()).unwrap();
    let config = configs::config("a/one", &[], 1);
    let id = config.id.clone();
    let configs = BTreeMap::from([(id.clone(), config)]);
    control
        .publish(&Definitions {
            mesh: configs::mesh(),
            configs,
            routes: Default::default(),
            modules: BTreeMap::new(),
            permissions: Default::default(),
            secrets: None,
        })
        .unwrap();
    let (placement, locality) = (Placement::Everything, Default::default());
    let membership = control.admit("one", Admission { placement, gateway: false, locality, egress: false }).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = control.clone();
    tokio::spawn(async move { serving.serve(listener, std::future::pending()).await });
    let options = leno_agent::Options {
        control: vec![address],
        membership,
        inbound: None,
        backoff: BACKOFF,
        rejoin: None,
        oldest: 1,
    };
    let (agent, _updates) = join(options).unwrap();
    let mut connection = agent.connection();
    let connected = connection.wait_for(|connection| *connection == Connection::Connected);
    tokio::time::timeout(TIMEOUT, connected).await.unwrap().unwrap();

    // The change ends when this thread signals it, which it cannot if the server blocks the thread
    // on the lock.
    let (end, ended) = mpsc::channel::<()>();
    let changing = thread::spawn({
        let control = control.clone();
        move || control.change_at_length(|_| ended.recv_timeout(TIMEOUT).is_ok())
    });
    while *control.0.long_changes.borrow() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let state = InstanceState::Ready;
    let address = ([127, 0, 0, 1], 9000).into();
    let since = SystemTime::UNIX_EPOCH;
    agent.report(&id, vec![Instance { id: 1, state, address, pid: None, restarts: 0, since }]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    end.send(()).unwrap();
    assert!(changing.join().unwrap(), "the server waited");
    let reported = async {
        while control.counters("one").unwrap().reports == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, reported).await.unwrap();
    assert_eq!(control.counters("one").unwrap().streams, 1);
}

/// A verifier that never answers.
struct Hung;

impl crate::join_verifier::JoinVerifier for Hung {
    fn verify<'a>(
        &'a self,
        _: &'a [u8],
    ) -> crate::join_verifier::BoxFuture<'a, Result<crate::join_verifier::VerifiedNode, JoinError>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn few_credentials_are_verified_at_a_time() {
    let authority = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap();
    let control = Control::new(authority, Store::memory(), Options::default()).unwrap();
    control.set_join_verifier(Arc::new(Hung));
    let verify = || {
        let control = control.clone();
        tokio::spawn(async move { control.verify(b"a-token-of-the-platform").await })
    };
    let hung: Vec<_> = (0..nodes::MAX_VERIFYING).map(|_| verify()).collect();
    while control.0.verifying.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(verify().await.unwrap(), Err(JoinError::Away(_))));
    // Those whose connections have ended make room.
    hung.iter().for_each(tokio::task::JoinHandle::abort);
    for task in hung {
        assert!(task.await.unwrap_err().is_cancelled());
    }
    assert_eq!(control.0.verifying.available_permits(), nodes::MAX_VERIFYING);
}
