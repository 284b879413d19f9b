//! `ddp-doctor attach`

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, bail};
use clap::Args;
use ddp_doctor_proto::report::{Effect, Report, Timestamp, Verdict};

use super::attach_follow::Follow;
use crate::attach::find::{self, RankedJob};
use crate::attach::rounds::Rounds;
use crate::attach::{self, Attached, Options, outside};
use crate::cli::evidence_files::{Format, print_remarks, status};
use crate::cli::exit_status::FailOn;
use crate::cli::options::{Access, Global, values};
use crate::cli::output::{output, say};
use crate::diagnosis::timing::TimeScale;
use crate::diagnosis::words::{self, Ranks};
use crate::evidence::journal;
use crate::evidence::values::cut;
use crate::host::boxes;
use crate::host::files::Dir;
use crate::host::names;
use crate::host::private;
use crate::host::proc;
use crate::host::source_files::SourceFolders;
use crate::host::sys;
use crate::host::users;
use crate::node::live::ReportFile;
use crate::postmortem::{self, Analysis};
use crate::report::json;
use crate::report::text::plain;
use crate::transport::Credentials;

/// Maximum number of jobs that a message names.
const MAX_LISTED: usize = 8;
/// Maximum number of jobs that are read at once.
const MAX_AT_ONCE: usize = 16;
/// Maximum length of the id of a job in a message, in bytes.
const MAX_ID: usize = 96;

/// Diagnose a job that hangs now and was started without ddp-doctor.
///
/// Finds the ranks on this host, reads their stacks from outside, and prints one report. No rank is stopped, gets a
/// signal, or runs code of ddp-doctor. Stacks prove nothing: findings are at most likely.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 no finding at or above --fail-on, 1 findings at or above --fail-on, 2 usage \
                  error, 3 no rank found, 4 insufficient evidence for a verdict, as when ranks cannot be read."
)]
pub(in super::super) struct Attach {
    /// Processes of the job; one is enough [default: the only job on this host]
    #[arg(value_name = "PID", value_parser = values::process_id)]
    pids: Vec<u32>,
    /// Read the job with this id [default: the only job on this host]
    #[arg(long, value_name = "ID", env = "DDP_DOCTOR_JOB")]
    job: Option<String>,
    /// Read every job on this host
    #[arg(long, conflicts_with_all = ["job", "report"], env = "DDP_DOCTOR_ALL")]
    all: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "DDP_DOCTOR_FORMAT")]
    format: Format,
    /// Also write the report to FILE, as JSON
    #[arg(long, value_name = "FILE", env = "DDP_DOCTOR_REPORT")]
    report: Option<PathBuf>,
    /// Keep the evidence in DIR, for `analyze` and `watch`
    ///
    /// By default, it is kept (in ddp-doctor-runs) only with --follow or if ranks are on other hosts.
    #[arg(long, value_name = "DIR", env = "DDP_DOCTOR_RUN_DIR")]
    run_dir: Option<PathBuf>,
    /// Keep watching until the job ends or Ctrl-C: reports new stalls, ranks that move again, and ranks that end
    ///
    /// `ddp-doctor watch` shows the job meanwhile. The exit status is that of the last report.
    #[arg(long, conflicts_with_all = ["all", "format"], env = "DDP_DOCTOR_FOLLOW")]
    follow: bool,
    /// Diagnose the job through this coordinator, together with the ranks on other hosts
    ///
    /// Without it, and with a token, all hosts of a job share the coordinator on the host with the lowest rank.
    #[arg(long, value_name = "HOST:PORT", env = "DDP_DOCTOR_COORDINATOR")]
    coordinator: Option<String>,
    /// Exit with status 1 if a finding has at least this severity
    #[arg(long, value_name = "SEVERITY", default_value = "error", env = "DDP_DOCTOR_FAIL_ON")]
    fail_on: FailOn,
    /// Factor for all durations (for tests)
    #[arg(long, hide = true, default_value = "1", env = "DDP_DOCTOR_TIME_SCALE")]
    time_scale: TimeScale,
    #[command(flatten)]
    access: Access,
}

impl Attach {
    pub(in super::super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        if is_further_task(|name| env::var(name).ok()) {
            return Ok(0);
        }
        let jobs = self.jobs();
        print_silent(global);
        let mut jobs = jobs?;
        if self.follow {
            let job = jobs.swap_remove(0);
            let report = self.following(global).run(job)?;
            return Ok(self.fail_on.status(&report));
        }
        // Opened before the ranks are read: meanwhile another user may put another directory in its place.
        let mut report_file = self.report.clone().map(ReportFile::from);
        let several = jobs.len() > 1;
        let ids: Vec<String> = jobs.iter().map(RankedJob::evidence_name).collect();
        let mut read = Vec::new();
        for attached in read_all(jobs, self.options()) {
            match attached {
                Some(attached) => read.push(self.diagnose(attached, &ids, global)?),
                None if several => {}
                None => bail!("all ranks have ended"),
            }
        }
        if let Some(file) = &mut report_file {
            for report in read.iter().flat_map(|(_, found)| &found.reports) {
                file.write(report).context("the report cannot be written")?;
            }
        }
        let names_users = self.all || read.iter().any(|(it, _)| it.job.user != sys::user_id());
        let is_text = matches!(self.format, Format::Text);
        if is_text {
            for (attached, found) in &read {
                if names_users && global.quiet < 2 {
                    let mut out = output();
                    writeln!(out, "{}", plain(&owner(&attached.job)))?;
                    out.flush()?;
                }
                self.format.print(found, &sources_of(attached, found), global)?;
                if global.quiet == 0 {
                    print_whereabouts(attached, found, several || global.verbose > 0)?;
                }
                if global.verbose > 0 {
                    print_details(attached)?;
                }
            }
        } else if names_users {
            let lines: Vec<String> = read.iter().map(|(it, _)| owner(&it.job)).collect();
            print_lines(&lines, global);
        }
        let sources: Vec<SourceFolders> =
            read.iter().flat_map(|(it, found)| sources_of(it, found)).collect();
        let mut analysis = Analysis::default();
        for (_, found) in read {
            analysis.reports.extend(found.reports);
            analysis.timelines.extend(found.timelines);
        }
        if !is_text {
            self.format.print(&analysis, &sources, global)?;
        }
        Ok(status(&analysis, self.fail_on))
    }

    /// Diagnoses one of the jobs with these ids.
    fn diagnose(
        &self,
        mut attached: Attached,
        ids: &[String],
        global: &Global,
    ) -> anyhow::Result<(Attached, Analysis)> {
        print_lines(&attached.notes, global);
        let elsewhere = attached.elsewhere();
        let credentials = Credentials { can_ask: false, ..self.access.credentials() };
        // The variables of another user's job choose no host that this process connects to.
        let is_own = attached.job.user == sys::user_id();
        let is_gathered = is_own && !elsewhere.is_empty() && credentials.token().is_ok();
        let shares = is_gathered || self.coordinator.is_some();
        let requested = self.directory(&attached, ids, shares);
        let mut kept = requested.map(|it| keep(&attached, it, global)).transpose()?;
        let mut found = analyze(&attached, kept.as_ref())?;
        if attached.seems_stuck_on_devices() && !found.reports.iter().any(is_blocked) {
            print_lines(&attached.request_dumps(), global);
            if shares && kept.is_none() && !attached.dumps.is_empty() {
                kept = Some(keep(&attached, folder(&attached), global)?);
            }
            // Those of one host alone may show nothing. Otherwise only those that show what is wrong are kept.
            if shares || analyze(&attached, None)?.reports.iter().any(is_blocked) {
                found = analyze(&attached, kept.as_ref())?;
            } else {
                attached.dumps.clear();
            }
        }
        if shares {
            let (report, notices) = self.following(global).gather(&attached)?;
            print_lines(&notices, global);
            found.reports = vec![report];
        } else if let Some(directory) = kept.as_ref().filter(|_| !elsewhere.is_empty()) {
            print_lines(&[how_to_reach(&elsewhere, directory)], global);
        }
        print_remarks(&found.remarks, global.quiet);
        Ok((attached, found))
    }

    /// Where the evidence of one of the jobs with these ids is kept; `None`: nowhere. `shares`: hosts share its report.
    fn directory(&self, attached: &Attached, ids: &[String], shares: bool) -> Option<PathBuf> {
        let is_spread = !attached.elsewhere().is_empty();
        let Some(mut directory) = self.run_dir.clone() else {
            return (is_spread && !shares).then(|| folder(attached));
        };
        if ids.len() > 1 {
            directory.push(folder_name(&attached.job, ids));
        }
        // Hosts that share a report may share a file system as well.
        if is_spread && shares {
            directory.push(names::file_name(&sys::host_name()));
        }
        Some(directory)
    }

    const fn options(&self) -> Options {
        Options { time_scale: self.time_scale }
    }

    fn following<'a>(&'a self, global: &'a Global) -> Follow<'a> {
        Follow {
            options: self.options(),
            coordinator: self.coordinator.as_deref(),
            run_dir: self.run_dir.clone(),
            report: self.report.clone(),
            global,
            access: &self.access,
        }
    }

    /// The jobs to read.
    fn jobs(&self) -> anyhow::Result<Vec<RankedJob>> {
        let mut jobs = find::jobs(&self.pids);
        if let Some(id) = &self.job {
            jobs.retain(|job| job.id == *id || job.evidence_name() == *id);
            // Another user can give a job the same name.
            if jobs.iter().any(|job| job.user == sys::user_id()) {
                jobs.retain(|job| job.user == sys::user_id());
            }
        }
        let absent = self.pids.iter().find(|&&pid| proc::Stat::read(pid).is_err());
        if let ([], Some(pid)) = (&jobs[..], absent) {
            bail!("process {pid} does not exist");
        }
        match &jobs[..] {
            [] if !self.pids.is_empty() => bail!(
                "none of these processes is a rank that this user may read: a rank has loaded PyTorch or NCCL, and has \
                 RANK in its environment"
            ),
            [] => bail!(
                "no rank found on this host: no process of this user has loaded PyTorch or NCCL and has RANK in its \
                 environment. Name the processes (ddp-doctor attach PID…), run this where the ranks run (in their \
                 container), or as their user"
            ),
            [_] => {}
            _ if self.all => {}
            jobs => bail!(
                "several jobs run on this host: {}. Choose one with --job ID, or read all with --all",
                list(jobs, sys::user_id())
            ),
        }
        Ok(jobs)
    }
}

/// Names jobs, those of this user first. Another user may run any number of them, with ids of any length.
fn list(jobs: &[RankedJob], user: u32) -> String {
    let (own, others): (Vec<&RankedJob>, Vec<&RankedJob>) =
        jobs.iter().partition(|job| job.user == user);
    let name = |job: &&RankedJob| {
        let id = plain(cut(&job.id, MAX_ID));
        let owner =
            if job.user == user { String::new() } else { format!(", of user {}", job.user) };
        let count = job.ranks.len();
        format!("{id} ({count} {}{owner})", if count == 1 { "rank" } else { "ranks" })
    };
    let mut listed: Vec<String> = own.iter().chain(&others).take(MAX_LISTED).map(name).collect();
    if jobs.len() > MAX_LISTED {
        listed.push(format!("and {} more", jobs.len() - MAX_LISTED));
    }
    listed.join(", ")
}

/// Answer the questions of an `attach` of root about processes of other users
#[derive(Debug, Args)]
pub(in super::super) struct ReadProcesses {}

impl ReadProcesses {
    #[expect(clippy::unused_self, reason = "all commands are run in this way")]
    pub(in super::super) fn run(self) -> anyhow::Result<u8> {
        outside::answers::serve(io::stdin().lock(), io::stdout())?;
        Ok(0)
    }
}

/// What the user should know about processes that could not be read.
fn print_silent(global: &Global) {
    let silent = outside::silent();
    let Some(first) = silent.first() else { return };
    let count = silent.len();
    let (were, processes) = if count == 1 { ("was", "process") } else { ("were", "processes") };
    let line = format!(
        "{count} {processes} of other users could not be read in time and {were} left out, such as process {first}",
    );
    print_lines(&[line], global);
}

/// Whether something is wrong.
fn is_blocked(report: &Report) -> bool {
    report.findings.iter().any(|it| it.effect != Effect::None)
}

/// Prints where the ranks are of a job in which nothing blocks, or of which only dumps show what does. `is_one_of`: more
/// jobs are printed.
fn print_whereabouts(attached: &Attached, found: &Analysis, is_one_of: bool) -> io::Result<()> {
    let out = &mut output();
    let is_known = found.reports.iter().any(is_blocked);
    if !is_known || !attached.dumps.is_empty() {
        let is_healthy = found.reports.iter().all(|it| it.verdict == Verdict::Healthy);
        let report = found.reports.first();
        let title = if is_healthy { verdict(attached, report) } else { "by their stacks:".into() };
        writeln!(out, "\n{title}")?;
        for line in attached.lines(report) {
            writeln!(out, "    {}", plain(&line))?;
        }
    }
    if is_one_of {
        writeln!(out)?;
    }
    out.flush()
}

/// Prints the facts about each rank that a report has no field for.
fn print_details(attached: &Attached) -> io::Result<()> {
    let out = &mut output();
    for line in attached.details() {
        writeln!(out, "{}", plain(&line))?;
    }
    writeln!(out)?;
    out.flush()
}

/// Name of the folder of one of several jobs with these names in their evidence. A job can have that of a folder with
/// evidence, so that the folder of all jobs would be that of a run.
fn folder_name(job: &RankedJob, all: &[String]) -> String {
    let name = names::file_name(&job.evidence_name());
    let is_unique = all.iter().filter(|it| names::file_name(it) == name).count() == 1;
    let is_evidence = [boxes::KEPT, journal::LATER].contains(&&*name);
    if is_unique && !is_evidence { name } else { format!("{name}-of-user-{}", job.user) }
}

/// "job job-29500 of user 1000 (alice)"
fn owner(job: &RankedJob) -> String {
    let name = users::name(job.user).map_or_else(String::new, |it| format!(" ({it})"));
    format!("job {} of user {}{name}", cut(&job.id, MAX_ID), job.user)
}

/// Reads jobs, several at a time, since captures are some time apart. `None` for each whose ranks have all ended.
fn read_all(jobs: Vec<RankedJob>, options: Options) -> Vec<Option<Attached>> {
    let read = |job: &RankedJob| Rounds::new(job.clone(), options).read();
    let read_at_once = |jobs: &[RankedJob]| {
        thread::scope(|scope| {
            let threads: Vec<_> = jobs.iter().map(|job| scope.spawn(move || read(job))).collect();
            threads.into_iter().map(|it| it.join().unwrap_or_default()).collect::<Vec<_>>()
        })
    };
    jobs.chunks(MAX_AT_ONCE).flat_map(read_at_once).collect()
}

/// What is said of a job in which nothing blocks.
pub(super) fn verdict(attached: &Attached, report: Option<&Report>) -> String {
    if report.is_some_and(|it| attach::idle(it).next().is_some()) {
        "not hanging: idle between requests".into()
    } else if attached.moves() {
        let steps = attached.steps();
        let known = steps.first().zip(steps.last());
        let steps = known.map(|(first, last)| {
            if first == last {
                format!(", step {first}")
            } else {
                format!(", steps {first} to {last}")
            }
        });
        format!("not hanging: ranks move{}", steps.unwrap_or_default())
    } else {
        "no wait is long enough to be a hang".into()
    }
}

/// Whether a launcher has started this process as one of several on this host (`srun`, `mpirun`): the first one reads
/// all ranks.
fn is_further_task(variable: impl Fn(&str) -> Option<String>) -> bool {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let local = ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];
    local.into_iter().find_map(number).is_some_and(|it| it > 0)
}

/// The default run directory of a host.
pub(super) fn folder(attached: &Attached) -> PathBuf {
    let host = names::file_name(&sys::host_name());
    let job = names::file_name(&attached.job.evidence_name());
    Path::new(names::RUNS).join(names::run_dir(&format!("{job}-{host}"), Timestamp::now()))
}

/// How to get a report with the ranks of other hosts.
fn how_to_reach(elsewhere: &[u32], directory: &Dir) -> String {
    format!(
        "{} {} not on this host. For one report, run `ddp-doctor attach` on all hosts at once with the same \
         DDP_DOCTOR_TOKEN; or run it on each host, copy the directories ({} here) to one place, and run \
         `ddp-doctor analyze DIR…`",
        words::begin(Ranks(elsewhere)),
        words::number(elsewhere, "is", "are"),
        directory.path().display()
    )
}

fn print_lines(lines: &[String], global: &Global) {
    if global.quiet < 2 {
        lines.iter().for_each(say);
    }
}

/// The directory in which evidence is kept.
fn keep(attached: &Attached, requested: PathBuf, global: &Global) -> anyhow::Result<Dir> {
    let made = attach::run_dir(attached, requested)?;
    print_lines(&made.notices, global);
    Ok(made.dir)
}

/// Where the sources of each report on a job are read.
fn sources_of(attached: &Attached, found: &Analysis) -> Vec<SourceFolders> {
    vec![attached.sources(); found.reports.len()]
}

/// Diagnoses what was read, and keeps it if there is a directory for it. Others may be able to replace that directory:
/// the evidence is read from one that only this user may enter.
fn analyze(attached: &Attached, kept: Option<&Dir>) -> anyhow::Result<Analysis> {
    let scratch = Scratch::new()?;
    attach::write(attached, &scratch.dir)?;
    let analysis = postmortem::analyze(&[scratch.dir.path().to_owned()]);
    if let Some(directory) = kept {
        attach::write(attached, directory)?;
        if let Some(report) = analysis.reports.first() {
            json::write_in(report, directory, "report.json".as_ref())
                .context("report.json cannot be written")?;
        }
        attach::describe(attached, directory, None)?;
    }
    Ok(analysis)
}

/// A directory that only this user may enter, and that is removed afterwards.
struct Scratch {
    parent: Dir,
    dir: Dir,
}

impl Scratch {
    fn new() -> io::Result<Self> {
        let shared_memory = private::user_dir(Path::new(private::SHARED_MEMORY));
        let temporary = private::user_dir(&env::temp_dir());
        // Another user can have made the first two.
        let places = [Some(shared_memory), Some(temporary), private::cache()];
        let mut failed = io::ErrorKind::NotFound.into();
        for place in places.iter().flatten() {
            match Self::make_in(place) {
                Ok(made) => return Ok(made),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn make_in(place: &Path) -> io::Result<Self> {
        let parent = Dir::ensure_own(place)?;
        // It is read by its path.
        if parent.changeable_by_others()?.is_some() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let name = format!("attach-{}", std::process::id());
        let dir = parent.new_child(name.as_ref())?;
        Ok(Self { parent, dir })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = self.parent.remove_all(&self.dir) {
            // Nothing depends on it.
            say(format_args!("{} remains: {error}", self.dir.path().display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn evidence_is_not_read_where_another_user_can_exchange_it() {
        let shared = tempfile::tempdir().unwrap();
        let mode = |mode| fs::set_permissions(shared.path(), fs::Permissions::from_mode(mode));
        let place = shared.path().canonicalize().unwrap().join("place");
        mode(0o777).unwrap();
        assert!(Scratch::make_in(&place).is_err());
        mode(0o700).unwrap();
        drop(Scratch::make_in(&place).unwrap());
    }

    #[test]
    fn jobs_of_another_user_do_not_hide_the_own_one() {
        let job = |id: String, user| RankedJob { id, user, ..RankedJob::default() };
        let theirs = (0..600).map(|at| job(format!("{at}\n{}", "x".repeat(900)), 7));
        let jobs: Vec<RankedJob> = theirs.chain([job("own".into(), 3)]).collect();
        let listed = list(&jobs, 3);
        assert!(listed.starts_with("own (0 ranks), "), "{listed}");
        assert!(listed.ends_with(", and 593 more"), "{listed}");
        assert!(listed.len() < 8 * 200 && !listed.contains('\n'), "{listed}");
    }

    #[test]
    fn jobs_of_two_users_with_one_id_have_two_folders() {
        let job = |id: &str, user| RankedJob { id: id.into(), user, ..RankedJob::default() };
        let jobs = [job("a", 1), job("a", 2), job("b", sys::user_id())];
        let ids: Vec<String> = jobs.iter().map(RankedJob::evidence_name).collect();
        let folders = jobs.map(|it| folder_name(&it, &ids));
        assert_eq!(folders, ["a-of-user-1", "a-of-user-2", "b"]);
    }

    #[test]
    fn job_is_not_kept_in_a_folder_with_the_name_of_evidence() {
        let (own, other) = (sys::user_id(), sys::user_id() + 1);
        for id in ["boxes", "journal", "journal.ddpj", "run.json"] {
            let job = |user| RankedJob { id: id.into(), user, ..RankedJob::default() };
            let name = folder_name(&job(other), &[job(other).evidence_name(), "b".into()]);
            assert_eq!(name, format!("{id}-of-user-{other}"));
        }
        let job = |id: &str| RankedJob { id: id.into(), user: own, ..RankedJob::default() };
        assert_eq!(folder_name(&job("boxes"), &["boxes".into()]), format!("boxes-of-user-{own}"));
    }

    #[test]
    fn only_the_first_task_on_a_host_reads() {
        let with = |variables: &'static [(&str, &str)]| {
            is_further_task(|name| {
                let found = variables.iter().find(|(it, _)| *it == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(!with(&[]));
        assert!(!with(&[("SLURM_LOCALID", "0")]));
        assert!(with(&[("SLURM_LOCALID", "1")]));
        assert!(with(&[("OMPI_COMM_WORLD_LOCAL_RANK", "3"), ("SLURM_LOCALID", "0")]));
    }
}
