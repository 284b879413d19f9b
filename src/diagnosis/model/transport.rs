//! What is known of a backend: which messages belong together, and what a wait means.
//!
//! Measured with PyTorch 2.15 on Linux, two ranks, messages of 4 elements and of 16 MB alike:
//!
//! | on Gloo | happens |
//! |---|---|
//! | `send`, or `isend` and `wait`, and nobody receives | waits, however small the message is: a send is a rendezvous. `isend` itself returns at once |
//! | two ranks send to each other first, then receive | both wait for ever, also with one element |
//! | `isend` with tags 1 and 2, received as 2 and 1 | both arrive: tags tell messages apart |
//! | `send` with tags 1 and 2, received as 2 and 1 | both ranks wait for ever |
//! | fewer bytes than the receiver has room for | arrive; the rest of the tensor stays as it was |
//! | more bytes than the receiver has room for | abort the receiver's process; the sender is content |
//! | other dtype, as many bytes | arrive as they are, and mean something else |
//! | the peer ends, or had ended after an `isend` that nobody waited for | raises "Connection closed by peer" |
//! | `recv()` from any rank | takes the first message with its tag |
//!
//! NCCL knows no tags: messages between two ranks meet in their order, and sizes must be equal. A
//! small message may leave before its receiver comes, and `wait` only orders streams: that it is over
//! says nothing about the message. (`ncclSend` in NCCL's documentation; `ProcessGroupNCCL.cpp`.)

use crate::diagnosis::backends;

/// A backend's way with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Which sends and receives between two ranks belong together.
    pub matching: Matching,
    /// A send waits for its receive, whatever its size.
    pub sends_wait: bool,
    /// Where a wait is over, the call is complete, or has failed.
    pub waits_complete: bool,
}

/// Which sends and receives between two ranks belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// The n-th send with a tag and the n-th receive with it.
    ByTag,
    /// The n-th send and the n-th receive.
    InOrder,
    /// One of the two; it is not known which.
    Unknown,
}

impl Transport {
    /// What is known of a backend by its name: "gloo", or by device as "cpu:gloo,cuda:nccl".
    #[must_use]
    pub fn of(backend: &str) -> Self {
        let is = |name: &str| {
            backend
                .split(',')
                .all(|part| part.rsplit(':').next() == Some(name))
        };
        if is("gloo") {
            Self {
                matching: Matching::ByTag,
                sends_wait: true,
                waits_complete: true,
            }
        } else {
            Self {
                matching: if backends::is_on_nccl(backend) {
                    Matching::InOrder
                } else {
                    Matching::Unknown
                },
                sends_wait: false,
                waits_complete: false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_known_by_name_and_by_device() {
        let matching = |backend| Transport::of(backend).matching;
        assert_eq!(matching("gloo"), Matching::ByTag);
        assert_eq!(matching("cpu:gloo"), Matching::ByTag);
        assert_eq!(matching("cpu:gloo,cuda:gloo"), Matching::ByTag);
        for nccl in ["nccl", "nccl2", "cuda:nccl2", "nccl-legacy", "nccl-lazy"] {
            assert_eq!(matching(nccl), Matching::InOrder, "{nccl}");
        }
        for unknown in [
            "",
            "cpu:gloo,cuda:nccl",
            "cpu:gloo,cuda:nccl2",
            "ucc",
            "glooo",
        ] {
            assert_eq!(matching(unknown), Matching::Unknown, "{unknown}");
        }
    }
}
