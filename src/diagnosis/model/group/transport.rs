//! How backends match messages, and what the end of a wait means.
//!
//! Measured with PyTorch 2.15 on Linux, two ranks, messages of 4 elements and of 16 MB with equal
//! results:
//!
//! | on Gloo | result |
//! |---|---|
//! | `send`, or `isend` and `wait`, without a receive | blocks, however small the message: a send is a rendezvous. `isend` itself returns at once |
//! | two ranks send to each other first, then receive | both block forever, even with one element |
//! | `isend` with tags 1 and 2, received as 2 and 1 | both messages arrive: tags distinguish messages |
//! | `send` with tags 1 and 2, received as 2 and 1 | both ranks block forever |
//! | fewer bytes than the receive expects | arrive; the rest of the tensor is unchanged |
//! | more bytes than the receive expects | abort the receiver's process; the sender succeeds |
//! | other dtype, equal number of bytes | arrive unconverted |
//! | the peer ends, or ended after an `isend` without a wait | raises "Connection closed by peer" |
//! | `recv()` from any rank | takes the first message with its tag |
//!
//! NCCL has no tags: messages between two ranks match in order, and their sizes must be equal. A
//! small message may leave before its receiver arrives, and `wait` only orders streams, so its end
//! says nothing about the message (`ncclSend` in NCCL's documentation; `ProcessGroupNCCL.cpp`).

use crate::evidence::backends;

/// Properties of a backend's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transport {
    /// Which sends and receives between two ranks belong together.
    pub matching: Matching,
    /// A send waits for its receive, whatever its size.
    pub sends_wait: bool,
    /// At the end of a wait, the call is complete or has failed.
    pub waits_complete: bool,
}

/// Which sends and receives between two ranks belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    /// The n-th send and the n-th receive with the same tag.
    ByTag,
    /// The n-th send and the n-th receive.
    InOrder,
    /// In either way; it is not known which.
    #[default]
    Unknown,
}

impl Transport {
    /// Properties of a backend, by its name: "gloo", or by device as "cpu:gloo,cuda:nccl".
    pub fn of(backend: &str) -> Self {
        let is = |name: &str| backend.split(',').all(|part| part.rsplit(':').next() == Some(name));
        if is("gloo") {
            Self { matching: Matching::ByTag, sends_wait: true, waits_complete: true }
        } else if backends::is_on_nccl(backend) {
            Self { matching: Matching::InOrder, ..Self::default() }
        } else {
            Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_match_by_name_and_by_device() {
        let matching = |backend| Transport::of(backend).matching;
        assert_eq!(matching("gloo"), Matching::ByTag);
        assert_eq!(matching("cpu:gloo"), Matching::ByTag);
        assert_eq!(matching("cpu:gloo,cuda:gloo"), Matching::ByTag);
        for nccl in ["nccl", "nccl2", "cuda:nccl2", "nccl-legacy", "nccl-lazy"] {
            assert_eq!(matching(nccl), Matching::InOrder, "{nccl}");
        }
        for unknown in ["", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl2", "ucc", "glooo"] {
            assert_eq!(matching(unknown), Matching::Unknown, "{unknown}");
        }
    }
}
