//! Nodes that join with the token of their agent's service account.

use crate::api::{ApiServer, ObjectKey};
use crate::index::{Node, NodeObject};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, GetParams, PostParams};
use kube::core::Request;
use leno_control::{BoxFuture, JoinError, JoinVerifier, VerifiedNode};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The audience of the tokens. The API server's own audience does not count.
pub const AUDIENCE: &str = "leno";

const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
/// How long the API server has to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Bytes of a token. The API server's are below 2 KiB.
const MAX_TOKEN: usize = 16 << 10;
/// Tokens that the API server is asked about: each second, and at once.
const RATE: f64 = 50.0;
const BURST: f64 = 200.0;

/// Lets a node join with a token of its agent, which the API server confirms each time: no answer
/// is kept, so that a token ends with its pod.
pub struct TokenReviewer {
    server: ApiServer,
    /// The agent's service account.
    account: ObjectKey,
    budget: Mutex<Budget>,
}

/// The questions to the API server that are left.
struct Budget {
    left: f64,
    at: Instant,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { left: BURST, at: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.left = BURST.min(self.left + RATE * now.duration_since(self.at).as_secs_f64());
        self.at = now;
        let granted = self.left >= 1.0;
        if granted {
            self.left -= 1.0;
        }
        granted
    }
}

impl TokenReviewer {
    /// Agents have this service account.
    pub fn new(server: ApiServer, account: ObjectKey) -> Self {
        Self { server, account, budget: Mutex::new(Budget::new(Instant::now())) }
    }

    async fn node(&self, credential: &[u8]) -> Result<VerifiedNode, JoinError> {
        let token = token(credential)?;
        let granted = self.budget.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        if !granted {
            return Err(JoinError::Away(format!("more than {RATE} machines a second want to join: try again")));
        }
        let name = agent_node(self.review(token).await?, &self.account)?;
        // The token says where its pod runs; whether that node is still part of the cluster, only
        // its object says.
        let node = self.node_object(&name).await?;
        Ok(VerifiedNode { name, addresses: node.addresses, locality: node.locality })
    }

    async fn review(&self, token: &str) -> Result<TokenReviewStatus, JoinError> {
        let spec = TokenReviewSpec { audiences: Some(vec![AUDIENCE.to_owned()]), token: token.to_owned() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.server.client().clone());
        let away = |error: String| JoinError::Away(format!("the API server does not review tokens: {error}"));
        match timeout(ANSWER, reviews.create(&PostParams::default(), &review)).await {
            Ok(Ok(review)) => review.status.ok_or_else(|| away("its answer has no status".to_owned())),
            Ok(Err(error)) => Err(away(error.to_string())),
            Err(_) => Err(away("no answer".to_owned())),
        }
    }

    async fn node_object(&self, name: &str) -> Result<Node, JoinError> {
        let away = |error: String| JoinError::Away(format!("the API server does not show Node {name}: {error}"));
        let request = Request::new(NodeObject::KIND.path()).get(name, &GetParams::default());
        let request = request.map_err(|error| JoinError::Refused(format!("Node {name}: {error}")))?;
        match timeout(ANSWER, self.server.client().request::<NodeObject>(request)).await {
            Ok(Ok(node)) => Ok(node.node()),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                Err(JoinError::Refused(format!("the cluster has no Node {name}")))
            }
            Ok(Err(error)) => Err(away(error.to_string())),
            Err(_) => Err(away("no answer".to_owned())),
        }
    }
}

impl JoinVerifier for TokenReviewer {
    fn verify<'a>(&'a self, credential: &'a [u8]) -> BoxFuture<'a, Result<VerifiedNode, JoinError>> {
        Box::pin(self.node(credential))
    }
}

/// A credential as the token of a service account, by its form alone.
fn token(credential: &[u8]) -> Result<&str, JoinError> {
    let refused = || JoinError::Refused("the credential is no token of a service account".to_owned());
    let token = std::str::from_utf8(credential).map_err(|_| refused())?.trim();
    let in_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(in_part);
    let is_token = token.len() <= MAX_TOKEN && token.split('.').count() == 3 && token.split('.').all(is_part);
    is_token.then_some(token).ok_or_else(refused)
}

/// The node of an agent, if a review confirms its token.
fn agent_node(review: TokenReviewStatus, account: &ObjectKey) -> Result<String, JoinError> {
    let refused = |reason: String| Err(JoinError::Refused(reason));
    if review.authenticated != Some(true) {
        let error = review.error.unwrap_or_default();
        return refused(format!("the API server does not confirm the token: {error}"));
    }
    if !review.audiences.unwrap_or_default().iter().any(|audience| audience == AUDIENCE) {
        return refused(format!("the token is not for audience `{AUDIENCE}`"));
    }
    let user = review.user.unwrap_or_default();
    let (name, expected) = (user.username.unwrap_or_default(), &account.name);
    if name != format!("system:serviceaccount:{}:{expected}", account.namespace) {
        return refused(format!("the token is of {name}, and agents have the service account {account}"));
    }
    let mut extra = user.extra.unwrap_or_default();
    let mut one = |claim: &str| match extra.remove(claim).as_deref() {
        Some([value]) if !value.is_empty() => Ok(value.clone()),
        _ => Err(JoinError::Refused(format!(
            "the token has no {claim}: it has to be bound to a pod (a projected volume with a serviceAccountToken)"
        ))),
    };
    one(POD_NAME)?;
    one(NODE_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn only_texts_in_the_form_of_a_token_reach_the_api_server() {
        assert_eq!(token(b"aA0.b-_.c\n").unwrap(), "aA0.b-_.c");
        let long = format!("a.b.{}", "c".repeat(MAX_TOKEN));
        for bad in ["", "a.b", "a.b.c.d", "a..c", "a.b.c=", "a.b.c d", "a.b.ä", &long] {
            assert!(matches!(token(bad.as_bytes()), Err(JoinError::Refused(_))), "{bad}");
        }
        assert!(token(&[0xff, 0xfe]).is_err());
    }

    #[test]
    fn questions_are_bounded_at_once_and_each_second() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let granted = |budget: &mut Budget, now| (0..1000).filter(|_| budget.take(now)).count();
        assert_eq!(granted(&mut budget, start), 200);
        assert_eq!(granted(&mut budget, start + Duration::from_secs(1)), 50);
        assert_eq!(granted(&mut budget, start + Duration::from_secs(3600)), 200);
    }

    #[test]
    fn a_review_has_to_confirm_each_part() {
        let good = json!({
            "authenticated": true,
            "audiences": ["leno"],
            "user": { "username": "system:serviceaccount:leno-system:leno-agent",
                "extra": { NODE_NAME: ["node-1"], POD_NAME: ["leno-agent-x"] } },
        });
        let account = ObjectKey { namespace: "leno-system".to_owned(), name: "leno-agent".to_owned() };
        let node = |review: &Value| agent_node(serde_json::from_value(review.clone()).unwrap(), &account);
        assert_eq!(node(&good), Ok("node-1".to_owned()));
        let wrong = [
            ("/authenticated", json!(false), "does not confirm"),
            ("/authenticated", json!(null), "does not confirm"),
            ("/audiences", json!(["https://kubernetes.default.svc"]), "audience"),
            ("/audiences", json!(null), "audience"),
            (
                "/user/username",
                json!("system:serviceaccount:shop:leno-agent"),
                "service account leno-system/leno-agent",
            ),
            ("/user/username", json!("leno-agent"), "service account"),
            ("/user/extra", json!({ POD_NAME: ["leno-agent-x"] }), "node-name"),
            ("/user/extra", json!({ NODE_NAME: ["node-1"] }), "pod-name"),
            ("/user/extra", json!({ POD_NAME: ["x"], NODE_NAME: ["node-1", "node-2"] }), "node-name"),
            ("/user", json!(null), "service account"),
        ];
        for (field, value, reason) in wrong {
            let mut review = good.clone();
            *review.pointer_mut(field).unwrap() = value.clone();
            match node(&review) {
                Err(JoinError::Refused(message)) => assert!(message.contains(reason), "{field} {value}: {message}"),
                other => panic!("{field} {value}: {other:?}"),
            }
        }
    }
}
