//! The restrictions of a namespace that concern one function.

use super::FunctionConfig;
use crate::bounds::NamespaceBounds;
use crate::run::{Isolation, Run};
use crate::secret::Secret;
use crate::special_address::{single, unlisted_metadata};
use std::borrow::Cow;
use std::net::IpAddr;

impl FunctionConfig {
    /// The configuration for delivery, without restrictions that cannot affect the function. Nodes
    /// of the previous release do not know these restrictions, and would refuse the configuration.
    pub fn for_delivery(&self) -> Cow<'_, Self> {
        let (no_files, no_fetches) = (!names_files(self), !fetches(self));
        let is_isolated = self.weaker_isolation().is_none();
        let no_metadata = self.unlisted_metadata().is_none();
        let no_folders = !self.all_revisions().any(|revision| has_host_volumes(&revision.template.run));
        let NamespaceBounds { files, host_paths, egress, metadata, isolation, .. } = &self.bounds;
        if (no_files && files.is_some())
            || (no_folders && host_paths.is_some())
            || (no_fetches && egress.is_some())
            || (no_metadata && metadata.is_some())
            || (is_isolated && isolation.is_some())
        {
            let mut function = self.clone();
            function.bounds.isolation.take_if(|_| is_isolated);
            function.bounds.files.take_if(|_| no_files);
            function.bounds.host_paths.take_if(|_| no_folders);
            function.bounds.egress.take_if(|_| no_fetches);
            function.bounds.metadata.take_if(|_| no_metadata);
            return Cow::Owned(function);
        }
        Cow::Borrowed(self)
    }

    /// The isolation of a revision that is weaker than the namespace permits, and the weakest that
    /// it permits.
    pub fn weaker_isolation(&self) -> Option<(Isolation, Isolation)> {
        let least = self.bounds.isolation?;
        let isolations = self.all_revisions().filter_map(|revision| match revision.template.run {
            Run::Command(command) => Some(command.isolation),
            Run::Job(job) => Some(job.process.isolation),
            Run::External(_) | Run::Wasm(_) | Run::Egress(_) | Run::Pods(_) => None,
        });
        isolations.into_iter().find(|isolation| isolation.is_weaker_than(least)).map(|isolation| (isolation, least))
    }

    /// The first address of metadata services that a revision names and the namespace does not
    /// permit.
    pub fn unlisted_metadata(&self) -> Option<IpAddr> {
        let listed = self.bounds.metadata.as_deref()?;
        let named = self.all_revisions().flat_map(|revision| match revision.template.run {
            Run::External(addresses) => {
                addresses.into_iter().map(|address| single(address.ip().to_canonical())).collect()
            }
            Run::Egress(egress) => [egress.addresses, egress.resolves_to].concat(),
            Run::Command(_) | Run::Wasm(_) | Run::Job(_) | Run::Pods(_) => Vec::new(),
        });
        let mut unlisted = named.filter(|block| unlisted_metadata(listed, *block).is_some());
        unlisted.next().map(|block| block.address)
    }
}

/// Whether the program has folders of the node.
fn has_host_volumes(run: &Run) -> bool {
    run.volumes().any(|volume| volume.host.is_some())
}

/// Whether some of the secrets are files.
fn are_files(secrets: &[Secret]) -> bool {
    secrets.iter().any(|secret| secret.from.file().is_some())
}

/// Whether the function's documents name files that the node opens.
fn names_files(function: &FunctionConfig) -> bool {
    let run = |run: &Run| match run {
        Run::Command(command) => {
            let files = are_files(&command.secrets) || !command.read_only_paths.is_empty();
            files || command.container.is_some() || command.directory.parent().is_some()
        }
        Run::Job(job) => {
            let files = are_files(&job.process.secrets) || !job.process.read_only_paths.is_empty();
            files || job.process.container.is_some() || job.process.directory.parent().is_some()
        }
        Run::Wasm(wasm) => are_files(&wasm.secrets),
        Run::Egress(egress) => egress.secret_sources().any(|source| source.file().is_some()),
        Run::External(_) | Run::Pods(_) => false,
    };
    function.all_revisions().any(|revision| run(&revision.template.run))
        || function.jwks.iter().any(|fetch| fetch.ca_file.is_some())
        || function.modules().any(|(_, url)| url.is_some_and(|url| url.ca_file.is_some()))
}

/// Whether the function's documents name addresses from which nodes fetch.
fn fetches(function: &FunctionConfig) -> bool {
    !function.jwks.is_empty()
        || function.modules().any(|(_, url)| url.is_some())
        || function.all_revisions().any(|revision| revision.template.run.container().is_some())
}
