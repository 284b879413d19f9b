//! Phrases that several findings use, for consistent messages.

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::vocabulary::NCCL_LAYER;

pub use ddp_doctor_proto::words::rank_list;
use ddp_doctor_proto::words::runs;

use crate::input::allocation::UNITS;
use crate::input::event::{Call, GroupInfo};
use crate::model::Place;

/// What to do if a process was killed by SIGKILL.
pub const AFTER_SIGKILL: &str = "Find out what sent SIGKILL: the kernel's out-of-memory killer (dmesg), a batch system's limit, or a \
     user.";
/// What to do if a process crashed.
pub const AFTER_A_CRASH: &str = "Set PYTHONFAULTHANDLER=1, which prints the line of Python, or run the rank under a debugger or with core dumps on: such a \
     signal usually comes from native code.";

/// Why evidence is missing if the calls were read from dumps.
pub const WHY_FOR_DUMPS: &str =
    "A process that ends abruptly writes no dump, and a dump shows no later calls.";

/// What to do if dumps are missing or incomplete.
pub const NEXT_FOR_DUMPS: &str = "Add dumps of these ranks that were written with the others (TORCH_FR_DUMP_TEMP_FILE names where), or read \
     the logs of these ranks.";

/// Formats ranks: "rank 1", "ranks 0 and 2", "ranks 0–5, 7 and 9".
#[derive(Clone, Copy, Debug)]
pub struct Ranks<'a>(pub &'a [u32]);

impl Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = runs(self.0);
        match &parts[..] {
            [] => f.write_str("no rank"),
            [one] if self.0.len() == 1 => write!(f, "rank {one}"),
            [one] => write!(f, "ranks {one}"),
            [first @ .., last] => write!(f, "ranks {} and {last}", first.join(", ")),
        }
    }
}

impl Ranks<'_> {
    /// The ranks with a verb that agrees with their number: "rank 1 waits", "ranks 0 and 2 wait".
    pub fn with(self, one: &str, several: &str) -> String {
        format!("{self} {}", number(self.0, one, several))
    }
}

/// The text with its first letter in upper case: "Rank 1 waits", "Ranks 0 and 2".
pub fn begin(text: impl Display) -> String {
    let text = text.to_string();
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    format!("{}{}", first.unwrap_or_default(), letters.as_str())
}

/// The parts with this between each two of them.
pub(crate) fn joined(parts: impl IntoIterator<Item = String>, between: &str) -> String {
    parts.into_iter().collect::<Vec<_>>().join(between)
}

/// "operation, size and dtype"
pub(crate) fn listed(parts: &[&str]) -> String {
    match parts {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The singular for exactly one rank, otherwise the plural: "is" or "are", "has" or "have", ….
pub const fn number<'a>(ranks: &[u32], one: &'a str, several: &'a str) -> &'a str {
    if ranks.len() == 1 { one } else { several }
}

/// The end of a summary: "; ranks 0 and 2 wait for it"; empty if no rank waits.
pub fn wait_for_it(victims: &[u32]) -> String {
    if victims.is_empty() {
        return String::new();
    }
    format!("; {} for it", Ranks(victims).with("waits", "wait"))
}

/// Name and number of a call: "all_reduce #23", "recv #2 from rank 0".
pub fn call(call: &Call) -> String {
    let mut text = match call.op {
        ddp_doctor_proto::Op::Unspecified => "call".to_owned(),
        op => op.to_string(),
    };
    if let Some(seq) = call.stated_seq() {
        let _infallible = write!(text, " #{seq}");
    }
    text + &partner(call)
}

/// The same with the line of the call, if that is known: "all_reduce #23 at train.py:9".
pub fn call_at(it: &Call) -> String {
    call(it) + &at(it.place.as_deref())
}

/// The peer of a message: " to rank 1", " from rank 0", " from any rank"; empty for other calls.
fn partner(call: &Call) -> String {
    let way = match call.op {
        op if !op.is_point_to_point() => return String::new(),
        ddp_doctor_proto::Op::Send => "to",
        _ => "from",
    };
    call.peer.map_or_else(|| format!(" {way} any rank"), |peer| format!(" {way} rank {peer}"))
}

/// The known parts of a call's signature: "all_reduce float32[3, 1560] sum".
pub fn signature(call: &Call) -> String {
    let mut text = call.op.to_string();
    let dtype = call.dtype.name();
    let size = size(call);
    if !call.op.is_barrier() && (dtype.is_some() || size.is_some()) {
        let size = size.unwrap_or_else(|| "[?]".into());
        let _infallible = write!(text, " {}{size}", dtype.unwrap_or_default());
    }
    if let (Some(reduce_op), true) = (call.known_reduce_op().name(), call.op.reduces()) {
        let _infallible = write!(text, " {reduce_op}");
    }
    if let (Some(root), true) = (call.root, call.op.is_rooted()) {
        let _infallible = write!(text, ", root {root}");
    }
    text + &partner(call)
}

/// The shape of a call's tensor, or else its number of elements: "[3, 1560]", "[6 elements]".
pub fn size(call: &Call) -> Option<String> {
    let shape = call.shape.as_ref().map(|shape| format!("{shape:?}"));
    shape.or_else(|| call.numel.map(|numel| format!("[{numel} elements]")))
}

/// Name of a group for users: its description, or its name if it has none.
pub fn group(group: &GroupInfo) -> String {
    let kind = kind_of_group(group);
    match &*group.description {
        "" | "undefined" if group.unstated.name => format!("the {kind}"),
        "" | "undefined" => format!("{kind} {:?}", group.key.name),
        "default_pg" => format!("the default {kind}"),
        description => format!("{kind} {description:?}"),
    }
}

/// What the layer of a group calls it.
pub fn kind_of_group(group: &GroupInfo) -> &'static str {
    match &*group.key.layer {
        NCCL_LAYER => "communicator",
        _ => "group",
    }
}

/// " of the default group", after a call; empty if the evidence does not state which group it is.
pub fn of_group(info: &GroupInfo) -> String {
    let is_described = !matches!(&*info.description, "" | "undefined");
    if info.unstated.name && !is_described {
        return String::new();
    }
    format!(" of {}", group(info))
}

/// What pairs the calls of ranks: "PyTorch pairs calls by count".
pub fn pairing(info: &GroupInfo) -> &'static str {
    match &*info.key.layer {
        "c10d" => "PyTorch pairs calls by count",
        NCCL_LAYER => "NCCL pairs calls by count",
        _ => "Calls are paired by count",
    }
}

/// Address of the rendezvous: "localhost:29500".
pub fn place(place: &Place) -> String {
    match place.port {
        Some(port) => format!("{}:{port}", place.address),
        None => place.address.to_string(),
    }
}

/// " at train.py:9"; empty for `None`.
pub fn at(place: Option<&Where>) -> String {
    place.map(|place| format!(" at {}", line(place))).unwrap_or_default()
}

/// "train.py:9": without the folders, because findings list the full path separately. With frames of
/// installed packages: "train.py:9 › Trainer.save".
pub fn line(place: &Where) -> String {
    let feature = place.features().pop().map(|frame| format!(" › {}", frame.function));
    source_line(place) + &feature.unwrap_or_default()
}

/// Like [`line()`], for a sentence about the line itself: without the feature that is called there.
pub fn source_line(place: &Where) -> String {
    let file = place.file.rsplit('/').next().unwrap_or(&place.file);
    let library = if place.library { " in a library" } else { "" };
    format!("{file}:{}{library}", place.line)
}

/// "load()", or "the main program" for `<module>`.
pub fn function(place: &Where) -> String {
    match &*place.function {
        "<module>" => "the main program".into(),
        "" => "a function".into(),
        name => format!("{name}()"),
    }
}

/// A duration in seconds or above: "5.0 s", "12 min".
pub fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min", time.as_secs() / 60),
        3600.. => format!("{} h {} min", time.as_secs() / 3600, time.as_secs() / 60 % 60),
    }
}

/// A duration: "210 ms", "5.0 s", "12 min".
pub fn short_time(time: Duration) -> String {
    match time.as_micros() {
        0..10_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        10_000..1_000_000 => format!("{} ms", time.as_millis()),
        1_000_000.. => seconds(time),
    }
}

/// "once", "3 times".
pub fn times(count: u64) -> String {
    match count {
        1 => "once".into(),
        2 => "twice".into(),
        _ => format!("{count} times"),
    }
}

/// A size: "20.0 GiB", "512 MiB", "7 B".
pub fn bytes(bytes: u64) -> String {
    let power = (u64::BITS - 1).saturating_sub(bytes.leading_zeros()) as usize / 10;
    let value = bytes as f64 / f64::from(1_u32 << 10).powi(power as i32);
    let digits = if power == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[power])
}

/// Time of day: "14:23:36 UTC".
pub fn clock(at: Timestamp) -> String {
    let text = at.to_string();
    format!("{} UTC", text.get(11..19).unwrap_or(&text))
}

/// The first line of an exception's text, cut after 160 characters, without its full stop and the place
/// in PyTorch's source with which its C++ errors begin. The message of some begins with an empty line.
pub fn short(text: &str) -> String {
    const MAX_CHARS: usize = 160;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first_line = lines.next().unwrap_or("");
    let kind = first_line.strip_suffix(':').filter(|kind| !kind.contains(' '));
    let first_line = &match (kind, lines.next()) {
        (Some(_), Some(next_line)) => format!("{first_line} {next_line}"),
        (Some(kind), None) => kind.to_owned(),
        (None, _) => first_line.to_owned(),
    };
    let without_place = first_line.split_once(": [").and_then(|(kind, rest)| {
        let (place, message) = rest.split_once("] ")?;
        place.starts_with('/').then(|| format!("{kind}: {message}"))
    });
    let first_line = without_place.as_deref().unwrap_or(first_line);
    let sentence = first_line.strip_suffix('.').filter(|it| !it.ends_with('.'));
    let first_line = sentence.unwrap_or(first_line);
    match first_line.char_indices().nth(MAX_CHARS) {
        Some((at, _)) => format!("{}…", &first_line[..at]),
        None => first_line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::{DType, Op, ReduceOp};

    use super::*;
    use crate::testing;

    #[test]
    fn ranks_are_formatted_as_a_phrase() {
        assert_eq!(Ranks(&[1]).to_string(), "rank 1");
        assert_eq!(Ranks(&[0, 2]).to_string(), "ranks 0 and 2");
        assert_eq!(Ranks(&[0, 1, 2, 3]).to_string(), "ranks 0–3");
        assert_eq!(Ranks(&[0, 1, 2, 4, 6]).to_string(), "ranks 0–2, 4 and 6");
        assert_eq!(rank_list(&[0, 1, 5]), "0, 1, 5");
        assert_eq!(begin(Ranks(&[0, 2])), "Ranks 0 and 2");
    }

    #[test]
    fn bytes_have_a_unit_and_few_digits() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (20 << 30, "20.0 GiB"),
            (512 << 20, "512 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn short_text_omits_the_place_in_pytorchs_source() {
        let gloo = "RuntimeError: [/build/third_party/gloo/pair.cc:561] Connection closed by peer";
        assert_eq!(short(gloo), "RuntimeError: Connection closed by peer");
        assert_eq!(short("KeyError: [1, 2] x\nmore"), "KeyError: [1, 2] x");
        let indented = "RuntimeError: \n        Failed to run stage backward:\n        more";
        assert_eq!(short(indented), "RuntimeError: Failed to run stage backward:");
        assert_eq!(short("KeyboardInterrupt: "), "KeyboardInterrupt");
        assert_eq!(short("OSError: no such file."), "OSError: no such file");
        assert_eq!(short("OSError: and so on..."), "OSError: and so on...");
        assert_eq!(short(&"x".repeat(500)).chars().count(), 161);
    }

    #[test]
    fn signature_contains_only_known_parts() {
        let mut call =
            Call { dtype: DType::Float32, numel: Some(6), ..testing::call(Op::AllReduce) };
        assert_eq!(signature(&call), "all_reduce float32[6 elements]");
        call.shape = Some(vec![2, 3]);
        call.reduce_op = ReduceOp::Sum;
        assert_eq!(signature(&call), "all_reduce float32[2, 3] sum");
        assert_eq!(signature(&testing::call(Op::Barrier)), "barrier");
        assert_eq!(
            signature(&Call { root: Some(3), ..testing::call(Op::Broadcast) }),
            "broadcast, root 3"
        );
        let mut send = Call { numel: Some(4), ..testing::call(Op::Send) };
        send.peer = Some(1);
        assert_eq!(signature(&send), "send [4 elements] to rank 1");
        assert_eq!(super::call(&send), "send #1 to rank 1");
        let recv = testing::call(Op::Recv);
        assert_eq!(signature(&recv), "recv from any rank");
    }
}
