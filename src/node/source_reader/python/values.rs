//! The tests that decide on the values which a line uses.

use ddp_doctor_diagnosis::source::python::{is_of_word, split_word};
use ddp_doctor_proto::{GuardForm, GuardSubject};

use super::expression::{
    assigns, changes, conditional_tests, header_test, is_comparison, parts, value_of,
};
use super::{Guard, Head, Source, subject};

/// Maximum number of names in a line that are followed …
const MAX_NAMES: usize = 16;
/// … and of lines before it that are searched for assignments.
const MAX_LINES_BEFORE: usize = 400;
/// Maximum number of variables of an expression whose assignments are reported.
const MAX_ASSIGNMENTS: usize = 4;
/// Calls that take the next item of an input.
const TAKES: [&str; 7] =
    [".get(", ".get_nowait(", "next(", ".pop(", ".popleft(", ".recv(", ".readline("];
/// Progress bars: they yield the values that they are given.
const PROGRESS_BARS: [&str; 4] = ["tqdm", "trange", "track", "alive_it"];
/// Maximum length of a statement that is searched for conditional expressions, in bytes.
const MAX_STATEMENT: usize = 4096;

impl Source {
    /// The tests that decide on values which the line uses: conditional expressions in it, in the
    /// loops around it, and in assignments to its variables; comparisons in it and in these
    /// assignments; tests around such assignments; and tests on the rank in the functions and
    /// classes that are called there. Also the tests that decide in this way on values which the headers
    /// of the loops around it use.
    pub(super) fn choices(&self, at: usize, found: &mut Vec<Guard>) {
        let around: Vec<usize> = self.headers(at).collect();
        let mut chosen: Vec<Guard> = Vec::new();
        self.value_tests(at, &mut chosen);
        for &header in around.iter().filter(|&&it| self.head(it) == Head::For) {
            self.conditions(header, &mut chosen);
        }
        let value = value_of(&self.lines[at].text);
        self.tests_before(value, at, &around, &mut chosen);
        add(found, chosen, GuardForm::Chooses);
        let mut bounds: Vec<Guard> = Vec::new();
        for &header in &around {
            if matches!(self.head(header), Head::For | Head::While)
                && let Some((over, _)) = header_test(&self.lines[header].text)
            {
                self.tests_before(over, header, &around, &mut bounds);
            }
        }
        add(found, bounds, GuardForm::Bounds);
    }

    /// The tests that decide on the variables of an expression, in assignments before a line. `around`:
    /// headers around that line.
    fn tests_before(&self, text: &str, at: usize, around: &[usize], found: &mut Vec<Guard>) {
        let scope = self.scope(at);
        for name in subject::names(text).take(MAX_NAMES) {
            let earlier = (0..at).rev().take(MAX_LINES_BEFORE);
            // A variable of another function is another one.
            let is_same = |i: usize| [None, scope].contains(&self.scope(i));
            for i in earlier.filter(|&i| changes(&self.lines[i].text, name) && is_same(i)) {
                self.value_tests(i, found);
                let header = self.headers(i).next().filter(|it| !around.contains(it));
                match header.map(|header| (header, self.head(header))) {
                    Some((header, Head::If | Head::Elif)) => {
                        let line = &self.lines[header];
                        let test = header_test(&line.text).map(|(test, _)| test);
                        found.extend(test.map(|it| self.guard(line.first, it, GuardForm::Chooses)));
                    }
                    Some((header, Head::Else)) => self.branches_before(header, i, found),
                    _ => {}
                }
            }
        }
    }

    /// The latest assignments before a line, in its function, to the variables that an expression uses.
    pub(super) fn assignments(&self, text: &str, at: usize, found: &mut Vec<Guard>) {
        let mut known: Vec<&str> = Vec::new();
        for name in subject::names(text).take(MAX_NAMES) {
            let latest = self.assignment(name, at).filter(|_| !known.contains(&name));
            known.push(name);
            let Some(line) = latest.map(|it| &self.lines[it]) else { continue };
            let guard = self.guard(line.first, &line.text, GuardForm::Computes);
            let is_new = |it: &Guard| it.form != GuardForm::Computes || it.line != guard.line;
            // A constant is equal on all ranks.
            let is_computed = value_of(&line.text).contains(['(', '[']);
            if is_computed && known.len() <= MAX_ASSIGNMENTS && found.iter().all(is_new) {
                found.push(Guard { subject: GuardSubject::Other, ..guard });
            }
        }
    }

    /// The latest assignment to a variable before a line, in the same function.
    pub(super) fn assignment(&self, name: &str, at: usize) -> Option<usize> {
        let scope = self.scope(at);
        let mut earlier = (0..at).rev().take(MAX_LINES_BEFORE);
        earlier.find(|&i| assigns(&self.lines[i].text, name) && self.scope(i) == scope)
    }

    /// The test that decides whether a `with` statement is one of `no_sync()`, in which backward makes no call.
    pub(super) fn synchronization(&self, header: usize) -> Option<Guard> {
        const NO_SYNC: &str = "no_sync(";
        let context = self.lines[header].text.strip_prefix("with ")?.trim_end_matches(':').trim();
        let is_name = context.chars().all(is_of_word);
        let at = if is_name { self.assignment(context, header)? } else { header };
        let value = if is_name { value_of(&self.lines[at].text) } else { context };
        let (then, rest) = split_word(value, "if")?;
        let (test, other) = split_word(rest, "else")?;
        let form = match (then.contains(NO_SYNC), other.contains(NO_SYNC)) {
            (true, false) => GuardForm::Fails,
            (false, true) => GuardForm::Holds,
            _ => return None,
        };
        Some(self.guard(self.lines[at].first, test, form))
    }

    /// The object over which a statement is a `with` statement, such as a lock. A call makes a new one.
    pub(super) fn held(&self, at: usize) -> Option<Guard> {
        let line = &self.lines[at];
        let (object, _) = header_test(&line.text).filter(|_| line.text.starts_with("with "))?;
        let is_name = object.chars().all(|c| is_of_word(c) || c == '.');
        let guard = self.guard(line.first, object, GuardForm::Keeps);
        is_name.then_some(Guard { subject: GuardSubject::Other, ..guard })
    }

    /// Whether a test decides that an input has ended: that a variable, which was taken from a queue or an iterator,
    /// is the value that stands for the end.
    pub(super) fn is_end_of_input(&self, test: &str, at: usize) -> bool {
        let positive = test.strip_prefix("not ");
        let compared = positive.unwrap_or(test);
        let sides = [" is ", " == "].into_iter().find_map(|it| compared.split_once(it));
        let item = sides.map_or(compared, |(item, _)| item.trim());
        let is_end = match sides {
            Some((_, end)) => !end.starts_with("not "),
            None => positive.is_some(),
        };
        if !is_end || !item.chars().all(is_of_word) {
            return false;
        }
        let assignment = self.assignment(item, at).map(|it| value_of(&self.lines[it].text));
        assignment.is_some_and(|value| TAKES.iter().any(|it| value.contains(it)))
    }

    /// The tests that decide on the values of a statement: in it, and in what it calls.
    fn value_tests(&self, at: usize, found: &mut Vec<Guard>) {
        let line = &self.lines[at];
        if line.text.len() > MAX_STATEMENT {
            return;
        }
        self.conditions(at, found);
        if self.head(at) != Head::Other {
            return;
        }
        let value = value_of(&line.text);
        let tests = self.decisions(value).into_iter();
        found.extend(tests.map(|test| self.guard(line.first, test, GuardForm::Chooses)));
        for name in subject::names(value).take(MAX_NAMES) {
            self.tests_inside(self.definition(name), found);
        }
        for name in subject::own_methods(value).take(MAX_NAMES) {
            self.tests_inside(self.method(at, name), found);
        }
    }

    /// The tests of conditional expressions in a line, unless a progress bar is all that they decide on.
    fn conditions(&self, at: usize, found: &mut Vec<Guard>) {
        let line = &self.lines[at];
        let shows_progress = |text| subject::names(text).any(|it| PROGRESS_BARS.contains(&it));
        if line.text.len() > MAX_STATEMENT || shows_progress(&line.text) {
            return;
        }
        let tests = conditional_tests(&line.text).into_iter();
        found.extend(tests.map(|test| self.guard(line.first, test, GuardForm::Chooses)));
    }

    /// The comparisons, negations, and variables with the result of a test in a value, as a whole or
    /// as its arguments, without those that are or contain the test of a conditional expression.
    fn decisions<'a>(&self, value: &'a str) -> Vec<&'a str> {
        let mut found = conditional_tests(value);
        let conditional = found.len();
        for part in parts(value) {
            let part = value_of(part.trim());
            let mut known = found.iter();
            if (is_comparison(part) || self.names.is_result_of_test(part))
                && !known.any(|it| part.contains(it) || it.contains(part))
            {
                found.push(part);
            }
        }
        found.split_off(conditional)
    }

    /// The definition of a function or class.
    fn definition(&self, name: &str) -> Option<usize> {
        (0..self.lines.len()).find(|&it| self.lines[it].defines(name))
    }

    /// The definition of a method in the class around a line.
    fn method(&self, at: usize, name: &str) -> Option<usize> {
        let is_class = |&header: &usize| self.lines[header].text.starts_with("class");
        let class = self.all_headers(at).find(is_class)?;
        let mut inside = class + 1..self.suite_end(class);
        inside.find(|&it| self.lines[it].defines(name))
    }

    /// The tests on the rank that decide on values in a function or class.
    fn tests_inside(&self, definition: Option<usize>, found: &mut Vec<Guard>) {
        let Some(header) = definition else {
            return;
        };
        let mut tests = Vec::new();
        for i in header + 1..self.suite_end(header) {
            self.conditions(i, &mut tests);
            if !matches!(self.head(i), Head::If | Head::Elif) {
                continue;
            }
            let line = &self.lines[i];
            let mut suite = self.lines[i + 1..self.suite_end(i)].iter();
            let decides = suite.any(|it| value_of(&it.text).len() < it.text.len());
            let test = header_test(&line.text).filter(|_| decides);
            tests.extend(test.map(|(it, _)| self.guard(line.first, it, GuardForm::Chooses)));
        }
        tests.retain(|it| it.subject == GuardSubject::Rank);
        found.extend(tests);
    }
}

/// Adds tests with a known subject to the guards of a line. A test on which more depends is already
/// there: the line itself, or a value that it uses.
fn add(found: &mut Vec<Guard>, tests: Vec<Guard>, form: GuardForm) {
    for mut guard in tests {
        guard.form = form;
        let mut known = found.iter();
        let is_known = known.any(|it| it.line == guard.line && it.test == guard.test);
        if guard.subject != GuardSubject::Other && !is_known {
            found.push(guard);
        }
    }
}
