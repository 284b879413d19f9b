//! Events about the training loop and its model.

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{ParameterFact, Spending};

use crate::evidence::event::Event;
use crate::model::Model;
use crate::model::ids::Target;
use crate::model::join::Averaged;
use crate::model::process::InputEnd;

impl Model {
    pub(super) fn apply_training(&mut self, event: Event) {
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
            Event::StepReached { process, step, at } => {
                if let Some(process) = self.processes.get_mut(&process)
                    && step > process.step
                {
                    process.step = step;
                    process.step_at = at;
                }
            }
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
                let member = self.membership(process, &group);
                if said.fact == ParameterFact::Values {
                    self.touch(process, at, |_| {});
                    self.compare_values(process, member, &said, at);
                    return;
                }
                self.touch(process, at, |process| {
                    if let Some((group, _)) = member {
                        process.models.take(group, said, at);
                    }
                });
            }
            Event::Spent { process, thread, on, took, place, at } => {
                // A background thread may have spent it: this is no sign of progress.
                let Some(process) = self.processes.get_mut(&process) else {
                    return;
                };
                process.records += 1;
                if on == Spending::Buckets {
                    let from = Timestamp(at.0.saturating_sub(took.as_nanos() as u64));
                    let averaged = process.averaged(thread, from, at);
                    let rank = process.rank;
                    self.averaged(rank, averaged);
                    return;
                }
                process.pace.spent(on, thread, took, at);
                if on == Spending::Input {
                    process.pace.draws_at = place.or(process.pace.draws_at.take());
                }
            }
            _ => {}
        }
    }

    /// A rank has waited for DDP's buckets; the target is the last of them.
    fn averaged(&mut self, rank: Option<u32>, averaged: Option<(Target, Averaged)>) {
        if let (Some(rank), Some((Target::Join(id, seq), averaged))) = (rank, averaged) {
            self.arrivals.averaged(rank, id, seq, averaged);
            self.groups[id.0 as usize].set_averaged(rank, seq, averaged);
        }
    }
}
