//! Reports of jobs with many ranks: short on a terminal, complete as JSON.

use std::path::Path;

use ddp_doctor_proto::report::Report;

use crate::support::process::program;
use crate::support::scenario::Scenario;

/// A collective of 64 ranks that rank 37 does not make. The others wait since different moments, at
/// 20 lines, and through two functions of a library.
fn hang_of_64_ranks() -> String {
    let mut events = String::from("0.9 * step 7\n");
    for rank in (0..64).filter(|&rank| rank != 37) {
        let (line, through) = (5 + rank % 20, ["validate", "save"][rank % 2]);
        events += &format!(
            "1.{rank:02} {rank} all_reduce f32[8] sum \
             @train.py:{line}>/v/site-packages/t.py:9:{through}\n"
        );
    }
    format!(
        "about = \"one of 64 ranks exits while the others wait in a collective\"\nworld = 64\nevents = \"\"\"\n{events}2.0 37 exits 0\n\"\"\"\n\
         [[expect]]\ncode = \"DD102\"\n"
    )
}

/// The report of `analyze` about the journal in this folder.
fn shown(dir: &Path, format: &str) -> String {
    let mut command = program(dir);
    command.args(["analyze", "--format", format, "node-0.ddpj"]);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn hang_of_64_ranks_fits_on_a_screen() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = Scenario::parse(&hang_of_64_ranks()).unwrap();
    scenario.journals(dir.path(), 1).unwrap();
    let text = shown(dir.path(), "text");
    let lines = text.lines().skip_while(|line| !line.starts_with("error["));
    let finding: Vec<&str> = lines.take_while(|line| !line.starts_with("note[")).collect();
    assert!(finding.join("\n").trim_end().lines().count() <= 20, "{text}");
    assert!(text.contains("▸ rank 37 "), "{text}");
    assert!(text.contains(" save "), "{text}");
}

#[test]
fn json_has_every_rank_with_its_lines() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = Scenario::parse(&hang_of_64_ranks()).unwrap();
    scenario.journals(dir.path(), 1).unwrap();
    let report: Report = serde_json::from_str(&shown(dir.path(), "json")).unwrap();
    let finding = &report.findings[0];
    assert_eq!(finding.per_rank.len(), 64);
    let call = finding.per_rank.iter().find(|call| call.rank == 2);
    let place = call.and_then(|call| call.place.as_ref()).unwrap();
    assert_eq!((&*place.file, place.line), ("train.py", 7));
    let via: Vec<&str> = place.via.iter().map(|frame| &*frame.function).collect();
    assert_eq!(via, ["validate"]);
}
