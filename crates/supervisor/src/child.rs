//! A started process with its environment, secrets, limits and output readers. Instances and jobs both start this way.

use crate::cgroup::{Cgroup, Cgroups, JailLimits, LimitError};
use crate::container::RunnableContainer;
use crate::diagnosis::{self, End, View};
use crate::dialer::Dialer;
use crate::host::Host;
use crate::instance_id::InstanceId;
use crate::orphans;
use crate::output::{LINE, read_lines};
use crate::process::{self, ProcessGroup, Program};
use crate::processes::Processes;
use crate::secret::{self, JailSecrets, Secrets};
use crate::spec::{JailSupport, Settings};
use crate::status::{Isolation, StatusStore};
use crate::tree::ProcessTree;
use crate::variables::Variables;
use leno_files::{FileAccess, HostAccess, readers};
use leno_jail::{Jail, Refusals};
use leno_model::FunctionId;
use leno_model::Resources;
use leno_model::size::Size;
use leno_model::{OutputLine, OutputStream, SecretValue, secret_values};
use leno_namespaces::{Importance, Permit, Resource, Source, Turns};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

/// How long to wait for another instance of the namespace to end.
const PLACE_PAUSE: Duration = Duration::from_secs(1);

/// The function or job that owns a process, and the receivers of the process's output.
pub(crate) struct Owner {
    pub function: FunctionId,
    pub id: InstanceId,
    pub host: Arc<dyn Host>,
    pub settings: Arc<Settings>,
    /// `None`: control groups are not available.
    pub cgroups: Option<Arc<Cgroups>>,
    pub status_store: Arc<StatusStore>,
    /// Divides starts evenly between namespaces.
    pub starts: Arc<Turns>,
    /// The files that the document of the function or job may name.
    pub files: FileAccess,
    /// The folders of the node that its volumes may be.
    pub host_access: HostAccess,
}

/// A started process.
pub(crate) struct Child {
    pub tree: ProcessTree,
    pub dialer: Dialer,
    pub isolation: Isolation,
    pub resources: ProcessResources,
}

/// Tasks that read standard output and standard error.
type Readers = [Option<tokio::task::JoinHandle<()>>; 2];

/// The resources of a process. They are released shortly after the process has ended.
pub(crate) struct ProcessResources {
    readers: Readers,
    confined: ProcessCgroup,
    /// Its limit on memory, in bytes.
    memory: u64,
    /// Dependencies of the program that its jail lacks.
    lacks: Vec<String>,
    _secrets: Secrets,
    /// Keeps the image's files in place while the process runs.
    _container: Option<RunnableContainer>,
}

/// The control group of a process. When it ends, everything in it ends.
enum ProcessCgroup {
    /// Control groups are not available.
    No,
    Joined(Cgroup),
    /// When the jail ends, all its processes end.
    Jail(JailLimits),
    Joining(oneshot::Receiver<Cgroup>),
}

impl Owner {
    /// Waits until the namespace may have one more instance.
    pub(crate) async fn place(&self) -> Permit {
        let namespace = self.settings.namespaces.of(&self.function.namespace);
        loop {
            if let Some(place) = namespace.take(Resource::Instances) {
                return place;
            }
            tokio::time::sleep(PLACE_PAUSE).await;
        }
    }

    /// Starts the program, in a jail if it is to have one. Variables in `given` override those of
    /// the host, which override the program's own. Later entries of `given` override earlier ones.
    pub(crate) async fn start(&self, program: &Program<'_>, given: Vec<(String, String)>) -> std::io::Result<Child> {
        let _turn = self.starts.take(&self.function.namespace, "").await;
        if program.container.is_some() {
            return match (program.isolation, &self.settings.jails) {
                (leno_model::Isolation::Process, _) => Err(std::io::Error::new(
                    std::io::ErrorKind::InvalidInput,
                    "a container runs in a jail: `isolation: process` is about programs of the machine",
                )),
                (_, JailSupport::Available(jails)) => self.start_in_jail(jails, program, given).await,
                (_, JailSupport::Unavailable(reason)) => {
                    Err(std::io::Error::other(format!("a container runs in a jail, and this node has none: {reason}")))
                }
            };
        }
        match (program.isolation, &self.settings.jails) {
            (leno_model::Isolation::Strict | leno_model::Isolation::Auto, JailSupport::Available(jails)) => {
                self.start_in_jail(jails, program, given).await
            }
            (leno_model::Isolation::Strict, JailSupport::Unavailable(reason)) => {
                Err(std::io::Error::other(format!("`isolation: strict` cannot be had on this node: {reason}")))
            }
            (leno_model::Isolation::Auto, JailSupport::Unavailable(_)) | (leno_model::Isolation::Process, _) => {
                let secrets = self.secrets(program).await?;
                self.reach_files(program).await?;
                self.start_process(program, secrets, given)
            }
        }
    }

    /// The names and values of the program's secrets.
    async fn secrets(&self, program: &Program<'_>) -> std::io::Result<Vec<(String, SecretValue)>> {
        let reader = self.settings.secrets.reader(&self.function, self.files.clone());
        let values = secret_values(program.secrets, &self.function, reader).await?;
        Ok(program.secrets.iter().map(|secret| secret.name.clone()).zip(values).collect())
    }

    /// Fails if the file system of the program or of its directory does not answer: starting the
    /// program would block this thread.
    async fn reach_files(&self, program: &Program<'_>) -> std::io::Result<()> {
        let name = program.argv.first().map_or("", String::as_str);
        let paths = [program.directory.to_owned(), program.directory.join(name)];
        let look = move || {
            for path in &paths {
                // The start reports a missing program.
                let _ = std::fs::metadata(path);
            }
            Ok(())
        };
        let looked = readers::run(&self.function.namespace, readers::MAX_WAIT, look).await;
        looked.map_err(|error| explain_start(program, None, &error))
    }

    async fn start_in_jail(
        &self,
        jails: &leno_jail::Jails,
        program: &Program<'_>,
        given: Vec<(String, String)>,
    ) -> std::io::Result<Child> {
        let secrets = JailSecrets::new(self.secrets(program).await?);
        let jail = if program.container.is_some() { jails.take_for_container().await } else { jails.take().await };
        let mut jail = jail.map_err(std::io::Error::other)?;
        let limits = self.confine(program.resources, Cgroups::jail, JailLimits::unenforced);
        let started = self.run_in_jail(&mut jail, limits.as_ref(), program, secrets, given).await;
        let (readers, lacks) = match started {
            Ok(started) => started,
            Err(error) => {
                // First the jail: its control groups are removed when they are empty.
                jail.end().await;
                drop(limits);
                return Err(error);
            }
        };
        let dialer = Dialer::Jail(jail.dialer());
        let confined = limits.map_or(ProcessCgroup::No, ProcessCgroup::Jail);
        let memory = program.resources.memory;
        let _container = program.container.cloned();
        let _secrets = Secrets::default();
        let resources = ProcessResources { readers, confined, memory, lacks, _secrets, _container };
        Ok(Child { tree: ProcessTree::Jail(jail), dialer, isolation: Isolation::Strict, resources })
    }

    /// Starts the program in a jail. Returns the readers of its output, and the dependencies that the
    /// jail lacks.
    async fn run_in_jail(
        &self,
        jail: &mut Jail,
        limits: Option<&JailLimits>,
        program: &Program<'_>,
        secrets: JailSecrets,
        given: Vec<(String, String)>,
    ) -> std::io::Result<(Readers, Vec<String>)> {
        if let Some(port) = program.port.filter(|port| *port == jail.node_port()) {
            let text = format!(
                "port {port} is the node's in a jail here: choose another, or have the node redirect calls in the kernel (root, Linux 5.9), \
                 so that only port 1 is its own"
            );
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        }
        if let Some(limits) = limits {
            limits.join(jail.pid())?;
        }
        let name = self.id.name(&self.function);
        // A container has the `PATH` of its image.
        let path = std::env::var("PATH").ok().filter(|_| program.container.is_none());
        let path = path.map(|path| ("PATH".to_owned(), path));
        let variables = self.variables(program, &secrets.environment, &name, &given);
        let own = program.env.iter().map(|(name, value)| (name.clone(), value.clone()));
        let environment =
            path.into_iter().chain(own).chain(secrets.environment).chain(self.names(&name)).chain(given).collect();
        if let Some(listeners) = jail.take_listeners() {
            self.host.jail_ready(&self.function, self.id, listeners);
        }
        let (host, function, id) = (Arc::clone(&self.host), self.function.clone(), self.id);
        jail.report_refusals(Refusals::to(move |refused| host.refused(&function, id, &refused)));
        let ((out, read_out), (err, read_err)) = (pipe::pipe()?, pipe::pipe()?);
        let readers =
            [Some(self.read(read_out, OutputStream::Stdout)), Some(self.read(read_err, OutputStream::Stderr))];
        let (out, err) = (out.into_blocking_fd()?, err.into_blocking_fd()?);
        let (hostname, secrets, descriptors) = (hostname(&name), secrets.files, self.settings.descriptors);
        let processes = Some(program.resources.pids).filter(|pids| *pids > 0);
        let lacks = if let Some(container) = program.container {
            let own_group = program.resources.any() && matches!(limits, Some(JailLimits::Current(_)));
            let host = crate::container::host_folders(container.volumes(), &self.host_access);
            let container = container.expanded(&variables).instance(
                program.read_only_paths,
                own_group,
                environment,
                hostname,
                secrets,
                (descriptors, processes),
            );
            let folders = program.folders.to_vec();
            let container =
                leno_jail::Container { namespace: self.function.namespace.clone(), folders, host, ..container };
            jail.contain(container, out, err).await?;
            Vec::new()
        } else {
            let task = leno_jail::Program {
                namespace: self.function.namespace.clone(),
                argv: variables.expand(program.argv),
                directory: program.directory.to_owned(),
                environment,
                hostname,
                visible: program.read_only_paths.to_vec(),
                volumes: crate::container::in_memory(program.volumes),
                host: crate::container::host_folders(program.volumes, &self.host_access),
                access: self.files.clone(),
                folders: program.folders.to_vec(),
                secrets,
                descriptors,
                processes,
            };
            jail.run(task, out, err).await?
        };
        for lack in &lacks {
            tracing::warn!(function = %self.function, instance = %self.id, "{lack}");
        }
        Ok((readers, lacks))
    }

    /// Variables that name the instance and its function.
    fn names(&self, instance: &str) -> [(String, String); 2] {
        [(orphans::INSTANCE.to_owned(), instance.to_owned()), ("LENO_FUNCTION".to_owned(), self.function.to_string())]
    }

    /// The variables that the program's arguments may refer to.
    fn variables(
        &self,
        program: &Program<'_>,
        secrets: &[(String, String)],
        instance: &str,
        given: &[(String, String)],
    ) -> Variables {
        let folder = secrets.iter().filter(|(name, _)| name == secret::FOLDER).cloned();
        let own = program.env.clone().into_iter().chain(folder);
        Variables(own.chain(self.names(instance)).chain(given.iter().cloned()).collect())
    }

    fn start_process(
        &self,
        program: &Program<'_>,
        secrets: Vec<(String, SecretValue)>,
        given: Vec<(String, String)>,
    ) -> std::io::Result<Child> {
        let account = self.settings.accounts.of(&self.function)?;
        let secrets = Secrets::hand_over(secrets, account)?;
        let name = self.id.name(&self.function);
        let argv = self.variables(program, &secrets.environment, &name, &given).expand(program.argv);
        let program = &Program { argv: &argv, ..*program };
        let mut environment = secrets.environment.clone();
        environment.extend(self.names(&name));
        environment.extend(self.host.environment(&self.function, self.id));
        environment.extend(given);
        // Joining a group takes the kernel several milliseconds. A process without limits does not wait for that.
        let has_limits = program.resources.any();
        let cgroup = has_limits.then(|| self.confine(program.resources, Cgroups::instance, |_| None)).flatten();
        let join = cgroup.as_ref().map(Cgroup::members);
        let descriptors = self.settings.descriptors;
        let processes = Cgroups::processes(self.cgroups.as_deref(), &self.function.namespace);
        let (group, output) =
            ProcessGroup::start(program, &name, &environment, join.as_deref(), account, descriptors, processes)
                .map_err(|error| explain_start(program, account, &error))?;
        let namespace = &self.function.namespace;
        let confined = match (cgroup, &self.cgroups) {
            (Some(cgroup), _) => ProcessCgroup::Joined(cgroup),
            (None, Some(cgroups)) => {
                ProcessCgroup::Joining(cgroups.move_running(namespace, self.id.number, group.pid()))
            }
            (None, None) => ProcessCgroup::No,
        };
        let members = self.cgroups.as_ref().map(|cgroups| cgroups.members(namespace, self.id.number));
        let processes = Arc::new(Processes::of(group.pid(), members)?);
        self.host.started(&self.function, self.id, &processes);
        let readers =
            [Some(self.read(output.out, OutputStream::Stdout)), Some(self.read(output.err, OutputStream::Stderr))];
        let resources = ProcessResources {
            readers,
            confined,
            memory: program.resources.memory,
            lacks: Vec::new(),
            _secrets: secrets,
            _container: None,
        };
        let (tree, dialer) = (ProcessTree::Group(group), Dialer::Process(processes));
        Ok(Child { tree, dialer, isolation: Isolation::Process, resources })
    }

    /// The groups that enforce the process's limits, made by `confine`; `None`: they cannot be
    /// enforced. `lacks` gives the part that is not enforced, and why.
    fn confine<T>(
        &self,
        limits: &Resources,
        confine: impl FnOnce(&Cgroups, &str, u64, &Resources) -> Result<T, LimitError>,
        lacks: impl FnOnce(&T) -> Option<&str>,
    ) -> Option<T> {
        let cgroups = self.cgroups.as_ref().ok_or(LimitError::NoCgroups);
        let group = cgroups.and_then(|cgroups| confine(cgroups, &self.function.namespace, self.id.number, limits));
        let unenforced = match &group {
            Ok(group) => lacks(group).map(str::to_owned),
            Err(reason) => Some(reason.to_string()),
        };
        // The node has logged the bounds of a namespace that are not enforced.
        let unenforced = unenforced.filter(|_| limits.any());
        let before = std::mem::replace(&mut self.status_store.lock().unenforced, unenforced.clone());
        if let Some(reason) = unenforced.filter(|reason| before.as_ref() != Some(reason)) {
            tracing::warn!(function = %self.function, "its limits are not enforced: {reason}");
        }
        group.ok()
    }

    /// Explains a failure by the output so far.
    pub(crate) fn diagnose(&self, end: End, lacks: &[String], program: (View<'_>, &[String])) -> String {
        diagnosis::diagnose(self.status_store.lock().output.get(&self.id), end, lacks, program)
    }

    fn read(
        &self,
        output: impl AsyncRead + Unpin + Send + 'static,
        stream: OutputStream,
    ) -> tokio::task::JoinHandle<()> {
        let (function, instance) = (self.function.clone(), self.id);
        let (host, status_store, settings) =
            (Arc::clone(&self.host), Arc::clone(&self.status_store), Arc::clone(&self.settings));
        let namespace = settings.namespaces.of(&function.namespace);
        let name = function.to_string();
        tokio::spawn(async move {
            let each = |text: String| {
                let bytes = text.len() + name.len() + LINE;
                let logs =
                    namespace.log.admits(Source::Output, Importance::Output, &name, bytes, std::time::Instant::now());
                let line = OutputLine { instance: instance.number, at: SystemTime::now(), stream, text };
                if logs {
                    host.log(&function, instance, &line);
                }
                status_store.keep_line(instance, line, settings.kept_output);
            };
            // A writer that is faster than its namespace's rate waits when its pipe is full.
            let pace = |bytes: usize| {
                let bytes = u64::try_from(bytes + LINE).unwrap_or(u64::MAX);
                namespace.output.owe(bytes, std::time::Instant::now())
            };
            read_lines(BufReader::new(output), settings.line_bytes, each, pace).await;
        })
    }
}

impl ProcessResources {
    /// Dependencies of the program that its jail lacks.
    pub(crate) fn lacks(&self) -> &[String] {
        &self.lacks
    }

    /// Describes the process's exit status, and whether the kernel killed it because memory ran
    /// out.
    pub(crate) fn describe(&self, status: std::io::Result<ExitStatus>) -> String {
        let was_killed = status.as_ref().is_ok_and(|status| status.signal() == Some(Signal::KILL.as_raw()));
        let told = process::describe(status);
        let no_memory = match &self.confined {
            ProcessCgroup::Joined(group) => group.ran_out_of_memory(),
            ProcessCgroup::Jail(limits) => limits.ran_out_of_memory(),
            ProcessCgroup::No | ProcessCgroup::Joining(_) => false,
        };
        if was_killed && no_memory && self.memory == 0 {
            format!("{told}: out of memory, its namespace has no more on this node")
        } else if was_killed && no_memory {
            format!("{told}: out of memory, the limit is {}", Size(self.memory))
        } else {
            told
        }
    }

    /// Kills all processes that the process left behind, inside its control group and outside.
    /// Waits for the last lines of output, and removes the secrets.
    pub(crate) async fn end(mut self) {
        let cgroup = match std::mem::replace(&mut self.confined, ProcessCgroup::No) {
            ProcessCgroup::No | ProcessCgroup::Jail(_) => None,
            ProcessCgroup::Joined(cgroup) => Some(cgroup),
            ProcessCgroup::Joining(cgroup) => cgroup.await.ok(),
        };
        if let Some(cgroup) = cgroup {
            cgroup.end().await;
        }
        orphans::end_orphans().await;
        self.last_lines().await;
    }

    /// Waits for the last lines of output, so that a report of a failure can include them. The
    /// output ends with the process group, unless a process that left the group still holds it.
    pub(crate) async fn last_lines(&mut self) {
        const LAST_LINES: Duration = Duration::from_millis(200);
        for mut reader in self.readers.iter_mut().filter_map(Option::take) {
            if tokio::time::timeout(LAST_LINES, &mut reader).await.is_err() {
                reader.abort();
            }
        }
    }
}

/// A host name for an instance: at most 63 letters, digits and hyphens.
fn hostname(instance: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let name: String = instance.chars().map(plain).collect();
    // The last characters distinguish instances.
    name.get(name.len().saturating_sub(63)..).unwrap_or_default().trim_start_matches('-').to_owned()
}

/// Adds the program to an error: "No such file or directory" alone does not name the file.
fn explain_start(program: &Program<'_>, account: Option<u32>, error: &std::io::Error) -> std::io::Error {
    let name = program.argv.first().map_or("", String::as_str);
    let mut text = format!("`{name}` in {}: {error}", program.directory.display());
    if let Some(account) = account.filter(|_| error.kind() == std::io::ErrorKind::PermissionDenied) {
        text += &format!(
            "; it runs under the account {account} of its namespace, which has to be able to enter that directory and to run the program: move \
             them where others can go (`chmod o+x` for each folder above), let the node have CAP_SETUID and CAP_SETGID, or have instances run \
             under the node's account (`instances: {{accounts: node}}` in the Mesh document)"
        );
    }
    std::io::Error::new(error.kind(), text)
}
