//! `leno logs`: the output of instances.

use crate::NodeAddress;
use crate::client::Source;
use crate::names::NamespaceOptions;
use crate::output::Format;
use crate::quantity;
use crate::remote::Server;
use crate::screen::{shown, shown_json};
use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use leno_api::log_page::{LogLine, LogPage};
use leno_model::FunctionId;
use std::process::ExitCode;
use std::time::Duration;

/// Pause between two queries of `--follow`.
const LOOK: Duration = Duration::from_millis(500);

/// The selection of lines, and their format.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Continue with new lines, until interrupted.
    #[arg(short, long)]
    follow: bool,
    /// Of the earlier lines, only the last N of each instance.
    #[arg(long, value_name = "N")]
    tail: Option<u32>,
    /// Only lines of this last time: `10m`, `2h`.
    #[arg(long, value_name = "DURATION", value_parser = quantity::seconds)]
    since: Option<u64>,
    /// Only this instance: its number, or its name as `leno get instances` shows it.
    #[arg(long, value_name = "INSTANCE")]
    instance: Option<String>,
    /// Only the instance that ended last, on each node.
    #[arg(long, conflicts_with = "follow")]
    previous: bool,
    /// Of a job, only the output of this run, from 1 (`leno get jobs` has the last one's number).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,
    /// Only instances on this node; with a control plane.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    #[command(flatten)]
    format: Format,
}

/// The output of one function.
struct Stream {
    id: FunctionId,
    /// Where the next page begins.
    after: Option<String>,
    /// The nodes that did not answer last time, which the user knows.
    missing: Vec<String>,
}

/// Prints lines of these functions until there are no more, or until it is interrupted.
pub(crate) fn run(
    functions: &[String],
    namespace: &NamespaceOptions,
    options: &Options,
    (server, node): (&Server, &NodeAddress),
) -> Result<ExitCode> {
    let source = Source::of(server, node)?;
    let stream = |name: &String| {
        let id = namespace.function(source.namespace(), name)?;
        Ok(Stream { id, after: None, missing: Vec::new() })
    };
    let mut streams: Vec<Stream> = functions.iter().map(stream).collect::<Result<_>>()?;
    ensure!(
        options.node.is_none() || matches!(source, Source::ControlPlane(_)),
        "--node is for a control plane; name it by --server, LENO_SERVER or a context"
    );
    let filter = options.filter()?;
    let since = options.since.map(|since| Timestamp::now().as_millisecond() as f64 / 1e3 - since as f64);
    let many = streams.len() > 1;
    loop {
        let mut more = false;
        for Stream { id, after, missing } in &mut streams {
            let page = page(&source, id, &filter, options.tail, after.as_deref())?;
            for missing in page.missing.iter().filter(|name| !missing.contains(*name)) {
                eprintln!("leno: {}", shown(missing));
            }
            *missing = page.missing;
            if page.dropped > 0 {
                eprintln!("… {} dropped", counted(page.dropped));
            }
            for line in page.lines.iter().filter(|line| since.is_none_or(|since| line.time >= since)) {
                println!("{}", told_line(line, many.then_some(&*id), options.format.is_json())?);
            }
            *after = Some(page.after);
            more |= page.more;
        }
        if more {
            continue;
        }
        if !options.follow {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(LOOK);
    }
}

impl Options {
    /// The part of the query that is the same for all pages.
    fn filter(&self) -> Result<String> {
        let mut filter = format!("previous={}", self.previous);
        if let Some(instance) = &self.instance {
            let number = instance.rsplit('/').next().unwrap_or_default();
            let number: u64 = number.parse().with_context(|| {
                format!(
                    "`{}` is no instance: expected a number, or a name such as demo/shop/3",
                    instance.escape_debug()
                )
            })?;
            filter += &format!("&instance={number}");
        }
        if let Some(attempt) = self.attempt {
            filter += &format!("&attempt={attempt}");
        }
        if let Some(node) = &self.node {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
            ensure!(!node.is_empty() && node.bytes().all(plain), "`{}` is not the name of a node", node.escape_debug());
            filter += &format!("&node={node}");
        }
        Ok(filter)
    }
}

fn page(source: &Source, id: &FunctionId, filter: &str, tail: Option<u32>, after: Option<&str>) -> Result<LogPage> {
    let from = match (after, tail) {
        (Some(after), _) => format!("&after={after}"),
        (None, Some(tail)) => format!("&tail={tail}"),
        (None, None) => String::new(),
    };
    let query = format!("{id}?{filter}{from}");
    match source {
        Source::ControlPlane(connection) => Ok(connection.get(&format!("/v1/logs/{query}"))?),
        Source::Node(node) => {
            let (status, body) = node.ask(&format!("/logs/{query}"))?;
            ensure!(status == 200, "the node at {} answered {status}: {}", node.admin, shown(body.trim_end()));
            serde_json::from_str(&body).context("the node's answer is not a page of lines")
        }
    }
}

/// `!` marks standard error, as in the log of a node. `function`: names it, where there are several.
fn told_line(line: &LogLine, function: Option<&FunctionId>, json: bool) -> Result<String> {
    if json {
        let mut line = serde_json::to_value(line)?;
        if let Some(function) = function {
            line["function"] = function.to_string().into();
        }
        return Ok(shown_json(&line.to_string()).into_owned());
    }
    let mark = if line.stream == "stderr" { '!' } else { '|' };
    let node = if line.node.is_empty() { String::new() } else { format!("{}/", shown(&line.node)) };
    let function = function.map(|function| format!("{function} ")).unwrap_or_default();
    Ok(format!("{function}{node}{} {mark} {}", line.instance, shown(&line.text)))
}

/// `1 line`, `1,204 lines`
fn counted(lines: u64) -> String {
    let digits = lines.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{grouped} line{}", if lines == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_as_people_write_numbers() {
        for (lines, expected) in
            [(1, "1 line"), (999, "999 lines"), (1204, "1,204 lines"), (1_000_000, "1,000,000 lines")]
        {
            assert_eq!(counted(lines), expected);
        }
    }

    #[test]
    fn a_line_moves_no_cursor() {
        let (node, stream, text) = ("n1".to_owned(), "stderr".to_owned(), "a\x1b[2J\u{202e}b".to_owned());
        let line = LogLine { node, instance: 3, time: 0.5, stream, text };
        assert_eq!(told_line(&line, None, false).unwrap(), r"n1/3 ! a\u{1b}[2J\u{202e}b");
        let id = FunctionId::new("demo", "shop").unwrap();
        assert!(told_line(&line, Some(&id), false).unwrap().starts_with("demo/shop n1/3 ! a"));
        let json = told_line(&line, None, true).unwrap();
        assert!(!json.contains(char::is_control) && !json.contains('\u{202e}'), "{json}");
    }
}
