//! Events about the training loop and its model.

use ddp_doctor_proto::{ParameterFact, Spending};

use crate::input::event::Event;
use crate::model::Model;
use crate::model::ids::Target;
use crate::model::process::{InputEnd, Spent};

impl Model {
    /// Takes an event about training; returns any other one.
    pub(super) fn apply_training(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Step { process, thread, step, forward, at } => {
                let process = self.recorded(process, at)?;
                process.begin_steps();
                process.step = process.step.max(step);
                process.step_at = at;
                process.pace.step(at);
                process.turns.begin(thread, forward.as_ref());
                if let Some(end) = &mut process.input_ended {
                    end.step_begins(process.turns.batches(), at);
                }
                process.optimizer.begin(step, forward.as_ref());
                if let Some(forward) = &forward {
                    process.accumulation.begin(forward, at);
                }
            }
            Event::StepReached { process, step, at } => {
                let process = self.processes.get_mut(&process)?;
                if step > process.step {
                    process.begin_steps();
                    process.step = step;
                    process.step_at = at;
                }
            }
            Event::PhaseBegin { process, name, at } => {
                self.recorded(process, at)?.phase_began(name, at);
            }
            Event::PhaseEnd { process, name, at } => {
                self.recorded(process, at)?.phase_ended(&name, at);
            }
            Event::InputEnded { process, batches, at, .. } => {
                let process = self.recorded(process, at)?;
                let is_announced = batches.is_some();
                let batches = batches.or(process.turns.batches());
                process.input_ended = Some(InputEnd { at, batches, is_announced, is_latest: true });
                if process.step > 0 && !is_announced {
                    process.input_ended_in_step.get_or_insert(process.training_step());
                }
            }
            Event::Parameters { process, group, said, at } => {
                self.recorded(process, at)?;
                let (group, rank) = self.membership(process, &group)?;
                if said.fact == ParameterFact::Values {
                    self.compare_values(process, group, rank, &said, at);
                } else {
                    self.processes.get_mut(&process)?.models.take(group, said, at);
                }
            }
            Event::Spent { process, thread, on, took, place, at } => {
                // A background thread may have spent it: this is not a sign of progress.
                let process = self.processes.get_mut(&process)?;
                process.records += 1;
                let from = at.minus(took);
                if on == Spending::Buckets {
                    let averaged = process.averaged(thread, from, at);
                    if let (Some(rank), Some((Target::Join(id, seq), averaged))) =
                        (process.rank, averaged)
                    {
                        self.arrivals.averaged(rank, id, seq, averaged);
                        self.groups[id.0 as usize].change(rank, seq, |it| {
                            it.averaged = Some(Box::new(averaged));
                            it.in_backward = false;
                        });
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
