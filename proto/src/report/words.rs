//! Words of the report: enums whose values are kebab-case words in JSON and in text.
//!
//! An unknown word, from a newer version, becomes the default of its enum instead of an error, so
//! that the rest can be shown. The default is the mildest value.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Declares an enum whose values are kebab-case words in JSON and in text.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$vmeta])* $variant,)*
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

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = String::deserialize(deserializer)?;
                Ok(Self::from_word(&word).unwrap_or_default())
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
        #[default]
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
        #[default]
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
        #[default]
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
        #[default]
        Cascade = "cascade",
    }
}

words! {
    /// What a rank does while others wait for it.
    ActivityKind {
        /// It waits for work that it then passes on to the ranks that wait.
        Idle = "idle",
        /// It waits for something outside of the job, or for something unknown.
        #[default]
        External = "external",
        /// It computes.
        Computing = "computing",
        /// Nothing in the job can end its wait.
        Blocked = "blocked",
    }
}

words! {
    /// What a GPU does.
    DeviceActivity {
        /// No kernel runs.
        Idle = "idle",
        /// A kernel runs that waits, as one of a collective does for its peers.
        Spinning = "spinning",
        /// A kernel computes.
        Computing = "computing",
        /// It cannot be measured, or is none of these.
        #[default]
        Unknown = "unknown",
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
        #[default]
        Unknown = "unknown",
    }
}

words! {
    /// State of a call on one rank.
    CallState {
        /// The rank has not made the call.
        NotIssued = "not-issued",
        /// The call was made and has not returned.
        #[default]
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
        #[default]
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
        #[default]
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
        #[default]
        Observation = "observation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_match_the_json_contract() {
        assert_eq!(serde_json::to_string(&CauseKind::UnevenInputs).unwrap(), "\"uneven-inputs\"");
        assert_eq!(CallState::from_word("not-issued"), Some(CallState::NotIssued));
        let unknown: Verdict = serde_json::from_str("\"puzzled\"").unwrap();
        assert_eq!(unknown, Verdict::Insufficient);
        assert!(serde_json::from_str::<Verdict>("1").is_err());
        assert!(Severity::Critical > Severity::Error && Confidence::Proved > Confidence::Supported);
    }
}
