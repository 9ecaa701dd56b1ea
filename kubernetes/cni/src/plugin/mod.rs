//! The plug-in itself: one operation of the container runtime (CNI specification 1.0 and 1.1).

mod configuration;
mod environment;
mod error;
mod previous;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

pub use configuration::{Configuration, Options};
pub use environment::{Attachment, Operation, PodName};
pub use error::{CniError, ErrorCode};
pub use previous::addresses;

use crate::enforced::EnforcedNamespaces;
use crate::protocol::{self, AskError, CniCommand, CniRequest, CniResponse};

/// The versions of the specification that the plug-in implements, oldest first. Versions before
/// 0.3.0 have no chains.
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The time limit of a removal, which must not wait for an agent that is gone.
const MAX_DEL_TIME: Duration = Duration::from_secs(2);

/// The largest part of a reason that reaches the runtime, in bytes. An event of Kubernetes has at
/// most 1,024.
const MAX_REASON: usize = 700;

/// Does the operation that the runtime wants, with its variables, its configuration and the
/// streams for the result and for notices.
pub fn run(
    variable: impl Fn(&str) -> Option<OsString>,
    input: impl Read,
    mut output: impl Write,
    mut notices: impl Write,
) -> ExitCode {
    let mut text = Vec::new();
    let read = input.take(crate::MAX_CONFIGURATION + 1).read_to_end(&mut text);
    let version = configuration::version(&text);
    let result = read
        .map_err(|error| CniError::new(ErrorCode::Io, "cannot read the network configuration", error))
        .and_then(|_| operate(variable, &text, &mut notices));
    let (text, code) = match result {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => (error.to_json(&version), ExitCode::FAILURE),
    };
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The output of an operation.
fn operate(
    variable: impl Fn(&str) -> Option<OsString>,
    text: &[u8],
    notices: &mut impl Write,
) -> Result<String, CniError> {
    match Operation::read(&variable)? {
        Operation::Version => {
            let version = configuration::version(text);
            Ok(serde_json::json!({"cniVersion": version, "supportedVersions": VERSIONS}).to_string())
        }
        // The plug-in keeps nothing that could be left over, and can start pods without the agent.
        // Failing here would make the node unready, so that no pod starts, the agent's included.
        Operation::Gc | Operation::Status => Configuration::read(text).map(|_| String::new()),
        Operation::Add(attachment) => {
            let configuration = Configuration::read(text)?;
            let previous = configuration.previous()?;
            let addresses = addresses(previous)?;
            admit(CniCommand::Add, attachment, addresses, &configuration.options, notices)?;
            Ok(previous.to_owned())
        }
        Operation::Check(attachment) => {
            let configuration = Configuration::read(text)?;
            let addresses = addresses(configuration.previous()?)?;
            admit(CniCommand::Check, attachment, addresses, &configuration.options, notices)?;
            Ok(String::new())
        }
        Operation::Del(attachment) => {
            let configuration = Configuration::read(text)?;
            release(attachment, &configuration.options, notices);
            Ok(String::new())
        }
    }
}

/// The question about an attachment, if the agent has to know of it.
fn request(command: CniCommand, attachment: Attachment, options: &Options) -> Option<CniRequest> {
    let pod = attachment.pod?;
    if options.exempt.contains(&pod.namespace) {
        return None;
    }
    Some(CniRequest {
        version: protocol::VERSION,
        command,
        container_id: attachment.container_id,
        netns: attachment.netns,
        namespace: pod.namespace,
        pod: pod.name,
        uid: pod.uid,
        addresses: Vec::new(),
    })
}

/// Asks the agent whether the pod may start, or go on.
fn admit(
    command: CniCommand,
    attachment: Attachment,
    addresses: Vec<std::net::IpAddr>,
    options: &Options,
    notices: &mut impl Write,
) -> Result<(), CniError> {
    let Some(request) = request(command, attachment, options) else { return Ok(()) };
    let request = CniRequest { addresses, ..request };
    match protocol::ask(&options.socket, &request, options.time_limit()) {
        Ok(CniResponse::Captured | CniResponse::NotEnrolled) => Ok(()),
        Ok(CniResponse::Refused { reason }) => Err(CniError::new(
            ErrorCode::Refused,
            format!("Leno refuses the pod {}/{}", request.namespace, request.pod),
            shortened(&reason),
        )),
        Err(absent) => without_agent(&request, &absent, options, notices),
    }
}

/// Decides about a pod by the list that the agent has left on the node.
fn without_agent(
    request: &CniRequest,
    absent: &AskError,
    options: &Options,
    notices: &mut impl Write,
) -> Result<(), CniError> {
    let namespace = &request.namespace;
    let starts = match EnforcedNamespaces::read(&options.enforced) {
        Ok(Some(list)) if list.contains(namespace) => {
            return Err(CniError::new(
                ErrorCode::TryAgainLater,
                format!("Leno's agent of this node is away, and the namespace {namespace} is enforced"),
                format!("{absent}; the pod starts once the agent runs"),
            ));
        }
        Ok(Some(_)) => "its namespace is not enforced",
        Ok(None) => "this node has no list of enforced namespaces, because its agent has never had a configuration",
        Err(error) => {
            return Err(CniError::new(
                ErrorCode::TryAgainLater,
                format!("Leno's agent of this node is away, and the namespace {namespace} may be enforced"),
                format!("{absent}; the list of enforced namespaces is damaged: {error}"),
            ));
        }
    };
    // A runtime that has closed the stream must not keep the pod from starting.
    let _ =
        writeln!(notices, "leno-cni: the pod {namespace}/{} starts without Leno, and {starts}: {absent}", request.pod);
    Ok(())
}

/// Tells the agent that the pod goes. The specification wants a removal to succeed; an agent that is
/// away finds out by itself.
fn release(attachment: Attachment, options: &Options, notices: &mut impl Write) {
    let Some(request) = request(CniCommand::Del, attachment, options) else { return };
    if let Err(absent) = protocol::ask(&options.socket, &request, options.time_limit().min(MAX_DEL_TIME)) {
        let _ = writeln!(
            notices,
            "leno-cni: the pod {}/{} is removed without Leno: {absent}",
            request.namespace, request.pod
        );
    }
}

/// The beginning of a reason, if it is long.
fn shortened(reason: &str) -> String {
    match reason.char_indices().nth(MAX_REASON) {
        Some((end, _)) => format!("{}…", &reason[..end]),
        None => reason.to_owned(),
    }
}
