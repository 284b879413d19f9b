//! Lines that a terminal of a fixed width broke, as they are when a person copies them: every line that reaches
//! the last column goes on in the next one.

use ddp_doctor_proto::report::Timestamp;

use super::label::{Form, Label, Line};
use super::timestamps::{Year, glog};

/// Widths of terminals that are considered.
const MIN_WIDTH: usize = 60;
const MAX_WIDTH: usize = 400;
/// Widths at which one broken line is enough.
const COMMON: [usize; 7] = [80, 100, 120, 128, 132, 160, 200];
/// Maximum number of spaces that are lost at the end of a line.
const MAX_LOST: usize = 2;
/// Beginnings of lines that continue none.
const BEGINNINGS: [&str; 26] = [
    "- ",
    "  ",
    "\t",
    "Traceback (",
    "Original Traceback",
    "The above exception was",
    "During handling of",
    "Exception raised from",
    "frame #",
    "Fatal Python error",
    "Current thread ",
    "terminate called",
    "srun: ",
    "slurmstepd: ",
    "Root Cause",
    "Failures:",
    "====",
    "----",
    "****",
    "INFO",
    "WARN",
    "ERROR",
    "DEBUG",
    "{",
    "> ",
    "+ ",
];
/// Beginnings of lines that the next line continues only if a terminal broke them: frames, the end of a report of
/// torchrun, messages of old versions of PyTorch.
const HEADS: [&str; 3] = ["File \"", "traceback : ", "[E "];
/// Borders of boxes, which are as wide as the terminal.
const BORDERS: [char; 3] = ['╭', '│', '╰'];
const WEEKDAYS: [&str; 7] = ["Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun "];

/// The widest lines of a text so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Widest {
    width: usize,
    /// Number of lines with this width, and of those that the next line seems to continue.
    lines: usize,
    continued: usize,
    /// The next line of one of them is hardly a line of its own.
    is_broken: bool,
    /// One of them may end within a word.
    may_be_cut: bool,
    /// The first of them, and whether another one begins as it does: programs print many lines of one form.
    first: String,
    are_of_one_form: bool,
    /// The line before, if it has this width.
    last: Option<String>,
}

impl Widest {
    /// Takes a line.
    pub(super) fn read(&mut self, text: &str) {
        if self.width > MAX_WIDTH {
            return;
        }
        if let Some(last) = self.last.take()
            && continues(&last, text)
            && !is_statement(text)
        {
            self.continued += 1;
            let is_rest = |it: char| " ,.)]:=/_-'".contains(it);
            let is_head = HEADS.iter().any(|it| last.trim_start().starts_with(it));
            let is_cut = is_head || is_open(&last) || text.starts_with(is_rest);
            self.is_broken |= is_cut || is_labeled(&last);
            let is_digit = |it: char| it.is_ascii_digit();
            let cuts_number = last.ends_with(is_digit) && text.starts_with(is_digit);
            self.may_be_cut |= cuts_number || text.starts_with(char::is_lowercase);
        }
        if text.len() < self.width || text.starts_with(BORDERS) {
            return;
        }
        let columns = text.chars().count();
        if columns > self.width {
            *self = Self { width: columns, first: text.to_owned(), ..Self::default() };
        }
        if columns == self.width {
            self.are_of_one_form |= self.lines > 0 && are_alike(&self.first, text);
            self.lines += 1;
            self.last = Some(text.to_owned());
        }
    }

    /// The width of the terminal that broke the lines; `None`: none did.
    pub(super) fn terminal(&self) -> Option<usize> {
        let is_width = (MIN_WIDTH..=MAX_WIDTH).contains(&self.width);
        let is_broken = self.is_broken || self.may_be_cut && !self.are_of_one_form;
        if !is_width || !is_broken || self.continued * 2 < self.lines {
            return None;
        }
        let with_space = self.width + 1;
        let is_common = COMMON.contains(&self.width);
        if COMMON.contains(&with_space) {
            return Some(with_space);
        }
        Some(self.width).filter(|_| is_common || self.continued > 1)
    }
}

/// Adds `next` to a line that a terminal of this width may have broken; `false`: it is a line of its own. `last`
/// is the length of the piece that was added last.
pub(super) fn join(line: &mut String, last: usize, next: &str, width: usize) -> bool {
    let columns = line[line.len() - last..].chars().count();
    let lost = width.saturating_sub(columns);
    let is_label = is_labeled(line);
    let is_full = match lost {
        0 => true,
        1 => !is_statement(next) && (is_label || !next.starts_with(' ')),
        _ => lost <= MAX_LOST && is_label && !is_statement(next),
    };
    let is_continued = is_full && continues(line, next);
    if is_continued {
        line.extend(std::iter::repeat_n(' ', lost));
        line.push_str(next);
    }
    is_continued
}

/// Ends of lines within a message of a watchdog, and how the rest begins: some launchers end lines at a space.
const CUTS: [(&str, &str); 2] =
    [("collective operation timeout:", "WorkNCCL("), ("or timeout) detected", "by watchdog at ")];

/// Whether a line may end within such a message.
pub(super) fn may_be_cut(line: &str) -> bool {
    CUTS.iter().any(|(end, _)| line.ends_with(end))
}

/// Whether `next` is the rest of such a message.
pub(super) fn is_rest(line: &str, next: &str) -> bool {
    CUTS.iter().any(|(end, begin)| line.ends_with(end) && next.starts_with(begin))
}

/// Whether a piece of this length may reach the last column.
pub(super) const fn may_be_full(length: usize, width: usize) -> bool {
    length + MAX_LOST >= width
}

/// Whether `next` may continue a line that reaches the last column.
fn continues(line: &str, next: &str) -> bool {
    if line.starts_with('{') {
        return is_open(line);
    }
    if line.starts_with(BORDERS) || next.starts_with(BORDERS) {
        return false;
    }
    // Rulers are of one letter.
    let is_ruler = next.starts_with(['*', '=', '-']) && line.ends_with(&next[..1]);
    if is_ruler {
        return true;
    }
    let is_frame = next.starts_with("    ") || next.starts_with("  File \"");
    if next.is_empty() {
        return false;
    }
    if next.starts_with("  ") && !is_frame && is_labeled(line) {
        return true;
    }
    let is_beginning = BEGINNINGS.iter().any(|it| next.starts_with(it));
    !is_beginning && !is_labeled(next) && !are_alike(line, next)
}

/// Whether two lines begin alike, as those that a program prints again and again.
fn are_alike(a: &str, b: &str) -> bool {
    const LETTERS: usize = 12;
    let letters = |text: &str| {
        text.chars().take(LETTERS).map(|it| if it.is_ascii_digit() { '0' } else { it }).collect()
    };
    let (a, b): (String, String) = (letters(a), letters(b));
    a == b && a.chars().count() == LETTERS
}

/// Whether a line has a label or a time in front.
fn is_labeled(text: &str) -> bool {
    let form = Form::new(Year::Before(Timestamp(0)));
    let line = Line::parse(text, &form);
    let is_of_slurm = text.starts_with("srun: ") || text.starts_with("slurmstepd: ");
    line.label != Label::default() || line.time.is_some() || is_of_slurm || begins(text)
}

/// Whether a line has the head of a message of PyTorch, NCCL, the kernel or a launcher, or is a numbered frame,
/// thread or process.
fn begins(text: &str) -> bool {
    // "Mar 04 03:12:09 gpu-7 kernel: …" of a journal, "[ 8124.310022] …" of dmesg.
    let head = text.split_once(" kernel: ").map(|(head, _)| head.len());
    let since_start = text.strip_prefix('[').and_then(|it| it.split_once("] "));
    let is_time = |it: &str| it.trim().parse::<f64>().is_ok() && it.contains('.');
    if head.is_some_and(|it| it < 80) || since_start.is_some_and(|(time, _)| is_time(time)) {
        return true;
    }
    if let Some(inner) = text.strip_prefix('[') {
        let head = inner.split(']').next().unwrap_or_default();
        let word = head.trim_end_matches(|it: char| it.is_ascii_digit());
        let is_numbered = word.len() < head.len();
        return is_numbered && matches!(word, "" | "rank" | "default")
            || WEEKDAYS.iter().any(|it| inner.starts_with(it))
            || glog(text).is_some();
    }
    let numbered = ["#", "Thread ", "Process "].iter().find_map(|it| text.strip_prefix(it));
    if let Some(number) = numbered {
        return number.starts_with(|it: char| it.is_ascii_digit());
    }
    // "host:812:901 [1] NCCL INFO".
    let head = text.split(' ').next().unwrap_or_default();
    let mut parts = head.rsplitn(3, ':');
    let is_number = |it: Option<&str>| it.is_some_and(|it| it.parse::<u32>().is_ok());
    let is_process = is_number(parts.next()) && is_number(parts.next()) && parts.next().is_some();
    is_process || glog(text).is_some()
}

/// Whether a line begins as an exception does.
fn is_statement(text: &str) -> bool {
    let name = text.split(':').next().unwrap_or_default();
    !name.contains(' ') && (name.ends_with("Error") || name.ends_with("Exception"))
}

/// Whether a bracket or a quotation is open at the end of a line.
fn is_open(text: &str) -> bool {
    let mut depth = 0_i32;
    let mut quotes = 0;
    for letter in text.chars() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = (depth - 1).max(0),
            '"' => quotes += 1,
            _ => {}
        }
    }
    depth > 0 || quotes % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The width found in these lines.
    fn terminal(lines: &[&str]) -> Option<usize> {
        let mut widest = Widest::default();
        lines.iter().for_each(|it| widest.read(it));
        widest.terminal()
    }

    #[test]
    fn lines_of_one_length_that_others_follow_are_whole() {
        let line = format!("[rank0]: {}", "x".repeat(71));
        assert_eq!(terminal(&[&line, "[rank1]: step 4", &line, "[rank1]: step 5"]), None);
        let error = format!("ValueError: {}", "x".repeat(68));
        assert_eq!(terminal(&[&error, "Traceback (most recent call last):"]), None);
        assert_eq!(terminal(&[&error, "Training goes on."]), None);
        assert_eq!(terminal(&[&line, "d and the rest of it"]), Some(80));
    }

    #[test]
    fn lines_of_one_form_are_whole() {
        let lines = |format: fn(u32) -> String| (100..200).map(format).collect::<Vec<_>>();
        let steps = lines(|step| format!("step {step} loss 2.31 lr 9.1e-06 {}", "x".repeat(50)));
        assert_eq!(terminal(&steps.iter().map(|it| &**it).collect::<Vec<_>>()), None);
        let iterations = lines(|step| format!(" iteration {step}/ 500 | {}", "x".repeat(60)));
        assert_eq!(terminal(&iterations.iter().map(|it| &**it).collect::<Vec<_>>()), None);
        let blocks = lines(|step| format!("train: step {step} {}\nvalid: step", "x".repeat(62)));
        let pairs: Vec<&str> = blocks.iter().flat_map(|it| it.lines()).collect();
        assert_eq!(terminal(&pairs), None);
        let workers = lines(|pid| format!("- (ip=10.0.0.7, pid={pid}) {}", "x".repeat(52)));
        assert_eq!(terminal(&workers.iter().map(|it| &**it).collect::<Vec<_>>()), None);
    }

    #[test]
    fn spaces_in_the_last_column_are_restored() {
        let mut line = format!("[rank0]: {} waits", "x".repeat(64));
        let length = line.len();
        assert_eq!(length, 79);
        assert!(join(&mut line, length, "for rank 3", 80));
        assert!(line.ends_with("waits for rank 3"));
        assert!(!join(&mut line, 10, "step 5", 80));
    }
}
