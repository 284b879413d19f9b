//! One execution of a program, possibly stopped early, written as a scenario.

use super::machine::{Action, Life, Machine, State};
use super::program::{End, Program, Random, Step, Transport, group_name};
use super::truth::is_quiet;

/// An execution and its last state.
pub(crate) struct Execution {
    /// Text of a scenario without expectations.
    pub(crate) scenario: String,
    pub(crate) state: State,
    /// Whether nothing more happens by itself.
    pub(crate) quiet: bool,
    /// Ranks whose wait failed because a peer was gone.
    pub(crate) raised: Vec<u8>,
}

/// Runs a program at random, to the end or to an earlier point.
pub(crate) fn run(machine: &Machine<'_>, random: &mut Random) -> Execution {
    let program = machine.program;
    let mut state = machine.start();
    let mut lines = vec![];
    let longest = if random.chance(35) { random.below(60) } else { usize::MAX };
    // Completions that are possible but not certain happen in some executions only.
    let bits: u64 = random.next() | random.next();
    let eager = if random.chance(30) { 0 } else { bits };
    let transport_raises = program.transport == Transport::Gloo && random.chance(30);
    let mut raised = Vec::new();
    let mut length = 0;
    while length < longest {
        let mut actions = machine.actions(&state);
        actions.retain(|action| match action {
            Action::Complete(call) => {
                eager & 1 << call != 0 || machine.surely_completes(&state, *call)
            }
            _ => true,
        });
        let failing: Vec<u8> = (0..program.threads.len() as u8)
            .filter(|_| transport_raises)
            .filter(|&t| fails(machine, &state, t))
            .collect();
        if actions.is_empty() && failing.is_empty() {
            break;
        }
        length += 1;
        let choice = random.below(actions.len() + failing.len());
        let Some(&action) = actions.get(choice) else {
            let t = failing[choice - actions.len()];
            let rank = program.threads[usize::from(t)].rank;
            say_failure(machine, &state, t, &mut lines);
            state.lives[usize::from(rank)] = Life::Died(1);
            raised.push(rank);
            continue;
        };
        say(machine, &state, action, &mut lines);
        state = machine.after(&state, action);
    }
    let quiet = is_quiet(machine, &state)
        && !(transport_raises
            && (0..program.threads.len() as u8).any(|t| fails(machine, &state, t)));
    Execution { scenario: scenario(program, &lines), state, quiet, raised }
}

/// Whether a thread waits for a call that needs a member which has ended without completing it.
fn fails(machine: &Machine<'_>, state: &State, thread: u8) -> bool {
    let rank = machine.program.threads[usize::from(thread)].rank;
    machine.life(state, rank) == Life::Runs
        && machine.awaited(state, thread).is_some_and(|call| {
            let group = machine.calls[usize::from(call)].call.group;
            let members = &machine.program.groups[usize::from(group)];
            let needs = machine.calls[usize::from(call)].call.needs(rank, members);
            !Machine::is_complete(state, call)
                && needs.iter().any(|&peer| {
                    let gone = matches!(machine.life(state, peer), Life::Exited | Life::Died(_));
                    let there = machine.counterpart(state, call, peer);
                    gone && there.is_none_or(|other| !Machine::is_complete(state, other))
                })
        })
}

fn say_failure(machine: &Machine<'_>, state: &State, thread: u8, lines: &mut Vec<String>) {
    let rank = machine.program.threads[usize::from(thread)].rank;
    let Some(call) = machine.awaited(state, thread) else {
        return;
    };
    let label = machine.calls[usize::from(call)].call.label;
    let text = "\"RuntimeError: [gloo] Connection closed by peer\"";
    lines.extend([
        format!("{rank} done c{label}"),
        format!("{rank} raises left-collective {text} @train.py:{label}"),
        format!("{rank} raises uncaught {text} @train.py:{label}"),
        format!("{rank} exits 1"),
    ]);
}

/// Adds what the capture and the operating system observe of an action.
fn say(machine: &Machine<'_>, state: &State, action: Action, lines: &mut Vec<String>) {
    let program = machine.program;
    match action {
        Action::Complete(_) => {}
        Action::Kill(rank) => lines.push(format!("{rank} killed 9")),
        Action::Finish(rank) => lines.push(format!("{rank} exits 0")),
        Action::Wake(thread) => {
            let rank = program.threads[usize::from(thread)].rank;
            if let Some(call) = machine.awaited(state, thread) {
                let label = machine.calls[usize::from(call)].call.label;
                lines.push(format!("{rank} done c{label}"));
            }
        }
        Action::Step(thread) => {
            let made_by = &program.threads[usize::from(thread)];
            let rank = made_by.rank;
            match machine.next(state, thread) {
                Some(Step::Call(call)) => {
                    let number = match made_by.number {
                        1 => String::new(),
                        other => format!(" t{other}"),
                    };
                    let label = call.label;
                    lines.push(format!("{rank} {call}{number} @train.py:{label}"));
                    if !call.is_async && !call.holds(program.transport) {
                        lines.push(format!("{rank} done c{label}"));
                    }
                }
                Some(Step::Wait(label)) => {
                    lines.push(format!("{rank} wait c{label}"));
                    let after = machine.after(state, action);
                    if machine.awaited(&after, thread).is_none() {
                        lines.push(format!("{rank} done c{label}"));
                    }
                }
                Some(Step::Destroy(group)) => {
                    lines.push(format!("{rank} destroys {}", group_name(group)));
                }
                Some(Step::End(end)) => match end {
                    End::Exits => lines.push(format!("{rank} exits 0")),
                    End::Fails => lines.push(format!("{rank} exits 3")),
                    End::Killed => lines.push(format!("{rank} killed 9")),
                    End::Raises => {
                        lines.push(format!(
                            "{rank} raises uncaught \"ValueError: bad sample\" @train.py:99"
                        ));
                        lines.push(format!("{rank} exits 1"));
                    }
                    End::Stops => lines.push(format!("{rank} stops")),
                    End::Sleeps => {}
                },
                None => {}
            }
        }
    }
}

fn scenario(program: &Program, lines: &[String]) -> String {
    let mut text = format!("about = \"a random program\"\nworld = {}\n", program.world);
    if program.transport == Transport::Nccl {
        text += "backend = \"nccl\"\n";
    }
    text += "events = \"\"\"\n";
    for (group, members) in program.groups.iter().enumerate().skip(1) {
        let ranks: Vec<String> = members.iter().map(u8::to_string).collect();
        let (ranks, name) = (ranks.join(","), group_name(group as u8));
        text += &format!("0.5 {ranks} group {name} {ranks}\n");
    }
    for (i, line) in lines.iter().enumerate() {
        let hundredths = 100 + i;
        text += &format!("{}.{:02} {line}\n", hundredths / 100, hundredths % 100);
    }
    text + "\"\"\"\n"
}
