//! The launcher by itself, as `leno` runs it in a process of its own.

fn main() -> std::process::ExitCode {
    leno_jail::launcher::run()
}
