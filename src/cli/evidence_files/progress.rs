//! Progress of an analysis on the terminal.

use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::postmortem::Progress;

/// Time after which progress is shown, and how often it is updated.
const PROGRESS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(200));
/// Width of the bar, in columns.
const BAR: usize = 24;

/// Runs an analysis and shows its progress on the terminal if it takes long.
pub(in super::super) fn with_progress<T>(
    is_shown: bool,
    analyze: impl FnOnce(&Progress) -> T,
) -> T {
    let progress = Progress::default();
    if !is_shown {
        return analyze(&progress);
    }
    let (done, ended) = mpsc::channel::<()>();
    let counted = progress.clone();
    let shown = std::thread::spawn(move || show(&counted, &ended));
    let result = analyze(&progress);
    drop(done);
    // The terminal may be gone: the analysis still counts.
    drop(shown.join());
    result
}

fn show(progress: &Progress, ended: &mpsc::Receiver<()>) -> io::Result<()> {
    let mut pause = PROGRESS.0;
    let mut is_drawn = false;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        pause = PROGRESS.1;
        is_drawn = true;
        // To the beginning of the line, the text, and the rest of the line cleared.
        write!(io::stderr(), "\r{}\x1b[K", bar(progress.files()))?;
    }
    if is_drawn {
        write!(io::stderr(), "\r\x1b[K")?;
    }
    Ok(())
}

/// "[#####...] 12 of 64 files read".
fn bar((read, found): (u64, u64)) -> String {
    if read == found {
        // Journals and black boxes are read by the diagnosis itself.
        return if found == 0 {
            "diagnosing".into()
        } else {
            format!("{read} files read, diagnosing")
        };
    }
    let full = (read as usize * BAR) / (found as usize).max(1);
    let (full, rest) = ("#".repeat(full), ".".repeat(BAR - full));
    format!("[{full}{rest}] {read} of {found} files read")
}

#[cfg(test)]
mod tests {
    use super::bar;

    #[test]
    fn bar_shows_the_share_of_files_read() {
        assert_eq!(bar((0, 0)), "diagnosing");
        assert_eq!(
            bar((6, 24)),
            format!("[{}{}] 6 of 24 files read", "#".repeat(6), ".".repeat(18))
        );
        assert_eq!(bar((24, 24)), "24 files read, diagnosing");
    }
}
