//! Minimizes a case while it violates the same requirement.

use super::check::{Violation, check};
use super::generate::Planted;
use super::program::{Op, Program, Step};

/// Number of executions tried of each smaller program.
const TRIES: u64 = 40;

/// Returns the smallest case found, and its violation.
pub(crate) fn shrink(planted: &Planted, seed: u64, found: Violation) -> (Planted, Violation) {
    let (mut best, mut violation) = (planted.clone(), found);
    loop {
        let smaller = candidates(&best).into_iter().find_map(|program| {
            let planted = Planted { program, mutated: best.mutated.clone() };
            (0..TRIES)
                .filter_map(|i| check(&planted, seed.wrapping_add(i)).err())
                .filter(|other| other.kind == violation.kind)
                .min_by_key(|other| other.scenario.len())
                .map(|other| (planted, other))
        });
        let Some((program, other)) = smaller else {
            break;
        };
        best = program;
        violation = other;
    }
    // Another execution of the same program may need fewer steps.
    for i in 0..20 * TRIES {
        if let Err(other) = check(&best, seed.wrapping_add(i))
            && other.kind == violation.kind
            && other.scenario.len() < violation.scenario.len()
        {
            violation = other;
        }
    }
    (best, violation)
}

/// Slightly smaller programs, with mistakes in the same ranks only.
fn candidates(planted: &Planted) -> Vec<Program> {
    let program = &planted.program;
    let mut found = Vec::new();
    // Without the last rank.
    if program.world > 2 {
        let mut smaller = program.clone();
        let last = program.world - 1;
        smaller.world = last;
        smaller.threads.retain(|thread| thread.rank != last);
        smaller.victim = smaller.victim.filter(|&rank| rank != last);
        for members in &mut smaller.groups {
            members.retain(|&rank| rank != last);
        }
        let roots = |step: &Step| matches!(step, Step::Call(call) if call.root == last);
        let fits = smaller.groups.iter().all(|members| members.len() > 1)
            && !smaller.threads.iter().any(|thread| thread.steps.iter().any(roots));
        if fits {
            found.push(smaller);
        }
    }
    // Without the last group, if it is unused.
    let used = |group: usize| {
        let uses = |step: &Step| match step {
            Step::Call(call) => usize::from(call.group) == group,
            Step::Destroy(other) => usize::from(*other) == group,
            _ => false,
        };
        program.threads.iter().any(|thread| thread.steps.iter().any(uses))
    };
    if program.groups.len() > 1 && !used(program.groups.len() - 1) {
        let mut smaller = program.clone();
        smaller.groups.pop();
        found.push(smaller);
    }
    // Without one call, in all ranks.
    for label in labels(program) {
        let mut smaller = program.clone();
        for thread in &mut smaller.threads {
            thread.steps.retain(|step| label_of(step) != Some(label));
        }
        found.push(smaller);
    }
    for (t, thread) in program.threads.iter().enumerate() {
        if thread.number == 2 && thread.steps.is_empty() {
            let mut smaller = program.clone();
            smaller.threads.remove(t);
            found.push(smaller);
        }
        for (s, step) in thread.steps.iter().enumerate() {
            let mut smaller = program.clone();
            match step {
                // Removing a call from a correct rank would be another mistake.
                Step::Call(_) if !planted.mutated.contains(&thread.rank) => continue,
                Step::Call(call) => {
                    smaller.threads[t].steps.retain(|step| label_of(step) != Some(call.label));
                }
                _ => drop(smaller.threads[t].steps.remove(s)),
            }
            found.push(smaller);
        }
    }
    // Simpler calls.
    for label in labels(program) {
        for simpler in 0..3 {
            let mut smaller = program.clone();
            let mut changed = false;
            for thread in &mut smaller.threads {
                for step in &mut thread.steps {
                    let Step::Call(call) = step else { continue };
                    if call.label != label || (call.op.is_message() && simpler == 0) {
                        continue;
                    }
                    let before = *call;
                    match simpler {
                        0 => call.op = Op::Barrier,
                        1 => (call.numel, call.wide, call.max) = (4, false, false),
                        _ => call.is_async = false,
                    }
                    changed |= before != *call;
                }
                if simpler == 2 {
                    thread
                        .steps
                        .retain(|step| !matches!(step, Step::Wait(other) if *other == label));
                }
            }
            if changed {
                found.push(smaller);
            }
        }
    }
    found
}

fn labels(program: &Program) -> Vec<u8> {
    let steps = program.threads.iter().flat_map(|thread| &thread.steps);
    let mut labels: Vec<u8> = steps.filter_map(label_of).collect();
    labels.sort_unstable();
    labels.dedup();
    labels
}

fn label_of(step: &Step) -> Option<u8> {
    match step {
        Step::Call(call) => Some(call.label),
        Step::Wait(label) => Some(*label),
        Step::Destroy(_) | Step::End(_) => None,
    }
}
