//! Panics while the dashboard has the terminal: a test looks what is left of it.

#![expect(clippy::panic, reason = "that is what it is for")]

use std::time::Duration;

use ddp_doctor_dashboard::sources::Sources;
use ddp_doctor_dashboard::{App, Theme, terminal};

fn main() -> std::io::Result<()> {
    let app = App::new(Theme::BARE, Sources::none());
    let start = |_feeder| {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            panic!("as planned");
        });
    };
    terminal::run(app, start, || {})
}
