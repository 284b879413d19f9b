//! The programs and the truth about them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use ddp_doctor_proto::report::{ActivityKind, Confidence, Effect, Report, Verdict};
use serde::Deserialize;

/// What `attach` must find.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Truth {
    /// Number of ranks.
    pub(super) nproc: u32,
    /// Whether nothing is wrong.
    #[serde(default)]
    healthy: bool,
    /// Ranks of a healthy job that wait for a request, at their marked lines.
    #[serde(default)]
    idle: Vec<u32>,
    /// Codes that fit the fault; the leading finding has one of them.
    #[serde(default)]
    codes: Vec<String>,
    /// Root cause ranks.
    #[serde(default)]
    root: Vec<u32>,
    /// Training step of each rank, by a variable of the program.
    step: Option<u64>,
    /// What a root cause rank, or one that waits for it, is blocked on.
    blocked_on: Option<String>,
    /// Text in what that is.
    says: Option<String>,
    /// Whether each rank is a process of its own, which nothing ends if another one dies.
    #[serde(default)]
    pub(super) plain: bool,
    /// Whether the program is started once, and starts its ranks itself.
    #[serde(default)]
    pub(super) spawns: bool,
    /// Whether the program needs privileges.
    #[serde(default)]
    pub(super) privileged: bool,
    /// Whether the live run belongs to `make test`.
    #[serde(default)]
    pub(super) quick: bool,
}

/// A program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) truth: Truth,
    /// Lines marked for each rank.
    lines: BTreeMap<u32, BTreeSet<u32>>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attach")
}

/// All programs.
pub(super) fn all() -> Vec<Program> {
    let families = fs::read_dir(folder().join("jobs")).unwrap();
    let files = families.flat_map(|family| fs::read_dir(family.unwrap().path()).unwrap());
    let mut programs: Vec<Program> =
        files.map(|file| Program::read(&file.unwrap().path())).collect();
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    programs
}

/// The program with this name.
pub(super) fn named(name: &str) -> Program {
    all().into_iter().find(|it| it.name == name).unwrap()
}

impl Program {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let head = text.split("/// truth").nth(1).and_then(|rest| rest.split("///").next());
        let mut lines: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let ranks = line.split("# HERE rank ").nth(1).unwrap_or_default();
            for rank in ranks.split_whitespace() {
                lines.entry(rank.parse().unwrap()).or_default().insert(number);
            }
        }
        Self {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            path: path.to_owned(),
            truth: toml::from_str(head.unwrap())
                .unwrap_or_else(|error| panic!("{}: {error}", path.display())),
            lines,
        }
    }

    pub(super) const fn is_healthy(&self) -> bool {
        self.truth.healthy
    }

    /// File of the recording.
    pub(super) fn recording(&self) -> PathBuf {
        folder().join("recordings").join(format!("{}.ddpj", self.name))
    }

    /// What of a report is not as the truth states.
    pub(super) fn faults(&self, report: &Report) -> Vec<String> {
        let mut faults = Vec::new();
        let mut expect = |holds: bool, what: String| {
            if !holds {
                faults.push(what);
            }
        };
        if let Some(step) = self.truth.step {
            let steps: Vec<u64> = report.ranks.iter().map(|it| it.step).collect();
            expect(steps.iter().all(|it| *it == step), format!("steps {steps:?}, not {step}"));
        }
        let proved = report.findings.iter().find(|it| it.confidence == Confidence::Proved);
        expect(proved.is_none(), "a finding is proved".into());
        let mut blocking = report.findings.iter().filter(|it| it.effect != Effect::None);
        let leading = blocking.next();
        if self.is_healthy() {
            expect(leading.is_none(), format!("a healthy job is accused: {leading:?}"));
            expect(report.verdict == Verdict::Healthy, format!("verdict {}", report.verdict));
            for rank in &self.truth.idle {
                let of_rank = report.ranks.iter().find(|it| it.rank == *rank);
                let activity = of_rank.and_then(|it| it.activity.as_ref());
                let line = activity
                    .filter(|it| it.kind == ActivityKind::Idle)
                    .and_then(|it| Some(it.place.as_ref()?.line));
                expect(
                    line.is_some_and(|it| self.lines[rank].contains(&it)),
                    format!("rank {rank} is not idle at its line: {activity:?}"),
                );
            }
            return faults;
        }
        let Some(leading) = leading else {
            return vec![format!("nothing was found, verdict {}", report.verdict)];
        };
        expect(
            self.truth.codes.contains(&leading.code),
            format!("code {}: {}", leading.code, leading.summary),
        );
        expect(leading.ranks.root == self.truth.root, format!("root {:?}", leading.ranks.root));
        expect(
            leading.confidence == Confidence::Supported,
            format!("confidence {:?}", leading.confidence),
        );
        for (rank, lines) in &self.lines {
            let of_finding = leading.per_rank.iter().find(|it| it.rank == *rank);
            let of_rank = report.ranks.iter().find(|it| it.rank == *rank);
            let place = of_finding
                .and_then(|it| it.place.as_ref())
                .or(of_rank.and_then(|it| it.place.as_ref()));
            let line = place.map(|it| it.line);
            expect(
                line.is_some_and(|it| lines.contains(&it)),
                format!("rank {rank} at {line:?}, not {lines:?}"),
            );
        }
        if let Some(kind) = &self.truth.blocked_on {
            let mut blocked = report.ranks.iter().filter_map(|it| it.blocked_on.as_ref());
            let found = blocked.clone().find(|it| it.kind == *kind);
            expect(found.is_some(), format!("no rank is blocked on {kind}: {:?}", blocked.next()));
            if let (Some(found), Some(says)) = (found, &self.truth.says) {
                expect(
                    found.what.contains(says),
                    format!("{:?} does not state {says}", found.what),
                );
            }
        }
        faults
    }
}
