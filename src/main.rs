//! Entry point of the program `ddp-doctor`; see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    ddp_doctor::cli::main()
}
