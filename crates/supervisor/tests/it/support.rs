//! Helpers that the tests of the supervisor share.

use leno_model::FunctionId;
use leno_model::{AppProtocol, Command, Isolation, OutputLine, OutputStream, Readiness, Resources, Run, Scale};
use leno_supervisor::{Function, FunctionSpec, Host, InstanceId, Settings, Supervisor};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Long enough for the slowest machine; a test waits so long only if it fails.
pub(crate) const FOREVER: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Started(InstanceId),
    Ready(InstanceId),
    Draining(InstanceId),
    Ended(InstanceId),
    Line(InstanceId, OutputStream, String),
}

/// Records all callbacks of the supervisor.
#[derive(Clone, Default)]
pub(crate) struct Witness {
    pub events: Arc<Mutex<Vec<Event>>>,
    pub secret: Option<(String, String)>,
}

impl Witness {
    pub(crate) fn saw(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    pub(crate) fn starts(&self) -> usize {
        self.events().iter().filter(|event| matches!(event, Event::Started(_))).count()
    }

    pub(crate) fn line(&self, wanted: &str) -> bool {
        self.events().iter().any(|event| matches!(event, Event::Line(_, _, text) if text == wanted))
    }

    pub(crate) fn index(&self, event: &Event) -> usize {
        self.events()
            .iter()
            .position(|other| other == event)
            .unwrap_or_else(|| panic!("no {event:?}: {:?}", self.events()))
    }
}

impl Host for Witness {
    fn environment(&self, _: &FunctionId, instance: InstanceId) -> Vec<(String, String)> {
        self.saw(Event::Started(instance));
        self.secret.iter().cloned().collect()
    }

    fn log(&self, _: &FunctionId, instance: InstanceId, line: &OutputLine) {
        self.saw(Event::Line(instance, line.stream, line.text.clone()));
    }

    fn ready(&self, _: &FunctionId, instance: InstanceId, _: SocketAddr) {
        self.saw(Event::Ready(instance));
    }

    fn draining(&self, _: &FunctionId, instance: InstanceId, _: SocketAddr) {
        self.saw(Event::Draining(instance));
    }

    fn ended(&self, _: &FunctionId, instance: InstanceId) {
        self.saw(Event::Ended(instance));
    }
}

pub(crate) fn id() -> FunctionId {
    FunctionId::new("orders", "order-service").unwrap()
}

pub(crate) const SERVER: &str = env!("CARGO_BIN_EXE_leno-test-function");

pub(crate) fn command(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
        directory: PathBuf::from("/"),
        env: BTreeMap::new(),
        secrets: Vec::new(),
        resources: Resources::default(),
        isolation: Isolation::Process,
        read_only_paths: vec![],
        volumes: vec![],
        persistent: vec![],
        container: None,
        port: None,
        ports: vec![],
        readiness: Readiness::Tcp,
        liveness: None,
        startup_timeout: FOREVER,
        grace: FOREVER,
    }
}

pub(crate) fn spec(command: Command) -> FunctionSpec {
    FunctionSpec {
        files: leno_files::FileAccess::Any,
        host_access: leno_files::HostAccess::Any,
        volumes: leno_supervisor::VolumeBounds { count: 16, bytes: 1 << 30 },
        id: id(),
        revision: 0,
        run: Run::Command(command),
        container: None,
        protocol: AppProtocol::Http1,
        chain: None,
        concurrency: 0,
        queue: 1024,
        scale: Scale::default(),
    }
}

/// The same with a minimum of instances.
pub(crate) fn at_least(min: u32, command: Command) -> FunctionSpec {
    FunctionSpec { scale: Scale { min, ..Scale::default() }, ..spec(command) }
}

/// At most so many instances, with one request at a time each.
pub(crate) fn one_at_a_time(max: u32) -> FunctionSpec {
    let scale = Scale { max, per_instance: 1.0, utilization: 1.0, ..Scale::default() };
    FunctionSpec { concurrency: 1, scale, ..spec(command(&[SERVER])) }
}

pub(crate) fn settings() -> Settings {
    let defaults = Settings { recovered_after: FOREVER, drain: FOREVER, ..Settings::default() };
    let backoff = defaults.backoff.with_min_delay(Duration::from_millis(1)).with_max_delay(Duration::from_millis(5));
    Settings { backoff, ..defaults }
}

/// The same, but with this pause (or up to its double) after each failure.
pub(crate) fn settings_with_pause(pause: Duration) -> Settings {
    let settings = settings();
    Settings { backoff: settings.backoff.with_min_delay(pause).with_max_delay(pause), ..settings }
}

pub(crate) fn start(witness: &Witness, command: Command) -> (Supervisor, Function) {
    let supervisor = Supervisor::start(settings(), witness.clone());
    let function = supervisor.apply(spec(command));
    (supervisor, function)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}
