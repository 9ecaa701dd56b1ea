//! The program `leno-cni`: a CNI plug-in for container runtimes, and its installer for people and
//! for Kubernetes.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use leno_cni::install::{self, InstallError, Installer};
use leno_cni::plugin::{self, Options};

/// Leno's CNI plug-in. Container runtimes start it with CNI_COMMAND; the commands below install it.
#[derive(Parser)]
#[command(name = "leno-cni", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install the plug-in on this node and keep it installed, until SIGTERM.
    Install {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        entry: Entry,
        /// Remove the plug-in at SIGTERM. Without it, the plug-in stays for the next installer.
        #[arg(long)]
        remove: bool,
    },
    /// Remove the plug-in from this node.
    Remove {
        #[command(flatten)]
        place: Place,
    },
    /// Exit with 0 if the plug-in is installed on this node.
    Check {
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Args)]
struct Place {
    /// The folder of network configurations.
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "FOLDER")]
    configuration_folder: PathBuf,
    /// The folder of CNI plug-ins.
    #[arg(long, default_value = "/opt/cni/bin", value_name = "FOLDER")]
    binary_folder: PathBuf,
}

#[derive(Args)]
struct Entry {
    /// The file of the network configuration; by default the first one in its folder.
    #[arg(long, value_name = "NAME")]
    file: Option<String>,
    /// The agent's socket, as the container runtime sees it.
    #[arg(long, default_value = leno_cni::protocol::SOCKET, value_name = "FILE")]
    socket: PathBuf,
    /// The agent's list of enforced namespaces, as the container runtime sees it.
    #[arg(long, default_value = leno_cni::enforced::ENFORCED_FILE, value_name = "FILE")]
    enforced: PathBuf,
    /// A namespace whose pods never wait for the agent, instead of the default ones; repeatable.
    #[arg(long, value_name = "NAMESPACE")]
    exempt: Vec<String>,
    /// How long a pod waits for the agent, in milliseconds.
    #[arg(long, default_value_t = Options::default().timeout_milliseconds, value_name = "MS")]
    timeout: u64,
}

fn installer(place: Place, entry: Option<Entry>) -> Installer {
    let mut installer = Installer {
        configuration_folder: place.configuration_folder,
        binary_folder: place.binary_folder,
        file: None,
        options: Options::default(),
        program: "/proc/self/exe".into(),
    };
    if let Some(entry) = entry {
        let exempt = if entry.exempt.is_empty() { Options::default().exempt } else { entry.exempt };
        installer.file = entry.file;
        installer.options =
            Options { socket: entry.socket, enforced: entry.enforced, exempt, timeout_milliseconds: entry.timeout };
    }
    installer
}

fn command(command: Command) -> Result<(), InstallError> {
    match command {
        Command::Install { place, entry, remove } => {
            install::run(&installer(place, Some(entry)), remove, std::io::stderr())
        }
        Command::Remove { place } => installer(place, None).remove(),
        Command::Check { place } => installer(place, None).check().map(drop),
    }
}

fn main() -> ExitCode {
    if std::env::var_os("CNI_COMMAND").is_some() {
        return plugin::run(|name| std::env::var_os(name), std::io::stdin(), std::io::stdout(), std::io::stderr());
    }
    match command(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leno-cni: {error}");
            ExitCode::FAILURE
        }
    }
}
