//! What stands before the text of a line: the process that wrote it, and the time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;

use ddp_doctor_diagnosis::model::MAX_WORLD;
use ddp_doctor_proto::report::Timestamp;

use super::timestamps::{Day, Year, clock, glog, report_time, stamp};
use crate::logs::scan;

/// Beginning of a label of PyTorch.
const OPEN: &str = "[rank";
/// Maximum length of what stands before a label of PyTorch.
pub(in super::super) const BEFORE: usize = 160;

/// The process that wrote a line, as far as labels name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in super::super) struct Label {
    /// Global rank: `[rank12]:`.
    pub(in super::super) rank: Option<u32>,
    /// Rank on its node: `[default3]:`.
    pub(in super::super) local: Option<u32>,
    /// Task of Slurm or MPI: `12: `, `[1,12]<stderr>:`.
    pub(in super::super) task: Option<u32>,
    /// Worker of Ray, vLLM or SGLang: `(RayTrainWorker pid=4009, ip=10.0.0.7) `.
    pub(in super::super) worker: Option<Worker>,
    /// The rank is that of the file's name.
    pub(in super::super) is_of_file: bool,
}

/// A process as frameworks label it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in super::super) struct Worker {
    pub(in super::super) name: Name,
    pub(in super::super) pid: Option<u32>,
    /// Address of its host; `None`: the host of the driver.
    pub(in super::super) host: Option<IpAddr>,
}

impl Worker {
    /// A worker of Ray, of which only its process is known, unless its actor has a `name`.
    pub(in super::super) fn of_ray(name: &str, pid: u32, host: Option<&str>) -> Option<Self> {
        Some(Self {
            name: Name::parse(name).or_else(|| Name::parse(RAY))?,
            pid: Some(pid),
            host: host.and_then(|it| it.trim().parse().ok()),
        })
    }

    /// A pod of Kubernetes.
    pub(in super::super) fn of_pod(name: &str) -> Option<Self> {
        let is_short = name.len() <= MAX_NAME;
        Some(Self { name: Name::parse(name).filter(|_| is_short)?, pid: None, host: None })
    }

    /// Whether only its process is known.
    pub(in super::super) fn is_unnamed(&self) -> bool {
        Some(self.name) == Name::parse(RAY)
    }
}

/// Beginnings of the titles of processes that engines name.
const TITLES: [&str; 2] = ["sglang::scheduler_", "VLLM::"];

/// The label of the process with this title or command: of an engine, "sglang::scheduler_TP3", or of a program that is
/// given its rank, "python train.py --rank 3".
pub(in super::super) fn of_title(title: &str, pid: Option<u32>) -> Option<Label> {
    let mut words = title.split([' ', '=']).skip_while(|it| *it != "--rank").skip(1);
    if let Some(rank) = words.next().and_then(|it| it.parse().ok()).filter(|it| *it < MAX_WORLD) {
        return Some(Label { rank: Some(rank), ..Label::default() });
    }
    let rest = TITLES.iter().find_map(|it| title.strip_prefix(it))?;
    let name = Name::parse(rest.split(' ').next()?)?;
    let worker = Some(Worker { name, pid, host: None });
    Some(Label { worker, rank: name.rank_of_engine(), ..Label::default() })
}

/// What a worker of Ray is called whose name is not known.
const RAY: &str = "Ray";
/// Maximum length of a name in bytes.
const MAX_NAME: usize = 48;

/// A short name, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in super::super) struct Name([u8; MAX_NAME]);

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let is_word =
            |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'_' | b'-' | b'.' | b':');
        let begins = text.starts_with(|it: char| it.is_ascii_alphabetic());
        let is_name = begins && text.bytes().all(is_word);
        Some(Self::cut(text)).filter(|_| is_name)
    }

    /// The name of a container in the prefix of its lines; `None`: it has none, or is too long.
    pub(in super::super) fn of_container(prefix: &str) -> Option<Self> {
        let is_border = |it: char| it.is_whitespace() || matches!(it, '[' | ']' | '|' | ':');
        let name = prefix.trim_matches(is_border);
        let is_plain = name.bytes().all(|it| matches!(it, b' '..=b'~'));
        let fits = is_plain && (1..=MAX_NAME).contains(&name.len());
        fits.then(|| Self::cut(name.strip_prefix("pod/").unwrap_or(name)))
    }

    /// The rank in the name of a worker of vLLM or SGLang: "`Worker_TP3_EP3`", "TP3". They name the kinds of
    /// parallelism with more than one rank: without others, the place in tensor parallelism is the rank. Expert
    /// parallelism has no ranks of its own.
    fn rank_of_engine(self) -> Option<u32> {
        let name = self.to_string();
        let places = ["Worker_", "VllmWorker_"].iter().find_map(|it| name.strip_prefix(it));
        let mut rank = None;
        for place in places.unwrap_or(&name).split('_') {
            if let Some(number) = place.strip_prefix("TP") {
                let is_number = !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit());
                rank = scan::rank(number).filter(|_| is_number && rank.is_none());
                rank?;
            } else if !place.starts_with("EP") {
                return None;
            }
        }
        rank
    }

    /// The data-parallel rank and the place in tensor parallelism of a name that states both: "`DP1_TP3`".
    pub(in super::super) fn place(self) -> Option<(u32, u32)> {
        let name = self.to_string();
        let number = |key: &str| {
            let mut places = name.split('_');
            places.find_map(|it| it.strip_prefix(key)?.parse().ok())
        };
        let is_other = |it: &str| it.starts_with("PP") || it.starts_with("CP");
        let place = (number("DP")?, number("TP")?);
        (!name.split('_').any(is_other)).then_some(place)
    }

    fn cut(text: &str) -> Self {
        let mut name = [0; MAX_NAME];
        let letters = name.iter_mut().zip(text.bytes());
        letters.for_each(|(to, from)| *to = from);
        Self(name)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letters = self.0.iter().take_while(|it| **it != 0);
        letters.map(|it| char::from(*it)).try_for_each(|it| write!(f, "{it}"))
    }
}

impl Label {
    /// Whether it states a task, and nothing else.
    pub(in super::super) fn is_task_alone(self) -> bool {
        self.task.is_some() && self == Self { task: self.task, ..Self::default() }
    }

    /// Whether a line with this label may be of the process of the label before it: it names no other.
    pub(in super::super) fn may_be(self, before: Self) -> bool {
        let container = Self { worker: self.worker, ..Self::default() };
        self == container && (self.worker.is_none() || self.worker == before.worker)
    }

    /// This label, completed by that of the file. The rank that a file name states counts for lines
    /// without a label only: a line with one may be of another process.
    pub(in super::super) fn or(self, file: Self) -> Self {
        let is_empty = self == Self::default();
        Self {
            rank: self.rank.or(file.rank.filter(|_| is_empty)),
            local: self.local.or(file.local),
            task: self.task.or(file.task),
            worker: self.worker.or(file.worker),
            is_of_file: is_empty && file.rank.is_some(),
        }
    }
}

/// A line without its labels.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Line<'a> {
    pub(in super::super) label: Label,
    /// The line has PyTorch's label `[rank3]:`, which it puts before uncaught exceptions.
    pub(in super::super) is_own_rank: bool,
    /// Whether `[rank3]:` is the label of a launcher whose role is "rank", not PyTorch's, if the line shows it.
    pub(in super::super) shows_role: Option<bool>,
    /// Time in the line, if it has one.
    pub(in super::super) time: Option<Timestamp>,
    /// The line does not state the year of its time.
    pub(in super::super) is_guessed: bool,
    pub(in super::super) text: &'a str,
}

/// What earlier lines state about the form of a file.
#[derive(Clone, Debug)]
pub(in super::super) struct Form {
    pub(in super::super) year: Year,
    /// Whether `[rank3]:` is the label of a launcher, and the number the rank on its node; `None`: not known.
    pub(in super::super) is_role: Option<bool>,
    /// What stands before the lines of each container, and its name.
    pub(in super::super) containers: BTreeMap<String, Name>,
    /// Width of the terminal that broke lines; `None`: none did, as far as it is known.
    pub(in super::super) terminal: Option<usize>,
}

impl Form {
    pub(in super::super) const fn new(year: Year) -> Self {
        Self { year, is_role: None, containers: BTreeMap::new(), terminal: None }
    }

    /// The container that wrote a line, and its text.
    fn container<'a>(&self, text: &'a str) -> Option<(Name, &'a str)> {
        let (prefix, name) = self
            .containers
            .range::<str, _>((Bound::Unbounded, Bound::Included(text)))
            .next_back()?;
        Some((*name, text.strip_prefix(&**prefix)?))
    }
}

impl<'a> Line<'a> {
    /// Splits a line of a file.
    pub(in super::super) fn parse(line: &'a str, form: &Form) -> Self {
        let (line, day) = Self::split(line, form);
        let day = day.or_else(|| glog(line.text));
        let complete = |(month, date, of_day)| form.year.complete(month, date, of_day);
        let time = line.time.or_else(|| day.and_then(complete));
        let is_guessed = line.time != time;
        Self { time, is_guessed, ..line }
    }

    /// The time that the line states with its year: at its beginning, or in a report of torchrun or Slurm.
    pub(in super::super) fn full_time(&self) -> Option<Timestamp> {
        let reported = || {
            let time = self
                .text
                .trim_start()
                .strip_prefix("time ")
                .and_then(|it| it.trim_start().strip_prefix(": "));
            report_time(time.or_else(|| scan::after(self.text, " CANCELLED AT "))?)
        };
        self.time.filter(|_| !self.is_guessed).or_else(reported)
    }

    /// The line, and the day and the time that a header in it states without their year.
    fn split(line: &'a str, form: &Form) -> (Self, Option<Day>) {
        let is_role = form.is_role == Some(true);
        let mut label = Label::default();
        let mut text = line;
        if let Some((task, is_rank, rest)) = task(text) {
            label.task = Some(task);
            label.rank = Some(task).filter(|_| is_rank);
            text = rest;
        }
        if let Some((name, rest)) = composed(text) {
            let (pid, host) = (None, None);
            label.worker = Some(Worker { name, pid, host });
            text = rest;
        }
        let mut time = None;
        let mut day = None;
        for _ in 0..4 {
            if let Some((at, name, rest)) = named_stamp(text) {
                time = time.or(Some(at));
                label.rank = label.rank.or(name.rank_of_engine());
                let (pid, host) = (None, None);
                label.worker = label.worker.or(Some(Worker { name, pid, host }));
                text = rest;
            } else if let Some((name, rest)) = form.container(text) {
                let (pid, host) = (None, None);
                label.worker = label.worker.or(Some(Worker { name, pid, host }));
                text = rest;
            } else if let Some((at, rest)) = stamp(text) {
                time = time.or(Some(at));
                text = rest;
            } else if label.local.is_none()
                && let Some((local, rest)) = local(text)
            {
                label.local = Some(local);
                text = rest;
            } else if let Some((worker, rank, rest)) = worker(text) {
                // The innermost process wrote the line: those before it passed it on.
                let container = label.worker.filter(|it| it.pid.is_none());
                label.worker = container.or(Some(worker));
                label.rank = label.rank.or(rank);
                text = rest;
            } else if let Some((of_header, rest)) = header(text) {
                day = day.or(Some(of_header));
                text = rest;
            } else if let Some(rest) = stream(text) {
                text = rest;
            } else {
                break;
            }
        }
        let is_single = label.local.is_none();
        let own = rank(text);
        let shows_role = own.and_then(|(rank, rest)| shows_role(rest, rank));
        if let Some((rank, rest)) = own {
            if is_role && is_single {
                label.local = Some(rank);
                text = rest;
            } else {
                label.rank = Some(rank);
                text = rest.strip_prefix(' ').unwrap_or(rest);
            }
        }
        // Loggers of the program write it behind the label.
        time = time.or_else(|| own.and_then(|_| report_time(behind_name(text))));
        let line = Self {
            label,
            is_own_rank: own.is_some() && !(is_role && is_single),
            shows_role: shows_role.filter(|_| is_single),
            time,
            is_guessed: false,
            text,
        };
        (line, day)
    }
}

/// The task in "12: text" of `srun --label`, or in "[1,12]<stderr>:text" of mpirun, and whether the label calls it
/// a rank: "[1,mpirank:12,algo-2]<stderr>:text" of SageMaker.
fn task(line: &str) -> Option<(u32, bool, &str)> {
    if let Some(rest) = line.strip_prefix('[')
        && let Some((job, rest)) = rest.split_once(',')
        && job.bytes().all(|it| it.is_ascii_digit())
        && let Some((task, rest)) = rest.split_once("]<std")
        && let Some((_, rest)) = rest.split_once(">:")
    {
        let rank = task.strip_prefix("mpirank:");
        return Some((scan::rank(rank.unwrap_or(task))?, rank.is_some(), rest));
    }
    let (task, rest) = line.split_once(':')?;
    let task = task.trim_start();
    let is_number =
        !task.is_empty() && task.len() <= 6 && task.bytes().all(|it| it.is_ascii_digit());
    let ends = rest.is_empty() || rest.starts_with(' ');
    let task = scan::rank(task).filter(|_| is_number && ends)?;
    Some((task, false, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// "trainer-1  | text" of Docker Compose: the container and the text.
fn composed(text: &str) -> Option<(Name, &str)> {
    let (name, rest) = text.split_once(" | ").or_else(|| text.split_once(" |"))?;
    let name = name.trim_end();
    let number = name.rsplit(['-', '_']).next()?;
    let is_numbered = !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit());
    Some((Name::parse(name).filter(|_| is_numbered && number.len() < name.len())?, rest))
}

/// "[default3]:text" of torchrun; the word is the role. "rank" is one if PyTorch's label follows it.
fn local(text: &str) -> Option<(u32, &str)> {
    let (inner, rest) = text.strip_prefix('[')?.split_once("]:")?;
    let role = inner.trim_end_matches(|it: char| it.is_ascii_digit());
    let is_word = !role.is_empty() && role.bytes().all(|it| it.is_ascii_alphabetic() || it == b'_');
    let is_pytorchs = role == "rank" && !rest.starts_with(OPEN);
    if !is_word || is_pytorchs || role.len() > 32 {
        return None;
    }
    Some((scan::rank(&inner[role.len()..])?, rest))
}

/// `(RayTrainWorker pid=4009, ip=10.0.0.7) text` of Ray, or `(VllmWorker rank=1 pid=812) text` of vLLM: the
/// worker, and the rank if the label states it.
fn worker(text: &str) -> Option<(Worker, Option<u32>, &str)> {
    let (inner, rest) = text.strip_prefix('(')?.split_once(')')?;
    let (name, values) = inner.split_once(' ').filter(|_| inner.len() <= BEFORE)?;
    let (mut pid, mut host, mut rank, mut place) = (None, None, None, None);
    for value in values.split([' ', ',']).filter(|it| !it.is_empty()) {
        let Some(value) = value.split_once('=') else {
            // "VllmWorker TP0".
            place = Some(value).filter(|_| place.is_none());
            place?;
            continue;
        };
        match value {
            ("pid", value) => pid = Some(value.parse().ok()?),
            ("ip", value) => host = Some(value.parse().ok()?),
            ("rank", value) => rank = Some(scan::rank(value)?),
            _ => return None,
        }
    }
    let placed = place.map(|place| format!("{name}_{place}"));
    let name = Name::parse(placed.as_deref().unwrap_or(name)).filter(|_| pid.is_some())?;
    let rank = rank.or_else(|| name.rank_of_engine());
    let worker = Worker { name, pid, host };
    Some((worker, rank, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// "[2026-01-31 12:00:00 TP9] text" or "[2026-01-31 12:00:00 DP1 TP9] text" of SGLang.
pub(in super::super) fn named_stamp(text: &str) -> Option<(Timestamp, Name, &str)> {
    let (inner, rest) = text.strip_prefix('[')?.split_once("] ")?;
    let (at, name) = stamp(inner)?;
    Some((at, Name::parse(&name.replace(' ', "_"))?, rest))
}

/// "ERROR 02-28 09:10:11 [core.py:842] text" of vLLM.
fn header(text: &str) -> Option<(Day, &str)> {
    let (level, rest) = text.split_once(' ')?;
    let is_level = matches!(level, "DEBUG" | "INFO" | "WARNING" | "ERROR" | "CRITICAL");
    let (day, rest) = rest.split_once(' ').filter(|_| is_level)?;
    let (month, date) = day.split_once('-')?;
    let (of_day, rest) = clock(rest)?;
    let (_, rest) = rest.strip_prefix(" [")?.split_once(']')?;
    let day = (month.parse().ok()?, date.parse().ok()?, of_day);
    Some((day, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// "[rank12]:text" of PyTorch, wherever it stands at the beginning of the line.
fn rank(text: &str) -> Option<(u32, &str)> {
    let mut from = 0;
    while let Some(at) = text.get(from..)?.find(OPEN).map(|at| at + from)
        && at <= BEFORE
    {
        from = at + OPEN.len();
        let rest = &text[from..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if let Some(after) = rest[digits..].strip_prefix("]:")
            && let Some(rank) = scan::rank(rest)
        {
            return Some((rank, after));
        }
    }
    None
}

/// What follows the name of a program in front of a time: "[titan] 2026-01-31 12:00:00,123 - root".
fn behind_name(text: &str) -> &str {
    let named = text.trim_start().strip_prefix('[').and_then(|it| it.split_once("] "));
    let is_word = |it: &str| it.bytes().all(|it| it.is_ascii_alphabetic());
    named.filter(|(name, _)| is_word(name)).map_or(text, |(_, rest)| rest)
}

/// Whether a launcher wrote the label in front of `text`, if that shows it. Behind its label, PyTorch writes a
/// space or the header of a message, and no higher rank within a group; a launcher writes no space before a
/// traceback.
fn shows_role(text: &str, rank: u32) -> Option<bool> {
    let header = text
        .strip_prefix('[')
        .unwrap_or(text)
        .strip_prefix(['D', 'V', 'I', 'W', 'E', 'F', 'C'])
        .or_else(|| text.strip_prefix('['));
    let is_header = header.is_some_and(|it| it.starts_with(|it: char| it.is_ascii_digit()));
    let is_own = text.is_empty() || text.starts_with(' ') || is_header;
    let rest = scan::after(text, "[PG ").and_then(|it| scan::after(it, " Rank "));
    let in_group = bracketed_rank(text).or_else(|| scan::rank(rest?));
    if text.starts_with(" Traceback (") {
        return Some(false);
    }
    let is_role = !is_own || in_group.is_some_and(|it| it > rank);
    is_role.then_some(true)
}

/// "stderr: " of launchers, or "stderr F " of Kubernetes, in which "P" is a part of a line.
fn stream(text: &str) -> Option<&str> {
    let stream = text.strip_prefix("std")?;
    let text = stream.strip_prefix("err").or(stream.strip_prefix("out"))?;
    [": ", " F ", " P "].iter().find_map(|end| text.strip_prefix(end))
}

/// The rank in "[Rank 3]", which counts within the process group.
pub(in super::super) fn bracketed_rank(text: &str) -> Option<u32> {
    scan::rank(scan::after(text, "[Rank ")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Form {
        Form::new(Year::Before("2026-05-01T00:00:00.000Z".parse().unwrap()))
    }

    #[test]
    fn labels_of_launchers_are_split_off() {
        let label = |text| {
            let line = Line::parse(text, &written());
            let label = line.label;
            (label.rank, label.local, label.task, line.text)
        };
        assert_eq!(label("12: [rank12]: Traceback"), (Some(12), None, Some(12), "Traceback"));
        assert_eq!(
            label("[default3]:[rank11]:[E1206 18:44:12.71 P.cpp:6] x"),
            (Some(11), Some(3), None, "[E1206 18:44:12.71 P.cpp:6] x")
        );
        assert_eq!(
            label("node-4 [stderr] [rank14]:[E909 09:55:29.3 P.cpp:607] x"),
            (Some(14), None, None, "[E909 09:55:29.3 P.cpp:607] x")
        );
        assert_eq!(
            label("[rank1]:[rank9]:   File \"a.py\""),
            (Some(9), Some(1), None, "  File \"a.py\"")
        );
        assert_eq!(
            label("[1,3]<stdout>:host:1:2 [0] NCCL INFO x"),
            (None, None, Some(3), "host:1:2 [0] NCCL INFO x")
        );
        assert_eq!(
            label("[1,mpirank:3,algo-2]<stderr>:KeyError: 'x'"),
            (Some(3), None, Some(3), "KeyError: 'x'")
        );
        let frame = "    wait (threading.py:331)";
        let of_kubernetes = format!("2026-01-31T12:00:00.123456789Z stderr F {frame}");
        assert_eq!(label(&of_kubernetes).3, frame);
        let of_compose = format!("2026-01-31 12:00:00 | {frame}");
        assert_eq!(label(&of_compose).3, frame);
        assert_eq!(label("loss: 3.0"), (None, None, None, "loss: 3.0"));
        assert_eq!(label("[rank99999999999]: x").0, None);
    }

    #[test]
    fn label_of_a_role_is_not_that_of_pytorch() {
        let shows_role = |text| Line::parse(text, &written()).shows_role;
        for text in [
            "[rank1]:Traceback (most recent call last):",
            "[rank1]:[titan] 2025-03-01 10:00:00 step: 3",
            "[rank1]:[E301 10:00:00.1 P.cpp:6] [Rank 9] x",
        ] {
            assert_eq!(shows_role(text), Some(true), "{text}");
        }
        for text in [
            "[rank1]:[rank9]: Traceback (most recent call last):",
            "[rank9]:[E301 10:00:00.1 P.cpp:6] [Rank 1] x",
            "[rank0]:W0301 10:00:00.1 411 torch/_dynamo/x.py] y",
            "[rank0]:[2024-03-01 10:00:00,123] torch._dynamo: x",
        ] {
            assert_eq!(shows_role(text), None, "{text}");
        }
        assert_eq!(shows_role("[rank1]: Traceback (most recent call last):"), Some(false));
        let role = Form { is_role: Some(true), ..written() };
        let line = Line::parse("[rank1]:  File \"a.py\"", &role);
        let label = (line.label.rank, line.label.local, line.is_own_rank);
        assert_eq!((label, line.text), ((None, Some(1), false), "  File \"a.py\""));
    }

    #[test]
    fn workers_of_ray_are_labels() {
        let worker = |text| {
            let line = Line::parse(text, &written());
            let worker = line.label.worker;
            let host = worker.and_then(|it| it.host).map(|it| it.to_string());
            (worker.and_then(|it| it.pid), host, line.label.rank, line.text)
        };
        assert_eq!(
            worker("(RayTrainWorker pid=4009) [rank1]: KeyError: 'x'"),
            (Some(4009), None, Some(1), "KeyError: 'x'")
        );
        assert_eq!(
            worker("(RayTrainWorker pid=7, ip=10.0.0.7)   File \"a.py\", line 7, in f"),
            (Some(7), Some("10.0.0.7".into()), None, "  File \"a.py\", line 7, in f")
        );
        assert_eq!(worker("(a pid=b) x"), (None, None, None, "(a pid=b) x"));
    }

    #[test]
    fn times_are_read_in_several_formats() {
        let time = |text| Line::parse(text, &written()).time.map(|at| at.to_string());
        let noon = Some("2026-03-07T12:00:05.250Z".to_owned());
        assert_eq!(time("2026-03-07 12:00:05,250 INFO x"), noon);
        assert_eq!(time("[2026-03-07T12:00:05.250Z] x"), noon);
        assert_eq!(time("2026-03-07T13:00:05.250+01:00 x"), noon);
        assert_eq!(time("2026-03-07T11:30:05.250-0030 stderr F x"), noon);
        assert_eq!(time("[rank1]:[E307 12:00:05.250000000 P.cpp:6] x"), noon);
        assert_eq!(time("[rank1]:[E0307 12:00:05.25 P.cpp:6] x"), noon);
        let before = Some("2025-12-06T12:00:05.250Z".to_owned());
        assert_eq!(time("[E1206 12:00:05.25 P.cpp:6] x"), before);
        assert_eq!(time("E1399 12:00:05.25 x"), None);
        assert_eq!(time("Epoch 12:00"), None);
    }
}
