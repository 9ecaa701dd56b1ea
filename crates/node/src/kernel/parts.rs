//! The eBPF programs of a node. Each set is loaded before the first function that needs it is in
//! force: the kernel takes tens of milliseconds to load them, and megabytes for their maps.

use super::KernelPolicy;
use crate::channels::KernelSwitch;
use leno_model::{FunctionConfig, Run};
use leno_proxy::Node;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

/// The parts of the kernel that functions of this node need.
pub(crate) struct KernelParts {
    node: Weak<Node>,
    /// The control group of the node's instances.
    group: Option<PathBuf>,
    /// The node can put instances into jails.
    has_jails: bool,
    policy: OnceLock<Option<Arc<KernelPolicy>>>,
    switch: OnceLock<()>,
}

impl KernelParts {
    /// Loads nothing yet.
    pub(crate) fn new(node: &Arc<Node>, group: Option<PathBuf>, has_jails: bool) -> Arc<Self> {
        let node = Arc::downgrade(node);
        Arc::new(Self { node, group, has_jails, policy: OnceLock::new(), switch: OnceLock::new() })
    }

    /// Loads the programs that a function needs, unless they are loaded. Blocks.
    pub(crate) fn prepare(&self, config: &FunctionConfig) {
        let has_processes = |run: &Run| matches!(run, Run::Command(_) | Run::Job(_));
        if config.all_revisions().any(|revision| has_processes(&revision.template.run)) {
            self.policy();
        }
        if config.chain.as_ref().is_some_and(|chain| chain.direct) {
            self.switch.get_or_init(|| {
                if let Some((node, switch)) = self.node.upgrade().zip(KernelSwitch::load()) {
                    node.channels.set_switch(switch);
                }
            });
        }
    }

    /// The policy for connections of jails. `None`: the node judges and proxies each of them.
    pub(crate) fn policy(&self) -> Option<&Arc<KernelPolicy>> {
        let open = || {
            let node = self.node.upgrade().filter(|_| self.has_jails)?;
            let policy = KernelPolicy::open(&node, self.group.as_deref())?;
            if let Err(error) = policy.watch(self.node.clone()) {
                tracing::error!(%error, "what the kernel refuses is not told");
            }
            node.set_kernel(policy.clone());
            Some(policy)
        };
        self.policy.get_or_init(open).as_ref()
    }
}
