//! Ways to install ddp-doctor and to start a job with it.
//!
//! * `launchers`: launchers of PyTorch, and failures between `run` and the job.
//! * `linked_programs`: programs that link the agent, under `run` and with a standing coordinator.
//! * `schedulers`: Slurm and Ray by the recipes of the documentation, and Kubernetes manifests.
//! * `packaging`: `pip install agent/python` in a fresh environment.
//! * `copied_program`: the program without its Python package and libraries.

mod copied_program;
mod launchers;
mod linked_programs;
mod packaging;
mod schedulers;
