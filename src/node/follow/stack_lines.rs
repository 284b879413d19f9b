//! The lines of the user's program in captured stacks, as sites: a black box has one caller for each line, and a stack
//! the present ones.

use std::collections::HashSet;

use ddp_doctor_diagnosis::input::place;
use ddp_doctor_proto::v1;

/// Maximum number of such lines per process. Their sites count down from the largest number.
const MAX_LINES: usize = 1024;

/// The lines of a process that are sites already.
#[derive(Debug, Default)]
pub(super) struct StackLines {
    known: HashSet<(String, u32)>,
}

impl StackLines {
    /// The sites of lines that were in no stack before.
    pub(super) fn sites(&mut self, process: u64, stacks: &v1::Stacks) -> Vec<v1::SiteDefined> {
        let mut found = Vec::new();
        for frame in stacks.threads.iter().flat_map(|it| &it.python) {
            let is_of_program = place::is_users(&frame.file) && !frame.file.contains("-packages/");
            let line = (frame.file.clone(), frame.line);
            if !is_of_program || self.known.len() == MAX_LINES || !self.known.insert(line) {
                continue;
            }
            found.push(v1::SiteDefined {
                process,
                id: u32::MAX - (self.known.len() - 1) as u32,
                file: frame.file.clone(),
                line: frame.line,
                function: frame.function.clone(),
                ..v1::SiteDefined::default()
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_the_program_is_a_site_once() {
        let frame =
            |file: &str, line| v1::Frame { file: file.into(), line, ..v1::Frame::default() };
        let packages = "/venv/lib/python3.11/site-packages/torch/nn/module.py";
        let python =
            vec![frame(packages, 5), frame("/job/train.py", 9), frame("/job/train.py", 20)];
        let thread = v1::ThreadStack { python, ..v1::ThreadStack::default() };
        let stacks = v1::Stacks { threads: vec![thread.clone(), thread], ..v1::Stacks::default() };
        let mut lines = StackLines::default();
        let found: Vec<(u32, u32)> =
            lines.sites(3, &stacks).iter().map(|it| (it.id, it.line)).collect();
        assert_eq!(found, [(u32::MAX, 9), (u32::MAX - 1, 20)]);
        assert!(lines.sites(3, &stacks).is_empty());
    }
}
