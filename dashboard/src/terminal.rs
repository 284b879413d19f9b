//! The terminal: taken over, drawn on, and given back whatever happens.

use std::io::{self, Stdout, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::crossterm::{cursor, execute, terminal};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::app::{App, Flow};
use crate::feed::Input;

/// What may be on its way to the screen. Who feeds faster is held back.
const QUEUE: usize = 64;
/// Exit status after a panic: that of a tool that failed.
const FAILED: i32 = 3;

/// Where a dashboard is fed.
#[derive(Clone, Debug)]
pub struct Feeder(SyncSender<Happening>);

impl Feeder {
    /// Hands something on; whether there is still somebody who shows it.
    #[must_use]
    pub fn feed(&self, input: Input) -> bool {
        self.0.send(Happening::Fed(input)).is_ok()
    }
}

/// Something that the screen may have to change for.
#[derive(Debug)]
enum Happening {
    Fed(Input),
    Key(KeyEvent),
    /// The terminal has another size, or was somebody else's for a while.
    Redraw,
    Suspend,
    Quit,
}

/// Shows the dashboard until the user leaves. `start` begins to feed it; `ask` has it looked where all
/// ranks stand, without waiting for that.
///
/// # Errors
///
/// When the terminal cannot be used. It is as it was before, then as always.
pub fn run(mut app: App, start: impl FnOnce(Feeder), ask: impl Fn()) -> io::Result<()> {
    let (sender, happenings) = mpsc::sync_channel(QUEUE);
    let mut screen = Screen::take()?;
    listen_to_signals(sender.clone())?;
    let keys = sender.clone();
    thread::spawn(move || read_keys(&keys));
    start(Feeder(sender));
    loop {
        let again = app.tick(Timestamp::now());
        screen.draw(&mut app)?;
        let Some(first) = next(&happenings, again) else {
            continue;
        };
        // Whatever has happened by now is drawn at once.
        let mut pending = Some(first);
        while let Some(happening) = pending {
            match happening {
                Happening::Fed(input) => app.feed(input, Timestamp::now()),
                Happening::Key(key) => match app.key(key) {
                    Flow::Continue => {}
                    Flow::Redraw => screen.clear()?,
                    Flow::Suspend => screen.suspend()?,
                    Flow::Ask => ask(),
                    Flow::Quit => return Ok(()),
                },
                Happening::Redraw => screen.clear()?,
                Happening::Suspend => screen.suspend()?,
                Happening::Quit => return Ok(()),
            }
            pending = happenings.try_recv().ok();
        }
    }
}

/// Columns and lines of the terminal.
///
/// # Errors
///
/// When it does not say.
pub fn size() -> io::Result<(u16, u16)> {
    terminal::size()
}

/// What happens next; `None`: nothing but that so much time goes by.
fn next(happenings: &Receiver<Happening>, again: Option<Duration>) -> Option<Happening> {
    // Keys and signals are listened to as long as this goes on.
    let Some(again) = again else {
        return Some(happenings.recv().unwrap_or(Happening::Quit));
    };
    match happenings.recv_timeout(again) {
        Ok(happening) => Some(happening),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Happening::Quit),
    }
}

fn read_keys(sender: &SyncSender<Happening>) {
    while let Ok(event) = event::read() {
        let happening = match event {
            Event::Key(key) => Happening::Key(key),
            Event::Resize(..) => Happening::Redraw,
            _ => continue,
        };
        if sender.send(happening).is_err() {
            return;
        }
    }
    // The terminal is gone.
    drop(sender.send(Happening::Quit));
}

fn listen_to_signals(sender: SyncSender<Happening>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGCONT])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            let happening = match signal {
                SIGTSTP => Happening::Suspend,
                SIGCONT => Happening::Redraw,
                _ => Happening::Quit,
            };
            if sender.send(happening).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// The terminal while it is ours; dropped, it is the user's again.
struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    fn take() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Whoever panicked: what it says must be readable, and nobody draws over it.
            give_back();
            before(panic);
            std::process::exit(FAILED);
        }));
        enter()?;
        let backend = CrosstermBackend::new(io::stdout());
        Terminal::new(backend)
            .map(Self)
            .inspect_err(|_| give_back())
    }

    fn draw(&mut self, app: &mut App) -> io::Result<()> {
        self.0
            .draw(|frame| app.draw(frame.area(), frame.buffer_mut()))?;
        Ok(())
    }

    /// Draws everything anew, whatever stands there. `Terminal::clear` would ask the terminal where the
    /// cursor is, whose answer goes to whoever reads keys.
    fn clear(&mut self) -> io::Result<()> {
        execute!(io::stdout(), terminal::Clear(terminal::ClearType::All))?;
        self.0 = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }

    fn suspend(&mut self) -> io::Result<()> {
        give_back();
        low_level::emulate_default_handler(SIGTSTP)?;
        // Here again, once somebody has let us go on.
        enter()?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
        .inspect_err(|_| give_back())
}

/// What cannot be given back, because the terminal is gone, needs not be.
fn give_back() {
    let mut out = io::stdout();
    drop(execute!(out, terminal::LeaveAlternateScreen, cursor::Show));
    drop(terminal::disable_raw_mode());
    drop(out.flush());
}
