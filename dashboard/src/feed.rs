//! What a dashboard is fed with.

use ddp_doctor_proto::v1;

/// Something that the dashboard has to know.
#[derive(Clone, Debug)]
pub enum Input {
    /// Something changed in the job.
    Update(Box<v1::Update>),
    /// Something changed on the way from there.
    Link(Link),
}

/// How the dashboard is connected with what it shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// It is being connected for the first time.
    #[default]
    Connecting,
    /// It is connected: the next update tells everything.
    Live,
    /// It was lost, and is sought.
    Lost {
        /// In words.
        why: String,
    },
    /// It shows what was recorded; nothing will come.
    Recorded,
}
