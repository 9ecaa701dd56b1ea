//! `leno` in a pseudo terminal of util-linux's `script`, and the screen that it draws.

use leno_testkit::{eventually, leno_program};
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

const ROWS: NonZero<u16> = NonZero::new(30).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(120).unwrap();

pub(crate) struct Terminal {
    pub child: Child,
    keys: ChildStdin,
    pub screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Starts a command with these words, and these variables in its environment.
    pub(crate) fn start(arguments: &str, variables: &[(&str, &str)]) -> Self {
        let command = format!("stty rows {ROWS} cols {COLUMNS}; exec {} {arguments}", leno_program().display());
        let mut child = Command::new("script")
            .args(["-q", "-e", "-c", &command, "/dev/null"])
            .env("TERM", "xterm-256color")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`script` of util-linux");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
        let mut output = child.stdout.take().unwrap();
        let drawn = screen.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap().process(&bytes[..count]);
            }
        });
        Self { keys: child.stdin.take().unwrap(), child, screen }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// The screen, as soon as it has this text.
    pub(crate) fn shows(&self, wanted: &str) -> String {
        eventually(wanted, || Some(self.text()).filter(|text| text.contains(wanted)))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
