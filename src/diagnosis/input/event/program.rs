//! What a program does around its calls.

use std::sync::Arc;

use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::{DType, GuardForm, GuardSubject, ParameterFact};

/// A test in the source of the program that decides whether it reaches a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Line of the test.
    pub line: u32,
    /// Source text of the test.
    pub test: Arc<str>,
    /// What it tests.
    pub subject: GuardSubject,
    /// How the line depends on it.
    pub form: GuardForm,
    /// The branches of its statement that run instead of that of the line, or a later branch under another
    /// test on the rank that calls the same function.
    pub other: Option<OtherBranch>,
    /// It is the test of a `while` loop around the line.
    pub is_while: bool,
}

impl Guard {
    /// "if" or "while".
    pub(crate) const fn keyword(&self) -> &'static str {
        if self.is_while { "while" } else { "if" }
    }

    /// The variable that an assignment of [`GuardForm::Computes`] sets.
    #[must_use]
    pub fn assigned(&self) -> Option<&str> {
        let end = self.test.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        (self.form == GuardForm::Computes).then_some(&self.test[..end])
    }

    /// Whether the test contains this name.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        let mut words = self.test.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.any(|word| word == name)
    }
}

/// Branches of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherBranch {
    /// First line.
    pub first: u32,
    /// Last line.
    pub last: u32,
    /// One of them calls the function that the guarded line calls, or makes the other side of its message.
    pub makes_call: bool,
}

/// A fact about the parameters of a model, as a process reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Kind of fact.
    pub fact: ParameterFact,
    /// 1-based index of the model within the group in this process; 0: unknown.
    pub model: u32,
    /// Index in the model of the first of the `lines`, for facts that number them.
    pub first: u32,
    /// Number of parameters concerned; `lines` may have fewer.
    pub total: u64,
    /// One line per parameter: element type, sizes separated by commas ("-": none), name.
    pub lines: Arc<str>,
    /// Line in the user's program.
    pub place: Option<Arc<Where>>,
    /// Training step; 0: before the first.
    pub step: u64,
    /// Element type of `values`.
    pub dtype: DType,
    /// Bits of some elements of the parameter with index `first`, of 64-bit elements the upper half.
    pub values: Vec<u32>,
}

/// A training forward that begins a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// The user's line and its callers; equal for forwards at the same place.
    pub path: Option<Arc<str>>,
    /// Batches drawn when the last one before it was drawn; `None`: no input was seen.
    pub batches: Option<u64>,
    /// Its input is that of the preceding forward.
    pub repeated: bool,
    /// Its gradients are not synchronized (`no_sync`).
    pub unsynchronized: bool,
    /// Whether parameters were updated since the preceding forward; `None`: unknown.
    pub updated: Option<bool>,
}
