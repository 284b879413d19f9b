//! Simulated jobs of many records, each with its truth, and their healthy twins. Of their records, those of a quarter of
//! a second are pulled every ten seconds.

use ddp_doctor_proto::{Op, RecordKind, Spending};

use super::*;

const START: Timestamp = Timestamp(1_700_000_000_000_000_000);
const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const REPORT_INTERVAL: u64 = TICK.as_nanos() as u64;
/// Duration of a collective once all members have come.
const TAKES: u64 = 100 * MICROSECOND;
/// The rate is above four times the first of these, so that records are not examined for long.
const SAMPLED: Limits = Limits { above: 40, most: 40, kept: usize::MAX };

/// A collective of a round of the loop, in one or several groups at once.
struct Call {
    line: u32,
    /// A collective, or a message from the first to the second member of each group, which receives later.
    op: Op,
    groups: &'static [&'static [u32]],
    /// Nanoseconds of work before it.
    work: u64,
}

/// What is wrong with a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A rank takes longer before a line.
    Work(u32, u32),
    /// The same by waiting for input.
    Input(u32, u32),
    /// The same in a phase that the program marks, which is not a fault.
    Phase(u32, u32),
    /// Collectives take longer from the middle of the job on.
    Network,
    /// A rank makes another call in the end.
    Mismatch(u32),
}

/// A job with its truth.
struct Job {
    backend: &'static str,
    marks_steps: bool,
    round: &'static [Call],
    fault: Fault,
    lasts: u64,
}

const ALL_RANKS: &[&[u32]] = &[&[0, 1, 2, 3]];

/// Four ranks that average gradients.
const DATA: Job = Job {
    backend: "gloo",
    marks_steps: true,
    round: &[
        call(10, ALL_RANKS, 40 * MILLISECOND),
        call(11, ALL_RANKS, 5 * MILLISECOND),
        call(12, ALL_RANKS, 5 * MILLISECOND),
        call(13, ALL_RANKS, 5 * MILLISECOND),
    ],
    fault: Fault::Work(2, 10),
    lasts: 170 * SECOND,
};

/// Two pairs that compute together, and average gradients with the other pair. Rank 1 delays rank 0, and thereby rank 2.
const TENSOR_AND_DATA: Job = Job {
    marks_steps: false,
    round: &[
        call(20, &[&[0, 1], &[2, 3]], 40 * MILLISECOND),
        call(21, &[&[0, 1], &[2, 3]], 5 * MILLISECOND),
        call(22, &[&[0, 2], &[1, 3]], 5 * MILLISECOND),
    ],
    fault: Fault::Work(1, 20),
    ..DATA
};

/// Stages of a pipeline: ranks 0 and 2 wait in each round until their message is received.
const PIPELINE: Job = Job {
    marks_steps: false,
    round: &[
        Call { op: Op::Send, ..call(30, &[&[0, 1], &[2, 3]], 20 * MILLISECOND) },
        call(31, ALL_RANKS, 5 * MILLISECOND),
    ],
    ..DATA
};

const fn call(line: u32, groups: &'static [&'static [u32]], work: u64) -> Call {
    Call { line, op: Op::AllReduce, groups, work }
}

/// The state of a rank.
#[derive(Default)]
struct Rank {
    number: u32,
    /// Time since the start of the job, in nanoseconds.
    at: u64,
    tickets: u64,
    step: u32,
    /// Calls by group.
    seqs: [u64; 8],
}

impl Rank {
    fn record(&mut self, kind: RecordKind) -> v1::Record {
        self.tickets += 1;
        v1::Record {
            process: u64::from(self.number) + 1,
            ticket: self.tickets - 1,
            mono_ns: self.at,
            kind: i32::from(kind.number()),
            thread: 1,
            step: self.step,
            ..v1::Record::default()
        }
    }

    /// Spends more time before a line, if that is the fault.
    fn delay(&mut self, fault: Fault, line: u32, time: u64) -> Vec<v1::Record> {
        let here = (self.number, line);
        match fault {
            Fault::Work(rank, before) if (rank, before) == here => {
                self.at += time;
                Vec::new()
            }
            Fault::Input(rank, before) if (rank, before) == here => {
                self.at += time;
                vec![v1::Record {
                    code: i32::from(Spending::Input.number()),
                    numel: Some(time),
                    site: line,
                    ..self.record(RecordKind::Spent)
                }]
            }
            Fault::Phase(rank, before) if (rank, before) == here => {
                let begins = self.record(RecordKind::PhaseBegin);
                self.at += 4 * time;
                let ends = self.record(RecordKind::PhaseEnd);
                let named =
                    [begins, ends].map(|record| v1::Record { text: "evaluation".into(), ..record });
                named.into()
            }
            _ => Vec::new(),
        }
    }
}

/// Pseudorandom numbers of Knuth's linear congruential generator.
struct Random(u64);

impl Random {
    /// A value of up to a quarter more or less.
    fn around(&mut self, value: u64) -> u64 {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        value * (768 + (self.0 >> 33) % 512) / 1024
    }
}

impl Job {
    /// The groups of its calls.
    fn groups(&self) -> Vec<&'static [u32]> {
        let groups: BTreeSet<&[u32]> =
            self.round.iter().flat_map(|call| call.groups).copied().collect();
        groups.into_iter().collect()
    }

    fn definitions(&self) -> Vec<Kind> {
        let mut kinds = vec![Kind::Hello(v1::Hello {
            job: "simulated".into(),
            started_unix_ns: START.0,
            host: "node-0".into(),
            ..v1::Hello::default()
        })];
        for rank in 0..4 {
            let process = u64::from(rank) + 1;
            kinds.push(Kind::ProcessJoined(v1::ProcessJoined {
                process,
                pid: 100 + rank,
                rank: Some(rank),
                world_size: Some(4),
                layer: "c10d".into(),
                anchor_unix_ns: START.0,
                ..v1::ProcessJoined::default()
            }));
            kinds.push(Kind::SchedulingSample(v1::SchedulingSample {
                process,
                unix_ns: START.0 + SECOND,
                threads_queued_permille: Some(10),
                stolen_permille: Some(0),
                ..v1::SchedulingSample::default()
            }));
            for (members, id) in self.groups().into_iter().zip(1..) {
                kinds.push(Kind::GroupDefined(v1::GroupDefined {
                    process,
                    id,
                    name: id.to_string(),
                    backend: self.backend.into(),
                    members: members.to_vec(),
                    ..v1::GroupDefined::default()
                }));
            }
            for call in self.round {
                kinds.push(Kind::SiteDefined(v1::SiteDefined {
                    process,
                    id: call.line,
                    file: "train.py".into(),
                    line: call.line,
                    ..v1::SiteDefined::default()
                }));
            }
        }
        kinds
    }

    /// What the node of its ranks observes; `fault`: none in the healthy twin.
    fn evidence(&self, fault: Option<Fault>) -> Evidence {
        let mut records = self.records(fault);
        records.sort_by_key(|record| record.mono_ns);
        let mut reports = vec![(START, self.definitions())];
        let number = |record: &v1::Record| record.mono_ns / REPORT_INTERVAL;
        for reported in records.chunk_by(|a, b| number(a) == number(b)) {
            let at = START.plus(TICK * (number(&reported[0]) + 1) as u32);
            reports.push((at, reported.iter().cloned().map(Kind::Record).collect()));
        }
        reports.push((START.plus(Duration::from_nanos(self.lasts) + TICK * 60), Vec::new()));
        Evidence { reports, behind: START.0 }
    }

    fn records(&self, fault: Option<Fault>) -> Vec<v1::Record> {
        let mut random = Random(1);
        let mut records = Vec::new();
        let mut ranks = [0, 1, 2, 3].map(|number| Rank { number, ..Rank::default() });
        let whole: u64 = self.round.iter().map(|call| call.work).sum();
        let groups: Vec<_> = self.groups().into_iter().zip(1..).collect();
        while ranks[0].at < self.lasts {
            for rank in ranks.iter_mut().filter(|_| self.marks_steps) {
                rank.step += 1;
                records.push(rank.record(RecordKind::Step));
            }
            for call in self.round {
                for rank in &mut ranks {
                    rank.at += random.around(call.work);
                    if let Some(fault) = fault {
                        records.extend(rank.delay(fault, call.line, whole));
                    }
                }
                let groups = groups.iter().filter(|(it, _)| call.groups.contains(it));
                for &(members, group) in groups {
                    let is_slow = fault == Some(Fault::Network) && ranks[0].at > self.lasts / 2;
                    let takes = if is_slow { whole } else { TAKES };
                    self.exchange((members, group), call, takes, &mut ranks, &mut records);
                }
            }
        }
        if let Some(Fault::Mismatch(other)) = fault {
            for rank in &mut ranks {
                let is_other = rank.number == other;
                let op = if is_other { Op::Barrier } else { Op::AllReduce };
                records.push(issued(rank, 1, self.round[0].line, op));
            }
        }
        records
    }

    /// Adds the records of a call of all members of a group.
    fn exchange(
        &self,
        (members, group): (&[u32], u32),
        call: &Call,
        takes: u64,
        ranks: &mut [Rank; 4],
        records: &mut Vec<v1::Record>,
    ) {
        let is_message = call.op == Op::Send;
        if is_message {
            ranks[members[1] as usize].at += call.work;
        }
        let arrivals = members.iter().map(|&rank| ranks[rank as usize].at);
        let over = arrivals.max().unwrap() + takes;
        for (index, &rank) in members.iter().enumerate() {
            let rank = &mut ranks[rank as usize];
            let mut issued = issued(rank, group, call.line, call.op);
            if is_message {
                let op = [Op::Send, Op::Recv][index];
                issued.op = i32::from(op.number());
                issued.root = Some(1 - index as i32);
                issued.tag = Some(0);
            }
            // With NCCL the call returns, and the program waits for its result without a record.
            rank.at = match self.backend {
                "nccl" => rank.at + 20 * MICROSECOND,
                _ => over,
            };
            let returned = v1::Record { call: issued.call, ..rank.record(RecordKind::Returned) };
            rank.at = over;
            records.extend([issued, returned]);
        }
    }
}

fn issued(rank: &mut Rank, group: u32, line: u32, op: Op) -> v1::Record {
    rank.seqs[group as usize] += 1;
    let seq = rank.seqs[group as usize];
    v1::Record {
        group,
        seq,
        call: u64::from(group) << 32 | seq,
        site: line,
        op: i32::from(op.number()),
        numel: Some(1024),
        tensors: 1,
        ..rank.record(RecordKind::Issued)
    }
}

/// The finding in a sample of a job's records, which is the one in all of them. The healthy twin has none.
#[track_caller]
fn finding_in_sample(job: &Job) -> Finding {
    let brief = Job { lasts: 30 * SECOND, ..*job };
    let records = diagnose(brief.evidence(Some(job.fault)), ALL);
    let digests = diagnose(job.evidence(Some(job.fault)), SAMPLED);
    let sent = (digests.received, records.received);
    assert!(sent.0 * 2 < sent.1, "{sent:?} records were sent");
    assert_eq!(essence(&records.report), essence(&digests.report));
    let healthy = diagnose(job.evidence(None), SAMPLED);
    assert_eq!(healthy.codes, BTreeSet::new(), "healthy twin");
    let mut findings = digests.report.findings;
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.remove(0)
}

/// Code, confidence, root and line of a finding.
fn summary(finding: &Finding) -> (&str, Confidence, &[u32], u32) {
    let place = finding.per_rank[0].place.as_ref();
    (&finding.code, finding.confidence, &finding.ranks.root, place.map_or(0, |place| place.line))
}

#[test]
fn straggler_is_found_in_a_sample() {
    let found = finding_in_sample(&DATA);
    assert_eq!(summary(&found), ("DD601", Confidence::Supported, &[2][..], 10));
}

#[test]
fn slow_input_is_found_in_a_sample() {
    let found = finding_in_sample(&Job { fault: Fault::Input(3, 10), ..DATA });
    assert_eq!(summary(&found), ("DD602", Confidence::Supported, &[3][..], 10));
}

#[test]
fn straggler_on_a_device_is_found_in_a_sample() {
    let found = finding_in_sample(&Job { backend: "nccl", ..DATA });
    assert_eq!(summary(&found), ("DD601", Confidence::Suspected, &[2][..], 10));
}

#[test]
fn straggler_behind_another_rank_is_found_in_a_sample() {
    let found = finding_in_sample(&TENSOR_AND_DATA);
    assert_eq!(summary(&found), ("DD601", Confidence::Supported, &[1][..], 20));
}

#[test]
fn slow_network_is_found_in_a_sample() {
    const ROUND: &[Call] = &[call(10, ALL_RANKS, 20 * MILLISECOND)];
    let found = finding_in_sample(&Job { round: ROUND, fault: Fault::Network, ..DATA });
    assert_eq!(summary(&found), ("DD604", Confidence::Supported, &[][..], 10));
}

/// Pulls contain sends whose receives are left out, and the reverse.
#[test]
fn messages_in_a_sample_are_no_finding() {
    let healthy = diagnose(PIPELINE.evidence(None), SAMPLED);
    assert_eq!(healthy.codes, BTreeSet::new());
}

/// A rank makes eleven records in a round. Two rounds begin with the end of a phase.
#[test]
fn marked_phase_is_no_finding_in_a_sample() {
    let job = Job { lasts: 900 * SECOND, ..DATA };
    let limits = Limits { above: 20, most: 22, ..SAMPLED };
    let phases = diagnose(job.evidence(Some(Fault::Phase(0, 10))), limits);
    assert_eq!(phases.codes, BTreeSet::new());
}

/// The ring holds half of what a pull requests.
#[test]
fn loss_of_requested_records_lowers_confidence() {
    let job = Job { fault: Fault::Mismatch(3), lasts: 8 * SECOND, ..DATA };
    let of = |kept| diagnose(job.evidence(Some(job.fault)), Limits { kept, ..SAMPLED }).report;
    // Older records were overwritten as well, which no pull requests.
    let (complete, lossy) = (of(40), of(20));
    assert_eq!(complete.evidence.records_lost, 0);
    assert!(lossy.evidence.records_lost > 0);
    assert_eq!(summary(&complete.findings[0]).1, Confidence::Proved);
    assert_eq!(summary(&lossy.findings[0]).0, summary(&complete.findings[0]).0);
    assert_ne!(summary(&lossy.findings[0]).1, Confidence::Proved);
    assert!(lossy.findings.iter().any(|it| it.code == "DD902"));
}
