//! The terminal: set up, drawn on, and restored in every case.

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

/// Capacity of the event queue. A faster feeder blocks.
const QUEUE: usize = 64;
/// Exit status after a panic: an error of the tool.
const FAILED: i32 = 3;

/// Sends inputs to a dashboard.
#[derive(Clone, Debug)]
pub struct Feeder(SyncSender<UiEvent>);

impl Feeder {
    /// Sends an input. Returns whether the dashboard still runs.
    #[must_use]
    pub fn feed(&self, input: Input) -> bool {
        self.0.send(UiEvent::Fed(input)).is_ok()
    }
}

/// An event after which the screen may have to change.
#[derive(Debug)]
enum UiEvent {
    Fed(Input),
    Key(KeyEvent),
    /// The size of the terminal changed, or another program used the terminal meanwhile.
    Redraw,
    Suspend,
    Quit,
}

/// Shows the dashboard until the user quits. `start` begins to feed it; `request_stacks` requests the
/// current stacks of all ranks without waiting for them.
///
/// # Errors
///
/// Fails if the terminal cannot be used. The terminal is restored in every case.
pub fn run(mut app: App, start: impl FnOnce(Feeder), request_stacks: impl Fn()) -> io::Result<()> {
    let (sender, events) = mpsc::sync_channel(QUEUE);
    let mut screen = Screen::enter_screen()?;
    listen_to_signals(sender.clone())?;
    let keys = sender.clone();
    thread::spawn(move || read_keys(&keys));
    start(Feeder(sender));
    loop {
        let again = app.tick(Timestamp::now());
        screen.draw(&mut app)?;
        let Some(first) = next(&events, again) else {
            continue;
        };
        // Process all pending events before the next frame.
        let mut pending = Some(first);
        while let Some(happening) = pending {
            match happening {
                UiEvent::Fed(input) => app.feed(input, Timestamp::now()),
                UiEvent::Key(key) => match app.key(key) {
                    Flow::Continue => {}
                    Flow::Redraw => screen.clear()?,
                    Flow::Suspend => screen.suspend()?,
                    Flow::RequestStacks => request_stacks(),
                    Flow::Quit => return Ok(()),
                },
                UiEvent::Redraw => screen.clear()?,
                UiEvent::Suspend => screen.suspend()?,
                UiEvent::Quit => return Ok(()),
            }
            pending = events.try_recv().ok();
        }
    }
}

/// Size of the terminal in columns and lines.
///
/// # Errors
///
/// Fails if the size is unknown.
pub fn size() -> io::Result<(u16, u16)> {
    terminal::size()
}

/// The next event; `None`: the time limit `again` passed first.
fn next(events: &Receiver<UiEvent>, again: Option<Duration>) -> Option<UiEvent> {
    // The threads for keys and signals keep the channel open.
    let Some(again) = again else {
        return Some(events.recv().unwrap_or(UiEvent::Quit));
    };
    match events.recv_timeout(again) {
        Ok(happening) => Some(happening),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(UiEvent::Quit),
    }
}

fn read_keys(sender: &SyncSender<UiEvent>) {
    while let Ok(event) = event::read() {
        let happening = match event {
            Event::Key(key) => UiEvent::Key(key),
            Event::Resize(..) => UiEvent::Redraw,
            _ => continue,
        };
        if sender.send(happening).is_err() {
            return;
        }
    }
    // The terminal is closed.
    drop(sender.send(UiEvent::Quit));
}

fn listen_to_signals(sender: SyncSender<UiEvent>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGCONT])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            let happening = match signal {
                SIGTSTP => UiEvent::Suspend,
                SIGCONT => UiEvent::Redraw,
                _ => UiEvent::Quit,
            };
            if sender.send(happening).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// The terminal in use; restored on drop.
struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    fn enter_screen() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Any thread may panic: keep its message readable, and stop drawing over it.
            restore();
            before(panic);
            std::process::exit(FAILED);
        }));
        enter()?;
        let backend = CrosstermBackend::new(io::stdout());
        Terminal::new(backend).map(Self).inspect_err(|_| restore())
    }

    fn draw(&mut self, app: &mut App) -> io::Result<()> {
        self.0.draw(|frame| app.draw(frame.area(), frame.buffer_mut()))?;
        Ok(())
    }

    /// Clears the screen and draws it again. `Terminal::clear` would query the cursor position, and
    /// the thread that reads keys would receive the answer.
    fn clear(&mut self) -> io::Result<()> {
        execute!(io::stdout(), terminal::Clear(terminal::ClearType::All))?;
        self.0 = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }

    fn suspend(&mut self) -> io::Result<()> {
        restore();
        low_level::emulate_default_handler(SIGTSTP)?;
        // Execution continues here after SIGCONT.
        enter()?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide).inspect_err(|_| restore())
}

/// Restores the terminal. Errors are ignored: they mean that the terminal is closed.
fn restore() {
    let mut out = io::stdout();
    drop(execute!(out, terminal::LeaveAlternateScreen, cursor::Show));
    drop(terminal::disable_raw_mode());
    drop(out.flush());
}
