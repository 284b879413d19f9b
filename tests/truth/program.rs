//! Programs in `tests/jobs` and the truth about them.
//!
//! Every program in `tests/jobs` has a TOML table at its head, between `/// truth` and `///`. Its
//! keys apply to all variants; those of `[faulty]` and `[healthy]` to one, and those of
//! `[scenario.NAME]`, `[scenario.NAME.faulty]` and `[scenario.NAME.healthy]` to one scenario of a
//! program that has several. A program is run as each variant that it names. The lines that the
//! leading finding must name are marked `HERE rank 0 2`.
//!
//! `[faulty.nccl]` and `[healthy.nccl]` (`[scenario.NAME.faulty.nccl]`) are second truths: they hold what differs if
//! the program runs over NCCL, because of how NCCL works: calls return before they are complete, tags do not exist,
//! a failed peer is not noticed, and communicators are created at their first call, which waits for all members. A
//! healthy variant that states a `code` there blocks or fails over NCCL. Second truths are not part of the program:
//! neither its recordings nor the line numbers in them depend on them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use toml::Table;

use crate::support::pytorch_jobs::jobs;

/// The expected diagnosis of one variant of a program, and how to run it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Truth {
    /// Number of ranks to start.
    pub(crate) nproc: u32,
    /// Variants whose live run belongs to `make test`.
    #[serde(default)]
    pub(crate) quick: Vec<String>,
    /// Whether the live run needs the machine for itself, because it measures processor time.
    #[serde(default)]
    pub(crate) alone: bool,
    /// Duration of the program, in seconds, where it takes long by intention.
    #[serde(default)]
    pub(crate) seconds: u64,
    /// What starts the ranks: `fork` (default), `torchrun`, `python` or `doubles`.
    #[serde(default)]
    pub(crate) launcher: Launcher,
    /// `--nccl` of programs over the doubles.
    pub(crate) nccl: Option<String>,
    /// `--kill-after` of jobs that never end by themselves, in seconds.
    pub(crate) kill_after: Option<String>,
    /// More options of `ddp-doctor run`.
    #[serde(default)]
    pub(crate) run_options: Vec<String>,
    /// More environment variables.
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// Size of a /dev/shm that only this job sees.
    pub(crate) shared_memory: Option<String>,
    /// How the program marks its decisive call; `stamp`: it writes the time to a file.
    pub(crate) decisive: Option<String>,
    /// Layers at which calls are captured.
    pub(crate) layers: Option<Vec<String>>,

    /// Code of the leading finding.
    pub(crate) code: Option<String>,
    /// Alternative code, which less evidence leads to.
    pub(crate) or_code: Option<String>,
    pub(crate) verdict: Option<String>,
    pub(crate) severity: Option<String>,
    /// Restart of the ranks that the leading finding belongs to, from 0.
    pub(crate) attempt: Option<u32>,
    /// Code of the initiating finding of the attempts before.
    pub(crate) earlier: Option<String>,
    pub(crate) confidence: Option<String>,
    pub(crate) ranks: Option<Ranks>,
    pub(crate) root_confidence: Option<String>,
    pub(crate) cause: Option<String>,
    /// Layer of the finding's group.
    pub(crate) layer: Option<String>,
    pub(crate) seq: Option<u64>,
    /// Text in its summary.
    pub(crate) says: Option<String>,
    /// Text in its headline.
    pub(crate) headline: Option<String>,
    /// Text in its summary, with a number above zero in place of `{}`.
    pub(crate) measures: Option<String>,
    /// Text in one of its reasons; `{line}` is the line marked `LINE`.
    pub(crate) why: Option<String>,
    /// Functions of installed packages between the line of a rank and its call, by rank.
    #[serde(default)]
    pub(crate) via: BTreeMap<String, String>,
    /// Whether findings may be suspected while it runs, of which none remains.
    #[serde(default)]
    pub(crate) may_suspect: bool,
    /// Whether the job never ends by itself, so that `--on-hang kill` ends it.
    #[serde(default)]
    pub(crate) hang: bool,
    /// Whether a fault has no effect, so that nothing may be found. Second truths only.
    #[serde(default)]
    pub(crate) harmless: bool,
    /// Texts on the lines that the leading finding must name, by rank, in place of the marked lines; none: any line.
    /// Second truths only.
    #[serde(default)]
    pub(crate) lines: BTreeMap<String, Vec<String>>,
}

/// The ranks of the leading finding.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ranks {
    pub(crate) root: Vec<u32>,
    pub(crate) victims: Option<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Launcher {
    /// `tests/jobs/support/launch.py`, which imports PyTorch once.
    #[default]
    Fork,
    Torchrun,
    /// None: the program starts its ranks itself.
    Python,
    /// A compiled program under the launcher of `tests/doubles`.
    Doubles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Faulty,
    Healthy,
}

impl Variant {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Faulty => "faulty",
            Self::Healthy => "healthy",
        }
    }
}

/// Backend over which a case runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The backend that the program names: Gloo, or NCCL over the doubles.
    Own,
    /// NCCL on GPUs, in place of Gloo.
    Nccl,
}

/// A file in `tests/jobs`.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// Folder of the program in `tests/jobs`.
    pub(crate) family: String,
    /// File name without its extension.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// One variant of one scenario of a program, over one backend.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) program: Arc<Program>,
    pub(crate) scenario: Option<String>,
    pub(crate) variant: Variant,
    pub(crate) backend: Backend,
    pub(crate) truth: Truth,
    /// Whether the head states a second truth for this case.
    pub(crate) has_second_truth: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.program.family, self.program.name)?;
        if let Some(scenario) = &self.scenario {
            write!(f, "::{scenario}")?;
        }
        write!(f, "::{}", self.variant.name())?;
        if self.backend == Backend::Nccl { write!(f, "::nccl") } else { Ok(()) }
    }
}

impl Case {
    /// Whether the diagnosis must be without findings.
    pub(crate) fn is_silent(&self) -> bool {
        let truth = &self.truth;
        truth.harmless || (self.variant == Variant::Healthy && truth.code.is_none())
    }

    /// Numbers of the lines that the leading finding may name, by rank.
    pub(crate) fn expected_lines(&self) -> BTreeMap<u32, Vec<u32>> {
        let text = &self.program.text;
        let mut lines = marked_lines(text);
        for (rank, texts) in &self.truth.lines {
            let rank = rank.parse().unwrap();
            let numbered = (1..).zip(text.lines()).skip(self.program.head_lines().end);
            let has_text =
                |line: &str| texts.iter().any(|it| line.trim_start().starts_with(it.as_str()));
            let found: Vec<u32> =
                numbered.filter(|(_, line)| has_text(line)).map(|(number, _)| number).collect();
            assert_eq!(found.is_empty(), texts.is_empty(), "{self}: no line with {texts:?}");
            lines.remove(&rank);
            lines.extend((!found.is_empty()).then_some((rank, found)));
        }
        lines
    }

    /// Whether its live run belongs to `make test`.
    pub(crate) fn is_quick(&self) -> bool {
        let quick = &self.truth.quick;
        self.backend == Backend::Own && quick.iter().any(|name| name == self.variant.name())
    }
}

impl Program {
    pub(crate) fn read(path: PathBuf) -> Option<Self> {
        let text = fs::read_to_string(&path).ok()?;
        let part = |part: Option<&std::ffi::OsStr>| Some(part?.to_str()?.to_owned());
        text.contains("/// truth").then_some(())?;
        Some(Self {
            family: part(path.parent()?.file_name())?,
            name: part(path.file_stem())?,
            path,
            text,
        })
    }

    pub(crate) fn is_python(&self) -> bool {
        self.path.extension().is_some_and(|it| it == "py")
    }

    /// Indexes of the lines of the table at the head of the program.
    pub(crate) fn head_lines(&self) -> Range<usize> {
        let position = |text| self.text.lines().position(|line| uncommented(line) == text);
        let begin = position("/// truth").map_or(0, |line| line + 1);
        begin..position("///").unwrap_or(begin)
    }

    /// Whether each line of the program belongs to a second truth.
    pub(crate) fn second_truths(&self) -> Vec<bool> {
        let head = self.head_lines();
        let mut is_second = false;
        let lines = self.text.lines().enumerate().map(|(index, line)| {
            let line = uncommented(line);
            if !head.contains(&index) {
                is_second = false;
            } else if line.starts_with('[') {
                is_second = line.ends_with(".nccl]");
            }
            is_second
        });
        lines.collect()
    }

    /// The TOML table at the head of the program.
    fn head(&self) -> Table {
        let head = self.head_lines();
        let lines = self.text.lines().map(uncommented);
        let toml: Vec<&str> = lines.skip(head.start).take(head.len()).collect();
        toml.join("\n").parse().unwrap_or_else(|error| panic!("{}: {error}", self.path.display()))
    }

    /// This text in place of that of another program.
    pub(crate) fn in_place_of(self, other: &Self) -> Self {
        Self { name: other.name.clone(), path: other.path.clone(), ..self }
    }

    pub(crate) fn cases(self) -> Vec<Case> {
        let mut head = self.head();
        let program = Arc::new(self);
        let Some(scenarios) = take_table(&mut head, "scenario") else {
            return cases_of(&program, None, &head);
        };
        let mut cases = Vec::new();
        for (name, table) in scenarios {
            let scenario = table.as_table().unwrap();
            let mut merged = head.clone();
            merge(&mut merged, scenario);
            for variant in ["faulty", "healthy"] {
                if !scenario.contains_key(variant) {
                    merged.remove(variant);
                }
            }
            cases.extend(cases_of(&program, Some(name), &merged));
        }
        cases
    }
}

/// A line of a program without the marker of its comment.
fn uncommented(line: &str) -> &str {
    let line = line.trim_start().trim_start_matches(['#', '*']);
    line.strip_prefix(' ').unwrap_or(line)
}

fn cases_of(program: &Arc<Program>, scenario: Option<String>, table: &Table) -> Vec<Case> {
    let mut common = table.clone();
    let faulty = take_table(&mut common, "faulty");
    let healthy = take_table(&mut common, "healthy");
    let mut cases = Vec::new();
    for (variant, table) in [(Variant::Faulty, faulty), (Variant::Healthy, healthy)] {
        let Some(mut table) = table else {
            continue;
        };
        let second = take_table(&mut table, "nccl");
        let mut first = common.clone();
        merge(&mut first, &table);
        let mut over_nccl = first.clone();
        merge(&mut over_nccl, second.as_ref().unwrap_or(&Table::new()));
        for (backend, table) in [(Backend::Own, first), (Backend::Nccl, over_nccl)] {
            let truth = Truth::deserialize(table)
                .unwrap_or_else(|error| panic!("{}: {error}", program.path.display()));
            cases.push(Case {
                program: Arc::clone(program),
                scenario: scenario.clone(),
                variant,
                backend,
                truth,
                has_second_truth: second.is_some(),
            });
        }
    }
    cases
}

fn take_table(from: &mut Table, key: &str) -> Option<Table> {
    match from.remove(key)? {
        toml::Value::Table(table) => Some(table),
        _ => None,
    }
}

/// Merges one table into another, recursively; keys of `from` win.
fn merge(into: &mut Table, from: &Table) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            _ => drop(into.insert(key.clone(), value.clone())),
        }
    }
}

/// All cases, sorted by the path of their program: over its own backend and over NCCL.
pub(crate) fn cases() -> Vec<Case> {
    let folders = entries(&jobs()).into_iter().filter(|it| it.is_dir());
    let files = folders.flat_map(|folder| entries(&folder));
    let programs = files.filter_map(Program::read);
    programs.flat_map(Program::cases).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Numbers of the lines marked `HERE rank 0 2`, by rank. A rank marked at several lines may wait at
/// any of them.
fn marked_lines(text: &str) -> BTreeMap<u32, Vec<u32>> {
    let mut marked: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let Some((_, ranks)) = line.split_once("HERE rank ") else {
            continue;
        };
        let ranks = ranks.split_whitespace().map_while(|it| it.parse().ok());
        ranks.for_each(|rank| marked.entry(rank).or_default().push(number));
    }
    marked
}
