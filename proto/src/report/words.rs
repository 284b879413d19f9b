//! Words of the report: enums whose values are kebab-case words in JSON and in text.

use serde::{Deserialize, Serialize};

/// Declares an enum whose values are kebab-case words in JSON and in text.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// The word of the value.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The value of a word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($text => Some(Self::$variant),)* _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words! {
    /// Severity of a finding, mildest first.
    Severity {
        /// Worth knowing.
        Note = "note",
        /// Worth acting on.
        Warning = "warning",
        /// The job is broken.
        Error = "error",
        /// The job is broken silently, or beyond recovery.
        Critical = "critical",
    }
}

words! {
    /// Effect of a finding on the job.
    Effect {
        /// No effect.
        None = "none",
        /// The job runs slower than it could.
        Slows = "slows",
        /// The job computes wrong results.
        Corrupts = "corrupts",
        /// A rank ended or will end because of it.
        Crashes = "crashes",
        /// Ranks wait for something that never arrives.
        Blocks = "blocks",
    }
}

words! {
    /// Confidence in a statement, weakest first.
    Confidence {
        /// The evidence points to it.
        Suspected = "suspected",
        /// Several independent pieces of evidence agree.
        Supported = "supported",
        /// It follows from recorded facts.
        Proved = "proved",
    }
}

words! {
    /// Position in the causal chain.
    Role {
        /// The problem began here.
        Initiating = "initiating",
        /// It follows from another finding.
        Cascade = "cascade",
    }
}

words! {
    /// Why collectives diverged.
    CauseKind {
        /// Ranks had different numbers of batches.
        UnevenInputs = "uneven-inputs",
        /// A condition on the rank.
        RankConditional = "rank-conditional",
        /// One rank left out an iteration.
        SkippedIteration = "skipped-iteration",
        /// A rank caught an exception and continued out of step with the others.
        SwallowedException = "swallowed-exception",
        /// The ranks made the same calls in another order.
        SwappedCalls = "swapped-calls",
        /// A decision on state that differs between ranks.
        LocalDecision = "local-decision",
        /// A decision on the content of the batch.
        DataDependentPath = "data-dependent-path",
        /// One rank shuts down while others work.
        Teardown = "teardown",
        /// No hypothesis.
        Unknown = "unknown",
    }
}

words! {
    /// State of a call on one rank.
    CallState {
        /// The rank has not made the call.
        NotIssued = "not-issued",
        /// The call was made and has not returned.
        Issued = "issued",
        /// The rank waits for it.
        Waiting = "waiting",
        /// The call returned; whether it is complete is unknown.
        Returned = "returned",
        /// The call is complete.
        Completed = "completed",
    }
}

words! {
    /// State of a rank.
    RankState {
        /// It runs its own code.
        Running = "running",
        /// In a call or a wait for a noticeable time.
        Waiting = "waiting",
        /// Stopped by a signal, a debugger or a frozen container.
        Stopped = "stopped",
        /// Ended with status 0.
        Exited = "exited",
        /// Ended with another status or by a signal.
        Dead = "dead",
        /// Unknown.
        Unknown = "unknown",
    }
}

words! {
    /// Overall state of the job.
    Verdict {
        /// No finding, as far as the evidence goes.
        Healthy = "healthy",
        /// The job hangs.
        Hang = "hang",
        /// A rank ended unexpectedly.
        Crash = "crash",
        /// The job computes wrong results.
        Wrong = "wrong",
        /// The job is slower than it could be.
        Slow = "slow",
        /// The evidence is insufficient for a verdict.
        Insufficient = "insufficient",
    }
}

words! {
    /// Form of a proof.
    CertificateKind {
        /// Calls that can never match.
        UnsatisfiableJoin = "unsatisfiable-join",
        /// A cycle of waits, none of which can end.
        Cycle = "cycle",
        /// A rank that can never arrive.
        TerminalRank = "terminal-rank",
        /// Two recorded facts that contradict each other.
        Contradiction = "contradiction",
        /// One fact from the operating system or the runtime.
        Observation = "observation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_match_the_json_contract() {
        assert_eq!(
            serde_json::to_string(&CauseKind::UnevenInputs).unwrap(),
            "\"uneven-inputs\""
        );
        assert_eq!(
            CallState::from_word("not-issued"),
            Some(CallState::NotIssued)
        );
        assert!(Severity::Critical > Severity::Error && Confidence::Proved > Confidence::Supported);
    }
}
