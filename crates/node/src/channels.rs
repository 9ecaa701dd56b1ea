//! Channels of chains, which the kernel controls.

use leno_ebpf::{Limits, PrivateNetwork};
use leno_proxy::channels::{Channel, ChannelCounts, ChannelLimits, OpenedChannel, Switch};
use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Makes channels in the kernel.
pub(crate) struct KernelSwitch {
    channels: Arc<leno_ebpf::Channels>,
    /// By instance. If a program misuses its ends of channels, it reaches only its own channels.
    networks: Mutex<HashMap<String, Weak<PrivateNetwork>>>,
}

impl KernelSwitch {
    /// Loads the eBPF programs. `None`: the kernel cannot make channels, and the reason has been
    /// logged.
    pub(crate) fn load() -> Option<Arc<Self>> {
        match leno_ebpf::Channels::load() {
            Ok(channels) => Some(Arc::new(Self { channels: Arc::new(channels), networks: Mutex::default() })),
            Err(error) => {
                tracing::info!(
                    "calls of chains go through the node, also where they might go through the kernel: {error}"
                );
                None
            }
        }
    }
}

impl KernelSwitch {
    /// The network for the ends of this instance.
    fn network(&self, instance: &str) -> io::Result<Arc<PrivateNetwork>> {
        let mut networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = networks.get(instance).and_then(Weak::upgrade) {
            return Ok(network);
        }
        let network = Arc::new(PrivateNetwork::new()?);
        networks.retain(|_, network| network.strong_count() > 0);
        networks.insert(instance.to_owned(), Arc::downgrade(&network));
        Ok(network)
    }
}

impl Switch for KernelSwitch {
    fn open(&self, instances: [&str; 2], limits: ChannelLimits) -> Result<OpenedChannel, Box<dyn Error + Send + Sync>> {
        let [caller, callee] = instances;
        let networks = [self.network(caller)?, self.network(callee)?];
        let ChannelLimits { caller_arena, callee_arena, head } = limits;
        let opened =
            self.channels.open(networks.each_ref().map(|it| &**it), &Limits { caller_arena, callee_arena, head })?;
        let channel = Box::new(KernelChannel { channel: opened.channel, _networks: networks });
        Ok(OpenedChannel { channel, caller: opened.caller, callee: opened.callee })
    }
}

struct KernelChannel {
    channel: leno_ebpf::Channel,
    /// Each network exists as long as its instance has channels.
    _networks: [Arc<PrivateNetwork>; 2],
}

impl Channel for KernelChannel {
    fn counts(&self) -> ChannelCounts {
        let counts = self.channel.counts();
        ChannelCounts {
            calls: counts.calls,
            answers: counts.answers,
            failed: counts.failed,
            cancelled: counts.cancelled,
            refused: counts.refused,
            open: counts.open,
            held: counts.held,
            caller_violations: counts.caller_violations,
            callee_violations: counts.callee_violations,
        }
    }

    fn close(&self) {
        self.channel.close();
    }

    fn has_ended(&self) -> bool {
        self.channel.has_ended()
    }
}

#[cfg(test)]
mod tests {
    use leno_ebpf::ChannelViolation;
    use leno_proxy::channels::CHANNEL_VIOLATIONS;

    #[test]
    fn violations_are_counted_under_the_kernels_names() {
        assert_eq!(ChannelViolation::ALL.map(ChannelViolation::name), CHANNEL_VIOLATIONS);
    }
}
