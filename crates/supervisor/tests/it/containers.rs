//! Instances and jobs that are containers. They need root, and the package `busybox-static`.

use crate::support::*;
use leno_jail::{DEFAULT_WRITABLE, Image, Jailer};
use leno_model::{Command, InstanceState, Isolation, Job, Process, Resources};
use leno_supervisor::{
    AcquireError, ContainerSpec, FunctionSpec, ImageLease, ImageSource, ImageState, ImageUnavailable, JailSupport,
    JobSpec, JobState, LocalImage, PullProgress, Settings, Source, Supervisor,
};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// An image with a shell, until it is dropped.
struct Busybox(TempDir);

impl Busybox {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let layer = folder.path();
        fs::create_dir(layer.join("bin")).unwrap();
        fs::copy("/bin/busybox", layer.join("bin/busybox")).expect("the package `busybox-static`");
        symlink("busybox", layer.join("bin/sh")).unwrap();
        Self(folder)
    }

    fn run(&self, script: &str) -> ContainerSpec {
        let command = Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec());
        ContainerSpec {
            image: self.0.path().display().to_string(),
            source: self.leased(ImageLease::default()),
            command,
            args: None,
            directory: None,
            user: None,
            volumes: Vec::new(),
            read_only: false,
            writable: DEFAULT_WRITABLE,
        }
    }

    fn unpacked(&self, lease: ImageLease) -> LocalImage {
        LocalImage { image: Image { layers: vec![self.0.path().to_owned()], ..Image::default() }, lease }
    }

    fn leased(&self, lease: ImageLease) -> Source {
        Source::new(Arc::new(self.unpacked(lease)))
    }
}

async fn jails() -> leno_jail::Jails {
    let mut jailer = std::process::Command::new(SERVER);
    jailer.arg("jailer");
    let jails = leno_jail::Jails::open(Jailer::start(jailer).unwrap(), 1, None).await.unwrap();
    assert_eq!(jails.no_containers(), None, "run this test as root");
    jails
}

async fn supervisor(witness: &Witness) -> Supervisor {
    let settings = Settings { jails: JailSupport::Available(jails().await), cgroups: true, ..settings() };
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
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn pulling() -> PullProgress {
    PullProgress { words: "1/2 MiB".to_owned(), bytes: 1 << 20, bytes_total: 2 << 20 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_can_be_a_container() {
    let (witness, busybox, gone) = (Witness::default(), Busybox::new(), Arc::new(AtomicBool::new(false)));
    let supervisor = supervisor(&witness).await;
    let lease = ImageLease::new(DropFlag(Arc::clone(&gone)));
    let container = ContainerSpec { source: busybox.leased(lease), ..busybox.run(WEB) };
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
    let get = async |function: &leno_supervisor::Function| {
        // Without its lease, a request does not keep the instance that the second revision replaces.
        let lease = function.acquire(&[]).await.unwrap();
        let mut stream = lease.connect().await.unwrap();
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
        volumes: vec![],
        container: None,
        grace: FOREVER,
    };
    let job =
        Job { process, parallelism: 1, completions: 1, backoff_limit: 0, active_deadline: None, ttl: None, reruns: 0 };
    let container = Some(Arc::new(busybox.run("echo at work; exit 7")));
    let (files, host_access) = (leno_files::FileAccess::Any, leno_files::HostAccess::Any);
    supervisor.apply_job(JobSpec { id: id(), run: "1".to_owned(), job, container, files, host_access });
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
async fn a_container_runs_in_a_jail_or_not_at_all() {
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
    let settings = Settings { jails: JailSupport::Unavailable("this is a test".to_owned()), ..settings() };
    let reason = refusal(Supervisor::start(settings, witness.clone()), nothing()).await;
    assert!(reason.contains("this node has none: this is a test"), "{reason}");
    let reason = refusal(supervisor(&witness).await, Command { port: Some(80), ..nothing() }).await;
    assert!(reason.contains("port 80 is the node's in a jail here: choose another"), "{reason}");
    assert_eq!(witness.starts(), 0);
}

/// An image that comes when the test lets it.
struct Slow {
    image: tokio::sync::watch::Receiver<Option<Result<LocalImage, ImageUnavailable>>>,
}

impl ImageSource for Slow {
    fn image(&self) -> Pin<Box<dyn Future<Output = Result<LocalImage, ImageUnavailable>> + Send + '_>> {
        let mut image = self.image.clone();
        Box::pin(async move {
            let image = image.wait_for(Option::is_some).await.unwrap();
            image.clone().unwrap()
        })
    }

    fn state(&self) -> ImageState {
        match &*self.image.borrow() {
            None => ImageState::Pulling(pulling()),
            Some(Ok(_)) => ImageState::Here(None),
            Some(Err(error)) => ImageState::Failed(error.to_string()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_the_image_and_requests_do_within_their_limits() {
    let (witness, busybox) = (Witness::default(), Busybox::new());
    let supervisor = supervisor(&witness).await;
    let (arrives, image) = tokio::sync::watch::channel(None);
    let container = ContainerSpec { source: Source::new(Arc::new(Slow { image })), ..busybox.run(WEB) };
    let function = supervisor.apply(contained(container, nothing()));
    // The limit on a start is not for the pull.
    let soon = tokio::time::Instant::now() + std::time::Duration::from_millis(100);
    let error = function.acquire_by(&[], soon).await.unwrap_err();
    assert_eq!(error, AcquireError::Image { reason: "it is on its way (1/2 MiB)".to_owned() });
    assert_eq!(supervisor.images(), [(id(), 0, ImageState::Pulling(pulling()))]);
    let waiting = tokio::spawn({
        let function = function.clone();
        async move { function.acquire(&[]).await.map(drop) }
    });
    let begin = std::time::Instant::now();
    while function.status().count(InstanceState::Pulling) == 0 {
        assert!(begin.elapsed() < FOREVER);
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    arrives.send_replace(Some(Ok(busybox.unpacked(ImageLease::default()))));
    waiting.await.unwrap().unwrap();

    // An image that does not come is a start that fails.
    let (_arrives, image) = tokio::sync::watch::channel(Some(Err(ImageUnavailable::Pull("no such image".to_owned()))));
    let name = "another".to_owned();
    let container = ContainerSpec { image: name, source: Source::new(Arc::new(Slow { image })), ..busybox.run(WEB) };
    supervisor.remove(&id());
    let function = supervisor.apply(contained(container, nothing()));
    let error = function.acquire(&[]).await.unwrap_err().to_string();
    assert!(error.contains("its image is not here: no such image"), "{error}");
    supervisor.shutdown(FOREVER).await;
}
