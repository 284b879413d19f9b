//! Signal numbers on Linux.

pub use ddp_doctor_proto::words::signal_name as name;

/// Hangup of the terminal.
pub const HUP: i32 = 1;
/// Interrupt from the keyboard.
pub const INT: i32 = 2;
/// Quit from the keyboard.
pub const QUIT: i32 = 3;
/// Abort.
pub const ABRT: i32 = 6;
/// Kill.
pub const KILL: i32 = 9;
/// Termination request.
pub const TERM: i32 = 15;

/// Whether the signal is a reaction to a failure, sent by the launcher or by the process
/// itself.
pub const fn is_asked(signal: i32) -> bool {
    matches!(signal, HUP | INT | QUIT | ABRT | TERM)
}

/// Whether the kernel sends the signal to a process that crashed: SIGILL, SIGBUS, SIGFPE and SIGSEGV.
pub const fn is_crash(signal: i32) -> bool {
    matches!(signal, 4 | 7 | 8 | 11)
}
