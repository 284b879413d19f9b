//! Where a process was according to its stacks.

use std::sync::Arc;

use ddp_doctor_diagnosis::event::Stacks;
use ddp_doctor_diagnosis::{stacks, words};
use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Where;

/// Where the main thread of a process was: "in `all_reduce` at train.py:9".
pub(in super::super) fn place_of(stacks: &Arc<Stacks>) -> String {
    let at = words::at(stacks::line_of(stacks, None));
    match in_collective(stacks) {
        Some((Some(op), _)) => format!("in {op}{at}"),
        Some((None, _)) => format!("in PyTorch{at}"),
        None if at.is_empty() => "at no line of the program".into(),
        None => at.trim_start().to_owned(),
    }
}

/// The operation that the main thread of a process has called, and the user's line; `None` outside:
/// it is in no function that waits for other ranks.
pub(in super::super) fn in_collective(stacks: &Arc<Stacks>) -> Option<(Option<Op>, Option<Where>)> {
    let frames = &stacks.threads.first()?.python;
    let line = stacks::line_of(stacks, None).cloned();
    let users = frames.iter().position(|it| Some(it) == line.as_ref());
    let mut below = frames[..users.unwrap_or(frames.len())].iter().rev();
    let called = below.find(|it| {
        it.file.ends_with("torch/distributed/distributed_c10d.py")
            || it.file.contains("torch/autograd/")
            || it.file.ends_with("torch/nn/parallel/distributed.py")
            // The device may wait for other ranks.
            || it.file.ends_with("torch/cuda/__init__.py") && it.function == "synchronize"
    })?;
    Some((op(&called.function), line))
}

/// The operation of a function of `torch.distributed`.
fn op(function: &str) -> Option<Op> {
    let name = match function {
        "all_gather_into_tensor" | "_all_gather_base" | "all_gather_object" => "all_gather",
        "reduce_scatter_tensor" | "_reduce_scatter_base" => "reduce_scatter",
        "all_to_all_single" => "all_to_all",
        name => name,
    };
    Op::from_name(name).filter(|it| it.is_collective())
}
