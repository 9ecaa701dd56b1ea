//! Every call, with random arguments: the run may fail, the host may not.

use super::*;

/// The calls, their parameters (`l`: 64 bits), and whether they have a result.
const CALLS: [(&str, &str, &str, bool); 32] = [
    ("env", "proxy_log", "iii", true),
    ("env", "proxy_get_log_level", "i", true),
    ("env", "proxy_get_current_time_nanoseconds", "i", true),
    ("env", "proxy_get_buffer_bytes", "iiiii", true),
    ("env", "proxy_get_property", "iiii", true),
    ("env", "proxy_set_property", "iiii", true),
    ("env", "proxy_get_shared_data", "iiiii", true),
    ("env", "proxy_set_shared_data", "iiiii", true),
    ("env", "proxy_get_header_map_size", "ii", true),
    ("env", "proxy_get_header_map_pairs", "iii", true),
    ("env", "proxy_set_header_map_pairs", "iii", true),
    ("env", "proxy_get_header_map_value", "iiiii", true),
    ("env", "proxy_add_header_map_value", "iiiii", true),
    ("env", "proxy_replace_header_map_value", "iiiii", true),
    ("env", "proxy_remove_header_map_value", "iii", true),
    ("env", "proxy_send_local_response", "iiiiiiii", true),
    ("env", "proxy_continue_stream", "i", true),
    ("env", "proxy_clear_route_cache", "", true),
    ("env", "proxy_set_effective_context", "i", true),
    ("env", "proxy_done", "", true),
    ("env", "abort", "iiii", false),
    ("wasi_snapshot_preview1", "fd_write", "iiii", true),
    ("wasi_snapshot_preview1", "clock_time_get", "ili", true),
    ("wasi_snapshot_preview1", "random_get", "ii", true),
    ("wasi_snapshot_preview1", "environ_get", "ii", true),
    ("wasi_snapshot_preview1", "environ_sizes_get", "ii", true),
    ("wasi_snapshot_preview1", "args_get", "ii", true),
    ("wasi_snapshot_preview1", "args_sizes_get", "ii", true),
    ("wasi_snapshot_preview1", "proc_exit", "i", false),
    ("wasi_snapshot_preview1", "fd_close", "i", true),
    ("wasi_snapshot_preview1", "fd_seek", "ilii", true),
    ("wasi_snapshot_preview1", "fd_fdstat_get", "ii", true),
];

/// A module that makes the calls of its configuration: the number of each, and eight words.
fn caller() -> String {
    use std::fmt::Write;
    let mut text = String::from("(module\n");
    for (index, (module, name, parameters, result)) in CALLS.iter().enumerate() {
        let parameters: Vec<_> = parameters.chars().map(|kind| if kind == 'l' { "i64" } else { "i32" }).collect();
        let result = if *result { "(result i32)" } else { "" };
        let parameters = parameters.join(" ");
        writeln!(text, r#"(import "{module}" "{name}" (func $f{index} (param {parameters}) {result}))"#).unwrap();
    }
    text.push_str(
        r#"(memory (export "memory") 1)
        (data (i32.const 0) "\02\00\00\00\01\00\00\00\01\00\00\00\01\00\00\00\01\00\00\00a\00b\00c\00d\00request\00path\00")
        (global $free (mut i32) (i32.const 4096))
        (func (export "proxy_abi_version_0_2_1"))
        (func (export "malloc") (param i32) (result i32)
          (global.get $free) (global.set $free (i32.add (global.get $free) (local.get 0))))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (local $at i32) (local $end i32)
          (drop (call $f3 (i32.const 7) (i32.const 0) (i32.const 65536) (i32.const 2048) (i32.const 2052)))
          (local.set $at (i32.load (i32.const 2048)))
          (local.set $end (i32.add (local.get $at) (i32.load (i32.const 2052))))
          (loop $next (if (i32.lt_u (local.get $at) (local.get $end)) (then
            (call $do (local.get $at)) (local.set $at (i32.add (local.get $at) (i32.const 36))) (br $next))))
          (i32.const 0))
        (func $do (param $at i32)
        "#,
    );
    for (index, (_, _, parameters, result)) in CALLS.iter().enumerate() {
        let words: String = parameters
            .chars()
            .enumerate()
            .map(|(word, kind)| {
                let load = if kind == 'l' { "i64.load" } else { "i32.load" };
                format!("({load} offset={} (local.get $at))", 4 + word * 4)
            })
            .collect();
        let call = format!("(call $f{index} {words})");
        let call = if *result { format!("(drop {call})") } else { call };
        writeln!(text, "(if (i32.eq (i32.load (local.get $at)) (i32.const {index})) (then {call}))").unwrap();
    }
    text.push_str("))");
    text
}

#[test]
fn no_call_with_any_arguments_harms_the_host() {
    let module = engine().compile(&wat::parse_str(caller()).unwrap()).unwrap();
    let shared: Arc<SharedData> = Arc::default();
    // A linear congruential generator: the same on every run.
    let mut state = 1u64;
    let mut chance = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    const WORDS: [u32; 16] =
        [0, 1, 2, 3, 4, 7, 8, 28, 36, 2048, 65_532, 65_536, 0x7fff_ffff, 0x8000_0000, 0xffff_fffc, 0xffff_ffff];
    let (mut sound, mut failed) = (0, 0);
    for round in 0..6000 {
        let calls: Vec<u8> = (0..1 + chance(3))
            .flat_map(|_| {
                let number = if round < CALLS.len() { round } else { chance(CALLS.len()) } as u32;
                let words: Vec<u32> = (0..8).map(|_| WORDS[chance(WORDS.len())]).collect();
                std::iter::once(number).chain(words)
            })
            .flat_map(u32::to_le_bytes)
            .collect();
        let settings = Settings::new("test/echo", "p/extensions/wild", calls, MEMORY, AMPLE);
        let plugin = Plugin::start(&module, settings).unwrap();
        match ask(&plugin, &shared, request("/", &[("a", "b")])) {
            Ok(_) => sound += 1,
            Err(_) => failed += 1,
        }
    }
    assert!(sound > 500 && failed > 500, "both happen: {sound} sound, {failed} failed");
}
