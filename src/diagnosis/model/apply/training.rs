//! Events about the training loop and its model.

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{ParameterFact, Spending};

use crate::evidence::event::Event;
use crate::model::Model;
use crate::model::ids::Target;
use crate::model::pace::Spent;
use crate::model::process::InputEnd;

impl Model {
    pub(super) fn apply_training(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Step { process, step, forward, at } => {
                self.touch(process, at, |process| {
                    process.step = process.step.max(step);
                    process.step_at = at;
                    process.pace.step(at);
                    process.turns.begin(forward.as_ref());
                    if let Some(forward) = &forward {
                        process.accumulation.begin(forward, at);
                    }
                });
            }
            Event::StepReached { process, step, at } => self.change(process, |process| {
                if step > process.step {
                    process.step = step;
                    process.step_at = at;
                }
            }),
            Event::PhaseBegin { process, name, at } => {
                self.touch(process, at, |process| process.phase_began(name, at));
            }
            Event::PhaseEnd { process, name, at } => {
                self.touch(process, at, |process| process.phase_ended(&name, at));
            }
            Event::InputEnded { process, at, .. } => {
                self.touch(process, at, |process| {
                    let batches = process.turns.batches();
                    process.input_ended = Some(InputEnd { at, batches });
                    if process.step > 0 {
                        process.input_ended_in_step.get_or_insert(process.step);
                    }
                });
            }
            Event::Parameters { process, group, said, at } => {
                self.touch(process, at, |_| {});
                let (group, rank) = self.membership(process, &group)?;
                if said.fact == ParameterFact::Values {
                    self.compare_values(process, group, rank, &said, at);
                } else {
                    self.change(process, |process| process.models.take(group, said, at));
                }
            }
            Event::Spent { process, thread, on, took, place, at } => {
                // A background thread may have spent it: this is no sign of progress.
                let process = self.processes.get_mut(&process)?;
                process.records += 1;
                let from = Timestamp(at.0.saturating_sub(took.as_nanos() as u64));
                if on == Spending::Buckets {
                    let averaged = process.averaged(thread, from, at);
                    if let (Some(rank), Some((Target::Join(id, seq), averaged))) =
                        (process.rank, averaged)
                    {
                        self.arrivals.averaged(rank, id, seq, averaged);
                        self.groups[id.0 as usize].set_averaged(rank, seq, averaged);
                    }
                    return None;
                }
                process.pace.spent(Spent { on, thread, from, to: at });
                if on == Spending::Input {
                    process.pace.draws_at = place.or(process.pace.draws_at.take());
                }
            }
            other => return Some(other),
        }
        None
    }
}
