//! One integration binary.
//!
//! * `scenarios`: the engine on evidence written down by hand, one file each.
//! * `framework`: that a scenario which expects the wrong thing fails, and says why.

mod framework;
mod scenarios;
mod support;
