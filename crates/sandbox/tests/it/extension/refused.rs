//! Modules and configurations that cannot be used are refused before any request, with the reason.

use super::*;
use leno_sandbox::extension::{LARGEST_MODULE, StartError};

/// The exports that every module must have.
const LEAST: &str = r#"
  (memory (export "memory") 1)
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "malloc") (param i32) (result i32) (i32.const 1024))"#;

fn reason(module: &str) -> String {
    engine().compile(&wat::parse_str(module).unwrap()).unwrap_err().to_string()
}

#[test]
fn what_is_no_module_of_this_abi_is_refused() {
    let least = |more: &str| format!("(module {more} {LEAST})");
    engine().compile(&wat::parse_str(least("")).unwrap()).unwrap();
    let no_abi = LEAST.replace("proxy_abi_version_0_2_1", "proxy_abi_version_0_1_0");
    for (module, expected) in [
        (
            least(r#"(import "env" "proxy_open_file" (func))"#),
            "imports `env.proxy_open_file`, which does not exist here",
        ),
        (
            least(r#"(import "wasi_snapshot_preview1" "path_open" (func (param i32)))"#),
            "imports `wasi_snapshot_preview1.path_open`, which does not exist here",
        ),
        (
            least(r#"(import "env" "proxy_log" (func (param i64)))"#),
            "`env.proxy_log`, which does not exist here with these",
        ),
        (least(r#"(import "env" "x" (global i32))"#), "only functions can be imported"),
        ("(module)".to_owned(), "exports no `proxy_abi_version_0_2_1`"),
        (format!("(module {no_abi})"), "another version: it exports `proxy_abi_version_0_1_0`"),
        (r#"(module (func (export "proxy_abi_version_0_2_1")))"#.to_owned(), "exports no `memory`"),
        (
            r#"(module (memory (export "memory") 1) (func (export "proxy_abi_version_0_2_1")))"#.to_owned(),
            "exports no `proxy_on_memory_allocate`",
        ),
        (
            format!(r#"(module {LEAST} (func (export "proxy_on_request_headers") (param i64)))"#),
            "its `proxy_on_request_headers` has not the parameters",
        ),
        (r#"(module (memory (export "memory") i64 1))"#.to_owned(), "cannot be compiled"),
        (r#"(module (memory 1) (memory 1))"#.to_owned(), "cannot be compiled"),
        (r#"(module (memory (export "memory") 2000))"#.to_owned(), "cannot be compiled"),
        ("(component)".to_owned(), "cannot be compiled"),
    ] {
        let reason = reason(&module);
        assert!(reason.contains(expected), "{module}: {reason}");
    }
    assert!(engine().compile(b"not wasm").unwrap_err().to_string().contains("cannot be compiled"));
    assert!(engine().compile(&vec![0; LARGEST_MODULE + 1]).unwrap_err().to_string().contains("at most"));
}

#[test]
fn what_does_not_start_is_refused() {
    let start = |configuration: &str, memory| {
        let settings = Settings::new("test/echo", "p/extensions/x", configuration.into(), memory, AMPLE);
        Plugin::start(&prisoner(), settings)
    };
    assert!(start("fine", MEMORY).is_ok());
    assert_eq!(start("no", MEMORY).unwrap_err(), StartError::Refused(String::new()));
    let tick = start("tick", MEMORY).unwrap_err().to_string();
    assert!(tick.contains("`proxy_set_tick_period_milliseconds` is not implemented here"), "{tick}");
    assert_eq!(start("", 65_535).unwrap_err(), StartError::Memory { needed: 65_536, limit: 65_535 });
    let endless = format!(r#"(module {LEAST} (func (export "_initialize") (loop $on (br $on))))"#);
    let module = engine().compile(&wat::parse_str(endless).unwrap()).unwrap();
    let settings = Settings::new("test/echo", "p/extensions/x", Vec::new(), MEMORY, AMPLE);
    let endless = Plugin::start(&module, settings).unwrap_err().to_string();
    assert_eq!(endless, "the module's start ran past its deadline");
}

#[test]
fn what_cannot_be_copied_is_started_anew() {
    // A table that is changed, and a global that holds a reference.
    for module in [
        format!(
            r#"(module {LEAST} (table 1 funcref) (func $f)  (elem declare func $f)
               (func (export "_initialize") (table.set (i32.const 0) (ref.func $f)))
               (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                 (ref.is_null (table.get (i32.const 0)))))"#
        ),
        format!(
            r#"(module {LEAST} (func $f) (elem declare func $f) (global $g (mut funcref) (ref.null func))
               (func (export "_initialize") (global.set $g (ref.func $f)))
               (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                 (ref.is_null (global.get $g))))"#
        ),
    ] {
        let module = engine().compile(&wat::parse_str(module).unwrap()).unwrap();
        let settings = Settings::new("test/echo", "p/extensions/x", Vec::new(), MEMORY, AMPLE);
        let plugin = Plugin::start(&module, settings).unwrap();
        assert!(!plugin.is_copied());
        assert_eq!(ask(&plugin, &Arc::default(), request("/", &[])), Ok(Outcome::Continue(Vec::new())));
    }
}

#[test]
fn a_module_without_globals_or_with_exported_ones_is_copied() {
    for module in [
        format!("(module {LEAST})"),
        format!(
            r#"(module {LEAST} (global (export "leno.global.0.0") (mut i64) (i64.const 5)) (global f64 (f64.const 1))
               (func (export "_initialize") (global.set 0 (i64.const -1)))
               (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                 (i64.ne (global.get 0) (i64.const -1))))"#
        ),
    ] {
        let module = engine().compile(&wat::parse_str(module).unwrap()).unwrap();
        let settings = Settings::new("test/echo", "p/extensions/x", Vec::new(), MEMORY, AMPLE);
        let plugin = Plugin::start(&module, settings).unwrap();
        assert!(plugin.is_copied());
        assert_eq!(ask(&plugin, &Arc::default(), request("/", &[])), Ok(Outcome::Continue(Vec::new())));
    }
}
