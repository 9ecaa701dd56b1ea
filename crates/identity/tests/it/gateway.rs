//! TLS of the gateway: versions and protocols over a real socket, and errors that name the file at fault.

use crate::support::exchange;
use leno_identity::{ServerCertificates, TlsError, gateway_server_config};
use leno_model::CertificateFiles;
use rcgen::{CertificateParams, KeyPair};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Files {
    folder: tempfile::TempDir,
    certificate: PathBuf,
    key: PathBuf,
    root: RootCertStore,
}

fn files() -> Files {
    files_for("shop.example")
}

fn files_for(name: &str) -> Files {
    let folder = tempfile::tempdir().unwrap();
    let pair = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([name.to_owned()]).unwrap().self_signed(&pair).unwrap();
    let mut root = RootCertStore::empty();
    root.add(certificate.der().clone()).unwrap();
    let files = Files { certificate: folder.path().join("cert.pem"), key: folder.path().join("key.pem"), root, folder };
    fs::write(&files.certificate, certificate.pem()).unwrap();
    fs::write(&files.key, pair.serialize_pem()).unwrap();
    files
}

fn client(files: &Files, version: &'static SupportedProtocolVersion, protocol: &str) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(files.root.clone())
        .with_no_client_auth();
    client.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Arc::new(client)
}

fn server(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let files = CertificateFiles { certificate: certificate.to_owned(), key: key.to_owned() };
    gateway_server_config(ServerCertificates::read([files])?)
}

#[test]
fn both_versions_and_both_protocols() {
    let files = files();
    let server = server(&files.certificate, &files.key).unwrap();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for protocol in ["h2", "http/1.1"] {
            let (client_saw, server_saw) = exchange(server.clone(), client(&files, version, protocol), "shop.example");
            assert_eq!(client_saw.unwrap().alpn.as_deref(), Some(protocol.as_bytes()));
            assert_eq!(server_saw.unwrap().identity, None, "a client from outside has no identity");
        }
    }
}

#[test]
fn errors_name_the_file() {
    let good = files();
    let other = files();
    let text = |certificate: &PathBuf, key: &PathBuf| server(certificate, key).unwrap_err().to_string();
    let absent = good.folder.path().join("absent.pem");
    let error = text(&absent, &good.key);
    assert!(error.starts_with(&absent.display().to_string()) && error.contains("No such file"), "{error}");
    assert!(text(&good.certificate, &absent).starts_with(&absent.display().to_string()));

    let error = text(&good.key, &good.key);
    assert!(error.starts_with(&good.key.display().to_string()) && error.contains("no certificate in it"), "{error}");
    let error = text(&good.certificate, &good.certificate);
    assert!(
        error.starts_with(&good.certificate.display().to_string()) && error.contains("no private key in it"),
        "{error}"
    );
    let error = text(&good.certificate, &other.key);
    assert!(error.starts_with(&other.key.display().to_string()), "{error}");
    assert!(error.contains("does not belong to the certificate in") && error.contains("cert.pem"), "{error}");

    let rubbish = good.folder.path().join("rubbish.pem");
    fs::write(&rubbish, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let error = text(&rubbish, &good.key);
    assert!(
        error.starts_with(&rubbish.display().to_string()) && error.contains("certificate 1 in it is not X.509"),
        "{error}"
    );
    fs::write(&rubbish, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
    assert!(text(&good.certificate, &rubbish).starts_with(&rubbish.display().to_string()));
}

#[test]
fn each_client_gets_the_certificate_of_the_name_that_it_asks_for() {
    let sets = ["shop.example", "*.api.example", "a.api.example"].map(files_for);
    let list =
        sets.iter().map(|files| CertificateFiles { certificate: files.certificate.clone(), key: files.key.clone() });
    let server = gateway_server_config(ServerCertificates::read(list).unwrap()).unwrap();
    for (name, expected) in [("shop.example", 0), ("b.api.example", 1), ("A.api.Example", 2)] {
        let (client_saw, _) = exchange(server.clone(), client(&sets[expected], &rustls::version::TLS13, "h2"), name);
        client_saw.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for name in ["c.b.api.example", "api.example", "other.example"] {
        let (client_saw, _) = exchange(server.clone(), client(&sets[0], &rustls::version::TLS13, "h2"), name);
        assert!(client_saw.unwrap_err().contains("shop.example"), "{name} gets the first");
    }
}

#[test]
fn files_are_read_again_when_they_change() {
    let files = files();
    let list = [CertificateFiles { certificate: files.certificate.clone(), key: files.key.clone() }];
    let certificates = ServerCertificates::read(list).unwrap();
    let server = gateway_server_config(certificates.clone()).unwrap();
    let wait_for = |what: &str, condition: &dyn Fn() -> bool| {
        for _ in 0..600 {
            if condition() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("timed out waiting for {what}");
    };
    let accepts = |files: &Files| {
        exchange(server.clone(), client(files, &rustls::version::TLS13, "h2"), "shop.example").0.is_ok()
    };
    let renewed = files_for("shop.example");
    fs::copy(&renewed.certificate, &files.certificate).unwrap();
    let fault = || certificates.list()[0].fault.clone();
    wait_for("the key of another certificate to be told", &|| fault().is_some_and(|fault| fault.contains("belong")));
    assert!(accepts(&files), "the certificate before stays in use");
    fs::copy(&renewed.key, &files.key).unwrap();
    wait_for("the new certificate", &|| accepts(&renewed));
    assert!(fault().is_none() && !accepts(&files));
    fs::remove_file(&files.key).unwrap();
    wait_for("the missing key to be told", &|| fault().is_some_and(|fault| fault.contains("key.pem")));
    assert!(accepts(&renewed));
}

#[test]
fn errors_show_nothing_of_a_damaged_key() {
    let good = files();
    let pem = fs::read_to_string(&good.key).unwrap();
    let secret: Vec<&str> = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let damaged = [
        pem.replace("-----END PRIVATE KEY-----", ""),
        pem.replace("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY"),
        pem.replacen(secret[0], &format!("{}!", secret[0]), 1),
        pem.replacen(secret[0], &secret[0][4..], 1),
    ];
    for text in damaged {
        fs::write(&good.key, text).unwrap();
        let error = server(&good.certificate, &good.key).unwrap_err();
        for shown in [error.to_string(), format!("{error:?}")] {
            assert!(shown.contains("key.pem"), "{shown}");
            assert!(secret.iter().all(|line| !shown.contains(&line[4..])), "{shown}");
        }
    }
}
