//! How a process joins the world: whom it looks for, where, and with what.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::MAX_WORLD;
use super::apply::NCCL;
use crate::diagnosis::event::Call;

/// One initialisation of the world by one process, as the process described it before it began.
#[derive(Clone, Debug)]
pub struct Init {
    /// The n-th of its process, from 0.
    pub nth: u32,
    /// The call.
    pub call: Arc<Call>,
    /// The rank that it means to be.
    pub rank: Option<u32>,
    /// How many ranks it looks for, itself included.
    pub world_size: Option<u32>,
    /// Where it looks for them; `None`: in a store that the program made itself.
    pub place: Option<Place>,
    /// "gloo", "cpu:gloo,cuda:nccl"; empty: the program names none.
    pub backend: Arc<str>,
    /// The process that started it and all other ranks of its host, where one did and starts nothing
    /// else.
    pub launcher: Option<u32>,
    /// How many ranks whoever started it says there are.
    pub launched_world_size: Option<u32>,
    /// Where the launcher keeps a store for its ranks, which then make none: "localhost:29500".
    pub launchers_store: Option<Arc<str>>,
    /// When it was over.
    pub over: Option<Timestamp>,
}

/// Where ranks find each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Name or address of the master's host, or a URL.
    pub address: Arc<str>,
    /// Port of the store there; `None`: it has none.
    pub port: Option<u32>,
}

impl Init {
    /// What the settings say about an initialisation that begins with this call.
    pub(super) fn begun(
        nth: u32,
        call: &Arc<Call>,
        settings: &BTreeMap<Arc<str>, Arc<str>>,
    ) -> Self {
        let text = |name: &str| settings.get(name).filter(|value| !value.is_empty());
        let number = |name: &str| text(name)?.parse().ok();
        Self {
            nth,
            call: Arc::clone(call),
            rank: number("init.rank"),
            world_size: number("init.world_size").filter(|size| (1..=MAX_WORLD).contains(size)),
            place: text("init.address").map(|address| Place {
                address: Arc::clone(address),
                port: number("init.port"),
            }),
            backend: text("init.backend").cloned().unwrap_or_default(),
            launcher: number("init.launcher"),
            launched_world_size: number("init.launched_world_size"),
            launchers_store: text("init.launchers_store").cloned(),
            over: None,
        }
    }
}

impl Init {
    /// The first call of a process, where it makes an NCCL communicator of all ranks: they meet at whoever
    /// made its unique id.
    pub(super) fn of_communicator(
        call: &Arc<Call>,
        rank: Option<u32>,
        world_size: Option<u32>,
        settings: &BTreeMap<Arc<str>, Arc<str>>,
    ) -> Option<Self> {
        let group = call
            .group
            .as_ref()
            .filter(|group| group.key.layer == NCCL)?;
        let size = group.key.members.len() as u32;
        if call.op != Op::NewGroup || world_size != Some(size) {
            return None;
        }
        let mut init = Self::begun(0, call, settings);
        init.rank = rank;
        init.world_size = world_size;
        init.backend = Arc::clone(&group.backend);
        // Which is its own name, where the id says no address.
        init.place.get_or_insert_with(|| Place {
            address: group.key.name.as_str().into(),
            port: None,
        });
        Some(init)
    }

    /// What its ranks call to join, as people call it.
    #[must_use]
    pub fn function(&self) -> &'static str {
        match self.call.op {
            Op::NewGroup => "ncclCommInitRank",
            _ => "init_process_group",
        }
    }
}

impl Place {
    /// Whether it is the very host of whoever looks there.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let address = self.address.trim_matches(['[', ']']);
        matches!(address, "localhost" | "::1") || address.starts_with("127.")
    }
}
