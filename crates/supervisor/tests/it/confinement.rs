//! The environment and limits of instances, with real child processes.

use crate::support::*;
use leno_model::{Command, Resources, Secret};
use leno_supervisor::{AcquireError, Settings, Supervisor};
use leno_testkit::process::is_running;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::NamedTempFile;

/// A file that holds a secret, for the length of a test.
struct Vault(NamedTempFile);

impl Vault {
    fn new(value: &str) -> Self {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(&file, value).unwrap();
        Self(file)
    }

    fn secret(&self, name: &str, environment: bool) -> Secret {
        Secret { name: name.to_owned(), from: self.0.path().to_owned().into(), environment }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_reach_their_instance_and_go_with_it() {
    let witness = Witness::default();
    let vault = Vault::new("swordfish\n");
    let secrets = vec![vault.secret("TOKEN", true), vault.secret("token", false)];
    let (supervisor, function) = start(&witness, Command { secrets, ..command(&[SERVER]) });
    let lease = function.acquire(&[]).await.unwrap();
    let answer = get(lease.address(), "/env").unwrap();
    let environment: BTreeMap<_, _> = answer.lines().filter_map(|line| line.split_once('=')).collect();
    assert_eq!(environment["TOKEN"], "swordfish");
    let folder = Path::new(environment["LENO_SECRETS"]).to_owned();
    assert_eq!(std::fs::read_to_string(folder.join("token")).unwrap(), "swordfish\n");
    drop(lease);
    supervisor.shutdown(FOREVER).await;
    assert!(!folder.exists());
    let told = format!("{:?} {:?}", witness.events(), function.status());
    assert!(!told.contains("swordfish"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_cannot_be_read_is_named_and_nothing_starts() {
    let witness = Witness::default();
    let vault = Vault::new("swordfish");
    let secrets = vec![vault.secret("TOKEN", true)];
    let missing = vault.0.path().to_owned();
    drop(vault);
    let (supervisor, function) = start(&witness, Command { secrets, ..command(&[SERVER]) });
    let error = function.acquire(&[]).await.unwrap_err();
    let AcquireError::Start { reason } = &error else { panic!("{error:?}") };
    assert!(reason.contains("secret `TOKEN`") && reason.contains(&missing.display().to_string()), "{reason}");
    assert_eq!(witness.starts(), 0);
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_enforced_or_it_is_told_why_not() {
    let resources = Resources { memory: 64 << 20, cpu_millis: 500, pids: 32 };
    let limited = spec(Command { resources, ..command(&[SERVER]) });
    let without = Supervisor::start(settings(), ());
    let function = without.apply(limited.clone());
    drop(function.acquire(&[]).await.unwrap());
    assert!(function.status().unenforced.unwrap().contains("no control groups"));
    without.shutdown(FOREVER).await;

    let supervisor = Supervisor::start(Settings { cgroups: true, ..settings() }, ());
    let function = supervisor.apply(limited);
    drop(function.acquire(&[]).await.unwrap());
    let pid = supervisor.instances(&id())[0].pid.unwrap();
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    match function.status().unenforced {
        None => {
            assert!(group.contains("/leno-node-") && !group.ends_with("/main"), "{groups}");
        }
        // This system lacks a required feature; the test can only see that the reason is reported.
        Some(reason) => assert!(!reason.is_empty()),
    }
    supervisor.shutdown(FOREVER).await;
    assert!(!is_running(pid));
}
