//! The terminal screens of `ddp-doctor watch`.
//!
//! The dashboard receives [`feed::Input`]: changes of the job, live or replayed. It does not depend
//! on their source. Data flows in one direction:
//!
//! ```text
//! feed::Input ─► state (the job) ─► view (one file per screen) ─► a buffer ─► terminal
//!                  keys (one table) ─► app (the selection) ─┘
//! ```
//!
//! Reducers in [`state`] do all work that grows with the number of ranks, once per update. A frame
//! is drawn from their results, at a cost bounded by the size of the screen. Only [`terminal`] does
//! I/O. Findings, layers and gauges with unknown names are shown like any other.

pub mod app;
mod contents;
pub mod feed;
pub mod keys;
pub mod list;
pub mod replay;
pub mod screen;
pub mod sources;
pub mod state;
pub mod terminal;
pub mod theme;
pub mod view;

pub use app::App;
pub use feed::{Input, Link};
pub use theme::{Depth, Theme};
