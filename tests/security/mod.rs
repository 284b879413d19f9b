//! Attacks on a job and its diagnosis.
//!
//! * `nccl_libraries`: where the loader finds the library that traces NCCL calls.
//! * `box_directory`: another user exchanges the directory of black boxes for another one.
//! * `other_users`: other users of the machine, and hostile files.
//! * `hostile_peers`: peers that send too much or what is not true, or read nothing, and connections without the token.
//! * `planted_code`: links where the program searches for its libraries and its package.
//! * `planted_files`: files, directories and links that another user puts where those of this user will be.
//! * `planted_for_ranks`: the same for what a training process creates and reads.
//! * `published_text`: what others can read of a run, and what evidence can do to a terminal.
//! * `rootless`: user namespaces in which root has no id.
//! * `secrets`: that no secret is printed or handed on to ranks.
//! * `sockets`: sockets of other users.
//! * `sources`: which source files reports show.
//! * `token`: the token by variable, file and prompt.

mod box_directory;
mod hostile_peers;
mod nccl_libraries;
pub(crate) mod other_users;
mod planted_code;
mod planted_files;
mod planted_for_ranks;
mod published_text;
mod rootless;
mod secrets;
mod sockets;
mod sources;
mod token;
mod victim;
