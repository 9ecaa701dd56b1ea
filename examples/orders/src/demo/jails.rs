//! A hostile instance tries to bypass the mesh.

use crate::Result;
use crate::client::send;
use crate::node::Flow;
use crate::policies::Shop;
use crate::report::{Line, Report};
use http_body_util::Full;
use hyper::Request;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

const HOST: &str = "intruder.orders.example";

/// The attempt of an instance, its name and arguments, and the expected start of the outcome.
type Way<'a> = (&'a str, &'a str, &'a [&'a str], &'a str);

pub(crate) async fn intruder(shop: &Shop<'_>, report: &mut Report) -> Result<()> {
    const POLICY: &str = "(jails)";
    attempt(shop, "whoami", &[]).await?;
    if !shop.has_jails().await? {
        let mut line = Line::new(POLICY, "a hostile instance");
        (line.back, line.rule) =
            ("not tried".to_owned(), format!("there are no jails here: {}", shop.leno.no_jails()?));
        report.print(line);
        return Ok(());
    }
    let instances = shop.leno.instances().await?;
    let victim = instances.iter().find(|instance| instance.function == "orders/order-service");
    let victim = victim.ok_or("order-service has no instance")?;
    let (pid, address) = (victim.pid.unwrap_or_default().to_string(), victim.address.as_str());
    let (environment, folder) = (format!("/proc/{pid}/environ"), shop.stage.folder.display().to_string());
    let (key, gateway) = (format!("{folder}/jwks.json"), shop.stage.gateway.to_string());
    let name = format!("leno-orders-{}", std::process::id());
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let ways: &[Way<'_>] = &[
        ("connects to the port of order-service", "connect", &[address], "refused"),
        ("connects to the gateway", "connect", &[&gateway], "refused"),
        ("reads the environment of order-service", "read", &[&environment], "refused"),
        ("traces order-service to see its memory", "trace", &[&pid], "killed"),
        ("sends order-service a signal", "signal", &[&pid], "refused"),
        ("opens a raw socket", "raw", &[], "refused"),
        ("opens a packet socket", "packet", &[], "refused"),
        ("makes a namespace, with rights in it", "namespace", &[], "refused"),
        ("reads a file of the node", "read", &[&key], "refused"),
        ("replaces leno", "write", &["leno"], "refused"),
        ("connects to an abstract Unix socket", "abstract", &[&name], "refused"),
        ("asks for a name that carries something out", "resolve", &["c2VjcmV0.tunnel.example"], "refused"),
        ("sends a datagram", "udp", &["192.0.2.1:53"], "refused"),
        ("calls order-service by name", "call", &["order-service"], "refused"),
        ("calls it by an address", "http", &["100.64.0.1:80", "order-service"], "refused"),
        (
            "the same with another's source address",
            "spoof",
            &["100.64.0.7:0", "100.64.0.1:80", "order-service"],
            "refused",
        ),
        ("calls a host of the internet by its address", "http", &["192.0.2.1:80", "example.com"], "refused"),
        ("takes a share of the gateway's port", "share", &[&gateway], "done: nobody came"),
    ];
    for (what, name, arguments, outcome) in ways {
        let back = attempt(shop, name, arguments).await?;
        let mut line = Line::new(POLICY, format!("an instance {what}"));
        line.expect(back.starts_with(*outcome), format!("{outcome}, not {back}"));
        let (back, rule) = back.split_once(": ").unwrap_or((&back, ""));
        (line.back, line.rule) = (back.to_owned(), rule.to_owned());
        report.print(line);
    }
    report.print(seen(shop, Line::new(POLICY, "(what `leno observe` shows of it)")).await?);
    Ok(())
}

/// The refusals that the node reports. It reports an exchange after it has sent the response.
async fn seen(shop: &Shop<'_>, mut line: Line) -> Result<Line> {
    let wanted = [("name", "c2VjcmV0.tunnel.example"), ("system-call", "ptrace"), ("connection", "192.0.2.1:80")];
    for _ in 0..100 {
        let flows = shop.leno.flows().await?;
        let of_intruder = |flow: &&Flow| flow.verdict == "deny" && flow.source.contains("/intruder");
        let refused: Vec<&Flow> = flows.iter().filter(of_intruder).collect();
        line.back = format!("{} refusals", refused.len());
        let find = |(kind, what): (&str, &str)| {
            refused.iter().find(|flow| flow.kind == kind && (flow.host == what || flow.what == what))
        };
        line.details = wanted.into_iter().filter_map(find).map(|flow| describe(flow)).collect();
        if line.details.len() == wanted.len() {
            return Ok(line);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    line.expect(false, "a name, a system call and a connection");
    Ok(line)
}

fn describe(Flow { kind, source, what, host, reason, .. }: &Flow) -> String {
    format!("{kind}: {source} {what} {host}: {reason}")
}

/// Makes the intruder try something. Returns the outcome.
async fn attempt(shop: &Shop<'_>, way: &str, arguments: &[&str]) -> Result<String> {
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace('/', "~")).collect();
    let request = Request::get(format!("/{way}/{}", arguments.join("/"))).header("host", HOST).body(Full::default())?;
    let answer = send(shop.stage.gateway, request).await?;
    if answer.status != 200 {
        return Err(format!("the intruder answered {}: {}", answer.status, answer.body).into());
    }
    Ok(answer.body.trim_end().to_owned())
}
