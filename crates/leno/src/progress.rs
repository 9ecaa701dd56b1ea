//! Progress of work that takes more than a second, on standard error: a bar in a terminal, and a
//! line every five seconds elsewhere. Answers for programs have none.

use crate::screen::shown;
use clap::ArgMatches;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Shorter work has no bar.
const SHORT: Duration = Duration::from_secs(1);
/// Pause between two drawings in a terminal.
const FRAME: Duration = Duration::from_millis(100);
/// Pause between two lines elsewhere.
const LINE: Duration = Duration::from_secs(5);

static IS_SILENT: AtomicBool = AtomicBool::new(false);
/// Bars that are drawn now.
static DRAWN: AtomicUsize = AtomicUsize::new(0);
static BARS: LazyLock<MultiProgress> =
    LazyLock::new(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(20)));

/// Work that is under way. Its progress disappears with it.
pub(crate) struct Progress {
    shared: Arc<ProgressState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct ProgressState {
    work: Mutex<Work>,
    ended: Condvar,
}

#[derive(Clone, Default)]
struct Work {
    text: String,
    /// The part that is done, and all of it.
    part: Option<(u64, u64)>,
    has_ended: bool,
}

impl Progress {
    /// Begins work: `compiles the documents`.
    pub(crate) fn of(text: impl Into<String>) -> Self {
        let work = Work { text: text.into(), ..Work::default() };
        let shared = Arc::new(ProgressState { work: Mutex::new(work), ended: Condvar::new() });
        let thread = (!IS_SILENT.load(Ordering::Relaxed)).then(|| {
            let shared = shared.clone();
            thread::spawn(move || shared.follow())
        });
        Self { shared, thread }
    }

    /// Changes the text, and the part that is done, of all.
    pub(crate) fn set(&self, text: impl Into<String>, part: Option<(u64, u64)>) {
        let mut work = self.shared.work();
        (work.text, work.part) = (text.into(), part.filter(|(_, all)| *all > 0));
    }

    /// Waits, with the part of the time that has passed.
    pub(crate) fn sleep(text: &str, time: Duration) {
        let (begin, progress) = (Instant::now(), Self::of(text));
        let tenths = |time: Duration| u64::try_from(time.as_millis() / 100).unwrap_or(u64::MAX);
        while let Some(left) = time.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
            progress.set(text, Some((tenths(begin.elapsed()), tenths(time))));
            thread::sleep(left.min(FRAME));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.work().has_ended = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl ProgressState {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end, at most for this time. The work, if it goes on.
    fn goes_on(&self, time: Duration) -> Option<Work> {
        let waited = self.ended.wait_timeout_while(self.work(), time, |work| !work.has_ended);
        let (work, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!work.has_ended).then(|| work.clone())
    }

    fn follow(&self) {
        let begin = Instant::now();
        let is_drawn = is_drawn();
        // Scripts of short commands see no line.
        let Some(work) = self.goes_on(if is_drawn { SHORT } else { LINE }) else { return };
        if is_drawn { self.draw(work) } else { self.say(work, begin) }
    }

    fn draw(&self, mut work: Work) {
        DRAWN.fetch_add(1, Ordering::Relaxed);
        let bar = BARS.add(ProgressBar::no_length());
        loop {
            bar.set_style(style(work.part.is_some()));
            if let Some((done, all)) = work.part {
                bar.set_length(all);
                bar.set_position(done.min(all));
            }
            bar.set_message(shown(&work.text).into_owned());
            bar.tick();
            match self.goes_on(FRAME) {
                Some(next) => work = next,
                None => break,
            }
        }
        bar.finish_and_clear();
        BARS.remove(&bar);
        DRAWN.fetch_sub(1, Ordering::Relaxed);
    }

    fn say(&self, mut work: Work, begin: Instant) {
        loop {
            let part = work.part.map(|(done, all)| format!(", {} %", done.min(all) * 100 / all)).unwrap_or_default();
            eprintln!("leno: {}{part} ({} s)", shown(&work.text), begin.elapsed().as_secs());
            match self.goes_on(LINE) {
                Some(next) => work = next,
                None => break,
            }
        }
    }
}

fn style(has_part: bool) -> ProgressStyle {
    let template = match has_part {
        true => "{spinner} [{bar:24}] {percent:>3} %  {elapsed}  {wide_msg}",
        false => "{spinner} {elapsed}  {wide_msg}",
    };
    // A template that cannot be read would be a defect of this function.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

/// Whether standard error is a terminal that can draw.
pub(crate) fn is_drawn() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Shows no progress from now on: another program reads the output, or the screen is in use.
pub(crate) fn silence() {
    IS_SILENT.store(true, Ordering::Relaxed);
}

/// Shows no progress beside answers for programs.
pub(crate) fn silence_for_programs(matches: &ArgMatches) {
    if is_for_programs(matches) {
        silence();
    }
}

/// Whether the arguments of a command, or of one below it, ask for an answer for programs.
fn is_for_programs(matches: &ArgMatches) -> bool {
    let is_format = |value: &std::ffi::OsStr| value == "json" || value == "yaml" || value == "name";
    let format = matches.try_get_raw("output").ok().flatten();
    let json = matches.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or_default();
    let below = matches.subcommand().is_some_and(|(_, below)| is_for_programs(below));
    format.is_some_and(|mut values| values.any(is_format)) || json || below
}

/// Writes above the bars, so that none is torn.
pub(crate) fn above<T>(write: impl FnOnce() -> T) -> T {
    if DRAWN.load(Ordering::Relaxed) == 0 { write() } else { BARS.suspend(write) }
}

/// Standard error, above the bars.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        above(|| io::stderr().write(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_for_programs_are_known_by_their_options() {
        let is_for_programs = |line: &str| {
            let words = std::iter::once("leno").chain(line.split(' '));
            is_for_programs(&crate::command().try_get_matches_from(words).unwrap())
        };
        for line in [
            "get functions -o json",
            "get functions -oyaml",
            "get functions --json",
            "get functions --output=name",
            "graph -o json --window 10s",
            "apply -f x.yaml --dry-run -o json",
            "suggest egress demo/shop -o json",
        ] {
            assert!(is_for_programs(line), "{line}");
        }
        for line in ["get functions", "get functions -o wide", "graph -o dot", "apply -f x.yaml --wait", "up x.yaml"] {
            assert!(!is_for_programs(line), "{line}");
        }
    }
}
