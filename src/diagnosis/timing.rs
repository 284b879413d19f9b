//! The time constants of the engine, and the factor by which tests shorten them.
//!
//! [`Timing`] holds every duration that decides *when* something is concluded: how long a condition
//! must last, or how long something must be absent. `src/node/timing.rs` holds those of the node.
//! Both are multiplied by one [`TimeScale`], which the node writes to the first message of its
//! stream and journal: `run`, a separate coordinator and `analyze` diagnose a job with the same
//! values.
//!
//! Not scaled, and therefore constants of the files that use them:
//!
//! | Duration | Why it is physical |
//! |---|---|
//! | delivery of evidence (`roster.rs`, `FAILED_FOR` in `situation/`) | processes and nodes do not report sooner |
//! | correlation of ends, kills and signals (`causal_order.rs`, `out_of_memory.rs`, `host_memory.rs`, `REFLEX` in `model/`, `TEARDOWN` in `postmortem/play.rs`) | set by kernel and launcher |
//! | start of a process (`STARTED_AGAIN` in `rendezvous_incomplete.rs`) | set by the interpreter |
//! | defaults and timers of PyTorch (`long_phase.rs`, `ABOUT` in `stall.rs`) | PyTorch's own |
//! | clocks, costs of a call (`clock_skew.rs`, `GAP` in `lateness/`, `LONGER` in `slow.rs`) | properties of hosts and networks |
//! | history of stops and counters (`pace.rs`, `memory.rs` in `model/`) | looks back, so it delays nothing |
//! | pause between two reviews of all arrivals (`lateness/`, `communication/`) | limits CPU time |
//! | silence of nodes and connections, cost of screens (`coordinator/`, `report/`) | properties of networks and readers |

use std::str::FromStr;
use std::time::Duration;

/// Defines a struct of durations with their defaults, and its `scaled`.
#[macro_export]
macro_rules! scalable {
    (
        $(#[$about:meta])*
        pub struct $name:ident {
            $( $(#[$doc:meta])* pub $field:ident: $default:expr, )+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$doc])* pub $field: ::std::time::Duration, )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )+ }
            }
        }

        impl $name {
            /// Every duration multiplied by `scale`.
            pub fn scaled(&self, scale: $crate::timing::TimeScale) -> Self {
                Self { $( $field: scale.scale(self.$field), )+ }
            }
        }
    };
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

scalable! {
    /// Durations after which the engine concludes something from time alone.
    pub struct Timing {
        /// Default of `--stall-after`: an unproven wait becomes a finding after this long.
        pub default_stall_after: seconds(60),
        /// Minimum wait that the reported state of a rank shows.
        pub visible_wait: seconds(1),
        /// Interval at which a job with calls under way is examined without new events.
        pub reexamination_interval: Duration::from_millis(500),

        /// Silence of a thread after which it is assumed to wait for the asynchronous DDP call it
        /// issued last. DDP's own waits are not recorded.
        pub hidden_wait: seconds(3),
        /// Minimum duration of a wait for a message that may already have been delivered.
        pub uncertain_wait: seconds(3),
        /// Time after which an asynchronous call that has not returned counts as blocked. It may
        /// have to create a communicator or a connection first.
        pub blocked_issue: seconds(3),
        /// Silence of a thread after which it is assumed not to make a missing call.
        pub idle_thread: seconds(3),
        /// Minimum wait that a user who interrupts the job may have noticed. Such a wait is a
        /// finding although it was cut short.
        pub interrupted_wait: seconds(3),
        /// Minimum time inside a function of NCCL before a finding names it. Below that the thread
        /// may only pass through.
        pub function_wait: seconds(1),

        /// Time in which a launcher ends all ranks by SIGTERM: those of each node when that node
        /// notices that another one joins.
        pub termination: seconds(1),

        /// Time in which a launcher may restart ranks that were all ended by SIGTERM. Torchrun waits
        /// 30 s for further nodes.
        pub restart: seconds(60),
        /// Time after which an unfinished creation of a group counts as failed. It takes moments
        /// once every creator has arrived.
        pub group_creation: seconds(3),
        /// Time that a collective may take to complete after a member is stopped: the member may
        /// have done its part before.
        pub stopped_member_grace: seconds(3),
        /// Time that ranks at different addresses may take to meet nevertheless: a host can have
        /// several names.
        pub address_mismatch_grace: seconds(5),
        /// The same for ranks at one address with a port of its own each: two launches that begin at
        /// the same time use two ports.
        pub port_mismatch_grace: Duration::from_millis(500),
        /// Time that the end of a process on another host may take to be reported, before a second
        /// process of the same rank is a duplicate.
        pub duplicate_rank_grace: seconds(5),
        /// Time after the world has formed in which the nodes of all its ranks must have reported.
        pub unseen_rank_grace: seconds(10),

        /// Minimum wait before the first capture of stacks, limited to a share of the stall limit.
        pub first_capture: seconds(2),
        /// Time from the first capture to the second, limited likewise. Each later one follows
        /// after as long as the rank has waited by then: a few per hour.
        pub second_capture: seconds(5),
        /// Minimum time between captures of a process that made progress in between, limited to a share of
        /// the stall limit: a job with long waits in every step is captured now and then, not in every step.
        pub capture_cooldown: seconds(20),
        /// Minimum time between two captures that are compared. Closer ones show no difference
        /// between a process that is blocked and one that is slow.
        pub capture_separation: seconds(1),

        /// Minimum growth, in time, of memory that other processes use as well. A short rise of it
        /// means nothing.
        pub shared_memory_growth: seconds(60),

        /// Time after the first collective that is left out of statistics, where steps are not
        /// known.
        pub warm_up: seconds(2),
        /// Minimum duration of a straggler episode.
        pub straggler: seconds(4),
        /// Shortest slice by which straggler episodes are delimited.
        pub straggler_slice: Duration::from_millis(500),
        /// Minimum time without stragglers before an episode, for few rounds to suffice.
        pub straggler_free: seconds(8),
        /// Minimum time for which the driver slows a GPU. It reports that for moments at a change of clocks.
        pub gpu_slowdown: seconds(10),
        /// Minimum duration of a slowdown of a collective.
        pub slowdown: seconds(8),
        /// Minimum duration of the normal speed that a slowdown is compared with.
        pub slowdown_baseline: seconds(2),
        /// Minimum duration of a period in which small collectives dominate.
        pub small_calls: seconds(8),
        /// Time that one sample of scheduling covers: the interval at which the node takes them.
        pub scheduling_interval: seconds(1),
    }
}

/// Factor for all durations of [`Timing`], from 0.001 to 1000. Tests set it below 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeScale(f64);

impl TimeScale {
    /// `None` outside of the range.
    pub fn new(factor: f64) -> Option<Self> {
        (0.001..=1000.0).contains(&factor).then_some(Self(factor))
    }

    /// The factor.
    pub const fn factor(self) -> f64 {
        self.0
    }

    /// A duration multiplied by the factor.
    pub fn scale(self, duration: Duration) -> Duration {
        duration.mul_f64(self.0)
    }
}

impl Default for TimeScale {
    fn default() -> Self {
        Self(1.0)
    }
}

impl FromStr for TimeScale {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let factor = text.parse().map_err(|_error| "not a number")?;
        Self::new(factor).ok_or("not between 0.001 and 1000")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_multiplies_every_duration() {
        let timing = Timing::default();
        let scale = TimeScale::new(0.1).unwrap();
        let scaled = timing.scaled(scale);
        assert_eq!(scaled.default_stall_after, seconds(6));
        assert_eq!(scaled.straggler_slice, Duration::from_millis(50));
        assert_eq!(timing.scaled(TimeScale::default()), timing);
        let back = TimeScale::new(10.0).unwrap();
        assert_eq!(scaled.scaled(back), timing);
    }

    #[test]
    fn scale_is_a_number_in_range() {
        assert_eq!("0.25".parse(), Ok(TimeScale(0.25)));
        for text in ["", "fast", "0", "-1", "NaN", "inf", "0.0001", "1e9"] {
            assert!(text.parse::<TimeScale>().is_err(), "{text}");
        }
    }
}
