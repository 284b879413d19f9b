//! Builders for unit tests of the engine, and scenarios for tests of findings.

use std::sync::Arc;

use ddp_doctor_proto::report::{GroupRef, Timestamp};
use ddp_doctor_proto::{DType, Op, ReduceOp};

use super::detect::About;
use super::event::{Call, CallId, GroupInfo, ThreadId};

#[path = "../../tests/support/example.rs"]
mod example;
#[path = "../../tests/support/scenario/mod.rs"]
mod scenario;

/// Runs a scenario without an `about` line; panics with the failure if it does not hold.
#[track_caller]
pub(crate) fn holds(scenario: &str) {
    let scenario = format!("about = \"one rule at work\"\n{scenario}");
    if let Err(failure) = scenario::Scenario::parse(&scenario).and_then(|s| s.check()) {
        panic!("{failure}");
    }
}

/// Panics unless the example on the finding's page is what the terminal shows of a scenario, without an
/// `about` line. With `UPDATE_DOCS=1` in the environment, updates the page instead.
#[track_caller]
pub(crate) fn shows(about: &About, scenario: &str) {
    let scenario = format!("about = \"the example of a finding\"\n{scenario}");
    let shown = scenario::Scenario::parse(&scenario).and_then(|s| s.shown(about.code.code));
    let shown = shown.unwrap_or_else(|failure| panic!("{failure}"));
    example::compare(about.code.code, &shown);
}

/// Checks that two calls that meet and cannot match are reported as proved, with place and time.
#[track_caller]
pub(crate) fn differ(code: &str, proof: &str, one: &str, other: &str) {
    holds(&format!(
        r#"
        world = 2
        events = """
        1.0 0 {one} @train.py:5
        1.5 1 {other} @train.py:7
        """
        [[expect]]
        code = "{code}"
        confidence = "proved"
        certificate = "{proof}"
        root = [0, 1]
        seq = 1
        detected = 1.5
        lines = {{ 0 = "train.py:5", 1 = "train.py:7" }}
        "#
    ));
}

/// Checks that two calls that meet and match lead to no finding.
#[track_caller]
pub(crate) fn agree(one: &str, other: &str) {
    holds(&format!(
        r#"
        world = 2
        events = """
        1.0 0 {one} @train.py:5
        1.5 1 {other} @train.py:7
        1.6 * done
        """
        look-on = 100
        "#
    ));
}

pub(crate) struct CallBuilder(Call);

/// A call of the default group of two ranks, of which only the operation is known.
pub(crate) fn call(op: Op) -> CallBuilder {
    CallBuilder(Call {
        id: CallId(1),
        at: Timestamp(0),
        thread: ThreadId(1),
        group: Some(group("0", "gloo", &[0, 1])),
        seq: 1,
        op,
        dtype: DType::Unspecified,
        reduce_op: ReduceOp::Unspecified,
        root: None,
        peer: None,
        tag: None,
        numel: None,
        shape: None,
        tensors: 1,
        on_stream: None,
        beneath: None,
        takes_all: false,
        is_async: false,
        hidden: false,
        splits: [Vec::new(), Vec::new()],
        step: 0,
        phase: None,
        place: None,
    })
}

pub(crate) fn group(name: &str, backend: &str, members: &[u32]) -> Arc<GroupInfo> {
    Arc::new(GroupInfo {
        key: GroupRef {
            layer: "c10d".into(),
            epoch: 0,
            name: name.into(),
            ordinal: 0,
            members: members.into(),
        },
        description: "".into(),
        backend: backend.into(),
        seat: None,
    })
}

impl CallBuilder {
    pub(crate) fn numel(mut self, numel: u64) -> Self {
        self.0.numel = Some(numel);
        self
    }

    pub(crate) fn dtype(mut self, dtype: DType) -> Self {
        self.0.dtype = dtype;
        self
    }

    pub(crate) fn reduce_op(mut self, reduce_op: ReduceOp) -> Self {
        self.0.reduce_op = reduce_op;
        self
    }

    pub(crate) fn root(mut self, root: u32) -> Self {
        self.0.root = Some(root);
        self
    }

    pub(crate) fn backend(mut self, backend: &str) -> Self {
        self.0.group = Some(group("0", backend, &[0, 1]));
        self
    }

    pub(crate) fn build(self) -> Call {
        self.0
    }
}
