//! The time constants of the node that tests scale, together with those of the engine.
//!
//! Other durations are not scaled and are constants of the files that use them:
//!
//! | Duration | Why |
//! |---|---|
//! | ticks of the follower, intervals of scans, states and heartbeats (`follow/`) | already short: shorter intervals only cost CPU time |
//! | creation of a box, end of ranks after their command, pauses (`follow/`), kills by the kernel (`memory.rs`) | determined by the kernel and by processes |
//! | ages at which a process is checked for capture (`descendants.rs`) | determined by the time that PyTorch takes to load |
//! | connections, answers, shutdown (`attach.rs`, `job.rs`, `reporter.rs`, `screen.rs`, `stacks/`, `source/`) | time limits for failures, not waits |
//! | ages of files (`boxes.rs`, `launch/`) | distinguish files of an earlier job |

use std::time::Duration;

use ddp_doctor_diagnosis::{scalable, timing};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

scalable! {
    /// Intervals and time limits of the node.
    pub struct Timing {
        /// Interval of memory samples.
        pub memory_interval: Duration::from_millis(500),
        /// Maximum time between two memory samples that are reported, whether or not they differ.
        pub memory_heartbeat: seconds(60),
        /// Minimum time between two samples that differ only in how often a control group reached
        /// its limit, which may change at any moment.
        pub memory_limit_interval: seconds(10),
        /// Interval of scheduling samples; the engine uses the same value.
        pub scheduling_interval: timing::Timing::default().scheduling_interval,
        /// Maximum time between two scheduling samples that are reported, whether or not they
        /// differ.
        pub scheduling_heartbeat: seconds(60),
        /// Maximum time between two samples of a GPU that are reported, whether or not they differ.
        pub gpu_heartbeat: seconds(60),
        /// Interval of samples of network ports.
        pub port_interval: seconds(10),
        /// Interval of samples of network ports while a rank may wait.
        pub waiting_port_interval: seconds(1),
        /// Maximum time between two samples of a port that are reported, whether or not they differ.
        pub port_heartbeat: seconds(60),
        /// The same while a rank may wait.
        pub waiting_port_heartbeat: seconds(10),
        /// Time from the detection of a process that will become a rank to the first capture of its
        /// stacks while it has not joined; the next captures follow after once, twice, … this time.
        pub unjoined_capture_interval: seconds(2),
        /// Maximum time between two entries of a journal. A rank without progress up to the last
        /// entry is known to have been blocked until then.
        pub journal_heartbeat: seconds(5),
        /// Maximum time without a coordinator before a node diagnoses its ranks by itself.
        pub coordinator_patience: seconds(10),
        /// First pause before a lost coordinator is tried again; it doubles with each attempt.
        pub coordinator_retry: seconds(5),
        /// Time that a launch without `run` stays open after the end of its last rank, while the
        /// process that started the ranks lives and may restart them.
        pub restart_window: seconds(20),
        /// Time between the captures of stacks that confirm a supported finding before the job is ended for it;
        /// captures that are this far apart show whether a rank moves.
        pub confirmation_interval: timing::Timing::default().capture_separation,
        /// Default of `--kill-after` for proved findings.
        pub kill_after_proved: seconds(5),
        /// Default of `--kill-after` for supported findings.
        pub kill_after_supported: seconds(30),
    }
}
