//! The program `ddp-doctor`: monitors a distributed training job and reports why it hangs.
//!
//! [`cli`] parses arguments and runs a command. [`node`] starts a job and reads the black boxes of
//! its ranks. [`coordinator`] receives the evidence of the nodes by [`transport`] and passes it,
//! through [`evidence::decode`], to the engine in [`diagnosis`]. [`report`] formats the diagnosis as
//! text and files, and [`monitoring`] shows it to Prometheus and a webhook. [`ingest`] reads the files
//! of other programs, [`postmortem`] analyzes the evidence of a job after its end, [`check`] examines
//! the nodes before a job starts, [`attach`] reads a running job that was started without capture, and [`demo`]
//! contains jobs with a planted fault for a first trial. [`host`] changes files, for all of them.

pub mod cli;

pub use ddp_doctor_attach as attach;
pub use ddp_doctor_check as check;
pub use ddp_doctor_coordinator as coordinator;
pub use ddp_doctor_demo as demo;
pub use ddp_doctor_diagnosis as diagnosis;
pub use ddp_doctor_evidence as evidence;
pub use ddp_doctor_host as host;
pub use ddp_doctor_ingest as ingest;
pub use ddp_doctor_monitoring as monitoring;
pub use ddp_doctor_node as node;
pub use ddp_doctor_postmortem as postmortem;
pub use ddp_doctor_report as report;
pub use ddp_doctor_transport as transport;
