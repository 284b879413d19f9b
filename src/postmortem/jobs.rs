//! Groups evidence by job, and by node within a job.

use std::path::Path;

use ddp_doctor_evidence::journal;
use ddp_doctor_ingest::logs::Log;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;

use super::Remark;
use super::collect::Collected;
use super::pieces::{BoxFile, JournalFile, NoBoxFile, Place};

/// The evidence of one job.
#[derive(Debug, Default)]
pub(super) struct RecordedJob {
    pub(super) nodes: Vec<Node>,
    /// Logs, if these are its only evidence.
    pub(super) logs: Vec<Log>,
}

/// The evidence of one node of a job.
#[derive(Debug)]
pub(super) struct Node {
    /// First message of the node, from its journal or derived from its boxes.
    pub(super) hello: v1::Hello,
    pub(super) journal: Option<JournalFile>,
    pub(super) boxes: Vec<BoxFile>,
    pub(super) no_boxes: Vec<NoBoxFile>,
    /// Evidence that exists and is unreadable.
    pub(super) gaps: Vec<String>,
}

/// Groups evidence into jobs, the oldest first. All logs are of one job.
pub(super) fn assemble(found: Collected, remarks: &mut Vec<Remark>) -> Vec<RecordedJob> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut journals = found.journals;
    journals.sort_by_key(|journal| (journal.hello.started_unix_ns, journal.segment));
    for journal in journals {
        let mut twins = nodes.iter_mut().filter(|node| is_same_node(&node.hello, &journal.hello));
        match twins.next().and_then(|node| node.journal.as_mut()) {
            Some(twin) if twin.is_before(&journal) => {
                twin.goes_on |= journal.goes_on;
                twin.later.push((journal.segment, journal.path, journal.place));
            }
            Some(twin) => remarks.push(Remark {
                text: format!(
                    "it belongs to the same node and run as {} and is left out",
                    twin.path.display()
                ),
                path: journal.path,
            }),
            None => nodes.push(Node {
                hello: journal.hello.clone(),
                journal: Some(journal),
                boxes: Vec::new(),
                no_boxes: Vec::new(),
                gaps: Vec::new(),
            }),
        }
    }
    let mut boxes = found.boxes;
    // By start time: a rank before its helpers.
    boxes.sort_by_key(|it| (it.identity.start_ticks, it.identity.pid, it.identity.anchor_mono_ns));
    boxes.dedup_by(|a, b| is_same_box(a, b));
    for it in boxes {
        let at = node_of(&nodes, &it).unwrap_or_else(|| {
            nodes.push(Node {
                hello: hello_of(&it),
                journal: None,
                boxes: Vec::new(),
                no_boxes: Vec::new(),
                gaps: Vec::new(),
            });
            nodes.len() - 1
        });
        let node = &mut nodes[at];
        if node.journal.is_none() {
            let anchor = it.identity.anchor_unix_ns;
            node.hello.started_unix_ns = node.hello.started_unix_ns.min(anchor);
        }
        node.boxes.push(it);
    }
    for marker in found.no_boxes {
        // Without other evidence from that place its node is unknown.
        if let Some(node) = nodes.iter_mut().find(|node| node.is_from(marker.place)) {
            node.no_boxes.push(marker);
        }
    }
    for gap in found.gaps {
        if let Some(node) = nodes.iter_mut().find(|node| node.is_from(gap.place)) {
            node.gaps.push(gap.text);
        }
    }
    for node in &mut nodes {
        node.drop_helpers();
    }
    let mut jobs = into_jobs(nodes);
    if !found.logs.is_empty() {
        jobs.push(RecordedJob { logs: found.logs, ..RecordedJob::default() });
    }
    jobs
}

/// Whether one is a copy of the other, as while a box is moved between file systems.
fn is_same_box(a: &BoxFile, b: &BoxFile) -> bool {
    let key = |it: &BoxFile| {
        let it = &it.identity;
        (it.boot_id, it.pid, it.start_ticks, it.anchor_mono_ns)
    };
    key(a) == key(b) && a.identity.layer == b.identity.layer
}

impl Node {
    /// Where its journal and boxes are.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        let of_journal = self.journal.iter().flat_map(JournalFile::places);
        of_journal.chain(self.boxes.iter().map(|it| it.place))
    }

    fn is_from(&self, place: Place) -> bool {
        self.places().any(|it| it == place)
    }

    /// Removes helpers, as the live follower does: processes that a rank started, and that claim
    /// the same rank in a world of their own.
    fn drop_helpers(&mut self) {
        let ranks: Vec<(u32, Option<u32>)> =
            self.boxes.iter().map(|it| (it.identity.pid, it.identity.rank)).collect();
        self.boxes.retain(|it| {
            let parent = it.identity.parent_pid;
            !ranks.iter().any(|&(pid, rank)| Some(pid) == parent && rank == it.identity.rank)
        });
    }
}

/// Groups nodes that worked on one job at the same time.
fn into_jobs(mut nodes: Vec<Node>) -> Vec<RecordedJob> {
    nodes.sort_by_key(|node| node.hello.started_unix_ns);
    let mut jobs: Vec<RecordedJob> = Vec::new();
    for node in nodes {
        let job = jobs
            .iter_mut()
            .rev()
            .find(|job| job.nodes.iter().all(|other| is_one_job(other, &node)));
        match job {
            Some(job) => job.nodes.push(node),
            None => jobs.push(RecordedJob { nodes: vec![node], ..RecordedJob::default() }),
        }
    }
    jobs
}

/// Whether two nodes belong to the same job.
fn is_one_job(earlier: &Node, later: &Node) -> bool {
    let (a, b) = (&earlier.hello, &later.hello);
    let has_journals = earlier.journal.is_some() && later.journal.is_some();
    if a.job != b.job || (has_journals && a.attempt != b.attempt) {
        return false;
    }
    // A job name may be reused: a node that finished before the other began worked on an earlier
    // job of that name. Only times of the same host can be compared safely.
    let same_host = a.boot_id == b.boot_id;
    let ended = || match &earlier.journal {
        Some(journal) => journal.paths().last().and_then(|path| end_of(&path)),
        None => None,
    };
    !same_host || ended().is_none_or(|at| at >= Timestamp(b.started_unix_ns))
}

/// Time of a journal's last report.
fn end_of(path: &Path) -> Option<Timestamp> {
    let mut reader = journal::Reader::open(path).ok()?;
    let mut last = None;
    while let Ok(Some(report)) = reader.read() {
        last = Some(Timestamp(report.sent_unix_ns));
    }
    last
}

/// The node to which a box belongs: one with the same job and boot, preferably from the same place,
/// otherwise the last one that had begun when the box was created.
fn node_of(nodes: &[Node], it: &BoxFile) -> Option<usize> {
    let hello = hello_of(it);
    let mut candidates: Vec<usize> = (0..nodes.len())
        .filter(|&at| {
            let other = &nodes[at].hello;
            // A rank in a container has another host name on the same boot.
            other.job == hello.job && other.boot_id == hello.boot_id
        })
        .collect();
    if let Some(&here) = candidates.iter().find(|&&at| nodes[at].is_from(it.place)) {
        return Some(here);
    }
    candidates.retain(|&at| {
        let other = &nodes[at];
        other.journal.is_none() || other.hello.started_unix_ns <= hello.started_unix_ns
    });
    candidates.last().copied()
}

/// The first message that the node of this box would have sent.
fn hello_of(it: &BoxFile) -> v1::Hello {
    let identity = &it.identity;
    v1::Hello {
        job: identity.job.clone(),
        started_unix_ns: identity.anchor_unix_ns,
        host: identity.host.clone(),
        boot_id: uuid(identity.boot_id),
        tool_version: identity.tool.clone(),
        ..v1::Hello::default()
    }
}

/// Formats a boot id as the kernel does.
fn uuid(bytes: [u8; 16]) -> String {
    let mut text = String::new();
    for (i, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&i) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

fn is_same_node(a: &v1::Hello, b: &v1::Hello) -> bool {
    let key = |hello: &v1::Hello| {
        (hello.job.clone(), hello.host.clone(), hello.boot_id.clone(), hello.started_unix_ns)
    };
    key(a) == key(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_ids_are_formatted_like_the_kernel_does() {
        let bytes = std::array::from_fn(|i| i as u8);
        assert_eq!(uuid(bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
