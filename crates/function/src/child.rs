//! A started process with its environment, secrets, limits and output readers. Instances and jobs both start this way.

use crate::cgroup::{Cgroup, Cgroups};
use crate::host::Host;
use crate::instance_id::InstanceId;
use crate::orphans;
use crate::output::{LogLine, Stream, read_lines};
use crate::process::{ProcessGroup, Program};
use crate::processes::Processes;
use crate::secret::Secrets;
use crate::spec::Settings;
use crate::status::Board;
use leno_config::id::FunctionId;
use leno_config::slice::Resources;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, BufReader};
use tokio::sync::oneshot;

/// The function or job that owns a process, and where the process's output goes.
pub(crate) struct Owner {
    pub function: FunctionId,
    pub id: InstanceId,
    pub host: Arc<dyn Host>,
    pub settings: Arc<Settings>,
    /// `None`: control groups are not available.
    pub cgroups: Option<Arc<Cgroups>>,
    pub board: Arc<Board>,
}

/// A started process.
pub(crate) struct Child {
    pub group: ProcessGroup,
    pub processes: Arc<Processes>,
    pub belongings: Belongings,
}

/// What a process uses. It is released shortly after the process has ended.
pub(crate) struct Belongings {
    readers: [Option<tokio::task::JoinHandle<()>>; 2],
    confined: Confined,
    _secrets: Secrets,
}

/// The control group of a process. When it ends, everything in it ends.
enum Confined {
    /// Control groups are not available.
    No,
    Joined(Cgroup),
    Joining(oneshot::Receiver<Cgroup>),
}

impl Owner {
    /// Starts the program. Variables in `given` override those of the host, which override the program's own. Later entries of `given` override
    /// earlier ones.
    pub(crate) fn start(&self, program: &Program<'_>, given: Vec<(String, String)>) -> std::io::Result<Child> {
        let account = self.settings.accounts.of(&self.function)?;
        let secrets = Secrets::hand_over(program.secrets, account)?;
        let name = self.id.name(&self.function);
        let mut environment = secrets.environment.clone();
        environment.push((orphans::INSTANCE.to_owned(), name.to_string()));
        environment.push(("LENO_FUNCTION".to_owned(), self.function.to_string()));
        environment.extend(self.host.environment(&self.function, self.id));
        environment.extend(given);
        let cgroup = self.confine(program.resources);
        let join = cgroup.as_ref().map(Cgroup::members);
        let (group, output) =
            ProcessGroup::start(program, &name, &environment, join.as_deref(), account, self.settings.descriptors)
                .map_err(|error| explain_start(program, account, &error))?;
        // Joining a group takes the kernel several milliseconds. A process without limits does not wait for that.
        let confined = match (cgroup, &self.cgroups) {
            (Some(cgroup), _) => Confined::Joined(cgroup),
            (None, Some(cgroups)) => Confined::Joining(cgroups.move_running(self.id.number, group.pid())),
            (None, None) => Confined::No,
        };
        let members = self.cgroups.as_ref().map(|cgroups| cgroups.members(self.id.number));
        let processes = Arc::new(Processes::of(group.pid(), members)?);
        self.host.started(&self.function, self.id, &processes);
        let readers = [
            output.out.map(|out| self.read(out, Stream::Stdout)),
            output.err.map(|err| self.read(err, Stream::Stderr)),
        ];
        Ok(Child { group, processes, belongings: Belongings { readers, confined, _secrets: secrets } })
    }

    /// The control group that enforces the process's limits; `None`: it has no limits, or they cannot be enforced.
    fn confine(&self, limits: &Resources) -> Option<Cgroup> {
        if !limits.any() {
            return None;
        }
        let cgroups = self.cgroups.as_ref().ok_or_else(|| "there are no control groups (v2) for instances".to_owned());
        let group = cgroups.and_then(|cgroups| cgroups.instance(self.id.number, limits));
        let unenforced = group.as_ref().err().cloned();
        let before = std::mem::replace(&mut self.board.notes().unenforced, unenforced.clone());
        if let Some(reason) = unenforced.filter(|reason| before.as_ref() != Some(reason)) {
            tracing::warn!(function = %self.function, "its limits are not enforced: {reason}");
        }
        group.ok()
    }

    fn read(&self, output: impl AsyncRead + Unpin + Send + 'static, stream: Stream) -> tokio::task::JoinHandle<()> {
        let (function, instance) = (self.function.clone(), self.id);
        let (host, board, settings) = (Arc::clone(&self.host), Arc::clone(&self.board), Arc::clone(&self.settings));
        tokio::spawn(async move {
            let each = |text| {
                let line = LogLine { function: function.clone(), instance, stream, text };
                host.log(&line);
                board.keep_line(line, settings.kept_lines);
            };
            read_lines(BufReader::new(output), settings.line_bytes, each).await;
        })
    }
}

impl Belongings {
    /// Kills what the process left behind, inside its control group and outside. Waits for the last lines of output, and removes the secrets.
    pub(crate) async fn end(mut self) {
        let cgroup = match std::mem::replace(&mut self.confined, Confined::No) {
            Confined::No => None,
            Confined::Joined(cgroup) => Some(cgroup),
            Confined::Joining(cgroup) => cgroup.await.ok(),
        };
        if let Some(cgroup) = cgroup {
            cgroup.end().await;
        }
        orphans::end_orphans().await;
        self.last_lines().await;
    }

    /// Waits for the last lines of output, so that they are there when a failure is reported. The output ends with the process group, unless a
    /// process that left the group still holds it.
    pub(crate) async fn last_lines(&mut self) {
        const LAST_LINES: Duration = Duration::from_millis(200);
        for mut reader in self.readers.iter_mut().filter_map(Option::take) {
            if tokio::time::timeout(LAST_LINES, &mut reader).await.is_err() {
                reader.abort();
            }
        }
    }
}

/// Adds what could not be started: "No such file or directory" alone does not say which.
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
