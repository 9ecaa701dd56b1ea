//! The output of the demo.

/// Prints the lines, and counts failures.
#[derive(Default)]
pub(crate) struct Report {
    lines: usize,
    failures: usize,
    policy: &'static str,
}

/// One attempt.
pub(crate) struct Line {
    /// Which of the nine policies it shows.
    pub policy: &'static str,
    /// The request.
    pub sent: String,
    /// The response.
    pub back: String,
    /// The rule that decided.
    pub rule: String,
    /// Further details.
    pub details: Vec<String>,
    /// The expectations that the response does not meet.
    pub expected: Vec<String>,
}

impl Line {
    pub(crate) fn new(policy: &'static str, sent: impl Into<String>) -> Self {
        let (back, rule) = (String::new(), String::new());
        Self { policy, sent: sent.into(), back, rule, details: Vec::new(), expected: Vec::new() }
    }

    /// Notes an expectation that was not met.
    pub(crate) fn expect(&mut self, met: bool, what: impl Into<String>) {
        if !met {
            self.expected.push(what.into());
        }
    }
}

impl Report {
    pub(crate) fn print(&mut self, line: Line) {
        self.lines += 1;
        let mark = if line.expected.is_empty() { "ok  " } else { "FAIL" };
        let policy = if line.policy == self.policy { "" } else { line.policy };
        self.policy = line.policy;
        println!("{mark} {policy:<24} {:<54} -> {:<24} {}", line.sent, line.back, line.rule);
        for detail in &line.details {
            println!("     {:<24} {detail}", "");
        }
        for expected in &line.expected {
            println!("     {:<24} expected: {expected}", "");
        }
        self.failures += usize::from(!line.expected.is_empty());
    }

    pub(crate) fn broke_off(&mut self, error: &dyn std::error::Error) {
        self.failures += 1;
        println!("FAIL it could not go on: {error}");
    }

    pub(crate) fn failures(&self) -> usize {
        self.failures
    }

    pub(crate) fn conclude(&self) {
        match self.failures {
            0 => println!("\nall {} as expected", self.lines),
            failures => println!("\n{failures} not as expected"),
        }
    }
}
