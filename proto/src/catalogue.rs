//! The catalogue of findings: every code with its fixed properties.
//!
//! Codes and names are stable. A code is listed here before a detector reports it and never changes
//! its meaning. A viewer shows an unknown code with the texts that came with the finding.

use crate::report::{Effect, Severity};

/// Fixed properties of a finding code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// "DD102".
    pub code: &'static str,
    /// "early-exit".
    pub name: &'static str,
    /// What the finding states, as part of a sentence.
    pub says: &'static str,
    /// Usual severity.
    pub severity: Severity,
    /// Usual effect on the job. For a code with several possible effects, the one that is assumed
    /// until the evidence shows another.
    pub effect: Effect,
}

impl Code {
    /// Looks up the entry of a code.
    #[must_use]
    pub fn of(code: &str) -> Option<&'static Self> {
        ALL.iter().find(|known| known.code == code).copied()
    }
}

macro_rules! codes {
    ($($code:ident $name:literal $severity:ident $effect:ident $says:literal;)*) => {
        $(
            #[doc = concat!($name, ": ", $says, ".")]
            pub static $code: Code = Code {
                code: stringify!($code),
                name: $name,
                says: $says,
                severity: Severity::$severity,
                effect: Effect::$effect,
            };
        )*

        /// Every code, in order.
        pub static ALL: &[&Code] = &[$(&$code,)*];
    };
}

codes! {
    DD101 "missing-rank" Error Blocks "a rank never entered a collective its group is waiting in; it is alive and goes on elsewhere";
    DD102 "early-exit" Error Blocks "a rank ended normally or destroyed the group while peers wait for it";
    DD103 "op-mismatch" Error Blocks "different collectives meet at one sequence number";
    DD104 "shape-mismatch" Error Crashes "sizes that must agree do not";
    DD105 "dtype-mismatch" Critical Corrupts "dtypes differ, also where the byte counts agree";
    DD106 "reduce-op-mismatch" Critical Corrupts "reduction operators differ";
    DD107 "root-mismatch" Error Blocks "the src, dst or root of a collective differs";
    DD108 "split-mismatch" Error Crashes "all_to_all splits do not fit together";
    DD109 "call-order" Error Blocks "the same collectives in another order within one group";
    DD110 "sequence-slip" Critical Corrupts "ranks pair calls of different steps, and stay shifted";
    DD111 "group-order-deadlock" Error Blocks "a cycle of waits across process groups";
    DD112 "p2p-deadlock" Error Blocks "a cycle of sends and receives";
    DD113 "p2p-unmatched" Error Blocks "a send or receive without partner, or with another tag or size";
    DD114 "group-creation-mismatch" Error Blocks "a group created by some ranks only, in another order, or with other members";
    DD115 "unawaited-work" Warning None "an asynchronous collective never waited for, or two threads racing on one group";
    DD116 "stuck-inside" Error Blocks "every member entered, none completes: network, device or kernel";
    DD117 "rank-conditional-call" Error Blocks "the diverging call stands under a condition on the rank";
    DD201 "rank-died" Critical Crashes "a rank's process died: a signal, an abort, a non-zero exit";
    DD202 "rank-exception" Critical Crashes "an exception ended or diverted a rank";
    DD203 "rank-stopped" Error Blocks "a rank's process is stopped: SIGSTOP, a debugger, a frozen container";
    DD204 "stuck-outside" Error Blocks "a rank is alive outside any collective and does not move";
    DD205 "stuck-in-teardown" Error Blocks "an exit path that itself waits for peers";
    DD206 "long-phase" Warning Slows "long work that will outlive the process group's timeout";
    DD301 "rendezvous-incomplete" Error Blocks "ranks never reached initialisation";
    DD302 "duplicate-rank" Error Blocks "two processes have one rank";
    DD303 "world-mismatch" Error Blocks "ranks disagree on world size, master address or port";
    DD304 "backend-mismatch" Error Blocks "ranks initialised with different backends";
    DD305 "version-skew" Warning None "versions differ between ranks";
    DD306 "environment-skew" Warning None "settings that must agree differ between ranks";
    DD307 "device-shared" Error None "two ranks use one GPU";
    DD308 "interface-unusable" Error Blocks "the configured network interface is missing, down or unreachable";
    DD401 "unused-parameters" Error Crashes "parameters got no gradient, the same on all ranks";
    DD402 "unused-parameters-differ" Error Blocks "parameters got no gradient on some ranks only";
    DD403 "ready-twice" Error Crashes "a parameter was marked ready twice, or the static graph changed";
    DD404 "model-mismatch" Error Crashes "the models of the ranks differ";
    DD405 "ddp-bypassed" Error Corrupts "a backward ran without any gradient synchronisation";
    DD406 "no-sync-mismatch" Error Blocks "gradient accumulation boundaries differ between ranks";
    DD407 "needless-unused-search" Note Slows "find_unused_parameters=True with nothing unused";
    DD501 "out-of-memory" Critical Crashes "an allocation failed on this rank";
    DD502 "oom-forecast" Warning None "this rank runs out of memory in about so many steps";
    DD503 "memory-creep" Warning None "memory grows steadily with every step";
    DD504 "fragmentation" Warning None "reserved but unusable memory, allocator retries";
    DD505 "memory-skew" Note None "one rank uses far more memory than its peers";
    DD506 "host-memory" Warning None "host, cgroup or /dev/shm about to run out, or the kernel killed for it";
    DD601 "straggler-compute" Warning Slows "one rank arrives late because its own work takes longer";
    DD602 "straggler-input" Warning Slows "one rank arrives late because its data loader is slow";
    DD603 "straggler-host" Warning Slows "one rank arrives late because of its host";
    DD604 "slow-communication" Warning Slows "all arrive together, the collective itself is slow";
    DD605 "sync-bound" Warning Slows "many small collectives dominate the step";
    DD701 "replica-divergence" Critical Corrupts "parameters differ between replicas after a synchronised step";
    DD901 "evidence-incomplete" Note None "ranks or layers were never seen";
    DD902 "records-lost" Note None "records were overwritten or dropped before they were read";
    DD903 "clock-skew" Note None "clocks differ by more than the answer can bear";
    DD904 "agent-silent" Note None "a rank's process lives but its reader or connection is silent";
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
        assert_eq!(Code::of("DD102").map(|code| code.name), Some("early-exit"));
        assert_eq!(Code::of("DD999"), None);
    }
}
