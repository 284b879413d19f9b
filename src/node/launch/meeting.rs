//! What distinguishes the nodes of one launch from those of another with the same job name.

use std::ffi::OsString;

use ddp_doctor_host::proc;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use ddp_doctor_transport::loopback;

use super::rendezvous::{Launcher, Rendezvous, Variable, launcher};
use super::shape::Shape;

/// Where a node meets the other nodes of its launch, and as which of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meeting {
    /// Whether the launch has no other nodes.
    is_alone: bool,
    /// Text that is equal for nodes that meet at one place; empty: unknown.
    place: String,
    /// Rank of the node, or of its process; `None`: unknown.
    node_rank: Option<u32>,
}

impl Meeting {
    /// The meeting of a command, which was started at this time.
    #[must_use]
    pub fn of_command(
        command: &[OsString],
        rendezvous: Option<&Rendezvous>,
        variable: Variable<'_>,
        started: Timestamp,
    ) -> Self {
        if let Some(it) = rendezvous {
            return Self {
                is_alone: false,
                place: place(&it.host, &it.port.to_string()),
                node_rank: it.rank,
            };
        }
        if is_single_node(command, variable) {
            return Self::alone(format!("{}/{}", proc::boot_id(), started.0));
        }
        Self::default()
    }

    /// The meeting of a rank with these variables, which `run` did not start.
    #[must_use]
    pub fn of_rank(variable: Variable<'_>) -> Self {
        let number = |name: &str| variable(name)?.trim().parse::<u32>().ok();
        // Nodes may join the launch later, and then get other ranks and meet elsewhere.
        let is_elastic = variable("TORCHELASTIC_RUN_ID").is_some_and(|id| id != "none")
            || number("TORCHELASTIC_MAX_RESTARTS").is_some_and(|count| count > 0);
        if is_elastic {
            return Self::default();
        }
        let size = number("WORLD_SIZE");
        if size.is_some() && size == number("LOCAL_WORLD_SIZE") {
            return Self::alone(proc::boot_id());
        }
        let (Some(host), Some(port)) = (variable("MASTER_ADDR"), variable("MASTER_PORT")) else {
            return Self::default();
        };
        Self {
            is_alone: false,
            place: place(&host, &port),
            node_rank: number("GROUP_RANK").or_else(|| number("RANK")),
        }
    }

    /// Writes it to the first message of the node.
    pub fn write_to(self, hello: &mut v1::Hello) {
        if self.is_alone {
            hello.launch = format!("{}@{}", hello.launch, self.place);
        }
        hello.meeting = self.place;
        hello.node_rank = self.node_rank;
    }

    const fn alone(place: String) -> Self {
        Self { is_alone: true, place, node_rank: Some(0) }
    }
}

/// Whether a launcher starts ranks on one node only.
fn is_single_node(command: &[OsString], variable: Variable<'_>) -> bool {
    let words: Vec<&str> = command.iter().filter_map(|word| word.to_str()).collect();
    // accelerate may read the number of nodes from a file.
    let is_torchrun = matches!(launcher(&words), Some((Launcher::Torchrun, _)));
    is_torchrun && Shape::from_command(command, variable).commands == (1, 1)
}

/// A loopback address is another place on every machine.
fn place(host: &str, port: &str) -> String {
    match loopback(host) {
        Some(_) => format!("{host}:{port}@{}", proc::boot_id()),
        None => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(variables: &[&str]) -> impl Fn(&str) -> Option<String> {
        let variables: Vec<String> = variables.iter().map(|&it| it.to_owned()).collect();
        move |name| {
            let value = |it: &String| it.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
            variables.iter().find_map(value)
        }
    }

    fn of_command(command: &str, started: u64) -> Meeting {
        let command: Vec<OsString> = command.split_whitespace().map(Into::into).collect();
        let variable = variable(&[]);
        let rendezvous = Rendezvous::from_command(&command, &variable);
        Meeting::of_command(&command, rendezvous.as_ref(), &variable, Timestamp(started))
    }

    #[test]
    fn command_names_its_place_and_node() {
        let nodes = of_command("torchrun --nnodes 2 --node-rank 1 --master-addr a t.py", 1);
        assert_eq!((nodes.place.as_str(), nodes.node_rank), ("a:29500", Some(1)));
        let one = of_command("torchrun --nproc-per-node 8 t.py", 1);
        assert!(one.is_alone);
        assert_ne!(one, of_command("torchrun --nproc-per-node 8 t.py", 2));
        for command in ["python t.py", "accelerate launch t.py", "torchrun --nnodes 2 t.py"] {
            assert_eq!(of_command(command, 1), Meeting::default(), "{command}");
        }
    }

    #[test]
    fn ranks_name_their_place_and_node() {
        let place = ["MASTER_ADDR=a", "MASTER_PORT=1", "RANK=9", "WORLD_SIZE=16"];
        let of = |more: &[&str]| Meeting::of_rank(&variable(&[&place[..], more].concat()));
        let plain = of(&[]);
        assert_eq!((plain.place.as_str(), plain.node_rank), ("a:1", Some(9)));
        let node = of(&["GROUP_RANK=1", "LOCAL_WORLD_SIZE=8"]);
        assert_eq!((node.is_alone, node.node_rank), (false, Some(1)));
        assert!(of(&["LOCAL_WORLD_SIZE=16"]).is_alone);
        for elastic in ["TORCHELASTIC_RUN_ID=job7", "TORCHELASTIC_MAX_RESTARTS=3"] {
            assert_eq!(of(&["LOCAL_WORLD_SIZE=16", elastic]), Meeting::default());
        }
        assert_eq!(Meeting::of_rank(&variable(&["RANK=1"])), Meeting::default());
    }

    #[test]
    fn loopback_is_a_place_of_one_machine() {
        assert_eq!(place("a", "1"), "a:1");
        assert_eq!(place("localhost", "1"), format!("localhost:1@{}", proc::boot_id()));
    }
}
