//! Reviews of the tokens of agents.

use crate::conversation::{Replay, recorded};
use leno_control::{JoinError, JoinVerifier};
use leno_controller::api::ObjectKey;
use leno_controller::review::TokenReviewer;

/// The service account of the recorded agent.
pub(crate) fn account() -> ObjectKey {
    ObjectKey { namespace: "recorded".to_owned(), name: "leno-agent".to_owned() }
}

#[tokio::test]
async fn only_the_bound_token_of_an_agent_lets_its_node_join() {
    let server = Replay::start(recorded("reviews")).await;
    let reviewer = TokenReviewer::new(server.api(), account());
    let node = reviewer.verify(b"a.b.c").await.unwrap();
    assert_eq!((node.name.as_str(), node.locality.region.as_deref()), ("recorded-1", Some("north")));
    assert_eq!(node.addresses, ["10.77.0.11".parse::<std::net::IpAddr>().unwrap()]);
    for (token, reason) in [
        ("for another audience", "does not confirm"),
        ("of another account", "system:serviceaccount:recorded:other"),
        ("bound to no pod", "pod-name"),
        ("forged", "does not confirm"),
        ("of a node that is gone", "no Node recorded-1"),
        ("of a pod that is gone", "does not confirm"),
    ] {
        match reviewer.verify(b"a.b.c").await {
            Err(JoinError::Refused(message)) => assert!(message.contains(reason), "a token {token}: {message}"),
            other => panic!("a token {token}: {other:?}"),
        }
    }
    assert!(server.is_over());
}

#[tokio::test]
async fn without_an_api_server_an_agent_may_try_again() {
    let api = Replay::start([]).await.api();
    let reviewer = TokenReviewer::new(api, account());
    assert!(matches!(reviewer.verify(b"a.b.c").await, Err(JoinError::Away(_))));
    assert!(matches!(reviewer.verify(b"no token").await, Err(JoinError::Refused(_))));
}
