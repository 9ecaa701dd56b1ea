use leno_model::PodUid;
use std::io;

/// Why a pod cannot be captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The machine lacks something.
    #[error("capture of pods: {missing}; {cure}")]
    Missing {
        /// The feature.
        missing: String,
        /// The remedy.
        cure: &'static str,
    },
    /// No process of the pod runs.
    #[error("no process of pod {0} was found in /proc; the agent needs the host's process IDs (hostPID: true)")]
    NoProcess(PodUid),
    /// The pod has the network of the machine.
    #[error("pod {0} has the host's network, which is not captured")]
    HostNetwork(PodUid),
    /// The network has none of the pod's addresses.
    #[error("the network of pod {uid} has none of the pod's addresses ({addresses}); it has {found}")]
    OtherNetwork {
        /// The pod.
        uid: PodUid,
        /// Its addresses.
        addresses: String,
        /// Addresses of the network.
        found: String,
    },
    /// This kernel cannot drop packets of an enforced pod.
    #[error("pod {uid} cannot be enforced on this machine: {reason}")]
    NotEnforceable {
        /// The pod.
        uid: PodUid,
        /// The reason.
        reason: String,
    },
    /// A setting of the pod's network cannot be read or changed.
    #[error("/proc/{name} of the pod's network: {error}")]
    Setting {
        /// Its file below `/proc`.
        name: &'static str,
        /// The kernel's refusal.
        error: io::Error,
    },
    /// More datagram peers than one pod may have.
    #[error("{count} blocks of datagram peers; a pod may have {max}")]
    TooManyPeers {
        /// How many.
        count: usize,
        /// How many one pod may have.
        max: usize,
    },
    /// The kernel refused an eBPF program or a change of a map.
    #[error(transparent)]
    Ebpf(#[from] leno_ebpf::Error),
    /// The kernel refused a system call.
    #[error("{step}: {error}")]
    Step {
        /// The attempt.
        step: &'static str,
        /// The kernel's refusal.
        error: io::Error,
    },
}

/// Says which step failed.
pub(crate) trait Explain<T> {
    fn explain(self, step: &'static str) -> Result<T, CaptureError>;
}

impl<T> Explain<T> for io::Result<T> {
    fn explain(self, step: &'static str) -> Result<T, CaptureError> {
        self.map_err(|error| CaptureError::Step { step, error })
    }
}
