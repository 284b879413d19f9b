//! Which nodes with one job name can be parts of one launch.

use ddp_doctor_proto::v1;

/// Where a node meets the other nodes of its launch, and as which of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Meeting {
    place: String,
    node_rank: Option<u32>,
}

impl Meeting {
    pub(super) fn from_hello(hello: &v1::Hello) -> Self {
        Self { place: hello.meeting.clone(), node_rank: hello.node_rank }
    }

    /// Whether two nodes cannot be parts of one launch. Different places alone may be a mistake
    /// within a launch (DD303), and one node rank alone may be another (DD302).
    pub(super) fn contradicts(&self, other: &Self) -> bool {
        let has_same_rank = self.node_rank.is_some() && self.node_rank == other.node_rank;
        has_same_rank && self.is_known() && other.is_known() && self.place != other.place
    }

    /// Whether two nodes are known to meet at one place.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        self.is_known() && self.place == other.place
    }

    fn is_known(&self) -> bool {
        !self.place.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meeting(place: &str, node_rank: Option<u32>) -> Meeting {
        Meeting { place: place.into(), node_rank }
    }

    #[test]
    fn same_node_at_another_place_is_of_another_launch() {
        let first = meeting("a:29500", Some(0));
        for (other, expected) in [
            (meeting("b:29500", Some(0)), true),
            (meeting("a:29501", Some(0)), true),
            (meeting("a:29500", Some(0)), false),
            (meeting("b:29500", Some(1)), false),
            (meeting("b:29500", None), false),
            (meeting("", Some(0)), false),
        ] {
            assert_eq!(first.contradicts(&other), expected, "{other:?}");
            assert_eq!(other.contradicts(&first), expected, "{other:?}");
        }
        assert!(first.is_at(&meeting("a:29500", None)));
        assert!(!Meeting::default().is_at(&Meeting::default()));
    }
}
