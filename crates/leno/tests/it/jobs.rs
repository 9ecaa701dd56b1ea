//! Jobs from the view of a user of `leno up`: real processes, real sockets.

use leno_testkit::EtcdServer;
use leno_testkit::cluster::{MESH, Node, Place};
use leno_testkit::control::Control;
use leno_testkit::eventually;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use serde_json::Value;
use std::fs;

/// A job that runs a shell script in the folder of its document.
fn job(name: &str, script: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  command:\n  - /bin/sh\n  \
         - -c\n  - |\n    {}\n{spec}\n",
        script.replace('\n', "\n    ")
    )
}

/// A function that admits the job `report` at one path, and a function that is not among the
/// callees of the job.
fn functions() -> String {
    echo_function("callee", "")
        + &policy(
            "callee-policy",
            "callee",
            "  authorization: {rules: [{name: reports, from: [{identities: [test/report]}], to: [{paths: [/ok]}]}]}\n  \
             sidecar: {deadline: 100ms}",
        )
        + &echo_function("stranger", "")
        + &policy("stranger-open", "stranger", ALLOW_ALL)
}

/// Makes allowed and forbidden calls, and notes the statuses.
const CALLS: &str = "for url in callee/ok callee/forbidden stranger/ok; do\n  curl -s -o /dev/null -w '%{http_code} ' http://$url >> \
                     calls\ndone\necho done >> calls";

fn row(mesh: &Mesh, name: &str) -> Option<Value> {
    let listed = mesh.leno(&["get", "jobs", "--json"]);
    assert!(listed.status.success(), "{listed:?}");
    let rows: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    rows.into_iter().find(|row| row["job"] == name)
}

/// Waits for the end of a job.
fn ended(mesh: &mut Mesh, name: &str) -> Value {
    let mut last = None;
    mesh.wait_for("the end of the job", |mesh| {
        last = row(mesh, name);
        last.as_ref().is_some_and(|row| row["state"] == "succeeded" || row["state"] == "failed")
    });
    last.unwrap()
}

#[test]
fn a_job_calls_functions_with_its_identity_and_runs_once() {
    const GOOD: &str = "200 403 403 done\n";
    let report = job("report", CALLS, "  callees: [callee]");
    let mut mesh = Mesh::start(&(functions() + &report));
    let calls = mesh.folder.path().join("calls");
    let done = ended(&mut mesh, "test/report");
    assert_eq!(
        (&done["state"], &done["completions"], &done["exit_code"]),
        (&"succeeded".into(), &"1/1".into(), &0.into())
    );
    assert!(done["end"].as_f64().unwrap() >= done["start"].as_f64().unwrap(), "{done}");
    assert_eq!(fs::read_to_string(&calls).unwrap(), GOOD);
    let line = &mesh.log_lines("path", "/ok", 1)[0];
    assert_eq!(line["source"], "spiffe://test.example/ns/test/sa/report", "{line}");

    // The metrics and the events contain the job, and the list of functions does not.
    let metrics = mesh.admin("/metrics").body;
    assert!(metrics.contains("leno_job_complete{job=\"test/report\"} 1"), "{metrics}");
    let events = mesh.admin("/events").json();
    let states: Vec<&str> = events.as_array().unwrap().iter().filter_map(|event| event["to"].as_str()).collect();
    assert_eq!(states.last(), Some(&"succeeded"), "{events}");
    let functions_listed = mesh.admin("/functions").json();
    assert_eq!(functions_listed.as_array().unwrap().len(), 2, "{functions_listed}");

    // A change of other documents does not run the job again. A change of the job's document does.
    let published =
        |mesh: &Mesh| mesh.output().iter().filter(|line| line.contains("the documents have changed")).count();
    mesh.write(&(functions().replace("stranger-open", "stranger-wide") + &report));
    mesh.wait_for("the change to be published", |mesh| published(mesh) == 1);
    mesh.write(&(functions() + &job("report", CALLS, "  callees: [callee]\n  env: {EDITION: two}")));
    mesh.wait_for("the second run", |_| fs::read_to_string(&calls).unwrap() == GOOD.repeat(2));
    assert_eq!(ended(&mut mesh, "test/report")["state"], "succeeded");
}

#[test]
fn how_a_job_ended_survives_a_restart() {
    let good = job("good", "echo run >> good", "");
    let bad = job("bad", "echo run >> bad\nexit 7", "  backoffLimit: 1");
    let mut mesh = Mesh::start(&(good.clone() + &bad));
    let store = mesh.folder.path().join("control.redb");
    let runs = |mesh: &Mesh, file: &str| fs::read_to_string(mesh.folder.path().join(file)).unwrap().lines().count();
    ended(&mut mesh, "test/good");
    ended(&mut mesh, "test/bad");
    // The first mesh had no store, so all jobs run again. From here on there is a store.
    mesh.restart(&["--store", store.to_str().unwrap()]);
    ended(&mut mesh, "test/good");
    let before = ended(&mut mesh, "test/bad");
    assert_eq!((runs(&mesh, "good"), runs(&mesh, "bad")), (2, 4));
    assert_eq!((&before["state"], &before["exit_code"], &before["failed"]), (&"failed".into(), &7.into(), &2.into()));
    assert_eq!(before["reason"], "BackoffLimitExceeded: exit status: 7");

    mesh.restart(&["--store", store.to_str().unwrap()]);
    assert_eq!(row(&mesh, "test/bad").unwrap(), before);
    // The last job is published after the others. When it has ended, every job that would run again
    // has already started.
    mesh.write(&(good + &bad + &job("last", "true", "")));
    ended(&mut mesh, "test/last");
    assert_eq!((runs(&mesh, "good"), runs(&mesh, "bad")), (2, 4));
}

#[test]
fn a_job_that_is_removed_ends_with_all_that_it_started() {
    let script = "sleep 1000 & echo $! > sleeper\necho $$ > leader\nwait";
    let echo = echo_function("echo", "");
    let mut mesh = Mesh::start(&(echo.clone() + &job("long", script, "")));
    let number =
        |mesh: &Mesh, file: &str| fs::read_to_string(mesh.folder.path().join(file)).ok()?.trim().parse::<u32>().ok();
    mesh.wait_for("the job", |mesh| number(mesh, "leader").is_some());
    mesh.wait_for("the job to be listed as running", |mesh| row(mesh, "test/long").unwrap()["state"] == "running");
    let pids = [number(&mesh, "sleeper").unwrap(), number(&mesh, "leader").unwrap()];
    mesh.write(&echo);
    mesh.wait_for("the end of its processes", |_| pids.iter().all(|pid| !fs::exists(format!("/proc/{pid}")).unwrap()));
    assert_eq!(row(&mesh, "test/long"), None);
}

#[test]
fn a_job_runs_once_across_ten_leaders_that_are_killed() {
    const CHANGES: usize = 10;
    let server = EtcdServer::start();
    let authority = tempfile::tempdir().unwrap();
    let path = |name: &str| authority.path().join(name).display().to_string();
    let (mesh, ca, passphrase, etcd) = (path("mesh.yaml"), path("ca.pem"), path("passphrase"), server.address());
    fs::write(&mesh, MESH).unwrap();
    fs::write(&passphrase, "correct horse battery").unwrap();
    let arguments =
        ["--etcd", &*etcd, "--etcd-lease", "2", "--mesh", &*mesh, "--ca", &*ca, "--ca-passphrase", &*passphrase];
    let leader = Control::start(tempfile::tempdir().unwrap(), &arguments);
    let follower = Control::start_following(&leader, &arguments);
    let mut controls = [leader, follower];
    let other = controls[1].nodes();
    let _nodes =
        ["one", "two"].map(|name| Node::join_at(&Place::here(), &controls[0], name, &[], &["--control", &*other]));
    let runs = |name: &str| fs::read_to_string(path(name)).unwrap_or_default().lines().count();
    // It notes its run, and ends when the test wants it to.
    let waiting = |name: &str, exit: &str| {
        let (file, end) = (path(name), path(&format!("{name}.end")));
        job(name, &format!("echo run >> {file}\nwhile ! [ -e {end} ]; do sleep 0.1; done\n{exit}"), "  backoffLimit: 0")
    };
    let end = |name: &str| fs::write(path(&format!("{name}.end")), "").unwrap();
    let state = |control: &Control, name: &str| {
        let (_, status) = control.try_get("/v1/status")?;
        let jobs = status["jobs"].as_array()?;
        let job = jobs.iter().find(|job| job["job"] == format!("test/{name}"))?;
        Some(job["state"].as_str()?.to_owned())
    };
    let is = |control: &Control, name: &str, expected: &str| state(control, name).as_deref() == Some(expected);

    end("good");
    end("bad");
    controls[0].apply(&(waiting("good", "true") + &waiting("bad", "exit 7")));
    controls[0]
        .eventually("the end of the jobs", |control| is(control, "good", "succeeded") && is(control, "bad", "failed"));
    for change in 0..CHANGES {
        let (from, to) = (change % 2, (change + 1) % 2);
        let [during, between] = [format!("during-{change}"), format!("between-{change}")];
        controls[from].apply(&(waiting(&during, "true") + &waiting(&between, "true")));
        eventually("the jobs to run", || runs(&during) == 1 && runs(&between) == 1);
        controls[from].kill();
        // This one ends while no control plane leads.
        end(&between);
        controls[to].eventually("the other one to lead", |control| {
            control.ready().as_deref() == Some("leads\n") && is(control, &between, "succeeded")
        });
        controls[to].eventually("the job that runs to be known", |control| is(control, &during, "running"));
        end(&during);
        controls[to].eventually("the end of the job", |control| is(control, &during, "succeeded"));
        assert!(is(&controls[to], "good", "succeeded") && is(&controls[to], "bad", "failed"));
        controls[from].start_again_following();
    }
    // It starts after every job that would run again.
    end("last");
    controls[CHANGES % 2].apply(&waiting("last", "true"));
    controls[CHANGES % 2].eventually("the end of the last job", |control| is(control, "last", "succeeded"));
    let names = (0..CHANGES).flat_map(|change| [format!("during-{change}"), format!("between-{change}")]);
    for name in names.chain(["good", "bad", "last"].map(str::to_owned)) {
        assert_eq!(runs(&name), 1, "{name}");
    }
}

/// A job that notes its run in the file, writes `run N` and waits for the file `END.N`.
fn waiting_job(name: &str, folder: &str) -> String {
    let script = format!(
        "echo x >> {folder}/{name}\nn=$(wc -l < {folder}/{name})\necho run $n\nwhile ! [ -e {folder}/{name}.end.$n ]; do sleep 0.1; done"
    );
    job(name, &script, "  backoffLimit: 0")
}

#[test]
fn an_ended_job_runs_once_more_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let runs = || fs::read_to_string(folder.path().join("report")).unwrap_or_default().lines().count();
    let end = |run: usize| fs::write(folder.path().join(format!("report.end.{run}")), "").unwrap();
    let document = waiting_job("report", path);
    let mut mesh = Mesh::start(&document);
    let rerun = |mesh: &Mesh| {
        let output = mesh.leno(&["rerun", "job", "test/report"]);
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    mesh.wait_for("the first run", |_| runs() == 1);
    let (done, told) = rerun(&mesh);
    assert!(!done && told.contains("has not ended"), "{told}");
    end(1);
    ended(&mut mesh, "test/report");
    let (done, told) = rerun(&mesh);
    assert!(done && told.contains("test/report: attempt 2 begins"), "{told}");
    mesh.wait_for("the second run", |_| runs() == 2);
    assert!(!rerun(&mesh).0, "it runs");
    end(2);
    let row = ended(&mut mesh, "test/report");
    assert_eq!((&row["attempt"], &row["state"]), (&2.into(), &"succeeded".into()), "{row}");
    // Each run has its output, and the last one is shown without a number.
    let logs = |more: &[&str]| {
        let output = mesh.leno(&[&["logs", "test/report"], more].concat());
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    for (more, of_run) in [(&["--attempt", "1"][..], 1), (&["--attempt", "2"], 2), (&[], 2)] {
        let shown = logs(more);
        let is_shown = |run: usize| shown.contains(&format!("run {run}"));
        assert!(is_shown(of_run) && !is_shown(3 - of_run), "{more:?}: {shown}");
    }
    assert!(logs(&["--attempt", "3"]).contains("there is no"), "{}", logs(&["--attempt", "3"]));
    let events = mesh.admin("/events").json();
    let by_hand = |event: &Value| event["reason"] == "attempt 2: run again by hand";
    assert!(events.as_array().unwrap().iter().any(by_hand), "{events}");
    assert!(String::from_utf8(mesh.leno(&["rerun", "job", "test/none"]).stderr).unwrap().contains("there is no job"));
}

#[test]
fn a_job_that_is_run_again_runs_once_whoever_leads() {
    let server = EtcdServer::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (mesh, ca, passphrase, etcd) = (path("mesh.yaml"), path("ca.pem"), path("passphrase"), server.address());
    fs::write(&mesh, MESH).unwrap();
    fs::write(&passphrase, "correct horse battery").unwrap();
    let arguments =
        ["--etcd", &*etcd, "--etcd-lease", "2", "--mesh", &*mesh, "--ca", &*ca, "--ca-passphrase", &*passphrase];
    let leader = Control::start(tempfile::tempdir().unwrap(), &arguments);
    let follower = Control::start_following(&leader, &arguments);
    let mut controls = [leader, follower];
    let other = controls[1].nodes();
    let _nodes =
        ["one", "two"].map(|name| Node::join_at(&Place::here(), &controls[0], name, &[], &["--control", &*other]));
    let runs = || fs::read_to_string(path("report")).unwrap_or_default().lines().count();
    let end = |run: usize| fs::write(path(&format!("report.end.{run}")), "").unwrap();
    let is = |control: &Control, state: &str, attempt: u64| {
        let job = control.try_get("/v1/status").map(|(_, status)| status["jobs"][0].clone()).unwrap_or_default();
        job["state"] == state && job["attempt"] == attempt
    };
    controls[0].apply(&waiting_job("report", &path("")));
    end(1);
    controls[0].eventually("the end of the job", |control| is(control, "succeeded", 1));

    // Those who may not change the namespace may not run its jobs.
    let token = |arguments: &[&str]| {
        let made = controls[0].leno(&[&["token", "create", "--role"], arguments].concat());
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let (reader, stranger) = (token(&["reader"]), token(&["editor", "--namespace", "other"]));
    let rerun = "/v1/jobs/test/report/rerun";
    for token in [&reader, &stranger] {
        assert_eq!(controls[0].post(token, rerun, &Value::Null).0, 403);
    }
    let (status, answer) = controls[0].post(&controls[0].token(), rerun, &Value::Null);
    assert_eq!((status, &answer["attempt"]), (200, &2.into()), "{answer}");
    assert_eq!(controls[0].post(&controls[0].token(), rerun, &Value::Null).0, 409);
    // The leader may die before a node has heard of the run, and while it runs.
    controls[0].kill();
    controls[1].eventually("the other one to lead", |control| {
        control.ready().as_deref() == Some("leads\n") && is(control, "running", 2) && runs() == 2
    });
    controls[0].start_again_following();
    controls[1].kill();
    end(2);
    controls[0].eventually("the end of the second run", |control| is(control, "succeeded", 2));
    controls[1].start_again_following();
    let audit = controls[0].leno(&["get", "audit", "--json"]);
    assert!(String::from_utf8(audit.stdout).unwrap().contains("attempt 2 of job test/report"));
    // The run of the first attempt was known to the node alone, which still has its output.
    let shown = |attempt: &str| {
        let output = controls[0].leno(&["logs", "test/report", "--attempt", attempt]);
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert!(shown("2").contains("run 2"), "{}", shown("2"));
    assert!(shown("1").contains("run 1"), "{}", shown("1"));
    // A job that starts after every job that would run again.
    controls[0].apply(&job("last", "true", ""));
    controls[0].eventually("the end of the last job", |control| {
        let jobs = control.try_get("/v1/status").map(|(_, status)| status["jobs"].clone()).unwrap_or_default();
        jobs.as_array()
            .is_some_and(|jobs| jobs.iter().any(|job| job["job"] == "test/last" && job["state"] == "succeeded"))
    });
    assert_eq!(runs(), 2);
}
