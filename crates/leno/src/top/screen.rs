//! Draws the screen of `leno top`.

use super::table::{Mark, Tab, View};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};

const KEYS: &[(&str, &str)] = &[
    ("1 2 3, Tab", "functions, edges, instances"),
    ("↑ ↓, j k, PgUp PgDn", "select a row"),
    ("Enter", "a function's edges; of an edge, the callee's instances"),
    ("i", "instances of the selected function"),
    ("← →, r", "the column that orders the rows; reverse the order"),
    ("/", "filter by text; Enter keeps it, Esc clears it"),
    ("Space", "pause, and go on"),
    ("Esc", "back"),
    ("q, Ctrl-C", "quit"),
];

impl View {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let [head, table, foot] =
            Layout::vertical([Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        self.draw_table(frame, table);
        frame.render_widget(self.foot(), foot);
        if self.shows_help {
            draw_help(frame);
        }
    }

    fn head(&self) -> Vec<Line<'static>> {
        let tab = |(number, name, tab): (&str, &str, Tab)| {
            let style = if tab == self.tab { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            Span::styled(format!(" {number} {name} "), style)
        };
        let tabs = [("1", "functions", Tab::Functions), ("2", "edges", Tab::Edges), ("3", "instances", Tab::Instances)];
        let mut first: Vec<Span<'_>> = tabs.into_iter().map(tab).collect();
        if let Some(function) = &self.function {
            first.push(Span::raw(format!("  of {function}")));
        }
        if !self.filter.is_empty() || self.is_typing {
            first.push(Span::raw(format!("  /{}{}", self.filter, if self.is_typing { "_" } else { "" })));
        }
        if self.is_paused {
            first.push(Span::styled("  paused", Style::new().add_modifier(Modifier::BOLD)));
        }
        let second = match self.graph() {
            None => "asks for the state of the mesh".to_owned(),
            Some(graph) => {
                let functions = graph.nodes.iter().filter(|node| !node.state.is_empty()).count();
                let rate: f64 = graph.edges.iter().map(|edge| edge.traffic.rate).sum();
                let (failed, denied) = graph.edges.iter().fold((0.0, 0.0), |(failed, denied), edge| {
                    (failed + edge.traffic.failed, denied + edge.traffic.denied)
                });
                let window = graph.window;
                let missing = match graph.missing.len() {
                    0 => String::new(),
                    count => format!(", {count} not answering"),
                };
                format!(
                    "{functions} functions, {rate:.1} requests/s, {failed:.1} failed/s, {denied:.1} denied/s, over {window:.0} s{missing}"
                )
            }
        };
        vec![Line::from(first), Line::raw(second)]
    }

    fn draw_table(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.rows();
        let (order, descending) = self.order();
        let arrow = if descending { "▼" } else { "▲" };
        let titles = self.tab.columns().iter().enumerate();
        let titles: Vec<String> = titles
            .map(|(column, title)| if column == order { format!("{title}{arrow}") } else { (*title).to_owned() })
            .collect();
        let width = |column: usize| {
            let texts = rows.iter().map(|row| row.cells[column].text.chars().count());
            let widest = texts.chain([titles[column].chars().count()]).max().unwrap_or_default();
            Constraint::Length(u16::try_from(widest.min(60)).unwrap_or(60))
        };
        let widths: Vec<Constraint> = (0..titles.len()).map(width).collect();
        let drawn = rows.iter().map(|row| {
            let style = match row.mark {
                Mark::None => Style::new(),
                Mark::Quiet => Style::new().add_modifier(Modifier::DIM),
                Mark::Bad => Style::new().fg(Color::Red),
            };
            Row::new(row.cells.iter().map(|cell| Cell::from(cell.text.clone()))).style(style)
        });
        let table = Table::new(drawn, widths)
            .header(Row::new(titles.clone()).style(Style::new().add_modifier(Modifier::BOLD)))
            .column_spacing(2)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let selected = (!rows.is_empty()).then(|| self.selected.min(rows.len() - 1));
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
    }

    fn foot(&self) -> Line<'_> {
        match &self.failure {
            Some(failure) => Line::styled(failure.as_str(), Style::new().fg(Color::Red)),
            None => Line::raw("? keys  / filter  Enter open  ← → order  q quit"),
        }
    }
}

fn draw_help(frame: &mut Frame<'_>) {
    let lines: Vec<Line<'_>> = KEYS.iter().map(|(keys, action)| Line::raw(format!("{keys:<22}{action}"))).collect();
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let area = frame.area().centered(Constraint::Length(84), Constraint::Length(height));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("Keys")), area);
}
