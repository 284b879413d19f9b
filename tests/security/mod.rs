//! Attacks on a job and its diagnosis.
//!
//! * `nccl_libraries`: where the loader finds the library that traces NCCL calls.
//! * `other_users`: other users of the machine, and hostile files.
//! * `hostile_peers`: peers with the token that send too much or what is not true, or read nothing.
//! * `planted_files`: files, directories and links that another user puts where those of this user will be.
//! * `planted_for_ranks`: the same for what a training process creates and reads.
//! * `published_text`: what others can read of a run, and what evidence can do to a terminal.
//! * `secrets`: that no secret is printed or handed on to ranks.
//! * `sources`: which source files reports show.
//! * `token`: the token by variable, file and prompt.

mod hostile_peers;
mod nccl_libraries;
mod other_users;
mod planted_files;
mod planted_for_ranks;
mod published_text;
mod secrets;
mod sources;
mod token;
mod victim;
