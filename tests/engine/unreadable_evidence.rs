//! A job of which nothing is seen, since its evidence cannot be read.

use ddp_doctor::diagnosis::event::Event;
use ddp_doctor::diagnosis::{Config, Engine};
use ddp_doctor_proto::NoteKind;
use ddp_doctor_proto::report::{Timestamp, Verdict};

#[test]
fn job_whose_black_boxes_cannot_be_read_is_not_healthy() {
    let mut engine = Engine::new(Config::default());
    let at = Timestamp(1_000_000_000);
    engine.handle_timeout(at);
    engine.poll_change();
    assert_eq!(engine.verdict(), Verdict::Healthy, "it has just begun");
    let note = Event::Note {
        process: None,
        kind: NoteKind::Unreadable,
        rank: None,
        pid: None,
        text: "cannot read 17.4.c10d.box: it has another name".into(),
        at,
    };
    engine.handle(note, at);
    engine.handle_timeout(at);
    engine.poll_change();
    assert_eq!(engine.verdict(), Verdict::Insufficient);
}
