//! Processes that detach themselves from their instance end with it.
//!
//! This is a program apart from the other tests, because all children of the process have to be instances.

#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/support.rs"]
mod support;

use leno_supervisor::{Settings, Supervisor};
use leno_testkit::eventually_async;
use leno_testkit::process::is_running;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use support::*;

/// Starts one process for each way to detach. Each of them writes its number into the folder, then
/// serves.
fn detaching() -> &'static str {
    "import os,socket,sys,time
folder=sys.argv[1]
def note(name):
    with open(os.path.join(folder,'.'+name),'w') as f: f.write(str(os.getpid()))
    os.rename(os.path.join(folder,'.'+name),os.path.join(folder,name))
def child():
    if os.fork()==0: return True
    return False
if child():
    os.setsid()
    note('session')
    time.sleep(1000)
if child():
    os.setsid()
    if os.fork(): os._exit(0)
    note('daemon')
    time.sleep(1000)
if child():
    os.setsid()
    if os.fork(): os._exit(0)
    if os.fork():
        os.execvpe('sh',['sh','-c','echo $$ > $0/.scrubbed && mv $0/.scrubbed $0/scrubbed && sleep 1000; true',folder],{'PATH':os.environ['PATH']})
    note('grandchild')
    time.sleep(1000)
l=socket.create_server(('127.0.0.1',int(os.environ['PORT'])))
while True:
    s,_=l.accept()
    s.recv(1000)
    s.close()
"
}

const WAYS: [&str; 4] = ["session", "daemon", "scrubbed", "grandchild"];

async fn all_end_with_their_instance(settings: Settings, name: &str) {
    if std::process::Command::new("python3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: no python3");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let supervisor = Supervisor::start(settings, ());
    let mut command = command(&["python3", "-c", detaching(), folder.path().to_str().unwrap()]);
    command.grace = Duration::ZERO;
    let function = supervisor.apply(spec(command));
    drop(function.acquire(&[]).await.unwrap());
    let number = |way: &str| fs::read_to_string(folder.path().join(way)).ok()?.trim().parse::<u32>().ok();
    eventually_async("all have detached themselves", || WAYS.iter().all(|way| number(way).is_some())).await;
    let numbers = WAYS.map(|way| number(way).unwrap());
    assert!(numbers.iter().all(|number| is_running(*number)), "they outlive their parents");
    supervisor.shutdown(FOREVER).await;
    for (way, number) in WAYS.iter().zip(numbers) {
        assert!(!is_running(number), "{name}: the {way} has outlived its instance");
        assert!(!PathBuf::from(format!("/proc/{number}")).exists(), "{name}: the {way} was not waited for");
    }
}

/// One after the other: the first has no control groups, and the second has both.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_detaches_itself_ends_with_its_instance() {
    all_end_with_their_instance(Settings { adopt_orphans: true, ..settings() }, "orphans").await;
    all_end_with_their_instance(Settings { adopt_orphans: true, cgroups: true, ..settings() }, "both").await;
}
