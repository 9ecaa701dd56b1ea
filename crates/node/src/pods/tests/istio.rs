//! Istio's own client of HBONE, which calls a captured pod (`make conformance-hbone`).

use super::machine::{CART, Machine, Place, may_run};
use super::{TRUST_DOMAIN, pod};
use leno_model::PodMode;
use leno_testkit::keys::CertificateAuthority;
use rcgen::{Certificate, KeyPair};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// The folder with Istio's programs `client` and `server`.
const PROGRAMS: &str = "LENO_HBONE_PROGRAMS";

fn identity(trust_domain: &str, name: &str) -> String {
    format!("spiffe://{trust_domain}/ns/shop/sa/{name}")
}

/// Istio's client, on a machine.
struct Client<'a> {
    program: PathBuf,
    place: &'a Place,
    folder: TempDir,
}

impl Client<'_> {
    /// Calls the page of the cart through a tunnel. Returns all that the client prints.
    fn call(&self, certificate: Option<(Certificate, KeyPair)>, authority: &str, to: &str) -> String {
        let mut command = Command::new(&self.program);
        command.args(["--hbone", to, "--hbone-insecure-skip-verify", "--timeout", "20s"]);
        if let Some((certificate, key)) = certificate {
            let paths = ["pem", "key"].map(|kind| self.folder.path().join("client").with_extension(kind));
            fs::write(&paths[0], certificate.pem()).unwrap();
            fs::write(&paths[1], key.serialize_pem()).unwrap();
            command.arg("--hbone-client-cert").arg(&paths[0]).arg("--hbone-client-key").arg(&paths[1]);
        }
        command.arg(format!("http://{authority}/a"));
        let output = self.place.run(move || command.output().unwrap());
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
    }
}

#[test]
fn a_captured_pod_takes_tunnels_of_istios_client() {
    let Some(programs) = std::env::var_os(PROGRAMS) else {
        return eprintln!("SKIPPED: {PROGRAMS} names no folder; `make conformance-hbone` sets it");
    };
    if !may_run() {
        return;
    }
    let root = CertificateAuthority::of_trust_domain(TRUST_DOMAIN);
    let machine = Machine::start_under(&root);
    let cart_pod = pod("cart", CART, PodMode::Enforced);
    machine.add(&cart_pod, &machine.cart);
    let folder = tempfile::tempdir().unwrap();
    let client = Client { program: PathBuf::from(programs).join("client"), place: &machine.elsewhere, folder };
    let (page, tunnels) = (format!("{}:80", machine.cart.address), format!("{}:15008", machine.cart.address));
    let shows = |id: &str| Some(root.workload(id, |_| ()));
    let web = identity(TRUST_DOMAIN, "web");

    let allowed = client.call(shows(&web), &page, &tunnels);
    let caller = format!("URI={web}");
    let from = format!("client: {}", machine.elsewhere.address);
    assert!(allowed.contains("200") && allowed.contains(&caller) && allowed.contains(&from), "{allowed}");
    let denied = client.call(shows(&identity(TRUST_DOMAIN, "other")), &page, &tunnels);
    assert!(denied.contains("401 Unauthorized"), "{denied}");
    let misdirected = client.call(shows(&web), &format!("{}:80", machine.elsewhere.address), &tunnels);
    assert!(misdirected.contains("400 Bad Request"), "{misdirected}");
    let closed = client.call(shows(&web), &format!("{}:81", machine.cart.address), &tunnels);
    assert!(closed.contains("503 Service Unavailable"), "{closed}");

    let strangers = CertificateAuthority::of_trust_domain(TRUST_DOMAIN);
    let expired = root.workload(&web, |params| params.not_after = rcgen::date_time_ymd(2024, 1, 1));
    for (certificate, reason) in [
        (shows(&identity("other.example", "web")), "unknown certificate"),
        (Some(strangers.workload(&web, |_| ())), "unknown certificate authority"),
        (Some(expired), "expired certificate"),
        (None, "certificate required"),
    ] {
        let refused = client.call(certificate, &page, &tunnels);
        assert!(refused.contains(reason) && !refused.contains("StatusCode=200"), "{reason}: {refused}");
    }
}
