use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

fn sample() -> Sample {
    let node = |name: &str, state: &str, rate: f64| leno_dashboard::graph::Node {
        name: name.to_owned(),
        kind: NodeKind::Function,
        state: state.to_owned(),
        failure: if state == "failed" { "exits with 1".to_owned() } else { String::new() },
        ready: 1,
        desired: 1,
        waiting: 0,
        hosts: Vec::new(),
        chain: String::new(),
        shares: Vec::new(),
        traffic: Traffic { rate, success: (rate > 0.0).then_some(0.9996), p50: Some(1.5), ..Traffic::default() },
    };
    let edge = |source: &str, target: &str, rate: f64, denied: f64| leno_dashboard::graph::Edge {
        source: source.to_owned(),
        target: target.to_owned(),
        status: if denied > 0.0 { EdgeStatus::Refused } else { EdgeStatus::Active },
        traffic: Traffic { rate, denied, ..Traffic::default() },
        authenticated: true,
        chain: String::new(),
    };
    let graph = Graph {
        window: 10.0,
        nodes: vec![
            node("shop/cart", "failed", 3.0),
            node("shop/stock", "idle", 0.0),
            node("other/web", "ready", 20.0),
        ],
        edges: vec![edge("gateway", "shop/cart", 3.0, 0.0), edge("shop/cart", "shop/stock", 1.0, 1.0)],
        missing: vec!["node b: it does not answer".to_owned()],
    };
    let instances = json!([
        {"instance": "shop/cart/1", "function": "shop/cart", "state": "ready", "node": "a", "pid": 7, "restarts": 0},
        {"instance": null, "function": "shop/stock", "state": "pulling\u{1b}[2J", "reason": null},
    ]);
    Sample { graph, instances: instances.as_array().unwrap().clone() }
}

fn view() -> View {
    let mut view = View::new(Tab::Functions, "", None);
    view.show(sample());
    view
}

fn press(view: &mut View, keys: &str) -> bool {
    keys.chars().fold(false, |ended, key| {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '<' => KeyCode::Left,
            '>' => KeyCode::Right,
            'v' => KeyCode::Down,
            '\u{1b}' => KeyCode::Esc,
            other => KeyCode::Char(other),
        };
        view.press(KeyEvent::from(code)) || ended
    })
}

fn firsts(view: &View) -> Vec<String> {
    view.rows().iter().map(|row| row.cells[0].text.clone()).collect()
}

#[test]
fn rows_are_ordered_by_any_column_and_filtered_by_any_text() {
    let mut view = view();
    assert_eq!(firsts(&view), ["other/web", "shop/cart", "shop/stock"], "the most requests first");
    assert_eq!(view.rows()[0].cells[6].text, "99.9 %", "not all");
    press(&mut view, "r");
    assert_eq!(firsts(&view), ["shop/stock", "shop/cart", "other/web"]);
    press(&mut view, "<<<<<");
    assert_eq!(firsts(&view), ["other/web", "shop/cart", "shop/stock"], "by name");
    press(&mut view, "/sto");
    assert_eq!(firsts(&view), ["shop/stock"]);
    assert!(!press(&mut view, "q"), "it is a letter of the filter");
    assert!(firsts(&view).is_empty());
    press(&mut view, "\u{1b}");
    assert_eq!(firsts(&view).len(), 3);
    assert!(press(&mut view, "q"));
    assert!(view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
}

#[test]
fn a_function_leads_to_its_edges_and_an_edge_to_instances() {
    let mut view = view();
    press(&mut view, "v\n");
    assert_eq!((view.tab, view.function.as_deref()), (Tab::Edges, Some("shop/cart")));
    assert_eq!(firsts(&view), ["gateway", "shop/cart"]);
    press(&mut view, "\n");
    assert_eq!((view.tab, firsts(&view)), (Tab::Instances, vec!["shop/cart/1".to_owned()]));
    press(&mut view, "\u{1b}");
    assert_eq!(view.tab, Tab::Functions);
    press(&mut view, "\t\t");
    assert_eq!(firsts(&view), ["shop/cart/1", "shop/stock"], "an image that is pulled has no instance");
    press(&mut view, "1vvvvvvv");
    assert_eq!(view.selected, 2);
}

#[test]
fn a_namespace_hides_the_others_but_not_the_other_ends_of_calls() {
    let mut view = View::new(Tab::Functions, "", Some("shop".to_owned()));
    view.show(sample());
    assert_eq!(firsts(&view), ["shop/cart", "shop/stock"]);
    press(&mut view, "2");
    assert_eq!(firsts(&view), ["gateway", "shop/cart"]);
}

#[test]
fn the_screen_fits_any_size_and_shows_what_is_wrong() {
    let mut view = view();
    let screen = |view: &View, (width, height): (u16, u16)| {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        buffer.content().iter().map(|cell| cell.symbol().to_owned()).collect::<String>()
    };
    let wide = screen(&view, (160, 20));
    for text in ["REQ/S▼", "exits with 1", "1 not answering", "q quit"] {
        assert!(wide.contains(text), "{text}: {wide}");
    }
    assert!(wide.contains("4.0 requests/s, 0.0 failed/s, 1.0 denied/s, over 10 s"), "{wide}");
    press(&mut view, "3");
    assert!(!screen(&view, (120, 20)).contains('\u{1b}'), "a state acts on no terminal");
    press(&mut view, "?");
    view.fail(&anyhow::anyhow!("no node\u{1b}[2J"));
    view.is_paused = true;
    for size in [(1, 1), (10, 3), (80, 24), (300, 100)] {
        screen(&view, size);
    }
    let paused = screen(&view, (120, 24));
    assert!(paused.contains("paused") && paused.contains("no node\\u{1b}[2J") && paused.contains("Ctrl-C"), "{paused}");
}

#[test]
fn lines_have_the_widths_of_their_columns() {
    let view = view();
    let lines = view.lines();
    assert_eq!(lines.len(), 4);
    let column = lines[0].find("STATE").unwrap();
    assert!(lines[1][column..].starts_with("ready") && lines[2][column..].starts_with("failed"), "{lines:?}");
}
