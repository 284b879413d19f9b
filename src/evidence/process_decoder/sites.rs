//! Call sites of a process.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use ddp_doctor_diagnosis::event::{Event, Guard, OtherBranch, ProcessId};
use ddp_doctor_proto::blackbox::site::ADDRESS;
use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::{GuardForm, GuardSubject, v1};

use crate::limits::Limits;
use crate::values::{cut, number, text};

/// Maximum number of call sites per process.
const MAX_SITES: usize = 65_536;
/// Maximum number of tests kept per site.
const MAX_GUARDS: usize = 64;
/// Maximum number of frames of installed packages between the user's line and a call.
const MAX_VIA: usize = 16;
/// Maximum number of callers that distinguish paths to a site.
const MAX_CALLERS: usize = 8;
/// Maximum length of a test's source text, in bytes.
const MAX_TEST: usize = 256;

/// The call sites of a process, by number.
#[derive(Debug, Default)]
pub(super) struct Sites {
    sites: HashMap<u32, Site>,
    /// Forward call sites with their callers, as one text each.
    paths: HashMap<u32, Arc<str>>,
}

/// A call site.
#[derive(Debug)]
struct Site {
    /// The user's line, with the frames of installed packages up to the site.
    place: Arc<Where>,
    /// Site of the first caller; 0: unknown.
    caller: u32,
    /// Whether its source was read.
    is_read: bool,
    /// Whether its source is being read.
    reading: bool,
}

impl Sites {
    /// Adds a site, or what its source says; `None`: it is invalid, or over a limit.
    pub(super) fn define(
        &mut self,
        process: ProcessId,
        site: v1::SiteDefined,
        limits: &mut Limits,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        if let Some(known) = self.sites.get_mut(&site.id) {
            let says_something = !site.guards.is_empty() || known.reading;
            if known.is_read || site.reading || !says_something {
                return Some(());
            }
            let guards: Arc<[Guard]> = site.guards.iter().take(MAX_GUARDS).map(guard).collect();
            let bytes: usize = guards.iter().map(|guard| guard.test.len() + 64).sum();
            limits.take(bytes)?;
            known.is_read = true;
            out.push(Event::Site {
                process,
                place: known.place.clone(),
                caller: None,
                guards,
                reading: false,
            });
            return Some(());
        }
        if site.id == 0 || self.sites.len() >= MAX_SITES {
            return None;
        }
        // An address that was not resolved while its process was alive.
        if site.file.starts_with(ADDRESS) {
            return Some(());
        }
        let frame = Where {
            file: text(&site.file).as_ref().into(),
            line: site.line,
            function: text(&site.function).as_ref().into(),
            ..Where::default()
        };
        // Only sites defined earlier, so that callers never form a cycle.
        let caller = self.sites.get(&site.caller).map(|it| it.place.clone());
        let place = if site.library { called_by(caller.as_deref(), frame) } else { frame };
        limits.take(64)?;
        let place = limits.place(place)?;
        let known = Site {
            place: place.clone(),
            caller: if caller.is_some() { site.caller } else { 0 },
            is_read: false,
            reading: site.reading,
        };
        self.sites.insert(site.id, known);
        let caller = caller.map(users_line);
        if caller.is_some() || site.reading {
            out.push(Event::Site {
                process,
                place,
                caller,
                guards: Arc::new([]),
                reading: site.reading,
            });
        }
        if site.guards.is_empty() {
            return Some(());
        }
        self.define(process, site, limits, out)
    }

    /// The user's line of a site.
    pub(super) fn place(&self, site: u32) -> Option<Arc<Where>> {
        self.sites.get(&site).map(|site| site.place.clone())
    }

    /// A site and its callers as one text, equal for calls from the same lines.
    pub(super) fn path(&mut self, site: u32, limits: &mut Limits) -> Option<Arc<str>> {
        if let Some(known) = self.paths.get(&site) {
            return Some(known.clone());
        }
        let mut path = String::new();
        let mut next = site;
        for _ in 0..MAX_CALLERS {
            let Some(site) = self.sites.get(&next) else {
                break;
            };
            // The site itself.
            let frame = site.place.via.last().unwrap_or(&site.place);
            write!(path, "{}:{};", frame.file, frame.line).ok()?;
            next = site.caller;
        }
        if path.is_empty() {
            return None;
        }
        limits.take(path.len() + 64)?;
        let path: Arc<str> = path.into();
        self.paths.insert(site, path.clone());
        Some(path)
    }
}

/// The place of a frame of an installed package with this caller.
fn called_by(caller: Option<&Where>, frame: Where) -> Where {
    let Some(caller) = caller else {
        return Where { library: true, ..frame };
    };
    let mut place = caller.clone();
    if place.via.len() < MAX_VIA {
        place.via.push(frame);
    }
    place
}

/// A place without the frames of installed packages.
fn users_line(place: Arc<Where>) -> Arc<Where> {
    if place.via.is_empty() {
        return place;
    }
    let mut line = Arc::unwrap_or_clone(place);
    line.via.clear();
    Arc::new(line)
}

fn guard(guard: &v1::Guard) -> Guard {
    Guard {
        line: guard.line,
        test: cut(&guard.test, MAX_TEST).into(),
        subject: number(guard.subject, GuardSubject::from_number),
        form: number(guard.form, GuardForm::from_number),
        other: guard.other_first.zip(guard.other_last).map(|(first, last)| OtherBranch {
            first,
            last,
            makes_call: guard.is_called_there,
        }),
        is_while: guard.is_while,
    }
}
