//! Guards: the tests in a user's source that decide whether the program reaches a line.
//!
//! A separate thread reads the files, so that a file system that does not respond delays only the
//! guards. Since the job chooses the names, only files of its program are read ([`SourceFolders`]), each
//! once.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use ddp_doctor_host::proc;
use ddp_doctor_host::source_files::{ProcessRoot, SourceFolders};
use ddp_doctor_proto::v1;
use v1::event::Kind;

mod python;

pub use python::{Guard, Source};

/// Maximum number of processes that started a process, and that are considered.
const MAX_ANCESTORS: usize = 8;
/// Maximum number of cached files.
const MAX_FILES: usize = 256;
/// Maximum number of queued sites.
const MAX_QUEUED: usize = 16_384;
/// Time limit at the end of a job for files that are still being read.
const MAX_LAST_READ: Duration = Duration::from_millis(200);

/// Where the sources of a process of this user are read, in a container as well. A process of another user has none:
/// it chooses what its command line shows.
#[must_use]
pub fn sources_of(pid: u32) -> SourceFolders {
    // The root directory of a process of another user may be one that keeps others waiting.
    if !proc::is_own(pid) {
        return SourceFolders::of_program(&[]);
    }
    let Some(root) = ProcessRoot::open(pid) else {
        return SourceFolders::of_program(&folders_of(pid));
    };
    match fs::read_link(format!("/proc/{pid}/cwd")) {
        Ok(directory) => SourceFolders::in_root(root, &proc::arguments(pid), &directory),
        Err(_) => SourceFolders::default(),
    }
}

/// The folders with the sources of a process of this user, from its command line and those of the processes
/// that started it. None for a process of another user, and for one whose paths name other files than here.
#[must_use]
pub fn folders_of(pid: u32) -> Vec<PathBuf> {
    if !proc::is_own(pid) || ProcessRoot::open(pid).is_some() {
        return Vec::new();
    }
    let mut folders = Vec::new();
    let mut next = Some(pid);
    for _ in 0..MAX_ANCESTORS {
        let Some(pid) = next.filter(|pid| proc::is_own(*pid)) else {
            break;
        };
        if let Ok(directory) = fs::read_link(format!("/proc/{pid}/cwd")) {
            let words = proc::arguments(pid);
            let directories = SourceFolders::of_command(&words, &directory);
            // The working directories of shells and launchers are not those of the job.
            let is_first = folders.is_empty();
            folders.extend(directories.into_iter().filter(|it| is_first || *it != directory));
        }
        next = proc::Stat::read(pid).ok().map(|stat| stat.parent);
    }
    folders
}

/// Reads sources in a thread beside the follower.
#[derive(Debug)]
pub struct Sources {
    queue: Option<SyncSender<v1::SiteDefined>>,
    answers: Receiver<v1::SiteDefined>,
    /// Number of unanswered sites.
    unanswered: usize,
    /// Sites that could not be queued.
    unread: Vec<v1::SiteDefined>,
}

impl Sources {
    /// Starts the reader of files below these folders. If the thread cannot be started, no file is read.
    #[must_use]
    pub fn new(folders: SourceFolders) -> Self {
        let (queue, requests) = sync_channel(MAX_QUEUED);
        let (answer, answers) = sync_channel(MAX_QUEUED);
        let started = std::thread::Builder::new()
            .name("ddp-doctor-sources".into())
            .spawn(move || serve(&folders, &requests, &answer));
        Self { queue: started.is_ok().then_some(queue), answers, unanswered: 0, unread: Vec::new() }
    }

    /// Whether a site may have guards.
    #[must_use]
    pub fn may_have_guards(site: &v1::SiteDefined) -> bool {
        site.line > 0 && !site.library && site.file.ends_with(".py")
    }

    /// Requests the guards of a site. Every site that may have guards is answered.
    pub fn request(&mut self, site: v1::SiteDefined) {
        if !Self::may_have_guards(&site) {
            return;
        }
        let Some(queue) = &self.queue else {
            return self.unread.push(site);
        };
        match queue.try_send(site) {
            Ok(()) => self.unanswered += 1,
            // A site that cannot be queued is answered without guards.
            Err(TrySendError::Full(site)) => self.unread.push(site),
            Err(TrySendError::Disconnected(site)) => {
                self.queue = None;
                self.unread.push(site);
            }
        }
    }

    /// Returns the sites answered since the last call, with their guards.
    pub fn take_answers(&mut self) -> Vec<Kind> {
        let answers: Vec<v1::SiteDefined> = self.answers.try_iter().collect();
        self.events_from(answers)
    }

    /// Like [`Self::take_answers`], after waiting briefly for the files that are being read.
    pub fn last_answers(&mut self) -> Vec<Kind> {
        let deadline = std::time::Instant::now() + MAX_LAST_READ;
        let mut answers = Vec::new();
        while answers.len() < self.unanswered {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(answer) => answers.push(answer),
                Err(_) => break,
            }
        }
        self.events_from(answers)
    }

    fn events_from(&mut self, answers: Vec<v1::SiteDefined>) -> Vec<Kind> {
        self.unanswered = self.unanswered.saturating_sub(answers.len());
        let unread = self.unread.drain(..);
        unread.chain(answers).map(Kind::SiteDefined).collect()
    }
}

/// Answers requests until the channel is closed.
fn serve(
    folders: &SourceFolders,
    requests: &Receiver<v1::SiteDefined>,
    answer: &SyncSender<v1::SiteDefined>,
) {
    let mut files: HashMap<String, Option<Source>> = HashMap::new();
    let mut order: VecDeque<String> = VecDeque::new();
    for mut site in requests {
        if !files.contains_key(&site.file) {
            if files.len() >= MAX_FILES
                && let Some(oldest) = order.pop_front()
            {
                files.remove(&oldest);
            }
            let source = folders.read(&site.file).map(|text| Source::parse(&text));
            files.insert(site.file.clone(), source);
            order.push_back(site.file.clone());
        }
        let source = files.get(&site.file).and_then(Option::as_ref);
        site.guards = source
            .map(|source| source.guards(site.line))
            .unwrap_or_default()
            .into_iter()
            .map(|guard| v1::Guard {
                line: guard.line,
                test: guard.test,
                subject: i32::from(guard.subject.number()),
                form: i32::from(guard.form.number()),
                other_first: guard.other.map(|it| it.first),
                other_last: guard.other.map(|it| it.last),
                is_called_there: guard.other.is_some_and(|it| it.makes_call),
                is_while: guard.is_while,
            })
            .collect();
        if answer.send(site).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(file: &str, line: u32) -> v1::SiteDefined {
        v1::SiteDefined { process: 1, id: 1, file: file.into(), line, ..Default::default() }
    }

    #[test]
    fn site_is_answered_with_its_guards() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("train.py");
        fs::write(&file, "if rank == 0:\n    dist.barrier()\n").unwrap();
        let name = file.to_str().unwrap();
        let mut sources = Sources::new(SourceFolders::of_program(&[dir.path().to_owned()]));
        for (file, line) in [(name, 2), (name, 1), ("/dev/zero", 1), ("none.py", 3)] {
            sources.request(site(file, line));
        }
        let answers: Vec<v1::SiteDefined> = std::iter::repeat_with(|| sources.last_answers())
            .take(50)
            .flatten()
            .map(|kind| match kind {
                Kind::SiteDefined(site) => site,
                kind => panic!("{kind:?}"),
            })
            .take(3)
            .collect();
        let found: Vec<(u32, usize)> =
            answers.iter().map(|site| (site.line, site.guards.len())).collect();
        assert_eq!(
            found,
            [(2, 1), (1, 0), (3, 0)],
            "a file that cannot be read is answered without guards"
        );
        assert_eq!(answers[0].guards[0].test, "rank == 0");
    }

    #[test]
    fn site_without_a_reader_has_no_guards() {
        let mut sources = Sources::new(SourceFolders::default());
        sources.queue = None;
        sources.request(site("train.py", 7));
        sources.request(site("train.cpp", 7));
        let take_answers = sources.take_answers();
        assert!(matches!(&take_answers[..], [Kind::SiteDefined(site)] if site.guards.is_empty()));
        assert!(sources.take_answers().is_empty());
    }
}
