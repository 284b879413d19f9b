//! The dashboard.
//!
//! * `screens`: its screens on terminals of three sizes, compared with `tests/screens`.
//! * `terminal`: the dashboard on a terminal, beside real jobs, and `watch --once` and `status`.

mod screens;
mod terminal;
