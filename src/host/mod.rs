//! What this program changes on the host outside of its own memory.

pub mod files;
