//! Channels of chains, which the kernel watches.

use leno_kernel::{Limits, PrivateNetwork};
use leno_proxy::kernel::{Channel, ChannelCounts, ChannelLimits, OpenedChannel, Switch};
use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Makes channels in the kernel.
pub(crate) struct KernelSwitch {
    channels: Arc<leno_kernel::Channels>,
    /// By chain. A program that does something else with its end of a channel reaches nobody but its own chain.
    networks: Mutex<HashMap<String, Weak<PrivateNetwork>>>,
}

impl KernelSwitch {
    /// `None`: the kernel makes no channels, which was said.
    pub(crate) fn load() -> Option<Arc<Self>> {
        match leno_kernel::Channels::load() {
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

impl Switch for KernelSwitch {
    fn open(&self, chain: &str, limits: ChannelLimits) -> Result<OpenedChannel, Box<dyn Error + Send + Sync>> {
        let mut networks = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        let network = match networks.get(chain).and_then(Weak::upgrade) {
            Some(network) => network,
            None => {
                let network = Arc::new(PrivateNetwork::new()?);
                networks.retain(|_, network| network.strong_count() > 0);
                networks.insert(chain.to_owned(), Arc::downgrade(&network));
                network
            }
        };
        drop(networks);
        let ChannelLimits { caller_arena, callee_arena, head } = limits;
        let opened = self.channels.open(&network, &Limits { caller_arena, callee_arena, head })?;
        let channel = Box::new(KernelChannel { channel: opened.channel, _network: network });
        Ok(OpenedChannel { channel, caller: opened.caller, callee: opened.callee })
    }
}

struct KernelChannel {
    channel: leno_kernel::Channel,
    /// It is there for as long as the chain has channels.
    _network: Arc<PrivateNetwork>,
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
    use leno_kernel::ChannelViolation;
    use leno_proxy::kernel::CHANNEL_VIOLATIONS;

    #[test]
    fn violations_are_counted_under_the_kernels_names() {
        assert_eq!(ChannelViolation::ALL.map(ChannelViolation::name), CHANNEL_VIOLATIONS);
    }
}
