//! What the records of a process refer to: its groups and places.

use std::sync::Arc;

use ddp_doctor::diagnosis::event::{Call, GroupInfo, Guard};
use ddp_doctor::evidence::members;
use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::v1;
use v1::event::Kind;

use super::messages::Process;

impl Process {
    pub(super) fn group(&self, group: &Arc<GroupInfo>) -> Result<u32, String> {
        let at = self.groups.iter().position(|known| Arc::ptr_eq(known, group));
        at.map(|at| at as u32 + 1).ok_or("no such group".into())
    }

    /// Id of a place. The definition of a new one is added to `kinds`.
    pub(super) fn site(&mut self, place: &Arc<Where>, caller: u32, kinds: &mut Vec<Kind>) -> u32 {
        if !place.via.is_empty() {
            return self.library_site(place, kinds);
        }
        let known = self.sites.iter().position(|known| known == place);
        let at = known.unwrap_or_else(|| {
            self.sites.push(Arc::clone(place));
            let id = self.sites.len() as u32;
            kinds.push(Kind::SiteDefined(self.definition(place, id, caller)));
            self.sites.len() - 1
        });
        at as u32 + 1
    }

    /// The same for a place with frames of installed packages.
    pub(super) fn library_site(&mut self, place: &Arc<Where>, kinds: &mut Vec<Kind>) -> u32 {
        if let Some(at) = self.sites.iter().position(|known| known == place) {
            return at as u32 + 1;
        }
        let mut outer = Where::clone(place);
        let frame = outer.via.pop().unwrap_or_default();
        let caller = self.site(&Arc::new(outer), 0, kinds);
        self.sites.push(Arc::clone(place));
        let id = self.sites.len() as u32;
        kinds.push(Kind::SiteDefined(v1::SiteDefined {
            library: true,
            ..self.definition(&frame, id, caller)
        }));
        id
    }

    pub(super) fn definition(&self, place: &Where, id: u32, caller: u32) -> v1::SiteDefined {
        v1::SiteDefined {
            process: self.number,
            id,
            file: place.file.clone(),
            line: place.line,
            function: place.function.clone(),
            caller,
            ..v1::SiteDefined::default()
        }
    }

    pub(super) fn site_event(
        &mut self,
        place: &Arc<Where>,
        caller: Option<&Arc<Where>>,
        guards: &[Guard],
        reading: bool,
    ) -> Vec<Kind> {
        let mut kinds = Vec::new();
        let caller = caller.map_or(0, |caller| self.site(caller, 0, &mut kinds));
        let id = self.site(place, caller, &mut kinds);
        if let (true, Some(Kind::SiteDefined(site))) = (reading, kinds.last_mut()) {
            site.reading = true;
        }
        if !guards.is_empty() {
            let guards = guards.iter().map(|guard| v1::Guard {
                line: guard.line,
                test: guard.test.as_ref().into(),
                subject: i32::from(guard.subject.number()),
                form: i32::from(guard.form.number()),
                other_first: guard.other.map(|it| it.first),
                other_last: guard.other.map(|it| it.last),
                is_called_there: guard.other.is_some_and(|it| it.makes_call),
                is_while: guard.is_while,
            });
            kinds.push(Kind::SiteDefined(v1::SiteDefined {
                guards: guards.collect(),
                ..self.definition(place, id, caller)
            }));
        }
        kinds
    }

    /// A record, after the definition of its place if that is new.
    pub(super) fn record(&mut self, record: v1::Record, place: Option<&Arc<Where>>) -> Vec<Kind> {
        let mut kinds = Vec::new();
        let site = place.map_or(0, |place| self.site(place, 0, &mut kinds));
        kinds.push(Kind::Record(v1::Record {
            process: self.number,
            ticket: self.next_ticket,
            site,
            ..record
        }));
        self.next_ticket += 1;
        kinds
    }

    pub(super) fn issued(&self, call: &Call, record: v1::Record) -> Result<v1::Record, String> {
        let made = call.group.as_ref().filter(|_| call.op.creates_group());
        let group = call
            .group
            .as_ref()
            .filter(|_| made.is_none())
            .map(|group| self.group(group))
            .transpose()?;
        // Black boxes store partners as ranks within the group.
        let partner = call.root.or(call.peer).and_then(|rank| {
            let members = &call.group.as_ref()?.key.members;
            members.iter().position(|&member| member == rank)
        });
        let flag = |is_set: bool, flag: u16| if is_set { u32::from(flag) } else { 0 };
        Ok(v1::Record {
            thread: call.thread.0,
            group: group.unwrap_or(0),
            seq: call.seq,
            call: call.id.0,
            op: i32::from(call.op.number()),
            dtype: i32::from(call.dtype.number()),
            reduce_op: i32::from(call.reduce_op.number()),
            flags: flag(call.is_async, flags::ASYNC) | flag(call.hidden, flags::HIDDEN),
            root: partner.map(|at| at as i32),
            tag: call.tag,
            numel: call.numel,
            dims: call.shape.clone().unwrap_or_default().to_vec(),
            shape_known: call.shape.is_some(),
            tensors: call.tensors,
            step: call.step as u32,
            phase: call.phase.as_deref().unwrap_or_default().into(),
            creation: made.map(|group| {
                let (members, runs) = members::encode(group.key.members.clone());
                Box::new(v1::GroupCreation {
                    name: group.key.name.clone(),
                    description: group.description.as_ref().into(),
                    backend: group.backend.as_ref().into(),
                    takes_all: call.takes_all,
                    epoch: group.key.epoch,
                    members,
                    runs,
                    seat: None,
                })
            }),
            on_stream: call
                .on_stream
                .map(|on| v1::OnStream { stream: on.stream, launch: on.launch }),
            ..record
        })
    }
}
