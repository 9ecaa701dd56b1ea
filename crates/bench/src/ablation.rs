//! `leno-bench ablation`: the cost of each policy by itself, and the saving of all nine without it.

use crate::arguments::Plain;
use crate::contenders::Running;
use crate::load::Pace;
use crate::machine;
use crate::policies::{Policies, Policy};
use crate::report::Report;
use crate::rig::Rig;
use crate::statistics::{Figure, Trials};
use crate::trial::{self, HTTP1, Lengths};
use serde_json::json;
use std::time::Duration;

/// One who is measured with many mixes of policies.
struct Subject {
    name: &'static str,
    start: fn(&Rig, &str, Policies) -> anyhow::Result<Running>,
}

pub(crate) fn run(arguments: &Plain) -> anyhow::Result<()> {
    let machine = machine::describe();
    let rig = Rig::set_up(arguments.programs.find()?)?;
    println!("machine: {machine}");
    let mut subjects =
        vec![Subject { name: "leno_wasm", start: |rig, name, policies| Running::leno(rig, name, "wasm", policies) }];
    if std::fs::exists("/dev/kvm").unwrap_or(false) && !arguments.output.quick {
        subjects.push(Subject {
            name: "leno_microvm",
            start: |rig, name, policies| Running::leno(rig, name, "microvm", policies),
        });
    }
    match rig.programs.envoy {
        Some(_) => subjects.push(Subject { name: "envoy", start: Running::envoy }),
        None => println!("there is no Envoy: its part is missing"),
    }
    let ms = Duration::from_millis;
    let (repeats, lengths) = match arguments.output.quick {
        true => (3, Lengths { warm_up: ms(150), closed: ms(450), open: ms(0), retakes: 0 }),
        false => (7, Lengths { warm_up: ms(500), closed: ms(2000), open: ms(0), retakes: 2 }),
    };
    let mut report = Report::default();
    let mut trials = Trials::default();
    for subject in &subjects {
        let contenders = start(&rig, subject)?;
        for repeat in 0..repeats {
            for index in 0..contenders.len() {
                let contender = &contenders[(index + repeat) % contenders.len()];
                trials.0.push(trial::run(&rig, contender, HTTP1, Pace::Closed, repeat, lengths)?);
            }
        }
    }
    tell(&subjects, &trials, &mut report);
    let mut details = json!({"conditions": trial::conditions(&rig)});
    details["trials"] = serde_json::to_value(&trials.0)?;
    arguments.output.write(report, machine, details)
}

/// None, all nine, none with each, all nine without each.
fn start(rig: &Rig, subject: &Subject) -> anyhow::Result<Vec<Running>> {
    let begin = |mix: &str, policies| (subject.start)(rig, &format!("{}_{mix}", subject.name), policies);
    let mut contenders = vec![begin("none", Policies::NONE)?, begin("nine", Policies::NINE)?];
    for policy in Policy::ALL {
        contenders.push(begin(&format!("only_{policy}"), Policies::NONE.with(policy, true))?);
        contenders.push(begin(&format!("without_{policy}"), Policies::NINE.with(policy, false))?);
    }
    Ok(contenders)
}

fn tell(subjects: &[Subject], trials: &Trials, report: &mut Report) {
    for Subject { name, .. } in subjects {
        let cpu = |mix: &str| {
            let contender = format!("{name}_{mix}");
            trials.figure((&contender, HTTP1.name, "closed"), |trial| trial.cpu_us)
        };
        let difference = |more: &str, less: &str| {
            let (more, less) = (format!("{name}_{more}"), format!("{name}_{less}"));
            let which = [more.as_str(), less.as_str()].map(|contender| (contender, HTTP1.name, "closed"));
            trials.combined(which, |[more, less]| more.cpu_us - less.cpu_us)
        };
        println!("\n{name}: {:<16} {:>22} {:>26}", "policy", "none + it costs (us)", "nine without it saves (us)");
        for mix in ["none", "nine"] {
            if let Some(figure) = cpu(mix) {
                println!("{mix}: {:.1} us", figure.median);
                report.add_figure(&format!("ablation_{name}_{mix}_cpu_us"), figure);
            }
        }
        for policy in Policy::ALL {
            let alone = difference(&format!("only_{policy}"), "none");
            let saved = difference("nine", &format!("without_{policy}"));
            for (what, figure) in [("adds", alone), ("saves", saved)] {
                if let Some(figure) = figure {
                    report.add_figure(&format!("ablation_{name}_{policy}_{what}_us"), figure);
                }
            }
            println!("{:<16} {:>22} {:>26}", policy.to_string(), with_spread(alone), with_spread(saved));
        }
    }
}

fn with_spread(figure: Option<Figure>) -> String {
    figure.map_or_else(
        || "-".to_owned(),
        |figure| format!("{:.1} ({:.1} to {:.1})", figure.median, figure.least, figure.most),
    )
}
