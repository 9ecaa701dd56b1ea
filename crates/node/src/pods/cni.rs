//! The socket on which the CNI plug-in asks for each pod, before the pod's first program starts.

use super::{PodName, Pods, Verdict};
use leno_cni::protocol::{CniCommand, CniRequest, CniResponse, MAX_LINE, Message};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Questions that are answered at the same time. Others wait.
const MAX_QUESTIONS: usize = 64;
/// The pause before another attempt to open the socket.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a question may take to arrive.
const QUESTION: Duration = Duration::from_secs(2);

/// The socket for the CNI plug-in cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the socket {} for the CNI plug-in cannot be opened: {cause}; its folder must exist and be writable", path.display())]
struct SocketError {
    path: PathBuf,
    cause: io::Error,
}

/// Opens the socket at this path, as soon as that is possible. Until then, pods of enforced namespaces
/// do not start.
pub(super) async fn open_at_last(path: &Path) -> UnixListener {
    loop {
        match open(path) {
            Ok(listener) => return listener,
            Err(error) => tracing::error!("{error}; pods of enforced namespaces do not start"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Opens the socket at this path, in place of the one of another process.
fn open(path: &Path) -> Result<UnixListener, SocketError> {
    let error = |cause| SocketError { path: path.to_owned(), cause };
    let folder = path.parent().ok_or_else(|| error(io::ErrorKind::InvalidInput.into()))?;
    fs::create_dir_all(folder).map_err(error)?;
    // It gets its name when it is complete. So the plug-in always finds a socket that answers.
    let made = folder.join(format!(".cni-{}", std::process::id()));
    let _ = fs::remove_file(&made);
    let listener = UnixListener::bind(&made).map_err(error)?;
    fs::set_permissions(&made, fs::Permissions::from_mode(0o600)).map_err(error)?;
    fs::rename(&made, path).map_err(error)?;
    Ok(listener)
}

/// Answers the CNI plug-in for ever.
pub(super) async fn serve(listener: UnixListener, pods: Pods) {
    let places = Arc::new(Semaphore::new(MAX_QUESTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let pods = pods.clone();
                tokio::spawn(async move {
                    let _place = place;
                    if let Err(error) = answer(stream, &pods).await {
                        tracing::warn!(%error, "a question of the CNI plug-in is not answered");
                    }
                });
            }
            Err(error) => {
                tracing::error!(%error, "the CNI plug-in cannot ask");
                tokio::time::sleep(QUESTION).await;
            }
        }
    }
}

async fn answer(mut stream: UnixStream, pods: &Pods) -> io::Result<()> {
    // The mode of the file allows only this account, and root.
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = Vec::new();
    let mut limited = BufReader::new(&mut stream).take(MAX_LINE);
    timeout(QUESTION, limited.read_until(b'\n', &mut line)).await??;
    let request = CniRequest::from_line(&line).map_err(io::Error::other)?;
    let answer = respond(request, pods).await.to_line().map_err(io::Error::other)?;
    stream.write_all(&answer).await
}

async fn respond(request: CniRequest, pods: &Pods) -> CniResponse {
    let CniRequest { command, netns, namespace, pod, uid, addresses, .. } = request;
    let refused = |reason: &str| CniResponse::Refused { reason: reason.to_owned() };
    let uid = match uid.map(|uid| uid.parse()).transpose() {
        Ok(uid) => uid,
        Err(error) => return refused(&format!("{error}")),
    };
    let pod = PodName { namespace, name: pod, uid };
    let verdict = match (command, netns) {
        (CniCommand::Add, Some(netns)) => pods.add(&pod, netns, addresses).await,
        (CniCommand::Add, None) => return refused("the runtime names no network namespace (CNI_NETNS)"),
        (CniCommand::Check, _) => pods.check(&pod),
        (CniCommand::Del, _) => {
            pods.del(&pod).await;
            Verdict::Captured
        }
    };
    match verdict {
        Verdict::Captured => CniResponse::Captured,
        Verdict::NotEnrolled => CniResponse::NotEnrolled,
        Verdict::Refused(reason) => CniResponse::Refused { reason },
    }
}
