//! Changes of files in a training process, and the way to a directory.
//!
//! Other users can write to the parents of directories in which ranks create files, and can
//! replace what is in them by links at any moment. Therefore nothing else in the libraries and the
//! Python package creates, renames or removes anything (`tests/structure/forbidden_code.rs`). All of
//! it happens through the descriptor of a directory (`Dir`) that was opened component by component
//! ([`walk`]), with names that are single components. No operation follows a link, waits for a FIFO,
//! or writes to a file that existed before.
//!
//! `src/host/files` of the program follows the same rule, and uses [`walk`].

mod calls;
mod dir;
mod known;
mod mounts;
mod own_names;
mod reach;
mod regular;
mod walk;

pub(crate) use dir::{Access, Dir};
pub use known::{Identity, KnownDirectories};
pub(crate) use mounts::{Mount, OWN_LIST};
pub use mounts::{is_entry_served_by_other, is_served_by_other};
pub use own_names::{directory_name_of, own_directory_name, own_number};
pub use reach::{
    find, find_by_own_links, reach, reach_below, reach_folder, reach_folder_below, reach_in,
    reach_secret,
};
pub use regular::{open_regular, regular, reopen};
pub(crate) use walk::{MAX_LINKS, components, is_private_group, is_system};
pub use walk::{
    Missing, OF_ANOTHER, Shared, Walked, can_any_other_write, can_others_write, refused, walk,
};
