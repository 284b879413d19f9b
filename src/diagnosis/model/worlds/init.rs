//! How a process joins the world: which ranks it expects, where, and with which settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::NCCL_LAYER;

use crate::input::event::Call;
use crate::model::MAX_WORLD;

/// One initialization of the world by one process, as recorded before it began.
#[derive(Clone, Debug)]
pub struct Init {
    /// Number of earlier initializations by the process.
    pub nth: u32,
    /// The call that joins the world.
    pub call: Arc<Call>,
    /// Rank that the process requests.
    pub rank: Option<u32>,
    /// Number of ranks that it expects, including itself.
    pub world_size: Option<u32>,
    /// Where the ranks meet; `None`: in a store that the program created.
    pub place: Option<Place>,
    /// Backend, such as "gloo" or "cpu:gloo,cuda:nccl"; empty: none was given.
    pub backend: Arc<str>,
    /// Process id of the launcher that started all ranks of its host, if it starts nothing else.
    pub launcher: Option<u32>,
    /// World size set by the launcher.
    pub launched_world_size: Option<u32>,
    /// Address of the store that the launcher provides, so that ranks create none:
    /// "localhost:29500".
    pub launchers_store: Option<Arc<str>>,
    /// When the call returned.
    pub over: Option<Timestamp>,
}

/// Address at which ranks meet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Host name or address of the master, or a URL.
    pub address: Arc<str>,
    /// Port of the store; `None`: there is none.
    pub port: Option<u32>,
}

impl Init {
    /// The initialization that begins with this call, from the recorded settings.
    pub(in crate::model) fn begun(
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
            place: text("init.address")
                .map(|address| Place { address: Arc::clone(address), port: number("init.port") }),
            backend: text("init.backend").cloned().unwrap_or_default(),
            launcher: number("init.launcher"),
            launched_world_size: number("init.launched_world_size"),
            launchers_store: text("init.launchers_store").cloned(),
            over: None,
        }
    }

    /// The initialization by the first call of a process, if that creates an NCCL communicator of
    /// all ranks. They meet at the rank that created its unique id.
    pub(in crate::model) fn of_communicator(
        call: &Arc<Call>,
        rank: Option<u32>,
        world_size: Option<u32>,
        settings: &BTreeMap<Arc<str>, Arc<str>>,
    ) -> Option<Self> {
        let group = call.group.as_ref().filter(|group| group.key.layer == NCCL_LAYER)?;
        let size = group.key.members.len() as u32;
        if call.op != Op::NewGroup || world_size != Some(size) {
            return None;
        }
        let mut init = Self::begun(0, call, settings);
        init.rank = rank;
        init.world_size = world_size;
        init.backend = Arc::clone(&group.backend);
        // An id without an address is identified by the name of the communicator.
        init.place
            .get_or_insert_with(|| Place { address: group.key.name.as_str().into(), port: None });
        Some(init)
    }

    /// Name of the function that joins the world.
    pub fn function(&self) -> &'static str {
        match self.call.op {
            Op::NewGroup => "ncclCommInitRank",
            _ => "init_process_group",
        }
    }
}

impl Place {
    /// Whether the address is the local host.
    pub fn is_loopback(&self) -> bool {
        let address = self.address.trim_matches(['[', ']']);
        matches!(address, "localhost" | "::1") || address.starts_with("127.")
    }
}
