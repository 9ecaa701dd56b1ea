//! The nine policies at work, in the order in which a request meets them.

use crate::Result;
use crate::client::{Answer, send};
use crate::log::{AccessLog, Entry};
use crate::node::Leno;
use crate::report::{Line, Report};
use crate::stage::Stage;
use crate::tls::{forged, knock};
use crate::token::{Claims, Issuer, unsigned};
use bytes::Bytes;
use http_body_util::Full;
use hyper::http::request::Builder;
use hyper::{Method, Request};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const HOST: &str = "shop.orders.example";
const FRONTEND: &str = "orders/frontend-api";
const ORDERS: &str = "orders/order-service";
const INVENTORY: &str = "orders/inventory-service";

/// The data that all of them need.
pub(crate) struct Shop<'a> {
    pub issuer: &'a Issuer,
    pub stage: &'a Stage,
    pub leno: &'a Leno,
}

impl Shop<'_> {
    fn log(&self) -> AccessLog {
        AccessLog(self.stage.access_log())
    }

    fn token(&self, user: &str) -> String {
        self.issuer.token(&Claims::of(user))
    }

    fn request(method: Method, path: &str, token: Option<&str>) -> Builder {
        let request =
            Request::builder().method(method).uri(path).header("host", HOST).header("user-agent", "orders-demo");
        match token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    async fn get(&self, path: &str, token: Option<&str>) -> Result<Answer> {
        send(self.stage.gateway, Self::request(Method::GET, path, token).body(Full::default())?).await
    }

    async fn order(&self, id: &str, token: Option<&str>) -> Result<Answer> {
        let request = Self::request(Method::POST, "/orders", token).body(order(id))?;
        send(self.stage.gateway, request).await
    }

    /// The line of the access log with the refusal, from any hop.
    async fn denial(&self, answer: &Answer) -> Result<Entry> {
        let is_denial = |entry: &Entry| entry.verdict == "deny";
        let entries = self.log().trace(answer.request_id(), |entries| entries.iter().any(is_denial)).await?;
        Ok(entries.into_iter().find(is_denial).unwrap_or_default())
    }

    /// The gateway's line about a request.
    async fn entry(&self, answer: &Answer) -> Result<Entry> {
        let gateway = |entry: &Entry| entry.direction == "gateway";
        let entries = self.log().trace(answer.request_id(), |entries| entries.iter().any(gateway)).await?;
        Ok(entries.into_iter().find(gateway).unwrap_or_default())
    }

    /// Whether instances have jails here.
    pub(crate) async fn has_jails(&self) -> Result<bool> {
        let instances = self.leno.instances().await?;
        Ok(instances.iter().any(|instance| instance.isolation.as_deref() == Some("strict")))
    }

    /// A line for a call from a jail to a name that is not among the callees: there, the name does
    /// not exist.
    async fn unknown_name(&self, mut line: Line, answer: &Answer, name: &str) -> Result<Line> {
        line.back = answer.status.to_string();
        line.expect(answer.status == 502, "502: frontend-api finds nobody of that name");
        let flows = self.leno.flows().await?;
        let refused = flows.iter().find(|flow| flow.kind == "name" && flow.host == name);
        line.rule = refused.map(|flow| flow.reason.clone()).unwrap_or_default();
        line.expect(refused.is_some(), "the refusal of the name in what `leno observe` shows");
        Ok(line)
    }

    /// A line for a request that one of the policies has to refuse.
    async fn refused(&self, mut line: Line, answer: &Answer, status: u16, policy: &str) -> Result<Line> {
        let denial = self.denial(answer).await?;
        if line.back.is_empty() {
            line.back = answer.status.to_string();
        }
        line.rule = denial.decided_by();
        line.expect(answer.status == status, format!("{status}"));
        line.expect(
            denial.is_denial_by(policy),
            format!("a denial by the policy `{policy}`, not `{}`", denial.policy.as_deref().unwrap_or("none")),
        );
        Ok(line)
    }
}

fn order(id: &str) -> Full<Bytes> {
    Full::from(json!({"id": id, "item": "lamp", "quantity": 1}).to_string())
}

fn body(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_default()
}

/// Policy 1.
pub(crate) async fn authentication(shop: &Shop<'_>, report: &mut Report) -> Result<()> {
    const POLICY: &str = "1 authentication";
    let stranger = Issuer::generate()?;
    let bad = [
        ("POST /orders without a token", None),
        ("POST /orders, token with alg \"none\"", Some(unsigned(&Claims::of("ann")))),
        ("POST /orders, token expired a minute ago", Some(shop.issuer.token(&Claims::of("ann").valid_for(-60)))),
        ("POST /orders, token signed with another key", Some(stranger.token(&Claims::of("ann")))),
    ];
    for (sent, token) in bad {
        let answer = shop.order("o-never", token.as_deref()).await?;
        let mut line = shop.refused(Line::new(POLICY, sent), &answer, 401, "authentication").await?;
        line.expect(answer.header("www-authenticate").is_some(), "a www-authenticate header");
        report.print(line);
    }

    let running = shop.leno.instances().await?;
    let mut line = Line::new(POLICY, "(were instances started for those?)");
    line.back = format!("{} instances", running.len());
    line.rule = "a denied request starts nothing".to_owned();
    line.expect(running.is_empty(), "no instance");
    report.print(line);

    let answer = shop.order("o-1", Some(&shop.token("ann"))).await?;
    let mut line = Line::new(POLICY, "POST /orders with ann's token");
    line.back = format!("{} {}", answer.status, body(&answer)["status"]);
    line.rule = shop.entry(&answer).await?.decided_by();
    line.expect(answer.status == 201, "201, the order is accepted");
    report.print(line);

    let answer = shop.get("/whoami", Some(&shop.token("ann"))).await?;
    let (user, headers) = (&body(&answer)["user"], &body(&answer)["headers"]);
    let mut line = Line::new(POLICY, "GET /whoami (what frontend-api is told)");
    line.back = format!("{} user {user}", answer.status);
    line.rule = "claim sub becomes x-user; the token itself is not passed on".to_owned();
    line.expect(*user == "ann", "user \"ann\"");
    line.expect(headers["authorization"].is_null(), "no authorization header");
    report.print(line);
    Ok(())
}

/// Policy 2.
pub(crate) async fn sidecar(shop: &Shop<'_>, report: &mut Report) -> Result<()> {
    const POLICY: &str = "2 sidecar configuration";
    let request = Shop::request(Method::GET, "/whoami", Some(&shop.token("bob")))
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let answer = send(shop.stage.gateway, request.body(Full::default())?).await?;
    report
        .print(shop.refused(Line::new(POLICY, "GET /whoami as a WebSocket handshake"), &answer, 403, "sidecar").await?);

    let answer = shop.get("/stock/lamp", Some(&shop.token("bob"))).await?;
    let line = Line::new(POLICY, "frontend-api: CheckStock at inventory-service");
    report.print(if shop.has_jails().await? {
        shop.unknown_name(line, &answer, "inventory-service").await?
    } else {
        let mut line = shop.refused(line, &answer, 403, "sidecar").await?;
        let denial = shop.denial(&answer).await?;
        line.expect(denial.direction == "outbound", "the denial of frontend-api's outbound sidecar");
        line
    });

    let answer = shop.get("/whoami", Some(&shop.token("bob"))).await?;
    let added = answer.header("x-content-type-options");
    let mut line = Line::new(POLICY, "GET /whoami");
    line.back = format!("{} with {}", answer.status, added.unwrap_or("-"));
    line.rule = "frontend-policy/sidecar adds x-content-type-options to every response".to_owned();
    line.expect(answer.status == 200 && added == Some("nosniff"), "200 with x-content-type-options: nosniff");
    report.print(line);
    Ok(())
}

/// Policy 3.
pub(crate) async fn authorization(shop: &Shop<'_>, report: &mut Report) -> Result<()> {
    const POLICY: &str = "3 authorisation";
    let token = shop.token("cleo");
    let answer = shop.get("/admin", Some(&token)).await?;
    report.print(shop.refused(Line::new(POLICY, "GET /admin with cleo's token"), &answer, 403, "authorization").await?);

    let admin = shop.issuer.token(&Claims::of("dora").role("admin"));
    let answer = shop.get("/admin", Some(&admin)).await?;
    let mut line = Line::new(POLICY, "GET /admin with an administrator's token");
    line.back = answer.status.to_string();
    line.rule = shop.entry(&answer).await?.decided_by();
    line.expect(answer.status == 200, "200");
    report.print(line);

    let request = Request::post("/orders").header("host", "internal.orders.example").body(order("o-2"))?;
    let answer = send(shop.stage.gateway, request).await?;
    let line = Line::new(POLICY, "POST /orders at order-service, from outside");
    report.print(shop.refused(line, &answer, 403, "authorization").await?);

    let answer = shop.get("/orders/o-1", Some(&token)).await?;
    let line = Line::new(POLICY, "frontend-api: GET /orders/o-1 at order-service");
    let mut line = shop.refused(line, &answer, 403, "authorization").await?;
    let denial = shop.denial(&answer).await?;
    line.expect(denial.direction == "inbound" && denial.is_for(ORDERS), "the denial of order-service's own sidecar");
    report.print(line);
    Ok(())
}

/// Policy 4.
pub(crate) async fn rate_limit(shop: &Shop<'_>, report: &mut Report) -> Result<()> {
    const BURST: u32 = 12;
    let token = shop.token("impatient-ed");
    let mut served = 0;
    // On a slow machine a few more requests pass, because the bucket refills meanwhile.
    let answer = loop {
        let answer = shop.get("/whoami", Some(&token)).await?;
        if answer.status != 200 || served == 4 * BURST {
            break answer;
        }
        served += 1;
    };
    let mut line = Line::new("4 rate limit", format!("GET /whoami again and again as ed: {served} get through"));
    let retry_after = answer.header("retry-after");
    line.back = format!("{} retry-after: {}", answer.status, retry_after.unwrap_or("-"));
    let mut line = shop.refused(line, &answer, 429, "rateLimits").await?;
    line.expect(served >= BURST, format!("at least {BURST} get through"));
    line.expect(retry_after.is_some_and(|seconds| seconds.parse::<u32>().is_ok()), "a retry-after header");
    report.print(line);

    let answer = shop.get("/whoami", Some(&shop.token("patient-flo"))).await?;
    let mut line = Line::new("4 rate limit", "GET /whoami as flo, who has a counter of her own");
    line.back = answer.status.to_string();
    line.rule = shop.entry(&answer).await?.decided_by();
    line.expect(answer.status == 200, "200");
    report.print(line);
    Ok(())
}

/// Policies 5 and 6.
pub(crate) async fn tracing_and_logs(shop: &Shop<'_>, report: &mut Report) -> Result<()> {
    let token = shop.token("gus");
    let answer = shop.order("o-traced", Some(&token)).await?;
    let id = answer.request_id();
    let inbound = |entries: &[Entry], function: &str| {
        entries.iter().any(|entry| entry.is_for(function) && entry.direction != "outbound")
    };
    let whole = |entries: &[Entry]| [FRONTEND, ORDERS, INVENTORY].iter().all(|function| inbound(entries, function));
    let entries = shop.log().trace(id, whole).await?;

    let spans: BTreeSet<&str> = entries.iter().map(|entry| entry.span_id.as_str()).collect();
    let root = |entry: &&Entry| entry.parent_span_id.is_none();
    let linked = |entry: &Entry| entry.parent_span_id.as_deref().is_none_or(|parent| spans.contains(parent));
    let mut line = Line::new("5 tracing", "POST /orders; the functions copy no trace header");
    let trace_id = entries.first().map(|entry| entry.trace_id.clone()).unwrap_or_default();
    line.back = format!("{} in trace {}", answer.status, trace_id.get(..8).unwrap_or("-"));
    line.rule = format!("{} spans: {}", entries.len(), way(&entries));
    line.expect(answer.status == 201, "201");
    line.expect(whole(&entries), "spans of all three functions in one trace");
    line.expect(entries.iter().filter(root).count() == 1, "one span without a parent");
    line.expect(entries.iter().all(linked), "every other span's parent is in the trace");
    report.print(line);

    let entry = entries.iter().find(|entry| entry.parent_span_id.is_none()).cloned().unwrap_or_default();
    let explained = shop.leno.explanation(id).await?;
    let mut line = Line::new("6 access log", format!("(the same request, {} lines)", entries.len()));
    line.back = "one for each hop".to_owned();
    line.rule = "observability/accessLog; the gateway's:".to_owned();
    line.details.push(entry.text.clone());
    let value: Value = serde_json::from_str(&entry.text).unwrap_or_default();
    for field in ["time", "method", "path", "status", "verdict", "rule", "duration_ms"] {
        line.expect(!value[field].is_null(), format!("the field `{field}`"));
    }
    line.expect(value["headers"]["user-agent"] == "orders-demo", "the user-agent, which the policy wants logged");
    let signature = token.rsplit('.').next().unwrap_or_default();
    let everything =
        std::fs::read_to_string(shop.stage.access_log())? + &std::fs::read_to_string(shop.stage.own_log())?;
    line.expect(!everything.contains(signature), "no token in any log");
    line.expect(!explained.is_empty(), "`leno explain` knows it too");
    report.print(line);
    Ok(())
}

/// `gateway -> frontend-api -> order-service -> …`
fn way(entries: &[Entry]) -> String {
    let mut names = vec!["gateway"];
    let mut parent = None;
    while let Some(entry) = entries.iter().find(|entry| entry.parent_span_id == parent) {
        let name = entry.target.as_deref().and_then(|target| target.rsplit('/').next()).unwrap_or("?");
        if names.last() != Some(&name) {
            names.push(name);
        }
        parent = Some(entry.span_id.clone());
    }
    names.join(" > ")
}

/// Policy 7.
pub(crate) async fn mutual_tls(shop: &Shop<'_>, report: &mut Report) -> Result<()> {
    const POLICY: &str = "7 mutual TLS";
    let inbound = shop.stage.inbound;
    let impostor = "spiffe://orders.example/ns/orders/sa/frontend-api";
    let expected = "spiffe://orders.example/ns/orders/sa/order-service";
    let attempts = [
        ("order-service's TLS port, without a certificate", None),
        ("the same, forged certificate of frontend-api", Some(forged(impostor)?)),
    ];
    for (sent, credentials) in attempts {
        let attempt = knock(inbound, "order-service", credentials).await?;
        let mut line = Line::new(POLICY, sent);
        line.back = if attempt.refusal.is_some() { "refused" } else { "let in" }.to_owned();
        line.rule = attempt.refusal.clone().unwrap_or_default();
        line.expect(attempt.refusal.is_some(), "a refusal");
        line.expect(
            attempt.server.as_deref().is_none_or(|server| server == expected),
            format!("the server is {expected}"),
        );
        report.print(line);
    }

    // Another process of this machine, without credentials, at the listener of the outbound
    // sidecars.
    let request = Request::post("http://order-service/orders").header("host", "order-service").body(order("o-3"))?;
    let answer = send(shop.stage.outbound, request).await?;
    let mut line = Line::new(POLICY, "another process, posing as frontend-api's instance");
    line.back = answer.status.to_string();
    line.rule = "each instance has proxy credentials of its own".to_owned();
    line.expect(answer.status == 407, "407");
    report.print(line);

    let identities = shop.leno.identities().await?;
    let named = |function: &str| {
        let suffix = format!("/sa/{}", function.trim_start_matches("orders/"));
        identities.iter().any(|identity| identity["identity"].as_str().is_some_and(|id| id.ends_with(&suffix)))
    };
    let mut line = Line::new(POLICY, "(identities that the node holds)");
    line.back = format!("{} certificates", identities.len());
    line.rule = "one for each function and the gateway, renewed at half of their life".to_owned();
    line.expect([FRONTEND, ORDERS, INVENTORY].into_iter().all(named), "one for each of the three functions");
    report.print(line);
    Ok(())
}

/// Routes calls on this node through TLS sockets, by changes to the documents of the running mesh,
/// and then reverts that.
pub(crate) async fn mutual_tls_on_one_node(shop: &Shop<'_>, report: &mut Report) -> Result<()> {
    let mut line = Line::new("7 mutual TLS", "POST /orders, with `sameNode: always` saved meanwhile");
    shop.stage.set_same_node("always")?;
    let (answer, hops) = shop.order_by_tls(true).await?;
    line.back = answer.status.to_string();
    let seen_by_orders = hops.iter().find(|entry| entry.direction == "inbound" && entry.is_for(ORDERS));
    let peer = seen_by_orders.and_then(|entry| entry.source.as_deref()).unwrap_or("nobody");
    line.rule = format!("the same verdicts over {} TLS sockets; order-service sees {peer}", shop.tls_hops(&hops));
    line.expect(answer.status == 201, "201");
    line.expect(shop.tls_hops(&hops) == 2, "two calls over TLS");
    line.expect(peer == "spiffe://orders.example/ns/orders/sa/frontend-api", "frontend-api's identity");
    report.print(line);

    shop.stage.set_same_node("direct")?;
    let (answer, hops) = shop.order_by_tls(false).await?;
    let mut line = Line::new("7 mutual TLS", "POST /orders, with `sameNode: direct` again");
    line.back = answer.status.to_string();
    line.rule = "handed over inside the node; no configuration was lost on the way".to_owned();
    line.expect(answer.status == 201 && shop.tls_hops(&hops) == 0, "201, without a TLS socket");
    report.print(line);
    Ok(())
}

impl Shop<'_> {
    /// Sends orders until calls take that path: changed documents take a moment.
    async fn order_by_tls(&self, wanted: bool) -> Result<(Answer, Vec<Entry>)> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        let mode = if wanted { "tls" } else { "direct" };
        let mut number = 0;
        loop {
            number += 1;
            let name = format!("{mode}-{number}");
            let answer = self.order(&name, Some(&self.token(&name))).await?;
            let all_there =
                |entries: &[Entry]| entries.iter().any(|entry| entry.is_for(INVENTORY) && entry.direction == "inbound");
            let hops = self.log().trace(answer.request_id(), all_there).await?;
            if (self.tls_hops(&hops) > 0) == wanted || tokio::time::Instant::now() >= deadline {
                return Ok((answer, hops));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The number of calls to the node's own TLS port.
    fn tls_hops(&self, hops: &[Entry]) -> usize {
        let port = self.stage.inbound.to_string();
        hops.iter()
            .filter(|entry| entry.direction == "outbound" && entry.endpoint.as_deref() == Some(port.as_str()))
            .count()
    }
}

/// Policy 8.
pub(crate) async fn retry(shop: &Shop<'_>, report: &mut Report) -> Result<()> {
    let answer = shop.order("flaky-1-a", Some(&shop.token("hal"))).await?;
    let tried_twice = |entry: &Entry| entry.direction == "outbound" && entry.is_for(ORDERS) && entry.attempts == 2;
    let entries = shop.log().trace(answer.request_id(), |entries| entries.iter().any(tried_twice)).await?;
    let outbound = entries.iter().find(|entry| entry.direction == "outbound" && entry.is_for(ORDERS));
    let statuses: Vec<String> = entries
        .iter()
        .filter(|entry| entry.direction == "inbound" && entry.is_for(ORDERS))
        .map(|entry| entry.status.to_string())
        .collect();
    let mut line = Line::new("8 retry", "POST /orders, an order whose first try fails");
    line.back = answer.status.to_string();
    let attempts = outbound.map_or(0, |entry| entry.attempts);
    line.rule = format!("order-policy/retry: {attempts} attempts, order-service answered {}", statuses.join(" and "));
    line.expect(answer.status == 201, "201, because the second try succeeds");
    line.expect(attempts == 2, "2 attempts");
    line.expect(statuses.contains(&"503".to_owned()), "a 503 from order-service on the way");
    report.print(line);
    Ok(())
}

/// Policy 9.
pub(crate) async fn circuit_breaker(shop: &Shop<'_>, report: &mut Report) -> Result<()> {
    const POLICY: &str = "9 circuit breaker";
    let token = shop.token("ivy");
    let mut statuses = Vec::new();
    for number in 1..=3 {
        statuses.push(shop.order(&format!("broken-{number}"), Some(&token)).await?.status);
    }
    let mut line = Line::new(POLICY, "POST /orders three times, orders that break it");
    line.back = format!("{statuses:?}");
    line.rule = "three in a row eject the instance (order-policy/circuitBreaker)".to_owned();
    line.expect(statuses == [500; 3], "500 each time");
    report.print(line);

    let answer = shop.order("o-4", Some(&token)).await?;
    let line = Line::new(POLICY, "POST /orders, a good order");
    report.print(shop.refused(line, &answer, 503, "circuitBreaker").await?);

    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let mut tries = 0;
    let answer = loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        // Each attempt has another user, so that the rate limit does not interfere.
        tries += 1;
        let answer = shop.order("o-4", Some(&shop.token(&format!("joy-{tries}")))).await?;
        if answer.status != 503 || tokio::time::Instant::now() >= deadline {
            break answer;
        }
    };
    let mut line = Line::new(POLICY, "the same order when the pause is over");
    line.back = answer.status.to_string();
    line.rule = shop.entry(&answer).await?.decided_by();
    line.expect(answer.status == 201, "201");
    report.print(line);
    Ok(())
}
