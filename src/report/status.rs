//! State of a job, one line per item: for scripts and log files.

use std::io::{self, Write};

use ddp_doctor_diagnosis::words::bytes;
use ddp_doctor_proto::report::{
    DeviceActivity, Rank, RankActivity, RankDevice, RankMemory, RankState, Report, Role, Where,
};
use ddp_doctor_proto::words::of_group;

use super::text::{Style, about, duration, ended, plain};

/// Writes one line about the job, one about each finding and one about each rank. The first word of
/// a line is its kind.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn text(out: &mut dyn Write, report: &Report, style: Style) -> io::Result<()> {
    let (on, off) = style.label();
    let id = plain(&report.job.id);
    let about = about(report);
    writeln!(out, "{on}job{off} {id} {}: {about}", report.verdict)?;
    for finding in &report.findings {
        let follows = match finding.role {
            Role::Initiating => "",
            Role::Cascade => "follows: ",
        };
        writeln!(
            out,
            "{on}finding{off} {} {} {}: {follows}{}",
            finding.code,
            finding.severity,
            finding.confidence,
            plain(finding.title())
        )?;
    }
    for rank in &report.ranks {
        writeln!(out, "{on}rank{off} {} {}", rank.rank, rank_words(rank))?;
    }
    for rank in &report.evidence.missing_ranks {
        writeln!(out, "{on}rank{off} {rank} never seen")?;
    }
    Ok(())
}

/// State of a rank: "waiting in all_reduce #23 of the default group for 1.2 s, step 8, train.py:9, pid 123 on
/// node".
fn rank_words(rank: &Rank) -> String {
    let mut text = match (rank.state, &rank.activity) {
        (RankState::Exited | RankState::Dead, _) => {
            format!("{}: {}", rank.state, ended(rank.exit))
        }
        (RankState::Running, Some(activity)) => doing(activity),
        (state, _) => state.to_string(),
    };
    if let Some(waiting) = &rank.waiting_in {
        let seq = waiting.seq.map(|seq| format!(" #{seq}"));
        let group = of_group(&waiting.group);
        let waited = waiting.waited_ms.map(|ms| format!(" for {}", duration(ms)));
        text.push_str(&format!(
            " in {}{}{group}{}",
            plain(&waiting.op),
            seq.unwrap_or_default(),
            waited.unwrap_or_default()
        ));
    }
    if rank.step > 0 {
        text.push_str(&format!(", step {}", rank.step));
    }
    // The line of its last call is not where it is now.
    let place = rank.place.as_ref().filter(|_| rank.activity.is_none());
    if let Some(place) = place {
        text.push_str(&format!(", {}", line(place)));
    }
    if let Some(device) = &rank.device {
        text.push_str(&format!(", {}", device_words(device)));
    }
    if let Some(memory) = rank.memory.as_ref().and_then(memory_words) {
        text.push_str(&format!(", {memory}"));
    }
    // Evidence of other tools may name neither process nor host.
    if rank.pid > 0 {
        text.push_str(&format!(", pid {}", rank.pid));
    }
    if !rank.host.is_empty() {
        text.push_str(&format!(" on {}", plain(&rank.host)));
    }
    text
}

/// "GPU 3 spinning, Xid 79".
fn device_words(device: &RankDevice) -> String {
    let activity = match device.activity {
        DeviceActivity::Unknown => String::new(),
        activity => format!(" {activity}"),
    };
    let xid = device.last_xid.map(|xid| format!(", Xid {xid}"));
    format!("GPU {}{activity}{}", device.index, xid.unwrap_or_default())
}

/// "rss 900 MiB, GPU tensors 30.0 GiB, GPU reserved 40.0 GiB".
fn memory_words(memory: &RankMemory) -> Option<String> {
    let words = [
        (memory.host_bytes, "rss"),
        (memory.device_allocated_bytes, "GPU tensors"),
        (memory.device_reserved_bytes, "GPU reserved"),
        (memory.device_largest_free_bytes, "GPU largest free block"),
        (memory.device_free_bytes, "GPU free"),
    ]
    .into_iter();
    let known: Vec<String> =
        words.filter_map(|(it, name)| Some(format!("{name} {}", bytes(it?)))).collect();
    (!known.is_empty()).then(|| known.join(", "))
}

/// "idle, waiting for a request at engine.py:16".
fn doing(activity: &RankActivity) -> String {
    let at = activity.place.as_ref().map(|place| format!(" at {}", line(place)));
    format!("{}, {}{}", activity.kind, plain(&activity.text), at.unwrap_or_default())
}

fn line(place: &Where) -> String {
    format!("{}:{}", plain(&place.file), place.line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::report;
    use ddp_doctor_proto::report::{ActivityKind, WaitingIn};

    #[test]
    fn rank_that_others_wait_for_shows_what_it_does() {
        let mut rank = report().ranks.remove(0);
        rank.state = RankState::Running;
        rank.activity = Some(RankActivity {
            kind: ActivityKind::Idle,
            text: "waiting for a request".into(),
            place: Some(Where { file: "engine.py".into(), line: 16, ..Where::default() }),
        });
        let expected = "idle, waiting for a request at engine.py:16, step 8, pid 1 on node";
        assert_eq!(rank_words(&rank), expected);
    }

    #[test]
    fn memory_of_a_rank_is_shown_as_far_as_measured() {
        let mut rank = report().ranks.remove(0);
        rank.memory = Some(RankMemory {
            host_bytes: Some(900 << 20),
            device_allocated_bytes: Some(30 << 30),
            device_reserved_bytes: Some(40 << 30),
            device_largest_free_bytes: Some(9 << 30),
            device_free_bytes: None,
        });
        let expected = "waiting, step 8, rss 900 MiB, GPU tensors 30.0 GiB, GPU reserved 40.0 GiB, \
                        GPU largest free block 9.0 GiB, pid 1 on node";
        assert_eq!(rank_words(&rank), expected);
    }

    #[test]
    fn device_of_a_rank_is_shown_with_its_latest_error() {
        let mut rank = report().ranks.remove(0);
        let mut device = RankDevice { index: 3, ..RankDevice::default() };
        rank.device = Some(device.clone());
        assert_eq!(rank_words(&rank), "waiting, step 8, GPU 3, pid 1 on node");
        (device.activity, device.last_xid) = (DeviceActivity::Spinning, Some(79));
        rank.device = Some(device);
        assert_eq!(rank_words(&rank), "waiting, step 8, GPU 3 spinning, Xid 79, pid 1 on node");
    }

    #[test]
    fn every_line_begins_with_its_kind() {
        let mut report = report();
        report.evidence.missing_ranks = vec![3];
        report.ranks[0].waiting_in = Some(WaitingIn {
            group: "0".into(),
            seq: Some(23),
            op: "all_reduce".into(),
            waited_ms: Some(1200),
        });
        report.ranks[2].host = "no\x1b[31mde".into();
        let mut out = Vec::new();
        text(&mut out, &report, Style::default()).unwrap();
        let expected = "\
job j-1 hang: 3 ranks on 1 node · gloo · began 1970-01-01T00:00:01.000Z, ended after 9.0 s · 12 records
finding DD102 error proved: rank 1 has ended; ranks 0 and 2 wait for it in all_reduce #23
rank 0 waiting in all_reduce #23 of the default group for 1.2 s, step 8, pid 1 on node
rank 1 exited: ended, status 0, step 8, pid 1 on node
rank 2 waiting, step 8, pid 1 on no\u{fffd}[31mde
rank 3 never seen
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
