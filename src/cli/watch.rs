//! `ddp-doctor watch`

use std::io::{self, IsTerminal, Write};

use anyhow::bail;
use clap::Args;
use ddp_doctor_dashboard::sources::Sources;
use ddp_doctor_dashboard::{App, Depth, Input, Link, Theme, terminal};
use ddp_doctor_proto::report::Timestamp;

use super::output::output;
use super::target::Target;
use super::{Global, viewing};
use crate::report::text;

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
pub(super) struct Watch {
    /// Run directory (replayed if the run has ended), Flight Recorder dumps or a log, or HOST:PORT of a
    /// coordinator [default: this user's newest run]
    #[arg(value_name = "TARGET")]
    target: Option<String>,
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
}

impl Watch {
    pub(super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let target = viewing::find(
            self.target.as_deref(),
            self.job.as_deref(),
            &global.credentials(),
        )?;
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
        let sources = Sources::new(here.display().to_string(), Box::new(text::read));
        let app = App::new(theme, sources);
        if self.once {
            return once(app, &target);
        }
        let asked = target.clone();
        let start = |feeder: terminal::Feeder| {
            std::thread::spawn(move || viewing::feed(target, |input| feeder.feed(input)));
        };
        terminal::run(app, start, || viewing::request_stacks(&asked))?;
        Ok(0)
    }
}

fn once(mut app: App, target: &Target) -> anyhow::Result<u8> {
    let update = viewing::now(target)?;
    let now = Timestamp::now();
    app.feed(
        Input::Link(match target {
            Target::Live(..) => Link::Live,
            Target::Evidence(_) => Link::Recorded,
        }),
        now,
    );
    app.feed(Input::Update(Box::new(update)), now);
    let said = |name: &str, otherwise| {
        let value = std::env::var(name).ok();
        value.and_then(|it| it.parse().ok()).unwrap_or(otherwise)
    };
    let page = (said("COLUMNS", PAGE.0), said("LINES", PAGE.1));
    let (width, height) = if io::stdout().is_terminal() {
        terminal::size().unwrap_or(page)
    } else {
        page
    };
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
