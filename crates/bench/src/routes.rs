//! `leno-bench routes`: the cost of a request at a gateway with many routes on one host, Envoy and
//! Leno side by side with the same routes. The request matches the last of them.

use crate::arguments::Plain;
use crate::contenders::{self, EnvoyPlace, Running};
use crate::load::Pace;
use crate::machine;
use crate::material::HOST;
use crate::policies::Policies;
use crate::proxy_under_test::Proxy;
use crate::proxy_under_test::leno::join;
use crate::report::Report;
use crate::rig::Rig;
use crate::statistics::{Figure, Trials};
use crate::trial::{self, HTTP1, HTTP2, Lengths, Traffic};
use anyhow::Context;
use leno_testkit::free_addresses;
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

/// Routes on the host.
const COUNTS: [usize; 4] = [1, 10, 100, 1000];
/// The most rules of one HTTPRoute.
const RULES: usize = 16;
/// The header field that half of the routes look at, with a value of which each of them matches a
/// part.
const FIELD: (&str, &str) = ("x-tenant", "tenant-77-blue");
/// The aims: at most these values.
const BARS: [(&str, f64); 2] = [("routes_1000_vs_10", 1.10), ("cpu_vs_envoy_1000", 0.45)];

/// A route that the request does not match: of each of four kinds in turn.
enum Miss {
    /// This prefix of the path.
    Prefix(String),
    /// This regular expression for the path.
    Path(String),
    /// The prefix `/orders`, and this value of the header field.
    Value(String),
    /// The prefix `/orders`, and this regular expression for the header field.
    Expression(String),
}

impl Miss {
    fn of(index: usize) -> Self {
        match index % 4 {
            0 => Self::Prefix(format!("/orders/8c6f1e0a/items/{index}")),
            1 => Self::Path(format!("/orders/[0-9a-f]+/items/v{index}")),
            2 => Self::Value(format!("tenant-77-blue-{index}")),
            _ => Self::Expression(format!("tenant-[0-9]+-{index}.*")),
        }
    }

    fn gateway_api(&self) -> Value {
        let orders = json!({"type": "PathPrefix", "value": "/orders"});
        match self {
            Self::Prefix(value) => json!({"path": {"type": "PathPrefix", "value": value}}),
            Self::Path(value) => json!({"path": {"type": "RegularExpression", "value": value}}),
            Self::Value(value) => json!({"path": orders, "headers": [{"name": FIELD.0, "value": value}]}),
            Self::Expression(value) => {
                let field = json!({"type": "RegularExpression", "name": FIELD.0, "value": value});
                json!({"path": orders, "headers": [field]})
            }
        }
    }

    fn envoy(&self) -> Value {
        match self {
            Self::Prefix(value) => json!({"path_separated_prefix": value}),
            Self::Path(value) => json!({"safe_regex": {"regex": value}}),
            Self::Value(value) => {
                let field = json!({"name": FIELD.0, "string_match": {"exact": value}});
                json!({"path_separated_prefix": "/orders", "headers": [field]})
            }
            Self::Expression(value) => {
                let field = json!({"name": FIELD.0, "string_match": {"safe_regex": {"regex": value}}});
                json!({"path_separated_prefix": "/orders", "headers": [field]})
            }
        }
    }
}

/// A Gateway, and routes of which the last one takes the request.
fn documents(count: usize, port: u16) -> Vec<Value> {
    let document = |kind: &str, name: &str, spec: Value| {
        let metadata = json!({"name": name, "namespace": "bench"});
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let listener = json!({"name": "http", "port": port, "protocol": "HTTP"});
    let gateway = document("Gateway", "gate", json!({"gatewayClassName": "leno", "listeners": [listener]}));
    let service = json!([{"name": "service", "port": 80}]);
    let rule = |index| {
        let last = json!({"path": {"type": "PathPrefix", "value": "/"}});
        let found = if index + 1 == count { last } else { Miss::of(index).gateway_api() };
        json!({"matches": [found], "backendRefs": service})
    };
    let rules: Vec<Value> = (0..count).map(rule).collect();
    let route = |(index, rules): (usize, &[Value])| {
        let spec = json!({"parentRefs": [{"name": "gate"}], "hostnames": [HOST], "rules": rules});
        document("HTTPRoute", &format!("route-{index}"), spec)
    };
    [gateway].into_iter().chain(rules.chunks(RULES).enumerate().map(route)).collect()
}

/// A Leno whose gateway has these routes.
fn leno(rig: &Rig, count: usize) -> anyhow::Result<Running> {
    let name = format!("leno_routes_{count}");
    let folder = contenders::new_folder(rig, &name)?;
    let listeners = contenders::listeners()?;
    let mesh = contenders::mesh(rig, &folder, "wasm", Policies::NONE, listeners);
    let routes = join(&documents(count, listeners.gateway.port()));
    fs::write(folder.join("bench.yaml"), mesh.documents() + &routes)?;
    let running = Running::at_gateway(rig, &name, listeners, Policies::NONE)?;
    with_field(running).behind_leno(rig, &folder, listeners, Policies::NONE)
}

/// An Envoy with the same routes.
fn envoy(rig: &Rig, count: usize) -> anyhow::Result<Running> {
    let name = format!("envoy_routes_{count}");
    let [listen] = free_addresses();
    let file = contenders::envoy_file(rig, &name, Policies::NONE, EnvoyPlace::inbound(listen, rig.upstream))?;
    let mut configuration: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    let hosts = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0";
    let host = configuration.pointer_mut(hosts).context("a virtual host")?;
    let action = host["routes"][0]["route"].clone();
    let route = |index| {
        let last = json!({"prefix": "/"});
        json!({"match": if index + 1 == count { last } else { Miss::of(index).envoy() }, "route": action})
    };
    host["routes"] = (0..count).map(route).collect();
    fs::write(&file, configuration.to_string())?;
    let program = rig.programs.envoy.as_ref().context("there is no Envoy")?;
    let proxy = Proxy::envoys(program, rig.cores, &[file])?;
    with_field(Running::at(rig, &name, listen, Policies::NONE)?).behind(rig, proxy, Policies::NONE)
}

fn with_field(mut running: Running) -> Running {
    let (name, value) = FIELD;
    running.add_header(name, value);
    running
}

pub(crate) fn run(arguments: &Plain) -> anyhow::Result<()> {
    let machine = machine::describe();
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}");
    let mut contenders = vec![Running::leno(&rig, "leno_none", "wasm", Policies::NONE)?];
    for count in COUNTS {
        contenders.push(leno(&rig, count)?);
        if rig.programs.envoy.is_some() {
            contenders.push(envoy(&rig, count)?);
        }
    }
    if rig.programs.envoy.is_none() {
        println!("there is no Envoy: its part is missing");
    }
    let ms = Duration::from_millis;
    let (repeats, lengths) = match arguments.output.quick {
        true => (3, Lengths { warm_up: ms(150), closed: ms(500), open: ms(0), retakes: 0 }),
        false => (9, Lengths { warm_up: ms(500), closed: ms(2000), open: ms(0), retakes: 2 }),
    };
    let mut trials = Trials::default();
    for traffic in [HTTP1, HTTP2] {
        for repeat in 0..repeats {
            for index in 0..contenders.len() {
                let contender = &contenders[(index + repeat) % contenders.len()];
                trials.0.push(trial::run(&rig, contender, traffic, Pace::Closed, repeat, lengths)?);
            }
        }
    }
    let mut report = Report::default();
    for (traffic, suffix) in [(HTTP1, ""), (HTTP2, "_http2")] {
        tell(&trials, traffic, suffix, &mut report);
    }
    let mut details = json!({"conditions": trial::conditions(&rig)});
    details["trials"] = serde_json::to_value(&trials.0)?;
    arguments.output.write(report, machine, details)
}

fn tell(trials: &Trials, traffic: Traffic, suffix: &str, report: &mut Report) {
    let cpu = |name: &str| trials.figure((name, traffic.name, "closed"), |trial| trial.cpu_us);
    let ratio = |first: &str, second: &str| {
        let which = [first, second].map(|name| (name, traffic.name, "closed"));
        trials.combined(which, |[first, second]| first.cpu_us / second.cpu_us)
    };
    let mut add = |name: String, figure: Option<Figure>| {
        let Some(figure) = figure else { return };
        let bar = BARS.iter().find(|(barred, _)| *barred == name).map_or_else(String::new, |(_, bar)| {
            format!("; aim {bar:.2}: {}", if figure.median <= *bar { "reached" } else { "missed" })
        });
        println!("{name}: {:.3} ({:.3} to {:.3}){bar}", figure.median, figure.least, figure.most);
        report.add_figure(&name, figure);
    };
    add(format!("cpu_us_leno_none{suffix}"), cpu("leno_none"));
    for count in COUNTS {
        let (leno, envoy) = (format!("leno_routes_{count}"), format!("envoy_routes_{count}"));
        add(format!("cpu_us_{leno}{suffix}"), cpu(&leno));
        add(format!("cpu_us_{envoy}{suffix}"), cpu(&envoy));
        add(format!("cpu_vs_envoy_{count}{suffix}"), ratio(&leno, &envoy));
    }
    add(format!("routes_1_vs_none{suffix}"), ratio("leno_routes_1", "leno_none"));
    add(format!("routes_1000_vs_10{suffix}"), ratio("leno_routes_1000", "leno_routes_10"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_routes_are_in_documents_of_sixteen_rules_each() {
        let documents = documents(1000, 80);
        let rules: Vec<&Value> =
            documents[1..].iter().flat_map(|route| route["spec"]["rules"].as_array().unwrap()).collect();
        assert_eq!((documents.len(), rules.len()), (1 + 1000_usize.div_ceil(RULES), 1000));
        assert!(documents[1..].iter().all(|route| route["spec"]["rules"].as_array().unwrap().len() <= RULES));
        assert_eq!(rules[999]["matches"][0]["path"]["value"], "/");
    }
}
