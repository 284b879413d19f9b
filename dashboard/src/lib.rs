//! The terminal screens of `ddp-doctor watch`.
//!
//! The dashboard is fed: [`feed::Input`] says what changed in the job, live or replayed, and by whom
//! that was told is none of its business. Three parts know little of each other:
//!
//! ```text
//! feed::Input ─► state (what is known) ─► view (one screen a file) ─► a buffer ─► terminal
//!                  keys (one table) ─► app (what is shown of it) ─┘
//! ```
//!
//! Reducers in [`state`] do all work that grows with the number of ranks, once an update; a frame is
//! drawn out of what they left, and costs what fits on the screen. Nothing here but [`terminal`] does
//! I/O. A finding, a layer or a gauge of a name that nobody here has heard of is shown like any other.

pub mod app;
pub mod feed;
pub mod keys;
pub mod list;
pub mod replay;
pub mod sources;
pub mod state;
pub mod terminal;
pub mod theme;
pub mod view;

pub use app::App;
pub use feed::{Input, Link};
pub use theme::{Depth, Theme};
