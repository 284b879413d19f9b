//! Rules about one machine: memory, limits, disk, GPUs and the container.

use super::line::{Line, list, size};
use crate::facts::{Container, Coordinator, Facts};
use crate::survey::{Node, Survey};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Shared memory below which the first connections of a rank or the first batch of a data loader
/// fill it: NCCL's segments have up to 10 MiB for each peer on the node.
const SHARED_MEMORY_PER_RANK: u64 = 16 * MIB;
/// Shared memory that NCCL's documentation recommends for containers.
const SHARED_MEMORY: u64 = GIB;
/// Memory that a rank needs at least: the libraries of PyTorch and CUDA alone take this much.
const MEMORY_PER_RANK: u64 = GIB;
/// Space that the evidence of a run takes at most in ordinary jobs.
const RUN_DIR: u64 = GIB;
/// Locked memory below which InfiniBand cannot register NCCL's buffers.
const LOCKED_MEMORY: u64 = GIB;
/// Descriptors that a rank opens besides its connections: libraries, devices, data loaders.
const DESCRIPTORS: u64 = 128;
/// Descriptors for each peer: one for each of a few process groups.
const DESCRIPTORS_PER_PEER: u64 = 4;

/// Lines about each machine.
pub(super) fn lines(survey: &Survey) -> Vec<Line> {
    let world = survey.launch.as_ref().and_then(|it| it.shape.world_size());
    let about = survey.nodes.iter().enumerate().flat_map(|(index, node)| {
        let name = survey.name(index);
        let ranks = node.facts.ranks.unwrap_or(1).saturating_mul(node.commands);
        let world = world.unwrap_or(ranks);
        let lines = lines_of_node(node, ranks.max(1).into(), world.into());
        lines.into_iter().map(move |line| line.at(name.clone()))
    });
    about.collect()
}

fn lines_of_node(node: &Node, ranks: u64, world: u64) -> Vec<Line> {
    let facts = &node.facts;
    let lines = [
        Some(shared_memory(facts, ranks)),
        memory(facts, ranks),
        Some(locked_memory(facts)),
        Some(descriptors(facts, world)),
        Some(disk(facts)),
        facts.container.map(container),
        facts.coordinator.as_ref().map(coordinator),
        Some(gpus(facts, ranks)),
        facts.unread_packages.as_deref().map(unread_packages),
    ];
    lines.into_iter().flatten().collect()
}

fn shared_memory(facts: &Facts, ranks: u64) -> Line {
    const CHECK: &str = "shared-memory";
    let fix = match facts.container {
        Some(Container::Kubernetes) => {
            "Mount a volume emptyDir with medium: Memory at /dev/shm in the pod."
        }
        Some(Container::Docker | Container::Podman) => {
            "Start the container with --shm-size=8g or --ipc=host."
        }
        _ => {
            "Mount it larger: mount -o remount,size=8g /dev/shm (on the host, if this is a container)."
        }
    };
    let it = &facts.shared_memory;
    if let Some(error) = &it.error {
        let reason = format!(
            "No file can be created in {}: {error}. NCCL and data loaders need it.",
            it.path
        );
        return Line::critical(CHECK, reason)
            .fix("Mount a tmpfs there that this user can write to.");
    }
    if !facts.has_shared_memory {
        let reason = format!(
            "No tmpfs is mounted at {}: shared memory is written to a disk, or lost in the container's layer.",
            it.path
        );
        return Line::warning(CHECK, reason).fix(fix);
    }
    let (Some(free), Some(total)) = (it.free, it.total) else {
        return Line::unknown(CHECK, format!("The size of {} is unknown.", it.path));
    };
    let has = format!("{} has {} free of {}", it.path, size(free), size(total));
    if free < ranks * SHARED_MEMORY_PER_RANK {
        let reason = format!(
            "{has}, less than {} for each rank: NCCL fails when it connects ranks of the node, and \
             data loaders with workers are killed by SIGBUS.",
            size(SHARED_MEMORY_PER_RANK)
        );
        Line::critical(CHECK, reason).fix(fix)
    } else if free < SHARED_MEMORY {
        let reason = format!(
            "{has}; NCCL with several GPUs and data loaders with workers need 1 GiB or more."
        );
        Line::warning(CHECK, reason).fix(fix)
    } else {
        Line::pass(CHECK, format!("{has}."))
    }
}

fn memory(facts: &Facts, ranks: u64) -> Option<Line> {
    const CHECK: &str = "memory-limit";
    let it = facts.memory?;
    let left = it.limit.saturating_sub(it.used);
    let has = format!("The control group has {} left of {}", size(left), size(it.limit));
    Some(if left < ranks * MEMORY_PER_RANK {
        let reason = format!(
            "{has}, less than {} for each rank; /dev/shm counts as well. The kernel kills a rank when it is used up.",
            size(MEMORY_PER_RANK)
        );
        Line::warning(CHECK, reason).fix(
            "Raise the memory limit of the container or of the batch job, or start fewer ranks.",
        )
    } else {
        Line::pass(CHECK, format!("{has}."))
    })
}

fn locked_memory(facts: &Facts) -> Line {
    const CHECK: &str = "memlock";
    let limit = facts.memlock.soft;
    let is_disabled = facts.variables.get("NCCL_IB_DISABLE").is_some_and(|it| it == "1");
    if limit == u64::MAX {
        return Line::pass(CHECK, "Locked memory is unlimited.");
    }
    let limited = format!("Locked memory is limited to {}", size(limit));
    if facts.infiniband.is_empty() {
        return Line::info(
            CHECK,
            format!("{limited}, which matters for InfiniBand only; this node has none."),
        );
    }
    let devices = list(&facts.infiniband);
    if facts.may_lock {
        return Line::pass(
            CHECK,
            format!("{limited}, but this user may exceed it (CAP_IPC_LOCK)."),
        );
    }
    if is_disabled {
        return Line::info(
            CHECK,
            format!("{limited}; NCCL_IB_DISABLE=1 keeps NCCL from using {devices}."),
        );
    }
    let reason =
        format!("{limited}: NCCL cannot register its buffers with {devices} (ibv_reg_mr fails).");
    let fix = match facts.container {
        Some(_) => "Start the container with --ulimit memlock=-1.",
        None => {
            "Set `* - memlock unlimited` in /etc/security/limits.conf, and for Slurm LimitMEMLOCK=infinity in slurmd's unit."
        }
    };
    if limit < LOCKED_MEMORY {
        Line::critical(CHECK, reason).fix(fix)
    } else {
        Line::warning(CHECK, format!("{limited}; large registrations with {devices} may fail."))
            .fix(fix)
    }
}

fn descriptors(facts: &Facts, world: u64) -> Line {
    const CHECK: &str = "file-limit";
    let limit = facts.descriptors;
    let allows = format!("A process may open {} files", limit.soft);
    let fix = || {
        let raise = if limit.hard > limit.soft {
            format!("ulimit -n {}", limit.hard.min(1 << 20))
        } else {
            "raise the hard limit (/etc/security/limits.conf, --ulimit nofile=65536)".into()
        };
        format!("Before the launch: {raise}.")
    };
    if limit.soft < DESCRIPTORS + world {
        let reason = format!(
            "{allows}; a rank needs one connection to each of {world} ranks, plus {DESCRIPTORS} other files."
        );
        Line::critical(CHECK, reason).fix(fix())
    } else if limit.soft < DESCRIPTORS + world * DESCRIPTORS_PER_PEER {
        let reason =
            format!("{allows}, which may not suffice for several process groups of {world} ranks.");
        Line::warning(CHECK, reason).fix(fix())
    } else {
        Line::pass(CHECK, format!("{allows}."))
    }
}

fn disk(facts: &Facts) -> Line {
    const CHECK: &str = "disk";
    let it = &facts.run_dir;
    if let Some(error) = &it.error {
        let reason = format!(
            "The run directory cannot be created in {}: {error}. The job runs, without report and journal.",
            it.path
        );
        return Line::warning(CHECK, reason)
            .fix("Choose another one with ddp-doctor run --run-dir.");
    }
    let Some(free) = it.free else {
        return Line::unknown(CHECK, format!("The free space in {} is unknown.", it.path));
    };
    let has = format!("{} has {} free for the run directory", it.path, size(free));
    if free < RUN_DIR {
        Line::warning(CHECK, format!("{has}."))
            .fix("Free some space, or choose another directory with ddp-doctor run --run-dir.")
    } else {
        Line::pass(CHECK, format!("{has}."))
    }
}

fn container(kind: Container) -> Line {
    Line::info(
        "container",
        format!("The process runs in {}: its limits are those of the container.", kind.name()),
    )
}

fn coordinator(it: &Coordinator) -> Line {
    const CHECK: &str = "coordinator";
    let Some(error) = &it.error else {
        let reason = format!("The coordinator at {} answers.", it.address);
        return Line::pass(CHECK, reason);
    };
    let reason = format!("{error}. The job runs, and this node is diagnosed alone.");
    Line::warning(CHECK, reason).fix(
        "Start ddp-doctor coordinator --listen 0.0.0.0:PORT there with the same DDP_DOCTOR_TOKEN, admit its \
         port between the nodes, and check the address.",
    )
}

fn unread_packages(why: &str) -> Line {
    let reason = format!("The versions of Python packages were not read, because {why}.");
    Line::info("versions", reason)
}

fn gpus(facts: &Facts, ranks: u64) -> Line {
    const CHECK: &str = "gpu";
    let Some(has_unified_memory) = facts.has_unified_memory else {
        return Line::info(CHECK, "There is no NVIDIA driver: the job can use Gloo, but not NCCL.");
    };
    if !has_unified_memory {
        let reason = "/dev/nvidia-uvm is missing: CUDA cannot start.";
        return Line::critical(CHECK, reason)
            .fix("Load the module (nvidia-modprobe -u), or start the container with --gpus all.");
    }
    let installed = facts.gpus.len();
    let all = || (0..installed).collect::<Vec<usize>>();
    let visible = match facts.variables.get("CUDA_VISIBLE_DEVICES") {
        None => Some(all()),
        Some(value) => numbers(value),
    };
    // Names of GPUs and MIG partitions are not resolved.
    let Some(visible) = visible else {
        return Line::info(
            CHECK,
            format!("{installed} GPUs; CUDA_VISIBLE_DEVICES selects some by name."),
        );
    };
    if let Some(wrong) = visible.iter().find(|&&it| it >= installed && installed > 0) {
        let reason = format!(
            "CUDA_VISIBLE_DEVICES names GPU {wrong}, but the driver lists {installed}: CUDA ignores it and those after it."
        );
        return Line::warning(CHECK, reason)
            .fix("Correct CUDA_VISIBLE_DEVICES, or leave it unset.");
    }
    let count = visible.len() as u64;
    if count < ranks {
        let reason = format!(
            "{ranks} ranks have {count} visible GPUs: NCCL refuses two ranks on one GPU (DD307)."
        );
        Line::warning(CHECK, reason)
            .fix("Start one rank per GPU (--nproc-per-node), or make more GPUs visible.")
    } else {
        let mut models = facts.gpus.clone();
        models.dedup();
        Line::pass(CHECK, format!("{ranks} ranks have {count} visible GPUs: {}.", list(&models)))
    }
}

/// The GPUs of `CUDA_VISIBLE_DEVICES`, up to the first that is not a number; `None`: they are named.
fn numbers(value: &str) -> Option<Vec<usize>> {
    let words: Vec<&str> = value
        .split(',')
        .map(str::trim)
        .take_while(|it| !it.is_empty() && !it.starts_with("-1"))
        .collect();
    let is_named = words.first().is_some_and(|it| !it.starts_with(|c: char| c.is_ascii_digit()));
    let numbers = words.iter().map_while(|it| it.parse().ok());
    (!is_named).then(|| numbers.collect())
}

#[cfg(test)]
mod tests {
    use super::super::Level::{self, Critical, Info, Pass, Unknown, Warning};
    use super::super::testing::{GIB, MIB, assert_worst, facts, survey};
    use super::*;
    use crate::facts::{Limit, MemoryLimit};

    type Change = fn(&mut Facts);

    fn assert_rule(check: &str, cases: &[(Change, Level, &str)]) {
        for (change, level, reason) in cases {
            let mut survey = survey(1);
            change(&mut survey.nodes[0].facts);
            assert_worst(&lines(&survey), check, *level, reason);
        }
    }

    #[test]
    fn shared_memory_must_suffice() {
        assert_rule(
            "shared-memory",
            &[
                (|_| (), Pass, "64 GiB free of 64 GiB"),
                (|it| it.shared_memory.free = Some(64 * MIB), Warning, "64 MiB free"),
                (|it| it.shared_memory.free = Some(31 * MIB), Critical, "SIGBUS"),
                (|it| it.has_shared_memory = false, Warning, "No tmpfs is mounted"),
                (
                    |it| it.shared_memory.error = Some("Permission denied".into()),
                    Critical,
                    "Permission denied",
                ),
                (|it| it.shared_memory.total = None, Unknown, "unknown"),
            ],
        );
    }

    #[test]
    fn fix_of_shared_memory_fits_the_container() {
        for (container, fix) in [
            (None, "mount -o remount"),
            (Some(Container::Docker), "--shm-size"),
            (Some(Container::Kubernetes), "emptyDir"),
        ] {
            let mut facts = facts(0);
            facts.container = container;
            facts.shared_memory.free = Some(0);
            let line = shared_memory(&facts, 1);
            assert!(line.fix.unwrap().contains(fix), "{container:?}");
        }
    }

    #[test]
    fn memory_limit_must_suffice_for_all_ranks() {
        fn with(it: &mut Facts, used: u64) {
            let limit = 4 * GIB;
            it.memory = Some(MemoryLimit { used, limit });
        }
        assert_rule(
            "memory-limit",
            &[
                (|it| with(it, GIB), Pass, "3.0 GiB left"),
                (|it| with(it, 3 * GIB), Warning, "1.0 GiB left"),
            ],
        );
    }

    #[test]
    fn locked_memory_matters_for_infiniband() {
        fn with(it: &mut Facts, soft: u64) {
            it.infiniband = vec!["mlx5_0".into()];
            it.memlock = Limit { soft, hard: soft };
        }
        assert_rule(
            "memlock",
            &[
                (|_| (), Info, "InfiniBand only"),
                (|it| with(it, u64::MAX), Pass, "unlimited"),
                (|it| with(it, 64 << 10), Critical, "mlx5_0"),
                (|it| with(it, 8 * GIB), Warning, "mlx5_0"),
                (
                    |it| {
                        with(it, 64 << 10);
                        it.may_lock = true;
                    },
                    Pass,
                    "CAP_IPC_LOCK",
                ),
                (
                    |it| {
                        with(it, 64 << 10);
                        it.variables.insert("NCCL_IB_DISABLE".into(), "1".into());
                    },
                    Info,
                    "NCCL_IB_DISABLE",
                ),
            ],
        );
    }

    #[test]
    fn descriptors_must_suffice_for_the_world() {
        fn with(it: &mut Facts, soft: u64, ranks: u32) {
            it.descriptors = Limit { soft, hard: 4096 };
            it.ranks = Some(ranks);
        }
        assert_rule(
            "file-limit",
            &[
                (|it| with(it, 1024, 8), Pass, "1024 files"),
                (|it| with(it, 1024, 512), Warning, "512 ranks"),
                (|it| with(it, 256, 200), Critical, "200 ranks"),
            ],
        );
    }

    #[test]
    fn run_directory_needs_space() {
        assert_rule(
            "disk",
            &[
                (|_| (), Pass, "64 GiB free"),
                (|it| it.run_dir.free = Some(MIB), Warning, "1.0 MiB free"),
                (
                    |it| it.run_dir.error = Some("Read-only file system".into()),
                    Warning,
                    "Read-only",
                ),
                (|it| it.run_dir.free = None, Unknown, "unknown"),
            ],
        );
    }

    #[test]
    fn every_rank_needs_a_gpu() {
        fn with(it: &mut Facts, gpus: usize, visible: Option<&str>) {
            it.has_unified_memory = Some(true);
            it.gpus = vec!["H100".into(); gpus];
            let visible = visible.map(|it| ("CUDA_VISIBLE_DEVICES".into(), it.into()));
            it.variables.extend(visible);
        }
        assert_rule(
            "gpu",
            &[
                (|_| (), Info, "no NVIDIA driver"),
                (|it| it.has_unified_memory = Some(false), Critical, "nvidia-uvm"),
                (|it| with(it, 2, None), Pass, "2 visible GPUs: H100"),
                (|it| with(it, 1, None), Warning, "DD307"),
                (|it| with(it, 4, Some("0,1")), Pass, "2 visible GPUs"),
                (|it| with(it, 4, Some("3")), Warning, "1 visible GPUs"),
                (|it| with(it, 4, Some("2,7")), Warning, "names GPU 7"),
                (|it| with(it, 4, Some("GPU-8f")), Info, "by name"),
            ],
        );
    }

    #[test]
    fn container_is_named() {
        assert_rule("container", &[(|it| it.container = Some(Container::Docker), Info, "Docker")]);
    }
}
