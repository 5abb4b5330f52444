//! The `toolcrib` program: a thin shell around the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolcrib::cli::main()
}
