//! The meshes in which the cases run: one process, or a gateway and nodes behind it.

use super::table::{self, GATEWAY, GatewayPorts, Group};
use leno_testkit::cluster::{MESH, Node, Place, control_with};
use leno_testkit::control::Control;
use leno_testkit::keys::CertificateAuthority;
use leno_testkit::mesh::Mesh;
use leno_testkit::{eventually, free_port, leno_program};
use serde_json::Value;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

/// A running mesh with the routes of some groups.
pub(crate) struct Running {
    pub name: &'static str,
    pub gateway: SocketAddr,
    /// The address for TLS, and the certificate of its authority.
    pub https: Option<(SocketAddr, String)>,
    processes: Processes,
}

enum Processes {
    One { mesh: Mesh, documents: String },
    Several { control: Control, _nodes: Vec<Node> },
}

/// The documents of these groups, with their functions.
fn documents(groups: &[&Group]) -> String {
    // A namespace with routes for all hosts is the only one with hosts.
    if let [group @ Group { mesh: Some(_), .. }] = groups {
        return table::backends("test") + &group.documents();
    }
    let callees: Vec<&String> = groups.iter().flat_map(|group| group.callees()).collect();
    table::functions(&callees) + &groups.iter().map(|group| group.documents()).collect::<String>()
}

impl Running {
    /// The ports of the gateway.
    pub(crate) fn ports(&self) -> GatewayPorts {
        let https = self.https.as_ref().map_or(0, |(address, _)| address.port());
        GatewayPorts { http: self.gateway.port(), https }
    }

    /// `leno up` with a gateway for requests with and without TLS.
    pub(crate) fn one(groups: &[&Group], more: &str) -> Self {
        let documents = format!("{GATEWAY}{}", documents(groups));
        let (https, authority) = (free_port(), CertificateAuthority::default());
        let running = Mesh::start_with_command(Command::new(leno_program()), more, &documents, |folder| {
            let file = folder.join("mesh.yaml");
            let text = fs::read_to_string(&file).unwrap();
            let (before, rest) = text.split_once("gateway: {http: \"127.0.0.1:").unwrap();
            let (http, after) = rest.split_once("\"}").unwrap();
            authority.write(folder, "gateway", &["*.example", "*.secure.example", "*.isolated.example"]);
            let tls = format!("https: {{listen: \"127.0.0.1:{https}\", certificate: gateway.pem, key: gateway.key}}");
            fs::write(&file, format!("{before}gateway: {{http: \"127.0.0.1:{http}\", {tls}}}{after}")).unwrap();
            let ports = GatewayPorts { http: http.parse().unwrap(), https };
            fs::write(folder.join("app.yaml"), ports.fill(&documents)).unwrap();
        });
        let gateway = SocketAddr::from((Ipv4Addr::LOCALHOST, running.ports.gateway));
        let https = Some((SocketAddr::from((Ipv4Addr::LOCALHOST, https)), authority.pem()));
        let processes = Processes::One { mesh: running, documents };
        Self { name: "one process", gateway, https, processes }
    }

    /// Replaces a text in the documents of `leno up`.
    pub(crate) fn replace(&self, from: &str, to: &str) {
        let Processes::One { mesh, documents } = &self.processes else { panic!("one process") };
        assert!(documents.contains(from), "the documents have no {from}");
        mesh.write(&self.ports().fill(&documents.replace(from, to)));
    }

    /// The hops of a request, as `leno explain` tells them.
    pub(crate) fn explain(&self, id: &str) -> Vec<Value> {
        let arguments = ["explain", id, "--json"];
        let output = match &self.processes {
            Processes::One { mesh, .. } => mesh.leno(&arguments),
            Processes::Several { control, .. } => control.leno(&arguments),
        };
        // Until there is a hop, the command fails.
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// The lines of the access log about a request, once there are so many; `None`: the mesh has
    /// several logs.
    pub(crate) fn log(&mut self, id: &str, count: usize) -> Option<Vec<Value>> {
        let Processes::One { mesh, .. } = &mut self.processes else { return None };
        Some(mesh.log_lines("request_id", id, count))
    }

    /// A control plane, a gateway, a node with the functions that call, and one with the others.
    pub(crate) fn nodes(groups: &[&Group]) -> Self {
        let port = free_port();
        let gateway = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let control = control_with(Ipv4Addr::LOCALHOST, &format!("{MESH}  gateway: {{http: \"{gateway}\"}}\n"));
        let address = gateway.to_string();
        let edge = Node::join_at(&Place::here(), &control, "edge", &["--only-gateway"], &["--gateway-http", &address]);
        let node = Node::join(&control, "one", &[]);
        let callers = table::callers(&[]);
        control.apply(&callers.lines().filter(|line| !line.starts_with("  callees:")).collect::<Vec<_>>().join("\n"));
        let is_ready = |(namespace, name): &(&str, &str)| {
            let (_, status) = control.get("/v1/status");
            let mut functions = status["functions"].as_array().into_iter().flatten();
            let of = functions.find(|row| row["function"] == format!("{namespace}/{name}"));
            of.is_some_and(|row| row["instances"][0]["state"] == "ready")
        };
        eventually("the callers' instances", || table::CALLERS.iter().all(is_ready));
        assert!(control.leno(&["nodes", "cordon", "one"]).status.success());
        let other = Node::join(&control, "two", &[]);
        let documents = format!("{GATEWAY}{}", documents(groups));
        let applied = control.apply(&GatewayPorts { http: port, https: 0 }.fill(&documents));
        assert!(applied.status.success(), "{applied:?}");
        let processes = Processes::Several { control, _nodes: vec![edge, node, other] };
        Self { name: "nodes", gateway, https: None, processes }
    }
}
