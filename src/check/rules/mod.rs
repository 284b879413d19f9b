//! The rules: from facts to lines. They do no I/O.

use super::survey::Survey;

mod agreement;
mod connections;
mod gpus;
mod interfaces;
mod line;
mod machine;
mod names;
mod nccl;

pub use line::{Level, Line};

/// All lines about the nodes, the gravest first.
#[must_use]
pub fn lines(survey: &Survey) -> Vec<Line> {
    let mut lines = connections::lines(survey);
    lines.extend(names::lines(survey));
    lines.extend(interfaces::lines(survey));
    lines.extend(nccl::lines(survey));
    lines.extend(agreement::lines(survey));
    lines.extend(machine::lines(survey));
    let mut merged: Vec<Line> = Vec::new();
    for mut line in lines {
        let is_same = |it: &&mut Line| {
            (it.level, &it.check, &it.reason, &it.fix)
                == (line.level, &line.check, &line.reason, &line.fix)
        };
        match merged.iter_mut().find(is_same) {
            Some(same) => same.nodes.append(&mut line.nodes),
            None => merged.push(line),
        }
    }
    // Stable: rules are in the order of their importance.
    merged.sort_by_key(|it| std::cmp::Reverse(it.level));
    merged
}

#[cfg(test)]
mod testing;
