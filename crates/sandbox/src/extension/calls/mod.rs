//! The calls that modules may make: proxy-wasm's (`env`) and the few of WASI that SDKs' runtimes need.

mod data;
mod fields;
mod stream;
mod wasi;

use super::host::Host;
use wasmtime::Linker;

/// Links all calls.
pub(super) fn link(linker: &mut Linker<Host>) -> Result<(), wasmtime::Error> {
    fields::link(linker)?;
    data::link(linker)?;
    stream::link(linker)?;
    wasi::link(linker)
}

/// How an import is treated.
pub(super) enum Import {
    /// It is implemented.
    Here,
    /// It may be imported, but calling it fails, for this reason.
    NotHere(&'static str),
    /// It is unknown.
    Unknown,
}

const NO_CALLS: &str = "a module has no network; give it what it needs as configuration";
const NO_QUEUES: &str = "an instance ends with its request, so nobody would read the queue";
const NO_METRICS: &str = "extensions are counted by the mesh";
const NO_BODIES: &str = "modules see heads, not bodies";

/// Looks up an import.
pub(super) fn of(module: &str, name: &str) -> Import {
    let module = if module == OLD_WASI { WASI } else { module };
    if HERE.contains(&(module, name)) {
        return Import::Here;
    }
    match (module, name) {
        ("env", "proxy_set_tick_period_milliseconds") => {
            Import::NotHere("an instance lives as long as its request, so there is nobody to tick")
        }
        (
            "env",
            "proxy_http_call" | "proxy_grpc_call" | "proxy_grpc_stream" | "proxy_grpc_send" | "proxy_grpc_cancel"
            | "proxy_grpc_close" | "proxy_get_status",
        ) => Import::NotHere(NO_CALLS),
        (
            "env",
            "proxy_register_shared_queue"
            | "proxy_resolve_shared_queue"
            | "proxy_dequeue_shared_queue"
            | "proxy_enqueue_shared_queue",
        ) => Import::NotHere(NO_QUEUES),
        ("env", "proxy_define_metric" | "proxy_get_metric" | "proxy_record_metric" | "proxy_increment_metric") => {
            Import::NotHere(NO_METRICS)
        }
        ("env", "proxy_set_buffer_bytes" | "proxy_get_buffer_status" | "proxy_set_buffer_status") => {
            Import::NotHere(NO_BODIES)
        }
        ("env", "proxy_close_stream") => Import::NotHere("answer with a local response"),
        ("env", "proxy_call_foreign_function") => Import::NotHere("there are no foreign functions"),
        _ => Import::Unknown,
    }
}

const ENV: &str = "env";
const WASI: &str = "wasi_snapshot_preview1";
const OLD_WASI: &str = "wasi_unstable";

/// All calls that are linked above.
const HERE: [(&str, &str); 32] = [
    (ENV, "proxy_log"),
    (ENV, "proxy_get_log_level"),
    (ENV, "proxy_get_current_time_nanoseconds"),
    (ENV, "proxy_get_buffer_bytes"),
    (ENV, "proxy_get_property"),
    (ENV, "proxy_set_property"),
    (ENV, "proxy_get_shared_data"),
    (ENV, "proxy_set_shared_data"),
    (ENV, "proxy_get_header_map_size"),
    (ENV, "proxy_get_header_map_pairs"),
    (ENV, "proxy_set_header_map_pairs"),
    (ENV, "proxy_get_header_map_value"),
    (ENV, "proxy_add_header_map_value"),
    (ENV, "proxy_replace_header_map_value"),
    (ENV, "proxy_remove_header_map_value"),
    (ENV, "proxy_send_local_response"),
    (ENV, "proxy_continue_stream"),
    (ENV, "proxy_clear_route_cache"),
    (ENV, "proxy_set_effective_context"),
    (ENV, "proxy_done"),
    (ENV, "abort"),
    (WASI, "fd_write"),
    (WASI, "clock_time_get"),
    (WASI, "random_get"),
    (WASI, "environ_get"),
    (WASI, "environ_sizes_get"),
    (WASI, "args_get"),
    (WASI, "args_sizes_get"),
    (WASI, "proc_exit"),
    (WASI, "fd_close"),
    (WASI, "fd_seek"),
    (WASI, "fd_fdstat_get"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_is_listed_is_linked() {
        let engine = wasmtime::Engine::default();
        let mut linker = Linker::new(&engine);
        link(&mut linker).unwrap();
        let mut store = wasmtime::Store::new(&engine, Host::new(Arc::default()));
        for (module, name) in HERE {
            assert!(linker.get(&mut store, module, name).is_ok(), "{module}.{name}");
        }
        let of_wasi = HERE.iter().filter(|(module, _)| *module == WASI).count();
        assert_eq!(linker.iter(&mut store).count(), HERE.len() + of_wasi, "those of WASI have two names");
    }
}
