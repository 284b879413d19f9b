//! `ddp-doctor attach --follow`, and `attach` on several hosts: both diagnose by a coordinator.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use ddp_doctor_proto::report::{Effect, Job, Report, Timestamp};
use ddp_doctor_proto::viewer::Update;

use super::attach::{folder, verdict};
use crate::attach::connection::{self, Connection};
use crate::attach::find::RankedJob;
use crate::attach::rounds::Rounds;
use crate::attach::{self, Attached, Options};
use crate::cli::options::{Access, Global, stdout_is_terminal};
use crate::diagnosis::timing::TimeScale;
use crate::host::files::Dir;
use crate::host::log::UserLog;
use crate::host::sys;
use crate::node::launch::coordinator::Chosen;
use crate::node::launch::rendezvous::Rendezvous;
use crate::node::launch::rundir::RunDir;
use crate::node::live::{Live, ReportFile};
use crate::node::timing::Timing;
use crate::report::json::Assembler;
use crate::transport::Credentials;

/// Time between rounds.
const EVERY: Duration = Duration::from_secs(5);
/// Time limit for the rounds of the other hosts: launchers do not start everywhere at once.
const MAX_GATHER: Duration = Duration::from_secs(10);

/// How a job is followed.
pub(super) struct Follow<'a> {
    pub(super) options: Options,
    pub(super) coordinator: Option<&'a str>,
    pub(super) run_dir: Option<PathBuf>,
    pub(super) report: Option<PathBuf>,
    pub(super) global: &'a Global,
    pub(super) access: &'a Access,
}

/// A message to the thread that prints.
enum Message {
    Update(Box<Update>),
    Print(String),
    Interrupted,
}

impl Follow<'_> {
    /// Diagnoses a job until it ends or Ctrl-C is pressed; returns the last report.
    pub(super) fn run(self, job: RankedJob) -> anyhow::Result<Report> {
        sys::block_interrupts();
        let (sender, messages) = channel();
        let interrupted = sender.clone();
        std::thread::spawn(move || {
            sys::wait_for_interrupt();
            interrupted.send(Message::Interrupted).ok();
        });
        let chosen = self.chosen(&job);
        let notices = chosen.notices.clone();
        let address = chosen.remote_address.clone().or(chosen.address.clone());
        let local_address = chosen.address.clone();
        let mut rounds = Rounds::new(job, self.options);
        let first = rounds.read().context("all ranks have ended")?;
        let requested = self.run_dir.clone().unwrap_or_else(|| folder(&first));
        let RunDir { dir: directory, notices: of_directory } = attach::run_dir(&first, requested)?;
        attach::write(&first, &directory)?;
        attach::describe(&first, &directory, local_address.as_deref())?;
        let mut screen = self.screen(&first, &directory);
        notices
            .iter()
            .chain(&of_directory)
            .chain(&first.notes)
            .for_each(|line| screen.live.print_line(line));
        screen.live.announce(&format!(
            "watching job {}, {} ranks on this host · coordinator {} · {}",
            first.job.evidence_name(),
            first.job.ranks.len(),
            address.as_deref().unwrap_or("nowhere"),
            directory.path().display()
        ));
        let id = first.job.evidence_name();
        let connection = self.connect(chosen, &id, &sender)?;
        connection.send(first.reports.clone());
        screen.mention_dumps(&first);
        let is_interrupted = screen.begin(&first, &messages);
        if !is_interrupted
            && self.follow(&mut rounds, first, &connection, &mut screen, &messages)?
        {
            screen.live.announce("all ranks have ended");
        }
        connection.end();
        while let Ok(message) = messages.try_recv() {
            screen.handle(message);
        }
        Ok(screen.live.finish())
    }

    /// Reads the ranks until they have ended, which returns true, or until Ctrl-C.
    fn follow(
        &self,
        rounds: &mut Rounds,
        first: Attached,
        connection: &Connection,
        screen: &mut Screen,
        messages: &Receiver<Message>,
    ) -> anyhow::Result<bool> {
        let mut earlier = first;
        loop {
            let next = Instant::now() + self.options.time_scale.scale(EVERY);
            let is_interrupted = screen.wait(messages, next);
            screen.keep(&earlier)?;
            if is_interrupted {
                return Ok(false);
            }
            let Some(read) = rounds.read() else { return Ok(true) };
            let changes = read.changes_since(&earlier);
            changes.iter().for_each(|line| screen.live.print_line(line));
            screen.mention_dumps(&read);
            connection.send(read.reports.clone());
            earlier = read;
        }
    }

    /// The report on all hosts of a job, of which this one has sent its round.
    pub(super) fn gather(&self, attached: &Attached) -> anyhow::Result<(Report, Vec<String>)> {
        let chosen = self.chosen(&attached.job);
        let mut notices = chosen.notices.clone();
        let (sender, messages) = channel();
        let connection = self.connect(chosen, &attached.job.evidence_name(), &sender)?;
        connection.send(attached.round());
        let until = Instant::now() + MAX_GATHER;
        let mut assembler = Assembler::new(job(attached));
        let mut handle = |message: Message| match message {
            Message::Update(update) => drop(assembler.apply(*update)),
            Message::Print(line) => notices.push(line),
            Message::Interrupted => {}
        };
        let mut is_complete = false;
        while !is_complete && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(message) = messages.recv_timeout(left) else { break };
            if let Message::Update(update) = &message {
                let evidence = &update.evidence;
                is_complete =
                    evidence.ranks_expected.is_some_and(|all| evidence.ranks_reporting >= all);
            }
            handle(message);
        }
        connection.end();
        messages.try_iter().for_each(handle);
        Ok((assembler.report(), notices))
    }

    fn chosen(&self, job: &RankedJob) -> Chosen {
        let rendezvous = meeting_point(job, sys::user_id());
        let credentials = Credentials { can_ask: false, ..self.access.credentials() };
        Chosen::new(self.coordinator, rendezvous.as_ref(), &credentials)
    }

    fn connect(
        &self,
        chosen: Chosen,
        job: &str,
        sender: &Sender<Message>,
    ) -> io::Result<Connection> {
        let (printed, updates) = (sender.clone(), sender.clone());
        let log = UserLog::new(move |line| drop(printed.send(Message::Print(line.to_owned()))));
        let take = move |update| updates.send(Message::Update(Box::new(update))).is_ok();
        let timing = Timing::default().scaled(self.options.time_scale);
        Connection::start(chosen, job, timing, log, take)
    }

    fn screen(&self, first: &Attached, directory: &Dir) -> Screen {
        let mut files: Vec<ReportFile> =
            self.report.clone().map(ReportFile::from).into_iter().collect();
        files.push(ReportFile::of_run(directory));
        let out = Box::new(io::stdout());
        let style = self.global.style(stdout_is_terminal());
        let live = Live::new(out, style, self.global.verbosity(), job(first), files);
        Screen {
            live: live.with_sources(first.sources()),
            directory: directory.clone(),
            was_blocked: false,
            has_mentioned_dumps: false,
            scale: self.options.time_scale,
        }
    }
}

fn job(attached: &Attached) -> Job {
    Job {
        id: attached.job.evidence_name(),
        nodes: 1,
        started_at: Some(Timestamp::now()),
        ..Job::default()
    }
}

/// What is printed and kept.
struct Screen {
    live: Live,
    directory: Dir,
    /// Whether the journal has a round in which something was blocked.
    was_blocked: bool,
    /// Whether it was printed that Flight Recorders are not asked.
    has_mentioned_dumps: bool,
    scale: TimeScale,
}

impl Screen {
    /// Prints what the first round shows: its findings, or where the ranks are. Returns true after Ctrl-C.
    fn begin(&mut self, first: &Attached, messages: &Receiver<Message>) -> bool {
        let until = Instant::now() + self.scale.scale(EVERY).min(Duration::from_secs(1));
        let is_interrupted = self.wait(messages, until);
        if !self.is_blocked() {
            let report = self.live.report();
            self.live.announce(&verdict(first, Some(&report)));
            first.lines(Some(&report)).iter().for_each(|line| self.live.announce(line));
        }
        is_interrupted
    }

    /// Prints once, in the first round whose stacks leave open why ranks are stuck, that Flight Recorders could show it.
    fn mention_dumps(&mut self, round: &Attached) {
        if !self.has_mentioned_dumps && round.may_request_dumps() {
            self.has_mentioned_dumps = true;
            self.live.print_line(
                "--follow does not query the Flight Recorder; run `ddp-doctor attach` without it",
            );
        }
    }

    /// Keeps a round in the journal, unless an earlier one shows something blocked and this one does not.
    fn keep(&mut self, round: &Attached) -> anyhow::Result<()> {
        let is_blocked = self.is_blocked();
        if is_blocked || !self.was_blocked {
            attach::write(round, &self.directory)?;
        }
        self.was_blocked |= is_blocked;
        Ok(())
    }

    /// Handles messages until a time; returns true after Ctrl-C.
    fn wait(&mut self, messages: &Receiver<Message>, until: Instant) -> bool {
        loop {
            let now = Instant::now();
            if self.live.due().is_some_and(|due| due <= now) {
                self.live.print();
            }
            if now >= until {
                return false;
            }
            let next = self.live.due().map_or(until, |due| due.min(until));
            match messages.recv_timeout(next.saturating_duration_since(now)) {
                Ok(Message::Interrupted) => return true,
                Ok(message) => self.handle(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Update(update) => self.live.apply(*update, Instant::now()),
            Message::Print(line) => self.live.print_line(&line),
            Message::Interrupted => {}
        }
    }

    fn is_blocked(&self) -> bool {
        let mut findings = self.live.findings().iter();
        findings.any(|it| it.effect != Effect::None)
    }
}

/// Where the hosts of a job of this user find a coordinator; `None` for a job on one host. The variables of another
/// user's job choose no host that this process connects to, and no port at which it listens.
fn meeting_point(job: &RankedJob, user: u32) -> Option<Rendezvous> {
    let is_spread = !job.is_local() && !job.elsewhere().is_empty();
    let first = job.ranks.first().filter(|_| is_spread && job.user == user);
    first.and_then(connection::rendezvous)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::find::RankProcess;

    #[test]
    fn job_of_another_user_chooses_no_host() {
        let variables = ["MASTER_ADDR=198.51.100.2", "MASTER_PORT=29500"];
        let rank = RankProcess {
            rank: 1,
            world_size: Some(4),
            local_world_size: Some(1),
            environment: variables.into_iter().collect(),
            ..RankProcess::default()
        };
        let job =
            RankedJob { id: "job".into(), user: 7, ranks: vec![rank], ..RankedJob::default() };
        assert!(meeting_point(&job, 7).is_some());
        assert!(meeting_point(&job, 0).is_none());
    }
}
