//! `leno top`: functions, calls and instances, as they are now.

mod screen;
mod table;

use crate::NodeAddress;
use crate::client::{Listing, Source};
use crate::names::NamespaceOptions;
use crate::progress::{self, Progress};
use crate::remote::Server;
use anyhow::{Context, Result, bail, ensure};
use leno_dashboard::graph::Graph;
use leno_dashboard::mesh::Mesh;
use ratatui::crossterm::event::{self, Event};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};
use table::{Tab, View};

/// Pause between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Rates are of the traffic of this time.
const WINDOW: Duration = Duration::from_secs(10);
/// Pause between two looks at the keyboard.
const KEY: Duration = Duration::from_millis(200);

/// The part of the mesh, and the form of the output.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The table to begin with.
    #[arg(value_enum, default_value_t = Tab::Functions)]
    table: Tab,
    /// Only rows that contain this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    #[command(flatten)]
    namespace: NamespaceOptions,
    /// Print the table once, with the traffic of two seconds, and end.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    node: NodeAddress,
}

/// A moment of the mesh.
struct Sample {
    graph: Graph,
    instances: Vec<Value>,
}

/// Shows tables until the user quits.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let source = Source::of(&options.server, &options.node)?;
    let chosen = options.namespace.selection(source.namespace(), None)?;
    let mut view = View::new(options.table, &options.filter, chosen.namespace);
    if options.once {
        let before = source.look()?;
        Progress::sleep("counts requests", 2 * LOOK);
        view.show(sample(&source, [before].iter().collect(), source.look()?)?);
        view.lines().iter().for_each(|line| println!("{line}"));
        return Ok(ExitCode::SUCCESS);
    }
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    ensure!(is_terminal, "standard input and output have to be a terminal; `leno top --once` prints the table once");
    let (sender, samples) = mpsc::channel();
    // The first failure ends the command before the screen is taken.
    let first = source.look()?;
    thread::Builder::new().name("leno-look".to_owned()).spawn(move || watch(&source, first, &sender))?;
    progress::silence();
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let ended = interact(&mut terminal, &mut view, &samples);
    ratatui::try_restore().context("the terminal cannot be restored")?;
    ended.map(|()| ExitCode::SUCCESS)
}

/// Sends samples as long as the screen is there.
fn watch(source: &Source, first: Mesh, samples: &Sender<Result<Sample>>) {
    let mut looks = VecDeque::from([first]);
    loop {
        thread::sleep(LOOK);
        let result = source.look().and_then(|now| {
            while looks.len() > 1 && looks[1].at + WINDOW <= now.at {
                looks.pop_front();
            }
            let sample = sample(source, looks.iter().collect(), now.clone());
            looks.push_back(now);
            sample
        });
        if samples.send(result).is_err() {
            return;
        }
    }
}

fn sample(source: &Source, before: Vec<&Mesh>, now: Mesh) -> Result<Sample> {
    let graph = Graph::between(before.first().copied(), &now);
    let (_, instances) = source.rows(Listing::Instances)?;
    Ok(Sample { graph, instances })
}

fn interact(
    terminal: &mut ratatui::DefaultTerminal,
    view: &mut View,
    samples: &Receiver<Result<Sample>>,
) -> Result<()> {
    let mut failed_since: Option<Instant> = None;
    loop {
        match samples.try_recv() {
            Ok(Ok(sample)) => {
                failed_since = None;
                view.show(sample);
            }
            Ok(Err(error)) => {
                failed_since.get_or_insert_with(Instant::now);
                view.fail(&error);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => bail!("the thread that asks for the state of the mesh has ended"),
        }
        terminal.draw(|frame| view.draw(frame)).context("the terminal cannot be written")?;
        if event::poll(KEY).context("the keyboard cannot be read")?
            && let Event::Key(key) = event::read().context("the keyboard cannot be read")?
            && view.press(key)
        {
            return Ok(());
        }
    }
}
