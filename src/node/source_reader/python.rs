//! Finds the tests that decide whether a Python program reaches a line, by the indentation of its
//! source.
//!
//! This is not a parser of the language: logical lines, their indentation and their first words are
//! sufficient. The result is a hint for the user and for the wording of a finding. Unsupported source
//! yields no results.

use std::collections::HashSet;

use ddp_doctor_diagnosis::event::OtherBranch;
use ddp_doctor_diagnosis::source::python::{is_of_word, split_word};
use ddp_doctor_proto::{GuardForm, GuardSubject};

use self::expression::{counterparts, header_test, value_of};
use self::lines::{Line, is_plausible, logical_lines};

mod completion;
mod constants;
mod counters;
mod expression;
mod lines;
mod roots;
mod sizes;
mod subject;
mod values;

/// Maximum length of a reported test, in characters.
const MAX_TEST_CHARS: usize = 120;
/// Maximum number of reported tests of one line.
const MAX_GUARDS: usize = 32;

/// Starts of statements that end the process.
const EXITS: [&str; 5] = ["sys.exit(", "os._exit(", "exit(", "quit(", "os.abort("];

/// Whether a statement ends the process.
fn ends_process(text: &str) -> bool {
    EXITS.iter().any(|it| text.starts_with(it))
}

/// A test that decides whether the program reaches a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Line of the test, 1-based.
    pub line: u32,
    /// Source text of the test.
    pub test: String,
    /// Subject of the test.
    pub subject: GuardSubject,
    /// How the line depends on the test.
    pub form: GuardForm,
    /// The branches that run instead of that of the line.
    pub other: Option<OtherBranch>,
    /// It is the test of a `while` loop around the line.
    pub is_while: bool,
}

/// A source file.
#[derive(Debug)]
pub struct Source {
    lines: Vec<Line>,
    names: subject::Names,
    constants: HashSet<String>,
}

/// Kind of a line, by its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    If,
    Elif,
    Else,
    While,
    For,
    Try,
    Except,
    Finally,
    Match,
    Case,
    Scope,
    Other,
}

/// Statement that ends a suite, so that the code after it is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Continue,
    Break,
    Return,
}

impl Source {
    /// Parses the text of a file.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut lines = logical_lines(text);
        if !is_plausible(&lines) {
            lines.clear();
        }
        let names = subject::Names::new(&lines);
        let constants = constants::find(&lines);
        Self { lines, names, constants }
    }

    /// The tests that decide whether the program reaches a line, the nearest first.
    #[must_use]
    pub fn guards(&self, line: u32) -> Vec<Guard> {
        let after = self.lines.partition_point(|it| it.first <= line);
        let Some(at) = after.checked_sub(1).filter(|&at| self.lines[at].last >= line) else {
            return Vec::new();
        };
        let mut found = Vec::from_iter(self.size_of_rank(at));
        if self.head(at) == Head::Other {
            self.assignments(value_of(&self.lines[at].text), at, &mut found);
        }
        found.extend(self.root_of_rank(at));
        found.extend(self.within(at));
        found.extend(self.held(at));
        let mut inner = at;
        // Proceeds outwards from suite to suite, up to the function.
        loop {
            self.before(inner, &mut found);
            let indent = self.lines[inner].indent;
            let header = self.lines[..inner].iter().rposition(|it| it.indent < indent);
            let Some(header) = header else { break };
            match self.head(header) {
                Head::Scope => {
                    found.extend(self.cache(header));
                    break;
                }
                head => self.around(header, head, at, &mut found),
            }
            inner = header;
        }
        self.choices(at, &mut found);
        found.extend(self.completion(at));
        let counters = self.counters(at);
        found.retain(|guard| !counters::is_test_of_counters(&guard.test, &counters));
        found.retain(|guard| !constants::decides_nothing(guard, &self.constants));
        found.truncate(MAX_GUARDS);
        found
    }

    /// The headers around a line, innermost first, up to the function.
    fn headers(&self, at: usize) -> impl Iterator<Item = usize> {
        let all = self.all_headers(at);
        all.take_while(|&header| self.head(header) != Head::Scope)
    }

    /// The header of the function or class around a line; `None`: the module.
    fn scope(&self, at: usize) -> Option<usize> {
        let mut all = self.all_headers(at);
        all.find(|&header| self.head(header) == Head::Scope)
    }

    fn all_headers(&self, at: usize) -> impl Iterator<Item = usize> {
        let outer = move |&inner: &usize| {
            let indent = self.lines[inner].indent;
            let lines = &self.lines[..inner];
            let is_outer = |it: &Line| it.indent < indent;
            (indent > 0).then(|| lines.iter().rposition(is_outer))?
        };
        std::iter::successors(outer(&at), outer)
    }

    /// The variables that count the iterations of the loops around a line: `for step in range(…)`,
    /// `for step, batch in enumerate(…)`.
    fn counters(&self, at: usize) -> Vec<&str> {
        let loops = self.headers(at).filter(|&it| self.head(it) == Head::For);
        let counters = loops.filter_map(|it| {
            let (over, _) = header_test(&self.lines[it].text)?;
            let (targets, over) = over.split_once(" in ")?;
            let counts = over.starts_with("range(") || over.starts_with("enumerate(");
            let first = targets.split(',').next()?;
            counts.then_some(first.trim_matches(['(', ' ']))
        });
        counters.collect()
    }

    /// The decorator of a function that caches its results.
    fn cache(&self, function: usize) -> Option<Guard> {
        let indent = self.lines[function].indent;
        let above = self.lines[..function].iter().rev();
        let mut decorators = above.take_while(|it| it.indent == indent && it.text.starts_with('@'));
        let caches = |text: &str| {
            let name = text.split('(').next().unwrap_or(text);
            let last = name.rsplit('.').next().unwrap_or(name);
            let mut parts = last.trim_start_matches('@').split('_');
            parts.any(|it| matches!(it, "cache" | "cached" | "memoize" | "memoized"))
        };
        let line = decorators.find(|it| caches(&it.text))?;
        Some(Guard {
            subject: GuardSubject::Other,
            ..self.guard(line.first, &line.text, GuardForm::Caches)
        })
    }

    /// The tests in the line itself, before its call: `call() if test else …`, `test and call()`,
    /// and `if test: call()`.
    fn within(&self, at: usize) -> Vec<Guard> {
        let line = &self.lines[at];
        let text = match self.head(at) {
            Head::Other => line.text.as_str(),
            // The call may be in the suite of a test on the same line.
            Head::If | Head::Elif | Head::While => {
                let Some((test, suite)) = header_test(&line.text) else {
                    return Vec::new();
                };
                if suite.is_empty() {
                    return Vec::new();
                }
                return vec![self.guard(line.first, test, GuardForm::Holds)];
            }
            _ => return Vec::new(),
        };
        let value = value_of(text);
        if let Some((call, rest)) = split_word(value, "if")
            && let Some((test, other)) = split_word(rest, "else")
            && (call.contains('(') || other.contains('('))
        {
            let form = if call.contains('(') { GuardForm::Holds } else { GuardForm::Fails };
            return vec![self.guard(line.first, test, form)];
        }
        match split_word(value, "and") {
            Some((test, call)) if call.contains('(') && split_word(value, "or").is_none() => {
                vec![self.guard(line.first, test, GuardForm::Holds)]
            }
            _ => Vec::new(),
        }
    }

    /// The tests before the line, in the same suite, whose suites end with an exit.
    fn before(&self, at: usize, found: &mut Vec<Guard>) {
        let indent = self.lines[at].indent;
        // Earlier branches of the same statement do not exclude the line.
        let own = self.statement_of(at);
        let mut i = at;
        while let Some(before) = i.checked_sub(1) {
            i = before;
            let line = &self.lines[i];
            if line.indent < indent {
                break;
            }
            if line.indent > indent || i >= own {
                continue;
            }
            if self.head(i) == Head::Except && self.exit(i, "") == Some(Exit::Continue) {
                let guard = self.guard(line.first, &line.text, GuardForm::Catches);
                found.push(Guard { subject: GuardSubject::Other, ..guard });
            }
            if !matches!(self.head(i), Head::If | Head::Elif) {
                continue;
            }
            let Some((test, suite)) = header_test(&line.text) else {
                continue;
            };
            let form = match self.exit(i, suite) {
                Some(Exit::Continue) => GuardForm::Skips,
                Some(Exit::Break) => GuardForm::Leaves,
                Some(Exit::Return) => GuardForm::Returns,
                None => continue,
            };
            found.push(self.leaving(i, test, form));
        }
    }

    /// The tests that follow for a line from its position below a header.
    fn around(&self, header: usize, head: Head, at: usize, found: &mut Vec<Guard>) {
        let line = &self.lines[header];
        match head {
            Head::If | Head::Elif | Head::While => {
                if let Some((test, _)) = header_test(&line.text)
                    && !is_constant(test)
                {
                    let end = self.suite_end(header);
                    let guard = self.guard(line.first, test, GuardForm::Holds);
                    let end_of_all = self.statement_end(end, line.indent);
                    let other = self.branch(end, end_of_all, at).or_else(|| {
                        let is_of_rank = guard.subject == GuardSubject::Rank;
                        is_of_rank.then(|| self.counterpart(end_of_all, at)).flatten()
                    });
                    let is_while = head == Head::While;
                    found.push(Guard { other: other.filter(|_| !is_while), is_while, ..guard });
                }
                if head == Head::Elif {
                    self.branches_before(header, at, found);
                }
                if head == Head::While {
                    self.ends(header, at, found);
                }
            }
            Head::Else => self.branches_before(header, at, found),
            Head::For => {
                // The tests in the loop come before the loop.
                self.ends(header, at, found);
                let over = header_test(&line.text).and_then(|it| it.0.split_once(" in "));
                if let Some((_, over)) = over.filter(|(_, over)| !is_range_of_numbers(over)) {
                    let subject = subject_of_order(over);
                    let form = subject.map_or(GuardForm::Repeats, |_| GuardForm::Iterates);
                    let guard = self.guard(line.first, over, form);
                    let subject = subject.unwrap_or(GuardSubject::Input);
                    found.push(Guard { subject, ..guard });
                    self.assignments(over, header, found);
                }
            }
            // A handler that leaves is passed on the way out of the exception.
            Head::Except if !self.leaves(header) => {
                let mut guard = self.guard(line.first, &line.text, GuardForm::Handles);
                guard.subject = GuardSubject::Other;
                found.push(guard);
            }
            Head::Try => {
                if let Some(handler) = self.catches(header) {
                    let line = &self.lines[handler];
                    let mut guard = self.guard(line.first, &line.text, GuardForm::Catches);
                    guard.subject = GuardSubject::Other;
                    found.push(guard);
                }
            }
            Head::Case => {
                let subject = self.lines[..header].iter().rfind(|it| it.indent < line.indent);
                if let Some(matched) = subject.and_then(|it| it.text.strip_prefix("match ")) {
                    let test = format!(
                        "{} == {}",
                        matched.trim_end_matches(':').trim(),
                        line.text
                            .trim_start_matches("case ")
                            .split(':')
                            .next()
                            .unwrap_or("")
                            .trim()
                    );
                    found.push(self.guard(line.first, &test, GuardForm::Holds));
                }
            }
            Head::Other => {
                found.extend(self.synchronization(header));
                found.extend(self.held(header));
            }
            _ => {}
        }
    }

    /// The tests of the branches before an `elif` or `else` around the line `at`, all of which fail.
    fn branches_before(&self, branch: usize, at: usize, found: &mut Vec<Guard>) {
        let indent = self.lines[branch].indent;
        for i in (0..branch).rev() {
            let line = &self.lines[i];
            match self.head(i) {
                _ if line.indent > indent => {}
                head @ (Head::If | Head::Elif) if line.indent == indent => {
                    if let Some((test, _)) = header_test(&line.text) {
                        let guard = self.guard(line.first, test, GuardForm::Fails);
                        found.push(Guard { other: self.branch(i, self.suite_end(i), at), ..guard });
                    }
                    if head == Head::If {
                        return;
                    }
                }
                // The `else` of a loop or a `try`.
                _ => return,
            }
        }
    }

    /// A test of the statement at `at` whose suite leaves the loop or the function.
    fn leaving(&self, at: usize, test: &str, form: GuardForm) -> Guard {
        let guard = self.guard(self.lines[at].first, test, form);
        let is_end = form != GuardForm::Skips && self.is_end_of_input(test, at);
        Guard { subject: if is_end { GuardSubject::Input } else { guard.subject }, ..guard }
    }

    /// The tests after the line that end a loop.
    fn ends(&self, header: usize, at: usize, found: &mut Vec<Guard>) {
        let end = self.suite_end(header);
        for i in at + 1..end {
            if self.head(i) == Head::If
                && let Some((test, suite)) = header_test(&self.lines[i].text)
                && matches!(self.exit(i, suite), Some(Exit::Break | Exit::Return))
            {
                found.push(self.leaving(i, test, GuardForm::Ends));
            }
        }
    }

    /// The first handler of a `try` that neither raises nor ends the program.
    fn catches(&self, header: usize) -> Option<usize> {
        let indent = self.lines[header].indent;
        let mut i = self.suite_end(header);
        while self.lines.get(i).is_some_and(|line| line.indent == indent) {
            if self.head(i) != Head::Except {
                return None;
            }
            if !self.leaves(i) {
                return Some(i);
            }
            i = self.suite_end(i);
        }
        None
    }

    /// Whether a handler raises or ends the program.
    fn leaves(&self, handler: usize) -> bool {
        let leaves = |text: &str| text.starts_with("raise") || ends_process(text);
        let one_line = self.lines[handler].text.split_once(':');
        // A handler that raises under a condition, as after the last of several attempts, goes on otherwise.
        let suite = &self.lines[handler + 1..self.suite_end(handler)];
        let is_certain = |it: &&Line| Some(it.indent) == suite.first().map(|it| it.indent);
        one_line.is_some_and(|(_, suite)| leaves(suite.trim()))
            || suite.iter().filter(is_certain).any(|it| leaves(&it.text))
    }

    /// The exit statement at the end of a header's suite.
    fn exit(&self, header: usize, one_line: &str) -> Option<Exit> {
        let last = if one_line.is_empty() {
            let end = self.suite_end(header);
            let indent = self.lines.get(header + 1).filter(|_| header + 1 < end)?.indent;
            let mut in_suite = header + 1..end;
            let last = in_suite.rfind(|&it| self.lines[it].indent == indent)?;
            let text = self.lines[last].text.as_str();
            if text.starts_with("with ") && ends_header(text) {
                return self.exit(last, "");
            }
            text
        } else {
            one_line.rsplit(';').next().unwrap_or(one_line).trim()
        };
        let word = last.split(|c: char| !is_of_word(c)).next();
        match word {
            Some("continue") => Some(Exit::Continue),
            Some("break") => Some(Exit::Break),
            Some("return") => Some(Exit::Return),
            // The end of the process ends the loop as well.
            _ if ends_process(last) => Some(Exit::Break),
            _ => None,
        }
    }

    /// The lines from `first` to `end` as branches that run instead of the line `at`.
    fn branch(&self, first: usize, end: usize, at: usize) -> Option<OtherBranch> {
        let lines = self.lines.get(first..end)?;
        let makes = |it: &str| lines.iter().any(|line| calls(&line.text, it));
        let called = callee(&self.lines[at].text);
        let makes_call =
            called.is_some_and(|it| makes(it) || counterparts(it).iter().any(|it| makes(it)));
        Some(OtherBranch { first: lines.first()?.first, last: lines.last()?.last, makes_call })
    }

    /// A later branch of the same function under another test on the rank that calls the function of
    /// the line: one role calls it before others, which call it afterwards.
    fn counterpart(&self, from: usize, at: usize) -> Option<OtherBranch> {
        let scope = (0..at)
            .rev()
            .find(|&i| self.head(i) == Head::Scope && self.lines[i].indent < self.lines[at].indent);
        let end = scope.map_or(self.lines.len(), |scope| self.suite_end(scope));
        let branches = (from..end).filter(|&i| self.head(i) == Head::If);
        let mut of_rank = branches.filter(|&i| {
            let test = header_test(&self.lines[i].text).map(|(test, _)| test);
            test.is_some_and(|it| self.names.subject(it) == GuardSubject::Rank)
        });
        of_rank.find_map(|i| self.branch(i, self.suite_end(i), at).filter(|it| it.makes_call))
    }

    /// Index of the first line after the branches of a statement of this indentation that begin at `from`.
    fn statement_end(&self, from: usize, indent: usize) -> usize {
        let mut end = from;
        while self.lines.get(end).is_some_and(|line| line.indent == indent)
            && matches!(self.head(end), Head::Elif | Head::Else)
        {
            end = self.suite_end(end);
        }
        end
    }

    /// Index of the first line after a header's suite.
    fn suite_end(&self, header: usize) -> usize {
        let indent = self.lines[header].indent;
        let inside = self.lines[header + 1..].iter().take_while(|line| line.indent > indent);
        header + 1 + inside.count()
    }

    /// Index of the first line of the statement to which a branch belongs.
    fn statement_of(&self, at: usize) -> usize {
        let indent = self.lines[at].indent;
        let mut first = at;
        while matches!(self.head(first), Head::Elif | Head::Else | Head::Except | Head::Finally) {
            let before = self.lines[..first].iter().rposition(|line| line.indent <= indent);
            match before.filter(|&before| self.lines[before].indent == indent) {
                Some(before) => first = before,
                None => break,
            }
        }
        first
    }

    fn head(&self, at: usize) -> Head {
        let text = self.lines[at].text.as_str();
        let word = match text.split(|c: char| !is_of_word(c)).next().unwrap_or("") {
            "async" => text["async".len()..].trim_start().split(' ').next().unwrap_or(""),
            word => word,
        };
        let is_header = || ends_header(text);
        match word {
            "if" => Head::If,
            "elif" => Head::Elif,
            "else" => Head::Else,
            "while" => Head::While,
            "for" => Head::For,
            "try" => Head::Try,
            "except" => Head::Except,
            "finally" => Head::Finally,
            "match" if is_header() => Head::Match,
            "case" if is_header() => Head::Case,
            "def" | "class" => Head::Scope,
            _ => Head::Other,
        }
    }

    fn guard(&self, line: u32, test: &str, form: GuardForm) -> Guard {
        let test = test.trim();
        let cut = test.char_indices().nth(MAX_TEST_CHARS);
        Guard {
            line,
            subject: self.names.subject(test),
            test: match cut {
                Some((at, _)) => format!("{}…", &test[..at]),
                None => test.to_owned(),
            },
            form,
            other: None,
            is_while: false,
        }
    }
}

/// What the order and the content of a collection follow, if a loop runs over one in the order of its
/// insertions, of its hashes or of a file system.
fn subject_of_order(over: &str) -> Option<GuardSubject> {
    const DATA: [&str; 4] = [".items()", ".keys()", ".values()", "set("];
    const FILES: [&str; 3] = ["listdir(", "glob(", "iterdir("];
    let is_of = |kinds: &[&str]| kinds.iter().any(|kind| over.contains(kind));
    match () {
        () if over.contains("sorted(") => None,
        () if is_of(&FILES) => Some(GuardSubject::State),
        () => is_of(&DATA).then_some(GuardSubject::Data),
    }
}

/// Whether a loop runs the same number of times on all ranks, since it counts to a number.
fn is_range_of_numbers(over: &str) -> bool {
    let arguments = over.strip_prefix("range(").and_then(|it| it.strip_suffix(')'));
    arguments.is_some_and(|it| it.chars().all(|c| c.is_ascii_digit() || ", ".contains(c)))
}

/// Whether a test has always the same result, as in `while True` and `if __name__ == "__main__"`.
fn is_constant(test: &str) -> bool {
    test.starts_with("__name__ ")
        || matches!(test.trim_matches(['(', ')']), "True" | "False")
        || test.chars().all(|c| c.is_ascii_digit())
}

/// The function that a line calls first: "dist.broadcast" of `work = dist.broadcast(…)`.
fn callee(text: &str) -> Option<&str> {
    let (before, _) = value_of(text).split_once('(')?;
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    let name = before.rsplit(|c| !is_of_name(c)).next()?;
    (!name.is_empty()).then_some(name)
}

/// Whether a line calls the function of this name.
fn calls(text: &str, function: &str) -> bool {
    text.match_indices(function).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let is_whole = before.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | '.'));
        is_whole && text[at + function.len()..].trim_start().starts_with('(')
    })
}

/// Whether a line is a header whose suite follows on later lines.
fn ends_header(text: &str) -> bool {
    text.ends_with(':')
}

#[cfg(test)]
mod branch_tests;
#[cfg(test)]
mod completion_tests;
#[cfg(test)]
mod loop_tests;
#[cfg(test)]
mod tests;
