//! The catalogue of findings: every code with its fixed properties.
//!
//! Codes and names are stable. A code is listed here before a detector reports it and never changes
//! its meaning. A viewer shows an unknown code with the texts of the finding.
use crate::report::{Effect, Severity};

/// Fixed properties of a finding code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// "DD102".
    pub code: &'static str,
    /// "early-exit".
    pub name: &'static str,
    /// Usual severity.
    pub severity: Severity,
    /// Usual effect on the job. For a code with several possible effects, the one that is assumed
    /// until the evidence shows another.
    pub effect: Effect,
}

impl Code {
    /// Looks up the entry of a code.
    #[must_use]
    pub fn find(code: &str) -> Option<&'static Self> {
        ALL.iter().find(|known| known.code == code).copied()
    }

    /// Whether findings of the code state why it happened: those about calls (DD1xx) and about DDP
    /// (DD4xx) do.
    #[must_use]
    pub fn states_cause(&self) -> bool {
        self.code.starts_with("DD1") || self.code.starts_with("DD4")
    }
}

/// Whether the finding describes a span of time, such as a rank that is slow: it may hold, end and hold
/// again without ever having been wrong.
#[must_use]
pub fn is_over_time(code: &str) -> bool {
    let memory = [DD502, DD503, DD504, DD505, DD506].map(|it| it.code);
    let speed = [DD407, DD601, DD602, DD603, DD604, DD605, DD802].map(|it| it.code);
    memory.contains(&code) || speed.contains(&code)
}

/// Whether the finding reports missing evidence, which may hide what went wrong.
#[must_use]
pub fn is_gap(code: &str) -> bool {
    [DD901.code, DD902.code, DD904.code].contains(&code)
}

macro_rules! codes {
    ($($code:ident $name:literal $severity:ident $effect:ident;)*) => {
        $(
            #[doc = concat!($name, ".")]
            pub static $code: Code = Code {
                code: stringify!($code),
                name: $name,
                severity: Severity::$severity,
                effect: Effect::$effect,
            };
        )*

        /// Every code, in order.
        pub static ALL: &[&Code] = &[$(&$code,)*];
    };
}

codes! {
    DD101 "missing-rank" Error Blocks;
    DD102 "early-exit" Error Blocks;
    DD103 "op-mismatch" Error Blocks;
    DD104 "shape-mismatch" Error Crashes;
    DD105 "dtype-mismatch" Critical Corrupts;
    DD106 "reduce-op-mismatch" Critical Corrupts;
    DD107 "root-mismatch" Error Blocks;
    DD108 "split-mismatch" Error Crashes;
    DD109 "call-order" Error Blocks;
    DD110 "sequence-slip" Critical Corrupts;
    DD111 "group-order-deadlock" Error Blocks;
    DD112 "p2p-deadlock" Error Blocks;
    DD113 "p2p-unmatched" Error Blocks;
    DD114 "group-creation-mismatch" Error Blocks;
    DD115 "unawaited-work" Warning None;
    DD116 "stuck-inside" Error Blocks;
    DD117 "rank-conditional-call" Error Blocks;
    DD201 "rank-died" Critical Crashes;
    DD202 "rank-exception" Critical Crashes;
    DD203 "rank-stopped" Error Blocks;
    DD204 "stuck-outside" Error Blocks;
    DD205 "stuck-in-teardown" Error Blocks;
    DD206 "long-phase" Warning Slows;
    DD301 "rendezvous-incomplete" Error Blocks;
    DD302 "duplicate-rank" Error Blocks;
    DD303 "world-mismatch" Error Blocks;
    DD304 "backend-mismatch" Error Blocks;
    DD305 "version-skew" Warning None;
    DD306 "environment-skew" Warning None;
    DD307 "device-shared" Error None;
    DD308 "interface-unusable" Error Blocks;
    DD401 "unused-parameters" Error Crashes;
    DD402 "unused-parameters-differ" Error Blocks;
    DD403 "ready-twice" Error Crashes;
    DD404 "model-mismatch" Error Crashes;
    DD405 "ddp-bypassed" Error Corrupts;
    DD406 "no-sync-mismatch" Error Blocks;
    DD407 "needless-unused-search" Note Slows;
    DD501 "out-of-memory" Critical Crashes;
    DD502 "oom-forecast" Warning None;
    DD503 "memory-creep" Warning None;
    DD504 "fragmentation" Warning None;
    DD505 "memory-skew" Note None;
    DD506 "host-memory" Warning None;
    DD601 "straggler-compute" Warning Slows;
    DD602 "straggler-input" Warning Slows;
    DD603 "straggler-host" Warning Slows;
    DD604 "slow-communication" Warning Slows;
    DD605 "sync-bound" Warning Slows;
    DD701 "replica-divergence" Critical Corrupts;
    DD801 "gpu-fault" Critical None;
    DD802 "gpu-slowed" Warning Slows;
    DD803 "link-fault" Error None;
    DD901 "evidence-incomplete" Note None;
    DD902 "records-lost" Note None;
    DD903 "clock-skew" Note None;
    DD904 "agent-silent" Note None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_and_names_are_unique() {
        assert!(ALL.is_sorted_by(|a, b| a.code < b.code));
        let mut names: Vec<_> = ALL.iter().map(|code| code.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert_eq!(Code::find("DD102").map(|code| code.name), Some("early-exit"));
        assert_eq!(Code::find("DD999"), None);
    }
}
