//! Which evidence belongs to one job, and to one node of it.

use std::path::Path;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;

use super::Remark;
use super::collect::{BoxFile, Found, JournalFile, NoBoxFile};
use crate::evidence::journal;

/// The evidence of one job.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) nodes: Vec<Node>,
}

/// The evidence of one node of a job.
#[derive(Debug)]
pub(super) struct Node {
    /// Whose it is: as its journal says, or its boxes.
    pub(super) hello: v1::Hello,
    pub(super) journal: Option<JournalFile>,
    pub(super) boxes: Vec<BoxFile>,
    pub(super) no_boxes: Vec<NoBoxFile>,
    /// What is there and cannot be read.
    pub(super) gaps: Vec<String>,
}

/// Sorts evidence into jobs, the oldest first.
pub(super) fn of(found: Found, remarks: &mut Vec<Remark>) -> Vec<Job> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut journals = found.journals;
    journals.sort_by_key(|journal| journal.hello.started_unix_ns);
    for journal in journals {
        let twin = nodes
            .iter()
            .find(|node| is_same_node(&node.hello, &journal.hello));
        match twin.and_then(|node| node.journal.as_ref()) {
            Some(twin) => remarks.push(Remark {
                text: format!(
                    "it is of the same node and the same run as {}: left out",
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
    // Whoever was started first comes first: a rank before its helpers.
    boxes.sort_by_key(|it| {
        (
            it.identity.start_ticks,
            it.identity.pid,
            it.identity.anchor_mono_ns,
        )
    });
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
        // Without anything else from there nobody knows whose it is.
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
    into_jobs(nodes)
}

impl Node {
    fn is_from(&self, place: usize) -> bool {
        self.journal
            .as_ref()
            .is_some_and(|journal| journal.place == place)
            || self.boxes.iter().any(|it| it.place == place)
    }

    /// Leaves out processes that a rank started and that are the same rank in a world of their own,
    /// as the live follower does: they are not the rank.
    fn drop_helpers(&mut self) {
        let ranks: Vec<(u32, Option<u32>)> = self
            .boxes
            .iter()
            .map(|it| (it.identity.pid, it.identity.rank))
            .collect();
        self.boxes.retain(|it| {
            let parent = it.identity.parent_pid;
            !ranks
                .iter()
                .any(|&(pid, rank)| Some(pid) == parent && rank == it.identity.rank)
        });
    }
}

/// Nodes that were at work on one job at one time.
fn into_jobs(mut nodes: Vec<Node>) -> Vec<Job> {
    nodes.sort_by_key(|node| node.hello.started_unix_ns);
    let mut jobs: Vec<Job> = Vec::new();
    for node in nodes {
        let job = jobs
            .iter_mut()
            .rev()
            .find(|job| job.nodes.iter().all(|other| is_one_job(other, &node)));
        match job {
            Some(job) => job.nodes.push(node),
            None => jobs.push(Job { nodes: vec![node] }),
        }
    }
    jobs
}

/// Whether the job of one node is that of a later one.
fn is_one_job(earlier: &Node, later: &Node) -> bool {
    let (a, b) = (&earlier.hello, &later.hello);
    let has_journals = earlier.journal.is_some() && later.journal.is_some();
    if a.job != b.job || (has_journals && a.attempt != b.attempt) {
        return false;
    }
    // A name may be used again: a node that was through with the job before the other began was at
    // work on another one of that name. Only on one host can that be told without doubt.
    let same_host = a.boot_id == b.boot_id;
    let ended = || match &earlier.journal {
        Some(journal) => end_of(&journal.path),
        None => None,
    };
    !same_host || ended().is_none_or(|at| at >= Timestamp(b.started_unix_ns))
}

/// When a journal got its last report.
fn end_of(path: &Path) -> Option<Timestamp> {
    let mut reader = journal::Reader::open(path).ok()?;
    let mut last = None;
    while let Ok(Some(report)) = reader.read() {
        last = Some(Timestamp(report.sent_unix_ns));
    }
    last
}

/// The node that a box belongs to: one of the same job and boot, if possible from the same
/// place, else the last that had begun by then.
fn node_of(nodes: &[Node], it: &BoxFile) -> Option<usize> {
    let hello = hello_of(it);
    let mut candidates: Vec<usize> = (0..nodes.len())
        .filter(|&at| {
            let other = &nodes[at].hello;
            // A rank in a container has another host name, on the same boot.
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

/// What a node of this box would say of itself.
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

/// As the kernel writes boot ids.
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
        (
            hello.job.clone(),
            hello.host.clone(),
            hello.boot_id.clone(),
            hello.started_unix_ns,
        )
    };
    key(a) == key(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_ids_are_written_as_the_kernel_writes_them() {
        let bytes = std::array::from_fn(|i| i as u8);
        assert_eq!(uuid(bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
