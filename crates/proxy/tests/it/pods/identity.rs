//! Pods whose service account is not the one of their function.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_the_identity_of_its_account_whatever_its_function_is() {
    let program = upstream::http1(echo).await;
    let mesh = mesh(AppProtocol::Http1, program.address);
    // By its label, the caller is one of `web`. The callee has another account than its function, too.
    let web = TestPod::start(&mesh, "web", program.address, |pod| pod.service_account = Some("evil".to_owned()));
    let callee = TestPod::start(&mesh, "callee", program.address, |pod| pod.service_account = Some("own".to_owned()));
    let request = "GET /a HTTP/1.1\r\nhost: callee\r\nconnection: close\r\n\r\n";
    let call = async || {
        let mut raw = web.call(&callee).await;
        raw.send(request).await;
        raw.rest().await
    };
    let answers = [call().await, {
        web.set(|pod| pod.service_account = None);
        call().await
    }];
    for answer in answers {
        assert_eq!(raw::status(&answer), 403, "{answer}");
    }
    // It is its account, too, by which a pod of another function is known.
    web.set(|pod| (pod.function, pod.service_account) = (id("callee"), Some("web".to_owned())));
    let answer = call().await;
    assert_eq!(raw::status(&answer), 200, "{answer}");
    assert!(answer.contains(&format!("By={};URI={}\n", spiffe("own"), spiffe("web"))), "{answer}");
    // Connections without requests are judged in the same way.
    let greeting = TestPod::start(&mesh, "callee", raw::greeting_server().await, |_| ());
    web.call(&greeting).await.until("220 ready\r\n").await;
    web.set(|pod| pod.service_account = Some("evil".to_owned()));
    assert_eq!(web.call(&greeting).await.rest().await, "");
    let peers: Vec<_> = mesh.node.telemetry.ring.latest(10).iter().map(|told| told.peer.identity.clone()).collect();
    assert!(peers.iter().flatten().any(|peer| **peer == *spiffe("evil").as_str()), "{peers:?}");
}
