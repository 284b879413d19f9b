//! Rules about the GPUs of a node: who uses them, faults, settings, links and the way to their memory.

use ddp_doctor_diagnosis::words::bytes;

use super::line::{Line, list};
use crate::facts::{Facts, GpuLink, GpuState};

const CHECK: &str = "gpu";
/// Numbers of lanes that a PCIe link can have.
const WIDTHS: [u32; 7] = [1, 2, 4, 8, 12, 16, 32];
/// First version of the kernel with which network cards can access memory of GPUs by DMA-BUF.
const DMA_BUF: (u32, u32) = (5, 12);

/// Lines about a node that has GPUs.
pub(super) fn lines(facts: &Facts, has_several_nodes: bool) -> impl Iterator<Item = Line> {
    let lines = [
        in_use(facts),
        resets(facts),
        errors(facts),
        partitions(facts),
        clocks(facts),
        persistence(facts),
        lanes(facts),
        nvlinks(facts),
        isolation(facts),
        translation(facts),
        has_several_nodes.then(|| peer_memory(facts)).flatten(),
    ];
    lines.into_iter().flatten()
}

/// "GPU 0, GPU 3": those of the GPUs that a condition holds for.
fn gpus(facts: &Facts, holds: impl Fn(&GpuState) -> bool) -> Option<String> {
    let of = facts.gpu_states.iter().filter(|it| holds(it));
    let shown: Vec<String> = of.map(|it| format!("GPU {}", it.index)).collect();
    (!shown.is_empty()).then(|| list(&shown))
}

/// Processes use GPUs already.
fn in_use(facts: &Facts) -> Option<Line> {
    let used = facts.gpu_states.iter().filter(|it| !it.pids.is_empty());
    let shown: Vec<String> = used
        .map(|it| {
            let pids: Vec<String> = it.pids.iter().map(u32::to_string).collect();
            format!("GPU {} ({} by pid {})", it.index, bytes(it.used), list(&pids))
        })
        .collect();
    (!shown.is_empty()).then(|| {
        Line::warning(CHECK, format!("GPUs are already in use: {}.", list(&shown)))
            .fix("End these processes, or exclude the GPUs (CUDA_VISIBLE_DEVICES).")
    })
}

/// GPUs are to be reset.
fn resets(facts: &Facts) -> Option<Line> {
    let shown = gpus(facts, |it| it.needs_reset)?;
    let reason = format!(
        "Faulty GPU memory will be replaced at the next reset, or could not be replaced: {shown}."
    );
    let fix = "Reset them (nvidia-smi --gpu-reset), and see nvidia-smi -q -d ROW_REMAPPER.";
    Some(Line::warning(CHECK, reason).fix(fix))
}

/// GPUs had memory errors that ended what used the memory.
fn errors(facts: &Facts) -> Option<Line> {
    let faulty = facts.gpu_states.iter().filter(|it| it.memory_errors > 0);
    let shown: Vec<String> =
        faulty.map(|it| format!("GPU {} ({})", it.index, it.memory_errors)).collect();
    (!shown.is_empty()).then(|| {
        let reason = format!(
            "GPUs had memory errors that they could not correct, since the driver was loaded: {}.",
            list(&shown)
        );
        Line::warning(CHECK, reason)
            .fix("Reset them, and replace those that have more afterwards: nvidia-smi -q -d ECC.")
    })
}

/// GPUs are partitioned.
fn partitions(facts: &Facts) -> Option<Line> {
    let shown = gpus(facts, |it| it.is_partitioned == Some(true))?;
    let reason = format!(
        "GPUs are partitioned (MIG): {shown}. A process uses one part only, parts cannot access each \
         other's memory, and the GPU of a rank is not reported."
    );
    let fix = "For jobs that need whole GPUs: nvidia-smi --multi-instance-gpu=0, as root.";
    Some(Line::warning(CHECK, reason).fix(fix))
}

/// A setting keeps the clocks of GPUs below their default.
fn clocks(facts: &Facts) -> Option<Line> {
    let lower = facts.gpu_states.iter().filter_map(|it| {
        let (set, default) = it.clock_mhz.zip(it.default_clock_mhz)?;
        (set < default).then(|| format!("GPU {} ({set} of {default} MHz)", it.index))
    });
    let shown: Vec<String> = lower.collect();
    (!shown.is_empty()).then(|| {
        let reason = format!("A setting keeps clocks below their default: {}.", list(&shown));
        Line::warning(CHECK, reason).fix("nvidia-smi --reset-applications-clocks, as root.")
    })
}

/// The driver forgets the state of GPUs that no process uses.
fn persistence(facts: &Facts) -> Option<Line> {
    let shown = gpus(facts, |it| it.is_persistent == Some(false))?;
    let reason = format!(
        "Persistence mode is off: {shown}. The driver then initializes a GPU each time its first \
         process starts, which takes seconds, and loses its settings."
    );
    Some(Line::info(CHECK, reason).fix("Start nvidia-persistenced, or nvidia-smi -pm 1, as root."))
}

/// GPUs use fewer PCIe lanes than they have. Their speed says nothing: idle GPUs reduce it.
fn lanes(facts: &Facts) -> Option<Line> {
    let is_narrow = |it: &&GpuLink| {
        // Virtual machines report other numbers.
        WIDTHS.contains(&it.width) && WIDTHS.contains(&it.max_width) && it.width < it.max_width
    };
    let narrow = facts.gpu_links.iter().filter(is_narrow);
    let shown: Vec<String> =
        narrow.map(|it| format!("{} ({} of {})", it.address, it.width, it.max_width)).collect();
    (!shown.is_empty()).then(|| {
        let reason = format!("GPUs use fewer PCIe lanes than they have: {}.", list(&shown));
        Line::warning(CHECK, reason)
            .fix("Check the slot and the riser of the GPU (lspci -vv, LnkSta).")
    })
}

/// NVLinks are down that are up on another GPU. Links that no GPU uses may not be connected.
fn nvlinks(facts: &Facts) -> Option<Line> {
    let most = facts.gpu_states.iter().filter_map(|it| it.active_links).max()?;
    let fewer = facts.gpu_states.iter().filter_map(|it| {
        let active = it.active_links.filter(|&active| active < most)?;
        Some(format!("GPU {} ({active} of {most})", it.index))
    });
    let shown: Vec<String> = fewer.collect();
    (!shown.is_empty()).then(|| {
        let reason = format!("GPUs have fewer NVLinks up than others: {}.", list(&shown));
        Line::warning(CHECK, reason).fix(
            "Check them with nvidia-smi nvlink --status, and the fabric manager where there is an NVSwitch.",
        )
    })
}

/// PCIe bridges above GPUs send transfers between devices through the root complex.
fn isolation(facts: &Facts) -> Option<Line> {
    let shown = paths(facts, |it| it.redirects == Some(true))?;
    let reason = format!(
        "PCIe bridges redirect transfers between devices (ACS): above {shown}. Transfers between GPUs, and \
         to network cards, become slow or hang."
    );
    let fix = "On a host that is not a virtual machine, disable ACS in the firmware, or on these bridges with setpci.";
    Some(Line::warning(CHECK, reason).fix(fix))
}

/// The IOMMU translates the addresses of GPUs.
fn translation(facts: &Facts) -> Option<Line> {
    let shown = paths(facts, |it| it.is_translated)?;
    let reason = format!(
        "The IOMMU translates addresses of GPUs: {shown}. Transfers between GPUs over PCIe, and to network \
         cards, become slow or hang."
    );
    let fix = "On a host that is not a virtual machine, start the kernel with iommu=pt.";
    Some(Line::warning(CHECK, reason).fix(fix))
}

/// Addresses of the GPUs whose path has a property, if it has other devices to exchange data with.
fn paths(facts: &Facts, holds: impl Fn(&GpuLink) -> bool) -> Option<String> {
    let has_peers = facts.gpu_links.len() > 1 || !facts.infiniband.is_empty();
    let of = facts.gpu_links.iter().filter(|it| has_peers && holds(it));
    let shown: Vec<&str> = of.map(|it| it.address.as_str()).collect();
    (!shown.is_empty()).then(|| list(&shown))
}

/// Network cards may not access the memory of GPUs: neither by the module nor by DMA-BUF, which needs the open modules
/// of the driver.
fn peer_memory(facts: &Facts) -> Option<Line> {
    let has_dma_buf = facts.has_open_driver && facts.kernel.is_some_and(|it| it >= DMA_BUF);
    (!facts.has_peer_memory && !has_dma_buf && !facts.infiniband.is_empty()).then(|| {
        let reason = "Network cards cannot access the memory of GPUs (GPUDirect RDMA): data goes through host \
                      memory.";
        Line::warning(CHECK, reason).fix(
            "Load nvidia_peermem, or use NVIDIA's open kernel modules on Linux 5.12 or later (DMA-BUF).",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::testing::facts;
    use super::*;

    /// The lines about a node with two GPUs on several nodes with InfiniBand, after a change.
    fn found(change: impl Fn(&mut Facts)) -> Vec<(Level, String)> {
        let mut facts = facts(0);
        facts.infiniband = vec!["mlx5_0".into()];
        facts.has_peer_memory = true;
        for index in 0..2 {
            facts.gpu_states.push(GpuState {
                index,
                is_persistent: Some(true),
                is_partitioned: Some(false),
                clock_mhz: Some(1980),
                default_clock_mhz: Some(1980),
                active_links: Some(18),
                ..GpuState::default()
            });
            facts.gpu_links.push(GpuLink {
                address: format!("0000:3{index}:00.0"),
                width: 16,
                max_width: 16,
                redirects: Some(false),
                is_translated: false,
            });
        }
        assert_eq!(lines(&facts, true).collect::<Vec<_>>(), [], "the healthy node");
        change(&mut facts);
        lines(&facts, true).map(|it| (it.level, it.reason)).collect()
    }

    #[track_caller]
    fn assert_one(found: &[(Level, String)], level: Level, part: &str) {
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].0 == level && found[0].1.contains(part), "{found:?}");
    }

    #[test]
    fn gpus_should_use_all_their_lanes() {
        let lanes = |width: u32, max_width: u32| {
            found(move |it| (it.gpu_links[0].width, it.gpu_links[0].max_width) = (width, max_width))
        };
        assert_one(&lanes(8, 16), Level::Warning, "0000:30:00.0 (8 of 16)");
        for (width, max_width) in [(16, 16), (0, 16), (16, 8), (8, 255), (63, 255)] {
            assert_eq!(lanes(width, max_width), [], "{width} of {max_width}");
        }
    }

    #[test]
    fn gpus_should_be_free_and_sound() {
        let used =
            found(|it| (it.gpu_states[1].used, it.gpu_states[1].pids) = (10 << 30, vec![47, 48]));
        assert_one(&used, Level::Warning, "GPU 1 (10.0 GiB by pid 47, 48)");
        let faulty = found(|it| it.gpu_states[1].needs_reset = true);
        assert_one(&faulty, Level::Warning, "could not be replaced: GPU 1.");
        let errors = found(|it| it.gpu_states[0].memory_errors = 3);
        assert_one(
            &errors,
            Level::Warning,
            "could not correct, since the driver was loaded: GPU 0 (3).",
        );
    }

    #[test]
    fn settings_that_slow_or_divide_gpus_are_reported() {
        let lower = found(|it| it.gpu_states[1].clock_mhz = Some(1200));
        assert_one(&lower, Level::Warning, "GPU 1 (1200 of 1980 MHz)");
        assert_eq!(found(|it| it.gpu_states[1].clock_mhz = Some(2010)), []);
        assert_eq!(found(|it| it.gpu_states[1].clock_mhz = None), []);
        let parts = found(|it| it.gpu_states[0].is_partitioned = Some(true));
        assert_one(&parts, Level::Warning, "(MIG): GPU 0.");
        let off =
            found(|it| it.gpu_states.iter_mut().for_each(|it| it.is_persistent = Some(false)));
        assert_one(&off, Level::Info, "off: GPU 0, GPU 1.");
        assert_eq!(found(|it| it.gpu_states[0].is_persistent = None), []);
    }

    #[test]
    fn nvlinks_are_compared_with_those_of_other_gpus() {
        let fewer = found(|it| it.gpu_states[1].active_links = Some(12));
        assert_one(&fewer, Level::Warning, "GPU 1 (12 of 18)");
        let none = found(|it| it.gpu_states.iter_mut().for_each(|it| it.active_links = Some(0)));
        assert_eq!(none, [], "links that are not connected");
        assert_eq!(found(|it| it.gpu_states[1].active_links = None), []);
    }

    #[test]
    fn detours_between_devices_are_reported() {
        let redirected = found(|it| it.gpu_links[1].redirects = Some(true));
        assert_one(&redirected, Level::Warning, "(ACS): above 0000:31:00.0");
        let translated = found(|it| it.gpu_links[0].is_translated = true);
        assert_one(&translated, Level::Warning, "0000:30:00.0");
        assert_eq!(found(|it| it.gpu_links[1].redirects = None), [], "only root may read it");
        let alone = found(|it| {
            it.infiniband.clear();
            it.gpu_links.truncate(1);
            (it.gpu_links[0].redirects, it.gpu_links[0].is_translated) = (Some(true), true);
        });
        assert_eq!(alone, [], "there is nothing to exchange data with");
    }

    #[test]
    fn network_cards_should_reach_the_memory_of_gpus() {
        assert_one(&found(|it| it.has_peer_memory = false), Level::Warning, "GPUDirect");
        let with = |is_open: bool, kernel: (u32, u32)| {
            found(move |it| {
                it.has_peer_memory = false;
                (it.has_open_driver, it.kernel) = (is_open, Some(kernel));
            })
        };
        assert_eq!(with(true, (5, 15)), []);
        assert_one(&with(true, (5, 4)), Level::Warning, "GPUDirect");
        assert_one(&with(false, (6, 8)), Level::Warning, "GPUDirect");
        let without_network = found(|it| {
            it.has_peer_memory = false;
            it.infiniband.clear();
        });
        assert_eq!(without_network, []);
        let mut one = facts(0);
        one.infiniband = vec!["mlx5_0".into()];
        assert_eq!(lines(&one, false).count(), 0, "a launch on one node");
        assert_eq!(lines(&one, true).count(), 1);
    }
}
