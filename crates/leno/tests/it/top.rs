//! `leno top` in a terminal: keys, drawing, and the screen afterwards.

use crate::terminal::Terminal;
use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};
use leno_testkit::{eventually, leno_program};
use std::process::{Command, Stdio};

#[test]
fn the_keyboard_leads_from_functions_to_calls_and_back_and_the_screen_is_restored() {
    let documents = [
        echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]"),
        policy("open", "echo", ALLOW_ALL),
        echo_function("other", ""),
    ];
    let mesh = Mesh::start(&documents.concat());
    assert_eq!(mesh.get("/hello").status, 200);
    let mut top = Terminal::start(&format!("top --admin unix:{}", mesh.socket().display()), &[]);
    let first = top.shows("test/other");
    assert!(first.contains("test/echo") && top.screen.lock().unwrap().screen().alternate_screen(), "{first}");

    // A filter hides other rows, Escape shows them again.
    top.press("/other\r");
    eventually("the filtered table", || Some(()).filter(|()| !top.text().contains("test/echo")));
    top.press("\x1b");
    top.shows("test/echo");

    top.press("2");
    let calls = top.shows("CALLEE");
    assert!(calls.contains("gateway"), "{calls}");
    top.press("3");
    top.shows("INSTANCE");
    top.press("?");
    top.shows("quit");
    top.press("?1");
    top.shows("FUNCTION");

    top.press("q");
    let status = eventually("the end", || top.child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    let screen = top.screen.lock().unwrap();
    assert!(!screen.screen().alternate_screen() && !screen.screen().hide_cursor(), "{}", screen.screen().contents());
}

#[test]
fn listings_and_refusals_are_in_colour_on_terminals_unless_no_color_is_set() {
    let mesh = Mesh::start(&echo_function("echo", "  expose: [{hosts: [\"*\"], path: /}]"));
    assert_eq!(mesh.get("/hello").status, 403);
    let observed = |no_color: &str| {
        let admin = mesh.socket();
        let command = format!("{} observe --last 5 --admin unix:{}", leno_program().display(), admin.display());
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c", &command, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", no_color);
        String::from_utf8(script.stdin(Stdio::null()).output().unwrap().stdout).unwrap()
    };
    let coloured = observed("");
    assert!(coloured.contains("\x1b[31mdeny \x1b[0m"), "{coloured:?}");
    let plain = observed("1");
    assert!(plain.contains(" deny ") && !plain.contains('\x1b'), "{plain:?}");
}
