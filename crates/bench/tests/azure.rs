//! `leno-bench azure` from beginning to end, with real processes, as far as that goes without
//! Leno's and Envoy's programs.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const INVOCATIONS: &str = "HashOwner,HashApp,HashFunction,Trigger,480,481\n\
    o,a,often,http,20,30\no,a,rarely,timer,0,1\no,a,never,timer,0,0\n";
const DURATIONS: &str = "HashFunction,percentile_Average_0,percentile_Average_1,percentile_Average_25,percentile_Average_50,\
    percentile_Average_75,percentile_Average_99,percentile_Average_100\n\
    never,1,1,1,1,1,1,1\nrarely,5,5,5,5,5,5,5\noften,1,2,3,4,5,6,7\n";

fn azure(arguments: &[&str]) -> Output {
    // Neither of the two programs is asked to do anything.
    let stand_in = env!("CARGO_BIN_EXE_leno-bench");
    Command::new(stand_in)
        .args(["azure", "--scenarios", "none", "--leno", stand_in, "--envoy", stand_in])
        .args(arguments)
        .output()
        .unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_trace_goes_through_the_layer() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("invocations.csv"), INVOCATIONS).unwrap();
    std::fs::write(at("durations.csv"), DURATIONS).unwrap();
    let (trace, report, each) = (folder.path().display().to_string(), at("azure.json"), at("each.csv"));
    let output = azure(&[
        "--trace",
        &trace,
        "--minutes",
        "2",
        "--compress",
        "40",
        "--work",
        "spin",
        "--json",
        &report,
        "--invocations",
        &each,
    ]);
    assert!(output.status.success(), "{output:?}");

    let report = json(Path::new(&report));
    let figure = |name: &str| report["figures"][name].as_f64().unwrap();
    assert_eq!((figure("failed_none"), figure("none_invocations")), (0.0, 51.0));
    // Two functions are asked at all, and there is one instance of each at least.
    assert!(figure("none_cold_starts") >= 2.0 && figure("none_invocations_cold") >= 2.0);
    assert!(figure("none_slowdown_p50") >= 1.0, "nothing is answered before its work is done");
    assert!(figure("none_functions_cpu_s") >= 0.1, "51 invocations have spun for some milliseconds each");
    let conditions = &report["details"]["conditions"];
    assert_eq!((conditions["compress"].as_f64(), conditions["work"].as_str()), (Some(40.0), Some("spin")));
    assert!(conditions["measured_on"].as_str().unwrap().contains("3 functions"));

    assert_eq!(std::fs::read_to_string(each).unwrap().lines().count(), 52);
}

#[test]
fn a_bad_trace_is_refused_before_anything_is_started() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("invocations.csv"), INVOCATIONS.replace("20", "many")).unwrap();
    std::fs::write(folder.path().join("durations.csv"), DURATIONS).unwrap();
    let output = azure(&["--trace", &folder.path().display().to_string(), "--minutes", "2"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("invocations.csv, line 2, column 480"), "{error}");
}

#[test]
fn without_a_trace_a_workload_is_generated() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("azure.json");
    let path = report.display().to_string();
    let output = azure(&[
        "--functions",
        "4",
        "--minutes",
        "1",
        "--compress",
        "30",
        "--duration-scale",
        "0.001",
        "--seed",
        "7",
        "--json",
        &path,
    ]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("generated: 4 functions"));
    assert_eq!(json(&report)["figures"]["failed_none"].as_f64(), Some(0.0));
}
