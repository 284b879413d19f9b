//! The frames of an entry: the user's line, and whether the call is a message of a batch.

use ddp_doctor_diagnosis::input::place::is_users;

use crate::flight_recorder::document::Node;

/// Maximum number of frames examined per entry.
const MAX_FRAMES: usize = 1024;

/// File, line and function of the innermost frame of the user's program, or of the innermost frame
/// outside of PyTorch if the program is an installed package. `None`: there is none.
pub(super) fn users_line(frames: Node<'_>) -> Option<(&str, u32, &str)> {
    let frames = || frames.items().take(MAX_FRAMES).filter_map(frame);
    let own = |(file, ..): &(&str, u32, &str)| is_users(file) && !file.contains("-packages/");
    let outside = |(file, ..): &(&str, u32, &str)| is_users(file);
    frames().find(own).or_else(|| frames().find(outside))
}

/// Whether the call was made by PyTorch's function that makes several messages one call.
pub(super) fn is_batched(frames: Node<'_>) -> bool {
    let mut frames = frames.items().take(MAX_FRAMES).filter_map(frame);
    frames.any(|(file, _, function)| {
        function == "batch_isend_irecv" && file.ends_with("distributed_c10d.py")
    })
}

/// A Python frame. Frames of C++ have other files.
fn frame(node: Node<'_>) -> Option<(&str, u32, &str)> {
    let file = node.get("filename")?.text()?;
    let is_python = file.ends_with(".py") || file.contains("ipython") || file.contains("ipykernel");
    let line = node.get("line").and_then(Node::int).unwrap_or(0);
    let function = node.get("name").and_then(Node::text).unwrap_or_default();
    is_python.then(|| (file, u32::try_from(line).unwrap_or(0), function))
}
