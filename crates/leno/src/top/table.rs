//! The tables of `leno top`: their rows, order and filter, and the keys that change them.

use super::Sample;
use crate::screen::shown;
use anyhow::Error;
use leno_dashboard::graph::{EdgeStatus, Graph, NodeKind, Traffic};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;
use std::cmp::Ordering;

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tab {
    /// Functions and external services, with the requests to them.
    Functions,
    /// Calls by caller and callee.
    Edges,
    /// Running copies of functions.
    Instances,
}

/// The state of the screen.
pub(super) struct View {
    pub tab: Tab,
    pub filter: String,
    /// Whether keys go into the filter.
    pub is_typing: bool,
    pub is_paused: bool,
    pub shows_help: bool,
    /// The function whose edges are shown; `None`: all edges.
    pub function: Option<String>,
    pub selected: usize,
    /// The column that orders the rows of each table, and whether the largest comes first.
    order: [(usize, bool); 3],
    namespace: Option<String>,
    sample: Option<Sample>,
    pub failure: Option<String>,
}

/// A cell: its text, and the number by which rows are ordered, if it has one.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub text: String,
    number: Option<f64>,
}

/// A row, and whether it needs attention.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub cells: Vec<Cell>,
    pub mark: Mark,
}

/// How a row is marked: by colour, and by the text of its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    None,
    /// Nothing happens.
    Quiet,
    /// Something fails or is refused.
    Bad,
}

impl Tab {
    const ALL: [Self; 3] = [Self::Functions, Self::Edges, Self::Instances];

    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Functions => &[
                "FUNCTION", "STATE", "READY", "DESIRED", "WAITING", "REQ/S", "SUCCESS", "P50 MS", "P99 MS", "FAILED/S",
                "DENIED/S", "FAILURE",
            ],
            Self::Edges => {
                &["CALLER", "CALLEE", "STATUS", "REQ/S", "SUCCESS", "P50 MS", "P99 MS", "FAILED/S", "DENIED/S"]
            }
            Self::Instances => &["INSTANCE", "STATE", "NODE", "PID", "ISOLATION", "RESTARTS", "REASON"],
        }
    }

    fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }
}

impl View {
    pub(super) fn new(tab: Tab, filter: &str, namespace: Option<String>) -> Self {
        Self {
            tab,
            filter: filter.to_owned(),
            is_typing: false,
            is_paused: false,
            shows_help: false,
            function: None,
            selected: 0,
            // Functions and edges by their requests, instances by name.
            order: [(5, true), (3, true), (0, false)],
            namespace,
            sample: None,
            failure: None,
        }
    }

    /// Shows a newer sample, unless the user has paused.
    pub(super) fn show(&mut self, sample: Sample) {
        self.failure = None;
        if !self.is_paused {
            self.sample = Some(sample);
        }
    }

    /// Says that there is no newer sample. The last one stays.
    pub(super) fn fail(&mut self, error: &Error) {
        self.failure = Some(shown(&format!("{error:#}")).into_owned());
    }

    pub(super) fn graph(&self) -> Option<&Graph> {
        self.sample.as_ref().map(|sample| &sample.graph)
    }

    pub(super) fn order(&self) -> (usize, bool) {
        self.order[self.tab as usize]
    }

    /// The rows of the table, filtered and ordered.
    pub(super) fn rows(&self) -> Vec<Row> {
        let Some(Sample { graph, instances }) = &self.sample else { return Vec::new() };
        let mut rows = match self.tab {
            Tab::Functions => functions(graph, |name| self.is_wanted(name)),
            Tab::Edges => edges(graph, |source, target| match &self.function {
                Some(function) => source == function || target == function,
                None => self.is_wanted(source) || self.is_wanted(target),
            }),
            Tab::Instances => self::instances(instances, |name| match &self.function {
                Some(function) => name == function,
                None => self.is_wanted(name),
            }),
        };
        rows.retain(|row| row.cells.iter().any(|cell| cell.text.contains(&self.filter)));
        let (column, descending) = self.order();
        rows.sort_by(|one, other| {
            let order = one.cells[column].compare(&other.cells[column]);
            if descending { order.reverse() } else { order }.then_with(|| one.cells[0].compare(&other.cells[0]))
        });
        rows
    }

    /// The table as lines of text.
    pub(super) fn lines(&self) -> Vec<String> {
        let rows = self.rows();
        let columns = self.tab.columns();
        let width = |column: usize| {
            let texts = rows.iter().map(|row| row.cells[column].text.chars().count());
            texts.chain([columns[column].len()]).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        let line = |texts: Vec<&str>| {
            let cells = texts.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let table = rows.iter().map(|row| line(row.cells.iter().map(|cell| &*cell.text).collect()));
        std::iter::once(line(columns.to_vec())).chain(table).collect()
    }

    /// Acts on a key. Returns whether the user quits.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return false;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        if self.is_typing {
            match key.code {
                KeyCode::Char(character) => self.filter.push(character),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Esc => {
                    self.filter.clear();
                    self.is_typing = false;
                }
                KeyCode::Enter => self.is_typing = false,
                _ => {}
            }
            self.selected = 0;
            return false;
        }
        let last = self.rows().len().saturating_sub(1);
        let columns = self.tab.columns().len();
        let (column, descending) = &mut self.order[self.tab as usize];
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Char('?') | KeyCode::Char('h') => self.shows_help = !self.shows_help,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('r') => *descending = !*descending,
            KeyCode::Left => *column = (*column + columns - 1) % columns,
            KeyCode::Right => *column = (*column + 1) % columns,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::PageDown => self.selected = (self.selected + 10).min(last),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            KeyCode::Tab => self.turn_to(self.tab.next(), None),
            KeyCode::Char(digit @ '1'..='3') => self.turn_to(Tab::ALL[digit as usize - '1' as usize], None),
            KeyCode::Enter => self.open(),
            KeyCode::Char('i') => self.open_instances(),
            KeyCode::Esc if self.shows_help => self.shows_help = false,
            KeyCode::Esc if self.function.is_some() => self.turn_to(Tab::Functions, None),
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
        false
    }

    /// From a function to its calls, from a call to its callee's instances.
    fn open(&mut self) {
        let Some(name) = self.selected_name() else { return };
        match self.tab {
            Tab::Functions => self.turn_to(Tab::Edges, Some(name)),
            Tab::Edges => self.turn_to(Tab::Instances, Some(name)),
            Tab::Instances => {}
        }
    }

    fn open_instances(&mut self) {
        if let Some(name) = self.selected_name().filter(|_| self.tab != Tab::Instances) {
            self.turn_to(Tab::Instances, Some(name));
        }
    }

    /// The function of the selected row; of a call, the callee.
    fn selected_name(&self) -> Option<String> {
        let column = usize::from(self.tab == Tab::Edges);
        self.rows().get(self.selected).map(|row| row.cells[column].text.clone())
    }

    fn turn_to(&mut self, tab: Tab, function: Option<String>) {
        (self.tab, self.function, self.selected) = (tab, function, 0);
        self.filter.clear();
    }

    fn is_wanted(&self, name: &str) -> bool {
        let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
        self.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
    }
}

impl Cell {
    fn text(text: &str) -> Self {
        Self { text: shown(text).into_owned(), number: None }
    }

    fn number(number: f64, digits: usize) -> Self {
        Self { text: format!("{number:.digits$}"), number: Some(number) }
    }

    fn optional(number: Option<f64>, show: impl Fn(f64) -> String) -> Self {
        Self { text: number.map_or_else(|| "-".to_owned(), show), number: Some(number.unwrap_or(-1.0)) }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            _ => self.text.cmp(&other.text),
        }
    }
}

/// Cells of traffic, in the order of both tables.
fn traffic(traffic: &Traffic) -> Vec<Cell> {
    let Traffic { rate, failed, denied, success, p50, p99 } = traffic;
    // All but one of a thousand is not all.
    let percent = |share: f64| format!("{:.1} %", (share * 1e3).floor() / 10.0);
    let time = |ms: f64| format!("{ms:.1}");
    vec![
        Cell::number(*rate, 1),
        Cell::optional(*success, percent),
        Cell::optional(*p50, time),
        Cell::optional(*p99, time),
        Cell::number(*failed, 1),
        Cell::number(*denied, 1),
    ]
}

fn mark(traffic: &Traffic) -> Mark {
    match traffic.rate {
        _ if traffic.failed > 0.0 || traffic.denied > 0.0 => Mark::Bad,
        rate if rate > 0.0 => Mark::None,
        _ => Mark::Quiet,
    }
}

fn functions(graph: &Graph, is_wanted: impl Fn(&str) -> bool) -> Vec<Row> {
    let is_listed = |kind: NodeKind| matches!(kind, NodeKind::Function | NodeKind::External);
    let wanted = graph.nodes.iter().filter(|node| is_listed(node.kind) && is_wanted(&node.name));
    let row = |node: &leno_dashboard::graph::Node| {
        let state = if node.kind == NodeKind::External { "external" } else { &node.state };
        let mut cells = vec![Cell::text(&node.name), Cell::text(state)];
        cells.extend([node.ready, node.desired, node.waiting].map(|count| Cell::number(count as f64, 0)));
        cells.extend(traffic(&node.traffic));
        cells.push(Cell::text(&node.failure));
        let mark = if matches!(state, "failing" | "failed" | "unplaced") { Mark::Bad } else { mark(&node.traffic) };
        Row { cells, mark }
    };
    wanted.map(row).collect()
}

fn edges(graph: &Graph, is_wanted: impl Fn(&str, &str) -> bool) -> Vec<Row> {
    let wanted = graph.edges.iter().filter(|edge| is_wanted(&edge.source, &edge.target));
    let row = |edge: &leno_dashboard::graph::Edge| {
        let status = match edge.status {
            EdgeStatus::Active => "active",
            EdgeStatus::Unused => "unused",
            EdgeStatus::Refused => "refused",
        };
        let mut cells = vec![Cell::text(&edge.source), Cell::text(&edge.target), Cell::text(status)];
        cells.extend(traffic(&edge.traffic));
        Row { cells, mark: mark(&edge.traffic) }
    };
    wanted.map(row).collect()
}

fn instances(rows: &[Value], is_wanted: impl Fn(&str) -> bool) -> Vec<Row> {
    let text = |row: &Value, field: &str| match &row[field] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let row = |row: &Value| {
        let fields = ["instance", "state", "node", "pid", "isolation", "restarts", "reason"];
        let mut cells: Vec<Cell> = fields.iter().map(|field| Cell::text(&text(row, field))).collect();
        if cells[0].text.is_empty() {
            // An image that is not here yet has no instance.
            cells[0] = Cell::text(&text(row, "function"));
        }
        for column in [3, 5] {
            cells[column].number = cells[column].text.parse().ok();
        }
        let mark = if row["state"] == "ready" { Mark::None } else { Mark::Bad };
        Row { cells, mark }
    };
    rows.iter().filter(|row| is_wanted(&text(row, "function"))).map(row).collect()
}

#[cfg(test)]
mod tests;
