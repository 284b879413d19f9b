//! What enters the engine: events, and the members of communicators, which no event names alone.

pub mod align;
pub mod allocation;
pub mod backends;
pub mod event;
pub mod known_errors;
pub mod libc_signal;
pub mod place;
pub mod provenance;
pub mod request;
pub mod roster;
pub mod settings;
pub mod splits;
pub mod transport;
pub mod xids;
