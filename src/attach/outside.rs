//! Reads processes of other users, in a child process.
//!
//! The user of a process decides how long its memory, its maps and its arguments keep a reader waiting: forever, if a page
//! is in a FUSE file, or if a thread keeps the memory map locked. Not even SIGKILL ends a process with such a thread. So
//! this process reads none of these of another user. A child process, this program by a hidden command, reads them, with a
//! thread for each question, and is left behind when this process ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_host::{proc, sys};
use serde::{Deserialize, Serialize};

pub mod answers;

/// Name of the hidden command.
pub const COMMAND: &str = "read-processes";
/// Maximum number of questions about processes of one user that wait for their answers.
const MAX_WAITING: usize = 64;
/// Maximum number of questions that wait for their answers, when all processes of the host are asked.
const MAX_THREADS: usize = 1024;
/// Name of the thread that receives the answers.
const RECEIVER: &str = "ddp-answers";
/// Time limit for the arguments of a process.
const MAX_ARGUMENTS: Duration = Duration::from_secs(1);
/// Maximum length of an answer, in bytes.
const MAX_ANSWER: u32 = 64 << 20;

/// What is asked about a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Question {
    /// What it states about itself, if it may be a rank: optional facts ([`super::find`]) as JSON.
    Rank,
    /// Its variables: an [`super::environment::Environment`] as JSON.
    Environment,
    /// What its frames state about its rank: a [`super::find::spawned::Stated`] as JSON.
    Frames,
    /// Its stacks: a message `Stacks`.
    Stacks {
        /// Its start time.
        start_ticks: u64,
    },
    /// Versions of its libraries, and its step: [`super::rank_facts::Contents`] as JSON.
    Contents,
    /// Its arguments: a list as JSON.
    Arguments,
}

/// A question to the child process, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) id: u32,
    pub(super) pid: u32,
    pub(super) question: Question,
}

/// The child process, and what it was asked.
static READER: Mutex<Reader> = Mutex::new(Reader {
    started: None,
    next: 0,
    unanswered: BTreeMap::new(),
    silent: BTreeSet::new(),
});

#[derive(Debug)]
struct Reader {
    started: Option<Started>,
    next: u32,
    /// Questions that were not answered in time, by their ids, and the processes that they are about, with their users.
    /// Each occupies a thread of the child process until it is answered.
    unanswered: BTreeMap<u32, (u32, u32)>,
    /// Processes that were left out at least once.
    silent: BTreeSet<u32>,
}

#[derive(Debug)]
struct Started {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<(u32, Vec<u8>)>,
}

impl Drop for Started {
    fn drop(&mut self) {
        // It is not waited for: one of its threads may never end.
        self.child.kill().ok();
    }
}

/// Whether a process belongs to another user, so that only the child process may read it.
#[must_use]
pub fn is_of_another_user(pid: u32) -> bool {
    proc::owner(pid).is_some() && !proc::is_own(pid)
}

/// The processes of other users that did not answer in time.
#[must_use]
pub fn silent() -> Vec<u32> {
    let reader = READER.lock().unwrap_or_else(PoisonError::into_inner);
    reader.silent.iter().copied().collect()
}

/// Asks about processes, all at once; `None` for each that does not answer in time, or has not answered an earlier
/// question yet.
#[must_use]
pub fn ask(questions: &[(u32, Question)], limit: Duration) -> Vec<Option<Vec<u8>>> {
    let mut reader = READER.lock().unwrap_or_else(PoisonError::into_inner);
    reader.ask(questions, limit)
}

/// Asks about one process; the answer is JSON.
#[must_use]
pub fn ask_one<T: for<'a> Deserialize<'a>>(
    pid: u32,
    question: Question,
    limit: Duration,
) -> Option<T> {
    serde_json::from_slice(&ask(&[(pid, question)], limit).pop()??).ok()
}

/// The arguments of a process, which may be of another user.
#[must_use]
pub fn arguments(pid: u32) -> Vec<String> {
    if is_of_another_user(pid) {
        return ask_one(pid, Question::Arguments, MAX_ARGUMENTS).unwrap_or_default();
    }
    proc::arguments(pid)
}

impl Reader {
    fn ask(&mut self, questions: &[(u32, Question)], limit: Duration) -> Vec<Option<Vec<u8>>> {
        let mut answers = vec![None; questions.len()];
        let deadline = Instant::now() + limit;
        // By user, in the order in which they are named.
        let mut users: Vec<u32> = Vec::new();
        let mut waiting: HashMap<u32, Vec<usize>> = HashMap::new();
        if let Some(started) = &self.started {
            // Late answers: these processes may be asked again.
            for (id, _) in started.answers.try_iter() {
                self.unanswered.remove(&id);
            }
        }
        let busy: BTreeSet<u32> = self.unanswered.values().map(|(pid, _)| *pid).collect();
        for (index, (pid, _)) in
            questions.iter().enumerate().filter(|(_, it)| !busy.contains(&it.0))
        {
            let user = proc::owner(*pid).unwrap_or(0);
            let of_user = waiting.entry(user).or_default();
            if of_user.is_empty() {
                users.push(user);
            }
            of_user.push(index);
        }
        if waiting.is_empty() {
            return answers;
        }
        if self.started.is_none() {
            self.started = Started::new().ok();
        }
        let Some(started) = &mut self.started else { return answers };
        let first = self.next;
        self.next = self.next.wrapping_add(u32::try_from(questions.len()).unwrap_or(0));
        // The last of a list is asked next: the processes that were named first.
        waiting.values_mut().for_each(|it| it.reverse());
        let mut asked: HashMap<usize, u32> = HashMap::new();
        let mut next = first_turns(&users, &self.unanswered, &waiting);
        if matches!(questions, [(_, Question::Rank), ..]) {
            next.truncate(MAX_THREADS.saturating_sub(self.unanswered.len()));
        }
        loop {
            for user in next.drain(..) {
                let Some(index) = waiting.get_mut(&user).and_then(Vec::pop) else { continue };
                let (pid, question) = questions[index];
                let id = first.wrapping_add(u32::try_from(index).unwrap_or(0));
                if started.send(&Request { id, pid, question }).is_ok() {
                    asked.insert(index, user);
                }
            }
            if asked.is_empty() {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((id, answer)) = started.answers.recv_timeout(left) else { break };
            let index = id.wrapping_sub(first) as usize;
            match asked.remove(&index) {
                Some(user) => {
                    answers[index] = Some(answer);
                    next.push(user);
                }
                None => {
                    self.unanswered.remove(&id);
                }
            }
        }
        self.unanswered.extend(asked.iter().map(|(index, user)| {
            let id = first.wrapping_add(u32::try_from(*index).unwrap_or(0));
            (id, (questions[*index].0, *user))
        }));
        let left_out = asked.keys().chain(waiting.values().flatten());
        self.silent.extend(left_out.map(|index| questions[*index].0));
        answers
    }
}

/// The users whose processes are asked first: each in turn, as often as questions of theirs may wait for answers. A user
/// whose processes answer goes on however many others do not.
fn first_turns(
    users: &[u32],
    unanswered: &BTreeMap<u32, (u32, u32)>,
    waiting: &HashMap<u32, Vec<usize>>,
) -> Vec<u32> {
    let mut left: HashMap<u32, usize> = users.iter().map(|user| (*user, MAX_WAITING)).collect();
    for (_, user) in unanswered.values() {
        left.entry(*user).and_modify(|left| *left = left.saturating_sub(1));
    }
    let number = |user: &u32| -> usize {
        let asked = waiting.get(user).map_or(0, Vec::len);
        left.get(user).map_or(0, |left| asked.min(*left))
    };
    let turns = (0..MAX_WAITING).flat_map(|turn| users.iter().map(move |user| (turn, *user)));
    turns.filter(|(turn, user)| *turn < number(user)).map(|(_, user)| user).collect()
}

impl Started {
    fn new() -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let (requests, output) = (child.stdin.take(), child.stdout.take());
        let (Some(requests), Some(output)) = (requests, output) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let answers = answers(output)?;
        Ok(Self { child, requests, answers })
    }

    fn send(&mut self, request: &Request) -> io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.requests.write_all(&line)
    }
}

/// The answers in an output, with the ids of their questions, which a thread receives.
fn answers(mut output: impl Read + Send + 'static) -> io::Result<Receiver<(u32, Vec<u8>)>> {
    let (answered, answers) = channel();
    thread::Builder::new().name(RECEIVER.into()).spawn(move || {
        // An interrupt is for the thread that waits for one: in another one it ends the process.
        sys::block_interrupts();
        while let Ok(answer) = receive(&mut output) {
            if answered.send(answer).is_err() {
                break;
            }
        }
    })?;
    Ok(answers)
}

/// Reads the id and the bytes of an answer.
fn receive(from: &mut impl Read) -> io::Result<(u32, Vec<u8>)> {
    let mut head = [[0; 4]; 2];
    from.read_exact(head.as_flattened_mut())?;
    let [id, length] = head.map(u32::from_le_bytes);
    if length > MAX_ANSWER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut answer = vec![0; length as usize];
    from.read_exact(&mut answer)?;
    Ok((id, answer))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::ChildStdout;
    use std::sync::mpsc::Sender;

    use super::*;

    /// A reader that gets its answers from this channel, and its requests as they arrive.
    fn reader() -> (Reader, Sender<(u32, Vec<u8>)>, ChildStdout) {
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (answered, answers) = channel();
        let (requests, asked) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let started = Started { requests, child, answers };
        let (unanswered, silent) = (BTreeMap::new(), BTreeSet::new());
        (Reader { started: Some(started), next: 0, unanswered, silent }, answered, asked)
    }

    #[test]
    fn process_is_asked_again_once_it_has_answered() {
        let (mut reader, answered, asked) = reader();
        let mut ask = |limit| reader.ask(&[(7, Question::Arguments)], Duration::from_millis(limit));
        assert_eq!(ask(1), [None]);
        // It is not asked again before it has answered: question 1 does not exist yet.
        answered.send((1, b"second".to_vec())).unwrap();
        assert_eq!(ask(1), [None]);
        answered.send((0, b"first".to_vec())).unwrap();
        answered.send((9, b"of none".to_vec())).unwrap();
        assert_eq!(ask(1), [None], "it is asked, and does not answer");
        assert_eq!(reader.silent, BTreeSet::from([7]));
        assert_eq!(reader.unanswered, BTreeMap::from([(1, (7, 0))]));
        answered.send((1, Vec::new())).unwrap();
        let answers = thread::spawn(move || {
            let mut requests = BufReader::new(asked).lines();
            // The third is the next one.
            assert!(requests.nth(2).unwrap().is_ok());
            answered.send((2, b"answer".to_vec())).unwrap();
        });
        let answered = reader.ask(&[(7, Question::Arguments)], Duration::from_secs(60));
        assert_eq!(answered, [Some(b"answer".to_vec())]);
        assert!(reader.unanswered.is_empty());
        answers.join().unwrap();
    }

    #[test]
    fn thread_that_receives_answers_takes_no_interrupt() {
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let answers = answers(child.stdout.take().unwrap()).unwrap();
        input.write_all(&[1, 0, 0, 0, 2, 0, 0, 0, b'o', b'k']).unwrap();
        assert_eq!(answers.recv().unwrap(), (1, b"ok".to_vec()));
        let threads = fs::read_dir("/proc/self/task").unwrap().map(|it| it.unwrap().path());
        let of = |path: &Path, file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
        let receivers: Vec<_> = threads.filter(|it| of(it, "comm").trim() == RECEIVER).collect();
        assert!(!receivers.is_empty());
        for thread in receivers {
            let status = of(&thread, "status");
            let digits = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            let blocked = u64::from_str_radix(digits.trim(), 16).unwrap();
            // The first bit is that of signal 1.
            assert_eq!(blocked >> (libc::SIGINT - 1) & 1, 1, "{status}");
        }
        drop(input);
        child.wait().unwrap();
    }

    #[test]
    fn threads_are_shared_by_users_and_limited() {
        let waiting: HashMap<u32, Vec<usize>> =
            [(1, 100), (2, 3), (3, 100)].map(|(user, number)| (user, vec![0; number])).into();
        let of_third = (0..63).map(|id| (id, (9, 3)));
        let turns = first_turns(&[2, 1, 3], &of_third.collect(), &waiting);
        assert_eq!(turns[..6], [2, 1, 3, 2, 1, 2]);
        let of = |user| turns.iter().filter(|it| **it == user).count();
        assert_eq!([1, 2, 3].map(of), [MAX_WAITING, 3, 1]);

        let (mut reader, _answered, _asked) = reader();
        // Processes without an owner count as root's.
        let asked: Vec<(u32, Question)> =
            (0..500).map(|pid| (1 << 30 | pid, Question::Rank)).collect();
        for _ in 0..3 {
            reader.ask(&asked, Duration::ZERO);
            assert_eq!(reader.unanswered.len(), MAX_WAITING, "of one user");
        }
        let others = (10_000..11_000).map(|id| (id, (id, id)));
        reader.unanswered = others.collect();
        reader.ask(&asked, Duration::ZERO);
        assert_eq!(reader.unanswered.len(), MAX_THREADS);
        // Those of the job that is diagnosed are asked all the same.
        reader.ask(&[(1 << 29, Question::Arguments)], Duration::ZERO);
        assert_eq!(reader.unanswered.len(), MAX_THREADS + 1);
    }
}
