//! One integration binary.
//!
//! * `scenarios`: the engine on evidence written down by hand, one file each.
//! * `framework`: that a scenario which expects the wrong thing fails, and says why.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed, and may say why"
)]

mod framework;
mod scenarios;
mod support;
