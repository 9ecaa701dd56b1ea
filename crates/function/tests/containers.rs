//! Instances and jobs that are containers. They need root, and the packages `busybox-static` and `crun`.

mod support;

use leno_config::slice::{Command, Isolation, Job, Process, Resources};
use leno_function::{
    AcquireError, ContainerSpec, FunctionSpec, ImageLease, JobSpec, JobState, Rooms, Settings, Supervisor,
};
use leno_room::{DEFAULT_WRITABLE, Image, Launcher};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// An image with a shell, until it is dropped.
struct Busybox(PathBuf);

impl Busybox {
    fn new() -> Self {
        let layer = std::env::temp_dir().join(format!("leno-container-{:032x}", fastrand::u128(..)));
        fs::create_dir_all(layer.join("bin")).unwrap();
        fs::copy("/bin/busybox", layer.join("bin/busybox")).expect("the package `busybox-static`");
        symlink("busybox", layer.join("bin/sh")).unwrap();
        Self(layer)
    }

    fn run(&self, script: &str) -> ContainerSpec {
        let command = Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec());
        ContainerSpec {
            image: Image { layers: vec![self.0.clone()], ..Image::default() },
            command,
            args: None,
            directory: None,
            user: None,
            volumes: Vec::new(),
            read_only: false,
            writable: DEFAULT_WRITABLE,
            lease: ImageLease::default(),
        }
    }
}

impl Drop for Busybox {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn rooms() -> leno_room::Rooms {
    let mut launcher = std::process::Command::new(SERVER);
    launcher.arg("room-launcher");
    let rooms = leno_room::Rooms::open(Launcher::start(launcher).unwrap(), 1, None).await.unwrap();
    assert_eq!(rooms.no_containers(), None, "run this test as root, with the package `crun`");
    rooms
}

async fn supervisor(witness: &Witness) -> Supervisor {
    let settings = Settings { rooms: Rooms::Open(rooms().await), cgroups: true, ..settings() };
    Supervisor::start(settings, witness.clone())
}

fn contained(container: ContainerSpec, command: Command) -> FunctionSpec {
    FunctionSpec { container: Some(Arc::new(container)), ..spec(command) }
}

fn nothing() -> Command {
    Command { isolation: Isolation::Auto, ..command(&[]) }
}

const WEB: &str = "busybox mkdir /www; echo $GREETING > /www/index.html; echo begun in $PWD; echo on $PORT >&2; \
    exec busybox httpd -f -h /www -p 127.0.0.1:$PORT";

/// Notices when it is dropped.
struct Watched(Arc<AtomicBool>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_can_be_a_container() {
    let (witness, busybox, gone) = (Witness::default(), Busybox::new(), Arc::new(AtomicBool::new(false)));
    let supervisor = supervisor(&witness).await;
    let lease = ImageLease::new(Watched(Arc::clone(&gone)));
    let container = ContainerSpec { lease, ..busybox.run(WEB) };
    let env = BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]);
    let function = supervisor.apply(contained(container, Command { env, ..nothing() }));
    let lease = function.acquire(&[]).await.unwrap();
    let mut stream = lease.connect().await.unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("hello\n"), "{answer}");
    assert!(witness.line("begun in /"), "{:?}", witness.events());
    assert!(witness.line(&format!("on {}", lease.address().port())), "{:?}", witness.events());
    drop((lease, stream));
    assert!(!gone.load(Ordering::Relaxed));
    drop(function);
    supervisor.shutdown(FOREVER).await;
    drop(supervisor);
    assert!(gone.load(Ordering::Relaxed), "the image is not used any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_container_is_another_instance() {
    let (witness, busybox) = (Witness::default(), Busybox::new());
    let supervisor = supervisor(&witness).await;
    let serve = |greeting: &str| contained(busybox.run(&format!("GREETING={greeting}; {WEB}")), nothing());
    let get = async |function: &leno_function::Function| {
        let mut stream = function.acquire(&[]).await.unwrap().connect().await.unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let function = supervisor.apply(serve("one"));
    assert!(get(&function).await.ends_with("one\n"));
    let function = supervisor.apply(serve("two"));
    let begin = std::time::Instant::now();
    while !get(&function).await.ends_with("two\n") {
        assert!(begin.elapsed() < FOREVER);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_container_writes_counts_against_its_memory() {
    let (witness, busybox) = (Witness::default(), Busybox::new());
    let supervisor = supervisor(&witness).await;
    for place in ["/tmp/file", "/file"] {
        let resources = Resources { memory: 24 << 20, ..Resources::default() };
        let script = format!("exec busybox dd if=/dev/zero of={place} bs=1M count=48");
        let function = supervisor.apply(contained(busybox.run(&script), Command { resources, ..nothing() }));
        if let Some(reason) = function.status().unenforced {
            panic!("limits cannot be enforced here, so this test says nothing: {reason}");
        }
        let error = function.acquire(&[]).await.unwrap_err().to_string();
        assert!(error.contains("out of memory, the limit is 24Mi"), "{place}: {error}");
    }
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_can_be_a_container() {
    let (witness, busybox) = (Witness::default(), Busybox::new());
    let supervisor = supervisor(&witness).await;
    let process = Process {
        argv: Vec::new(),
        directory: PathBuf::from("/"),
        env: BTreeMap::new(),
        secrets: Vec::new(),
        resources: Resources::default(),
        isolation: Isolation::Auto,
        read_only_paths: vec![],
        grace: FOREVER,
    };
    let job = Job { process, parallelism: 1, completions: 1, backoff_limit: 0, active_deadline: None, ttl: None };
    let container = Some(Arc::new(busybox.run("echo at work; exit 7")));
    supervisor.apply_job(JobSpec { id: id(), run: "1".to_owned(), job, container });
    let begin = std::time::Instant::now();
    let status = loop {
        let status = supervisor.jobs().into_iter().next().unwrap();
        if status.state != JobState::Running {
            break status;
        }
        assert!(begin.elapsed() < FOREVER);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!((status.state, status.exit_code), (JobState::Failed, Some(7)), "{status:?}");
    assert!(witness.line("at work"), "{:?}", witness.events());
    supervisor.shutdown(FOREVER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_runs_in_a_room_or_not_at_all() {
    let (witness, busybox) = (Witness::default(), Busybox::new());
    let refusal = async |supervisor: Supervisor, command: Command| {
        let function = supervisor.apply(contained(busybox.run(WEB), command));
        let error = function.acquire(&[]).await.unwrap_err();
        let AcquireError::Start { reason } = error else { panic!("{error:?}") };
        supervisor.shutdown(FOREVER).await;
        reason
    };
    let reason = refusal(supervisor(&witness).await, Command { isolation: Isolation::Process, ..nothing() }).await;
    assert!(reason.contains("`isolation: process` is about programs of the machine"), "{reason}");
    let settings = Settings { rooms: Rooms::None("this is a test".to_owned()), ..settings() };
    let reason = refusal(Supervisor::start(settings, witness.clone()), nothing()).await;
    assert!(reason.contains("this node has none: this is a test"), "{reason}");
    let reason = refusal(supervisor(&witness).await, Command { port: Some(80), ..nothing() }).await;
    assert!(reason.contains("port 80 is the mesh's") && !reason.contains("isolation"), "{reason}");
    assert_eq!(witness.starts(), 0);
}
