//! Inputs of the dashboard.

use ddp_doctor_proto::viewer::Update;

/// An input of the dashboard.
#[derive(Clone, Debug)]
pub enum Input {
    /// The job changed.
    Update(Box<Update>),
    /// The connection changed.
    Link(Link),
}

/// State of the connection to the source of updates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// The first connection is being established.
    #[default]
    Connecting,
    /// Connected: the next update is complete.
    Live,
    /// The connection was lost and is being re-established.
    Lost {
        /// Reason, as text.
        why: String,
    },
    /// A recording is shown; no live updates follow.
    Recorded,
}
