//! `ddp-doctor watch`

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use ddp_doctor_dashboard::sources::Sources;
use ddp_doctor_dashboard::{App, Depth, Input, Link, Theme, terminal};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::viewer::Update;

use super::target::{self, Target};
use super::{connection, feed, state};
use crate::cli::evidence_files::{nothing_in, print_remarks, with_progress};
use crate::cli::options::{self, Access, Global};
use crate::cli::output::output;
use crate::host::source_files::NOT_SHOWN;
use crate::postmortem;

/// Columns and lines of the page if standard output is not a terminal.
const PAGE: (u16, u16) = (120, 60);

/// Show a job in the terminal, live or replayed.
///
/// The first screen shows whether the job is healthy and, if it is not, the culprit and the cause. `?`
/// lists the keys.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 success, 2 usage error, 3 no such job, no answer from the coordinator, or no \
                  terminal."
)]
pub(in super::super) struct Watch {
    /// Run directory (replayed if the run has ended), Flight Recorder dumps or logs, or HOST:PORT of a
    /// coordinator [default: this user's newest run]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// Id of the job at that coordinator [default: its newest job]
    #[arg(long, value_name = "ID", env = "DDP_DOCTOR_JOB")]
    job: Option<String>,
    /// Print the first screen as plain text and exit
    ///
    /// If standard output is not a terminal, COLUMNS and LINES set the size [default: 120 by 60].
    #[arg(long, env = "DDP_DOCTOR_ONCE")]
    once: bool,
    /// Draw with ASCII characters only [default if the locale is not UTF-8]
    #[arg(long, env = "DDP_DOCTOR_ASCII")]
    ascii: bool,
    #[command(flatten)]
    sources: options::Sources,
    #[command(flatten)]
    access: Access,
}

impl Watch {
    pub(in super::super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let source = self.source()?;
        let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
        if !self.once && !is_terminal {
            bail!(
                "standard input or output is not a terminal; use --once to print the first screen, or \
                 `ddp-doctor status`"
            );
        }
        let variable = |name: &str| std::env::var(name).ok();
        let theme = Theme {
            depth: if global.has_color(is_terminal) && !self.once {
                Depth::of_environment(variable)
            } else {
                Depth::None
            },
            unicode: !self.ascii && is_utf8(variable),
        };
        let here = std::env::current_dir().unwrap_or_default();
        let shown = self.read(source, global.quiet)?;
        let folders = match &shown {
            Shown::Run(Target::Live(_, dir)) => self.sources.of_job(dir),
            Shown::Run(Target::Evidence(path)) => self.sources.of_job([path]),
            Shown::Recorded(_, paths) => self.sources.of_job(paths),
        };
        let withheld = folders.is_empty().then_some(NOT_SHOWN);
        let read = move |file: &str| folders.read(file);
        let sources = Sources::new(here.display().to_string(), Box::new(read)).withheld(withheld);
        let app = App::new(theme, sources);
        if self.once {
            return once(app, shown, global.quiet);
        }
        match shown {
            Shown::Run(target) => {
                let asked = target.clone();
                let start = |feeder: terminal::Feeder| {
                    std::thread::spawn(move || feed::feed(target, |input| feeder.feed(input)));
                };
                terminal::run(app, start, || connection::request_stacks(&asked))?;
            }
            Shown::Recorded(updates, _) => {
                let start = |feeder: terminal::Feeder| {
                    std::thread::spawn(move || {
                        feed::replay(updates, |input| feeder.feed(input));
                    });
                };
                terminal::run(app, start, || ())?;
            }
        }
        Ok(0)
    }

    /// What to show. Files are read once; a run directory may still be written.
    fn source(&self) -> anyhow::Result<Source> {
        let paths: Vec<PathBuf> = self.targets.iter().map(PathBuf::from).collect();
        let is_file = |path: &PathBuf| target::is_path(path) && !target::is_run(path);
        if paths.len() > 1 || paths.iter().any(is_file) {
            return Ok(Source::Files(paths));
        }
        let target = self.targets.first().map(String::as_str);
        let found = Target::of_job(target, self.job.as_deref(), &self.access.credentials())?;
        Ok(Source::Run(found))
    }

    /// Reads files, of whose jobs one is shown.
    fn read(&self, source: Source, quiet: u8) -> anyhow::Result<Shown> {
        let paths = match source {
            Source::Run(target) => return Ok(Shown::Run(target)),
            Source::Files(paths) => paths,
        };
        if self.once {
            let (update, of_job) = state::last_update(&paths, quiet)?;
            return Ok(Shown::Recorded(vec![update], of_job));
        }
        let mut remarks = Vec::new();
        let recording = with_progress(quiet == 0, |progress| {
            postmortem::record(&paths, &mut remarks, progress)
        });
        print_remarks(&remarks, quiet);
        let recording = recording.with_context(|| nothing_in(&paths))?;
        Ok(Shown::Recorded(recording.updates, recording.paths))
    }
}

/// What to show.
enum Source {
    /// A run, which may be active.
    Run(Target),
    /// Files that other tools left behind.
    Files(Vec<PathBuf>),
}

/// What the screens show.
enum Shown {
    /// A run, which may be active.
    Run(Target),
    /// The updates of a job in files, and the paths with its evidence.
    Recorded(Vec<Update>, BTreeSet<PathBuf>),
}

fn once(mut app: App, shown: Shown, quiet: u8) -> anyhow::Result<u8> {
    let link = match shown {
        Shown::Run(Target::Live(..)) => Link::Live,
        Shown::Run(Target::Evidence(_)) | Shown::Recorded(..) => Link::Recorded,
    };
    let updates = match shown {
        Shown::Run(target) => vec![state::now(&target, quiet)?],
        Shown::Recorded(updates, _) => updates,
    };
    let now = Timestamp::now();
    app.feed(Input::Link(link), now);
    for update in updates {
        app.feed(Input::Update(Box::new(update)), now);
    }
    let said = |name: &str, otherwise| {
        let value = std::env::var(name).ok();
        value.and_then(|it| it.parse().ok()).unwrap_or(otherwise)
    };
    let page = (said("COLUMNS", PAGE.0), said("LINES", PAGE.1));
    let (width, height) =
        if io::stdout().is_terminal() { terminal::size().unwrap_or(page) } else { page };
    let out = &mut output();
    for line in app.once(width.max(40), height.max(20)) {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(0)
}

/// Whether the locale uses UTF-8, from the first of these variables that is set.
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    // Without a locale, assume UTF-8.
    locale.is_none_or(|locale| {
        let locale = locale.to_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::is_utf8;

    #[test]
    fn utf_8_is_detected_from_the_locale() {
        let of = |name: &'static str, value: &'static str| {
            is_utf8(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert!(of("LANG", "de_DE.UTF-8") && of("LC_ALL", "C.utf8") && of("LANG", ""));
        assert!(!of("LANG", "C") && !of("LC_ALL", "POSIX"));
    }
}
