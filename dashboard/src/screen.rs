//! The screens of the dashboard.

/// A screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Screen {
    /// Health of the job: culprit ranks and reasons.
    #[default]
    Overview,
    /// List of ranks.
    Ranks,
    /// Progress of each member of each group.
    Groups,
    /// All details of a finding.
    Finding,
    /// Which rank waits for which.
    Waits,
    /// Memory of the ranks.
    Memory,
    /// States of the ranks over time.
    Timeline,
    /// Latest stacks of the ranks.
    Stacks,
    /// GPUs of the ranks, and links with faults.
    Devices,
}

impl Screen {
    /// All screens, in order.
    pub const ALL: [Self; 9] = [
        Self::Overview,
        Self::Ranks,
        Self::Groups,
        Self::Finding,
        Self::Waits,
        Self::Memory,
        Self::Timeline,
        Self::Stacks,
        Self::Devices,
    ];

    /// Whether the screen has the list of ranks, which can be sorted, filtered and searched.
    #[must_use]
    pub const fn lists_ranks(self) -> bool {
        matches!(self, Self::Ranks | Self::Timeline)
    }

    pub(crate) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|&it| it == self);
        Self::ALL[(at.unwrap_or_default() + 1) % Self::ALL.len()]
    }
}
