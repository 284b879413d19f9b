//! What stands before the text of a line: the process that wrote it, and the time.

use std::net::IpAddr;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use super::scan;

/// Maximum length of what stands before a label of PyTorch.
const BEFORE: usize = 160;

/// The process that wrote a line, as far as labels name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Label {
    /// Global rank: `[rank12]:`.
    pub(super) rank: Option<u32>,
    /// Rank on its node: `[default3]:`.
    pub(super) local: Option<u32>,
    /// Task of Slurm or MPI: `12: `, `[1,12]<stderr>:`.
    pub(super) task: Option<u32>,
    /// Worker of Ray, vLLM or SGLang: `(RayTrainWorker pid=4009, ip=10.0.0.7) `.
    pub(super) worker: Option<Worker>,
    /// The rank is that of the file's name.
    pub(super) is_of_file: bool,
}

/// A process as frameworks label it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Worker {
    pub(super) name: Name,
    pub(super) pid: Option<u32>,
    /// Address of its host; `None`: the host of the driver.
    pub(super) host: Option<IpAddr>,
}

impl Worker {
    /// A worker of Ray, of which only its process is known.
    pub(super) fn of_ray(pid: u32, host: Option<&str>) -> Option<Self> {
        Some(Self {
            name: Name::of("Ray")?,
            pid: Some(pid),
            host: host.and_then(|it| it.trim().parse().ok()),
        })
    }
}

/// A short name, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name([u8; 24]);

impl Name {
    fn of(text: &str) -> Option<Self> {
        let mut name = [0; 24];
        let is_word =
            |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'_' | b'-' | b'.' | b':');
        let begins = text.starts_with(|it: char| it.is_ascii_alphabetic());
        name.iter_mut()
            .zip(text.bytes())
            .for_each(|(to, from)| *to = from);
        (begins && text.bytes().all(is_word)).then_some(Self(name))
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let letters = self.0.iter().take_while(|it| **it != 0);
        letters
            .map(|it| char::from(*it))
            .try_for_each(|it| write!(f, "{it}"))
    }
}

impl Label {
    /// This label, completed by that of the file. The rank that a file name states counts for lines
    /// without a label only: a line with one may be of another process.
    pub(super) fn or(self, file: Self) -> Self {
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
pub(super) struct Line<'a> {
    pub(super) label: Label,
    /// The line has PyTorch's label `[rank3]:`, which it puts before uncaught exceptions.
    pub(super) is_own_rank: bool,
    /// Time in the line, if it has one.
    pub(super) time: Option<Timestamp>,
    /// The line does not state the year of its time.
    pub(super) is_guessed: bool,
    pub(super) text: &'a str,
}

/// Month, day of the month, and nanoseconds of the day.
type Day = (i64, i64, u64);

/// What the year of lines follows from that state none.
#[derive(Clone, Copy, Debug)]
pub(super) enum Year {
    /// A time that the text states in full: the nearest year.
    Near(Timestamp),
    /// When the file was written: the latest year before. Files may be copied later.
    Before(Timestamp),
}

impl Year {
    /// The time of a date without its year.
    fn complete(self, month: i64, date: i64, of_day: u64) -> Option<Timestamp> {
        /// The time zone of the lines is unknown.
        const ZONE: Duration = Duration::from_secs(26 * 3600);
        let (Self::Near(known) | Self::Before(known)) = self;
        let year: i64 = known.to_string().get(..4)?.parse().ok()?;
        let years = [year + 1, year, year - 1].into_iter();
        let mut times = years.filter_map(|year| moment(year, month, date, of_day));
        match self {
            Self::Near(known) => times.min_by_key(|at| at.0.abs_diff(known.0)),
            Self::Before(known) => times.find(|at| *at <= known.plus(ZONE)),
        }
    }
}

impl<'a> Line<'a> {
    /// Splits a line of a file.
    pub(super) fn of(line: &'a str, year: Year) -> Self {
        let (line, day) = Self::split(line);
        let day = day.or_else(|| glog(line.text));
        let complete = |(month, date, of_day)| year.complete(month, date, of_day);
        let time = line.time.or_else(|| day.and_then(complete));
        let is_guessed = line.time != time;
        Self {
            time,
            is_guessed,
            ..line
        }
    }

    /// The time that the line states with its year: at its beginning, or in a report of torchrun or Slurm.
    pub(super) fn full_time(&self) -> Option<Timestamp> {
        let reported = || {
            let time = self.text.trim_start().strip_prefix("time ");
            let time = time.and_then(|it| it.trim_start().strip_prefix(": "));
            report_time(time.or_else(|| scan::after(self.text, " CANCELLED AT "))?)
        };
        self.time.filter(|_| !self.is_guessed).or_else(reported)
    }

    /// The line, and the day and the time that a header in it states without their year.
    fn split(line: &'a str) -> (Self, Option<Day>) {
        let mut label = Label::default();
        let mut text = line;
        if let Some((task, rest)) = task(text) {
            label.task = Some(task);
            text = rest;
        }
        let mut time = None;
        let mut day = None;
        for _ in 0..4 {
            if let Some((at, name, rest)) = named_stamp(text) {
                time = time.or(Some(at));
                let (pid, host) = (None, None);
                label.worker = label.worker.or(Some(Worker { name, pid, host }));
                text = rest;
            } else if let Some((at, rest)) = stamp(text) {
                time = time.or(Some(at));
                text = rest;
            } else if let Some((local, rest)) = local(text) {
                label.local = label.local.or(Some(local));
                text = rest;
            } else if let Some((worker, rank, rest)) = worker(text) {
                label.worker = label.worker.or(Some(worker));
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
        let own = rank(text);
        if let Some((rank, rest)) = own {
            label.rank = Some(rank);
            text = rest;
        }
        let line = Self {
            label,
            is_own_rank: own.is_some(),
            time,
            is_guessed: false,
            text,
        };
        (line, day)
    }
}

/// "12: text" of `srun --label`, or "[1,12]<stderr>:text" of mpirun.
fn task(line: &str) -> Option<(u32, &str)> {
    if let Some(rest) = line.strip_prefix('[')
        && let Some((job, rest)) = rest.split_once(',')
        && job.bytes().all(|it| it.is_ascii_digit())
        && let Some((task, rest)) = rest.split_once("]<std")
        && let Some((_, rest)) = rest.split_once(">:")
    {
        return Some((scan::rank(task)?, rest));
    }
    let (task, rest) = line.split_once(':')?;
    let task = task.trim_start();
    let is_number =
        !task.is_empty() && task.len() <= 6 && task.bytes().all(|it| it.is_ascii_digit());
    let ends = rest.is_empty() || rest.starts_with(' ');
    let task = scan::rank(task).filter(|_| is_number && ends)?;
    Some((task, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// "[default3]:text" of torchrun; the word is the role.
fn local(text: &str) -> Option<(u32, &str)> {
    let (inner, rest) = text.strip_prefix('[')?.split_once("]:")?;
    let role = inner.trim_end_matches(|it: char| it.is_ascii_digit());
    let is_word = !role.is_empty()
        && role
            .bytes()
            .all(|it| it.is_ascii_alphabetic() || it == b'_');
    if !is_word || role == "rank" || role.len() > 32 {
        return None;
    }
    Some((scan::rank(&inner[role.len()..])?, rest))
}

/// `(RayTrainWorker pid=4009, ip=10.0.0.7) text` of Ray, or `(VllmWorker rank=1 pid=812) text` of vLLM: the
/// worker, and the rank if the label states it.
fn worker(text: &str) -> Option<(Worker, Option<u32>, &str)> {
    let (inner, rest) = text.strip_prefix('(')?.split_once(')')?;
    let (name, values) = inner.split_once(' ').filter(|_| inner.len() <= BEFORE)?;
    let (mut pid, mut host, mut rank) = (None, None, None);
    for value in values.split([' ', ',']).filter(|it| !it.is_empty()) {
        match value.split_once('=')? {
            ("pid", value) => pid = Some(value.parse().ok()?),
            ("ip", value) => host = Some(value.parse().ok()?),
            ("rank", value) => rank = Some(scan::rank(value)?),
            _ => return None,
        }
    }
    let name = Name::of(name).filter(|_| pid.is_some())?;
    let worker = Worker { name, pid, host };
    Some((worker, rank, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// "[2026-01-31 12:00:00 TP9] text" of SGLang.
fn named_stamp(text: &str) -> Option<(Timestamp, Name, &str)> {
    let (inner, rest) = text.strip_prefix('[')?.split_once("] ")?;
    let (at, name) = stamp(inner)?;
    Some((at, Name::of(name)?, rest))
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
    const OPEN: &str = "[rank";
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
            return Some((rank, after.strip_prefix(' ').unwrap_or(after)));
        }
    }
    None
}

/// "stderr: " of launchers, or "stderr F " of Kubernetes, in which "P" is a part of a line.
fn stream(text: &str) -> Option<&str> {
    let text = text.strip_prefix("std")?;
    let text = text.strip_prefix("err").or(text.strip_prefix("out"))?;
    [": ", " F ", " P "]
        .iter()
        .find_map(|end| text.strip_prefix(end))
}

/// "2026-01-31 12:00:00,123 " and its relatives.
fn stamp(text: &str) -> Option<(Timestamp, &str)> {
    let inner = text.strip_prefix('[').unwrap_or(text);
    let day = inner.get(..10)?;
    let mut parts = day.split('-');
    let (year, month, date) = (parts.next()?, parts.next()?, parts.next()?);
    let is_date = year.len() == 4 && month.len() == 2 && date.len() == 2;
    let between = inner.as_bytes().get(10).copied();
    if !is_date || !matches!(between, Some(b' ' | b'T' | b'_')) {
        return None;
    }
    let (of_day, rest) = clock(inner.get(11..)?)?;
    let at = moment(
        year.parse().ok()?,
        month.parse().ok()?,
        date.parse().ok()?,
        of_day,
    )?;
    let (ahead, rest) = offset(rest).unwrap_or((0, rest));
    let at = Timestamp(at.0.saturating_add_signed(-ahead));
    let rest = rest.strip_prefix(']').unwrap_or(rest);
    // One separator: the indentation of a frame follows it.
    let rest = rest.strip_prefix(' ').unwrap_or(rest);
    Some((at, rest.strip_prefix("| ").unwrap_or(rest)))
}

/// Nanoseconds by which a time with this time zone, "Z", "+01:00" or "+0100", is ahead of UTC, and
/// what follows.
fn offset(text: &str) -> Option<(i64, &str)> {
    if let Some(rest) = text.strip_prefix('Z') {
        return Some((0, rest));
    }
    let sign = match text.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let minutes_at = if text.get(3..4)? == ":" { 4 } else { 3 };
    let part = |at: usize, most: i64| -> Option<i64> {
        let digits = text.get(at..at + 2)?;
        let is_number = digits.bytes().all(|it| it.is_ascii_digit());
        digits.parse().ok().filter(|it| is_number && *it <= most)
    };
    let minutes = part(1, 14)? * 60 + part(minutes_at, 59)?;
    let rest = &text[minutes_at + 2..];
    let ends = !rest.starts_with(|it: char| it.is_ascii_alphanumeric());
    ends.then_some((sign * minutes * 60_000_000_000, rest))
}

/// The time in "E1206 18:44:12.715298746 ", which begins a line of PyTorch's C++ or launcher.
fn glog(text: &str) -> Option<Day> {
    let inner = text.strip_prefix('[').unwrap_or(text);
    let inner = inner.strip_prefix(['E', 'W', 'I', 'F'])?;
    let (day, rest) = inner.split_once(' ')?;
    // The month has no leading zero in some versions.
    if !matches!(day.len(), 3 | 4) {
        return None;
    }
    let (month, date) = day.split_at_checked(day.len() - 2)?;
    let (of_day, _) = clock(rest)?;
    Some((month.parse().ok()?, date.parse().ok()?, of_day))
}

/// The time in the report of torchrun: "2025-05-21_15:43:03".
pub(super) fn report_time(text: &str) -> Option<Timestamp> {
    stamp(text.trim()).map(|(at, _)| at)
}

/// Nanoseconds of "18:44:12.715", and what follows.
fn clock(text: &str) -> Option<(u64, &str)> {
    let part = |at: usize| -> Option<u64> { text.get(at..at + 2)?.parse().ok() };
    let colons = [2, 5]
        .iter()
        .all(|&at| text.as_bytes().get(at) == Some(&b':'));
    let (hour, minute, second) = (part(0)?, part(3)?, part(6)?);
    if !colons || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = &text[8..];
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        let shown = &fraction[..digits.min(9)];
        let unit = 10_u64.pow(9 - shown.len() as u32);
        nanos = shown.parse::<u64>().unwrap_or(0) * unit;
        rest = &fraction[digits..];
    }
    Some((
        ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + nanos,
        rest,
    ))
}

/// A time from a date of the Gregorian calendar and the nanoseconds of the day.
fn moment(year: i64, month: i64, date: i64, of_day: u64) -> Option<Timestamp> {
    let plausible =
        (1990..=2200).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&date);
    if !plausible {
        return None;
    }
    let days = days_from_civil(year, month, date);
    Some(Timestamp(
        u64::try_from(days).ok()? * 86_400_000_000_000 + of_day,
    ))
}

/// Days since 1970-01-01.
const fn days_from_civil(year: i64, month: i64, date: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + date - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The rank in "[Rank 3]", which counts within the process group.
pub(super) fn bracketed_rank(text: &str) -> Option<u32> {
    scan::rank(scan::after(text, "[Rank ")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Year {
        Year::Before("2026-05-01T00:00:00.000Z".parse().unwrap())
    }

    #[test]
    fn labels_of_launchers_are_split_off() {
        let label = |text| {
            let line = Line::of(text, written());
            let label = line.label;
            (label.rank, label.local, label.task, line.text)
        };
        assert_eq!(
            label("12: [rank12]: Traceback"),
            (Some(12), None, Some(12), "Traceback")
        );
        assert_eq!(
            label("[default3]:[rank11]:[E1206 18:44:12.71 P.cpp:6] x"),
            (Some(11), Some(3), None, "[E1206 18:44:12.71 P.cpp:6] x")
        );
        assert_eq!(
            label("node-4 [stderr] [rank14]:[E909 09:55:29.3 P.cpp:607] x"),
            (Some(14), None, None, "[E909 09:55:29.3 P.cpp:607] x")
        );
        assert_eq!(
            label("[1,3]<stdout>:host:1:2 [0] NCCL INFO x"),
            (None, None, Some(3), "host:1:2 [0] NCCL INFO x")
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
    fn workers_of_ray_are_labels() {
        let worker = |text| {
            let line = Line::of(text, written());
            let worker = line.label.worker;
            let host = worker.and_then(|it| it.host).map(|it| it.to_string());
            (
                worker.and_then(|it| it.pid),
                host,
                line.label.rank,
                line.text,
            )
        };
        assert_eq!(
            worker("(RayTrainWorker pid=4009) [rank1]: KeyError: 'x'"),
            (Some(4009), None, Some(1), "KeyError: 'x'")
        );
        assert_eq!(
            worker("(RayTrainWorker pid=7, ip=10.0.0.7)   File \"a.py\", line 7, in f"),
            (
                Some(7),
                Some("10.0.0.7".into()),
                None,
                "  File \"a.py\", line 7, in f"
            )
        );
        assert_eq!(worker("(a pid=b) x"), (None, None, None, "(a pid=b) x"));
    }

    #[test]
    fn times_are_read_in_several_formats() {
        let time = |text| Line::of(text, written()).time.map(|at| at.to_string());
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
