//! Finds the tests that decide whether a Python program reaches a line, by the indentation of its
//! source.
//!
//! This is not a parser of the language: logical lines, their indentation and their first words are
//! sufficient. The result is a hint for the user and for the wording of a finding. Unsupported source
//! yields no results.

use ddp_doctor_proto::{GuardForm, GuardSubject};

mod subject;

/// Maximum length of a reported test, in characters.
const MAX_TEST_CHARS: usize = 120;
/// Maximum number of reported tests of one line.
const MAX_GUARDS: usize = 32;
/// Maximum number of lines read of a file.
const MAX_LINES: usize = 200_000;
/// Maximum nesting of a file, as in Python.
const MAX_NESTING: usize = 100;
/// Maximum number of names in a line that are followed …
const MAX_NAMES: usize = 16;
/// … and of lines before it that are searched for assignments.
const MAX_LINES_BEFORE: usize = 400;
/// Maximum length of a statement that is searched for conditional expressions, in bytes.
const MAX_STATEMENT: usize = 4096;
/// Width of a tab, in columns.
const TAB: usize = 8;

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
}

/// A source file.
#[derive(Debug)]
pub struct Source {
    lines: Vec<Line>,
    names: subject::Names,
}

/// A logical line.
#[derive(Debug)]
struct Line {
    /// First and last physical line, 1-based.
    first: u32,
    last: u32,
    indent: usize,
    /// Text without comments and line breaks.
    text: String,
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
        let names = subject::Names::of(lines.iter().map(|line| line.text.as_str()));
        Self { lines, names }
    }

    /// The tests that decide whether the program reaches a line, the nearest first.
    #[must_use]
    pub fn guards(&self, line: u32) -> Vec<Guard> {
        let after = self.lines.partition_point(|it| it.first <= line);
        let Some(at) = after
            .checked_sub(1)
            .filter(|&at| self.lines[at].last >= line)
        else {
            return Vec::new();
        };
        let mut found = self.within(at);
        let mut inner = at;
        // Proceeds outwards from suite to suite, up to the function.
        loop {
            self.before(inner, &mut found);
            let indent = self.lines[inner].indent;
            let header = self.lines[..inner]
                .iter()
                .rposition(|it| it.indent < indent);
            let Some(header) = header else { break };
            match self.head(header) {
                Head::Scope => break,
                head => self.around(header, head, at, &mut found),
            }
            inner = header;
        }
        self.choices(at, &mut found);
        found.truncate(MAX_GUARDS);
        found
    }

    /// The tests that decide on values which the line uses: conditional expressions in it, in the
    /// loops around it, and in assignments to its variables; comparisons in it and in these
    /// assignments; tests around such assignments; and tests on the rank in the functions and
    /// classes that are called there.
    fn choices(&self, at: usize, found: &mut Vec<Guard>) {
        let scope = self.scope(at);
        let around: Vec<usize> = self.headers(at).collect();
        let loops = around.iter().filter(|&&it| self.head(it) == Head::For);
        let mut chosen: Vec<Guard> = Vec::new();
        self.value_tests(at, &mut chosen);
        for &i in loops {
            self.conditions(i, &mut chosen);
        }
        let names = subject::names(value_of(&self.lines[at].text));
        for name in names.take(MAX_NAMES) {
            let earlier = (0..at).rev().take(MAX_LINES_BEFORE);
            // A variable of another function is another one.
            let is_same = |i: usize| [None, scope].contains(&self.scope(i));
            for i in earlier.filter(|&i| changes(&self.lines[i].text, name) && is_same(i)) {
                self.value_tests(i, &mut chosen);
                let header = self.headers(i).next().filter(|it| !around.contains(it));
                match header.map(|header| (header, self.head(header))) {
                    Some((header, Head::If | Head::Elif)) => {
                        let line = &self.lines[header];
                        let test = header_test(&line.text).map(|(test, _)| test);
                        chosen
                            .extend(test.map(|it| self.guard(line.first, it, GuardForm::Chooses)));
                    }
                    Some((header, Head::Else)) => self.branches_before(header, &mut chosen),
                    _ => {}
                }
            }
        }
        for guard in &mut chosen {
            guard.form = GuardForm::Chooses;
        }
        let is_known = |guard: &Guard, found: &[Guard]| {
            let mut known = found.iter();
            known.any(|it| it.line == guard.line && it.test == guard.test)
        };
        for guard in chosen {
            if guard.subject != GuardSubject::Other && !is_known(&guard, found) {
                found.push(guard);
            }
        }
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
            self.tests_inside(name, found);
        }
    }

    /// The tests of conditional expressions in a line.
    fn conditions(&self, at: usize, found: &mut Vec<Guard>) {
        let line = &self.lines[at];
        if line.text.len() > MAX_STATEMENT {
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

    /// The tests on the rank that decide on values in a function or class of the file.
    fn tests_inside(&self, name: &str, found: &mut Vec<Guard>) {
        let defines = |line: &Line| {
            let mut words = line.text.split(|c: char| !c.is_alphanumeric() && c != '_');
            matches!(words.next(), Some("def" | "class")) && words.next() == Some(name)
        };
        let Some(header) = self.lines.iter().position(defines) else {
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
            let form = if call.contains('(') {
                GuardForm::Holds
            } else {
                GuardForm::Fails
            };
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
            if line.indent > indent || i >= own || !matches!(self.head(i), Head::If | Head::Elif) {
                continue;
            }
            let Some((test, suite)) = header_test(&line.text) else {
                continue;
            };
            let form = match self.exit(i, suite) {
                Some(Exit::Continue) => GuardForm::Skips,
                Some(Exit::Break | Exit::Return) => GuardForm::Leaves,
                None => continue,
            };
            found.push(self.guard(line.first, test, form));
        }
    }

    /// The tests that follow for a line from its position below a header.
    fn around(&self, header: usize, head: Head, at: usize, found: &mut Vec<Guard>) {
        let line = &self.lines[header];
        match head {
            Head::If | Head::Elif | Head::While => {
                if let Some((test, _)) = header_test(&line.text) {
                    found.push(self.guard(line.first, test, GuardForm::Holds));
                }
                if head == Head::Elif {
                    self.branches_before(header, found);
                }
                if head == Head::While {
                    self.ends(header, at, found);
                }
            }
            Head::Else => self.branches_before(header, found),
            Head::For => self.ends(header, at, found),
            Head::Except => {
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
                let subject = self.lines[..header]
                    .iter()
                    .rfind(|it| it.indent < line.indent);
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
            _ => {}
        }
    }

    /// The tests of the branches before an `elif` or `else`, all of which fail.
    fn branches_before(&self, branch: usize, found: &mut Vec<Guard>) {
        let indent = self.lines[branch].indent;
        for i in (0..branch).rev() {
            let line = &self.lines[i];
            match self.head(i) {
                _ if line.indent > indent => {}
                head @ (Head::If | Head::Elif) if line.indent == indent => {
                    if let Some((test, _)) = header_test(&line.text) {
                        found.push(self.guard(line.first, test, GuardForm::Fails));
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

    /// The tests after the line that end a loop.
    fn ends(&self, header: usize, at: usize, found: &mut Vec<Guard>) {
        let end = self.suite_end(header);
        for i in at + 1..end {
            if self.head(i) == Head::If
                && let Some((test, suite)) = header_test(&self.lines[i].text)
                && matches!(self.exit(i, suite), Some(Exit::Break | Exit::Return))
            {
                found.push(self.guard(self.lines[i].first, test, GuardForm::Ends));
            }
        }
    }

    /// The first handler of a `try` that neither raises nor ends the program.
    fn catches(&self, header: usize) -> Option<usize> {
        let indent = self.lines[header].indent;
        let mut i = self.suite_end(header);
        while let Some(line) = self.lines.get(i).filter(|line| line.indent == indent) {
            if self.head(i) != Head::Except {
                return None;
            }
            let end = self.suite_end(i);
            let leaves = |text: &str| {
                [
                    "raise", "sys.exit", "os._exit", "exit(", "quit(", "os.abort",
                ]
                .iter()
                .any(|word| text.starts_with(word))
            };
            let one_line = line
                .text
                .split_once(':')
                .map_or("", |(_, suite)| suite.trim());
            let suite = &self.lines[i + 1..end];
            if !leaves(one_line) && !suite.iter().any(|line| leaves(&line.text)) {
                return Some(i);
            }
            i = end;
        }
        None
    }

    /// The exit statement at the end of a header's suite.
    fn exit(&self, header: usize, one_line: &str) -> Option<Exit> {
        let last = if one_line.is_empty() {
            let end = self.suite_end(header);
            let indent = self
                .lines
                .get(header + 1)
                .filter(|_| header + 1 < end)?
                .indent;
            let mut in_suite = self.lines[header + 1..end].iter();
            in_suite.rfind(|line| line.indent == indent)?.text.as_str()
        } else {
            one_line.rsplit(';').next().unwrap_or(one_line).trim()
        };
        let word = last
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .next();
        match word {
            Some("continue") => Some(Exit::Continue),
            Some("break") => Some(Exit::Break),
            Some("return") => Some(Exit::Return),
            _ => None,
        }
    }

    /// Index of the first line after a header's suite.
    fn suite_end(&self, header: usize) -> usize {
        let indent = self.lines[header].indent;
        let inside = self.lines[header + 1..]
            .iter()
            .take_while(|line| line.indent > indent);
        header + 1 + inside.count()
    }

    /// Index of the first line of the statement to which a branch belongs.
    fn statement_of(&self, at: usize) -> usize {
        let indent = self.lines[at].indent;
        let mut first = at;
        while matches!(
            self.head(first),
            Head::Elif | Head::Else | Head::Except | Head::Finally
        ) {
            let before = self.lines[..first]
                .iter()
                .rposition(|line| line.indent <= indent);
            match before.filter(|&before| self.lines[before].indent == indent) {
                Some(before) => first = before,
                None => break,
            }
        }
        first
    }

    fn head(&self, at: usize) -> Head {
        let text = self.lines[at].text.as_str();
        let word = text
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
            .unwrap_or("");
        let word = match word {
            "async" => text["async".len()..]
                .trim_start()
                .split(' ')
                .next()
                .unwrap_or(""),
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
        }
    }
}

/// Whether a line is a header whose suite follows on later lines.
fn ends_header(text: &str) -> bool {
    text.ends_with(':')
}

/// The test of `if test: suite`, and the suite if it is on the same line.
fn header_test(text: &str) -> Option<(&str, &str)> {
    let rest = text.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
    let colon = at_depth_zero(rest, |rest| {
        rest.starts_with(':') && !rest.starts_with(":=")
    })?;
    Some((rest[..colon].trim(), rest[colon + 1..].trim()))
}

/// The right side of an assignment, or the operand of `return`, `await` or `yield`.
fn value_of(text: &str) -> &str {
    let mut value = text;
    for word in ["return ", "await ", "yield "] {
        value = value.strip_prefix(word).unwrap_or(value);
    }
    let assigned = at_depth_zero(value, |rest| {
        rest.starts_with('=') && !rest.starts_with("==")
    });
    match assigned {
        Some(at) if !value[..at].ends_with(['!', '<', '>', '=']) => value[at + 1..].trim(),
        _ => value,
    }
}

/// Whether a statement assigns to a variable, to a part of it, or calls a method of it.
fn changes(text: &str, name: &str) -> bool {
    let Some(rest) = text.strip_prefix(name) else {
        return false;
    };
    let rest = rest.trim_start();
    rest.starts_with(['[', '.', '=', '+']) && !rest.starts_with("==")
}

/// The tests of the conditional expressions `x if test else y` in a line, also within brackets.
fn conditional_tests(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for part in parts(text) {
        if let Some((_, rest)) = split_word(part, "if")
            && let Some((test, _)) = split_word(rest, "else")
            && !found.contains(&test)
        {
            found.push(test);
        }
    }
    found
}

/// Whether an expression is the result of a comparison or of a negation.
fn is_comparison(text: &str) -> bool {
    let compares = |rest: &str| {
        let mut operators = ["==", "!=", "<=", ">=", "< ", "> ", " is ", " in "].iter();
        operators.any(|it| rest.starts_with(it))
    };
    let mut words = ["for", "lambda", "if"].iter();
    let is_other = words.any(|word| split_word(text, word).is_some());
    // `test and call()` makes a call, or none.
    let makes_call = split_word(text, "and").is_some_and(|(_, rest)| rest.contains('('));
    !is_other
        && !makes_call
        && (text.starts_with("not ") || at_depth_zero(text, compares).is_some())
}

/// A text, and the parts of it that follow an opening bracket, a comma or an equals sign.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let openings = text.char_indices().filter(|&(_, c)| "([{,=".contains(c));
    let starts = std::iter::once(0).chain(openings.map(|(at, _)| at + 1));
    starts.map(|start| {
        let inner = text[start..].trim_start();
        &inner[..end_of_argument(inner)]
    })
}

/// Length of the text up to a comma or a bracket that closes what surrounds it.
fn end_of_argument(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut quote: Option<char> = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return at,
            },
            (None, ',') if depth == 0 => return at,
            (None, _) => {}
        }
    }
    text.len()
}

/// Splits a text at a word outside brackets and strings.
fn split_word<'a>(text: &'a str, word: &str) -> Option<(&'a str, &'a str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut before = ' ';
    let at = at_depth_zero(text, |rest| {
        let starts =
            !is_part(before) && rest.starts_with(word) && !rest[word.len()..].starts_with(is_part);
        before = rest.chars().next().unwrap_or(' ');
        starts
    })?;
    Some((text[..at].trim(), text[at + word.len()..].trim()))
}

/// The first position outside brackets and strings at which `wanted` holds for the rest of the
/// text.
fn at_depth_zero(text: &str, mut wanted: impl FnMut(&str) -> bool) -> Option<usize> {
    let mut depth = 0_usize;
    let mut quote: Option<char> = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None => {
                if depth == 0 && wanted(&text[at..]) {
                    return Some(at);
                }
                match c {
                    '"' | '\'' => quote = Some(c),
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
        }
    }
    None
}

/// Whether the nesting is within Python's limit; deeper nesting would take too much time.
fn is_plausible(lines: &[Line]) -> bool {
    let mut open: Vec<usize> = Vec::new();
    lines.iter().all(|line| {
        while open.last().is_some_and(|&outer| outer >= line.indent) {
            open.pop();
        }
        open.push(line.indent);
        open.len() <= MAX_NESTING
    })
}

/// Joins lines that are continued by brackets, backslashes or multi-line strings; drops comments
/// and empty lines.
fn logical_lines(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut open: Option<Line> = None;
    let mut depth = 0_usize;
    // Closing quotes of an open multi-line string.
    let mut long: Option<&'static str> = None;
    for (i, physical) in text.lines().enumerate().take(MAX_LINES) {
        let number = i as u32 + 1;
        let mut line = open.take().unwrap_or_else(|| Line {
            first: number,
            last: number,
            indent: indent_of(physical),
            text: String::new(),
        });
        line.last = number;
        if !line.text.is_empty() && !line.text.ends_with(' ') && long.is_none() {
            line.text.push(' ');
        }
        let goes_on = scan(physical.trim_start(), &mut line.text, &mut depth, &mut long);
        if depth > 0 || long.is_some() || goes_on {
            open = Some(line);
            continue;
        }
        line.text.truncate(line.text.trim_end().len());
        if !line.text.is_empty() {
            lines.push(line);
        }
    }
    lines
}

/// Appends a physical line without its comment. Returns whether a backslash continues it.
fn scan(
    physical: &str,
    out: &mut String,
    depth: &mut usize,
    long: &mut Option<&'static str>,
) -> bool {
    let mut rest = physical;
    let mut quote: Option<char> = None;
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        if let Some(end) = *long {
            if rest.starts_with(end) {
                *long = None;
                length = end.len();
                out.push('"');
            } else if c == '\\' {
                length += rest[1..].chars().next().map_or(0, char::len_utf8);
            }
        } else if let Some(open) = quote {
            if c == '\\' {
                length += rest[1..].chars().next().map_or(0, char::len_utf8);
                out.push_str(&rest[..length]);
            } else {
                out.push(c);
                if c == open {
                    quote = None;
                }
            }
        } else {
            match c {
                '#' => return false,
                '"' | '\'' => {
                    let three = if c == '"' { "\"\"\"" } else { "'''" };
                    if rest.starts_with(three) {
                        *long = Some(three);
                        length = three.len();
                        out.push('"');
                    } else {
                        quote = Some(c);
                        out.push(c);
                    }
                }
                '\\' if rest.len() == 1 => return true,
                _ => {
                    match c {
                        '(' | '[' | '{' => *depth += 1,
                        ')' | ']' | '}' => *depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    let spaced = c.is_whitespace();
                    if !spaced || !out.ends_with(' ') {
                        out.push(if spaced { ' ' } else { c });
                    }
                }
            }
        }
        rest = &rest[length..];
    }
    false
}

fn indent_of(line: &str) -> usize {
    let mut columns = 0;
    for c in line.chars() {
        match c {
            ' ' => columns += 1,
            '\t' => columns = (columns / TAB + 1) * TAB,
            _ => break,
        }
    }
    columns
}

#[cfg(test)]
mod tests;
