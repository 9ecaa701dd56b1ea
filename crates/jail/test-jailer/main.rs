//! The jailer as a separate program, as `leno` runs it in a separate process.

fn main() -> std::process::ExitCode {
    leno_jail::jailer::run()
}
