//! Version of this build.

/// Version of this build, as it appears in reports, black boxes and messages.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
