//! Any text is documents or problems. Problems name a line that exists. Accepted documents give a
//! configuration for each function, which survives the encoding in which nodes receive it, and
//! whose programs the sandbox accepts.
#![no_main]

use leno_model::FunctionConfig;
use leno_policy::abi;
use leno_translate::load_text;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    match load_text(Path::new("/nowhere/fuzz.yaml"), text) {
        Ok(snapshot) => {
            for id in snapshot.functions() {
                let config = snapshot.function_config(id).expect("a configuration for each function");
                let encoded = postcard::to_allocvec(&config).expect("a config is written");
                assert_eq!(postcard::from_bytes::<FunctionConfig>(&encoded).as_ref(), Ok(&config));
                for program in [&config.inbound, &config.outbound] {
                    let program = postcard::to_allocvec(program).expect("a program is written");
                    assert!(abi::init(&program).is_ok());
                }
            }
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            let lines = text.split(['\n', '\r']).count() + 1;
            for problem in problems {
                assert!(problem.line as usize <= lines, "{problem}");
                assert!(!problem.message.is_empty());
            }
        }
    }
});
