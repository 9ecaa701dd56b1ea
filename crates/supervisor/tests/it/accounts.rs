//! Instances of each namespace under a separate account. Only root can do that.

use crate::support::*;
use leno_model::FunctionId;
use leno_model::NamespaceBounds;
use leno_model::Secret;
use leno_supervisor::{Accounts, AcquireError, Function, FunctionSpec, Settings, Supervisor};
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const FIRST: u32 = 70_000;

fn supervisor() -> Option<Supervisor> {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can start programs under other accounts");
        return None;
    }
    let runs = Command::new(SERVER).uid(FIRST).gid(FIRST).stderr(Stdio::null()).status().is_ok();
    if !runs {
        eprintln!("SKIPPED: other accounts cannot reach {SERVER}");
        return None;
    }
    let settings = Settings { accounts: Accounts::per_namespace(FIRST), cgroups: true, ..settings() };
    Some(Supervisor::start(settings, ()))
}

fn of(namespace: &str, command: leno_model::Command) -> FunctionSpec {
    FunctionSpec { id: FunctionId::new(namespace, "server").unwrap(), ..spec(command) }
}

/// The process of a function that is ready.
async fn process(supervisor: &Supervisor, function: &Function) -> u32 {
    drop(function.acquire(&[]).await.unwrap());
    supervisor.instances(function.id())[0].pid.unwrap()
}

fn status(pid: u32, field: &str) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_ascii_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// Whether a process of this account can read a file.
fn can_read(account: u32, file: &str) -> bool {
    let mut cat = Command::new("cat");
    let output = cat.arg(file).uid(account).gid(account).current_dir("/").output().unwrap();
    output.status.success()
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_cannot_read_each_others_memory_environment_and_secrets() {
    let Some(supervisor) = supervisor() else { return };
    // Only its owner may read it.
    let file = tempfile::NamedTempFile::new().unwrap();
    let from = file.path().to_owned();
    fs::write(&from, "swordfish").unwrap();
    let mut secretive = command(&[SERVER]);
    secretive.secrets = vec![Secret { name: "token".to_owned(), from: from.clone().into(), environment: false }];
    let first = supervisor.apply(of("first", secretive.clone()));
    // With limits, the process joins a control group before it switches to its account and program.
    secretive.resources.pids = 100;
    let limited = FunctionSpec { id: FunctionId::new("first", "limited").unwrap(), ..spec(secretive) };
    let limited = supervisor.apply(limited);
    let second = supervisor.apply(of("second", command(&[SERVER])));
    let (one, same, two) =
        (process(&supervisor, &first).await, process(&supervisor, &limited).await, process(&supervisor, &second).await);

    let accounts = [one, same, two].map(|pid| {
        let (user, group) = (status(pid, "Uid:"), status(pid, "Gid:"));
        assert!(user == group && user.iter().all(|id| *id == user[0]), "{user:?} {group:?}");
        assert_eq!(status(pid, "Groups:"), [0; 0]);
        user[0]
    });
    assert!(accounts.iter().all(|account| (FIRST..FIRST + 10_000).contains(account)), "{accounts:?}");
    assert_eq!(accounts[0], accounts[1], "one namespace, one account");
    assert_ne!(accounts[0], accounts[2]);

    let environment = get(first.endpoints()[0].1, "/env").unwrap();
    let folder = environment.lines().find_map(|line| line.strip_prefix("LENO_SECRETS=")).unwrap().to_owned();
    let secret = format!("{folder}/token");
    for (file, owner, other) in [
        (format!("/proc/{one}/environ"), accounts[0], accounts[2]),
        (format!("/proc/{two}/environ"), accounts[2], accounts[0]),
        (format!("/proc/{one}/maps"), accounts[0], accounts[2]),
        (secret.clone(), accounts[0], accounts[2]),
    ] {
        assert!(can_read(owner, &file), "{file} is the account {owner}'s");
        assert!(!can_read(other, &file), "{file} is not the account {other}'s");
        assert!(!can_read(65534, &file), "{file} is nobody's");
    }
    let mode = |path: &str| fs::metadata(path).map(|it| (it.permissions().mode() & 0o777, it.uid(), it.gid())).unwrap();
    assert_eq!(mode(&folder), (0o700, accounts[0], accounts[0]));
    assert_eq!(mode(&secret), (0o600, accounts[0], accounts[0]));
    supervisor.shutdown(FOREVER).await;
    assert!(!PathBuf::from(folder).exists());
    fs::remove_file(from).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespaces_processes_are_counted_by_its_account() {
    let Some(supervisor) = supervisor() else { return };
    let limit = |pid: u32| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max processes")).unwrap();
        line.split_whitespace().take(2).map(|number| number.parse::<u32>().unwrap()).collect::<Vec<_>>()
    };
    let by_default = supervisor.apply(of("default", command(&[SERVER])));
    assert_eq!(limit(process(&supervisor, &by_default).await), [4096, 4096]);
    supervisor.bound("bounded", &NamespaceBounds { pids: Some(20), ..NamespaceBounds::default() });
    let bounded = supervisor.apply(of("bounded", command(&[SERVER])));
    let pid = process(&supervisor, &bounded).await;
    if limit(pid) == [4096, 4096] {
        eprintln!("SKIPPED: there are no control groups here, and so no bounds");
    } else {
        assert_eq!(limit(pid), [20, 20]);
    }
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_account_cannot_reach_is_told_with_the_way_out() {
    let Some(supervisor) = supervisor() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().to_owned();
    let program = folder.join("server");
    fs::copy(SERVER, &program).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let mut closed_directory = command(&[SERVER]);
    closed_directory.directory = folder.clone();
    let closed_program = command(&[program.to_str().unwrap()]);
    for (namespace, command) in [("directory", closed_directory), ("program", closed_program)] {
        let function = supervisor.apply(of(namespace, command));
        let AcquireError::Start { reason } = function.acquire(&[]).await.unwrap_err() else { panic!("{namespace}") };
        for part in [folder.to_str().unwrap(), "runs under the account 7", "chmod o+x", "accounts: node"] {
            assert!(reason.contains(part), "{namespace}: {part} is not in: {reason}");
        }
    }
    supervisor.shutdown(FOREVER).await;
}
