//! Remedies of key sets that give no keys.

use super::*;
use crate::state::tokens::KeySetProblem;
use leno_testkit::keys::CertificateAuthority;
use rcgen::DnType;

/// The problem of the key set at this address, after the first fetch.
async fn problem_of(url: &str, ca_file: Option<&Path>, timeout: Duration) -> KeySetProblem {
    let reports = Arc::new(KeySetReports::default());
    let (fetcher, _updates) = JwksFetcher::start(reports.clone(), guard(), Pace::default());
    let mut config = config("shop/orders", url);
    (config.jwks[0].ca_file, config.jwks[0].timeout) = (ca_file.map(Path::to_owned), timeout);
    fetcher.follow(config);
    eventually_async("a problem", || !reports.failed().is_empty()).await;
    let failure = reports.failed().pop().unwrap();
    assert_eq!((failure.function.to_string().as_str(), &*failure.url), ("shop/orders", url));
    failure.problem
}

const LONG: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_refused_certificate_of_the_issuer_has_the_remedy_that_helps() {
    let folder = std::env::temp_dir().join(format!("leno-jwks-problems-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let params = |names: &[&str], years: [i32; 2]| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        [params.not_before, params.not_after] = years.map(|year| rcgen::date_time_ymd(year, 1, 1));
        params
    };
    let stranger = CertificateAuthority::with(|params| params.distinguished_name.push(DnType::CommonName, "other"));
    let renew = "the issuer has to renew the certificate of its server localhost:";
    for (number, (params, is_trusted, reason, fix)) in [
        (params(&["localhost"], [2001, 2024]), true, "has expired at Jan  1 00:00:00 2024", renew),
        (
            params(&["localhost"], [2090, 2091]),
            true,
            "not valid before Jan  1 00:00:00 2090",
            "set the clock of the node",
        ),
        (params(&["other.example"], [2001, 2091]), true, "other.example", "name a host of the certificate"),
        (params(&["localhost"], [2001, 2091]), false, "no trusted root has signed", "`jwks.caFile`"),
    ]
    .into_iter()
    .enumerate()
    {
        let (tls, authority) = serving(params);
        let server = Server::start_with(&[ok(&key_set("one"))], Some(tls)).await;
        let roots = if is_trusted { authority } else { stranger.pem() };
        let file = folder.join(format!("{number}.pem"));
        std::fs::write(&file, roots).unwrap();
        let problem = problem_of(&server.url, Some(&file), LONG).await;
        assert!(problem.reason.contains(reason), "{problem:?}");
        assert!(problem.fix.contains(fix), "{problem:?}");
        assert_eq!(problem.fix.contains("caFile"), !is_trusted, "{problem:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn an_answer_that_is_no_key_set_has_the_remedy_that_helps() {
    let status = |line: &str| format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n");
    let well_known = "/.well-known/openid-configuration";
    for (answer, fix, is_empty) in [
        (status("404 Not Found"), "correct the path in `jwks.url`", false),
        (status("401 Unauthorized"), "without credentials", false),
        (status("302 Found\r\nlocation: /other"), "name the final address", false),
        (status("503 Busy"), "look at the log of the server", false),
        (ok("<html>"), well_known, false),
        (ok("{}"), well_known, false),
        (ok(r#"{"keys": []}"#), "publish a signing key", true),
        (ok(r#"{"keys": [{"kty": "oct", "k": "AA"}]}"#), "publish a signing key", true),
    ] {
        let server = Server::start(std::slice::from_ref(&answer)).await;
        let problem = problem_of(&server.url, None, LONG).await;
        assert!(problem.fix.contains(fix) && problem.is_empty == is_empty, "{answer}: {problem:?}");
    }
}

#[tokio::test]
async fn an_issuer_that_cannot_be_reached_has_the_remedy_that_helps() {
    let refused = problem_of("http://127.0.0.1:1/keys", None, LONG).await;
    assert!(refused.fix.contains("nothing listens there"), "{refused:?}");
    let (url, _) = silent().await;
    let slow = problem_of(&url, None, Duration::from_millis(20)).await;
    assert!(slow.reason.starts_with("nothing within") && slow.fix.contains("firewalls"), "{slow:?}");
    let unknown = problem_of("http://login.invalid/keys", None, LONG).await;
    assert!(unknown.fix.contains("correct the host login.invalid"), "{unknown:?}");
}

#[tokio::test]
async fn a_problem_keeps_the_time_of_the_first_failure_and_ends_with_success() {
    let reports = KeySetReports::default();
    let (id, url) = ("shop/orders".parse::<FunctionId>().unwrap(), "http://login.example/keys");
    let problem = |reason: &str| KeySetProblem { reason: reason.to_owned(), fix: String::new(), is_empty: false };
    reports.fetched(&id, url, Some(&problem("first")));
    let first = reports.failed().pop().unwrap();
    reports.fetched(&id, url, Some(&problem("second")));
    let second = reports.failed().pop().unwrap();
    assert_eq!((&*second.problem.reason, second.since), ("second", first.since));
    reports.fetched(&id, url, None);
    assert_eq!(reports.failed(), []);
}
