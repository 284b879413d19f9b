//! Panics while the dashboard uses the terminal: a test checks that the terminal is restored.

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
