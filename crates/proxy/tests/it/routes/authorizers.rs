//! Authorizers that routes ask, at a gateway on their node and on another one.

use super::{attach, below, filtered, forbids, named, prefix, rewrite, route, target, to};
use crate::mesh::{Builder, Mesh};
use crate::upstream::{self, Answer, connect_http1, empty};
use http::{Request, Response};
use leno_model::{AppProtocol, Authorizer, AuthorizerProtocol, RouteAuthorizer, RouteFilter};
use leno_policy::spec::{Condition, ConditionKey, Matches, StringMatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A filter that asks this function.
pub(super) fn asks(name: &str) -> RouteFilter {
    let authorizer = Authorizer {
        name: "shop/asking/externalAuth/0".to_owned(),
        authority: String::new(),
        protocol: AuthorizerProtocol::Http,
        path_prefix: String::new(),
        timeout: Duration::from_secs(60),
        status_on_error: 503,
        shown: Some(Vec::new()),
        raw_headers: false,
        upstream_headers: vec!["x-user".to_owned()],
        client_headers: vec!["www-authenticate".to_owned()],
        cache: None,
        audit: false,
    };
    RouteFilter::Authorize(Box::new(RouteAuthorizer { target: target(name), authorizer, sets_all: false }))
}

async fn ask(mesh: &Mesh, path: &str) -> Answer {
    let request = Request::get(path).header("host", "a").header("x-user", "root").header("X_User", "root");
    connect_http1(mesh.gateway()).await.send(request.body(empty()).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_judge_the_request_with_the_fields_of_the_answer() {
    let (asked, one) = (Arc::<AtomicUsize>::default(), named("one").await);
    let counted = asked.clone();
    let login = upstream::http1(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        let known = request.uri().path() != "/new/unknown" && !request.headers().contains_key("x-user");
        let user = if request.uri().path() == "/new/bob" { "bob" } else { "ann" };
        async move {
            let response = Response::builder().status(if known { 200 } else { 401 });
            response.header("x-user", user).header("www-authenticate", "Basic").body(empty()).unwrap()
        }
    })
    .await;
    let is_ann = Condition {
        key: ConditionKey::Header("x-user".into()),
        values: Matches { any: vec![StringMatch::Exact("ann".into())], none: Vec::new() },
    };
    let functions = || {
        let builder = Builder::new()
            .function("one", AppProtocol::Http1, one.address)
            .function("login", AppProtocol::Http1, login.address)
            .config("login", |config| config.inbound.authorization.insert(0, forbids("/new/secret")))
            .config("one", |config| {
                config.inbound.authorization.iter_mut().for_each(|rule| rule.when.push(is_ann.clone()));
            });
        ["one", "login"].into_iter().fold(builder, |builder, name| {
            builder.config(name, |config| (config.expose, config.is_routed) = (Vec::new(), true))
        })
    };
    let there = functions().start();
    let far = functions().remote("one").remote("login").with(&there).start();
    ["one", "login"].into_iter().for_each(|name| far.knows(name, &[(&there, 1)]));
    let near = functions().start();
    for mesh in [&near, &far] {
        let rules = vec![
            filtered(to(below("/a"), "one"), vec![asks("login"), rewrite(None, prefix("/new"))]),
            to(below("/open"), "one"),
        ];
        attach(mesh, &[("*", route("shop/asking", rules))]);
        let (before, sent) = (asked.load(Ordering::SeqCst), one.requests());
        let reply = ask(mesh, "/a/x").await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(reply.text.contains("\nx-user: ann\n") && !reply.text.contains("root"), "{}", reply.text);
        let reply = ask(mesh, "/a/unknown").await;
        assert_eq!((reply.status, &reply.headers["www-authenticate"]), (401, &"Basic".parse().unwrap()));
        let shown = mesh.told(reply.headers["x-request-id"].to_str().unwrap(), 1).await;
        let refused = shown.iter().find(|hop| !hop.authorizers.is_empty()).expect("the question is recorded");
        assert_eq!(refused.judgement.as_ref().unwrap().verdict, "deny");
        assert_eq!(ask(mesh, "/a/bob").await.status, 403, "the policy refuses the user whom the answer names");
        assert_eq!((asked.load(Ordering::SeqCst), one.requests()), (before + 3, sent + 1));
        // The authorizer's own policy refuses the question.
        assert!([403, 503].contains(&ask(mesh, "/a/secret").await.status));
        assert_eq!((asked.load(Ordering::SeqCst), one.requests()), (before + 3, sent + 1));
        assert_eq!(ask(mesh, "/open").await.status, 403, "no client is a user by its own word");
    }
}
