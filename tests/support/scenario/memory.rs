//! Memory samples in scenarios.

use ddp_doctor::diagnosis::event::MemorySample;

/// Parses `rss=300M+20M*7 host=20G/24G …`.
pub(super) fn sample(args: &[String]) -> Result<MemorySample, String> {
    let mut sample = MemorySample::default();
    for arg in args {
        let (name, value) = arg.split_once('=').ok_or(format!("no value: {arg}"))?;
        let (used, all) = match value.split_once('/') {
            Some((used, all)) => (number(used)?, Some(number(all)?)),
            None => (number(value)?, None),
        };
        let used = Some(used);
        match name {
            "rss" => sample.rss = used,
            "shared" => sample.rss_shared = used,
            "held" => sample.cgroup_held = used,
            "slowed" => sample.cgroup_slowed = used,
            "host" => {
                sample.host_total = all;
                sample.host_available = all.zip(used).map(|(all, used)| all.saturating_sub(used));
            }
            "cgroup" => (sample.cgroup_used, sample.cgroup_limit) = (used, all),
            "shm" => (sample.shm_used, sample.shm_total) = (used, all),
            "virtual" => (sample.virtual_used, sample.virtual_limit) = (used, all),
            "gpu" => {
                sample.device.get_or_insert(0);
                (sample.gpu_used, sample.gpu_total) = (used, all);
            }
            "tensors" => {
                sample.device.get_or_insert(0);
                sample.gpu_allocated = used;
            }
            "reserved" => sample.gpu_reserved = used,
            "peak" => sample.gpu_peak = used,
            "split" => sample.gpu_split = used,
            "retries" => sample.gpu_retries = used,
            "largest" => {
                sample.device.get_or_insert(0);
                sample.gpu_largest = used;
            }
            "nccl" => {
                sample.device.get_or_insert(0);
                sample.gpu_nccl = used;
            }
            _ => return Err(format!("unknown memory value {name}")),
        }
    }
    Ok(sample)
}

/// Parses sums and differences of products: `300M+20M*7-1G`, `64M*13%8`.
fn number(text: &str) -> Result<u64, String> {
    let wrong = || format!("no number: {text}");
    let mut sum = 0_i64;
    for plus in text.split('+') {
        for (i, term) in plus.split('-').enumerate() {
            let product = term
                .split('*')
                .try_fold(1_i64, |product, factor| {
                    let value = match factor.split_once('%') {
                        Some((value, by)) => bytes(value)?.checked_rem(bytes(by)?)?,
                        None => bytes(factor)?,
                    };
                    product.checked_mul(value)
                })
                .ok_or_else(wrong)?;
            sum += if i == 0 { product } else { -product };
        }
    }
    u64::try_from(sum).ok().ok_or_else(wrong)
}

/// Parses `300M`.
fn bytes(text: &str) -> Option<i64> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G', 'T']) {
        Some(digits) => {
            let power = "KMGT".find(&text[digits.len()..])? as u32 + 1;
            (digits, 10 * power)
        }
        None => (text, 0),
    };
    digits.parse::<i64>().ok()?.checked_shl(shift)
}
