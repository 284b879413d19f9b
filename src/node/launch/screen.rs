//! The thread that prints findings for the user, and ends a job that hangs for too long.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ddp_doctor_host::files::Dir;
use ddp_doctor_host::processes;
use ddp_doctor_proto::report::{Report, Verdict};
use ddp_doctor_proto::v1;
use ddp_doctor_proto::viewer::Update;

use crate::follow::{self, Commander, Secured};
use crate::launch::fallback;
use crate::launch::job::KILLED_STATUS;
use crate::launch::kill::{self, HangTimer, KillAfter, TerminatedJob};
use crate::live::{Live, ReportFile};

/// Time from SIGTERM for the job to SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// Time limit for writing the evidence to the disk.
const MAX_SYNC: Duration = Duration::from_secs(10);
/// Time limit for the captures of stacks before a kill.
const MAX_CAPTURES: Duration = Duration::from_secs(10);
/// Interval of the question whether stacks are still being captured.
const CAPTURING_INTERVAL: Duration = Duration::from_millis(50);
/// Time from an interrupt of a job that hangs to the line on how to end it.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
/// What a user can do if an interrupt does not end a job that hangs.
const NOT_ENDED: &str = "the job has not ended: ranks inside a collective do not react to Ctrl-C · Ctrl-C again kills \
                         its processes";
/// Timeout while nothing is due.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// A message for the screen.
#[derive(Debug)]
pub enum Message {
    /// The diagnosis changed.
    Update(Box<Update>),
    /// A line for the user.
    Print(String),
    /// The user interrupted the job (Ctrl-C).
    Interrupted,
    /// The command has ended.
    CommandEnded,
    /// The diagnosis was not concluded.
    NotConcluded,
    /// The last message.
    Finish(End),
}

/// The end of the command.
#[derive(Debug, Default)]
pub struct End {
    /// Its exit status.
    pub status: i32,
    /// Path of the report.
    pub report: Option<PathBuf>,
    /// Whether the run directory is kept even if no rank was seen and nothing went wrong.
    pub keeps_all: bool,
}

/// Result of the screen.
#[derive(Debug, Default)]
pub struct Shown {
    /// The last diagnosis.
    pub report: Option<Report>,
    /// Whether the job was ended because it hung.
    pub killed: bool,
    /// Whether the run directory is worth keeping.
    pub is_kept: bool,
}

/// Prints findings, and ends a hanging job.
#[derive(Debug)]
pub struct Screen {
    live: Live,
    child: u32,
    timer: Option<HangTimer>,
    follower: Commander,
    /// A job that was asked to end, and the time when it is killed.
    terminated: Option<(TerminatedJob, Instant)>,
    killed: bool,
    /// Whether the user interrupted the job while it hung.
    interrupted: bool,
    /// When to print how to end a job that an interrupt has not ended.
    notice_due: Option<Instant>,
    /// Name of a directory for evidence that cannot be stored in the run directory.
    run_name: String,
    /// The report in such a directory.
    saved: Option<PathBuf>,
}

impl Screen {
    /// Creates a screen for the command with pid `child`. With `kill`, a hanging job is ended. If its
    /// evidence cannot be stored in the run directory, it is stored elsewhere under `run_name`.
    #[must_use]
    pub fn new(
        live: Live,
        child: u32,
        kill: Option<KillAfter>,
        follower: Commander,
        run_name: String,
    ) -> Self {
        Self {
            run_name,
            saved: None,
            live,
            child,
            timer: kill.map(HangTimer::new),
            follower,
            terminated: None,
            killed: false,
            interrupted: false,
            notice_due: None,
        }
    }

    /// Runs until [`Message::Finish`], or until the sender is dropped.
    #[must_use]
    pub fn run(mut self, messages: &Receiver<Message>) -> Shown {
        loop {
            match messages.recv_timeout(self.timeout()) {
                Ok(message) => {
                    if let Some(end) = self.handle(message) {
                        return self.finish(end);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return self.finish(End { keeps_all: true, ..End::default() });
                }
            }
            let now = Instant::now();
            if self.live.due().is_some_and(|due| due <= now) {
                self.live.print();
            }
            if self.kill_reason().is_some() {
                self.live.print();
                if let Some(end) = self.confirm(messages) {
                    return self.finish(end);
                }
                if self.kill_reason().is_none() {
                    continue;
                }
                let descendants = self.secure();
                // The wait may have ended meanwhile.
                while let Ok(message) = messages.try_recv() {
                    if let Some(end) = self.handle(message) {
                        return self.finish(end);
                    }
                }
                if let Some(reason) = self.kill_reason() {
                    self.end_job(descendants, reason);
                }
            }
            if self.terminated.as_ref().is_some_and(|(_, due)| *due <= now) {
                self.kill_terminated();
            }
            if self.notice_due.take_if(|due| *due <= now).is_some()
                && kill::hangs(self.live.findings())
            {
                self.live.print_line(NOT_ENDED);
            }
        }
    }

    /// Returns the contents of the last message.
    fn handle(&mut self, message: Message) -> Option<End> {
        match message {
            Message::Update(update) => {
                let now = Instant::now();
                self.live.apply(*update, now);
                if let Some(timer) = &mut self.timer {
                    timer.update(self.live.findings(), now);
                }
            }
            Message::Print(line) => self.live.print_line(&line),
            Message::Interrupted => self.interrupted(),
            Message::CommandEnded => self.command_ended(),
            Message::NotConcluded => self.live.mark_incomplete(),
            Message::Finish(end) => return Some(end),
        }
        None
    }

    /// The finding because of which the job has to be ended by now.
    fn kill_reason(&self) -> Option<v1::KillReason> {
        self.timer.as_ref()?.reason(Instant::now()).cloned()
    }

    /// Captures all stacks twice more before a job is ended for a supported finding: on a busy host, the
    /// captures that would show progress may be late. Ends early if the finding no longer holds. Returns
    /// the contents of the last message if it arrives meanwhile.
    fn confirm(&mut self, messages: &Receiver<Message>) -> Option<End> {
        let interval = self.timer.as_ref()?.confirmation_interval();
        let limit = Instant::now() + MAX_CAPTURES;
        for _ in 0..2 {
            let take = follow::Command::TakeStacks { processes: Vec::new(), on_request: false };
            let mut until =
                if self.follower.send(take) { limit } else { Instant::now() + interval };
            let mut is_capturing = true;
            while self.kill_reason().is_some() && !kill::is_proved(self.live.findings()) {
                let now = Instant::now();
                if is_capturing && !self.ask_whether_capturing() {
                    (is_capturing, until) = (false, now + interval);
                }
                if until <= now {
                    break;
                }
                match messages.recv_timeout(CAPTURING_INTERVAL.min(until - now)) {
                    Ok(message) => {
                        let last = self.handle(message);
                        if last.is_some() {
                            return last;
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return None,
                }
            }
        }
        None
    }

    /// Whether requested stacks are still being captured.
    fn ask_whether_capturing(&self) -> bool {
        let (answer, capturing) = channel();
        let asked = self.follower.send(follow::Command::IsCapturing { answer });
        asked && capturing.recv_timeout(MAX_SYNC).unwrap_or(false)
    }

    fn timeout(&self) -> Duration {
        let timer = self.timer.as_ref().and_then(HangTimer::due);
        let terminated = self.terminated.as_ref().map(|(_, due)| *due);
        let due = [self.live.due(), timer, terminated, self.notice_due].into_iter().flatten().min();
        due.map_or(IDLE_TIMEOUT, |due| due.saturating_duration_since(Instant::now()))
    }

    /// Sends SIGTERM to the command of a hanging job, unless its evidence could not be stored.
    fn end_job(&mut self, descendants: Option<Vec<(u32, u64)>>, reason: v1::KillReason) {
        self.timer = None;
        let Some(descendants) = descendants else {
            self.live.print_line(
                "the job hangs but is not killed: its evidence could not be written to disk",
            );
            return;
        };
        if !processes::is_living_child(self.child) {
            return;
        }
        // The reaction of the ranks to the signal is not part of the diagnosis.
        let status = i32::from(KILLED_STATUS);
        let (done, closed) = channel();
        let asked = self.follower.send(follow::Command::Close { status, reason, done });
        if !asked
            || closed.recv_timeout(MAX_SYNC).is_err()
            || processes::signal_child(self.child, libc::SIGTERM).is_err()
        {
            return;
        }
        self.killed = true;
        self.live.print_line("the job hangs: killing it (--on-hang kill)");
        self.terminated =
            Some((TerminatedJob::new(self.child, descendants), Instant::now() + TERM_GRACE));
    }

    /// Stores the evidence; returns the processes of the job, or `None` if it must not be ended. Evidence of a
    /// proved hang that cannot be stored anywhere is printed.
    fn secure(&mut self) -> Option<Vec<(u32, u64)>> {
        let secured = self.request_secured(None)?;
        if secured.on_disk {
            return Some(secured.descendants);
        }
        if let Ok(dir) = fallback::make(&self.run_name)
            && self.request_secured(Some(dir.clone())).is_some_and(|it| it.on_disk)
        {
            self.live.print_line(&format!(
                "the run directory cannot be written: black boxes and report are in {}",
                dir.path().display()
            ));
            self.live.add_file(ReportFile::of_run(&dir));
            self.saved = Some(dir.path().join("report.json"));
            return Some(secured.descendants);
        }
        if !kill::is_proved(self.live.findings()) {
            return None;
        }
        self.live.print_line("the evidence cannot be written to disk: this is the whole report");
        self.live.print_report();
        Some(secured.descendants)
    }

    /// Kills the processes of a job that hangs when the user interrupts it for the second time: its ranks cannot
    /// handle a signal before their collective returns.
    fn interrupted(&mut self) {
        if !kill::hangs(self.live.findings()) {
            return;
        }
        if !std::mem::replace(&mut self.interrupted, true) {
            self.notice_due = Some(Instant::now() + INTERRUPT_GRACE);
            return;
        }
        if processes::is_living_child(self.child) {
            // Its launcher may end while the evidence is stored.
            let job = TerminatedJob::new(self.child, Vec::new());
            self.secure();
            job.kill();
        }
    }

    fn request_secured(&self, into: Option<Dir>) -> Option<Secured> {
        let (answer, secured) = channel();
        let asked = self.follower.send(follow::Command::Secure { into, answer });
        asked.then(|| secured.recv_timeout(MAX_SYNC).ok()).flatten()
    }

    fn kill_terminated(&mut self) {
        if let Some((terminated, _)) = self.terminated.take() {
            terminated.kill();
        }
    }

    /// Kills processes that were asked to end and outlive their launcher, after the grace period.
    fn command_ended(&mut self) {
        self.timer = None;
        if let Some((terminated, due)) = &self.terminated {
            while terminated.is_alive() && Instant::now() < *due {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.kill_terminated();
    }

    fn finish(mut self, end: End) -> Shown {
        let End { status, report, keeps_all } = end;
        let last = self.live.finish();
        // Such as a command that trains nothing.
        let is_empty = last.ranks.is_empty() && status == 0 && !self.killed;
        let is_kept = keeps_all || !is_empty;
        let concluded = conclusion(status, self.killed, last.verdict);
        let place = match self.saved.clone().or(report) {
            Some(_) if !is_kept => String::new(),
            Some(path) if self.live.is_written(&path) => format!(" · {}", path.display()),
            Some(_) => " · the last report could not be written".to_owned(),
            None => String::new(),
        };
        self.live.announce(&format!("{concluded}{place}"));
        Shown { report: Some(last), killed: self.killed, is_kept }
    }
}

/// How the job ended, and the verdict. One that failed, or was ended from outside, is healthy up to then at most.
fn conclusion(status: i32, is_killed: bool, verdict: Verdict) -> String {
    let ended = match status {
        _ if is_killed => "the job was killed by --on-hang kill".to_owned(),
        0 => "the job has ended".to_owned(),
        128.. => format!("the job was terminated by signal {}", status - 128),
        _ => format!("the job exited with status {status}"),
    };
    let until = if status != 0 && verdict == Verdict::Healthy { " until then" } else { "" };
    format!("{ended} · verdict: {verdict}{until}")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::sync::mpsc::{Sender, TryRecvError};
    use std::thread;

    use ddp_doctor_proto::report::{Confidence, Effect, Finding, Job, Severity};

    use super::*;
    use crate::live::Verbosity;
    use ddp_doctor_report::text::Style;

    #[test]
    fn job_that_was_ended_is_healthy_until_then() {
        let concluded = |status| conclusion(status, false, Verdict::Healthy);
        assert_eq!(concluded(0), "the job has ended · verdict: healthy");
        assert_eq!(
            concluded(143),
            "the job was terminated by signal 15 · verdict: healthy until then"
        );
        let hang = conclusion(1, false, Verdict::Hang);
        assert_eq!(hang, "the job exited with status 1 · verdict: hang");
    }

    fn update(findings: Vec<Finding>) -> Message {
        Message::Update(Box::new(Update { findings: Some(findings), ..Update::default() }))
    }

    fn hang() -> Finding {
        let (severity, effect) = (Severity::Error, Effect::Blocks);
        let confidence = Confidence::Supported;
        Finding { code: "DD204".into(), severity, effect, confidence, ..Finding::default() }
    }

    /// Captures slowly; the finding is withdrawn for what the last of two captures shows if `moves`.
    fn follow(commands: follow::Commands, screen: &Sender<Message>, moves: bool) -> usize {
        let (mut captures, mut busy) = (0, 0);
        loop {
            match commands.next() {
                Ok(follow::Command::TakeStacks { .. }) => (captures, busy) = (captures + 1, 3),
                Ok(follow::Command::IsCapturing { answer }) => {
                    answer.send(busy > 0).unwrap();
                    busy = usize::saturating_sub(busy, 1);
                    if busy == 0 && captures == 2 && moves {
                        screen.send(update(Vec::new())).unwrap();
                    }
                }
                Ok(follow::Command::Secure { answer, .. }) => {
                    answer.send(Secured { on_disk: true, descendants: Vec::new() }).unwrap();
                }
                Ok(follow::Command::Close { done, .. }) => done.send(()).unwrap(),
                Ok(_) | Err(TryRecvError::Empty) => thread::sleep(Duration::from_millis(5)),
                Err(TryRecvError::Disconnected) => return captures,
            }
        }
    }

    /// Whether a job that ignores interrupts is killed by this number of them.
    fn do_interrupts_kill(number: usize, findings: Vec<Finding>) -> bool {
        let mut child =
            Command::new("sh").args(["-c", "trap '' INT; exec sleep 60"]).spawn().unwrap();
        let (follower, commands) = Commander::new();
        let (messages, inbox) = channel();
        let (out, style) = (Box::new(io::sink()), Style::default());
        let live = Live::new(out, style, Verbosity::default(), Job::default(), Vec::new());
        let screen = Screen::new(live, child.id(), None, follower, "run".into());
        let to_screen = messages.clone();
        let follower = thread::spawn(move || follow(commands, &to_screen, false));
        let shown = thread::spawn(move || screen.run(&inbox));
        messages.send(update(findings)).unwrap();
        for _ in 0..number {
            messages.send(Message::Interrupted).unwrap();
        }
        messages.send(Message::Finish(End::default())).unwrap();
        drop(shown.join().unwrap());
        // A job that was not killed ends by this signal instead.
        processes::signal_child(child.id(), libc::SIGTERM).unwrap();
        let ended = child.wait().unwrap();
        follower.join().unwrap();
        ended.signal() == Some(libc::SIGKILL)
    }

    #[test]
    fn second_interrupt_kills_a_job_only_if_it_hangs() {
        assert!(do_interrupts_kill(2, vec![hang()]));
        assert!(!do_interrupts_kill(1, vec![hang()]), "the first is left to the launcher");
        assert!(!do_interrupts_kill(2, Vec::new()));
    }

    /// Whether a job with a supported finding is killed, and the number of captures before.
    fn runs_until_killed(moves: bool) -> (bool, usize) {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (follower, commands) = Commander::new();
        let (messages, inbox) = channel();
        let live = Live::new(
            Box::new(io::sink()),
            Style::default(),
            Verbosity::default(),
            Job::default(),
            Vec::new(),
        );
        let interval = Duration::from_millis(200);
        let kill_after = KillAfter {
            proved: Duration::ZERO,
            supported: Duration::from_millis(1),
            confirmation_interval: interval,
        };
        let screen = Screen::new(live, child.id(), Some(kill_after), follower, "run".into());
        let to_screen = messages.clone();
        let follower = thread::spawn(move || follow(commands, &to_screen, moves));
        let shown = thread::spawn(move || screen.run(&inbox));
        messages.send(update(vec![hang()])).unwrap();
        thread::sleep(interval * 10);
        messages.send(Message::Finish(End::default())).unwrap();
        let killed = shown.join().unwrap().killed;
        child.kill().unwrap();
        child.wait().unwrap();
        (killed, follower.join().unwrap())
    }

    #[test]
    fn kill_waits_for_captures_and_is_called_off_by_them() {
        assert_eq!(runs_until_killed(true), (false, 2));
        assert_eq!(runs_until_killed(false), (true, 2));
    }
}
