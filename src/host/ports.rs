//! Network ports of this host, as the kernel states them in files: InfiniBand and RoCE below
//! `/sys/class/infiniband`, Ethernet below `/sys/class/net`.
//!
//! What a driver does not count stays unknown. Interfaces without hardware (loopback, bridges, pairs that lead out of
//! containers) are left out: what passes through them arrives at a port of the host, and they come and go with
//! containers.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{PortKind, v1};

/// Variable with the path of the files to read instead of those of the kernel.
pub const ROOT_VARIABLE: &str = "DDP_DOCTOR_SYSFS";
/// Where the kernel shows them.
const ROOT: &str = "/sys";
/// Maximum number of ports.
const MAX_PORTS: usize = 64;
/// Maximum length of a file.
const MAX_FILE: usize = 4096;
/// InfiniBand counts in words of four bytes.
const WORD: u64 = 4;

/// Counters of damaged packets of InfiniBand and RoCE.
const ERRORS: [&str; 6] = [
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "counters/port_rcv_remote_physical_errors",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/rx_icrc_encapsulated",
];
/// Counters of repeated packets and of waits in vain, of InfiniBand and RoCE.
const RETRIES: [&str; 5] = [
    "hw_counters/local_ack_timeout_err",
    "hw_counters/packet_seq_err",
    "hw_counters/implied_nak_seq_err",
    "hw_counters/out_of_sequence",
    "hw_counters/rnr_nak_retry_err",
];

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    name: String,
    kind: PortKind,
    folder: PathBuf,
}

impl Port {
    /// The ports of this host; empty where there are none.
    #[must_use]
    pub fn find() -> Vec<Self> {
        let given = env::var_os(ROOT_VARIABLE).filter(|it| !it.is_empty());
        Self::below(Path::new(&given.unwrap_or_else(|| ROOT.into())))
    }

    /// The ports that files below this folder describe.
    fn below(root: &Path) -> Vec<Self> {
        let mut ports = Vec::new();
        for device in entries(&root.join("class/infiniband")) {
            for number in entries(&root.join("class/infiniband").join(&device).join("ports")) {
                let folder =
                    root.join("class/infiniband").join(&device).join("ports").join(&number);
                let is_ethernet = text(&folder.join("link_layer")).as_deref() == Some("Ethernet");
                let kind = if is_ethernet { PortKind::Roce } else { PortKind::Infiniband };
                ports.push(Self { name: format!("{device}/{number}"), kind, folder });
            }
        }
        for name in entries(&root.join("class/net")) {
            let folder = root.join("class/net").join(&name);
            if folder.join("device").exists() && text(&folder.join("type")).as_deref() == Some("1")
            {
                ports.push(Self { name, kind: PortKind::Ethernet, folder });
            }
        }
        ports.truncate(MAX_PORTS);
        ports
    }

    /// Its state; `None`: its files are gone. A driver may ask its hardware, which takes a moment, or never ends.
    #[must_use]
    pub fn read(&self) -> Option<v1::PortSample> {
        let sample = v1::PortSample {
            name: self.name.clone(),
            kind: i32::from(self.kind.number()),
            unix_ns: Timestamp::now().0,
            ..v1::PortSample::default()
        };
        let [sent, received] = match self.kind {
            PortKind::Ethernet => ["statistics/tx_bytes", "statistics/rx_bytes"],
            _ => ["counters/port_xmit_data", "counters/port_rcv_data"],
        };
        let bytes = self.sum(&[sent, received]);
        Some(match self.kind {
            PortKind::Ethernet => v1::PortSample {
                up: text(&self.folder.join("operstate"))? == "up",
                downs: self.sum(&["carrier_down_count"]),
                errors: self.sum(&["statistics/rx_errors", "statistics/tx_errors"]),
                bytes,
                ..sample
            },
            // "4: ACTIVE"
            _ => v1::PortSample {
                up: text(&self.folder.join("state"))?.starts_with("4:"),
                downs: self.sum(&["counters/link_downed"]),
                errors: self.sum(&ERRORS),
                retries: self.sum(&RETRIES),
                bytes: bytes.map(|words| words.saturating_mul(WORD)),
                ..sample
            },
        })
    }

    /// The sum of counters; `None`: there is none of them.
    fn sum(&self, counters: &[&str]) -> Option<u64> {
        let values = counters.iter().filter_map(|it| text(&self.folder.join(it))?.parse().ok());
        values.reduce(u64::saturating_add)
    }
}

/// Names in a folder, sorted.
fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// The text of a short file, without space around it.
fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    (text.len() <= MAX_FILE).then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_from_files() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join("class").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(Port::below(root.path()).is_empty());
        let port = "infiniband/mlx5_0/ports/1";
        for (name, text) in [
            ("link_layer", "InfiniBand\n"),
            ("state", "4: ACTIVE\n"),
            ("counters/link_downed", "2\n"),
            ("counters/symbol_error", "5\n"),
            ("hw_counters/packet_seq_err", "3\n"),
            ("hw_counters/local_ack_timeout_err", "4\n"),
            ("counters/port_xmit_data", "100\n"),
        ] {
            write(&format!("{port}/{name}"), text);
        }
        write("net/eth0/operstate", "down\n");
        write("net/eth0/type", "1\n");
        write("net/eth0/device/vendor", "0x15b3\n");
        write("net/lo/operstate", "unknown\n");
        write("net/lo/type", "772\n");
        let ports = Port::below(root.path());
        let read: Vec<_> = ports.iter().map(|it| it.read().unwrap()).collect();
        let names: Vec<&str> = read.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["mlx5_0/1", "eth0"]);
        let (port, ethernet) = (&read[0], &read[1]);
        assert!(port.up && !ethernet.up);
        assert_eq!((port.downs, port.errors, port.retries), (Some(2), Some(5), Some(7)));
        assert_eq!((port.bytes, ethernet.bytes, ethernet.downs), (Some(400), None, None));
        fs::remove_dir_all(root.path().join("class/net/eth0")).unwrap();
        assert_eq!(ports[1].read(), None);
    }
}
