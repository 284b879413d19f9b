//! `ddp-doctor attach`

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use ddp_doctor_proto::report::Effect;

use crate::attach::find::{self, RankedJob};
use crate::attach::{self, Attached, Options};
use crate::cli::exit_status::FailOn;
use crate::cli::files::{Format, print_remarks, status};
use crate::cli::options::Global;
use crate::cli::output::output;
use crate::diagnosis::timing::TimeScale;
use crate::host::files::Dir;
use crate::node::follow::names;
use crate::postmortem::{self, Analysis};
use crate::private;
use crate::report::json;
use crate::report::text::plain;
use crate::source_files::SourceFolders;

/// Diagnose a job that hangs now and was started without ddp-doctor.
///
/// Finds the ranks on this host, reads their stacks from outside, and prints one report. No rank is stopped, gets a
/// signal, or runs code of ddp-doctor. Stacks prove nothing: findings are supported at most.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 no finding at or above --fail-on, 1 findings at or above --fail-on, 2 usage \
                  error, 3 no rank found or none can be read, 4 insufficient evidence for a verdict."
)]
pub(in super::super) struct Attach {
    /// Processes of the job: one is enough [default: the only job on this host]
    #[arg(value_name = "PID")]
    pids: Vec<u32>,
    /// Read the job with this id; without it there must be one job on this host
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
    /// Keep the evidence in DIR, for `analyze` and `watch` [default: keep nothing]
    #[arg(long, value_name = "DIR", env = "DDP_DOCTOR_RUN_DIR")]
    run_dir: Option<PathBuf>,
    /// Exit with status 1 if a finding has at least this severity
    #[arg(long, value_name = "SEVERITY", default_value = "error", env = "DDP_DOCTOR_FAIL_ON")]
    fail_on: FailOn,
    /// Factor for all durations (for tests)
    #[arg(long, hide = true, default_value = "1", env = "DDP_DOCTOR_TIME_SCALE")]
    time_scale: TimeScale,
}

impl Attach {
    pub(in super::super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let jobs = self.jobs()?;
        let options = Options { time_scale: self.time_scale };
        let several = jobs.len() > 1;
        let mut analysis = Analysis::default();
        let mut read = Vec::new();
        for job in jobs {
            let attached = attach::read(job, &options);
            let directory = self.run_dir.as_ref().map(|directory| {
                if several {
                    directory.join(names::file_name(&attached.job.id))
                } else {
                    directory.clone()
                }
            });
            let found = analyze(&attached, directory)?;
            analysis.reports.extend(found.reports);
            analysis.timelines.extend(found.timelines);
            analysis.remarks.extend(found.remarks);
            read.push(attached);
        }
        print_remarks(&analysis.remarks, global.quiet);
        if let Some(file) = &self.report {
            for report in &analysis.reports {
                json::write(report, file).context("the report cannot be written")?;
            }
        }
        let folders: Vec<PathBuf> = read.iter().flat_map(Attached::source_folders).collect();
        self.format.print(&analysis, &SourceFolders::of_program(&folders), global)?;
        if matches!(self.format, Format::Text) && global.quiet == 0 {
            print_whereabouts(&read, &analysis)?;
        }
        Ok(status(&analysis, self.fail_on))
    }

    /// The jobs to read.
    fn jobs(&self) -> anyhow::Result<Vec<RankedJob>> {
        let mut jobs = find::jobs(&self.pids);
        if let Some(id) = &self.job {
            jobs.retain(|job| job.id == *id);
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
            jobs => {
                let ids: Vec<String> =
                    jobs.iter().map(|it| format!("{} ({} ranks)", it.id, it.ranks.len())).collect();
                bail!(
                    "several jobs run on this host: {}. Choose one by --job ID, or read --all",
                    ids.join(", ")
                )
            }
        }
        Ok(jobs)
    }
}

/// Prints where the ranks are of jobs in which nothing blocks.
fn print_whereabouts(read: &[Attached], analysis: &Analysis) -> io::Result<()> {
    let out = &mut output();
    for (attached, report) in read.iter().zip(&analysis.reports) {
        if report.findings.iter().any(|it| it.effect != Effect::None) {
            continue;
        }
        let verdict = if attached.moves() {
            "not hanging: ranks move"
        } else {
            "no wait is long enough to be a hang"
        };
        writeln!(out, "\n{verdict}")?;
        for line in attached.lines() {
            writeln!(out, "    {}", plain(&line))?;
        }
    }
    out.flush()
}

/// Diagnoses what was read, and keeps it if there is a directory for it.
fn analyze(attached: &Attached, directory: Option<PathBuf>) -> anyhow::Result<Analysis> {
    if let Some(directory) = directory {
        let directory = attach::run_dir(attached, directory)?;
        attach::write(attached, &directory)?;
        let analysis = postmortem::analyze(&[directory.path().to_owned()]);
        if let Some(report) = analysis.reports.first() {
            json::write_in(report, &directory, "report.json".as_ref())
                .context("report.json cannot be written")?;
        }
        attach::describe(attached, &directory)?;
        return Ok(analysis);
    }
    let directory = Scratch::new()?;
    attach::write(attached, &directory.dir)?;
    Ok(postmortem::analyze(&[directory.dir.path().to_owned()]))
}

/// A directory that only this user may enter, and that is removed afterwards.
struct Scratch {
    parent: Dir,
    name: String,
    dir: Dir,
}

impl Scratch {
    fn new() -> io::Result<Self> {
        let parent = Dir::ensure_private(&private::user_dir(Path::new(private::SHARED_MEMORY)))?;
        let name = format!("attach-{}", std::process::id());
        let dir = parent.new_child(name.as_ref())?;
        Ok(Self { parent, name, dir })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = self.parent.remove_all(self.name.as_ref()) {
            // Nothing depends on it.
            writeln!(io::stderr(), "ddp-doctor: {} remains: {error}", self.dir.path().display())
                .ok();
        }
    }
}
